"""Settles the messages of a handler call that has ended: decides about each message, carries out the decision, and logs it.

Outcomes are kept for tests that wait for them (``Consumer.wait_settled``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from rmq_protocol.message import MessageExt

from ... import machine
from ..._functions import error_text
from ...tracebacks import without_frames
from ..config import Retry
from ..delivery import Call, finish_all
from ..held_queue import HeldQueue, Waiting
from ..outcome import DeadLetter, Outcome, PutBack, RetryLater
from ..subscription import Subscription
from .decision import Decision, decide, decide_in_place
from .redelivery import Outcomes, shown_message

logger = logging.getLogger(__name__)

MAX_KEPT: Final = 1000
MAX_KEPT_SIZE: Final = 1024 * 1024
TRACEBACK_EVERY: Final = 10.0
"""Minimum seconds between two tracebacks of one handler in the log."""
Decided = dict[Waiting, tuple[Decision, BaseException]]
"""The unsettled messages of a call, with the decision about each message and the error that caused it."""


class Settled(msgspec.Struct, frozen=True):
    """One attempt of a message, with its outcome.

    Attributes:
        error: The reason why the message is not done, without a traceback: the error of its call (raised by the handler or by
            ``key``, or HandlerTimeoutError), or its mark (RetryLater, DeadLetter). None if the message is done.
        elapsed: Seconds from the beginning of the call, or from the step that handed out the message, to the outcome.
    """

    message: MessageExt
    outcome: Outcome
    error: BaseException | None
    elapsed: float


class SettledLog:
    """Keeps outcomes of messages until ``wait`` returns them: at most MAX_KEPT messages, and none after their bodies have reached
    MAX_KEPT_SIZE bytes.

    It keeps more if a call of ``wait`` needs more. Messages that end while the log is full are only counted.

    Attributes:
        handled: Number of messages that were handled without an error; ABANDONED messages are not counted.
        failed: Number of messages that were handled with an error; ABANDONED messages are not counted.
    """

    # The oldest messages are kept, not the newest: replacing them would add an eighth to the time per message, because of cache
    # misses.

    def __init__(self) -> None:
        self._kept: deque[Settled] = deque()
        self._size = 0
        self._wanted = 0
        """Number of messages that a call of ``wait`` needs. They are kept at any size."""
        self._full = False
        self._changed = asyncio.Event()
        self.handled = 0
        self.failed = 0

    def add(self, message: MessageExt, outcome: Outcome, error: BaseException | None, elapsed: float) -> None:
        if outcome is Outcome.ABANDONED:
            return
        if error is None:
            self.handled += 1
        else:
            self.failed += 1
        if self._full:
            return
        self._kept.append(Settled(message, outcome, None if error is None else without_frames(error), elapsed))
        self._size += len(message.body)
        self._look()
        self._changed.set()

    def add_done(self, calls: Sequence[Call]) -> None:
        """Add the messages of successful calls that had one message each."""
        if self._full:
            self.handled += len(calls)
            return
        for delivery in calls:
            self.add(delivery.messages[0], Outcome.DONE, None, delivery.elapsed or 0.0)

    async def wait(self, n: int, timeout: float) -> tuple[Settled, ...]:
        """Return the next ``n`` messages after the messages that the previous call returned.

        Raises:
            TimeoutError: After ``timeout`` seconds.
        """
        kept, self._wanted = self._kept, max(n, self._wanted)
        self._look()
        try:
            async with asyncio.timeout(timeout):
                while len(kept) < n:
                    self._changed.clear()
                    await self._changed.wait()
            taken = tuple(kept.popleft() for _ in range(n))
            self._size -= sum(len(each.message.body) for each in taken)
        finally:
            self._wanted = 0
            self._look()
        return taken

    def _look(self) -> None:
        count = len(self._kept)
        self._full = count >= self._wanted and (count >= MAX_KEPT or self._size >= MAX_KEPT_SIZE)


def _nothing(_: bool) -> None:
    """Do nothing. It is the default callback of ``carry_out``."""


class Settling:
    """Settles the messages of calls that have ended.

    Args:
        retry: The retry settings of subscriptions that have none of their own.
        outcomes: Carries out the decisions that involve a broker.
        settled: Keeps the outcomes for tests.
        ended: Called with each message that has its outcome, and the outcome. It is not called for messages of ``done_all``.
        again: Called with a subscription, a message that this member handles again, and the monotonic time of the next attempt; 0
            for at once.
        all_done: Called by ``done_all`` with the queues of the messages that are done, and these messages.
    """

    def __init__(
        self,
        retry: Retry,
        outcomes: Outcomes,
        settled: SettledLog,
        ended: Callable[[Waiting, Outcome], None],
        again: Callable[[Subscription, Waiting, float], None],
        all_done: Callable[[Iterable[HeldQueue], Sequence[Waiting]], None],
    ) -> None:
        self._retry = retry
        self._outcomes = outcomes
        self._settled = settled
        self._ended = ended
        self._again = again
        self._all_done = all_done
        self._reported: dict[Subscription, float] = {}
        """The monotonic time at which the last traceback of a subscription's handler was logged."""

    def done(self, delivery: Call, taken: Collection[Waiting]) -> None:
        """Settle the messages of a successful call."""
        elapsed = delivery.elapsed or 0.0
        for item in taken:
            held, message = item.held, item.message
            if (
                held.running.pop(item, None) is not None
            ):  # else the queue was moved, and the offset may belong to another message
                held.progress.settle(message.queue_offset)
            self._ended(item, Outcome.DONE)
            self._settled.add(message, Outcome.DONE, None, elapsed)

    def done_all(self, taken: Sequence[Waiting], calls: Sequence[Call], ends: Sequence[float]) -> None:
        """Settle the messages of ``calls``, which had one message each and returned at the monotonic times ``ends``. End the
        calls.
        """
        if not taken:
            return
        by_queue: dict[HeldQueue, list[int]] = {}
        finish_all(calls, ends)
        for item in taken:
            held = item.held
            offsets = by_queue.get(held)
            if offsets is None:
                offsets = by_queue[held] = []
            if held.running.pop(item, None) is not None:
                offsets.append(item.message.queue_offset)
        for held, offsets in by_queue.items():
            held.progress.settle_all(offsets)
        self._all_done(by_queue, taken)
        self._settled.add_done(calls)

    def decide(self, delivery: Call, taken: Collection[Waiting], error: BaseException | None) -> Decided:
        """Decide about the messages of a call, and log the decisions.

        Settle the messages that are done. Return the decisions about the others.

        Args:
            error: The error that the handler raised; None if it returned. Marks of a batch take precedence over it.
        """
        marks = delivery.marks.by_place if delivery.marks is not None else {}
        causes = {item: marks.get(place, error) for place, item in enumerate(taken)}
        done = [item for item, cause in causes.items() if cause is None]
        if done:
            self.done(delivery, done)
        return self.judge(delivery, {item: cause for item, cause in causes.items() if cause is not None}, error)

    def judge(self, delivery: Call, causes: Mapping[Waiting, BaseException], shared: BaseException | None) -> Decided:
        """Decide about messages that are not done, and log the decisions.

        Args:
            causes: The error or mark of each message.
            shared: The error of the whole call, if any. All other causes belong to single messages.
        """
        decided: Decided = {item: (self._decide(delivery, item, cause), cause) for item, cause in causes.items()}
        self._log(delivery, decided, shared)
        return decided

    def carry_out(self, delivery: Call, decided: Decided, over: Callable[[bool], None] = _nothing) -> bool:
        """Begin to give the messages back to brokers, or put them back into the backlog of this member.

        Args:
            over: Called when all messages have their outcomes, perhaps before this method returns. The argument says whether no
                message was abandoned.

        Returns:
            Whether all messages already have their outcomes.
        """
        left, all_taken = len(decided), True
        now = machine.monotonic()  # one time for all, so messages with the same delay are due together, in one batch

        def report(item: Waiting, outcome: Outcome) -> None:
            nonlocal left, all_taken
            left -= 1
            all_taken &= outcome is not Outcome.ABANDONED
            delivery.note_outcome(outcome)
            self._settled.add(item.message, outcome, decided[item][1], delivery.age)
            if not left:
                over(all_taken)

        for item, (decision, error) in decided.items():
            if decision.in_place is None:
                self._outcomes.settle(delivery.subscription, item, decision, error, partial(report, item))
                continue
            if item.held.running.pop(item, None) is None:
                self._ended(item, decision.outcome)
            else:
                item.attempt += 1
                if item.held_since is None:
                    item.held_since = now
                self._outcomes.retried += 1
                self._again(delivery.subscription, item, now + decision.in_place if decision.in_place > 0 else 0.0)
            report(item, decision.outcome)
        return not left

    def leave(self, delivery: Call, left: Collection[Waiting], *, closing: bool) -> None:
        """End a call that was cancelled. Messages whose queue stays with this member are handled again; others are abandoned.

        Args:
            closing: Whether all messages are abandoned.
        """
        for item in list(left):
            is_here = item.held.running.pop(item, None) is not None
            if is_here and not closing and item.held.stays:
                self._again(delivery.subscription, item, 0.0)
            else:
                delivery.note_outcome(Outcome.ABANDONED)
                self._ended(item, Outcome.ABANDONED)

    def _retry_of(self, subscription: Subscription) -> Retry:
        return subscription.retry if subscription.retry is not None else self._retry

    def _decide(self, delivery: Call, item: Waiting, error: BaseException) -> Decision:
        subscription = delivery.subscription
        retry = self._retry_of(subscription)
        held_for = 0.0 if item.held_since is None else machine.monotonic() - item.held_since

        def decide_by(retry: Retry, error: BaseException) -> Decision:
            if item.key is not None:
                return decide_in_place(error, subscription, retry, item.attempt, held_for)
            return decide(error, subscription, retry, item.attempt)

        try:
            return decide_by(retry, error)
        except Exception:
            own = isinstance(error, DeadLetter) or (isinstance(error, RetryLater) and getattr(error, "delay", 0) is not None)
            what = type(error).__name__ if own else "Retry.delays"
            used = "it is used without a reason" if isinstance(error, DeadLetter) else "the default delay is used"
            logger.exception("%s in the handling of topic %s has an invalid value; %s", what, subscription.topic, used)
        return decide_by(replace(retry, delays=None), _plain(error))

    # -- log

    def _log(self, delivery: Call, decided: Decided, error: BaseException | None) -> None:
        """Log each delay that was shortened, and each dead letter.

        Other messages share one line if they have the error of the call, and another line if they have marks.
        """
        retried: list[Waiting] = []
        marked: list[Waiting] = []
        for item, (decision, cause) in decided.items():
            if decision.cut:
                text = (
                    "its delay is longer than 2 h, the maximum; it is delivered again after 2 h"
                    if decision.in_place is None
                    else f"its delay exceeds max_hold; the last attempt begins in {decision.in_place:.3g} s"
                )
                logger.warning("%s: %s", shown_message(delivery.topic, item.message), text)
            if decision.outcome is Outcome.DEAD_LETTERED:
                by = f", by handler {delivery.subscription.name}"
                self._outcomes.log_given_up(delivery.topic, item.message, item.attempt, by, _reason(decision, cause))
            else:
                (retried if cause is error else marked).append(item)
        for items in (retried, marked):
            if items:
                decision, cause = decided[items[0]]
                self._log_retried(delivery, items, cause, decision.in_place)

    def _log_retried(self, delivery: Call, retried: list[Waiting], error: BaseException, in_place: float | None) -> None:
        if isinstance(error, PutBack):
            return
        subscription, quiet = delivery.subscription, isinstance(error, RetryLater | DeadLetter)
        now = machine.monotonic()
        with_traceback = not quiet and now - self._reported.get(subscription, -TRACEBACK_EVERY) >= TRACEBACK_EVERY
        if with_traceback:
            self._reported[subscription] = now
        behind = "" if subscription.order is None else ", messages behind it wait"
        what = "the message is" if len(retried) == 1 else f"{len(retried)} messages are"
        logger.warning(
            "attempt %d failed, %s %s: %s, handler %s: %s",
            retried[0].attempt,
            what,
            "delivered again" if in_place is None else f"handled again in {in_place:.3g} s{behind}",
            ", ".join(shown_message(delivery.topic, item.message) for item in retried[:3])
            + (", ..." if len(retried) > 3 else ""),
            subscription.name,
            error_text(error),
            exc_info=error if with_traceback else None,
        )


def _plain(error: BaseException) -> BaseException:
    """Return an exception with the same outcome, but without the delay or reason of ``error``, which may be invalid, or missing
    in a subclass that does not set it.
    """
    if isinstance(error, DeadLetter):
        return DeadLetter()
    return RetryLater() if isinstance(error, RetryLater) else error


def _reason(decision: Decision, cause: BaseException) -> str:
    """Return why a message is given up. The last error of the handler is included unless the handler gave the reason itself."""
    if decision.reason and isinstance(cause, DeadLetter):
        return decision.reason
    return f"{decision.reason}: {error_text(cause)}" if decision.reason else error_text(cause)
