"""The membership of a broadcast consumer, which shares nothing with the other members of its group.

The member reads every queue of its topics' routes, without locks. It repeats failed messages itself, because no broker redelivers
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import Context

from rmq_protocol.heartbeat import MessageModel
from rmq_protocol.message import MessageExt, MessageQueue

from ..._asyncio import for_each
from ...client import ClientInstance
from ..config import ConsumerConfig
from ..group import Apply, MemberLocks, Open, Rebalance, Takeover, joined_settings
from ..handling import Decision, GiveBack, Outcomes, Report
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..subscription import Subscription
from .saved_positions import SavedPositions, Starts


class AllQueues(Rebalance):
    """Gives this member every queue, without requesting the members of the group from brokers."""

    async def _lists(self, brokers: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        return {}

    def _share(
        self, topic: str, queues: tuple[MessageQueue, ...], answers: list[tuple[str, ...]]
    ) -> tuple[frozenset[MessageQueue] | None, bool, str | None]:
        return frozenset(queues), True, None


class NoLocks(MemberLocks):
    """Grants every lock without a request to a broker."""

    async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        return frozenset(queues)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Do nothing: this member has no lock at any broker."""

    def owns(self, queue: MessageQueue) -> bool:
        return True

    def is_sure(self, queue: MessageQueue) -> bool:
        return True


class LocalOutcomes(Outcomes):
    """Carries out decisions in broadcast, where no broker redelivers messages.

    Attributes:
        dead_lettered: Number of messages that were given up; only the log names them.
    """

    given_up = "given up, since broadcast has no dead letters"

    def settle(
        self, subscription: Subscription, item: Waiting, decision: Decision, cause: BaseException, report: Report
    ) -> None:
        self.dead_lettered += 1
        back = GiveBack(item.held, subscription.topic, item.message, decision, cause, report, item)
        self.give_backs.end_now(back, Outcome.DEAD_LETTERED)

    def give_back(self, held: HeldQueue, topic: str, message: MessageExt, cause: str) -> None:
        """Do nothing. The position stays before the message, so the message is read again after a restart."""


class Broadcasting:
    """The membership of a broadcast consumer, with the attributes and methods of ``Clustering``.

    Args:
        owned: Returns the queues that the member holds.
        context: The context that is copied for each call of the user's ``load`` and ``save``.
    """

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
        """Save the first positions, so that a restart after an early crash does not begin at ``start_from`` again.

        Raises:
            SubscriptionGroupNotExistError: If a broker does not have the group. It would reject all pulls.
        """
        instance = self._instance
        routes = [route for topic in self.topics if (route := instance.routes.cached(topic)) is not None]
        queues = {instance.routes.broker_of(queue): queue for route in routes for queue in route.subscribe_queues}
        timeout = instance.config.request_timeout
        await for_each(queues, lambda broker: joined_settings(instance, self._group, broker, queues[broker].topic, timeout))
        with suppress(Exception):  # the error is logged and reported by ``health()``, and the next round saves again
            await self.commits.now()
