"""One TCP connection: an asyncio.Protocol. What it has under way is its request table; here are the socket, reading, and its life.

Answers are decoded and resolved inside ``data_received``; no Task waits for bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final, cast

import msgspec

from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import RESPONSE_FLAG, ResponseCode, SerializeType
from rmq_protocol.errors import ProtocolError, RemoteProtocolError
from rmq_protocol.frame import Frame, FrameDecoder
from rmq_protocol.pull_codec import decode_pull_reply
from rmq_protocol.send_codec import SendReply, decode_send_reply, send_reply_of

from ..errors import ConnectionLostError
from .coalescer import GATHER_FROM
from .pending import Pending
from .reasons import ending, lost
from .request_hooks import RequestHooks
from .request_table import RequestTable
from .serving import RequestHandler, answer_to
from .sockets import unread
from .states import CloseReason, ConnectionState, next_state
from .tls import silent_end

__all__ = ["Connection"]

logger = logging.getLogger("rmq_async.transport")

_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
_STORED: Final = frozenset(
    map(
        int,
        (
            ResponseCode.SUCCESS,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ),
    )
)
MAX_UNREAD_ANSWERS: Final = 1024 * 1024


class Connection(RequestTable, asyncio.Protocol):
    """``address`` is the text it was asked for, "host:port". Made by ConnectionPool; usable once connected.

    ``on_request`` answers the server's own requests (None: no answer); without a handler they get REQUEST_CODE_NOT_SUPPORTED.
    ``dead_after``: seconds without any byte, counted from the first request written after the last byte came, after which the
    connection is closed as dead. ``on_retired``: called when the server wants its clients elsewhere (GO_AWAY); the connection
    then takes no new requests, and the callback has it closed when those under way have ended.
    """

    __slots__ = (
        "__weakref__", "_decoder", "_loop", "_on_closed", "_on_request", "_on_retired", "_state", "_transport", "_unread_answers",
        "close_cause", "close_reason", "closed", "hooks", "local_ip", "pacing", "retired", "serialize_type", "stored_at", "strays",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        *,
        max_frame_size: int,
        serialize_type: SerializeType = SerializeType.JSON,
        dead_after: float = 10.0,
        on_request: RequestHandler | None = None,
        on_closed: Callable[[Connection], None] | None = None,
        on_retired: Callable[[Connection], None] | None = None,
        hooks: RequestHooks | None = None,
    ) -> None:
        super().__init__(address, dead_after, self._die)
        self.hooks = hooks if hooks is not None else RequestHooks()
        self.serialize_type = serialize_type
        self.close_reason: CloseReason | None = None
        self.close_cause: BaseException | None = None
        self.local_ip = ""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when the socket is gone."""
        self.pacing: object | None = None
        """Room for what a sender keeps per connection."""
        self.retired = False
        """The server sent us away."""
        self.stored_at = -inf
        """When the newest read came whose last answer said that a message is stored."""
        self.strays = 0
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.CONNECTING
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._decoder = FrameDecoder(max_frame_size)
        self._on_request = on_request
        self._on_closed = on_closed
        self._on_retired = on_retired
        self._unread_answers = 0

    # -- what callers see

    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def writes(self) -> int:
        """Writes handed to the transport so far."""
        return self._writer.writes

    @property
    def heard(self) -> bool:
        """Whether the peer ever sent a byte."""
        return self._deadlines.received > 0

    def silent_for(self, now: float) -> float:
        """Seconds since the first request was written that nothing has been heard after; 0 where no answer is due."""
        return max(0.0, now - self._deadlines.silent_since)

    @property
    def buffered_bytes(self) -> int:
        """Bytes gathered here or in the transport and not taken by the kernel yet, those of one-way frames held back included."""
        gathered = self._writer.gathered_bytes + self._held_bytes()
        return gathered + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def __repr__(self) -> str:
        return f"<Connection {self.address} {self._state.value}, {len(self._table)} pending, {len(self._held)} held>"

    async def request(
        self,
        command: RemotingCommand,
        timeout: float,
        *,
        long_poll: bool = False,
        calls: set[asyncio.Future[RemotingCommand]] | None = None,
    ) -> RemotingCommand:
        """Sends ``command`` under an opaque of this connection and returns the answer, of any code.

        ``calls``: holds the future of the answer while it is waited for, so that others can end the wait. Raises
        RequestTimeoutError after ``timeout`` seconds and ConnectionLostError when the connection closes first.
        """
        passed = None
        if self.hooks.active:
            passed = self.hooks.passed(self.address, command)
            command = passed.command
        opaque = self.next_opaque()
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        deadline = monotonic() + timeout
        pending = Pending(future, deadline, deadline, command.code, typed=False, long_poll=long_poll)
        try:
            self.require_open()
            # The frame is no variable: tracebacks that show those would show its signature and token.
            self.submit(opaque, pending, encode_command(msgspec.structs.replace(command, opaque=opaque), self.serialize_type))
            if calls is not None:
                calls.add(future)
            response = await future
        except BaseException as error:
            self.forget(opaque)
            if passed is not None:
                passed.tell(None, error)
            raise
        finally:
            if calls is not None:
                calls.discard(future)
        if passed is not None:
            passed.tell(response, None)
        return response

    # -- writing

    def pause_writing(self) -> None:
        self._writer.paused = True

    def resume_writing(self) -> None:
        self._unread_answers = 0
        if self._state is not ConnectionState.CLOSED:
            self._writer.resume()
            self._release_held()

    # -- reading

    def data_received(self, data: bytes) -> None:
        if self.close_reason is not None:
            return
        deadlines = self._deadlines
        deadlines.received += len(data)
        deadlines.silent_since = inf
        self.last_used = monotonic()
        table = self._table
        reply: SendReply | None = None
        try:
            for frame in self._decoder.cut(data):
                if isinstance(frame, bytes):
                    try:
                        reply = decode_send_reply(frame)
                    except (msgspec.MsgspecError, ValueError, RecursionError):
                        self._general_frame(Frame(0, frame, b""))
                        continue
                    if reply.flag & RESPONSE_FLAG and (pending := table.pop(reply.opaque, None)) is not None:
                        if pending.typed and pending.sequence:
                            receiver = pending.receiver
                            if reply.code == _GO_AWAY:
                                self.retire()  # first: a sender that tries again at once must not be given this connection
                            if not receiver.done():
                                receiver.set_result(reply)
                            continue
                        table[reply.opaque] = pending
                    reply = None
                    frame = Frame(0, frame, b"")
                self._general_frame(frame)
            if self._decoder.error is not None:
                raise self._decoder.error
        except ProtocolError as error:
            self.close(CloseReason.PROTOCOL, error)
            return
        if reply is not None and reply.code in _STORED:  # once for each read, not for each message
            self.stored_at = self.last_used
        if self._held:
            self._release_held()
        if self._writer.frames and len(table) - self._others < GATHER_FROM:
            self._writer.look_again()

    def _general_frame(self, frame: Frame) -> None:
        if frame.body and not frame.serialize_type and (reply := decode_pull_reply(frame.header, frame.body)) is not None:
            pending = self._table.get(reply.opaque)
            if pending is not None and pending.pull and pending.sequence:
                self._remove(reply.opaque)
                if not pending.receiver.done():
                    pending.receiver.set_result(reply)
                return
        command = decode_command(frame)
        if not command.is_response:
            self._serve(command)
            return
        pending = self._table.get(command.opaque)
        if pending is None or not pending.sequence:  # what is held back was never asked: opaques can be guessed
            self.strays += 1
            if self.strays & (self.strays - 1) == 0:
                logger.debug("%s: %d answers to nothing that was asked (dropped)", self.address, self.strays)
            return
        self._remove(command.opaque)
        if command.code == _GO_AWAY:
            self.retire()
        receiver = pending.receiver
        if receiver.done():
            return
        if not pending.typed:
            receiver.set_result(command)
            return
        if command.code in _STORED:
            self.stored_at = self.last_used
        try:
            receiver.set_result(send_reply_of(command))
        except RemoteProtocolError as error:
            error.address = self.address
            error.maybe_stored = True
            receiver.set_exception(error)

    def _serve(self, command: RemotingCommand) -> None:
        """A request of the server to this client."""
        parts = answer_to(self, command, self._on_request)
        if parts is None or self._state is ConnectionState.CLOSED:
            return
        if self._writer.paused:
            self._unread_answers += sum(map(len, parts))
            if self._unread_answers > MAX_UNREAD_ANSWERS:
                self.close(CloseReason.NOT_READING)
                return
        self._writer.queue(parts, urgent=True)

    def _unread(self) -> int:
        return unread(self._transport)

    # -- life

    def _die(self) -> None:
        self.close(CloseReason.DEAD)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._state is ConnectionState.CLOSED:
            self._transport.abort()
            return
        self._writer.attach(self._transport)
        name = transport.get_extra_info("sockname")
        self.local_ip = name[0] if isinstance(name, tuple) else ""
        self._state = next_state(self._state, ConnectionState.READY)
        self.is_open = True

    def eof_received(self) -> None:
        self.close(CloseReason.PEER)  # at once: the loop would first wait for the peer to read what is buffered

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(CloseReason.PEER if exc is None else CloseReason.RESET, exc)
        if not self.closed.done():
            self.closed.set_result(None)

    def drain(self) -> None:
        """Takes no new requests; what is under way may still be answered."""
        if self._state is ConnectionState.READY:
            self._writer.flush()
            self._state = next_state(self._state, ConnectionState.DRAINING)
            self.is_open = False

    def retire(self) -> None:
        """The server sent us away: no new requests; ``on_retired`` is called, once."""
        if self._state is ConnectionState.READY:
            self.retired = True
            self.drain()
            if self._on_retired is not None:
                self._on_retired(self)

    def close(self, reason: CloseReason, cause: BaseException | None = None) -> None:
        """Closes once; every pending request fails with an error of its own: ``reason``, and whether it had been written."""
        if self._state is ConnectionState.CLOSED:
            return
        orderly = reason in (CloseReason.LOCAL, CloseReason.AWAY)
        if orderly and not self._writer.paused:
            self._writer.flush()
        self._state = next_state(self._state, ConnectionState.CLOSED)
        self.is_open = False
        self.close_reason, self.close_cause = reason, cause
        self._deadlines.stop()
        if self._transport is not None:
            if orderly and not self._writer.paused:
                self._transport.close()
            else:
                self._transport.abort()
        waiting, oneways = self._take_all()
        try:
            if self._on_closed is not None:
                self._on_closed(self)  # first: a sender that tries again at once must not be given this connection
        finally:
            for pending in waiting:
                if not pending.receiver.done():
                    pending.receiver.set_exception(self._lost(self.was_written(pending), pending.code))
            self._writer.close()
            for written, cost in oneways:
                written(cost)

    def require_open(self) -> None:
        if not self.is_open:
            raise self._lost(False, None)

    def _lost(self, written: bool, code: int | None) -> ConnectionLostError:
        error = lost(self.address, code, self.ending(), written=written)
        error.__cause__ = self.close_cause
        return error

    def ending(self) -> str:
        """Why it takes no more requests, as errors say it."""
        why = self.close_reason or (CloseReason.AWAY if self.retired else None)
        silent = not self.heard and why in (CloseReason.PEER, CloseReason.RESET)
        return ending(why, self.close_cause) + (silent_end(self._transport) if silent else "")
