"""Cutting a broker's connection inside the requests of one kind, or inside their answers.

``FrameProxy`` reads the frames that it passes on, so that a cut meets the request that it is meant for, among all others of a
connection. ``field_starts`` says where the fields of a frame begin.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from rmq_async.testing import ClusterProxy, Direction, FaultProxy
from rmq_protocol.command import decode_command
from rmq_protocol.frame import FrameDecoder

__all__ = ["FrameClusterProxy", "FrameProxy", "Place", "field_starts"]

Place = Callable[[bytes], int]
"""Returns the byte of a frame before which its connection is cut."""
Rewrite = Callable[[bytes], Awaitable[bytes]]
_LENGTH = struct.Struct(">i")
_FIELD = re.compile(rb'[{,\[](?=["{])')
_RECORD = (4, 4, 4, 4, 4, 8, 8, 4, 8, 8, 8, 8, 4, 8)
"""Sizes of the fields of a stored message before its body's length, with addresses of IPv4."""


def field_starts(frame: bytes) -> list[int]:
    """Returns where the length words, the fields of the header and those of the body begin, and the frame's length.

    A body is JSON, or stored messages.
    """
    header = 8 + (_LENGTH.unpack_from(frame, 4)[0] & 0xFFFFFF)
    found = {0, 4, 8, header, len(frame)}
    found |= {8 + match.end() for match in _FIELD.finditer(frame[8:header])}
    if frame[header : header + 1] in (b"{", b"["):
        found |= {header + match.end() for match in _FIELD.finditer(frame[header:])}
    elif header < len(frame):
        found |= {*_of_records(frame, header)}
    return sorted(found)


def _of_records(frame: bytes, at: int) -> Iterator[int]:
    while at < len(frame):
        end = at + _LENGTH.unpack_from(frame, at)[0]
        for size in _RECORD:
            yield at
            at += size
        yield at
        body = at + 4
        topic = body + _LENGTH.unpack_from(frame, at)[0]
        properties = topic + 1 + frame[topic]
        yield from (body, topic, topic + 1, properties, properties + 2)
        at = end


class _Frames:
    """The frames of one direction of one connection."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the frames that ``data`` completes, and where each begins, counted from the beginning of ``data``."""
        self._pending += data
        base, at = len(data) - len(self._pending), 0
        while len(self._pending) - at >= 4:
            end = at + 4 + _LENGTH.unpack_from(self._pending, at)[0]
            if end > len(self._pending):
                break
            yield base + at, self._pending[at:end]
            at = end
        self._pending = self._pending[at:]


class FrameProxy(FaultProxy):
    """``seen``: the newest frame of the wanted kind. ``injected`` counts the cuts. ``whole``: requests of the kind that
    were not cut."""

    def __init__(self, target: str, **options: Any) -> None:
        super().__init__(target, **options)
        self.seen: bytes | None = None
        self.whole = 0
        self._code = 0
        self._way = self.to_server
        self._place: Place | None = None
        self._lasting = self._reset = False

    def watch(self, code: int, way: str) -> None:
        """``code``: of requests. ``way``: "to_server" for the requests, "to_client" for their answers."""
        self._code, self._way, self.seen = code, getattr(self, way), None

    def cut_at(self, place: Place, *, reset: bool = False, lasting: bool = False) -> None:
        """Cuts the connection of the next frame of the watched kind; with ``lasting`` that of each one, until ``mend``."""
        self._place, self._reset, self._lasting = place, reset, lasting

    def mend(self) -> None:
        self._place = None
        self.clear()

    def rewriters(self) -> tuple[Rewrite, Rewrite]:
        asked: set[int] = set()
        to_server, to_client = (
            partial(self._pass, direction, _Frames(), asked) for direction in (self.to_server, self.to_client)
        )
        return to_server, to_client

    async def _pass(self, direction: Direction, frames: _Frames, asked: set[int], data: bytes) -> bytes:
        """``asked``: opaques of the watched requests of this connection."""
        for start, frame in frames.feed(data):
            command = decode_command(FrameDecoder().feed(frame)[0])
            is_answer = bool(command.flag & 1)
            if direction is self.to_server and not is_answer and command.code == self._code:
                asked.add(command.opaque)
            elif direction is self.to_server or not is_answer or command.opaque not in asked:
                continue
            at = len(frame)
            if direction is self._way:
                self.seen = frame
                if (place := self._place) is not None:
                    at = place(frame)
                    self._cut(direction, start + at)
            self.whole += not is_answer and at >= len(frame)
            if direction.cut is not None:
                break
        return data

    def _cut(self, direction: Direction, count: int) -> None:
        direction.cut_after(max(count, 0), reset=self._reset)
        if not self._lasting:
            self._place = None


class FrameClusterProxy(ClusterProxy):
    """Its brokers' proxies are of the class FrameProxy."""

    def broker(self, name: str) -> FrameProxy:
        found = self.brokers[name]
        assert isinstance(found, FrameProxy)
        return found

    def _proxy_for(self, address: str) -> FaultProxy:
        return FrameProxy(address)
