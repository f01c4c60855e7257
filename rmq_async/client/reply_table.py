"""Replies that brokers push to this client (326), on their way to the calls that wait for them.

A reply finds its call by its CORRELATION_ID, over whichever connection it comes. A broker waits for the answer, and tells whoever
replied of it: like Java's client this one says SUCCESS also to a reply that nobody waits for any more.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic, time
from typing import Final, NamedTuple

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import PropertyName, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.headers import ReplyMessageRequestHeader, from_ext
from rmq_protocol.properties import decode_properties

from ..transport import Connection
from .text import printable

__all__ = ["PushedReply", "ReplyTable"]

logger = logging.getLogger(__name__)

MISSED_FOR: Final = 5.0
"""Seconds for which a reply topic whose route could not be had is not asked for again."""
MOST_MISSED: Final = 1000


class PushedReply(NamedTuple):
    """A reply as it came: ``body`` is not decompressed. ``properties``: those of the message, ARRIVE_TIME added."""

    header: ReplyMessageRequestHeader
    properties: dict[str, str]
    body: bytes


class ReplyTable:
    """The calls of one client instance that wait for a reply. Whoever enters a call takes it out again."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[PushedReply]] = {}
        self.strays = 0
        """Replies that nobody waited for: they came too late, or twice."""
        self._missed: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, correlation_id: str) -> asyncio.Future[PushedReply]:
        """A future of the reply to what will be sent under this id."""
        future: asyncio.Future[PushedReply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def miss(self, topic: str) -> None:
        """The route of this reply topic could not be had; for a moment nobody needs to wait for it."""
        if len(self._missed) >= MOST_MISSED:
            self._missed.clear()
        self._missed[topic] = monotonic() + MISSED_FOR

    def is_missed(self, topic: str) -> bool:
        return self._missed.get(topic, 0.0) > monotonic()

    def serve(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answers PUSH_REPLY_MESSAGE_TO_CLIENT."""
        try:
            header = from_ext(ReplyMessageRequestHeader, command.ext_fields)
        except RemoteProtocolError as error:
            logger.debug("%s pushes a reply that cannot be read: %s", connection.address, printable(error))
            return make_response(command, ResponseCode.SYSTEM_ERROR, "process reply message fail")
        properties = decode_properties(header.properties or "")
        future = self._waiting.get(properties.get(PropertyName.CORRELATION_ID, ""))
        if future is None or future.done():
            self._stray(connection)
        else:
            properties[PropertyName.ARRIVE_TIME.value] = str(int(time() * 1000))
            future.set_result(PushedReply(header, properties, command.body))
        return make_response(command, ResponseCode.SUCCESS, None)

    def _stray(self, connection: Connection) -> None:
        self.strays += 1
        if self.strays & (self.strays - 1) == 0:
            logger.info("%s: %d replies that no call waits for any more (dropped)", connection.address, self.strays)
