"""Exceptions by which a handler chooses an outcome, the outcomes of a message, and batches with marks for single messages."""

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

    It counts as an attempt and is logged without a traceback.

    Args:
        delay: Seconds, a negative number as 0; None for the delay of the attempt (``Retry.delays``). The broker delays by
            levels (1 s, 5 s, 10 s, 30 s, 1 min ... 2 h): the next level at or above ``delay`` is used, 2 h for more. Ordered
            messages (in ``order="key"`` all but those for which ``key`` returns None), and those of broadcast, wait for
            ``delay`` exactly, up to ``max_hold``; with ``mode="pop"`` a message waits for ``delay`` (2 h at most) and up to a
            tenth more.
    """

    def __init__(self, delay: float | None = None) -> None:
        super().__init__(delay)
        self.delay = delay

    def __str__(self) -> str:
        delay = getattr(self, "delay", None)  # a class that derives from this one may not set it
        if delay is None:
            return ""
        return f"again in {delay:g} s" if isinstance(delay, int | float) else f"again in {delay!r}"


class DeadLetter(Exception):  # noqa: N818 - not an error
    """An exception that a handler raises to put its message into the group's dead-letter topic at once, without another
    attempt. In broadcast, which has no such topic, the message is given up.

    Args:
        reason: A text for the log. The request to the broker (CONSUMER_SEND_MSG_BACK) has no field for it.
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
        ABANDONED: Before the message had another outcome, its queue was lost, given up or moved, or the consumer stopped; it is
            delivered again, unless its queue was moved beyond it.
    """

    DONE = "done"
    RETRIED = "retried"
    DEAD_LETTERED = "dead-lettered"
    ABANDONED = "abandoned"


def check_returned(handler: Callable[..., object], result: object) -> None:
    """Raise TypeError for an exception of this module that a handler returns: its message would be done, against what it says."""
    kind = result if isinstance(result, type) else type(result)
    if issubclass(kind, RetryLater | DeadLetter):
        raise TypeError(f"handler {handler_name(handler)} returned {shown(result)}, which chooses nothing: raise it")


def outcome_in(error: BaseException, dead_letter_on: tuple[type[Exception], ...]) -> BaseException:
    """Return the exception that chooses an outcome if it is alone in a group, as a TaskGroup raises it; else ``error`` itself."""
    alone = error
    while isinstance(alone, BaseExceptionGroup) and len(alone.exceptions) == 1:
        alone = alone.exceptions[0]
    return alone if isinstance(alone, (RetryLater, DeadLetter, *dead_letter_on)) else error


class Marks:
    """The marks of single messages of a batch, by their index in it.

    Args:
        refused: The reason why messages cannot be marked (any more); None if they can.
    """

    __slots__ = ("by_place", "refused")

    def __init__(self, refused: str | None = None) -> None:
        self.by_place: dict[int, RetryLater | DeadLetter] = {}
        self.refused = refused


class Batch(Sequence[MessageExt]):
    """Messages of one topic that are handled together; a sequence that does not change.

    All of them share the outcome of the call: done where the handler returns; delivered again or dead-lettered, as a single
    message would be, where it raises. ``mark_retry`` and ``mark_dead_letter`` give single messages another outcome, which
    replaces that of the call. In reading by hand, asking ``batches()`` for the next batch has the effect of a handler's return;
    a batch of ``receive()`` takes no marks.
    """

    __slots__ = ("_marks", "_messages", "_places")

    def __init__(self, messages: tuple[MessageExt, ...], marks: Marks) -> None:
        self._messages = messages
        self._marks = marks
        self._places: dict[int, int] | None = None
        """Places of the messages by their identity, made for the first mark."""

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
        """Mark a message to be delivered again, without the others.

        Args:
            delay: Seconds, as for RetryLater; None for the delay of its attempt. A later mark replaces an earlier one.

        Raises:
            ValueError: For a message that is not in the batch.
            ConfigError: For a delay that is not a number from 0 to below 1e9.
            ClientStateError: When the call has ended or the batch is no longer in hand, and for a batch that ``receive()``
                returned.
        """
        if delay is not None:
            check_seconds("delay", delay, zero=True)
        self._mark(message, RetryLater(delay))

    def mark_dead_letter(self, message: MessageExt, reason: str = "") -> None:
        """Mark a message to be put into the group's dead-letter topic.

        Args:
            reason: Text for the log.

        Raises:
            ValueError, ClientStateError: As ``mark_retry`` does.
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
            raise ValueError(f"message {given} is not one of the {len(self)} messages of this batch; pass an item of the batch")
        self._marks.by_place[place] = mark
