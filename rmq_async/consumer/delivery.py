"""Deliveries. A delivery is one call of a handler or, when reading by hand, one step: the messages that one ``anext()`` or
``receive()`` has handed out. It has messages, the number of the attempt, a deadline and an outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final, Literal

from msgspec import Struct, field

from rmq_protocol.message import MessageExt

from .. import machine
from ..errors import ClientStateError
from ..timeouts import checked_timeout
from .outcome import DeadLetter, Marks, Outcome, RetryLater
from .subscription import Subscription

_SEVERITY: Final = {outcome: number for number, outcome in enumerate(Outcome)}


def _now() -> float:
    return machine.monotonic()


class Call(Struct, eq=False, weakref=True):
    """The state of one call of a handler, or of one step of reading by hand. Users see it as a ``Delivery``."""

    subscription: Subscription
    messages: tuple[MessageExt, ...]
    attempt: int
    began: float = field(default_factory=_now)
    deadline: float | None = None
    moved: Callable[[Call], object] | None = None
    """A function that is called when the deadline has moved. It may be called from any thread."""
    task: asyncio.Task[Any] | None = None
    """The task that makes the call. None before the task has begun and after its end, and for a step of reading by hand."""
    marks: Marks | None = None
    """The outcomes that were chosen for single messages of a batch; None for a handler that takes single messages."""
    taken_away: Callable[[Call], object] | None = None
    """A function that ``cut_off`` calls for a step of reading by hand; None for a handler call."""
    state: Literal["running", "settling", "finished"] = "running"
    outcome: Outcome | None = None
    elapsed: float | None = None
    error: BaseException | None = None
    timed_out: bool = False
    cut: bool = False
    """Whether the library may cancel the call's task: a queue of the call is given up, lost or moved, the consumer stops, or a tool
    has requested the call."""
    values: dict[object, Any] | None = None
    """The values that hooks store; None until a hook first reads ``Delivery.values``."""

    def __repr__(self) -> str:
        more = f" and {len(self.messages) - 1} more" if len(self.messages) > 1 else ""
        return f"<Delivery of {self.messages[0].msg_id}{more} of {self.topic}, attempt {self.attempt}, {self.state}>"

    @property
    def topic(self) -> str:
        """The topic that was subscribed to."""
        return self.subscription.topic

    @property
    def age(self) -> float:
        """Seconds since the call began, even after its end."""
        return machine.monotonic() - self.began

    # -- transitions: running, settling, finished

    def run_in(self, task: asyncio.Task[Any] | None) -> None:
        """Note the task that makes the call."""
        self.task = task

    def lend(self, task: asyncio.Task[Any] | None) -> None:
        """Note the task in which the call runs. The task has another owner, who may cancel it."""
        self.task, self.cut = task, True

    def extend(self, seconds: float) -> None:
        """Move the deadline, as ``Delivery.extend`` does."""
        seconds = checked_timeout(seconds, "seconds")
        if self.state != "running" or self.timed_out:
            raise ClientStateError(
                f"the delivery of message {self.messages[0].msg_id} has ended or timed out; call extend() while the handler runs"
            )
        self.deadline = machine.monotonic() + seconds
        if self.moved is not None:
            self.moved(self)

    def expire(self) -> None:
        """Note that the deadline has passed while the handler ran."""
        self.timed_out = True

    def cut_off(self) -> None:
        """Abandon the messages of the call or step, and settle nothing. Cancel the task of a handler call."""
        self.cut = True
        if self.taken_away is not None:
            self.taken_away(self)
        if self.task is not None:
            self.task.cancel()

    def measure(self) -> None:
        """Note how long the handler has run, or how long messages have been in hand."""
        self.elapsed = machine.monotonic() - self.began

    def settle(self, outcome: Outcome | None = None) -> None:
        """Note that the handler has ended.

        Args:
            outcome: The outcome of all messages; None if it is not known yet.
        """
        self.state, self.outcome, self.elapsed = "settling", outcome, machine.monotonic() - self.began

    def finish(self) -> None:
        """Note that all messages have their outcomes, or that no outcome will follow."""
        self.state = "finished"

    def leave_task(self, *, finished: bool) -> None:
        """Note that the task has ended.

        Args:
            finished: Whether all messages have their outcomes, or no outcome will follow.
        """
        self.task = None
        if finished:
            self.state = "finished"

    def note_outcome(self, outcome: Outcome) -> None:
        """Note the outcome of a message, unless another message of the call has a worse outcome."""
        if self.outcome is None or _SEVERITY[outcome] > _SEVERITY[self.outcome]:
            self.outcome = outcome

    def note_error(self, error: BaseException) -> None:
        self.error = error


def finish_all(calls: Iterable[Call], ends: Iterable[float]) -> None:
    """End calls that had one message each. Their handlers returned at the monotonic times ``ends``. Ending many calls together
    saves the cost of a method call for each.
    """
    for call, end in zip(calls, ends, strict=True):
        call.state, call.outcome, call.task, call.elapsed = "finished", Outcome.DONE, None, end - call.began


class Delivery(Struct, frozen=True, weakref=True):
    """One call of a handler, or one step of reading by hand, as users and hooks see it.

    Attributes:
        messages: The messages of this call.
        topic: The topic of the subscription, also for a message that is delivered again from the retry topic.
        attempt: Number of the attempt, counted from 1. For several messages, the highest of their attempts.
        began: Monotonic time at which the call began.
        deadline: Monotonic time at which the call times out; None for no timeout.
        state: "running" while the handler runs, "settling" while outcomes are sent to the broker, then "finished".
        outcome: None until a message has its outcome. For several messages, the worst outcome so far, in the order ABANDONED,
            DEAD_LETTERED, RETRIED, DONE.
        elapsed: Seconds that the handler took; None while it runs. When reading by hand, seconds until no message was in hand.
        error: For ``after_consume``, the error that the handler raised. HandlerTimeoutError if a coroutine function was cancelled
            at its timeout, or a plain function returned after its timeout. None if the handler returned in time, or was
            cancelled because the consumer stopped or the queue was given up, lost or moved. When reading by hand, the last
            RetryLater, DeadLetter or HandlerTimeoutError with which messages were given back.
    """

    # Deliveries of one call are equal and have the same hash. The call holds no reference to its deliveries, because that would
    # create a reference cycle.
    _call: Call

    def __repr__(self) -> str:
        return repr(self._call)

    @property
    def subscription(self) -> Subscription:
        return self._call.subscription

    @property
    def messages(self) -> tuple[MessageExt, ...]:
        return self._call.messages

    @property
    def topic(self) -> str:
        """The topic that was subscribed to."""
        return self._call.subscription.topic

    @property
    def group(self) -> str:
        """The name of the consumer group, without the namespace."""
        return self._call.subscription.group

    @property
    def namespace(self) -> str:
        """The namespace of the client's settings; "" for none."""
        return self._call.subscription.namespace

    @property
    def attempt(self) -> int:
        return self._call.attempt

    @property
    def began(self) -> float:
        return self._call.began

    @property
    def deadline(self) -> float | None:
        return self._call.deadline

    @property
    def age(self) -> float:
        """Seconds since the call began, even after its end."""
        return self._call.age

    @property
    def state(self) -> Literal["running", "settling", "finished"]:
        return self._call.state

    @property
    def outcome(self) -> Outcome | None:
        return self._call.outcome

    @property
    def elapsed(self) -> float | None:
        return self._call.elapsed

    @property
    def error(self) -> BaseException | None:
        return self._call.error

    @property
    def timed_out(self) -> bool:
        """Whether the deadline has passed while the handler ran."""
        return self._call.timed_out

    @property
    def values(self) -> dict[object, Any]:
        """A dict in which hooks can store values between ``before_consume`` and ``after_consume``."""
        call = self._call
        if call.values is None:
            call.values = {}
        return call.values

    def extend(self, seconds: float) -> None:
        """Move the deadline to ``seconds`` from now.

        Raises:
            TypeError: If ``seconds`` is not a number.
            ValueError: If ``seconds`` is not above 0.
            ClientStateError: If the handler has ended or has timed out.
        """
        self._call.extend(seconds)


def call_of(
    subscription: Subscription,
    messages: tuple[MessageExt, ...],
    attempt: int,
    marks: Marks | None = None,
    taken_away: Callable[[Call], object] | None = None,
    moved: Callable[[Call], object] | None = None,
) -> Call:
    """Return a call that begins now, with its deadline."""
    began, timeout = machine.monotonic(), subscription.timeout
    deadline = None if timeout is None else began + timeout
    return Call(subscription, messages, attempt, began, deadline, moved, None, marks, taken_away)


def mark_at(delivery: Delivery, place: int) -> RetryLater | DeadLetter | None:
    """Return the mark (``Batch.mark_retry``) of the message at the index ``place``. Return None if it has none."""
    marks = delivery._call.marks  # noqa: SLF001 - a class of this module; marks are not visible to users
    return None if marks is None else marks.by_place.get(place)


CURRENT: ContextVar[Call] = ContextVar("rmq_async_delivery")


def current_delivery() -> Delivery:
    """Return the delivery of the handler that runs in this context (of ``contextvars``). Tasks that the handler starts inherit
    the context.

    Raises:
        LookupError: In a context without a handler, for example when reading by hand.
    """
    call = CURRENT.get(None)
    if call is None:
        raise LookupError("no handler runs in this context; call current_delivery() in a handler, or in a task that it starts")
    return Delivery(call)
