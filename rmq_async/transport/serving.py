"""Requests that a server sends to this client: who answers them, and what becomes of a handler that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq_protocol.command import RemotingCommand, encode_command, make_response
from rmq_protocol.constants import ResponseCode

from .escaping import report
from .pending import request_name

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["RequestHandler", "answer_to", "not_supported"]

RequestHandler = Callable[["Connection", RemotingCommand], RemotingCommand | None]
"""Answers a server's request on the connection it came by; None: no answer."""


def answer_to(connection: Connection, command: RemotingCommand, handler: RequestHandler | None) -> list[bytes] | None:
    """The frame to answer with, or None. Without a handler it is REQUEST_CODE_NOT_SUPPORTED, and SYSTEM_ERROR where one raises."""
    try:
        response = handler(connection, command) if handler is not None else not_supported(command)
        if response is None or command.is_oneway:
            return None
        return encode_command(response, connection.serialize_type)
    except Exception as error:  # noqa: BLE001 - a handler's bug must not end the connection; it is reported and answered
        report(f"handler of {request_name(command.code)} from {connection.address} raised", error)
        if command.is_oneway:
            return None
        return encode_command(
            make_response(command, ResponseCode.SYSTEM_ERROR, type(error).__name__), connection.serialize_type
        )


def not_supported(command: RemotingCommand) -> RemotingCommand:
    """What a RocketMQ peer answers to a request code it does not know (``NettyRemotingAbstract``)."""
    return make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
