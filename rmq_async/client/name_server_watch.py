"""Sends requests to the name servers while they seem unreachable, so that ``health()`` soon reports that, and soon reports
their return.

Without the watch, only the polls of the routes would show that, every ``route_poll_interval``. It begins when a connection to a
name server is lost, or no name server has answered a request, and ends when one has answered and its connection is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

from .. import machine
from .._backoff import Backoff
from .._text import printable
from ..errors import NameServerError
from .name_servers import NameServers

__all__ = ["NameServerWatch"]

logger = logging.getLogger(__name__)

FIRST: Final = 1.0
"""Maximum seconds from the loss of a connection to the first request; the time is drawn between half of it and all of it, so
that the clients of one server do not send together."""
LONGEST: Final = 8.0
"""Maximum seconds between two requests."""


class NameServerWatch:
    """The watch over the connections to name servers.

    Args:
        ask: Sends one request to the name servers, and raises NameServerError where none answers.
    """

    def __init__(self, name_servers: NameServers, ask: Callable[[], Awaitable[object]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._name_servers = name_servers
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None
        self._closed = False
        name_servers.on_failure = self.begin

    def lost(self, address: str) -> None:
        """Start the requests if ``address``, to which a connection broke, is that of a name server."""
        if address in self._name_servers.addresses:
            self.begin()

    def begin(self) -> None:
        """Start the requests unless they run.

        Do nothing before the first answer of any name server: ``ClusterProbe`` then sends requests.
        """
        if self._asking is None and self._name_servers.answered.is_set() and not self._closed:
            self._asking = self._loop.create_task(self._run(), name="rmq_async name servers", context=Context())

    def close(self) -> list[asyncio.Task[object]]:
        """Cancel the requests, without awaiting; return the task that has not ended yet, if there is one."""
        self._closed = True
        if self._asking is None:
            return []
        self._asking.cancel()
        return [self._asking]

    async def _run(self) -> None:
        pauses = Backoff(FIRST, LONGEST)
        try:
            await asyncio.sleep(FIRST * machine.random.uniform(0.5, 1.0))
            while not self._name_servers.is_well:
                await self._name_servers.look_again(FIRST)  # a connection to where they led may be open, and silent
                try:
                    await self._ask()
                except NameServerError as error:
                    logger.debug("still no name server: %s", printable(error, 1000))
                if not self._name_servers.is_well:  # also where one has answered and was lost again
                    await asyncio.sleep(pauses.next())
        finally:
            self._asking = None
