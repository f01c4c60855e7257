"""Serves requests, for both name servers and brokers, with one handler per request code.

A handler returns the response, or None if there is no response (yet), for example for a held pull, or it raises ``Refused``.
Every other error becomes a response with code 1, as in the reference servers. A frame with an invalid header closes the
connection.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from rmq_protocol.command import RemotingCommand, decode_command, encode_command, make_response
from rmq_protocol.constants import STORED_CODES, RequestCode, ResponseCode
from rmq_protocol.errors import ProtocolError, RemoteProtocolError
from rmq_protocol.frame import Frame
from rmq_protocol.headers import REQUEST_HEADERS, Header, from_ext, to_ext

from .faults import FailureScript
from .server import Connection, Listener, Parts

logger = logging.getLogger("rmq_async.embedded")

Handler = Callable[[Connection, RemotingCommand], RemotingCommand | None]
ExtFields = dict[str, str | None]
Reply = Callable[[Connection, RemotingCommand, RemotingCommand], None]
"""A function that takes a connection, a request and its response, and sends the response to a request that was held."""

STORED_WITH_A_FLAW: Final = STORED_CODES - {ResponseCode.SUCCESS}
"""Response codes of sends whose message was stored nevertheless."""
MAX_CODES: Final = 1024
NO_REMARK: Final = "not set any response code"
"""The remark with which Java's broker creates its responses. Some responses to requests that are not refused keep it."""
SENDS: Final = frozenset({int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)})

H = TypeVar("H", bound=Header)
Method = TypeVar("Method", bound=Callable[..., RemotingCommand | None])


class Refused(Exception):  # noqa: N818 - an answer, not a failure of ours
    """Raised by a handler to respond with ``code``, ``remark`` and optional extFields."""

    def __init__(self, code: int, remark: str, ext_fields: ExtFields | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields


def header_of(cls: type[H], command: RemotingCommand) -> H:
    """Return the request's custom header.

    Raises:
        Refused: With code 1 and a remark that names the field that is missing or unreadable.
    """
    try:
        return from_ext(cls, command.ext_fields)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None


def fields_of(header: Header) -> ExtFields:
    """Return the extFields of a response with this custom header."""
    return {**to_ext(header)}


def without_content(command: RemotingCommand) -> RemotingCommand:
    """Return the part of a request that a later response needs. Waiting requests thus take little memory."""
    return RemotingCommand(code=command.code, opaque=command.opaque, flag=command.flag, version=command.version)


def not_supported(command: RemotingCommand) -> RemotingCommand:
    """Return the response (3) to a request that is not served."""
    return make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")


def handles(*codes: RequestCode) -> Callable[[Method], Method]:
    """Mark a method of a ``Processor`` as the handler of the requests with these codes."""

    def marked(method: Method) -> Method:
        method.__dict__["codes"] = codes
        return method

    return marked


class Processor:
    """A set of request handlers, which are the methods that ``handles`` marks."""

    def handlers(self) -> dict[int, Handler]:
        methods = vars(type(self)).items()
        return {code: getattr(self, name) for name, method in methods for code in getattr(method, "codes", ())}


class BaseService:
    """The common base of name servers and brokers.

    ``requests`` counts the received requests by code, including refused and failed requests. Requests with unknown codes are
    counted only while fewer than ``MAX_CODES`` codes have been counted.
    """

    named_failures_only = False
    """Whether only failures that were added for a request code apply. If False, failures for any request apply too."""

    def __init__(self, name: str, failures: FailureScript | None = None) -> None:
        self.name = name
        self.listener = Listener(name, self)
        self.requests: Counter[int] = Counter()
        self.failures = FailureScript() if failures is None else failures
        self.handlers: dict[int, Handler] = {}

    async def start(self, host: str, port: int) -> None:
        """Start the listener. Raise the errors of ``Listener.start``."""
        await self.listener.start(host, port)

    async def stop(self) -> None:
        """Close all sockets and connections. Do nothing if the service is not running."""
        await self.listener.stop()

    def crash(self) -> None:
        """End the service as a kill of its process does. Do not start the service again; create a new object instead."""
        self.listener.crash()

    def serve(self, connection: Connection, frame: Frame) -> Parts | None:
        """Serve a frame as ``server.Service`` describes.

        Raises:
            ProtocolError: For a frame with an invalid header.
        """
        command = decode_command(frame)
        if command.is_response:
            self.answered(connection, command)
            return None
        if command.code in self.handlers or len(self.requests) < MAX_CODES:
            self.requests[command.code] += 1
        response = self.respond(connection, command)
        if response is None or command.is_oneway or (self.failures.pending and self.failures.takes_answer(command.code)):
            return None
        return self.encode(command, response)

    def respond(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        failure = self.failures.take(command.code, named_only=self.named_failures_only) if self.failures.pending else None
        flawed = failure in STORED_WITH_A_FLAW and command.code in SENDS
        if failure is not None and not flawed:
            return make_response(command, failure, "injected failure")
        handler = self.handlers.get(command.code)
        if handler is None:
            return not_supported(command)
        try:
            response = handler(connection, command)
        except Refused as refusal:
            return make_response(command, refusal.code, refusal.remark, refusal.ext_fields)
        except ProtocolError as error:
            return make_response(command, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:  # a defect in one handler must not end the server for all clients
            logger.exception("%s: request %d of %s failed, the response is code 1", self.name, command.code, connection.remote)
            return make_response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if flawed and response is not None and response.code == ResponseCode.SUCCESS:
            assert failure is not None
            response.code = failure
        return response

    def encode(self, command: RemotingCommand, response: RemotingCommand) -> Parts:
        """Encode a response. A response that cannot be encoded, for example because of lone surrogates in its remark, is
        replaced by a response with code 1.
        """
        try:
            return encode_command(response)
        except ProtocolError as error:
            logger.warning("%s: response to request %d replaced by code 1: %s", self.name, command.code, error)
            return encode_command(make_response(command, ResponseCode.SYSTEM_ERROR, "the response cannot be encoded"))

    def answered(self, connection: Connection, response: RemotingCommand) -> None:
        """Drop a response, because this service sends no requests."""

    def disconnected(self, connection: Connection) -> None:
        """Do nothing, because this service has no state per connection."""

    def resumed(self, connection: Connection) -> None:
        """Do nothing, because no requests wait for the connection."""

    def tick(self) -> None:
        """Do nothing, because this service has no periodic work."""


assert set(REQUEST_HEADERS) >= SENDS
