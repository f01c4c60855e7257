"""Requests that a server sends to this client, and the responses to them."""

from __future__ import annotations

from collections.abc import Callable

from rmq_protocol.command import RemotingCommand, encode_command, make_response
from rmq_protocol.constants import ResponseCode, SerializeType

from .loop_errors import report
from .pending import request_name

__all__ = ["not_supported", "response_frame"]


def response_frame(
    command: RemotingCommand,
    handler: Callable[[RemotingCommand], RemotingCommand | None],
    address: str,
    serialize_type: SerializeType,
) -> list[bytes] | None:
    """Returns the frame of the handler's response; None for no response, and for a one-way request.

    A handler that raises is reported to the loop's exception handler, and the server gets SYSTEM_ERROR.
    """
    try:
        response = handler(command)
        if response is None or command.is_oneway:
            return None
        return encode_command(response, serialize_type)
    except Exception as error:  # noqa: BLE001 - a bug of the handler must not close the connection
        report(f"handler of {request_name(command.code)} from {address} raised", error)
        if command.is_oneway:
            return None
        return encode_command(make_response(command, ResponseCode.SYSTEM_ERROR, type(error).__name__), serialize_type)


def not_supported(command: RemotingCommand) -> RemotingCommand:
    """Returns the response of a RocketMQ peer to a request code it does not know (``NettyRemotingAbstract``)."""
    return make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
