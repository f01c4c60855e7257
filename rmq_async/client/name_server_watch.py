"""Sends requests to the name servers when they seem unreachable, so that ``health()`` soon reports that, and soon reports
their return.

Without it, only the polls of routes ask them, one each 30 s. It begins when a connection to a name server is lost, or a request has
had no answer from any of them, and ends with the first answer.
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
"""Seconds from the loss of a connection to the first request, or half of that: clients of one server do not ask together."""
LONGEST: Final = 8.0


class NameServerWatch:
    """The watch over the connections to name servers.

    ``ask``: sends one request to the name servers, and raises NameServerError where none answers.
    """

    def __init__(self, name_servers: NameServers, ask: Callable[[], Awaitable[object]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._name_servers = name_servers
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None
        self._closed = False
        name_servers.on_failure = self.begin

    def lost(self, address: str) -> None:
        """Starts the requests, because a connection was lost that this client has not closed."""
        if address in self._name_servers.addresses:
            self.begin()

    def begin(self) -> None:
        """Asks until one has answered; before the first answer of all, others do that."""
        if self._asking is None and self._name_servers.answered.is_set() and not self._closed:
            self._asking = self._loop.create_task(self._run(), name="rmq_async name servers", context=Context())

    def close(self) -> list[asyncio.Task[object]]:
        """Ends, without awaiting; returns the task that has not ended yet."""
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
                try:
                    await self._ask()
                except NameServerError as error:
                    logger.debug("still no name server: %s", printable(error, 1000))
                if not self._name_servers.is_well:  # also where one has answered and was lost again
                    await asyncio.sleep(pauses.next())
        finally:
            self._asking = None
