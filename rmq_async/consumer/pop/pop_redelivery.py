"""Carries out the outcomes of popped messages: acknowledgement, delivery after a delay, or dead letter.

This member decides the outcomes, because a broker only counts the attempts of popped messages. It does not limit them, does not
increase delays, and does not dead-letter messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from rmq_protocol.pop import real_topic

from ... import machine
from ...client import ClientInstance
from ..config import Retry
from ..delivery import Call, finish_all
from ..handling import DEAD, Decision, GiveBack, Outcomes, Report, SettledLog, Settling
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..subscription import Subscription
from .acks import Lease
from .core import PopCore

USUAL_LIMIT: Final = 16
"""The default of a group's ``retryMaxTimes``."""
DELAYS: Final = (
    10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0,
)  # fmt: skip
"""Seconds before the second, third, ... attempt; the last value is used for all further attempts. These are the values of Java's
push consumer when it pops."""


def delay_after(attempt: int) -> float:
    """Return the default seconds from attempt number ``attempt``, counted from 1, to the next attempt."""
    return DELAYS[min(max(attempt, 1), len(DELAYS)) - 1]


class PopOutcomes(Outcomes):
    """Carries out decisions about popped messages.

    Args:
        group: Name of the group on the wire.
    """

    def __init__(self, instance: ClientInstance, group: str, core: PopCore) -> None:
        super().__init__(instance, group)
        self._core = core

    def settle(
        self, subscription: Subscription, item: Waiting, decision: Decision, cause: BaseException, report: Report
    ) -> None:
        """Begin to give a message back or to store it as a dead letter, according to the decision.

        The outcome of a message that is given back is RETRIED even if the broker does not confirm it, because the message is
        delivered again in any case.
        """
        assert isinstance(item, Lease)
        self._begin(subscription, item, decision, cause, report)

    def dead_letter(self, subscription: Subscription, lease: Lease, report: Report) -> None:
        """Begin to store a copy as a dead letter, and then acknowledge the message.

        If only the acknowledgement fails, there may be two copies. The outcome is ABANDONED if the lease ends before a copy is
        stored.
        """
        self._begin(subscription, lease, Decision(Outcome.DEAD_LETTERED, DEAD), "", report)

    def _begin(
        self, subscription: Subscription, lease: Lease, decision: Decision, cause: BaseException | str, report: Report
    ) -> None:
        topic = real_topic(lease.handle.retry, lease.topic, self._group)
        decision = decision._replace(max_times=0)
        self.give_backs.add(GiveBack(lease.held, topic, lease.message, decision, cause, report, lease, subscription))

    def is_wanted(self, back: GiveBack) -> bool:
        lease = _lease(back)
        return super().is_wanted(back) and (back.decision.outcome is Outcome.RETRIED or lease.expires > machine.monotonic())

    async def try_once(self, back: GiveBack) -> Outcome | None:
        decision, lease = back.decision, _lease(back)
        if decision.outcome is Outcome.RETRIED:
            await self._core.nack(lease, delay_after(lease.attempt) if decision.delay is None else decision.delay)
            self.retried += 1
            return Outcome.RETRIED
        outcome = await super().try_once(back)
        if outcome is not None:
            self._core.ack(lease)
        return outcome


def _lease(back: GiveBack) -> Lease:
    assert isinstance(back.item, Lease)
    return back.item


class PopSettling(Settling):
    """Settles popped messages.

    Args:
        limit: Returns the maximum number of attempts after the first one according to the group's settings. It is used if neither
            the subscription nor the consumer sets a limit.
    """

    def __init__(
        self,
        retry: Retry,
        outcomes: PopOutcomes,
        settled: SettledLog,
        ended: Callable[[Waiting, Outcome], None],
        again: Callable[[Subscription, Waiting, float], None],
        all_done: Callable[[Iterable[HeldQueue], Sequence[Waiting]], None],
        limit: Callable[[], int],
    ) -> None:
        super().__init__(retry, outcomes, settled, ended, again, all_done)
        self._limit = limit

    def done_all(self, taken: Sequence[Waiting], calls: Sequence[Call], ends: Sequence[float]) -> None:
        if not taken:
            return
        finish_all(calls, ends)
        for item in taken:
            item.held.running.pop(item, None)
        self._all_done((), taken)  # without queues, because a popping member keeps no offsets
        self._settled.add_done(calls)

    def limit_of(self, subscription: Subscription) -> int:
        """Return the maximum number of attempts of a message after the first one."""
        limit = super()._retry_of(subscription).limit
        return self._limit() if limit is None else limit

    def _retry_of(self, subscription: Subscription) -> Retry:
        return replace(super()._retry_of(subscription), limit=self.limit_of(subscription))
