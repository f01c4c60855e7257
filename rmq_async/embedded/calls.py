"""Sends requests of a broker to its clients. A request is one-way, or its response is passed to a callback.

The number of pending requests is limited per connection and in total. Each request ends at the latest when its timeout expires
or its connection ends. A client that does not read earlier frames gets no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import ONEWAY_FLAG

from .server import Connection
from .tables import drop

CALL_TIMEOUT: Final = 10.0
"""Seconds that a client has for its response (``Broker2Client.callClient``)."""
MAX_CALLS: Final = 8192
MAX_CALLS_PER_CONNECTION: Final = 1024


class Failure(Enum):
    """The reason why a call has no response."""

    NOT_SENT = "the connection is closed or its peer does not read, or too many requests are pending"
    TIMEOUT = "no response in time"
    DISCONNECTED = "the connection was closed before the response"


OnAnswer = Callable[[RemotingCommand | Failure], None]


class _Call(NamedTuple):
    connection: Connection
    on_answer: OnAnswer
    timer: asyncio.TimerHandle


class ClientCalls:
    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._by_connection: dict[Connection, dict[int, None]] = {}
        self._opaque = 0

    def __len__(self) -> int:
        return len(self._calls)

    def oneway(self, connection: Connection, code: int, ext_fields: Mapping[str, str | None], body: bytes = b"") -> bool:
        """Send a one-way request. Return whether it was sent.

        Raises:
            ProtocolError: For values that cannot be encoded.
        """
        if connection.closed or connection.congested:
            return False
        connection.send(encode_command(self._command(code, ext_fields, body, ONEWAY_FLAG)))
        return True

    def call(
        self, connection: Connection, code: int, ext_fields: Mapping[str, str | None], body: bytes, on_answer: OnAnswer
    ) -> None:
        """Send a request to a client.

        ``on_answer`` is called at most once: before this method returns if no request is sent, and otherwise when the response
        arrives, the connection ends, or the time is over.

        Raises:
            ProtocolError: For values that cannot be encoded.
        """
        own = self._by_connection.get(connection, {})
        if connection.closed or connection.congested or len(self._calls) >= MAX_CALLS or len(own) >= MAX_CALLS_PER_CONNECTION:
            on_answer(Failure.NOT_SENT)
            return
        command = self._command(code, ext_fields, body, 0)
        parts = encode_command(command)
        timer = asyncio.get_running_loop().call_later(CALL_TIMEOUT, self._end, command.opaque, Failure.TIMEOUT)
        self._calls[command.opaque] = _Call(connection, on_answer, timer)
        self._by_connection.setdefault(connection, own)[command.opaque] = None
        connection.send(parts)

    def answered(self, connection: Connection, response: RemotingCommand) -> None:
        """Pass a response to its pending call. Drop the response if it belongs to no call on this connection."""
        call = self._calls.get(response.opaque)
        if call is not None and call.connection is connection:
            self._end(response.opaque, response)

    def disconnected(self, connection: Connection) -> None:
        for opaque in list(self._by_connection.get(connection, ())):
            self._end(opaque, Failure.DISCONNECTED)

    def close(self) -> None:
        """Drop all pending calls without calling their callbacks."""
        for call in self._calls.values():
            call.timer.cancel()
        self._calls.clear()
        self._by_connection.clear()

    def _command(self, code: int, ext_fields: Mapping[str, str | None], body: bytes, flag: int) -> RemotingCommand:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return RemotingCommand(code=code, opaque=self._opaque, flag=flag, ext_fields=dict(ext_fields), body=body)

    def _end(self, opaque: int, answer: RemotingCommand | Failure) -> None:
        call = self._calls.pop(opaque)
        call.timer.cancel()
        drop(self._by_connection, call.connection, opaque)
        call.on_answer(answer)
