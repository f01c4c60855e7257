"""The trace of a run. It is a digest of all frames that the network has delivered in each direction of each stream."""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Final

import msgspec

from rmq_protocol.command import RemotingCommand, decode_command
from rmq_protocol.compression import compression_type, decompress
from rmq_protocol.constants import MAX_FRAME_SIZE, RequestCode, SysFlag
from rmq_protocol.errors import ProtocolError
from rmq_protocol.frame import Frame, FrameDecoder

_encode = msgspec.json.Encoder().encode
_SIZE: Final = 16
"""Number of bytes of a digest."""


class Trace:
    """The digest of the frames that were delivered. It keeps the state of each stream until the stream ends.

    Args:
        print_frames: Whether to print a line for each frame that can be decoded.
    """

    def __init__(self, *, print_frames: bool = False) -> None:
        self._streams: dict[str, tuple[Any, FrameDecoder]] = {}
        """The digest of the frames and the decoder of the bytes of each stream, by name of the stream."""
        self._ended = hashlib.blake2b(digest_size=_SIZE)
        self._print = print_frames

    def __len__(self) -> int:
        """Return the number of streams that have delivered bytes and have not ended, each direction counted separately."""
        return len(self._streams)

    def add(self, stream: str, time: int, data: bytes) -> None:
        """Add bytes that one direction of a stream has delivered at ``time`` (nanoseconds). Empty ``data`` means that this
        direction has ended.

        If the decoder raises an error, the bytes themselves are digested.
        """
        if not data:
            self._end(stream)
            return
        found = self._streams.get(stream)
        if found is None:
            found = hashlib.blake2b(stream.encode(), digest_size=_SIZE), FrameDecoder(MAX_FRAME_SIZE)
            self._streams[stream] = found
        chained, decoder = found
        try:
            for frame in decoder.feed(data):
                line = _line(time, stream, frame)
                chained.update(line)
                if self._print:
                    sys.stdout.write(line.decode(errors="replace"))
        except ProtocolError:
            chained.update(b"%d " % time + data)

    def digest(self) -> str:
        whole = self._ended.copy()
        for stream, (chained, _) in sorted(self._streams.items()):
            whole.update(stream.encode() + chained.digest())
        return whole.hexdigest()

    def _end(self, stream: str) -> None:
        """Store the digest of a stream. A later stream with the same ports has the same name, but begins with a new frame."""
        found = self._streams.pop(stream, None)
        if found is not None:
            self._ended.update(stream.encode() + found[0].digest())


def _line(time: int, stream: str, frame: Frame) -> bytes:
    command = decode_command(frame)
    header = _encode([command.code, command.opaque, command.flag, command.remark, command.ext_fields])
    body = hashlib.blake2b(_body(command), digest_size=_SIZE).hexdigest()
    return b"%d %s %s %s\n" % (time, stream.encode(), header, body.encode())


def _body(command: RemotingCommand) -> bytes:
    """Return the body of a command for the digest.

    A compressed body of a SEND_MESSAGE_V2 request is decompressed, because compressed bytes differ between versions of zlib.
    """
    body, fields = command.body or b"", command.ext_fields or {}
    if command.code != RequestCode.SEND_MESSAGE_V2 or command.is_response:
        return body
    flags = int(fields.get("f") or 0)
    return decompress(body, compression_type(flags)) if flags & SysFlag.COMPRESSED else body
