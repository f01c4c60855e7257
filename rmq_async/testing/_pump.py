"""One direction of a proxied connection: reads into a bounded queue and writes from it as its Direction permits.

Reading continues while earlier bytes are queued, up to about ``limit`` bytes. The end of the stream is queued behind the last
bytes, and latency and stalls delay it too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from rmq_protocol.errors import ProtocolError

from ._direction import Cut, Direction

__all__ = ["End", "Pump"]

logger = logging.getLogger("rmq_async.testing")

Rewrite = Callable[[bytes], Awaitable[bytes]]

_READ: Final = 64 * 1024
_LATE: Final = 0.05
"""Seconds, at most, of the delay of a write by a busy loop for which a bandwidth limit makes up."""


class End(Enum):
    """The ends of a direction: at the source's EOF, or so that both connections must be closed or reset."""

    EOF = "eof"
    CLOSE = "close"
    RESET = "reset"


class _Piece:
    __slots__ = ("arrived", "content", "draw", "met", "started")

    def __init__(self, content: memoryview | End, arrived: float, draw: float) -> None:
        self.content = content
        self.arrived = arrived
        self.draw = draw
        self.met: set[str] = set()
        self.started = False


class Pump:
    """Forwards ``source`` to ``sink``.

    ``rewrite`` returns a replacement for each read; a ProtocolError from it resets the connection. ``limit``: bytes
    queued before reading pauses. ``draw``: the source of jitter.
    """

    def __init__(
        self,
        direction: Direction,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        *,
        limit: int,
        draw: random.Random,
        rewrite: Rewrite | None = None,
    ) -> None:
        self._direction = direction
        self._source = source
        self._sink = sink
        self._limit = limit
        self._draw = draw
        self._rewrite = rewrite
        self._held: deque[_Piece] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._left_at = 0.0
        """Time of the last write."""
        self._written_at = 0.0
        """Time at which the last write was due, but at most ``_LATE`` before the write; the bandwidth limit counts from it."""
        self._written = 0
        self._cut: Cut | None = None
        self._left = 0
        sink.transport.set_write_buffer_limits(high=0)  # so that drain waits until the kernel has taken everything

    async def run(self) -> End:
        """Forwards until the stream ends, a fault ends it, or a connection breaks; returns how it has ended."""
        self._direction.waiters.add(self._wake.set)
        filling = asyncio.create_task(self._fill())
        try:
            while not isinstance(data := await self._next(), End):
                await self._pass(data)
                if self._cut is not None and self._cut is self._direction.cut and not self._left:
                    self._direction.use_up(self._cut)
                    return End.RESET if self._cut.reset else End.CLOSE
            return data
        except OSError:  # the sink is gone
            return End.RESET
        finally:
            self._direction.waiters.discard(self._wake.set)
            filling.cancel()
            await asyncio.wait([filling])
            if not filling.cancelled():
                filling.result()

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        end = End.RESET
        try:
            while data := await self._source.read(_READ):
                if self._rewrite is not None:
                    data = await self._rewrite(data)
                if data:
                    self._hold(memoryview(data), loop.time())
                while self._size >= self._limit:
                    self._room.clear()
                    await self._room.wait()
            end = End.EOF
        except (OSError, ProtocolError) as error:
            logger.info("proxied stream broke: %s", error)
        finally:
            self._hold(end, loop.time())

    def _hold(self, content: memoryview | End, now: float) -> None:
        self._held.append(_Piece(content, now, self._draw.random()))
        self._size += len(content) if isinstance(content, memoryview) else 0
        self._wake.set()

    async def _next(self) -> memoryview | End:
        """Waits until bytes may pass; returns those of the next write, or the end of the stream."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            due = self._due(loop.time())
            if due is not None and due <= loop.time():
                break
            timer = None if due is None else loop.call_at(due, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        head = self._held[0]
        if isinstance(head.content, End):
            return head.content
        return head.content[: self._allowed(len(head.content))]

    def _due(self, now: float) -> float | None:
        """Returns the time at which the rest of the first piece may pass; None: not before a fault changes or bytes arrive."""
        if not self._held:
            return None
        direction, head = self._direction, self._held[0]
        if direction.stalled:
            self._meets(head, "stall")
            return None
        late = head.arrived + direction.delay + direction.jitter * head.draw
        if late > now:
            self._meets(head, "latency")
        paced = self._written_at
        if direction.rate is not None:
            paced += self._written / direction.rate
            if paced > now:
                self._meets(head, "bandwidth")
        if direction.size is not None and head.started:
            paced = max(paced, self._left_at + direction.pause)
        return max(late, paced)

    def _meets(self, piece: _Piece, fault: str) -> None:
        if fault not in piece.met:
            piece.met.add(fault)
            self._direction.injected[fault] += 1

    def _allowed(self, size: int) -> int:
        """Returns how many of ``size`` bytes go into the next write; 0 if the connection is to be cut before them."""
        cut = self._direction.cut
        if cut is not self._cut:
            self._cut, self._left = cut, cut.count if cut is not None else 0
        size = self._direction.piece(size)
        return size if cut is None else min(size, self._left)

    async def _pass(self, data: memoryview) -> None:
        if not data:
            return
        loop = asyncio.get_running_loop()
        head, size = self._held[0], len(data)
        assert isinstance(head.content, memoryview)
        due = self._due(loop.time()) or 0.0
        if self._sink.transport.is_closing():  # uvloop's transports raise RuntimeError then
            raise ConnectionResetError(f"{size} bytes cannot be forwarded: the receiving connection is closed; both are reset")
        self._sink.write(data)
        self._left_at = loop.time()
        self._written, self._written_at = size, max(due, self._left_at - _LATE)
        self._direction.passed += size
        self._left -= size if self._cut is not None else 0
        head.content, head.started = head.content[size:], True
        if not head.content:
            self._held.popleft()
        self._size -= size
        if self._size < self._limit:
            self._room.set()
        await self._sink.drain()
