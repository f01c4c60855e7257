"""Gathers frames and decides when they leave, so that a system call carries many.

A frame leaves at once when nothing else is under way. Otherwise frames gather and leave together at the end of the loop
iteration, or as soon as 64 of them or 64 KiB of large ones are gathered. uvloop and asyncio write immediately, so that without
this each frame would be a system call (measured: 1.2 us per frame one by one, 0.04 us in a joined write of 64).

With 64 sends in flight answers come one by one, and so would writes. While the peer still has most of the sends to answer, a few
frames therefore wait for the next answers; where none come they leave after 20 ms, by one timer that a busy connection sets
fifty times a second at most.

The transport's buffer is watched with a high-water mark of zero: not paused means that the kernel has taken every byte. (With
TLS it has not yet taken up to 64 KiB of them, which wait encrypted in the transport below.)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final, cast

__all__ = ["GATHER_FROM", "WriteCoalescer"]

BROKEN_WRITELINES: Final = (((3, 12), (3, 12, 9)), ((3, 13), (3, 13, 2)))
"""Pythons whose asyncio never calls pause_writing after writelines (gh-127655): parts are joined there."""
WRITELINES_PAUSES: Final = not any(first <= tuple(sys.version_info) < fixed for first, fixed in BROKEN_WRITELINES)
FLUSH_FRAMES: Final = 64
FLUSH_AT: Final = 64 * 1024
"""Frames gathered, or bytes of large ones, that are written without waiting for the end of the iteration."""
GATHER: Final = 8
GATHER_FROM: Final = 32
GATHER_SECONDS: Final = 0.02
"""While at least GATHER_FROM sends are under way, fewer frames than GATHER wait for answers; so long at most."""


class WriteCoalescer:
    """``before_write`` is called before each write; ``sends_under_way()`` counts the sends that are not answered.

    ``frames`` and ``room`` are open to the send path, which appends where ``queue`` would do no more than that.
    """

    __slots__ = (
        "_before_write", "_due", "_large", "_loop", "_sends_under_way", "_timer", "_transport", "_urgent", "_written",
        "frames", "paused", "room", "writes",
    )  # fmt: skip

    def __init__(self, before_write: Callable[[], None], sends_under_way: Callable[[], int]) -> None:
        self._before_write = before_write
        self._sends_under_way = sends_under_way
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._due = False
        self._large = 0
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._written: list[tuple[Callable[[int], None], int]] = []
        self.frames: list[bytes] = []
        """What is gathered: whole small frames, and large ones in parts."""
        self.room = 0
        """Up to how many ``frames`` small ones may simply be appended: they will be looked at in time."""
        self.paused = False
        """The peer does not read: the transport's buffer is not empty."""
        self.writes = 0

    def attach(self, transport: asyncio.Transport) -> None:
        tls = transport.get_extra_info("sslcontext") is not None  # pauses at its high-water mark, others above it
        transport.set_write_buffer_limits(high=1 if tls else 0, low=0)
        self._transport = transport

    @property
    def gathered_bytes(self) -> int:
        return sum(map(len, self.frames))

    def idle(self) -> bool:
        """Whether nothing is kept here: no frame, no timer, no callback of a write."""
        return not (self.frames or self._written or self._timer)

    def queue(self, parts: bytes | list[bytes], *, urgent: bool = False) -> None:
        """Gathers one frame. ``urgent``: it leaves at the end of the iteration at the latest."""
        if urgent:
            self._urgent = True
        frames = self.frames
        self.look_again()
        if isinstance(parts, bytes):
            frames.append(parts)
            if len(frames) < FLUSH_FRAMES:
                return
        else:
            frames += parts
            self._large += sum(map(len, parts))
            if self._large < FLUSH_AT and len(frames) < FLUSH_FRAMES:
                return
        if not self.paused:
            self.flush()

    def write(self, parts: bytes | list[bytes]) -> None:
        """Straight to the transport: nothing is gathered, nothing is under way."""
        self.writes += 1
        self._before_write()
        if isinstance(parts, bytes):
            self._transport.write(parts)
        else:
            self._write_parts(parts)

    def flush(self) -> None:
        """Writes what is gathered, unless the peer does not read."""
        if not self.paused:
            self.push()

    def push(self) -> None:
        """Writes what is gathered, also to a peer that does not read: then it waits in the transport, and leaves in any case.

        uvloop calls ``pause_writing`` some time after the write, so that frames may be gathered by then.
        """
        frames = self.frames
        if not frames:
            return
        self.frames = []
        if not self._due:
            self.room = 0
        self._urgent = False
        self.writes += 1
        self._before_write()
        if self._large:
            self._large = 0
            self._write_parts(frames)
        else:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._written and not self.paused:
            self._report_written()

    def look_again(self) -> None:
        """Has the end of this iteration decide whether what is gathered leaves."""
        if not self._due:
            self._due = True
            self.room = FLUSH_FRAMES - 1
            self._loop.call_soon(self._end_of_iteration)

    def when_written(self, callback: Callable[[int], None], cost: int) -> None:
        """Calls ``callback(cost)`` once the last byte of what is queued next is in the kernel, or never will be."""
        self._written.append((callback, cost))

    def resume(self) -> None:
        self.paused = False
        if self._written and not self.frames:
            self._report_written()
        self.flush()

    def close(self) -> None:
        """Drops what is gathered, and runs the callbacks of writes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.frames = []
        self._large = 0
        self._report_written()

    def _end_of_iteration(self) -> None:
        self._due = False
        self.room = 0
        if 0 < len(self.frames) < GATHER and not self._urgent and self._sends_under_way() >= GATHER_FROM:
            self.room = GATHER - 1
            if self._timer is None:
                self._timer = self._loop.call_later(GATHER_SECONDS, self._overdue)
            return
        self.flush()

    def _overdue(self) -> None:
        self._timer = None
        self.flush()

    def _write_parts(self, parts: list[bytes]) -> None:
        if WRITELINES_PAUSES:
            self._transport.writelines(parts)
        else:
            self._transport.write(b"".join(parts))

    def _report_written(self) -> None:
        written, self._written = self._written, []
        for callback, cost in written:
            callback(cost)
