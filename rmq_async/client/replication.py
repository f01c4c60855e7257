"""Learns whether a broker counts its replicas before it stores a message, or has stored it when it answers that they are too few.

To a send, both answer "in-sync replicas not enough". With DLedger the leader has the message by then, and its followers may have it
(``DLedgerCommitLog.asyncPutMessage``). Without, as in controller mode, the broker counts the in-sync replicas first
(``CommitLog.asyncPutMessage``). Only its configuration distinguishes them, which is requested after the first such answer.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode

from .._asyncio import SingleFlight
from ..errors import ClientStateError, RocketMQError
from ..transport import Connection

_WITHOUT_DLEDGER: Final = re.compile(rb"^\s*enableDLegerCommitLog\s*=\s*false\s*$", re.MULTILINE)


class Replication:
    """The brokers that were asked, by connection, since a broker may come back with another configuration."""

    def __init__(self, request_timeout: float) -> None:
        self._timeout = request_timeout
        self._asking: SingleFlight[None] = SingleFlight("replication at")

    @staticmethod
    def counts_first(connection: Connection) -> bool | None:
        """Return whether the broker is known to count its replicas before it stores a message; None if it was not asked."""
        known: bool | None = connection.attributes.get(Replication)
        return known

    async def learn(self, connection: Connection, deadline: float) -> None:
        """Ask the broker, at most until ``deadline`` (monotonic).

        Without an answer in time nothing is learned; an answer that does not show it counts as False, since the user may not be
        permitted to read the configuration.
        """
        if self.counts_first(connection) is None:
            with suppress(TimeoutError, ClientStateError):
                await self._asking.join(connection, lambda: self._ask(connection), deadline)

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel the requests; return their tasks, which end later."""
        return self._asking.close()

    async def _ask(self, connection: Connection) -> None:
        try:
            response = await connection.request(RemotingCommand(code=RequestCode.GET_BROKER_CONFIG), self._timeout)
        except RocketMQError:
            return  # the connection closed, or the broker is silent: it is asked again after the next such answer
        shown = response.code == ResponseCode.SUCCESS and _WITHOUT_DLEDGER.search(response.body) is not None
        connection.attributes[Replication] = shown
