"""Requests that a server sends to this client, and the responses to them.

A handler returns a response or an awaitable of a response. A response is written without a task. An awaitable is awaited in a task
of its own, which is cancelled when the connection closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Final

from rmq_protocol.command import RemotingCommand, encode_command, make_response
from rmq_protocol.constants import ResponseCode, SerializeType

from .._ordered import OrderedSet
from .._text import is_power_of_two
from .loop_errors import report
from .pending import request_name

logger = logging.getLogger("rmq_async.transport")

MAX_ANSWERING: Final = 32
"""Maximum number of awaitables that run at a time for the requests of one connection."""


class Answering:
    """The requests of one server whose handlers returned awaitables.

    Args:
        respond: Writes a response if the connection is open.
    """

    def __init__(self, address: str, respond: Callable[[RemotingCommand, RemotingCommand], None]) -> None:
        self.tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self.refused = 0
        """Number of requests that were refused because too many others were being answered."""
        self._address = address
        self._respond = respond

    def start(self, command: RemotingCommand, response: Awaitable[RemotingCommand | None]) -> None:
        """Respond when the awaitable is done. If MAX_ANSWERING other awaitables run, respond immediately with SYSTEM_BUSY."""
        if len(self.tasks) >= MAX_ANSWERING:
            discard(response)
            self._refuse(command)
            return
        name = f"rmq_async answer {request_name(command.code)} {self._address}"
        task = asyncio.get_running_loop().create_task(self._answer(command, response), name=name, context=Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def cancel(self) -> None:
        for task in tuple(self.tasks):
            task.cancel()

    async def _answer(self, command: RemotingCommand, awaitable: Awaitable[RemotingCommand | None]) -> None:
        try:
            response = await awaitable
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            response = failed(command, self._address, error)
        except Exception as error:  # noqa: BLE001 - a bug of the handler must not close the connection
            response = failed(command, self._address, error)
        if response is not None:
            self._respond(command, response)

    def _refuse(self, command: RemotingCommand) -> None:
        self.refused += 1
        if is_power_of_two(self.refused):
            name = request_name(command.code)
            text = "%s: %d requests of this server are being answered, so %s is refused (SYSTEM_BUSY); check for handlers that hang"
            logger.warning(text, self._address, MAX_ANSWERING, name)
        remark = f"[OVERLOAD]system busy, {MAX_ANSWERING} requests are being answered"
        self._respond(command, make_response(command, ResponseCode.SYSTEM_BUSY, remark))


def discard(awaitable: Awaitable[object]) -> None:
    """Close a coroutine or cancel a future that nothing will await, so that Python does not warn about it."""
    if isinstance(awaitable, Coroutine):
        awaitable.close()
    elif isinstance(awaitable, asyncio.Future):
        awaitable.cancel()


def response_frame(
    command: RemotingCommand, response: RemotingCommand, address: str, serialize_type: SerializeType
) -> list[bytes]:
    """Return the frame of the response that a handler returned.

    If the response cannot be encoded, report the error and return the frame of a SYSTEM_ERROR response.
    """
    try:
        return encode_command(response, serialize_type)
    except Exception as error:  # noqa: BLE001 - a bug of the handler must not close the connection
        return encode_command(failed(command, address, error), serialize_type)


def failed(command: RemotingCommand, address: str, error: BaseException) -> RemotingCommand:
    """Report the error of a handler to the loop's exception handler, and return a SYSTEM_ERROR response for the server."""
    report(f"handler of {request_name(command.code)} from {address} raised", error)
    return make_response(command, ResponseCode.SYSTEM_ERROR, type(error).__name__)


def not_supported(command: RemotingCommand) -> RemotingCommand:
    """Return the response of a RocketMQ peer to an unknown request code (``NettyRemotingAbstract``)."""
    return make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
