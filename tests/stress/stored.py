"""Raw account of what brokers have stored: sockets, struct and json only, nothing of the library.

It speaks four requests: route of a topic (105), maximum and minimum offset of a queue (30, 31), and pull (11) without waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["StoredRecord", "read_topic", "set_write_queues"]

FOUND: Final = 0
AGAIN: Final = frozenset({20})
"""PULL_RETRY_IMMEDIATELY: the broker has moved the offset."""
NO_NEW: Final = 19
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
COMPRESSED: Final = 1
BORN_V6: Final = 1 << 4
STORE_V6: Final = 1 << 5


@dataclass(frozen=True)
class StoredRecord:
    """One message as its broker holds it; ``body`` is decompressed."""

    broker: str
    queue_id: int
    offset: int
    flag: int
    physical: int
    store_host: str
    body: bytes
    properties: dict[str, str]


class RawConnection:
    """One connection to a server, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.opaques = itertools.count(1)

    @classmethod
    async def open(cls, address: str) -> RawConnection:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, code: int, fields: dict[str, str]) -> tuple[dict[str, Any], bytes]:
        opaque = next(self.opaques)
        header = {
            "code": code,
            "language": "JAVA",
            "version": 479,
            "opaque": opaque,
            "flag": 0,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": fields,
        }
        data = json.dumps(header).encode()
        self.writer.write(struct.pack(">ii", 4 + len(data), len(data)) + data)
        while True:
            length, header_length = struct.unpack(">iI", await asyncio.wait_for(self.reader.readexactly(8), 20))
            header_length &= 0xFFFFFF
            answer = json.loads(await self.reader.readexactly(header_length))
            body = await self.reader.readexactly(length - 4 - header_length)
            if answer["opaque"] == opaque and answer["flag"] & 1:
                return answer, body

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):  # reset by a fault
            await self.writer.wait_closed()


async def read_topic(namesrv: str, topic: str, addresses: dict[str, str] | None = None) -> list[StoredRecord]:
    """Everything the topic holds, by broker, queue and offset. ``addresses``: brokers' own, where the route names proxies."""
    server = await RawConnection.open(namesrv)
    answer, body = await server.ask(105, {"topic": topic, "acceptStandardJsonOnly": "true"})
    await server.close()
    if answer["code"] != 0:
        raise LookupError(f"topic {topic}: the name server answers {answer['code']} {answer.get('remark')}")
    route = json.loads(body)
    found: list[StoredRecord] = []
    masters = {each["brokerName"]: each["brokerAddrs"]["0"] for each in route["brokerDatas"]}
    for queues in route["queueDatas"]:
        name = queues["brokerName"]
        connection = await RawConnection.open((addresses or masters)[name])
        for queue_id in range(queues["readQueueNums"]):
            found += await _read_queue(connection, topic, name, queue_id)
        await connection.close()
    return found


async def _read_queue(connection: RawConnection, topic: str, broker: str, queue_id: int) -> list[StoredRecord]:
    queue = {"topic": topic, "queueId": str(queue_id)}
    low = int((await connection.ask(31, queue))[0]["extFields"]["offset"])
    high = int((await connection.ask(30, queue))[0]["extFields"]["offset"])
    found: list[StoredRecord] = []
    offset = low
    while offset < high:
        answer, body = await connection.ask(
            11,
            {
                **queue,
                "consumerGroup": "stress-account",
                "queueOffset": str(offset),
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            },
        )
        if answer["code"] == FOUND:
            found += _records(body, broker)
        elif answer["code"] not in AGAIN:
            raise LookupError(f"{topic} {broker} {queue_id} at {offset}: {answer['code']} {answer.get('remark')}")
        offset = max(int(answer["extFields"]["nextBeginOffset"]), offset + (answer["code"] == FOUND))
        await asyncio.sleep(0)
    offsets = [record.offset for record in found]
    if offsets != list(range(low, high)):
        raise LookupError(f"{topic} {broker} {queue_id}: {len(offsets)} records of offsets [{low}, {high})")
    return found


def _records(body: bytes, broker: str) -> list[StoredRecord]:
    found = []
    start = 0
    while start < len(body):
        size, magic, _, queue_id, flag, offset, physical, sys_flag = struct.unpack_from(">iIIiiqqi", body, start)
        at = start + 40 + 8 + (20 if sys_flag & BORN_V6 else 8) + 8
        store_size = 20 if sys_flag & STORE_V6 else 8
        host = (
            ".".join(map(str, body[at : at + 4]))
            + ":"
            + str(int.from_bytes(body[at + store_size - 4 : at + store_size], "big"))
        )
        at += store_size + 4 + 8
        (length,) = struct.unpack_from(">i", body, at)
        content = body[at + 4 : at + 4 + length]
        at += 4 + length
        if magic == MAGIC_V2:
            (topic_length,) = struct.unpack_from(">H", body, at)
            at += 2 + topic_length
        elif magic == MAGIC_V1:
            at += 1 + body[at]
        else:
            raise ValueError(f"magic code {magic:#x} at {start}")
        (length,) = struct.unpack_from(">H", body, at)
        text = body[at + 2 : at + 2 + length].decode()
        properties = dict(part.split("\x01", 1) for part in text.split("\x02") if part)
        if sys_flag & COMPRESSED:
            content = zlib.decompress(content)
        found.append(StoredRecord(broker, queue_id, offset, flag, physical, host, content, properties))
        start += size
    return found


async def set_write_queues(address: str, topic: str, write: int, read: int) -> None:
    """Has one broker change how many of the topic's queues are written to."""
    connection = await RawConnection.open(address)
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(read),
        "writeQueueNums": str(write),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    try:
        answer, _ = await connection.ask(17, fields)
    finally:
        await connection.close()
    if answer["code"] != 0:
        raise LookupError(f"topic {topic}: {answer['code']} {answer.get('remark')}")
