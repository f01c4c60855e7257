"""Outcomes of messages, exceptions by which a handler chooses an outcome, and batches whose messages can be marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import overload

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt

from .._functions import handler_name
from ..config import check_seconds
from ..errors import ClientStateError


class RetryLater(Exception):  # noqa: N818 - not an error
    """An exception that a handler raises to have its message delivered again.

    The call counts as an attempt, and the exception is logged without a traceback.

    Args:
        delay: Seconds until the next attempt; a negative number counts as 0. None for the delay of the attempt (``Retry.delays``).
            The broker delays by levels (1 s, 5 s, 10 s, 30 s, 1 min ... 2 h): ``delay`` is rounded up to the next level, and 2 h
            is the maximum. Ordered messages (with ``order="key"``, all except messages for which ``key`` returns None) and
            messages in broadcast wait exactly ``delay``, up to ``max_hold``. With ``mode="pop"``, the actual delay is between
            ``delay`` (2 h at most) and a tenth more.
    """

    def __init__(self, delay: float | None = None) -> None:
        super().__init__(delay)
        self.delay = delay

    def __str__(self) -> str:
        delay = getattr(self, "delay", None)  # a subclass may not set it
        if delay is None:
            return ""
        return f"again in {delay:g} s" if isinstance(delay, int | float) else f"again in {delay!r}"


class PutBack(RetryLater):
    """The outcome of a message that its reader has not settled. It is not logged as a failed attempt."""

    def __init__(self) -> None:
        super().__init__(0.0)


class DeadLetter(Exception):  # noqa: N818 - not an error
    """An exception that a handler raises to put its message into the group's dead-letter topic at once, without another
    attempt. In broadcast, which has no such topic, the message is given up.

    Args:
        reason: The reason, which is logged. It is not sent to the broker, because CONSUMER_SEND_MSG_BACK has no field for it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Outcome(Enum):
    """The outcome of a message.

    Attributes:
        DONE: The message was handled.
        RETRIED: The message will be delivered again, or repeated in place.
        DEAD_LETTERED: The message was put into the group's dead-letter topic, or given up in broadcast.
        ABANDONED: The queue of the message was lost, given up or moved, or the consumer stopped, before the message had another
            outcome. The message is delivered again, unless its queue was moved past it.
    """

    DONE = "done"
    RETRIED = "retried"
    DEAD_LETTERED = "dead-lettered"
    ABANDONED = "abandoned"


def check_returned(handler: Callable[..., object], result: object) -> None:
    """Raise TypeError if a handler returns an exception of this module instead of raising it: its message would count as done."""
    kind = result if isinstance(result, type) else type(result)
    if issubclass(kind, RetryLater | DeadLetter):
        raise TypeError(f"handler {handler_name(handler)} returned {shown(result)}, which has no effect; raise it instead")


def outcome_in(error: BaseException, dead_letter_on: tuple[type[Exception], ...]) -> BaseException:
    """Return the only exception in a group, such as a TaskGroup raises, if it is a RetryLater, a DeadLetter or one of
    ``dead_letter_on``. Otherwise, return ``error``.
    """
    alone = error
    while isinstance(alone, BaseExceptionGroup) and len(alone.exceptions) == 1:
        alone = alone.exceptions[0]
    return alone if isinstance(alone, (RetryLater, DeadLetter, *dead_letter_on)) else error


class Marks:
    """The marks of a batch: the outcomes that were chosen for single messages, by the index of the message.

    Args:
        refused: The reason why messages cannot be marked, or can no longer be marked; None if they can.
    """

    __slots__ = ("by_place", "refused")

    def __init__(self, refused: str | None = None) -> None:
        self.by_place: dict[int, RetryLater | DeadLetter] = {}
        self.refused = refused


class Batch(Sequence[MessageExt]):
    """An immutable sequence of messages of one topic that are handled together.

    All messages share the outcome of the call. If the handler returns, they are done; if it raises, they are delivered again or
    dead-lettered, as a single message would be. ``mark_retry`` and ``mark_dead_letter`` give single messages another outcome,
    which replaces the outcome of the call. When reading by hand, asking ``batches()`` for the next batch has the effect of a
    return from the handler; messages of a batch that ``receive()`` returned cannot be marked.
    """

    __slots__ = ("_marks", "_messages", "_places")

    def __init__(self, messages: tuple[MessageExt, ...], marks: Marks) -> None:
        self._messages = messages
        self._marks = marks
        self._places: dict[int, int] | None = None
        """The index of each message by the ``id()`` of its object; None before the first mark."""

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages, {len(self._marks.by_place)} of them marked>"

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int, /) -> MessageExt: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[MessageExt, ...]: ...
    def __getitem__(self, index: int | slice, /) -> MessageExt | tuple[MessageExt, ...]:
        return self._messages[index]

    def mark_retry(self, message: MessageExt, delay: float | None = None) -> None:
        """Mark a single message to be delivered again. A later mark of a message replaces an earlier one.

        Args:
            delay: Seconds, with the meaning that RetryLater documents; None for the delay of the attempt.

        Raises:
            ValueError: For a message that is not in the batch.
            ConfigError: For a delay that is not a number, is negative, or is not below 1e9.
            ClientStateError: If the call has ended, the batch is no longer in hand, or ``receive()`` returned the batch.
        """
        if delay is not None:
            check_seconds("delay", delay, zero=True)
        self._mark(message, RetryLater(delay))

    def mark_dead_letter(self, message: MessageExt, reason: str = "") -> None:
        """Mark a single message to be put into the group's dead-letter topic. A later mark of a message replaces an earlier one.

        Args:
            reason: The reason, which is logged.

        Raises:
            ValueError: For a message that is not in the batch.
            ClientStateError: If the call has ended, the batch is no longer in hand, or ``receive()`` returned the batch.
        """
        self._mark(message, DeadLetter(reason))

    def _mark(self, message: MessageExt, mark: RetryLater | DeadLetter) -> None:
        if self._marks.refused is not None:
            raise ClientStateError(self._marks.refused)
        if self._places is None:
            self._places = {id(each): place for place, each in enumerate(self._messages)}
        place = self._places.get(id(message))
        if place is None:
            given = shown(message.msg_id if isinstance(message, MessageExt) else message)
            raise ValueError(f"message {given} is not in this batch of {len(self)} messages; pass an item of the batch")
        self._marks.by_place[place] = mark
