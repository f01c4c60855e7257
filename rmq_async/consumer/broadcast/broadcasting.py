"""The membership of a broadcast consumer, which shares nothing with the other members of its group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import Context

from rmq_protocol.heartbeat import MessageModel
from rmq_protocol.message import MessageQueue

from ..._asyncio import for_each
from ...client import ClientInstance
from ..config import ConsumerConfig
from ..group import Rebalance, Takeover
from ..group_limit import joined_settings
from ..held_queue import HeldQueue
from ..membership import Apply, Open
from ..subscription import Subscription
from .all_queues import AllQueues, NoLocks
from .local_outcomes import LocalOutcomes
from .saved_positions import SavedPositions
from .starts import Starts

__all__ = ["Broadcasting"]


class Broadcasting:
    """The membership of a broadcast consumer, with the attributes and methods of ``Clustering``. ``context``: the context that
    is copied for each call of the user's ``load`` and ``save``."""

    model = MessageModel.BROADCASTING
    retries_here = True

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        owned: Callable[[], Iterable[HeldQueue]],
        context: Context,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        store = config.broadcast
        self.topics = tuple(subscriptions)
        self.outcomes = LocalOutcomes(instance, group)
        self.locks = NoLocks(instance, group)
        self.commits = SavedPositions(instance, None if isinstance(store, bool) else store, owned, context)
        self._starts = Starts(instance, self.commits, config.start_from)

    def rebalance(self, apply: Apply) -> Rebalance:
        found = AllQueues(self._instance, self._group, self.topics, self._config.allocate, apply)
        found.missing.start = self._starts.offset
        return found

    def takeover(self, rebalance: Rebalance, open: Open) -> Takeover:
        found = Takeover(self._instance, self._group, self.locks, self._config.handover_timeout, open)
        found.start = self._starts.offset
        return found

    async def prepare(self, topic: str) -> None:
        await self._starts.prepare(topic)

    async def committed(self, queue: MessageQueue) -> int | None:
        return self.commits.saved.get(queue)

    async def joined(self) -> None:
        """Saves the first positions, so that a crash soon after the start loses nothing. Raises SubscriptionGroupNotExistError
        for a broker without the group, which would answer no pull."""
        instance = self._instance
        routes = [route for topic in self.topics if (route := instance.routes.cached(topic)) is not None]
        queues = {instance.routes.broker_of(queue): queue for route in routes for queue in route.subscribe_queues}
        timeout = instance.config.request_timeout
        await for_each(queues, lambda broker: joined_settings(instance, self._group, broker, queues[broker].topic, timeout))
        with suppress(Exception):  # the error is logged and in ``health()``, and the next round saves again
            await self.commits.now()
