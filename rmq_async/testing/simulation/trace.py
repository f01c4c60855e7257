"""The trace of a run: a digest of every frame that the network has delivered, by link."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import msgspec

from rmq_protocol.command import RemotingCommand, decode_command
from rmq_protocol.compression import compression_type, decompress
from rmq_protocol.constants import MAX_FRAME_SIZE, RequestCode, SysFlag
from rmq_protocol.errors import ProtocolError
from rmq_protocol.frame import Frame, FrameDecoder

__all__ = ["Trace"]

_encode = msgspec.json.Encoder().encode


class Trace:
    """``print_frames``: prints a line for each frame."""

    def __init__(self, *, print_frames: bool = False) -> None:
        self._links: dict[str, Any] = {}
        self._decoders: dict[str, FrameDecoder] = {}
        self._print = print_frames

    def add(self, stream: str, time: int, data: bytes) -> None:
        """Adds bytes that one direction of a stream has delivered. Bytes that are no frames count as they are."""
        chained = self._links.get(stream)
        if chained is None:
            chained = self._links[stream] = hashlib.blake2b(stream.encode(), digest_size=16)
            self._decoders[stream] = FrameDecoder(MAX_FRAME_SIZE)
        try:
            frames = self._decoders[stream].feed(data)
            for frame in frames:
                line = _line(time, stream, frame)
                chained.update(line)
                if self._print:
                    sys.stdout.write(line.decode(errors="replace"))
        except ProtocolError:
            chained.update(b"%d " % time + data)

    def digest(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for stream, chained in sorted(self._links.items()):
            whole.update(stream.encode() + chained.digest())
        return whole.hexdigest()


def _line(time: int, stream: str, frame: Frame) -> bytes:
    command = decode_command(frame)
    header = _encode([command.code, command.opaque, command.flag, command.remark, command.ext_fields])
    body = hashlib.blake2b(_body(command), digest_size=16).hexdigest()
    return b"%d %s %s %s\n" % (time, stream.encode(), header, body.encode())


def _body(command: RemotingCommand) -> bytes:
    """Returns the body without its compression, whose bytes differ between versions of zlib."""
    body, fields = command.body or b"", command.ext_fields or {}
    if command.code != RequestCode.SEND_MESSAGE_V2 or command.is_response:
        return body
    flags = int(fields.get("f") or 0)
    return decompress(body, compression_type(flags)) if flags & SysFlag.COMPRESSED else body
