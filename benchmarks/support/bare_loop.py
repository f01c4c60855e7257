"""The least that sends a confirmed message: the measure that the client is held against.

It writes the frames the client writes (SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, JSON headers, a unique id per message) on one
connection and leaves out everything a caller gets besides: no routing after the first look-up, no validation, no retry, no
credits, no compression, no heartbeat, no time limit per message but a sweep each second. What it keeps is what any fast loop
would do: one ready header per queue in which only the varying fields are formatted; frames of one loop iteration leave in one
write, a lone frame at once; a dict from opaque to future; answers decoded into one typed struct.

Control requests (route, topic, offsets) use low opaques and a table of their own, so that sends pay for no branch on them. With
credentials they are signed; sends never are.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import struct
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

if TYPE_CHECKING:
    from rmq_protocol.signing import SessionCredentials

__all__ = ["BareConnection", "BareError", "BareProducer", "BareResult", "connect", "route_of"]

FIRST_SEND: Final = 1_000_000_000
"""Opaques of sends start here: always ten digits, so that a header's length is known in advance."""
SEND_V2: Final = 310
SEND_BATCH: Final = 320
GET_ROUTE: Final = 105
GET_MAX_OFFSET: Final = 30
VERSION: Final = 513
ONEWAY: Final = 2
SWEEP: Final = 1.0
ANSWER_WITHIN: Final = 3
"""Sweeps that an answer may take."""
MOST_GATHERED: Final = 32
"""Messages in a batch of ``send_adaptive``."""

_words = struct.Struct(">II").unpack_from
_pack_words = struct.Struct(">II").pack


class Fields(msgspec.Struct, gc=False):
    """Of an answer's extFields, those that are looked at."""

    msgId: str = ""
    queueId: int = -1
    queueOffset: int = -1
    offset: int = -1


class Answer(msgspec.Struct, gc=False):
    code: int
    opaque: int
    flag: int = 0
    remark: str | None = None
    extFields: Fields | None = None


class BareResult(msgspec.Struct, gc=False):
    offset_msg_id: str
    queue_id: int
    queue_offset: int


class Route(NamedTuple):
    broker_name: str
    address: str
    queues: int


class BareError(Exception):
    """An answer with a code other than 0, a lost connection, or none within the sweeps."""


_decode = msgspec.json.Decoder(Answer, strict=False).decode


class BareConnection(asyncio.Protocol):
    def __init__(self, credentials: SessionCredentials | None = None) -> None:
        self.credentials = credentials
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.waiting: dict[int, Any] = {}
        """By opaque: the future of an answer, or a list of futures of those whose messages left in one batch."""
        self.next_opaque = itertools.count(FIRST_SEND).__next__
        self.paused: asyncio.Future[None] | None = None
        self.writes = 0
        self.transport = cast(asyncio.Transport, None)
        self._asked: dict[int, asyncio.Future[tuple[Answer, bytes]]] = {}
        self._control_opaque = itertools.count(1).__next__
        self._out: list[bytes] = []
        self._rest = b""
        self._sweeps: list[int] = []
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=1 << 20, low=1 << 18)
        self.loop.call_later(SWEEP, self._sweep)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self.closed.set_result(None)
        self.resume_writing()
        for waiting in [*self.waiting.values(), *self._asked.values()]:
            _end(waiting, "connection lost")

    def pause_writing(self) -> None:
        self.paused = self.loop.create_future()

    def resume_writing(self) -> None:
        paused, self.paused = self.paused, None
        if paused is not None and not paused.done():
            paused.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        start, end = 0, len(data)
        view = memoryview(data)
        words, decode, take = _words, _decode, self.waiting.pop
        while end - start >= 8:
            length, header = words(data, start)
            after = start + 4 + length
            if after > end:
                break
            body = start + 8 + header
            answer = decode(view[start + 8 : body])  # a binary header has its type in the length's top byte and fails here
            if answer.flag & 1:
                future = take(answer.opaque, None)
                if future is None:
                    self._control_answer(answer, bytes(view[body:after]))
                elif future.__class__ is list:
                    _share(future, answer)
                elif not future.done():
                    future.set_result(answer)
            start = after
        if start < end:
            self._rest = data[start:]

    def write(self, frame: bytes) -> None:
        out = self._out
        if out:
            out.append(frame)
        elif len(self.waiting) <= 1:
            self.writes += 1
            self.transport.write(frame)
        else:
            self.loop.call_soon(self._flush)
            out.append(frame)

    def write_later(self, frame: bytes) -> None:
        """For frames without an answer: nothing shows when they could leave at once."""
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out.append(frame)

    async def ask(self, code: int, fields: dict[str, str], content: bytes = b"") -> tuple[Answer, bytes]:
        """One control request; raises BareError for an answer with another code than 0."""
        opaque = self._control_opaque()
        if self.credentials is not None:
            from rmq_protocol.signing import sign  # here, so that a bare loop without credentials loads nothing of ours

            fields = sign(self.credentials, fields, [content])
        header = _header(code, 0, fields, b',"opaque":%d' % opaque)
        future = self._asked[opaque] = self.loop.create_future()
        self.transport.write(_pack_words(4 + len(header) + len(content), len(header)) + header + content)
        answer, body = await asyncio.wait_for(future, 5)
        if answer.code:
            raise BareError(answer.code, answer.remark)
        return answer, body

    def _control_answer(self, answer: Answer, body: bytes) -> None:
        future = self._asked.pop(answer.opaque, None)
        if future is not None and not future.done():
            future.set_result((answer, body))

    def _flush(self) -> None:
        out = self._out
        self.writes += 1
        self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()

    def _sweep(self) -> None:
        if self._lost:
            return
        self._sweeps.append(self.next_opaque())
        if len(self._sweeps) > ANSWER_WITHIN:
            limit = self._sweeps.pop(0)
            for opaque in list(itertools.takewhile(lambda each: each < limit, self.waiting)):
                _end(self.waiting.pop(opaque), "no answer in time")
        self.loop.call_later(SWEEP, self._sweep)


def _end(waiting: Any, why: str) -> None:
    for future in waiting if waiting.__class__ is list else (waiting,):
        if not future.done():
            future.set_exception(BareError(why))


def _share(futures: list[asyncio.Future[BareResult]], answer: Answer) -> None:
    """Each message of a batch gets what is its own of the answer."""
    fields = answer.extFields
    if answer.code or fields is None:
        for future in futures:
            future.set_exception(BareError(answer.code, answer.remark))
        return
    offset, queue = fields.queueOffset, fields.queueId
    for future, offset_id in zip(futures, fields.msgId.split(","), strict=True):
        if not future.done():
            future.set_result(BareResult(offset_id, queue, offset))
        offset += 1


class BareProducer:
    """Sends to the queues of one topic in turn, at the first master of its route. ``credentials``: of control requests."""

    def __init__(self, topic: str, *, group: str = "bare_loop", credentials: SessionCredentials | None = None) -> None:
        self.topic = topic
        self.credentials = credentials
        self.group = group
        self.connection = cast(BareConnection, None)
        self.queues = 0
        salt = secrets.token_hex(4).upper()
        self._id_start = f"7F000001{os.getpid() & 0xFFFF:04X}{salt}".encode()
        self._id_prefix = b""
        self._counter = 0
        self._millisecond = -1
        self._born = b""
        self._gathered: list[tuple[asyncio.Future[BareResult], bytes]] = []
        now = time.localtime()
        self._month = int(time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000

    async def start(self, namesrv: str) -> None:
        route = await route_of(namesrv, self.topic)
        self.queues = route.queues
        self.connection = await connect(route.address, self.credentials)
        self._singles = [self._template(route, queue, SEND_V2) for queue in range(route.queues)]
        self._oneways = [self._template(route, queue, SEND_V2, ONEWAY) for queue in range(route.queues)]
        self._batches = [self._template(route, queue, SEND_BATCH) for queue in range(route.queues)]
        self._next_queue = itertools.cycle(range(route.queues)).__next__

    async def stop(self) -> None:
        """Returns when everything written has left this process and the connection is closed."""
        self.connection.transport.close()
        await self.connection.closed

    async def send(self, body: bytes) -> BareResult:
        connection = self.connection
        if connection.paused is not None:
            await connection.paused
        answer = await self._post(connection, body)
        if answer.code:
            raise BareError(answer.code, answer.remark)
        fields = cast(Fields, answer.extFields)
        return BareResult(fields.msgId, fields.queueId, fields.queueOffset)

    async def send_oneway(self, body: bytes) -> None:
        connection = self.connection
        if connection.paused is not None:
            await connection.paused
        connection.write_later(self._frame(self._oneways[self._next_queue()], connection.next_opaque(), body))

    async def send_batch(self, bodies: list[bytes]) -> tuple[int, int, list[str]]:
        """Queue id, first queue offset, offset ids."""
        connection = self.connection
        if connection.paused is not None:
            await connection.paused
        opaque = connection.next_opaque()
        future = connection.waiting[opaque] = connection.loop.create_future()
        one = self._batched
        body = b"".join([one(each) for each in bodies])
        template, length = self._batches[self._next_queue()]
        connection.write(template % ((length + len(body)).to_bytes(4, "big"), self._born, opaque, body))
        answer = await future
        if answer.code:
            raise BareError(answer.code, answer.remark)
        fields = cast(Fields, answer.extFields)
        return fields.queueId, fields.queueOffset, fields.msgId.split(",")

    async def send_adaptive(self, body: bytes) -> BareResult:
        """Those of one loop iteration leave together, at most 32, to one queue; the next batch goes to the next queue."""
        connection = self.connection
        if connection.paused is not None:
            await connection.paused
        gathered = self._gathered
        if not gathered:
            connection.loop.call_soon(self._seal, gathered)
        future: asyncio.Future[BareResult] = connection.loop.create_future()
        gathered.append((future, self._batched(body)))
        if len(gathered) >= MOST_GATHERED:
            self._seal(gathered)
        return await future

    def _seal(self, gathered: list[tuple[asyncio.Future[BareResult], bytes]]) -> None:
        if gathered is not self._gathered:
            return
        self._gathered = []
        connection = self.connection
        opaque = connection.next_opaque()
        connection.waiting[opaque] = [future for future, _ in gathered]
        body = b"".join([encoded for _, encoded in gathered])
        template, length = self._batches[self._next_queue()]
        connection.write(template % ((length + len(body)).to_bytes(4, "big"), self._born, opaque, body))

    async def max_offsets(self) -> int:
        """The sum over all queues: messages ever stored in the topic, as far as the broker has indexed them."""
        ask = self.connection.ask
        answers = [await ask(GET_MAX_OFFSET, {"topic": self.topic, "queueId": str(queue)}) for queue in range(self.queues)]
        return sum(answer.extFields.offset for answer, _ in answers if answer.extFields is not None)

    def _post(self, connection: BareConnection, body: bytes) -> asyncio.Future[Answer]:
        opaque = connection.next_opaque()
        future = connection.waiting[opaque] = connection.loop.create_future()
        connection.write(self._frame(self._singles[self._next_queue()], opaque, body))
        return future

    def _frame(self, prepared: tuple[bytes, int], opaque: int, body: bytes) -> bytes:
        count = self._tick()
        template, length = prepared
        size = (length + len(body)).to_bytes(4, "big")
        return template % (size, self._born, self._id_prefix, count, opaque, body)

    def _batched(self, body: bytes) -> bytes:
        """One message of a batch: total size, magic 0, CRC 0, flag 0, body, properties (52 bytes)."""
        count = self._tick()
        size = len(body)
        return b"%b\0\0\0\0\0\0\0\0\0\0\0\0%b%b\0\x34UNIQ_KEY\x01%b%04X\x02WAIT\x01true\x02" % (
            (size + 74).to_bytes(4, "big"),
            size.to_bytes(4, "big"),
            body,
            self._id_prefix,
            count,
        )

    def _tick(self) -> int:
        """The next id's counter; born time and the id's time digits are formatted once per millisecond."""
        millisecond = time.time_ns() // 1_000_000
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            self._born = b"%d" % millisecond
            self._id_prefix = self._id_start + b"%08X" % (millisecond - self._month)
        self._counter = count = (self._counter + 1) & 0xFFFF
        return count

    def _template(self, route: Route, queue: int, code: int, flag: int = 0) -> tuple[bytes, int]:
        """A frame with its varying fields open, and the frame's length without prefix and body.

        Open are: frame length, born time, unique id (prefix, counter; batches carry theirs inside), opaque, body.
        """
        batch = code == SEND_BATCH
        fields = {
            "a": self.group,
            "b": self.topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue),
            "f": "0",
            "h": "0",
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
            "n": route.broker_name,
        }
        start = _header(code, flag, fields)[:-2].replace(b"%", b"%%")
        unique_id = b"" if batch else b"UNIQ_KEY\\u0001%b%04X\\u0002"
        header = start + b',"g":"%b","i":"' + unique_id + b'WAIT\\u0001true\\u0002"},"opaque":%d}'
        born = b"0" * 13
        example = header % ((born, FIRST_SEND) if batch else (born, b"0" * 28, 0, FIRST_SEND))
        length = len(example)
        return b"%b" + length.to_bytes(4, "big").replace(b"%", b"%%") + header + b"%b", 4 + length


def _header(code: int, flag: int, fields: dict[str, str], more: bytes = b"") -> bytes:
    """A request header that ends with the closing braces of extFields and of itself."""
    head: dict[str, Any] = {"code": code, "flag": flag, "language": "PYTHON", "version": VERSION}
    head["serializeTypeCurrentRPC"] = "JSON"
    encode = msgspec.json.encode
    return encode(head)[:-1] + more + b',"extFields":' + encode(fields) + b"}"


async def connect(address: str, credentials: SessionCredentials | None = None) -> BareConnection:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: BareConnection(credentials), host.strip("[]"), int(port))
    return connection


async def route_of(namesrv: str, topic: str) -> Route:
    """First master of ``topic`` and the number of its write queues. Raises BareError when there is no such topic."""
    connection = await connect(namesrv.replace(",", ";").split(";")[0].strip())
    try:
        _, body = await connection.ask(GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
    finally:
        connection.transport.close()
        await connection.closed
    route = msgspec.json.decode(body)
    for broker in sorted(route["brokerDatas"], key=lambda each: str(each["brokerName"])):
        address = broker["brokerAddrs"].get("0")
        if address is None:
            continue
        for queues in route["queueDatas"]:
            if queues["brokerName"] == broker["brokerName"]:
                return Route(queues["brokerName"], address, queues["writeQueueNums"])
    raise BareError(f"topic {topic}: no master in the route")
