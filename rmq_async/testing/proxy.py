"""A TCP proxy on loopback that injects network faults.

    async with FaultProxy(address) as proxy:
        ...  # a client at proxy.address
        proxy.to_client.latency(0.2, jitter=0.1)
        proxy.to_server.cut_after(100)
        proxy.reset()

The proxy works on bytes, not frames. A TCP proxy cannot lose packets or leave a connection half open, but to the peer,
``stall`` looks like both faults. For clients that find their brokers through a name server, use ``ClusterProxy``, which
rewrites the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import socket
import struct
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from rmq_protocol.errors import ProtocolError
from rmq_protocol.route import split_address

from .._asyncio import Startable
from .._loops import Turns, close_servers

# The faults of one direction of a proxy. They decide when the next bytes of a connection may pass, and how many.
#
# Times and sizes are computed from the current settings when bytes leave the queue, not when they arrive, so a changed or
# cleared fault takes effect at once for bytes that are already queued.

_TICK: Final = 0.02
"""With a bandwidth limit, one write contains the bytes of this number of seconds. The value is small enough for a smooth flow and
large enough for the loop's timer."""


class Cut:
    """A fault that closes a connection after ``count`` bytes, by RST if ``reset`` is set and by FIN otherwise.

    Args:
        times: The number of connections that are still to be closed. None means all connections.
    """

    def __init__(self, count: int, reset: bool, times: int | None) -> None:
        self.count = count
        self.reset = reset
        self.times = times


class Direction:
    """The faults of one direction of a FaultProxy. Every method may be called at any time, on the proxy's loop.

    Several faults can be active at the same time.

    Attributes:
        passed: Number of bytes forwarded so far.
        injected: How often each fault has affected a read, a write or a connection, by name ("latency", "bandwidth", "slice",
            "stall", "cut"). A test should assert on these counts, because a fault that affected nothing proves nothing.
    """

    def __init__(self) -> None:
        self.passed = 0
        self.injected: Counter[str] = Counter()
        self.delay = self.jitter = self.pause = 0.0
        self.rate: float | None = None
        self.size: int | None = None
        self.stalled = False
        self.cut: Cut | None = None
        self.waiters: set[Callable[[], None]] = set()

    def latency(self, seconds: float, *, jitter: float = 0.0) -> None:
        """Delay bytes by ``seconds``, plus up to ``jitter`` seconds that are drawn for each read. The order of the bytes is
        kept.

        ``latency(0)`` ends the fault.

        Raises:
            ValueError: For a time that is negative, infinite or NaN.
        """
        self.delay, self.jitter = _seconds("latency", seconds), _seconds("jitter", jitter)
        self._changed()

    def bandwidth(self, bytes_per_second: float | None) -> None:
        """Limit each connection to this rate. None ends the fault.

        Raises:
            ValueError: For a rate of 0 or less, infinity and NaN.
        """
        if bytes_per_second is not None and not 0 < bytes_per_second < math.inf:
            raise ValueError(
                f"bytes_per_second must be a positive, finite number, or None for no limit, not {bytes_per_second}"
            )
        self.rate = bytes_per_second
        self._changed()

    def slice(self, size: int | None, *, pause: float = 0.001) -> None:
        """Split the stream into writes of at most ``size`` bytes, at least ``pause`` seconds apart. None ends the fault.

        With a longer pause, the peer is more likely to read each piece separately.

        Raises:
            ValueError: For a size below 1, and for a pause that is negative, infinite or NaN.
        """
        if size is not None and size < 1:
            raise ValueError(f"size must be at least 1 byte, or None for no limit, not {size}")
        self.size, self.pause = size, _seconds("pause", pause)
        self._changed()

    def stall(self) -> None:
        """Forward nothing until ``resume`` or ``clear``.

        When the buffer is full, the proxy stops reading, so the sender's writes block.
        """
        self.stalled = True
        self._changed()

    def resume(self) -> None:
        """End a stall. Queued bytes then pass as the other faults permit."""
        self.stalled = False
        self._changed()

    def cut_after(self, count: int, *, reset: bool = False, times: int | None = 1) -> None:
        """Close a connection at both ends after ``count`` bytes have passed, by FIN or, with ``reset``, by RST.

        Bytes are counted per connection, from this call on, or from the start of the connection if it starts later. With 0, the
        next byte closes the connection and does not pass. A call replaces the cut of an earlier call.

        Args:
            times: The number of connections that are closed, in the order in which they reach the count. None means all
                connections.

        Raises:
            ValueError: For a negative count and for ``times`` below 1.
        """
        if count < 0:
            raise ValueError(f"count must not be negative, it is {count}")
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, or None for all connections, not {times}")
        self.cut = Cut(count, reset, times)
        self._changed()

    def clear(self) -> None:
        """End all faults. Queued bytes pass at once. ``passed`` and ``injected`` keep their values."""
        self.delay = self.jitter = self.pause = 0.0
        self.rate = self.size = self.cut = None
        self.stalled = False
        self._changed()

    def piece(self, size: int) -> int:
        """Return how many bytes the next write may contain if ``size`` bytes are ready."""
        if self.size is not None and size > self.size:
            self.injected["slice"] += 1
            size = self.size
        if self.rate is not None:
            size = min(size, max(1, int(self.rate * _TICK)))
        return size

    def use_up(self, cut: Cut) -> None:
        """Count a connection that ``cut`` has ended, and remove the cut after the last one."""
        self.injected["cut"] += 1
        if cut.times is not None:
            cut.times -= 1
            if not cut.times and self.cut is cut:
                self.cut = None

    def _changed(self) -> None:
        for wake in self.waiters:
            wake()


def _seconds(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite, non-negative number of seconds, not {value}")
    return value


# One direction of a proxied connection. It reads into a bounded queue and writes from the queue as its Direction permits.
#
# Reading continues while earlier bytes are queued, up to about ``limit`` bytes. The end of the stream is queued after the last
# bytes, and latency and stalls also delay it.

logger = logging.getLogger("rmq_async.testing")

Rewrite = Callable[[bytes], Awaitable[bytes]]

_READ: Final = 64 * 1024
_LATE: Final = 0.05
"""If a busy loop delays a write, a bandwidth limit makes up for at most this number of seconds."""


class End(Enum):
    """How a direction ends: by EOF of the source, or because both connections are closed or reset."""

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

    ``rewrite`` returns a replacement for the bytes of each read. If it raises a ProtocolError, the connection is reset.

    Args:
        limit: Number of queued bytes at which reading pauses.
        draw: The random source of the jitter.
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
        """Time at which the last write was due, but no earlier than ``_LATE`` before the write. The bandwidth limit counts from
        this time."""
        self._written = 0
        self._cut: Cut | None = None
        self._left = 0
        sink.transport.set_write_buffer_limits(high=0)  # so that drain waits until the kernel has taken everything

    async def run(self) -> End:
        """Forward bytes until the stream ends, a fault ends it, or a connection breaks. Return how the stream has ended."""
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
        """Wait until bytes may pass. Return the bytes of the next write, or the end of the stream."""
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
        """Return the time at which the oldest queued bytes may pass. Return None if no bytes are queued, or if they cannot pass
        before a fault changes.
        """
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
        """Return how many of ``size`` bytes go into the next write. Return 0 if the connection is to be cut before these bytes."""
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


CONNECT_TIMEOUT: Final = 10.0
CLOSE_TIMEOUT: Final = 0.5
_LINGER_NONE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with 0 seconds, so that closing sends RST."""


class FaultProxy(Startable):
    """A proxy for ``target`` ("host:port") that listens on ``port`` of 127.0.0.1. Port 0 means a free port.

    ``to_server`` and ``to_client`` hold the faults of each direction. ``target`` may be changed; the change applies to new
    connections.

    All methods except ``start`` and ``stop`` are plain functions, which must be called on the proxy's loop.

    Args:
        buffer: Number of queued bytes, per direction and connection, at which reading pauses. With latency, a connection
            carries at most about buffer / latency bytes per second.
        max_connections: Maximum number of connections. Further connections are reset.
        seed: The seed of the jitter. With None, the jitter differs between runs.

    Attributes:
        accepted: The number of connections accepted so far.

    Raises:
        ValueError: For a buffer or ``max_connections`` below 1.
        RemoteProtocolError: For a target that is not host:port.
    """

    def __init__(
        self,
        target: str,
        *,
        port: int = 0,
        buffer: int = 1024 * 1024,
        max_connections: int = 256,
        seed: int | None = None,
    ) -> None:
        if buffer < 1 or max_connections < 1:
            raise ValueError(f"buffer and max_connections must be at least 1, they are {buffer} and {max_connections}")
        split_address(target)
        self.target = target
        self.to_server = Direction()
        self.to_client = Direction()
        self.accepted = 0
        self._port = port
        self._buffer = buffer
        self._max_connections = max_connections
        self._draw = random.Random(seed)
        self._resets: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._turns = Turns()
        self._links: dict[asyncio.Task[None], _Link] = {}

    @property
    def address(self) -> str:
        """The address for clients, "127.0.0.1:port".

        Raises:
            RuntimeError: Before the first start, unless ``port`` was given.
        """
        if not self._port:
            raise RuntimeError("the proxy has no address before its first start; await start()")
        return f"127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """The number of open client connections."""
        return len(self._links)

    @property
    def injected(self) -> Counter[str]:
        """Number of effects by fault. It has the sums of both directions, and the numbers of connections that ``reset``
        ("reset") and ``close`` ("close") have ended.
        """
        return self.to_server.injected + self.to_client.injected + self._resets

    async def start(self) -> None:
        """Start to listen. A later start uses the same port.

        Raises:
            OSError: If the port is taken.
            RuntimeError: If the proxy is already running.
        """
        async with self._turns.here():
            if self._server is not None:
                raise RuntimeError("this proxy is already running; call stop() first")
            server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=64 * 1024, start_serving=False)
            self._server = server
            try:
                await server.start_serving()
            except BaseException:
                self._server = None
                server.close()
                raise
            self._port = server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and reset all connections. Return when all connections are closed. Do nothing if the proxy is not
        running.
        """
        async with self._turns.here():
            server, self._server = self._server, None
            if server is not None:
                await self._close(server)

    async def _close(self, server: asyncio.Server) -> None:
        await close_servers([server])
        while self._links:
            for task in self._links:
                task.cancel()
            await asyncio.wait(self._links)
        await server.wait_closed()

    def stall(self) -> None:
        """Stall both directions. Nothing is forwarded until ``resume`` or ``clear``."""
        self.to_server.stall()
        self.to_client.stall()

    def resume(self) -> None:
        """End the stall of both directions."""
        self.to_server.resume()
        self.to_client.resume()

    def clear(self) -> None:
        """End all faults of both directions."""
        self.to_server.clear()
        self.to_client.clear()

    def reset(self) -> None:
        """End all open connections at both ends by RST and discard queued bytes. New connections are accepted."""
        self._end(End.RESET)

    def close(self) -> None:
        """End all open connections at both ends by FIN and discard queued bytes. New connections are accepted."""
        self._end(End.CLOSE)

    def _end(self, how: End) -> None:
        for task, link in self._links.items():
            self._resets[how.value] += 1
            link.end = how
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or len(self._links) >= self._max_connections:
            _reset(writer)
            return
        self.accepted += 1
        link = _Link(self, reader, writer)
        task = asyncio.create_task(link.run())
        self._links[task] = link
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).begin_close()  # a task that is cancelled before its first step runs no code
        if not task.cancelled():
            task.result()

    def rewriters(self) -> tuple[Rewrite | None, Rewrite | None]:
        """Return the functions that rewrite the bytes of a new connection, to the server and to the client. None means no
        change.

        Subclasses override this method. The functions get the bytes that were read, before any fault applies to these bytes.
        """
        return None, None

    def _pump(
        self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter, rewrite: Rewrite | None
    ) -> Pump:
        return Pump(direction, source, sink, limit=self._buffer, draw=self._draw, rewrite=rewrite)


class _Link:
    """A client's connection to the proxy, and the proxy's connection to the server."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.end = End.RESET
        """How both connections are closed when this task ends or is cancelled."""
        self._proxy = proxy
        self._reader = reader
        self._writers = [writer]

    async def run(self) -> None:
        try:
            await self._connect()
        except (OSError, TimeoutError):  # the client must also see that the server cannot be reached
            self.end = End.RESET
        finally:
            await self._close()

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            reader, writer = await asyncio.open_connection(*split_address(self._proxy.target))
        client = self._writers[0]
        self._writers.append(writer)
        make = self._proxy._pump  # noqa: SLF001 - this module's class
        to_server, to_client = self._proxy.rewriters()
        ways = {
            asyncio.create_task(make(self._proxy.to_server, self._reader, writer, to_server).run()): writer,
            asyncio.create_task(make(self._proxy.to_client, reader, client, to_client).run()): client,
        }
        try:
            self.end = await self._until_ended(ways)
        finally:
            for task in ways:
                task.cancel()
            await asyncio.wait(ways)

    async def _until_ended(self, ways: dict[asyncio.Task[End], asyncio.StreamWriter]) -> End:
        running = set(ways)
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (end := task.result()) is not End.EOF:
                    return end
                if not ways[task].transport.is_closing():  # uvloop's transports raise RuntimeError then
                    with contextlib.suppress(OSError):
                        ways[task].write_eof()
        return End.CLOSE

    def begin_close(self) -> None:
        """Start to close both connections. Has no effect on connections that are already closing."""
        for writer in self._writers:
            if self.end is End.RESET:
                _reset(writer)
            else:
                writer.close()

    async def _close(self) -> None:
        self.begin_close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                for writer in self._writers:
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except TimeoutError:
            logger.info("a peer did not read the last bytes within %g s", CLOSE_TIMEOUT)
        finally:
            for writer in self._writers:
                writer.transport.abort()


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    writer.transport.abort()
