"""Membership in a group whose members share queues, positions at the brokers, locks, and messages that were given back.

Members in ``broadcast`` share nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.heartbeat import MessageModel
from rmq_protocol.message import MessageQueue

from ..._text import printable
from ...client import ClientInstance, committed_offset
from ...errors import RocketMQError, SubscriptionGroupNotExistError, TopicNotFoundError
from ..config import ConsumerConfig
from ..group import (
    Apply,
    Commits,
    Doubts,
    MemberLocks,
    Open,
    Rebalance,
    Takeover,
    first_positions,
    missing_group,
    store_positions,
)
from ..handling import Outcomes
from ..held_queue import HeldQueue
from ..subscription import Subscription

logger = logging.getLogger(__name__)


class Clustering:
    """The membership in a group that shares queues.

    Args:
        group: Name of the group on the wire.
        subscriptions: Subscriptions by topic on the wire.
        owned: Returns the queues whose positions this member commits.
        doubts: The queues with commits that had no response.

    Attributes:
        topics: Names on the wire of all topics that are read, including the retry topic.
        retries_here: Whether this member itself repeats all failed messages; False if it gives back messages without an order.
    """

    model = MessageModel.CLUSTERING
    retries_here = False

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        owned: Callable[[], Iterable[HeldQueue]],
        doubts: Doubts,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._retry_topic = RETRY_TOPIC_PREFIX + group
        self._first: dict[str, dict[MessageQueue, int]] = {}
        """The positions to store when this member has joined, by topic."""
        self.topics = (*subscriptions, self._retry_topic)
        ordered = [topic for topic, each in subscriptions.items() if each.order is not None]
        self.outcomes = Outcomes(instance, group, is_locked=bool(ordered))
        self.locks = MemberLocks(instance, group, ordered)
        self.commits = Commits(instance, group, owned, self.locks.owns, doubts)

    def rebalance(self, apply: Apply) -> Rebalance:
        """Return the Rebalance that computes, round by round, which queues this member gets."""
        return Rebalance(self._instance, self._group, self.topics, self._config.allocate, apply)

    def takeover(self, rebalance: Rebalance, open: Open) -> Takeover:
        """Return the Takeover that takes over the queues of this member's share."""
        patience = self._config.handover_timeout
        return Takeover(self._instance, self._group, self.locks, patience, open, lambda: rebalance.departed)

    async def prepare(self, topic: str) -> None:
        """Determine the first offsets of a topic's queues before the member joins.

        A topic without a route is logged. Other errors of the requests propagate.
        """
        instance = self._instance
        try:
            route = await instance.routes.get(topic, instance.config.request_timeout)
        except TopicNotFoundError as error:
            logger.warning("a subscribed topic has no route yet and is read as soon as it has one: %s", printable(error, 300))
            return
        self._first[topic] = await first_positions(instance, self._group, route.subscribe_queues, self._config.start_from)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker keeps for the group. Return None if there is none. The error of the request propagates.

        Args:
            queue: The queue, with names on the wire.
        """
        return await committed_offset(self._instance, self._group, queue)

    async def joined(self) -> None:
        """Store the first positions after this member's first heartbeat has reached the brokers, and look up the retry topic.

        The errors of the requests for positions propagate.
        """
        try:
            for positions in self._first.values():
                await store_positions(self._instance, self._group, positions)
        except SubscriptionGroupNotExistError as error:
            raise missing_group(self._instance, self._group, error) from None
        try:
            await self._instance.routes.refresh(self._retry_topic, self._config.handover_timeout)
        except RocketMQError as error:  # the first heartbeat creates the topic, and the first round requests the route again
            logger.debug("no route of the retry topic yet: %s", printable(error, 300))
