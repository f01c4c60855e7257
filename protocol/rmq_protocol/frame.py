"""Splits a byte stream into frames, and adds the length words to outgoing frames.

    4  length of everything after itself      (NettyDecoder: at most MAX_FRAME_SIZE - 4)
    4  header word: 1 byte serialize type, 3 bytes header length
    n  header
    m  body

The decoder handles any split of the stream and any bytes of a peer. A length is checked as soon as its four bytes have arrived,
before memory is allocated; memory is used only for bytes that have arrived. A read that ends on a frame boundary (nearly all reads
do on a send connection) is sliced in place. Otherwise bytes are gathered in one bytearray, so that a frame that arrives byte by
byte costs linear time. A body is copied once, or three times if its frame arrives in several reads.

A frame above the limit is an error, unless the decoder may drop it. In that case only its header is kept, and the rest is dropped
as it arrives, so that the other frames of the stream can be read.
"""

from __future__ import annotations

import struct

import msgspec

from .constants import MAX_FRAME_SIZE, MAX_HEADER_SIZE, SerializeType
from .errors import FrameTooLargeError, LocalProtocolError, RemoteProtocolError
from .foreign import foreign_peer

_WORDS = struct.Struct(">iI")
_LENGTH = struct.Struct(">i")
_HEAD = 64
"""Number of bytes of a broken frame that are examined to find out what the peer is."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One complete frame without its length words. ``serialize_type`` is 0 (JSON) or 1 (ROCKETMQ)."""

    serialize_type: int
    header: bytes
    body: bytes


class CutFrame(msgspec.Struct, frozen=True, gc=False):
    """The header of a frame that is too large.

    Attributes:
        size: Bytes of the whole frame, including its length prefix.
    """

    serialize_type: int
    header: bytes
    size: int


class FrameDecoder:
    """Splits a stream of bytes into frames, in the order in which they arrived.

    Args:
        max_frame_size: Maximum bytes of a frame, including its 4-byte length prefix.
        drop_up_to: A frame above ``max_frame_size`` with at most this many bytes becomes a CutFrame, if its header alone would be
            accepted. Larger frames, and by default all frames above ``max_frame_size``, are errors.

    Raises:
        LocalProtocolError: If ``max_frame_size`` is below 8.
    """

    __slots__ = ("_left", "_longest", "_max_length", "_need", "_pending", "_plain_header", "error")

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE, *, drop_up_to: int = 0) -> None:
        if max_frame_size < 8:
            raise LocalProtocolError(f"max_frame_size must be at least 8, the bytes of an empty frame, not {max_frame_size}")
        self._max_length = max_frame_size - 4
        self._longest = max(drop_up_to - 4, self._max_length)
        self._left = 0
        """Number of bytes of a dropped frame that have not arrived yet."""
        self._plain_header = min(MAX_HEADER_SIZE, self._max_length - 4)
        self._pending = bytearray()
        self._need = 0
        self.error: RemoteProtocolError | None = None
        """The error of a broken frame, or None. Further calls raise it, because no frame boundary is known after a broken frame."""

    @property
    def pending(self) -> int:
        """The number of kept bytes of a frame that is not complete yet."""
        return len(self._pending)

    @property
    def peer(self) -> str | None:
        """A description of the peer, derived from the bytes of the incomplete frame. None for a RocketMQ server
        (``foreign_peer``).
        """
        return foreign_peer(bytes(self._pending[:_HEAD]))

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes of the stream, and return the frames that they complete, without frames that were dropped.

        Raises:
            RemoteProtocolError: If a frame is broken. The error names the field and its value. If good frames precede the broken
                one in the same call, these are returned, ``error`` is set, and the next call raises it.
        """
        frames: list[Frame] = []
        for frame in self.cut(bytes(data)):
            if isinstance(frame, bytes):
                frames.append(Frame(0, frame, b""))
            elif isinstance(frame, Frame):
                frames.append(frame)
        return frames

    def cut(self, data: bytes) -> list[Frame | bytes | CutFrame | RemoteProtocolError]:
        """Split the stream as ``feed`` does, but return a frame with a JSON header and no body as only the bytes of its header.

        Nearly every response to a send is such a frame. The list has a CutFrame for each dropped frame. If good frames precede a
        broken frame, the list ends with the error of the broken frame; otherwise this method raises it.
        """
        if self.error is not None:
            raise self.error
        if self._left:
            left = self._left
            self._left = max(left - len(data), 0)
            data = data[left:]
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._need:
                return []
            data = bytes(pending)
            pending.clear()
        frames: list[Frame | bytes | CutFrame | RemoteProtocolError] = []
        at, end = 0, len(data)
        unpack, plain_header, max_length = _WORDS.unpack_from, self._plain_header, self._max_length
        while end - at >= 8:
            length, word = unpack(data, at)
            stop = at + 4 + length
            if length == word + 4 and stop <= end and word <= plain_header:
                frames.append(data[at + 8 : stop])
                at = stop
                continue
            kind = 0
            if word > MAX_HEADER_SIZE:
                kind, word = word >> 24, word & MAX_HEADER_SIZE
            header = at + 8
            body = header + word
            if body > stop or length > max_length or kind > 1:
                if body > stop or length > self._longest or kind > 1 or 4 + word > max_length:
                    return self._refuse(length, kind, word, data[at : at + _HEAD], frames)
                if body > end:
                    self._need = body - at
                    break
                frames.append(CutFrame(kind, data[header:body], length + 4))
                self._left = max(stop - end, 0)
                at = stop
                continue
            if stop > end:
                self._need = stop - at
                break
            frames.append(Frame(kind, data[header:body], data[body:stop]))
            at = stop
        else:
            self._need = 8
            if end - at >= 4:
                (length,) = _LENGTH.unpack_from(data, at)
                if length < 4 or length > self._longest:
                    return self._refuse(length, 0, 0, data[at : at + _HEAD], frames)
            elif at >= end:
                return frames
            else:
                self._need = 4
        pending += data[at:] if at else data
        return frames

    def _refuse(
        self,
        length: int,
        kind: int,
        header_length: int,
        head: bytes,
        frames: list[Frame | bytes | CutFrame | RemoteProtocolError],
    ) -> list[Frame | bytes | CutFrame | RemoteProtocolError]:
        if (peer := foreign_peer(head)) is not None:
            text = peer
        elif length < 4:
            text = f"frame length {length} is below 4, the size of the header word"
        elif length > self._max_length:
            text = f"frame length {length} is above the limit of {self._max_length} (max_frame_size minus 4)"
            self.error = FrameTooLargeError(text, size=length + 4, limit=self._max_length + 4)
        elif kind > 1:
            text = f"serialize type {kind} is unknown (0 = JSON, 1 = ROCKETMQ)"
        else:
            text = f"header length {header_length} is beyond its frame, which has {length - 4} bytes left"
        self.error = self.error or RemoteProtocolError(text)
        if not frames:
            raise self.error
        frames.append(self.error)
        return frames


def encode_frame(
    serialize_type: SerializeType, header: bytes, body: bytes = b"", max_frame_size: int = MAX_FRAME_SIZE
) -> list[bytes]:
    """Return the parts of one frame. The first part has the length words and the header; the second part is the body, if any.

    The body is not copied.

    Raises:
        LocalProtocolError: If the frame has more than ``max_frame_size`` bytes, or the header has more than 16777215 bytes.
    """
    size = len(header)
    if size > MAX_HEADER_SIZE:
        raise LocalProtocolError(
            f"header of {size} bytes is above the limit of {MAX_HEADER_SIZE} (24-bit length); shorten its fields"
        )
    if size + len(body) > max_frame_size - 8:
        raise LocalProtocolError(
            f"frame of {size + len(body) + 8} bytes is above the limit of {max_frame_size}; shorten the body or raise the limit"
        )
    head = _WORDS.pack(4 + size + len(body), (serialize_type << 24) | size) + header
    return [head, body] if body else [head]
