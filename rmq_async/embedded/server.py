"""The network side of an embedded server: its listening sockets, its connections, and its limits against faulty peers.

The server must serve all other clients while some clients send garbage, half a frame or one byte per second, or never read
their responses. Therefore, it allocates no memory for a length that was only announced (FrameDecoder). The bytes of unfinished
frames and of unread responses are limited over all connections together, and the connection with the most such bytes is closed.
A connection whose write buffer is full is neither read nor served until the buffer drains. A connection without traffic for
``IDLE_TIMEOUT`` is closed.

The responses to the requests of one read are written together, because a write per response costs as much as serving the
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
from collections import deque
from collections.abc import Collection, Sequence
from typing import ClassVar, Final, Protocol, cast

from rmq_protocol.constants import MAX_FRAME_SIZE
from rmq_protocol.errors import ProtocolError
from rmq_protocol.frame import Frame, FrameDecoder

from .._loops import close_servers
from .clock import PendingCall
from .faults import Gate, drawn
from .sockets import descriptor_limit, endpoint, endpoint_text, listen, numeric_host

# Responses that are written in slices, as a network may deliver them.

PAUSE: Final = 0.001
"""Seconds between two slices, so that the peer can read the slices one by one."""
SMALL: Final = 9
"""Maximum number of bytes of about half of the slices, so that some slices end within the two lengths (eight bytes) at the start
of a frame."""


class SlicedWriter:
    """Writes to one connection in slices. The gate's random source draws the sizes of the slices.

    When the gate no longer has a random source, the bytes that wait are written in one piece.
    """

    def __init__(self, transport: asyncio.Transport, gate: Gate) -> None:
        self._transport = transport
        self._gate = gate
        self._pending = b""
        self._resuming = PendingCall(self.resume)

    def __len__(self) -> int:
        """Return the number of bytes that wait."""
        return len(self._pending)

    def write(self, data: bytes) -> None:
        self._pending += data
        if not self._resuming.pending:
            self.resume()

    def resume(self) -> None:
        """Write the next slice, and further slices after pauses, unless the server is stalled."""
        self.cancel()
        if not self._pending or self._gate.stalled or self._transport.is_closing():
            return
        chance = self._gate.slices
        size = len(self._pending) if chance is None else _size(len(self._pending), chance)
        data, self._pending = self._pending[:size], self._pending[size:]
        self._transport.write(data)
        if self._pending:
            self._resuming.after(PAUSE)

    def flush(self) -> None:
        """Write the waiting slices, because the connection is about to be closed."""
        self.cancel()
        if self._pending:
            self._transport.write(self._pending)
            self._pending = b""

    def cancel(self) -> None:
        """Stop writing. The bytes that wait are kept until ``resume`` or ``flush``."""
        self._resuming.cancel()


def _size(most: int, chance: random.Random) -> int:
    return chance.randrange(min(most, SMALL) if chance.random() < 0.5 else most) + 1


logger = logging.getLogger("rmq_async.embedded")

MAX_CONNECTIONS: Final = 4096
RESERVED_DESCRIPTORS: Final = 128
"""Number of descriptors that connections to embedded servers leave free for the rest of the process."""
MAX_UNFINISHED: Final = 64 * 1024 * 1024
"""Maximum number of bytes of unfinished frames of all connections together."""
MAX_UNREAD: Final = 64 * 1024 * 1024
"""Maximum number of bytes of responses that peers have not read, of all connections together."""
READ_AT_ONCE: Final = 128 * 1024
"""Size of one read, in bytes, from which on the connection is not read again in the same iteration of the event loop.
Otherwise, uvloop would read the connection many times in a row, and one fast sender would hold up other clients."""
FLUSH_SIZE: Final = 256 * 1024
WRITE_HIGH: Final = 1024 * 1024
WRITE_LOW: Final = 256 * 1024
IDLE_TIMEOUT: Final = 120.0
_SCAN_INTERVAL: Final = 5.0
_CLOSE_GRACE: Final = 0.5

Parts = Sequence[bytes]


class Service(Protocol):
    """Serves the requests of one listener."""

    def serve(self, connection: Connection, frame: Frame) -> Parts | None:
        """Serve a frame. Return the parts of the response, or None if there is no response (yet). A ProtocolError closes the
        connection.
        """

    def disconnected(self, connection: Connection) -> None:
        """Drop the state of a connection. The method is called once, when the connection is closed, but not by
        ``Listener.crash``.
        """

    def resumed(self, connection: Connection) -> None:
        """Serve the requests that waited because a connection was congested. The method is called when the congestion ends,
        unless the listener is stalled.
        """

    def tick(self) -> None:
        """Run periodic work. The method is called every few seconds while the listener runs and is not stalled."""


class Connection(asyncio.Protocol):
    """The connection of one client.

    Args:
        second: Whether the connection uses the listener's second port.

    Attributes:
        remote: The address of the client, "ip:port".
        local_ip: The local address of the connection.
        unfinished: Number of received bytes of an incomplete frame.
    """

    def __init__(self, listener: Listener, *, second: bool = False) -> None:
        self._listener = listener
        self.second = second
        self._service = listener.service
        self._decoder = FrameDecoder(MAX_FRAME_SIZE)
        self._frames: deque[Frame] = deque()
        self._paused = False
        self._sliced: SlicedWriter | None = None
        self._transport: asyncio.Transport | None = None
        self.remote = self.local_ip = ""
        self.last_active = 0.0
        self.unfinished = 0

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def congested(self) -> bool:
        """Whether the write buffer is full, because the peer does not read its responses."""
        return self._paused

    @property
    def unread(self) -> int:
        """Number of bytes of responses in the write buffer and in waiting slices."""
        sliced = 0 if self._sliced is None else len(self._sliced)
        return 0 if self._transport is None else self._transport.get_write_buffer_size() + sliced

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's class is no subclass
        transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_LOW)
        ip, port = endpoint(transport.get_extra_info("peername"))
        self.remote = endpoint_text(ip, port)
        self.local_ip = str(endpoint(transport.get_extra_info("sockname"))[0])
        self.last_active = self._listener.now()
        self._listener.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._listener.gate.chance is not None:  # serve what has been read, as a broker's threads would
            self._serve(self._frames)
        self._transport = None
        self._frames.clear()
        if self._sliced is not None:
            self._sliced.cancel()
            self._sliced = None
        self._listener.remove(self)

    def data_received(self, data: bytes) -> None:
        listener = self._listener
        self.last_active = listener.now()
        try:
            frames = self._decoder.feed(data)
        except ProtocolError as error:
            self.refuse(error)
            return
        pending = self._decoder.pending
        if pending != self.unfinished:
            listener.count_unfinished(self, pending)
        if frames:
            self._frames.extend(frames)
            self.work()
        if self._decoder.error is not None:
            self.refuse(self._decoder.error)
        elif len(data) >= READ_AT_ONCE and not self._paused:
            self._read(False)
            asyncio.get_running_loop().call_soon(self._read_on)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True
        self._read(False)
        self._listener.congested[self] = None
        self._listener.bound_unread(self._listener.congested)

    def _read_on(self) -> None:
        if not self._paused and not self._listener.gate.stalled:
            self._read(True)

    def resume_writing(self) -> None:
        self._paused = False
        self._listener.congested.pop(self, None)
        self.last_active = self._listener.now()
        if not self._listener.gate.stalled:
            self._read(True)
            self._service.resumed(self)
            self.work()

    def work(self) -> None:
        """Serve the frames that have arrived, as long as the peer reads the responses. With ``shuffle``, serve a random subset
        of the frames at a time.
        """
        gate = self._listener.gate
        if gate.chance is None:
            self._serve(self._frames)
        elif self._frames and not self._paused and not gate.stalled:
            chosen = drawn(self._frames, gate.chance)
            gate.turn += 1
            self._serve(chosen)
            self._frames.extendleft(chosen)
            if self._frames:
                asyncio.get_running_loop().call_soon(self.work)

    def _serve(self, frames: deque[Frame]) -> None:
        serve, gate = self._service.serve, self._listener.gate
        out: list[bytes] = []
        size, flush_size = 0, 0 if gate.apart else FLUSH_SIZE
        while frames and not self._paused and not gate.stalled:
            try:
                parts = serve(self, frames.popleft())
            except ProtocolError as error:
                self.send(out)
                self.refuse(error)
                return
            if parts is not None:
                out += parts
                size += len(parts[0]) + len(parts[-1])
                if size >= flush_size:
                    self.send(out)
                    out, size = [], 0
        self.send(out)

    def send(self, parts: Parts) -> None:
        """Write the parts of whole frames, or pass them to the listener's gate."""
        if not parts:
            return
        if self._listener.gate.open:
            self._write(parts)
        else:
            self._listener.gate.hold(self._write, parts)

    def send_later(self, parts: Parts, seconds: float) -> None:
        """Write the parts of a whole frame after ``seconds`` plus the delay of the listener's gate."""
        self._listener.gate.hold(self._write, parts, seconds)

    def _write(self, parts: Parts) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.last_active = self._listener.now()
        if self._sliced is None and self._listener.gate.slices is not None:
            self._sliced = SlicedWriter(transport, self._listener.gate)
        if self._sliced is not None:
            self._sliced.write(b"".join(parts))
        elif sum(map(len, parts)) <= FLUSH_SIZE:
            transport.write(b"".join(parts))
        else:
            for part in parts:  # in Python 3.12 and 3.13.0, asyncio's writelines does not call pause_writing
                transport.write(part)

    def stall(self, stalled: bool) -> None:
        self._read(not stalled and not self._paused)
        if not stalled:
            if self._sliced is not None:
                self._sliced.resume()
            self.work()

    def _read(self, on: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def refuse(self, error: Exception) -> None:
        """Close the connection because of invalid bytes. Responses that are not held back are still sent."""
        logger.info("%s: connection of %s closed: %s", self._listener.name, self.remote, error)
        self._listener.refused += 1
        self._frames.clear()
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            if self._sliced is not None:
                self._sliced.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once. Bytes that were not yet written are dropped."""
        if self._transport is not None:
            self._transport.abort()


class Listener:
    """A listening socket, and optionally a second one.

    ``accepted`` and ``refused`` are the counters that ``ServerStatistics`` describes.

    A process without free descriptors cannot even refuse connections, so all listeners together use fewer descriptors than its
    limit.
    """

    _in_process: ClassVar[int] = 0

    def __init__(self, name: str, service: Service) -> None:
        self.name = name
        self.service = service
        self.gate = Gate()
        self.connections: dict[Connection, None] = {}
        """Connections in the order of arrival, so that simulations with the same seed are equal."""
        self.congested: dict[Connection, None] = {}
        self.accepted = 0
        self.refused = 0
        self.host = ""
        self.port = 0
        self._unfinished = 0
        self._most_in_process = 0
        self._servers: list[asyncio.Server] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scan = PendingCall(self._scan_idle)
        self._gone: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        return bool(self._servers)

    def now(self) -> float:
        return self._loop.time() if self._loop is not None else 0.0

    def address(self, connection: Connection | None = None) -> str:
        """Return the "ip:port" of this server. If the server is bound to all addresses, use the local address of
        ``connection``, or loopback without a connection.
        """
        ip = ipaddress.ip_address(self.host)
        if ip.is_unspecified:
            own = "127.0.0.1" if ip.version == 4 else "::1"
            ip = ipaddress.ip_address(own if connection is None else connection.local_ip)
        return endpoint_text(ip, self.port)

    async def start(self, host: str, port: int, *, second: bool = False) -> None:
        """Listen on ``host`` (an address, or a name that is looked up) and ``port``. Port 0 means a free port.

        Args:
            second: If True, also listen on the port two below ``port``.

        Raises:
            OSError: If the name cannot be resolved, or an address or port is not available.
        """
        self._loop = asyncio.get_running_loop()
        self._most_in_process = descriptor_limit() - RESERVED_DESCRIPTORS
        ip = await numeric_host(host, port)
        servers = await listen(ip, port, lambda: Connection(self), (lambda: Connection(self, second=True)) if second else None)
        name = servers[0].sockets[0].getsockname()
        self._servers, self.host, self.port = servers, name[0], name[1]
        self._scan.after(_SCAN_INTERVAL)

    async def stop(self) -> None:
        """Close the sockets and all connections. The responses in the write buffers have half a second to be sent."""
        servers, self._servers = self._servers, []
        if not servers:
            return
        self._scan.cancel()
        self.gate.close()
        await close_servers(servers)
        for connection in list(self.connections):
            connection.close()
        await self._all_gone(_CLOSE_GRACE)
        for connection in list(self.connections):
            connection.abort()
        await self._all_gone(None)
        for server in servers:
            await server.wait_closed()

    def crash(self) -> None:
        """End the listener as a kill of its process does: close the sockets and reset the connections, unless the event loop is
        closed.
        """
        servers, self._servers = self._servers, []
        connections, self.connections = self.connections, {}
        self.congested.clear()
        self._unfinished = 0
        Listener._in_process -= len(connections)
        self._scan.cancel()
        self.gate.close()
        if self._loop is not None and not self._loop.is_closed():
            for server in servers:
                server.close()
            for connection in connections:
                connection.abort()

    async def _all_gone(self, timeout: float | None) -> None:
        if self.connections:
            self._gone = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone, timeout)
            self._gone = None

    def add(self, connection: Connection) -> None:
        full = len(self.connections) >= MAX_CONNECTIONS or Listener._in_process >= self._most_in_process
        if not self._servers or full:
            logger.info(
                "%s: connection of %s refused: %d connections open", self.name, connection.remote, len(self.connections)
            )
            self.refused += 1
            connection.abort()
        self.accepted += 1
        Listener._in_process += 1
        self.connections[connection] = None
        if self.gate.stalled:
            connection.stall(True)

    def remove(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.congested.pop(connection, None)
            Listener._in_process -= 1
            self._unfinished -= connection.unfinished
            self.service.disconnected(connection)
            if not self.connections and self._gone is not None and not self._gone.done():
                self._gone.set_result(None)

    def count_unfinished(self, connection: Connection, size: int) -> None:
        """Count the bytes of a connection's unfinished frame. Above ``MAX_UNFINISHED``, drop the connection with the most such
        bytes.
        """
        self._unfinished += size - connection.unfinished
        connection.unfinished = size
        if self._unfinished > MAX_UNFINISHED:
            largest = max(self.connections, key=lambda each: each.unfinished)
            why = f"unfinished frames of all connections take more than {MAX_UNFINISHED} bytes, its own {largest.unfinished}"
            logger.warning("%s: connection of %s closed: %s; its client must send whole frames", self.name, largest.remote, why)
            self.refused += 1
            self._unfinished -= largest.unfinished
            largest.unfinished = 0  # connection_lost, called later, must not subtract it again
            largest.abort()

    def bound_unread(self, connections: Collection[Connection]) -> None:
        """Drop the connections with the most bytes of unread responses until the remaining connections together have at most
        ``MAX_UNREAD``.
        """
        sizes = {connection: connection.unread for connection in connections if not connection.closed}
        total = sum(sizes.values())
        for connection in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if total <= MAX_UNREAD:
                break
            why = f"unread responses of all connections take more than {MAX_UNREAD} bytes, its own {sizes[connection]}"
            logger.warning("%s: connection of %s closed: %s; its client must read them", self.name, connection.remote, why)
            total -= sizes[connection]
            self.refused += 1
            connection.abort()

    def set_stalled(self, stalled: bool) -> None:
        self.gate.set_stalled(stalled)
        for connection in list(self.connections):
            connection.stall(stalled)

    def shuffle(self, chance: random.Random | None) -> None:
        """Make the listener serve requests in the order that ``chance`` draws. None restores the order of arrival."""
        self.gate.chance = chance
        for connection in list(self.connections):
            connection.work()

    def drop_connections(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def _scan_idle(self) -> None:
        now = self.now()
        if not self.gate.stalled:
            for connection in list(self.connections):
                if now - connection.last_active > IDLE_TIMEOUT:
                    logger.info("%s: connection of %s closed: idle", self.name, connection.remote)
                    connection.abort()
            self.bound_unread(self.connections)
            self.service.tick()
        self._scan.after(_SCAN_INTERVAL)
