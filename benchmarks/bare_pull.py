"""The least that reads a topic: the measure that ``PullConsumer`` is held against in pull.py.

One connection, one PULL_MESSAGE under way for each queue, the next one written as soon as an answer was walked, all inside
``data_received``: no future, no task, no retry, no check sum, no properties, no time limit. What it keeps is what any fast loop
would do: a ready header per queue in which only opaque and offset are formatted, answers decoded into one typed struct, and of each
record the body and the queue offset, by TOTALSIZE and the length of the body.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final, cast

import msgspec
from bare_loop import BareError, Route, _header, connect, route_of

__all__ = ["BareReader"]

PULL_MESSAGE: Final = 11
GET_MAX_OFFSET: Final = 30
GET_MIN_OFFSET: Final = 31
PULLED: Final = 32
SUBSCRIPTION: Final = 4
"""The sysFlag of a pull that brings its subscription along and is not held."""

_words = struct.Struct(">II").unpack_from
_record = struct.Struct(">i16xq56xi").unpack_from
_BODY_AT: Final = 88


class Fields(msgspec.Struct, gc=False):
    nextBeginOffset: int = -1


class Answer(msgspec.Struct, gc=False):
    code: int
    opaque: int
    remark: str | None = None
    extFields: Fields | None = None


_decode = msgspec.json.Decoder(Answer, strict=False).decode


class BareReader(asyncio.Protocol):
    """``bodies`` and ``offsets``: of the messages of the last answer. An answer's opaque is the number of its queue."""

    def __init__(self, route: Route, topic: str, bounds: list[tuple[int, int]], group: str = "bare-pulls") -> None:
        self.transport = cast(asyncio.Transport, None)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.messages = 0
        self.size = 0
        self.bodies: list[bytes] = []
        self.offsets: list[int] = []
        self._ends = [end for _, end in bounds]
        self._starts = [start for start, _ in bounds]
        self._left = sum(start < end for start, end in bounds)
        self._templates = [template(route, topic, group, queue) for queue in range(route.queues)]
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        for queue, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            if start < end:
                self._pull(queue, start)
        if not self._left:
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(BareError("connection lost"))

    def _pull(self, queue: int, offset: int) -> None:
        header = self._templates[queue] % (offset, min(PULLED, self._ends[queue] - offset))
        self.transport.write(b"%b%b%b" % ((4 + len(header)).to_bytes(4, "big"), len(header).to_bytes(4, "big"), header))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        start, end = 0, len(data)
        while end - start >= 8:
            length, header = _words(data, start)
            after = start + 4 + length
            if after > end:
                break
            at = start + 8 + header
            answer = _decode(data[start + 8 : at])
            start = after
            fields = answer.extFields
            if answer.code or fields is None:
                if not self.done.done():
                    self.done.set_exception(BareError(answer.code, answer.remark))
                return
            if fields.nextBeginOffset < self._ends[answer.opaque]:
                self._pull(answer.opaque, fields.nextBeginOffset)
            else:
                self._left -= 1
            self._walk(data, at, after)
            if not self._left:
                self.done.set_result(None)
        if start < end:
            self._rest = data[start:]

    def _walk(self, data: bytes, at: int, after: int) -> None:
        bodies, offsets, size = [], [], 0
        while at < after:
            total, offset, length = _record(data, at)
            body = data[at + _BODY_AT : at + _BODY_AT + length]
            bodies.append(body)
            offsets.append(offset)
            size += length
            at += total
        self.bodies, self.offsets = bodies, offsets
        self.messages += len(bodies)
        self.size += size


def template(route: Route, topic: str, group: str, queue: int) -> bytes:
    """A pull's header with its offset and its number of messages open; the opaque is the queue."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue),
        "sysFlag": str(SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "bname": route.broker_name,
    }
    start = _header(PULL_MESSAGE, 0, fields)[:-2].replace(b"%", b"%%")
    return start + b',"queueOffset":"%d","maxMsgNums":"%d"},"opaque":' + b"%d}" % queue


async def read(namesrv: str, topic: str) -> BareReader:
    """Reads the first broker's queues of ``topic`` from first to last."""
    route = await route_of(namesrv, topic)
    control = await connect(route.address)
    bounds = []
    for queue in range(route.queues):
        found: list[Any] = []
        for code in (GET_MIN_OFFSET, GET_MAX_OFFSET):
            answer, _ = await control.ask(code, {"topic": topic, "queueId": str(queue)})
            found.append(answer.extFields.offset if answer.extFields is not None else 0)
        bounds.append((found[0], found[1]))
    control.transport.close()
    await control.closed
    host, _, port = route.address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: BareReader(route, topic, bounds), host.strip("[]"), int(port))
    try:
        await reader.done
    finally:
        reader.transport.close()
    return reader
