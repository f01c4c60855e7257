"""Reduces the number of messages that pulls of a queue request, after responses above ``max_frame_size``.

Brokers limit a response to 256 KiB by default, and operators may raise that limit above the frame size that a client accepts. A
pull states the number of messages that it requests, and brokers ignore its limit of bytes (``maxMsgBytes``). Therefore, if a
response is too large, the pull is repeated with half as many messages, until the response fits. The number for a queue grows again
if twice as many messages would fill at most half of a frame: some large messages must not slow down the whole queue, but each
response that is too large is transferred in vain.
"""

from __future__ import annotations

from typing import Final

from rmq_protocol.errors import FrameTooLargeError
from rmq_protocol.message import MessageQueue

from ..errors import ConnectionLostError, RocketMQError

MOST_QUEUES: Final = 4096


class PullSizes:
    """The reduced message limits of pulls, by queue. The keys name topics as they appear on the wire, with the namespace.

    Args:
        max_frame_size: Maximum bytes of a response.
    """

    def __init__(self, max_frame_size: int) -> None:
        self._quarter = max_frame_size // 4
        self.lowered: dict[MessageQueue, tuple[int, int]] = {}
        """For each queue with a reduced limit, the limit, and the number of messages in the first request whose response was too
        large."""

    def limit(self, queue: MessageQueue, messages: int) -> int:
        """Return the number of messages to request, at most ``messages``."""
        lowered = self.lowered.get(queue)
        return messages if lowered is None else min(messages, lowered[0])

    def lower(self, queue: MessageQueue, asked: int) -> bool:
        """Reduce the limit of a queue to half of ``asked`` and return True. Return False if ``asked`` is 1.

        Call this after a request for ``asked`` messages whose response was too large. A limit that is already lower is kept.
        """
        if asked <= 1:
            return False
        number, first = self.lowered.pop(queue, (asked, asked))
        self.lowered[queue] = min(number, asked // 2), max(first, asked)
        if len(self.lowered) > MOST_QUEUES:
            del self.lowered[next(iter(self.lowered))]
        return True

    def answered(self, queue: MessageQueue, asked: int, size: int) -> None:
        """Double the limit of a queue if twice as many messages are likely to fit into a response.

        Call this after a response of ``size`` bytes to a pull for ``asked`` messages.
        """
        number, first = self.lowered.get(queue, (0, 0))
        if not number or asked < number or size > self._quarter:
            return
        if 2 * number >= first:
            del self.lowered[queue]
        else:
            self.lowered[queue] = 2 * number, first


def too_large_frame(error: RocketMQError) -> FrameTooLargeError | None:
    """Return the error for a frame above ``max_frame_size`` that caused ``error``. Return None if there was no such frame.

    The frame is either the response to the request, or a frame that closed the connection and may have been the response.
    """
    if isinstance(error, FrameTooLargeError):
        return error
    cause = error.__cause__ if isinstance(error, ConnectionLostError) else None
    return cause if isinstance(cause, FrameTooLargeError) else None


def next_offset_in(error: FrameTooLargeError) -> int | None:
    """Return the next offset from the header of a pull's response that was too large. Return None if the header does not contain
    it.
    """
    return _number(error, "nextBeginOffset")


def end_in(error: FrameTooLargeError) -> int | None:
    """Return the end of the queue from the header of a pull's response that was too large. Return None if the header does not
    contain it.
    """
    return _number(error, "maxOffset")


def _number(error: FrameTooLargeError, name: str) -> int | None:
    text = (error.fields or {}).get(name) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
