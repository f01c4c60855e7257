"""Listeners, which hold the connections that a process has not accepted yet, and the server that accepts the connections."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Final

from ..loop import SimulatedLoop
from .stream import End, Place, Wakes
from .transport import SimulatedSocket, SimulatedTransport, Streams

BACKLOG: Final = 100
"""Number of connections that a kernel keeps for a process that does not accept them. Further requests get no response."""
MOST_WAITING: Final = 4 * BACKLOG
"""Number of connections that a kernel keeps if many requests came at once. Further connections are reset."""
Factory = Callable[[], asyncio.BaseProtocol]


class Listener:
    """A port on which a process listens.

    Args:
        accept: A function that is called when connections wait. If the process is paused, it is called after the pause.
    """

    def __init__(self, place: Place, wakes: Wakes, accept: Callable[[], None]) -> None:
        self.place = place
        self.waiting: deque[End] = deque()
        self.closed = False
        self._wakes = wakes
        self._accept = accept

    @property
    def full(self) -> bool:
        return len(self.waiting) >= BACKLOG

    def serves(self, address: str) -> bool:
        """Return whether the listener is bound to ``address``, or to all addresses of the machine."""
        return self.place[0] in ("0.0.0.0", address)  # noqa: S104 - an address to compare with

    def accepted(self, end: End) -> None:
        """Queue an end for the process when its handshake is complete. Reset the end if too many ends wait."""
        if self.closed or len(self.waiting) >= MOST_WAITING:
            end.reset()
        else:
            self.waiting.append(end)
            self._wakes.wake(self._accept)

    def close(self) -> None:
        """Reset the connections that wait for the process. From now on, reset each connection whose handshake completes."""
        self.closed = True
        while self.waiting:
            self.waiting.popleft().reset()


class SimulatedServer(asyncio.AbstractServer):
    """The server that ``create_server`` returns.

    Args:
        ports: The listeners of the machine. They include the server's own listener while the server is open.
    """

    def __init__(self, loop: SimulatedLoop, factory: Factory, place: Place, wakes: Wakes, ports: dict[Place, Listener]) -> None:
        self._loop = loop
        self._factory = factory
        self._ports = ports
        self._context = copy_context()
        self._scheduled = False
        self._streams = Streams(self._look)
        self._socket = SimulatedSocket(place)
        self._waiters: list[asyncio.Future[None]] = []
        self._listener = ports[place] = Listener(place, wakes, self._accept_soon)

    def __repr__(self) -> str:
        return f"<SimulatedServer {self._socket!r}>"

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        """The server's socket. Empty after ``close``."""
        return () if self._listener.closed else (self._socket,)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return not self._listener.closed

    async def start_serving(self) -> None:
        """Do nothing, because the server serves from the beginning."""

    async def serve_forever(self) -> None:
        """Serve until the caller is cancelled, and then close the server.

        Raises:
            RuntimeError: If the server is closed.
        """
        if self._listener.closed:
            raise RuntimeError(f"server {self!r} is closed; make a new one by create_server()")
        try:
            await self._loop.create_future()
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening. Accepted connections continue."""
        if not self._listener.closed and not self._loop.dead:
            self._ports.pop(self._listener.place, None)
            self._listener.close()
            self._look()

    def close_clients(self) -> None:
        for transport in list(self._streams.transports.values()):
            transport.close()

    def abort_clients(self) -> None:
        for transport in list(self._streams.transports.values()):
            transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the server is closed and its connections have ended, as asyncio's servers do from Python 3.12.1 on."""
        if not self._listener.closed or self._streams.transports:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _look(self) -> None:
        if self._listener.closed and not self._streams.transports:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _accept_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._accept, context=self._context)

    def _accept(self) -> None:
        self._scheduled = False
        waiting = self._listener.waiting
        while waiting:
            end = waiting.popleft()
            try:
                protocol = self._factory()
            except Exception as error:  # noqa: BLE001 - of the factory, as asyncio does
                end.reset()
                self._loop.call_exception_handler(
                    {"message": "Error on transport creation for incoming connection", "exception": error}
                )
            else:
                SimulatedTransport(self._loop, end, protocol, self._streams)
