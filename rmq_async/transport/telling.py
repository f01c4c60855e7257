"""One-way requests of control: written once, and not heard of again."""

from __future__ import annotations

from typing import Final

import msgspec

from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import ONEWAY_FLAG

from .connection import Connection
from .escaping import report

__all__ = ["MOST_UNREAD", "tell"]

MOST_UNREAD: Final = 1024 * 1024
"""Bytes that a peer has not taken yet, beyond which it is told nothing more."""


def tell(connection: Connection, command: RemotingCommand) -> bool:
    """Sends ``command`` one-way, by all hooks and signed as any request.

    False, with nothing sent, where the connection is closed, its peer does not read, or the command cannot be written; what is
    wrong with it goes to the loop's exception handler.
    """
    if not connection.is_open or connection.buffered_bytes > MOST_UNREAD:
        return False
    command, passed = msgspec.structs.replace(command, flag=command.flag | ONEWAY_FLAG), None
    try:
        if connection.hooks.active:
            passed = connection.hooks.passed(connection.address, command)
            command = passed.command
            connection.require_open()  # hooks may have closed it
        command = msgspec.structs.replace(command, opaque=connection.next_opaque())
        connection.submit_oneway(encode_command(command, connection.serialize_type), _written, 0)
    except Exception as error:  # noqa: BLE001 - reported; who tells something waits for nothing and has more to do
        if passed is not None:
            passed.tell(None, error)
        report(f"{connection.address} could not be told request {command.code}", error)
        return False
    if passed is not None:
        passed.tell(None, None)
    return True


def _written(cost: int) -> None:
    """Nobody waits for it."""
