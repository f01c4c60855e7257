"""One-way control requests, which are written once and get no response."""

from __future__ import annotations

from typing import Final

import msgspec

from rmq_protocol.command import RemotingCommand, encode_command
from rmq_protocol.constants import ONEWAY_FLAG

from .connection import Connection
from .loop_errors import report
from .pending import request_name

MAX_UNREAD: Final = 1024 * 1024
"""Control requests are dropped while more than this many bytes wait to be written."""


def send_control(connection: Connection, command: RemotingCommand) -> bool:
    """Send ``command`` one-way and return True. Hooks are called and the request is signed, as for any other request.

    Send nothing and return False if the connection accepts no requests, if more than MAX_UNREAD bytes wait to be written, or if
    preparing the request raises an error, which is reported to the loop's exception handler.
    """
    if not connection.is_open or connection.buffered_bytes > MAX_UNREAD:
        return False
    command, hooked = msgspec.structs.replace(command, flag=command.flag | ONEWAY_FLAG), None
    requests = connection.requests
    try:
        if connection.hooks.active:
            hooked = connection.hooks.hooked(connection.address, command)
            command = hooked.command
            requests.require_open()  # a hook may have closed the connection
        command = msgspec.structs.replace(command, opaque=requests.next_opaque())
        requests.submit_oneway(encode_command(command, connection.serialize_type), _ignore, 0)
    except Exception as error:  # noqa: BLE001 - reported; the caller has no use for it
        if hooked is not None:
            hooked.finish(None, error)
        report(f"{request_name(command.code)} to {connection.address} could not be sent", error)
        return False
    if hooked is not None:
        hooked.finish(None, None)
    return True


def _ignore(cost: int) -> None:
    """Do nothing. Senders of messages need the callback to count unwritten bytes; control requests are not counted."""
