"""One TCP connection: an asyncio.Protocol with a table of pending requests and a write coalescer.

Cost decides the form. Per request there is one future and one table entry; no Task, no timer, no ``wait_for``. Deadlines are
checked by one timer per connection, set for the earliest of them. Answers are decoded and resolved inside ``data_received``.

Bounds: at most ``window`` requests of producers are on the wire, further ones are held in order; while the peer does not read
(the transport's buffer is not empty) everything is held. What is held can still time out or be cancelled, and then is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final, cast

import msgspec

from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import RESPONSE_FLAG, RequestCode, ResponseCode, SerializeType
from rmq_protocol.errors import ProtocolError, RemoteProtocolError
from rmq_protocol.frame import Frame, FrameDecoder
from rmq_protocol.pull_codec import PullTemplate, decode_pull_reply
from rmq_protocol.send_codec import FIRST_OPAQUE, LAST_OPAQUE, LENGTHS, SendTemplate, decode_send_reply, send_reply_of

from ..errors import ConnectionLostError
from .coalescer import GATHER_FROM, WriteCoalescer
from .deadlines import Deadlines
from .pending import Pending, Receiver, overdue
from .reasons import ending, late, lost
from .request_hooks import RequestHooks, given_up
from .serving import RequestHandler, answer_to
from .states import CloseReason, ConnectionState, next_state
from .tls import silent_end

__all__ = ["Connection"]

logger = logging.getLogger("rmq_async.transport")

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_PULL: Final = int(RequestCode.PULL_MESSAGE)
_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
MAX_UNREAD_ANSWERS: Final = 1024 * 1024


class Connection(asyncio.Protocol):
    """``address`` is the text it was asked for, "host:port". Made by ConnectionPool; usable once connected.

    ``on_request`` answers the server's own requests (None: no answer); without a handler they get REQUEST_CODE_NOT_SUPPORTED.
    ``dead_after``: seconds without any byte, counted from the first request written after the last byte came, after which the
    connection is closed as dead. ``on_retired``: told when the server wants its clients elsewhere (GO_AWAY); the connection then
    takes no new requests, and whoever is told closes it when those under way have ended.
    """

    # More attributes than instances of a class share a layout for (30): without slots each would be looked up in a dictionary.
    __slots__ = (
        "__weakref__", "_deadlines", "_decoder", "_expects_answer", "_flushed", "_held", "_held_control", "_held_oneways",
        "_loop", "_on_closed", "_on_request", "_on_retired", "_opaque", "_others", "_sequence", "_state", "_table",
        "_transport", "_unread_answers", "_window", "_writer", "address", "close_cause", "close_reason", "closed", "hooks",
        "is_open", "last_used", "local_ip", "pacing", "retired", "serialize_type", "strays",
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
        self.address = address
        self.hooks = hooks if hooks is not None else RequestHooks()
        self.serialize_type = serialize_type
        self.close_reason: CloseReason | None = None
        self.close_cause: BaseException | None = None
        self.local_ip = ""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when the socket is gone."""
        self.is_open = False
        """Takes requests. A plain attribute: it is read for every message."""
        self.pacing: object | None = None
        """Room for what a sender keeps per connection."""
        self.retired = False
        """The server sent us away."""
        self.strays = 0
        self.last_used = monotonic()
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.CONNECTING
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._decoder = FrameDecoder(max_frame_size)
        self._on_request = on_request
        self._on_closed = on_closed
        self._on_retired = on_retired
        self._table: dict[int, Pending] = {}
        self._opaque = FIRST_OPAQUE
        self._writer = WriteCoalescer(self._before_write, self._sends_under_way)
        self._others = 0
        self._expects_answer = False
        self._sequence = 0
        self._flushed = 0
        self._unread_answers = 0
        self._held: OrderedDict[int, bytes | list[bytes]] = OrderedDict()
        self._held_oneways: dict[int, tuple[Callable[[int], None], int]] = {}
        """Those of ``_held`` that nobody answers, and whom to tell of them."""
        self._held_control: OrderedDict[int, bytes | list[bytes]] = OrderedDict()
        self._window = 1 << 30
        self._deadlines = Deadlines(dead_after, self._writer.flush, self._end_late, self._die)

    # -- what callers see

    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def writes(self) -> int:
        """Writes handed to the transport so far."""
        return self._writer.writes

    @property
    def in_flight(self) -> int:
        """Requests on the wire or about to be; those held back are not counted."""
        return self._sends_under_way() + self._others - len(self._held_control)

    @property
    def pending(self) -> int:
        """Requests of any kind that have not been answered, those held back included."""
        return len(self._table)

    def unanswered(self, owner: object, since: int = 0) -> tuple[int, int]:
        """Opaques: of the owner's oldest request that has no answer yet (0: none), and the newest that was given out.

        Opaques rise, so whoever noted the newest one a while ago can tell how old the oldest is. ``since``: an opaque before which
        the owner has nothing under way, as it knows from asking before; with it the cost is that of what is newer.
        """
        table, newest = self._table, self._opaque
        if 0 <= newest - since < len(table):
            for opaque in range(since, newest + 1):
                if (pending := table.get(opaque)) is not None and pending.owner is owner:
                    return opaque, newest
            return 0, newest
        for opaque, entry in table.items():
            if entry.owner is owner:
                return opaque, newest
        return 0, newest

    @property
    def heard(self) -> bool:
        """Whether the peer ever sent a byte."""
        return self._deadlines.reads > 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes gathered here or in the transport and not taken by the kernel yet, those of one-way frames held back included."""
        held = [self._held[opaque] for opaque in self._held_oneways]
        gathered = self._writer.gathered_bytes + sum(
            len(parts) if isinstance(parts, bytes) else sum(map(len, parts)) for parts in held
        )
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
        """Sends ``command`` under an opaque of this connection and returns the answer, whatever its code.

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

    # -- what the send path uses

    def next_opaque(self) -> int:
        self._opaque = opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        return opaque

    def submit(self, opaque: int, pending: Pending, parts: bytes | list[bytes], window: int = 1 << 30) -> None:
        """Enters a request into the table and queues its frame, or holds the frame while the peer is behind.

        Requests submitted without a ``window`` (control requests) pass those that are held for it.
        """
        table = self._table
        if not self.is_open:
            self.require_open()
        if pending.deadline < self._deadlines.at:
            self._deadlines.arm(pending.deadline)
        table[opaque] = pending
        if not pending.typed:
            self._others += 1
        if self._writer.paused or self._beyond(window) or (self._held and window < 1 << 30):
            if window < 1 << 30:
                self._window = window
                self._held[opaque] = parts
            else:
                self._held_control[opaque] = parts
            return
        self._sequence = pending.sequence = self._sequence + 1
        if not pending.long_poll:
            self._expects_answer = True
        if not self._writer.frames and (len(table) == 1 or pending.pull):
            self._writer.write(parts)
        else:
            self._writer.queue(parts, urgent=True)

    def start_pull(self, template: PullTemplate, offset: int, max_messages: int, receiver: Receiver, deadline: float) -> int:
        """A pull by template; returns its opaque. The receiver gets a PullReply, or a RemotingCommand if there are no messages.

        Its frame leaves at once unless others are gathered: whoever asked is about to decode the answer before, and the peer should
        work meanwhile.
        """
        opaque = self.next_opaque()
        self.submit(
            opaque,
            Pending(receiver, deadline, deadline, _PULL, typed=False, long_poll=template.held, pull=True),
            template.frame(opaque, offset, max_messages),
        )
        return opaque

    def start_plain(
        self,
        template: SendTemplate,
        born_ms: bytes,
        unique_id: str,
        body: bytes,
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        owner: object,
        window: int,
    ) -> Pending:
        """A send of which ``unique_id`` is all there is to say besides its body: ``submit`` in one piece, as it runs for each.

        ``unique_id`` has the length that ``template`` was made for.
        """
        if not self.is_open:
            self.require_open()
        self._opaque = opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        parts: bytes | list[bytes]
        if (size := len(body)) < template.plain_below:  # what ``plain`` does, nearly always
            parts = template.plain_frame % (LENGTHS[template.plain_base + size], born_ms, unique_id.encode(), opaque, body)
        else:
            parts = template.plain(opaque, born_ms, unique_id, body)
        if deadline < self._deadlines.at:
            self._deadlines.arm(deadline)
        table, writer, sequence = self._table, self._writer, self._sequence + 1
        table[opaque] = pending = Pending(receiver, deadline, call_deadline, _SEND, owner, sequence, opaque)
        if writer.paused or self._held or (len(table) > window and self._beyond(window)):
            return self._hold(pending, parts, window)
        self._sequence = sequence
        self._expects_answer = True
        frames = writer.frames
        if len(frames) < writer.room and type(parts) is bytes:
            frames.append(parts)  # what queue does, nearly always
        elif not frames and len(table) == 1:
            writer.write(parts)
        else:
            writer.queue(parts)
        return pending

    def start_send(
        self,
        opaque: int,
        parts: bytes | list[bytes],
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        code: int,
        owner: object,
        window: int,
    ) -> Pending:
        """Any other send: ``parts`` is its frame, under an opaque of this connection."""
        self.require_open()
        if deadline < self._deadlines.at:
            self._deadlines.arm(deadline)
        pending = Pending(receiver, deadline, call_deadline, code, owner, self._sequence + 1, opaque)
        self._table[opaque] = pending
        if self._writer.paused or self._held or self._beyond(window):
            return self._hold(pending, parts, window)
        self._sequence += 1
        self._expects_answer = True
        if not self._writer.frames and len(self._table) == 1:
            self._writer.write(parts)
        else:
            self._writer.queue(parts)
        return pending

    def _hold(self, pending: Pending, parts: bytes | list[bytes], window: int) -> Pending:
        """Keeps a send's frame until the peer reads, or has answered enough."""
        pending.sequence = 0
        self._window = window
        self._held[pending.opaque] = parts
        return pending

    def submit_oneway(self, parts: bytes | list[bytes], written: Callable[[int], None], cost: int) -> None:
        """Queues a frame nobody answers; ``written(cost)`` is called once its last byte is in the kernel, or never will be.

        It keeps its place among the sends, so it is held where they are.
        """
        self.require_open()
        if self._writer.paused or self._held:
            opaque = self.next_opaque()
            self._held[opaque] = parts
            self._held_oneways[opaque] = (written, cost)
            return
        self._writer.when_written(written, cost)
        self._writer.queue(parts)

    def takes_oneways(self) -> bool:
        """Whether a frame that nobody answers would not be held."""
        return self.is_open and not self._writer.paused and not self._held

    def when_written(self, written: Callable[[int], None]) -> None:
        """Calls ``written(0)`` once the last byte of what is queued from here on is in the kernel, or never will be.

        Whoever is told may have queued several frames meanwhile.
        """
        self._writer.when_written(written, 0)

    def submit_plain_oneway(self, template: SendTemplate, born_ms: bytes, unique_id: str, body: bytes) -> None:
        """Queues a frame nobody answers, of a message without properties, while the connection ``takes_oneways``."""
        self._opaque = opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        parts = template.plain(opaque, born_ms, unique_id, body)
        writer = self._writer
        if len(writer.frames) < writer.room and parts.__class__ is bytes:
            writer.frames.append(parts)  # what queue does, nearly always
        else:
            writer.queue(parts)

    def forget(self, opaque: int) -> None:
        """Takes a request out of the table: nobody waits for its answer any more."""
        pending = self._remove(opaque)
        self._drop_held(opaque)
        self._release_held()
        if pending is not None:
            given_up(pending.receiver)

    def _remove(self, opaque: int) -> Pending | None:
        pending = self._table.pop(opaque, None)
        if pending is not None and not pending.typed:
            self._others -= 1
        return pending

    def knows(self, opaque: int) -> bool:
        """Whether the request is still in the table, so that its answer would be taken."""
        return opaque in self._table

    def abandon(self, owner: object, error: Callable[[bool], BaseException]) -> None:
        """Ends every request of ``owner`` with an error of its own, made for whether its frame was written."""
        self._writer.flush()  # what is gathered leaves in any case
        abandoned = [item for item in self._table.items() if item[1].owner is owner]
        for opaque, _ in abandoned:
            self._remove(opaque)
            self._drop_held(opaque)
        for _, pending in abandoned:
            if not pending.receiver.done():
                pending.receiver.set_exception(error(self.was_written(pending)))
        self._release_held()

    def was_written(self, pending: Pending) -> bool:
        """Whether the frame has been given to the transport, so that the peer may have it."""
        return 0 < pending.sequence <= self._flushed

    # -- writing

    def _before_write(self) -> None:
        self._flushed = self._sequence
        deadlines = self._deadlines
        now = self.last_used = deadlines.wrote_at = monotonic()
        if self._expects_answer:
            self._expects_answer = False
            if deadlines.silent_since == inf:
                deadlines.silent_since = now
                if now + deadlines.dead_after < deadlines.at:
                    deadlines.arm(now + deadlines.dead_after)

    def _sends_under_way(self) -> int:
        return len(self._table) - (len(self._held) - len(self._held_oneways)) - self._others

    def _drop_held(self, opaque: int) -> None:
        self._held.pop(opaque, None)
        self._held_control.pop(opaque, None)

    def _release_held(self) -> None:
        held, oneways = self._held, self._held_oneways
        while self._held_control and not self._writer.paused:
            self._release(*self._held_control.popitem(last=False))
        while held and not self._writer.paused and (self._sends_under_way() < self._window or next(iter(held)) in oneways):
            self._release(*held.popitem(last=False))

    def _beyond(self, window: int) -> bool:
        """Whether more sends are under way; pulls that wait at the peer and other control requests take no place in it."""
        return len(self._table) - self._others > window

    def _release(self, opaque: int, parts: bytes | list[bytes]) -> None:
        oneway = self._held_oneways.pop(opaque, None)
        if oneway is not None:
            self._writer.when_written(*oneway)
            self._writer.queue(parts)
            return
        pending = self._table[opaque]
        self._sequence = pending.sequence = self._sequence + 1
        if not pending.long_poll:
            self._expects_answer = True
        self._writer.queue(parts)

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
        deadlines.reads += 1
        deadlines.silent_since = inf
        self.last_used = monotonic()
        table = self._table
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
                                self.retire()  # first: whoever tries again at once must not be given this connection
                            if not receiver.done():
                                receiver.set_result(reply)
                            continue
                        table[reply.opaque] = pending
                    frame = Frame(0, frame, b"")
                self._general_frame(frame)
            if self._decoder.error is not None:
                raise self._decoder.error
        except ProtocolError as error:
            self.close(CloseReason.PROTOCOL, error)
            return
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
        try:
            receiver.set_result(send_reply_of(command))
        except RemoteProtocolError as error:
            error.address = self.address
            error.maybe_stored = True
            receiver.set_exception(error)

    def _serve(self, command: RemotingCommand) -> None:
        """A request of the server to this client."""
        parts = answer_to(self, command, self._on_request, self._loop)
        if parts is None or self._state is ConnectionState.CLOSED:
            return
        if self._writer.paused:
            self._unread_answers += sum(map(len, parts))
            if self._unread_answers > MAX_UNREAD_ANSWERS:
                self.close(CloseReason.NOT_READING)
                return
        self._writer.queue(parts, urgent=True)

    # -- deadlines

    def _end_late(self, now: float) -> float:
        """Tells those whose deadline has come; returns the earliest of the others."""
        past, earliest = overdue(self._table, now)
        for opaque, pending in past:
            earliest = min(earliest, self._expire(opaque, pending, now))
        if past and self._held:
            self._release_held()
        return earliest

    def _die(self) -> None:
        self.close(CloseReason.DEAD)

    def _expire(self, opaque: int, pending: Pending, now: float) -> float:
        """Tells the receiver that it is too late; returns the entry's next deadline, infinity when it is gone."""
        written = self.was_written(pending)
        call_over = pending.call_deadline <= now or not written  # what never left needs no answer, and must not leave later
        if call_over:
            self._remove(opaque)
            self._drop_held(opaque)
        else:
            pending.deadline = pending.call_deadline
        if not pending.receiver.done():
            pending.receiver.set_exception(late(self.address, pending.code, written=written))
        return inf if call_over else pending.call_deadline

    # -- life

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
        """The server sent us away: no new requests; ``on_retired`` is told, once."""
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
        table, self._table = self._table, {}
        self._held.clear()
        self._held_control.clear()
        oneways, self._held_oneways = self._held_oneways, {}
        try:
            if self._on_closed is not None:
                self._on_closed(self)  # first: whoever tries again at once must not be given this connection
        finally:
            for pending in table.values():
                if not pending.receiver.done():
                    pending.receiver.set_exception(self._lost(self.was_written(pending), pending.code))
            self._writer.close()
            for written, cost in oneways.values():
                written(cost)

    def require_open(self) -> None:
        """Raises ConnectionLostError where it takes no requests. Asked before a signed frame is made: tracebacks show that."""
        if not self.is_open:
            raise self._lost(False, None)

    def _lost(self, written: bool, code: int | None) -> ConnectionLostError:
        error = lost(self.address, code, self.ending(), written=written)
        error.__cause__ = self.close_cause
        return error

    def ending(self) -> str:
        """Why it takes no more requests, as users are told."""
        why = self.close_reason or (CloseReason.AWAY if self.retired else None)
        silent = not self.heard and why in (CloseReason.PEER, CloseReason.RESET)
        return ending(why, self.close_cause) + (silent_end(self._transport) if silent else "")
