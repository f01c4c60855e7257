"""A TCP proxy on loopback that injects network faults.

    async with FaultProxy(address) as proxy:
        ...  # a client at proxy.address
        proxy.to_client.latency(0.2, jitter=0.1)
        proxy.to_server.cut_after(100)
        proxy.reset()

It works on bytes, not frames. A TCP proxy cannot lose packets or leave a connection half open; to the peer ``stall`` looks like
both. For clients that find their brokers by a name server see ``ClusterProxy``, which rewrites the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import struct
from collections import Counter
from typing import Final

from rmq_protocol.route import split_address

from .._asyncio import Startable
from .._listeners import close_servers
from .._turns import Turns
from ._direction import Direction
from ._pump import End, Pump, Rewrite

__all__ = ["Direction", "FaultProxy"]

logger = logging.getLogger("rmq_async.testing")

CONNECT_TIMEOUT: Final = 10.0
CLOSE_TIMEOUT: Final = 0.5
_LINGER_NONE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 seconds: closing sends RST."""


class FaultProxy(Startable):
    """A proxy for ``target`` ("host:port") that listens on ``port`` of 127.0.0.1, 0 for a free one.

    ``to_server`` and ``to_client`` hold the faults of each direction. ``target`` may be changed; it applies to new connections.
    ``buffer``: bytes queued per direction and connection before reading pauses; under latency a connection carries about buffer /
    latency bytes a second at most. ``max_connections``: further ones are reset. ``seed``: that of the jitter; None for a different
    jitter in each run. ``accepted``: the number of connections accepted so far.

    All methods but ``start`` and ``stop`` are plain calls, to be made on the proxy's loop. Raises ValueError for a buffer or
    ``max_connections`` below 1, and RemoteProtocolError for a target that is not host:port.
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
        """The address for clients, "127.0.0.1:port". Raises RuntimeError before the first start, unless ``port`` was given."""
        if not self._port:
            raise RuntimeError("the proxy has no address before its first start; await start()")
        return f"127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """The number of open connections of clients."""
        return len(self._links)

    @property
    def injected(self) -> Counter[str]:
        """Numbers of effects by fault: the sum of both directions, and the connections that ``reset`` ("reset") and ``close``
        ("close") have ended."""
        return self.to_server.injected + self.to_client.injected + self._resets

    async def start(self) -> None:
        """Listens; a later start takes the same port. Raises OSError where the port is taken, RuntimeError where the proxy runs."""
        async with self._turns.here():
            if self._server is not None:
                raise RuntimeError("this proxy runs already; stop() it first")
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
        """Closes the port and resets all connections; returns when all are closed. Does nothing if the proxy does not run."""
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
        """Stalls both directions: nothing is passed on until ``resume`` or ``clear``."""
        self.to_server.stall()
        self.to_client.stall()

    def resume(self) -> None:
        """Ends the stall of both directions."""
        self.to_server.resume()
        self.to_client.resume()

    def clear(self) -> None:
        """Ends every fault of both directions."""
        self.to_server.clear()
        self.to_client.clear()

    def reset(self) -> None:
        """Ends every open connection at both ends by RST, discarding queued bytes. New connections are accepted."""
        self._end(End.RESET)

    def close(self) -> None:
        """Ends every open connection at both ends by FIN, discarding queued bytes. New connections are accepted."""
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
        self._links.pop(task).begin_close()  # the task runs no line if it was cancelled before its first step
        if not task.cancelled():
            task.result()

    def rewriters(self) -> tuple[Rewrite | None, Rewrite | None]:
        """Returns the functions that rewrite the bytes of a new connection, to the server and to the client; None for no
        change.

        Subclasses override it. The functions get the bytes that were read, before any fault applies to them.
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
        """The way in which both connections are closed when this task ends or is cancelled."""
        self._proxy = proxy
        self._reader = reader
        self._writers = [writer]

    async def run(self) -> None:
        try:
            await self._connect()
        except (OSError, TimeoutError):  # a server that cannot be reached looks so to the client, too
            self.end = End.RESET
        finally:
            await self._close()

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            reader, writer = await asyncio.open_connection(*split_address(self._proxy.target))
        client = self._writers[0]
        self._writers.append(writer)
        make = self._proxy._pump  # noqa: SLF001
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
        """Starts to close both connections; harmless for those that are closing already."""
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
