"""One call of a handler, or one step of reading by hand: its messages, its attempt, its deadline and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

from msgspec import Struct, field

from rmq_protocol.message import MessageExt

from .. import machine
from ..errors import ClientStateError
from ..timeouts import checked_timeout
from .outcome import Marks, Outcome
from .subscription import Subscription

__all__ = ["CURRENT", "Delivery", "current_delivery", "cut_off", "delivery_of"]


def _now() -> float:
    return machine.monotonic()


class Delivery(Struct, eq=False, weakref=True):
    """One call of a handler, or the messages that one step of reading by hand has returned.

    ``messages``: the messages of this call. ``topic``: the subscribed topic, also for a message that is delivered again.
    ``attempt``: number of the attempt from 1, of several messages the highest. ``began``: monotonic time at which the call
    began. ``deadline``: monotonic time at which it times out; None for never. ``state``: "running" in the handler, "settling"
    while outcomes go to the broker, then "finished". ``outcome``: None until a message has its outcome, of several messages the
    worst so far (ABANDONED, else DEAD_LETTERED, RETRIED, DONE). ``elapsed``: seconds that the handler took, None while it runs;
    by hand, seconds until no message was in hand. ``error``: for ``after_consume``, the error that the handler raised;
    HandlerTimeoutError for a coroutine function that its timeout has ended, and for a plain function that returned later; None
    if it returned otherwise, or was cancelled because the consumer stops or the queue was given up, lost or moved. By hand, the
    RetryLater, DeadLetter or HandlerTimeoutError with which messages were given back last.
    """

    subscription: Subscription
    messages: tuple[MessageExt, ...]
    attempt: int
    began: float = field(default_factory=_now)
    deadline: float | None = None
    moved: Callable[[Delivery], object] | None = None
    """A function that is called when the deadline has moved, from any thread."""
    task: asyncio.Task[Any] | None = None
    """The task that makes the call, or gives messages of a step back; None before its first step and after its end."""
    state: Literal["running", "settling", "finished"] = "running"
    outcome: Outcome | None = None
    elapsed: float | None = None
    error: BaseException | None = None
    _values: dict[object, Any] | None = None
    marks: Marks | None = None
    """The marks of a batch; None for a handler that takes a message and no batch."""
    timed_out: bool = False
    cut: bool = False
    """Whether a cancellation of its task ends the call: its queue is given up, lost or moved, the consumer stops, or a tool has
    requested the call."""
    taken_away: Callable[[Delivery], object] | None = None
    """A function that is called when messages that were handed out by hand are cut off; None for a call."""

    def __repr__(self) -> str:
        more = f" and {len(self.messages) - 1} more" if len(self.messages) > 1 else ""
        return f"<Delivery of {self.messages[0].msg_id}{more} of {self.topic}, attempt {self.attempt}, {self.state}>"

    @property
    def topic(self) -> str:
        """The topic that was subscribed to."""
        return self.subscription.topic

    @property
    def is_over(self) -> bool:
        """Whether the call was abandoned or has timed out; True also for a call that a tool has requested."""
        return self.cut or self.timed_out

    @property
    def age(self) -> float:
        """Seconds since the call began, also after its end."""
        return machine.monotonic() - self.began

    @property
    def values(self) -> dict[object, Any]:
        """A dict in which hooks keep values from ``before_consume`` to ``after_consume``."""
        if self._values is None:
            self._values = {}
        return self._values

    @property
    def group(self) -> str:
        """The name of the consumer group, without the namespace."""
        return self.subscription.group

    @property
    def namespace(self) -> str:
        """The namespace of the client's settings; "" for none."""
        return self.subscription.namespace

    def extend(self, seconds: float) -> None:
        """Moves the deadline to ``seconds`` from now.

        Raises TypeError if ``seconds`` is not a number, ValueError if it is not above 0, and ClientStateError when the handler
        has ended or has timed out.
        """
        seconds = checked_timeout(seconds, "seconds")
        if self.state != "running" or self.timed_out:
            raise ClientStateError(
                f"the delivery of message {self.messages[0].msg_id} has ended or timed out; call extend() while it runs"
            )
        self.deadline = machine.monotonic() + seconds
        if self.moved is not None:
            self.moved(self)


def delivery_of(subscription: Subscription, messages: tuple[MessageExt, ...], attempt: int) -> Delivery:
    """Returns the delivery of a call that begins now, with its deadline."""
    began, timeout = machine.monotonic(), subscription.timeout
    return Delivery(subscription, messages, attempt, began, None if timeout is None else began + timeout)


def cut_off(delivery: Delivery) -> None:
    """Abandons a call, or the messages of a step of reading by hand: cancels its task, and settles nothing."""
    delivery.cut = True
    if delivery.taken_away is not None:
        delivery.taken_away(delivery)
    if delivery.task is not None:
        delivery.task.cancel()


CURRENT: ContextVar[Delivery] = ContextVar("rmq_async_delivery")


def current_delivery() -> Delivery:
    """Returns the delivery of the handler that runs in this context (of ``contextvars``), also in tasks that the handler has
    started. Raises LookupError in other contexts, also in reading by hand."""
    delivery = CURRENT.get(None)
    if delivery is None:
        raise LookupError("no handler runs in this context; call current_delivery() in a handler, or in a task that it starts")
    return delivery
