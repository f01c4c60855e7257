"""Former connections to a broker: when the broker notices the end of one, it removes the client's id.

A broker removes the id of a client when a connection ends on which the client sent a heartbeat, even if the client uses a new
connection by then. It notices a FIN or RST at once. If a connection fell silent, for example because the client's address has
changed, neither arrives: the broker closes the connection after 120 s without reads and writes (``IdleStateHandler(0, 0, 120)`` of
``NettyRemotingServer``). It writes until the client sends a heartbeat on its new connection: replies and notices to the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from .. import machine
from .._ordered import OrderedSet
from ..transport import CloseReason, Connection

__all__ = ["FormerConnections"]

NOTICED: Final = 0.5
"""Seconds after which a broker has noticed the end of a former connection."""
SILENT: Final = 120.5
"""The broker closes a silent connection at the earliest so many seconds after the last heartbeat on it."""
SILENT_UNTIL: Final = 155.5
"""A broker that writes nothing more closes it at the latest so many seconds after that heartbeat: other requests can have followed
for 30 s, until the next heartbeat was due."""
REPLACED_UNTIL: Final = 130.5
"""The broker closes it at the latest so many seconds after the first heartbeat that it has answered on a newer connection."""
AGAIN: Final = 5.0
"""Seconds between two calls of ``forgotten`` from ``SILENT`` on until the connection is closed in any case."""
MOST_UNREPLACED: Final = 256
"""Maximum number of addresses that are kept: one at which no broker is any more never answers again."""

_SILENT: Final = frozenset({CloseReason.DEAD, CloseReason.RESET, CloseReason.NOT_READING})


class FormerConnections:
    """The former connections to brokers, whose end removes the client's id there.

    Args:
        forgotten: Called when the broker may have forgotten the client.
    """

    def __init__(self, forgotten: Callable[[str], None]) -> None:
        self._forgotten = forgotten
        self._timers: OrderedSet[asyncio.TimerHandle] = OrderedSet()
        self._doubted: dict[str, float] = {}
        """Addresses of brokers that may close a silent connection, and until when."""
        self._unreplaced: dict[str, None] = {}
        """Addresses of brokers that have answered no heartbeat since a connection to them fell silent."""
        self._closed = False

    def add(self, connection: Connection, last_heartbeat: float) -> None:
        """Add a connection that takes no more requests.

        Args:
            last_heartbeat: When (monotonic) the last heartbeat that the broker answered was sent on it; if none was answered,
                when the last one was sent.
        """
        connection.closed.add_done_callback(partial(self._over, connection.address))
        if connection.close_reason in _SILENT:
            while len(self._unreplaced) >= MOST_UNREPLACED:
                del self._unreplaced[next(iter(self._unreplaced))]
            self._unreplaced[connection.address] = None
            self._doubt(connection.address, last_heartbeat + SILENT_UNTIL, SILENT_UNTIL - SILENT)

    def answered(self, address: str) -> None:
        """Count a heartbeat that a broker has answered on its present connection: from now on it writes nothing more to a
        silent one.
        """
        if address in self._unreplaced:
            del self._unreplaced[address]
            self._doubt(address, machine.monotonic() + REPLACED_UNTIL, REPLACED_UNTIL)

    def close(self) -> None:
        """Cancel all timers."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _over(self, address: str, _: object) -> None:
        self._after(NOTICED, partial(self._forgotten, address))

    def _doubt(self, address: str, until: float, seconds: float) -> None:
        """Call ``forgotten`` every ``AGAIN`` seconds in the last ``seconds`` before ``until``.

        Calls that are scheduled for the address already go on until then instead, or longer.
        """
        if (known := self._doubted.get(address)) is not None:
            self._doubted[address] = max(known, until)
        elif (left := until - machine.monotonic()) > 0:
            self._doubted[address] = until
            self._after(max(left - seconds, AGAIN), partial(self._doubtful, address))

    def _doubtful(self, address: str) -> None:
        self._forgotten(address)
        if self._doubted[address] - machine.monotonic() > AGAIN:
            self._after(AGAIN, partial(self._doubtful, address))
        else:
            del self._doubted[address]

    def _after(self, seconds: float, call: Callable[[], object]) -> None:
        if self._closed:
            return

        def fire() -> None:
            self._timers.discard(timer)
            call()

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)
