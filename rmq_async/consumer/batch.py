"""Several messages of one handler call, or of one step of reading by hand, and the marks that single messages have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt

from ..config import check_seconds
from ..errors import ClientStateError
from .outcome import DeadLetter, RetryLater

__all__ = ["Batch", "Marks"]


class Marks:
    """The marks of single messages of a batch, by their index in it. ``refused``: the reason why messages cannot be marked
    (any more); None if they can."""

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
        """Marks a message to be delivered again, without the others.

        ``delay``: seconds, as for RetryLater; None for the delay of its attempt. A later mark replaces an earlier one.

        Raises ValueError for a message that is not in the batch; ConfigError for a delay that is not a number from 0 to
        below 1e9; ClientStateError when the call has ended or the batch is no longer in hand, and for a batch that ``receive()``
        returned.
        """
        if delay is not None:
            check_seconds("delay", delay, zero=True)
        self._mark(message, RetryLater(delay))

    def mark_dead_letter(self, message: MessageExt, reason: str = "") -> None:
        """Marks a message to be put into the group's dead-letter topic. ``reason``: for the log. Raises ValueError and
        ClientStateError as ``mark_retry`` does."""
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
