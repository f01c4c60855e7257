"""Requests from brokers that concern one consumer group of this client, and the listeners that handle them.

Group names include their namespaces, as on the wire. For a group without a listener, the response is the same as from Java's
client.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final, Protocol

from rmq_protocol.bodies import GetConsumerStatusBody, encode_body
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode

from .._text import printable
from ..errors import ConfigError
from ..transport import Connection, RequestHandler, report

logger = logging.getLogger(__name__)

_GROUP_FIELDS: Final = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: "consumerGroup",
}


class GroupListener(Protocol):
    """A member of a group, to which requests are passed. Its methods are plain functions that run between two reads of a
    connection, so they must not block.
    """

    def members_changed(self) -> None:
        """Handle NOTIFY_CONSUMER_IDS_CHANGED: the members of the group have changed."""

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Return the response to RESET_CONSUMER_CLIENT_OFFSET, GET_CONSUMER_STATUS_FROM_CLIENT, GET_CONSUMER_RUNNING_INFO or
        CONSUME_MESSAGE_DIRECTLY.

        Alternatively, return an awaitable of the response, which is cancelled when the connection closes, or None to send no
        response.
        """


class GroupRequests:
    """The listeners of one client instance, by group."""

    def __init__(self) -> None:
        self._listeners: dict[str, GroupListener] = {}

    def handlers(self) -> dict[int, RequestHandler]:
        """Return the handlers of requests that concern groups, by request code."""
        notify = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        return {code: self._notify if code == notify else self._serve for code in _GROUP_FIELDS}

    def add(self, group: str, listener: GroupListener) -> None:
        """Add the listener of a group.

        Raises:
            ConfigError: If the group already has a listener.
        """
        if group in self._listeners:
            raise ConfigError(
                f"consumer group {group} is already in use by this client; share that consumer, or set another instance_name"
            )
        self._listeners[group] = listener

    def remove(self, group: str) -> None:
        self._listeners.pop(group, None)

    def _notify(self, connection: Connection, command: RemotingCommand) -> None:
        """Notify the listener of the group, or all listeners if the notice names no group."""
        group = _group_of(command)
        listener = self._listeners.get(group)
        if group and listener is None:
            logger.debug("%s: members of group %s changed; no consumer here uses it", connection.address, printable(group))
            return
        for each in tuple(self._listeners.values()) if listener is None else (listener,):
            try:
                each.members_changed()
            except Exception as error:  # noqa: BLE001 - the other listeners must be notified too
                report(f"handling the notice of {connection.address} about group members failed", error)

    def _serve(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        group = _group_of(command)
        listener = self._listeners.get(group)
        return _unserved(command, group) if listener is None else listener.serve(command)


def _group_of(command: RemotingCommand) -> str:
    return (command.ext_fields or {}).get(_GROUP_FIELDS[RequestCode(command.code)]) or ""


def _unserved(command: RemotingCommand, group: str) -> RemotingCommand | None:
    """Return the response for a group without a listener, as Java's ``ClientRemotingProcessor`` does."""
    if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        return None
    if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
        body = encode_body(GetConsumerStatusBody(), standard=False)
        return make_response(command, ResponseCode.SUCCESS, None, None, body)
    remark = f"The Consumer Group <{printable(group)}> not exist in this consumer"
    return make_response(command, ResponseCode.SYSTEM_ERROR, remark)
