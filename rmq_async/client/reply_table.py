"""Replies that brokers push to this client (326), and the calls that wait for them.

The property CORRELATION_ID of a reply identifies the call, on any connection. The broker waits for the client's response and passes
its code on to the replier. Like Java's client, this client responds with SUCCESS even if no call waits for the reply. Brokers push
replies to the connection that was last registered under a client id. Therefore, if two processes have the same client id, one of
them gets the replies for the other; the prefix of the correlation id shows for which process a reply is meant.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple
from uuid import UUID

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import PropertyName, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.headers import ReplyMessageRequestHeader, from_ext
from rmq_protocol.properties import decode_properties

from .. import machine
from .._text import is_power_of_two, printable
from ..transport import Connection

logger = logging.getLogger(__name__)

UNROUTED_FOR: Final = 5.0
"""Seconds for which the route of a reply topic is not requested again after a failure."""
MAX_UNROUTED: Final = 1000
MARKED: Final = 13
"""Number of leading characters of a correlation id that are the same in all ids of a client instance."""


class PushedReply(NamedTuple):
    """A reply that a broker has pushed.

    Attributes:
        body: The body, still compressed if it was sent compressed.
        properties: The properties of the message, plus ARRIVE_TIME.
    """

    header: ReplyMessageRequestHeader
    properties: dict[str, str]
    body: bytes


class ReplyTable:
    """The calls of one client instance that wait for a reply.

    A caller of ``expect`` must call ``forget`` with the same id afterwards.

    Attributes:
        client_id: The client id of the instance.
    """

    def __init__(self) -> None:
        self.client_id = ""
        self._mark: int | None = None
        self._waiting: dict[str, asyncio.Future[PushedReply]] = {}
        self.strays = 0
        """Number of replies for which no call was waiting, such as late or repeated replies."""
        self._foreign = 0
        self._unrouted: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def new_id(self) -> str:
        """Return a new correlation id."""
        if self._mark is None:
            self._mark = machine.entropy.getrandbits(48)
        return str(UUID(int=self._mark << 80 | machine.entropy.getrandbits(80), version=4))

    def expect(self, correlation_id: str) -> asyncio.Future[PushedReply]:
        """Return a future for the reply to the request with this id."""
        future: asyncio.Future[PushedReply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def mark_unrouted(self, topic: str) -> None:
        """Record that the route of a reply topic was not found, so that calls do not wait for it for UNROUTED_FOR seconds."""
        if len(self._unrouted) >= MAX_UNROUTED:
            self._unrouted.clear()
        self._unrouted[topic] = machine.monotonic() + UNROUTED_FOR

    def is_unrouted(self, topic: str) -> bool:
        return self._unrouted.get(topic, 0.0) > machine.monotonic()

    def serve(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Handle PUSH_REPLY_MESSAGE_TO_CLIENT."""
        try:
            header = from_ext(ReplyMessageRequestHeader, command.ext_fields)
        except RemoteProtocolError as error:
            logger.debug("%s pushed a reply that cannot be read: %s", connection.address, printable(error))
            return make_response(command, ResponseCode.SYSTEM_ERROR, "process reply message fail")
        properties = decode_properties(header.properties or "")
        correlation_id = properties.get(PropertyName.CORRELATION_ID, "")
        future = self._waiting.get(correlation_id)
        if future is None or future.done():
            self._stray(connection, correlation_id)
        else:
            properties[PropertyName.ARRIVE_TIME.value] = str(int(machine.time() * 1000))
            future.set_result(PushedReply(header, properties, command.body))
        return make_response(command, ResponseCode.SUCCESS, None)

    def _stray(self, connection: Connection, correlation_id: str) -> None:
        self.strays += 1
        if is_power_of_two(self.strays):
            logger.info("%s: dropped %d replies for which no call was waiting", connection.address, self.strays)
        if self._mark is not None and correlation_id[:MARKED] == str(UUID(int=self._mark << 80))[:MARKED]:
            return
        self._foreign += 1
        if is_power_of_two(self._foreign):
            logger.warning(
                "%s: %d replies arrived here for another (or a former) process with the same client id %s, which waits for them in "
                "vain; do not set instance_name, or set a different one in each process",
                connection.address, self._foreign, printable(self.client_id),
            )  # fmt: skip
