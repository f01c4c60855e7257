"""Determines whether a broker has stored a message when it responds that it has too few in-sync replicas.

Two kinds of brokers respond to a send with "in-sync replicas not enough". With DLedger, the leader has stored the message by then,
and its followers may have stored it (``DLedgerCommitLog.asyncPutMessage``). Without DLedger, for example in controller mode, the
broker counts the in-sync replicas before it stores a message (``CommitLog.asyncPutMessage``). Only the broker's configuration shows
which kind it is. The configuration is requested after the first such response.
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
    """Asks brokers for their configuration, once for each connection, because a broker may restart with another configuration."""

    def __init__(self, request_timeout: float) -> None:
        self._timeout = request_timeout
        self._asking: SingleFlight[None] = SingleFlight("replication at")

    @staticmethod
    def counts_first(connection: Connection) -> bool | None:
        """Return whether the broker is known to count its replicas before it stores a message. Return None if it was not asked."""
        known: bool | None = connection.attributes.get(Replication)
        return known

    async def learn(self, connection: Connection, deadline: float) -> None:
        """Request the broker's configuration, and wait for it at most until ``deadline`` (monotonic).

        If there is no response in time, ``counts_first`` still returns None afterwards. If the response does not contain the
        setting, it returns False, because the user may not be permitted to read the configuration.
        """
        if self.counts_first(connection) is None:
            with suppress(TimeoutError, ClientStateError):
                await self._asking.join(connection, lambda: self._ask(connection), deadline)

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel the requests and return their tasks, which need one more iteration of the loop to end."""
        return self._asking.close()

    async def _ask(self, connection: Connection) -> None:
        try:
            response = await connection.request(RemotingCommand(code=RequestCode.GET_BROKER_CONFIG), self._timeout)
        except RocketMQError:
            return  # the connection closed, or the broker is silent: the next such response asks again
        shown = response.code == ResponseCode.SUCCESS and _WITHOUT_DLEDGER.search(response.body) is not None
        connection.attributes[Replication] = shown
