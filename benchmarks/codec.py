"""What encoding and decoding cost, beside stdlib json: ``python benchmarks/codec.py``.

The ways take turns, so that what the machine does meanwhile falls on all of them; given are the medians of the rounds, their
lowest and highest, and how many times as long each takes as the first of its group. Ways of one group have the same header, body
or message as their input or their result. Figures are nanoseconds of CPU per call, per message where a call has several.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from rmq_protocol.batch import decode_batch, encode_batch
from rmq_protocol.columns import StoredColumns, read_columns
from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import RequestCode, ResponseCode, SerializeType, SysFlag
from rmq_protocol.frame import FrameDecoder
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.send_codec import FIRST_OPAQUE, SendTemplate, decode_send_reply
from rmq_protocol.stored import decode_messages, encode_stored

BATCH: Final = 32
BODY: Final = b"x" * 128
UNIQUE_ID: Final = "7F000001000012345678000000000001"
BORN: Final = b"1700000000000"
PROPERTIES: Final = f"UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02"
FIELDS: Final = {
    "a": "orders", "b": "OrderTopic", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": BORN.decode(), "h": "0",
    "i": PROPERTIES, "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


class Way(NamedTuple):
    """``each``: messages of one call."""

    group: str
    name: str
    call: Callable[[], object]
    each: int = 1


def ways() -> list[Way]:
    return [*_requests(), *_replies(), *_batches(), *_stored(), *_checksums()]


def _template(kind: SerializeType) -> SendTemplate:
    return SendTemplate(
        group="orders", topic="OrderTopic", queue_id=3, broker_name="broker-a", default_topic="TBW102",
        default_topic_queues=4, serialize_type=kind,
    )  # fmt: skip


def _requests() -> list[Way]:
    template, binary = _template(SerializeType.JSON), _template(SerializeType.ROCKETMQ)
    command = RemotingCommand(code=int(RequestCode.SEND_MESSAGE_V2), opaque=FIRST_OPAQUE, ext_fields=dict(FIELDS), body=BODY)

    def by_json() -> bytes:
        header = json.dumps(
            {"code": 310, "flag": 0, "language": "PYTHON", "version": 513, "opaque": FIRST_OPAQUE,
             "serializeTypeCurrentRPC": "JSON", "extFields": {**FIELDS, "i": PROPERTIES}}
        ).encode()  # fmt: skip
        return b"".join([(4 + len(header) + len(BODY)).to_bytes(4, "big"), len(header).to_bytes(4, "big"), header, BODY])

    def frame_of(kind: SerializeType) -> Callable[[], bytes]:
        return lambda: b"".join(encode_command(command, kind))

    frame = FrameDecoder().feed(by_json())[0]
    group = "send request, encode"
    return [
        Way(group, "template", lambda: template.plain(FIRST_OPAQUE, BORN, UNIQUE_ID, BODY)),
        Way(group, "template, any properties", lambda: template.parts(FIRST_OPAQUE, BORN, PROPERTIES, BODY)),
        Way(group, "generic (msgspec)", frame_of(SerializeType.JSON)),
        Way(group, "stdlib json", by_json),
        Way(group, "binary, template", lambda: binary.parts(FIRST_OPAQUE, BORN, PROPERTIES, BODY)),
        Way(group, "binary, generic", frame_of(SerializeType.ROCKETMQ)),
        Way("send request, decode", "generic (msgspec)", lambda: decode_command(frame)),
        Way("send request, decode", "stdlib json", lambda: json.loads(frame.header)),
    ]


def _replies() -> list[Way]:
    answer = RemotingCommand(
        code=int(ResponseCode.SUCCESS),
        flag=1,
        opaque=FIRST_OPAQUE,
        ext_fields={
            "queueId": "3", "TRACE_ON": "true", "MSG_REGION": "DefaultRegion", "queueOffset": "123456",
            "msgId": "7F00000100002A9F00000000075BCD15", "transactionId": UNIQUE_ID,
        },
    )  # fmt: skip
    frame = FrameDecoder().feed(b"".join(encode_command(answer)))[0]
    binary = FrameDecoder().feed(b"".join(encode_command(answer, SerializeType.ROCKETMQ)))[0]
    group = "send reply, decode"
    return [
        Way(group, "typed", lambda: decode_send_reply(frame.header)),
        Way(group, "generic (msgspec)", lambda: decode_command(frame)),
        Way(group, "stdlib json", lambda: json.loads(frame.header)),
        Way(group, "binary, generic", lambda: decode_command(binary)),
    ]


def _batches() -> list[Way]:
    messages, ids = [Message("OrderTopic", BODY) for _ in range(BATCH)], [UNIQUE_ID] * BATCH
    encoded = encode_batch(messages, ids, 1 << 22)
    return [
        Way(f"batch of {BATCH}, per message", "encode", lambda: encode_batch(messages, ids, 1 << 22), BATCH),
        Way(f"batch of {BATCH}, per message", "decode", lambda: decode_batch(encoded), BATCH),
    ]


def _stored() -> list[Way]:
    record = _record(BODY)
    block, queue = record * BATCH, MessageQueue("OrderTopic", "broker-a", 3)
    batch = encode_batch([Message("OrderTopic", BODY) for _ in range(BATCH)], [UNIQUE_ID] * BATCH, 1 << 22)
    inner = _record(batch, SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH)
    compressed = _record(zlib.compress(BODY * 16), SysFlag.COMPRESSED) * BATCH

    def columns() -> StoredColumns:
        into = StoredColumns()
        read_columns(block, into, queue)
        return into

    group = "stored message, decode"
    return [
        Way(group, f"{BATCH} of one pull, each", lambda: decode_messages(block), BATCH),
        Way(group, "alone", lambda: decode_messages(record)),
        Way(group, f"{BATCH} into columns, each", columns, BATCH),
        Way(group, f"{BATCH} of an inner batch, each", lambda: decode_messages(inner), BATCH),
        Way(group, f"{BATCH} compressed ones, each", lambda: decode_messages(compressed), BATCH),
    ]


def _record(body: bytes, sys_flag: int = 0) -> bytes:
    return encode_stored(
        topic="OrderTopic", body=body, properties=PROPERTIES.encode(), queue_id=3, queue_offset=123456, sys_flag=sys_flag
    )


def _checksums() -> list[Way]:
    found = []
    try:
        from isal import isal_zlib
    except ImportError:  # the extra "compression" is not installed
        isal_zlib = None
    for size in (128, 4096, 1 << 20):
        data = bytes(range(256)) * (size // 256) or BODY

        def by_zlib(data: bytes = data) -> int:
            return zlib.crc32(data)

        found.append(Way(f"crc32 of {size:,} bytes", "zlib", by_zlib))
        if isal_zlib is not None:

            def by_isal(data: bytes = data) -> int:
                return isal_zlib.crc32(data)

            found.append(Way(f"crc32 of {size:,} bytes", "isal", by_isal))
    return found


def timed(way: Way, number: int) -> float:
    """Nanoseconds each, the loop's own 20 included."""
    call = way.call
    began = time.process_time_ns()
    for _ in repeat(None, number):
        call()
    return (time.process_time_ns() - began) / number / way.each


def calls_for(way: Way, seconds: float) -> int:
    """So many calls take about so long."""
    number = 1
    while True:
        began = time.perf_counter()
        for _ in repeat(None, number):
            way.call()
        took = time.perf_counter() - began
        if took > seconds / 4 or took > 0.02:
            return max(1, int(number * seconds / took))
        number *= 4


def measure(rounds: int, seconds: float) -> list[dict[str, Any]]:
    every = ways()
    numbers = [calls_for(way, seconds) for way in every]
    found: list[list[float]] = [[] for _ in every]
    for _ in range(rounds):
        for way, number, figures in zip(every, numbers, found, strict=True):
            figures.append(timed(way, number))
    first: dict[str, float] = {}
    rows = []
    for way, figures in zip(every, found, strict=True):
        middle = median(figures)
        ratio = middle / first.setdefault(way.group, middle)
        rows.append(
            {"what": way.group, "way": way.name, "ns": middle, "lowest": min(figures), "highest": max(figures), "ratio": ratio}
        )  # fmt: skip
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| what | way | ns | lowest - highest | x the first |", "|---|---|---|---|---|"]
    shown = ""
    for row in rows:
        group = row["what"] if row["what"] != shown else ""
        shown = row["what"]
        spread = f"{row['lowest']:,.0f} - {row['highest']:,.0f}"
        lines.append(f"| {group} | {row['way']} | {row['ns']:,.0f} | {spread} | {row['ratio']:.2f} |")
    return "\n".join(lines)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="codec.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each way has its turn (default: 9)")
    parser.add_argument("--seconds", type=float, default=0.05, help="of one turn, about (default: 0.05)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    options = parser.parse_args(given)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    rows = measure(options.rounds, options.seconds)
    machine = {"python": platform.python_version(), "system": platform.platform(), "msgspec": installed("msgspec")}
    settings = {"rounds": options.rounds, "seconds": options.seconds, "body": len(BODY), "batch": BATCH}
    document = msgspec.json.format(
        msgspec.json.encode({"machine": machine | {"isal": installed("isal")}, "settings": settings, "rows": rows})
    )
    if options.json == "-":
        print(document.decode())
    else:
        print(table(rows))
        if options.json:
            Path(options.json).write_bytes(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
