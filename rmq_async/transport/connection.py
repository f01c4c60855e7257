"""One TCP connection as an ``asyncio.Protocol``: its socket, reading from it, and its life cycle.

The connection's RequestTable holds the requests. Responses are decoded, and their futures resolved, inside ``data_received``; no
task waits for bytes.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final, NamedTuple, cast

import msgspec

from rmq_protocol.command import RemotingCommand, decode_command, encode_command, make_response
from rmq_protocol.constants import RESPONSE_FLAG, STORED_CODES, RequestCode, ResponseCode, SerializeType
from rmq_protocol.errors import FrameTooLargeError, ProtocolError, RemoteProtocolError
from rmq_protocol.frame import CutFrame, Frame, FrameDecoder
from rmq_protocol.pull_codec import decode_pull_reply
from rmq_protocol.send_codec import SendReply, decode_send_reply, send_reply_of

from .. import machine
from .._ordered import OrderedSet
from .._text import is_power_of_two
from ..broker_answers import is_busy
from ..errors import ConnectionLostError
from .coalescer import GATHER_FROM
from .pending import Pending, request_name
from .request_hooks import RequestHooks
from .request_table import RequestTable
from .server_requests import Answering, discard, failed, not_supported, response_frame
from .states import CloseReason, ConnectionState, close_text, lost_error, next_state
from .tls import silent_end

# The receive queue of a connection's socket in the kernel.

try:
    from fcntl import ioctl
    from termios import FIONREAD
except ImportError:  # not on Windows
    ioctl = None  # type: ignore[assignment]


def unread(transport: asyncio.BaseTransport | None) -> int:
    """Return the number of bytes that the kernel has received and the loop has not read.

    Return 1 if the number is not known. Return 0 for a closed socket.
    """
    if transport is not None and (known := transport.get_extra_info("unread")) is not None:
        return int(known)  # a simulated transport has no descriptor
    sock = transport.get_extra_info("socket") if transport is not None else None
    if ioctl is None or sock is None:
        return 1
    try:
        return int(struct.unpack("i", ioctl(sock.fileno(), FIONREAD, bytes(4)))[0])
    except (OSError, ValueError):  # closed meanwhile
        return 0


logger = logging.getLogger("rmq_async.transport")

RequestHandler = Callable[["Connection", RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]
"""Called with a connection and a request of its server. Returns the response, an awaitable of the response, or None to send no
response."""

_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
_SEND_BACK: Final = int(RequestCode.CONSUMER_SEND_MSG_BACK)
_NO_REPLY: Final = SendReply(code=-1)
SOON: Final = 2.0
"""If the peer closes a connection without TLS within this many seconds and before it has sent a byte, the error names possible
causes."""
MAX_UNREAD_ANSWERS: Final = 1024 * 1024
DROP_UP_TO: Final = 256 * 1024 * 1024
"""Maximum bytes of a frame above ``max_frame_size`` that is dropped while the connection stays open: it delays the frames after it
by seconds at most. The value is below 352,518,400, which the first bytes of a TLS record give as their "length"."""


class ConnectionSettings(NamedTuple):
    """The settings of a connection.

    Attributes:
        max_frame_size: Maximum bytes of a received frame. A larger frame, up to DROP_UP_TO bytes, only makes its request fail.
        dead_after: Seconds without a received byte after which the connection is closed as dead, counted from the first request
            that was written after the last received byte; long polls do not count.
    """

    max_frame_size: int
    serialize_type: SerializeType = SerializeType.JSON
    dead_after: float = 10.0


class Connection(asyncio.Protocol):
    """A connection to a server, made by ConnectionPool.

    Args:
        address: The "host:port" with which the connection was requested.
        on_request: Answers the requests of the server. Without it, the server gets REQUEST_CODE_NOT_SUPPORTED.
        on_closed: Called with the connection when it closes.
        on_retired: Called when the server responds with GO_AWAY. The connection takes no new requests from then on, and the
            callback must close it after the pending requests have ended.
    """

    # Instances share the layout of their dictionaries only up to 30 attributes, and this class has more; slots avoid the lookup.
    __slots__ = (
        "__weakref__", "_answering", "_decoder", "_ended_at", "_loop", "_made_at", "_max_frame_size", "_on_closed", "_on_request",
        "_on_retired", "_state", "_transport", "_unread_answers", "address", "attributes", "close_cause", "close_reason", "closed",
        "hooks", "ip", "local_address", "local_ip", "requests", "retired", "serialize_type", "stored_at", "strays",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        *,
        on_request: RequestHandler | None = None,
        on_closed: Callable[[Connection], None] | None = None,
        on_retired: Callable[[Connection], None] | None = None,
        hooks: RequestHooks | None = None,
    ) -> None:
        self.address = address
        self.requests = RequestTable(address, settings.dead_after, lost=self._lost, die=self._die, unread=self._unread)
        self.hooks = hooks if hooks is not None else RequestHooks()
        self.serialize_type = settings.serialize_type
        self.close_reason: CloseReason | None = None
        self.close_cause: BaseException | None = None
        self.ip = ""
        """The IP address of the server, from the lookup of its name."""
        self.local_ip = self.local_address = ""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the socket is closed."""
        self.attributes: dict[type, Any] = {}
        """State that other packages keep for the lifetime of the connection, by the class that uses it."""
        self.retired = False
        """Whether the server has responded with GO_AWAY."""
        self.stored_at = -inf
        """Time (monotonic) of a recent read of the socket that contained the confirmation of a stored message; -infinity if there
        is none."""
        self.strays = 0
        """Number of responses without a matching request."""
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.CONNECTING
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(settings.max_frame_size, drop_up_to=DROP_UP_TO)
        self._max_frame_size = settings.max_frame_size
        self._on_request = on_request
        self._on_closed = on_closed
        self._on_retired = on_retired
        self._unread_answers = 0
        self._answering: Answering | None = None
        self._made_at = self._ended_at = 0.0
        """Times (monotonic) at which the connection was made, and at which it was closed."""

    # -- state

    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def is_open(self) -> bool:
        """Whether the connection accepts requests."""
        return self.requests.is_open

    @property
    def pending(self) -> int:
        """Number of unanswered requests of any kind, including held requests."""
        return self.requests.unanswered

    @property
    def writes(self) -> int:
        """Number of writes to the transport so far."""
        return self.requests.writer.writes

    @property
    def has_received(self) -> bool:
        """Whether the peer ever sent a byte."""
        return self.requests.deadlines.received > 0

    @property
    def answering(self) -> tuple[asyncio.Task[None], ...]:
        """Tasks that answer requests of the server; they are cancelled when the connection closes."""
        return () if self._answering is None else tuple(self._answering.tasks)

    def silent_for(self, now: float) -> float:
        """Return the seconds since the first request that was written after the last received byte. Long polls do not count.

        Return 0 if there is no such request.
        """
        return max(0.0, now - self.requests.deadlines.silent_since)

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes that the kernel has not taken yet: gathered frames, the transport's buffer and held one-way frames."""
        return self.requests.buffered_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def __repr__(self) -> str:
        requests = self.requests
        return f"<Connection {self.address} {self._state.value}, {requests.unanswered} pending, {len(requests.held)} held>"

    async def request(
        self,
        command: RemotingCommand,
        timeout: float,
        *,
        long_poll: bool = False,
        calls: OrderedSet[asyncio.Future[RemotingCommand]] | None = None,
    ) -> RemotingCommand:
        """Send ``command`` with an opaque of this connection and return the response, with any code.

        Args:
            calls: A set that contains the future of the response while this method waits, so that other code can end the wait.

        Raises:
            RequestTimeoutError: If no response arrives within ``timeout`` seconds.
            ConnectionLostError: If the connection accepts no requests, or closes before the response.
            LocalProtocolError: If the command cannot be encoded or signed.
        """
        hooked = None
        if self.hooks.active:
            hooked = self.hooks.hooked(self.address, command)
            command = hooked.command
        requests = self.requests
        opaque = requests.next_opaque()
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        deadline = machine.monotonic() + timeout
        pending = Pending(future, deadline, deadline, command.code, typed=False, long_poll=long_poll)
        try:
            requests.require_open()
            # The frame is not stored in a variable: a traceback that shows variables would show its signature and token.
            requests.start_request(
                opaque, encode_command(msgspec.structs.replace(command, opaque=opaque), self.serialize_type), pending
            )
            if calls is not None:
                calls.add(future)
            response = await future
        except BaseException as error:
            requests.forget(opaque)
            if hooked is not None:
                hooked.finish(None, error)
            raise
        finally:
            if calls is not None:
                calls.discard(future)
            del future, pending  # an error that the future holds has this frame in its traceback
        if hooked is not None:
            hooked.finish(response, None)
        return response

    # -- writing

    def pause_writing(self) -> None:
        self.requests.writer.paused = True

    def resume_writing(self) -> None:
        self._unread_answers = 0
        if self._state is not ConnectionState.CLOSED:
            self.requests.writer.resume()
            self.requests.release_held()

    # -- reading

    def data_received(self, data: bytes) -> None:
        if self.close_reason is not None:
            return
        requests = self.requests
        deadlines = requests.deadlines
        deadlines.received += len(data)
        deadlines.silent_since = inf
        requests.last_used = machine.monotonic()
        entries = requests.entries
        reply = _NO_REPLY
        try:
            for frame in self._decoder.cut(data):
                if isinstance(frame, bytes):
                    try:
                        reply = decode_send_reply(frame)
                    except (msgspec.MsgspecError, ValueError, RecursionError):
                        self._general_frame(Frame(0, frame, b""))
                        continue
                    if reply.flag & RESPONSE_FLAG and (pending := entries.pop(reply.opaque, None)) is not None:
                        if pending.typed:
                            if reply.code:
                                self._refused(pending, reply.code, reply.remark)
                            if not pending.receiver.done():
                                pending.receiver.set_result(reply)
                            continue
                        entries[reply.opaque] = pending
                    reply = _NO_REPLY
                    frame = Frame(0, frame, b"")
                self._general_frame(frame)
        except ProtocolError as error:
            self.close(CloseReason.PROTOCOL, error)
            return
        if reply.code in STORED_CODES:  # once for each read, not for each message
            self.stored_at = requests.last_used
        if requests.held:
            requests.answers_came()
        if requests.writer.frames and len(entries) - requests.untyped < GATHER_FROM:
            requests.writer.look_again()

    def _general_frame(self, frame: Frame | CutFrame | RemoteProtocolError) -> None:
        """Handle a frame that ``data_received`` does not handle itself.

        Args:
            frame: A frame, or the error of a broken one, which is raised.
        """
        if isinstance(frame, RemoteProtocolError):
            raise frame
        if isinstance(frame, CutFrame):
            self._too_large(frame)
            return
        requests = self.requests
        if frame.body and not frame.serialize_type and (reply := decode_pull_reply(frame.header, frame.body)) is not None:
            pending = requests.entries.get(reply.opaque)
            if pending is not None and pending.pull:
                requests.take(reply.opaque)
                if not pending.receiver.done():
                    pending.receiver.set_result(reply)
                return
        command = decode_command(frame)
        if not command.is_response:
            self._serve(command)
            return
        pending = requests.take(command.opaque)  # held requests are not searched: a server could guess their opaques
        if pending is None:
            self._count_stray()
            return
        if command.code:
            self._refused(pending, command.code, command.remark)
        if pending.receiver.done():
            return
        if pending.typed:
            self._finish_send(pending, command)
        else:
            pending.receiver.set_result(command)

    def _too_large(self, frame: CutFrame) -> None:
        """Fail the pending request if its response exceeds ``max_frame_size``; refuse a request of the server that exceeds it."""
        command = decode_command(Frame(frame.serialize_type, frame.header, b""))
        limit = self._max_frame_size
        if not command.is_response:
            text = f"a frame of {frame.size} bytes is above max_frame_size={limit}"
            logger.warning("%s: %s was not handled: %s", self.address, request_name(command.code), text)
            self._respond(command, make_response(command, ResponseCode.SYSTEM_ERROR, text))
            return
        pending = self.requests.take(command.opaque)
        if pending is None:
            self._count_stray()
            return
        error = FrameTooLargeError(
            f"the response of {self.address} to {request_name(pending.code)} has {frame.size} bytes, above max_frame_size={limit}: "
            f"request less data, or set max_frame_size={frame.size} or more",
            size=frame.size,
            limit=limit,
            fields=(command.ext_fields or {}) if command.code == ResponseCode.SUCCESS else None,
            address=self.address,
        )
        error.maybe_stored = pending.typed
        if not pending.receiver.done():
            pending.receiver.set_exception(error)

    def _refused(self, pending: Pending, code: int, remark: str | None) -> None:
        """Handle the effects of an error response on the connection, before the sender gets the response.

        A sender that retries immediately must not get a connection on which the server has answered GO_AWAY.
        """
        if code == _GO_AWAY:
            self.retire()
        elif (pending.typed or pending.code == _SEND_BACK) and is_busy(code, remark):
            self.requests.busy(pending)

    def _finish_send(self, pending: Pending, command: RemotingCommand) -> None:
        if command.code in STORED_CODES:
            self.stored_at = self.requests.last_used
        try:
            pending.receiver.set_result(send_reply_of(command))
        except RemoteProtocolError as error:
            error.address = self.address
            error.maybe_stored = True
            pending.receiver.set_exception(error)

    def _count_stray(self) -> None:
        self.strays += 1
        if is_power_of_two(self.strays):
            logger.debug("%s: dropped %d responses without a matching request", self.address, self.strays)

    def _serve(self, command: RemotingCommand) -> None:
        """Answer a request of the server."""
        try:
            response = not_supported(command) if self._on_request is None else self._on_request(self, command)
        except Exception as error:  # noqa: BLE001 - a bug of the handler must not close the connection
            response = failed(command, self.address, error)
        if response is None:
            return
        if isinstance(response, RemotingCommand):
            self._respond(command, response)
            return
        if self._state is ConnectionState.CLOSED:
            discard(response)
            return
        if self._answering is None:
            self._answering = Answering(self.address, self._respond)
        self._answering.start(command, response)

    def _respond(self, command: RemotingCommand, response: RemotingCommand) -> None:
        if command.is_oneway or self._state is ConnectionState.CLOSED:
            return
        parts = response_frame(command, response, self.address, self.serialize_type)
        writer = self.requests.writer
        if writer.paused:
            self._unread_answers += sum(map(len, parts))
            if self._unread_answers > MAX_UNREAD_ANSWERS:
                self.close(CloseReason.NOT_READING)
                return
        writer.queue(parts, urgent=True)

    def _unread(self) -> int:
        return unread(self._transport)

    # -- life cycle

    def _die(self) -> None:
        self.close(CloseReason.DEAD)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self._made_at = machine.monotonic()
        if self._state is ConnectionState.CLOSED:
            transport.abort()
            return
        self.requests.writer.attach(transport)
        name = transport.get_extra_info("sockname")
        if isinstance(name, tuple):
            self.local_ip, self.local_address = name[0], f"{name[0]}:{name[1]}"
        self._set_state(ConnectionState.READY)

    def eof_received(self) -> None:
        self.close(CloseReason.PEER)  # close here: the loop would first wait until the peer has read the buffered bytes

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(CloseReason.PEER if exc is None else CloseReason.RESET, exc)
        if not self.closed.done():
            self.closed.set_result(None)

    def drain(self) -> None:
        """Stop taking new requests; pending requests may still be answered."""
        if self._state is ConnectionState.READY:
            self.requests.writer.flush()
            self._set_state(ConnectionState.DRAINING)

    def retire(self) -> None:
        """Drain the connection after GO_AWAY and call ``on_retired``. Further calls do nothing."""
        if self._state is ConnectionState.READY:
            self.retired = True
            self.drain()
            if self._on_retired is not None:
                self._on_retired(self)

    def close(self, reason: CloseReason, cause: BaseException | None = None) -> None:
        """Close the connection. Further calls do nothing.

        Each pending request gets an error of its own, which states ``reason`` and whether the request was written.
        """
        if self._state is ConnectionState.CLOSED:
            return
        requests = self.requests
        orderly = reason in (CloseReason.LOCAL, CloseReason.AWAY) and not requests.writer.paused
        if orderly:
            requests.writer.flush()
            orderly = not requests.writer.paused
        self._set_state(ConnectionState.CLOSED)
        self.close_reason, self.close_cause = reason, cause
        self._ended_at = machine.monotonic()
        requests.deadlines.stop()
        if self._answering is not None:
            self._answering.cancel()
        if self._transport is not None:
            if orderly:
                self._transport.close()
            else:
                self._transport.abort()
        unfinished = requests.take_all()
        try:
            if self._on_closed is not None:
                self._on_closed(self)  # before ``end``: a sender that retries immediately must not get this connection
        finally:
            self._answering = None
            requests.end(unfinished)

    def _set_state(self, state: ConnectionState) -> None:
        self._state = next_state(self._state, state)
        self.requests.is_open = state is ConnectionState.READY

    def _lost(self, written: bool, code: int | None) -> ConnectionLostError:
        error = lost_error(self.address, code, self.close_text(), written=written)
        error.__cause__ = self.close_cause
        return error

    def close_text(self) -> str:
        """Return why the connection accepts no more requests, as text for error messages."""
        why = self.close_reason or (CloseReason.AWAY if self.retired else None)
        text = close_text(why, self.close_cause)
        if why not in (CloseReason.PEER, CloseReason.RESET):
            return text
        if self.has_received:
            return text if (peer := self._decoder.peer) is None else f"{text}: {peer}"
        soon = why is CloseReason.PEER and self._ended_at - self._made_at < SOON
        return text + silent_end(self._transport, soon=soon)
