"""The transport of a stream. It has asyncio's interface, uses an end of a stream, and behaves like asyncio's transport over a
socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import copy_context
from socket import AF_INET, IPPROTO_TCP, SOCK_STREAM
from typing import Any, Final, cast

from ..loop import SimulatedLoop
from .stream import End, Place


class SimulatedSocket:
    """The addresses and options of a stream or a listener. ``fileno`` is -1, because there is no real socket."""

    family = AF_INET
    type = SOCK_STREAM
    proto = IPPROTO_TCP

    def __init__(self, local: Place, end: End | None = None) -> None:
        self._local = local
        self._end = end
        self._options: dict[tuple[int, int], int | bytes] = {}

    def __repr__(self) -> str:
        return f"<SimulatedSocket {self._local[0]}:{self._local[1]}>"

    def fileno(self) -> int:
        return -1

    def getsockname(self) -> Place:
        return self._local

    def getpeername(self) -> Place:
        """Return the address and port of the other end.

        Raises:
            OSError: For a listener.
        """
        if self._end is None:
            raise OSError(107, "Transport endpoint is not connected")
        return self._end.remote

    def setsockopt(self, level: int, name: int, value: int | bytes) -> None:
        """Store an option for ``getsockopt``. The option has no effect."""
        self._options[level, name] = value

    def getsockopt(self, level: int, name: int) -> int | bytes:
        return self._options.get((level, name), 0)


READ_AT_ONCE: Final = 256 * 1024
DEFAULT_HIGH: Final = 64 * 1024
"""Default high-water mark of the write buffer in bytes, as in asyncio's transports."""


class Streams:
    """The transports of a server, by the numbers of their ends.

    Args:
        ended: A function that is called after a transport has ended.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self.transports: dict[int, SimulatedTransport] = {}
        self._ended = ended

    def lost(self, number: int) -> None:
        """Remove the transport of a stream that has ended."""
        self.transports.pop(number, None)
        self._ended()


class SimulatedTransport(asyncio.Transport):
    """The transport of a stream.

    It buffers the bytes that the kernel does not accept, and pauses the protocol above a limit.

    Args:
        made: A future that gets None when ``connection_made`` was called.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        end: End,
        protocol: asyncio.BaseProtocol,
        streams: Streams | None = None,
        made: asyncio.Future[None] | None = None,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._end = end
        self._protocol = protocol
        self._streams = streams
        self._socket = SimulatedSocket(end.local, end)
        self._context = copy_context()
        self._buffer = bytearray()
        self._high, self._low = DEFAULT_HIGH, DEFAULT_HIGH // 4
        self._protocol_paused = False
        self._reading = False
        self._read_paused = False
        self._reads = False
        self._writes = False
        """Whether a write is scheduled."""
        self._closing = False
        self._lost = False
        """Whether ``connection_lost`` is scheduled or was called."""
        self._eof_written = False
        if streams is not None:
            streams.transports[end.number] = self
        self._loop.call_soon(self._made, context=self._context)
        if made is not None:
            self._loop.call_soon(_resolve, made)
        self._loop.call_soon(self._begin_reading, context=self._context)

    def __repr__(self) -> str:
        return f"<SimulatedTransport {self._end!r}{' closing' if self._closing else ''}>"

    def _made(self) -> None:
        try:
            self._protocol.connection_made(self)
        finally:
            self._end.owner = self

    def _begin_reading(self) -> None:
        """Begin to read after ``connection_made`` and after the calls that wait for it, as asyncio's loops do."""
        if not self._closing:
            self._reading = True
            self.readable()

    # -- what it is

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``peername``, ``sockname``, ``socket``, ``unread`` (the number of bytes in the kernel's receive queue), or
        else ``default``.
        """
        match name:
            case "peername":
                return self._end.remote
            case "sockname":
                return self._end.local
            case "socket":
                return self._socket
            case "unread":
                return self._end.unread
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # -- reading

    def is_reading(self) -> bool:
        return not self._closing and not self._read_paused

    def pause_reading(self) -> None:
        self._read_paused = True

    def resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self.readable()

    def readable(self) -> None:
        """Schedule a read if the kernel has bytes, the end of the stream or an error, unless reading is paused."""
        if self._reading and not self._read_paused and not self._reads and self._end.ready:
            self._reads = True
            self._loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._reads = False
        if not self._reading or self._read_paused:
            return
        try:
            data = self._end.read(READ_AT_ONCE)
        except OSError as error:
            self._force_close(error)
            return
        if not data:
            self._end_of_stream()
            return
        try:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                _fill(self._protocol, data)
            else:
                cast("asyncio.Protocol", self._protocol).data_received(data)
        except Exception as error:  # noqa: BLE001 - of the protocol, as asyncio does
            self._fail("data_received", error)
        else:
            self.readable()

    def _end_of_stream(self) -> None:
        self._reading = False
        try:
            keep_open = cast("asyncio.Protocol", self._protocol).eof_received()
        except Exception as error:  # noqa: BLE001 - of the protocol, as asyncio does
            self._fail("eof_received", error)
            return
        if not keep_open:
            self.close()

    # -- writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = DEFAULT_HIGH if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._maybe_pause()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof_written:
            raise RuntimeError("write() was called after write_eof(); write all bytes before")
        if not data or self._lost or self._loop.dead:
            return
        if not self._buffer:
            try:
                taken = self._end.send(data if isinstance(data, bytes) else bytes(data))
            except OSError as error:
                self._force_close(error)
                return
            if taken == len(data):
                return
            data = data[taken:]
        self._buffer += data
        self._maybe_pause()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self._eof_written and not self._loop.dead:
            self._eof_written = True
            if not self._buffer:
                self._end.finish()

    def writable(self) -> None:
        """Schedule a write of the buffered bytes, because the kernel accepts more bytes."""
        if self._buffer and not self._writes:
            self._writes = True
            self._loop.call_soon(self._write, context=self._context)

    def _write(self) -> None:
        self._writes = False
        if self._lost or not self._buffer:
            return
        try:
            taken = self._end.send(bytes(self._buffer))
        except OSError as error:
            self._force_close(error)
            return
        del self._buffer[:taken]
        self._maybe_resume()
        if self._buffer:
            return
        if self._closing:
            self._lose(None)
        elif self._eof_written:
            self._end.finish()

    def _maybe_pause(self) -> None:
        if len(self._buffer) > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._call_protocol("pause_writing")

    def _maybe_resume(self) -> None:
        if self._protocol_paused and len(self._buffer) <= self._low:
            self._protocol_paused = False
            self._call_protocol("resume_writing")

    def _call_protocol(self, name: str) -> None:
        try:
            getattr(self._protocol, name)()
        except Exception as error:  # noqa: BLE001 - of the protocol, as asyncio does
            self._report(f"protocol.{name}() failed", error)

    # -- the end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading = False
            if not self._buffer:
                self._lose(None)

    def abort(self) -> None:
        """Close at once, and drop the bytes that the kernel has not accepted. The other end gets the accepted bytes and the end
        of the stream.

        If bytes for this end were not read or arrive later, the other end gets a reset instead, as with real sockets.
        """
        self._force_close(None)

    def _fail(self, what: str, error: Exception) -> None:
        self._report(f"Fatal error: protocol.{what}() call failed.", error)
        self._force_close(error)

    def _report(self, message: str, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
        )

    def _force_close(self, error: Exception | None) -> None:
        if not self._lost:
            self._buffer.clear()
            self._closing = True
            self._reading = False
            self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._connection_lost, error, context=self._context)

    def _connection_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._end.close()
            if self._streams is not None:
                self._streams.lost(self._end.number)
                self._streams = None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fill(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Pass bytes to a protocol that has its own buffer.

    Raises:
        RuntimeError: For an empty buffer.
    """
    left = memoryview(data)
    while left:
        buffer = memoryview(protocol.get_buffer(len(left)))
        if not buffer:
            raise RuntimeError("get_buffer() returned an empty buffer; return one of at least one byte")
        size = min(len(buffer), len(left))
        buffer[:size] = left[:size]
        protocol.buffer_updated(size)
        left = left[size:]
