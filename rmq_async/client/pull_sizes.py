"""The number of messages that pulls of a queue ask for, after answers above ``max_frame_size``.

Brokers limit an answer to 256 KiB by default, and operators may raise that above the frames that a client accepts. A pull says how
many messages it wants, and brokers ignore its limit of bytes (``maxMsgBytes``), so such a pull is repeated with half as many
messages, until the answer fits. A queue's number grows again where twice as many messages would fill half of a frame at most: a
region of large messages must not slow the whole queue, and each answer that is too large was sent for nothing.
"""

from __future__ import annotations

from typing import Final

from rmq_protocol.errors import FrameTooLargeError
from rmq_protocol.message import MessageQueue

from ..errors import ConnectionLostError, RocketMQError

MOST_QUEUES: Final = 4096


class PullSizes:
    """The lowered numbers of messages by queue, with names as on the wire.

    Args:
        max_frame_size: Bytes of an answer.
    """

    def __init__(self, max_frame_size: int) -> None:
        self._quarter = max_frame_size // 4
        self.lowered: dict[MessageQueue, tuple[int, int]] = {}
        """The number to ask for, and the number of the first request whose answer was too large."""

    def limit(self, queue: MessageQueue, messages: int) -> int:
        """Return the number of messages to ask for, at most ``messages``."""
        lowered = self.lowered.get(queue)
        return messages if lowered is None else min(messages, lowered[0])

    def lower(self, queue: MessageQueue, asked: int) -> bool:
        """Lower the number to half of ``asked``, for which the answer was too large, unless it is lower already.

        Return False if ``asked`` is one message.
        """
        if asked <= 1:
            return False
        number, first = self.lowered.pop(queue, (asked, asked))
        self.lowered[queue] = min(number, asked // 2), max(first, asked)
        if len(self.lowered) > MOST_QUEUES:
            del self.lowered[next(iter(self.lowered))]
        return True

    def answered(self, queue: MessageQueue, asked: int, size: int) -> None:
        """Double the number after an answer of ``size`` bytes to a pull for as many messages, if that is likely to fit."""
        number, first = self.lowered.get(queue, (0, 0))
        if not number or asked < number or size > self._quarter:
            return
        if 2 * number >= first:
            del self.lowered[queue]
        else:
            self.lowered[queue] = 2 * number, first


def too_large_frame(error: RocketMQError) -> FrameTooLargeError | None:
    """Return the error of a frame above ``max_frame_size`` that made a request fail: that of its own answer, or of a frame that
    closed the connection and may have been its answer; None for another error.
    """
    if isinstance(error, FrameTooLargeError):
        return error
    cause = error.__cause__ if isinstance(error, ConnectionLostError) else None
    return cause if isinstance(cause, FrameTooLargeError) else None


def next_offset_in(error: FrameTooLargeError) -> int | None:
    """Return the next offset in the header of an answer to a pull that was too large; None if it has none."""
    return _number(error, "nextBeginOffset")


def end_in(error: FrameTooLargeError) -> int | None:
    """Return the queue's end in the header of an answer to a pull that was too large; None if it has none."""
    return _number(error, "maxOffset")


def _number(error: FrameTooLargeError, name: str) -> int | None:
    text = (error.fields or {}).get(name) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
