"""Gathers the frames of a connection and decides when to write them, so that one system call writes many frames.

If no frames are gathered, the frame of the only pending request, or of a pull, may be written immediately. Other frames are
gathered and written together at the end of the loop iteration, or as soon as there are 64 of them or 64 KiB of large ones. uvloop
and asyncio write immediately, so without a coalescer each frame would be a system call (measured: 1.2 us per frame when written one
by one, 0.04 us in a joined write of 64).

With many sends in flight, responses arrive one by one, and each would cause a write. Therefore, while at least 32 sends are
unanswered and fewer than 8 frames are gathered, these frames wait for the next responses, unless one of the frames is urgent. If no
response arrives, a timer writes them after 20 ms; a busy connection sets this timer at most fifty times a second.

The transport's high-water mark is 0 (1 with TLS), so that it pauses writing when the kernel does not take every byte. With TLS, up
to 64 KiB of encrypted data may wait in the underlying transport without a pause.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

BROKEN_WRITELINES: Final = (((3, 12), (3, 12, 9)), ((3, 13), (3, 13, 2)))
"""Python versions whose asyncio never calls ``pause_writing`` after ``writelines`` (gh-127655). In these versions, the parts of a
frame are joined."""
WRITELINES_PAUSES: Final = not any(first <= tuple(sys.version_info) < fixed for first, fixed in BROKEN_WRITELINES)
FLUSH_FRAMES: Final = 64
FLUSH_AT: Final = 64 * 1024
"""Gathered frames are written before the end of the iteration if they have FLUSH_FRAMES items (a large frame is two items), or if
the large frames have FLUSH_AT bytes."""
GATHER: Final = 8
GATHER_FROM: Final = 32
GATHER_SECONDS: Final = 0.02
"""While at least GATHER_FROM sends are in flight, fewer than GATHER frames wait for responses, for at most GATHER_SECONDS."""


class WriteCoalescer:
    """The gathered frames of one connection, which wait to be written together.

    The code that sends messages reads ``room``, and appends a frame to ``frames`` directly if ``queue`` would do nothing else.

    Args:
        before_write: Called before each write.
        sends_in_flight: Returns the number of unanswered sends.
    """

    __slots__ = (
        "_before_write", "_due", "_large", "_loop", "_sends_in_flight", "_timer", "_transport", "_urgent", "_written",
        "frames", "paused", "room", "writes",
    )  # fmt: skip

    _transport: asyncio.Transport
    """Set by ``attach``, before the first frame."""

    def __init__(self, before_write: Callable[[], None], sends_in_flight: Callable[[], int]) -> None:
        self._before_write = before_write
        self._sends_in_flight = sends_in_flight
        self._loop = asyncio.get_running_loop()
        self._due = False
        self._large = 0
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._written: list[tuple[Callable[[int], None], int]] = []
        self.frames: list[bytes] = []
        """The gathered frames. A small frame is one item; a large frame is one item for each of its parts."""
        self.room = 0
        """While ``frames`` has fewer items than this, small frames may be appended to it directly, because a later write is certain
        unless the connection closes."""
        self.paused = False
        """Whether the transport has paused writing, because the peer does not read."""
        self.writes = 0

    def attach(self, transport: asyncio.Transport) -> None:
        tls = transport.get_extra_info("sslcontext") is not None  # TLS pauses at its high-water mark, plain TCP above it
        transport.set_write_buffer_limits(high=1 if tls else 0, low=0)
        self._transport = transport

    @property
    def gathered_bytes(self) -> int:
        return sum(map(len, self.frames))

    def idle(self) -> bool:
        """Return whether there is no frame, no timer and no callback of a write."""
        return not (self.frames or self._written or self._timer)

    def queue(self, parts: bytes | list[bytes], *, urgent: bool = False) -> None:
        """Add a frame to the gathered frames.

        Args:
            urgent: Whether to write the frame at the end of the current loop iteration at the latest, unless writing is paused.
        """
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
        """Write a frame to the transport immediately. Use this for a frame that would be written alone."""
        self.writes += 1
        self._before_write()
        if isinstance(parts, bytes):
            self._transport.write(parts)
        else:
            self._write_parts(parts)

    def flush(self) -> None:
        """Write the gathered frames, unless the transport has paused writing."""
        if not self.paused:
            self.push()

    def push(self) -> None:
        """Write the gathered frames even if the peer does not read; they then wait in the transport's buffer.

        Frames can be gathered although the peer does not read, because uvloop calls ``pause_writing`` some time after the write.
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
        """Schedule a check at the end of this iteration, which may write the gathered frames."""
        if not self._due:
            self._due = True
            self.room = FLUSH_FRAMES - 1
            self._loop.call_soon(self._end_of_iteration)

    def when_written(self, callback: Callable[[int], None], cost: int) -> None:
        """Call ``callback(cost)`` when all frames that are queued before the next write have been written and the transport is not
        paused, or when these frames are dropped.
        """
        self._written.append((callback, cost))

    def resume(self) -> None:
        self.paused = False
        if self._written and not self.frames:
            self._report_written()
        self.flush()

    def close(self) -> None:
        """Drop the gathered frames, and call the callbacks of ``when_written``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.frames = []
        self._large = 0
        self._report_written()

    def _end_of_iteration(self) -> None:
        self._due = False
        self.room = 0
        if 0 < len(self.frames) < GATHER and not self._urgent and self._sends_in_flight() >= GATHER_FROM:
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
