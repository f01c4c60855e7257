"""Formats stored messages for output, and reads the JSON objects that ``rmq pull --json`` printed."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from zlib import crc32

import msgspec

from rmq_async import MessageExt, MessageQueue
from rmq_async._text import printable
from rmq_protocol.forwarding import holdable

from .output import Output


def fields_of(message: MessageExt) -> dict[str, object]:
    """Return the fields for ``--json``. The body is the string ``body`` if it is valid UTF-8. Otherwise, it is
    ``body_base64``.
    """
    fields: dict[str, object] = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "flag": message.flag,
        "born_time_ms": message.born_time_ms,
        "store_time_ms": message.store_time_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
    }
    try:
        return {**fields, "body": message.body.decode()}
    except UnicodeDecodeError:
        return {**fields, "body_base64": base64.b64encode(message.body).decode()}


def fields_of_queue(queue: MessageQueue) -> dict[str, object]:
    return {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}


def body_bytes(message: MessageExt) -> bytes:
    """Return the body. For a terminal, return it as text in which invalid UTF-8 and control characters except newline and tab
    are escaped.
    """
    return visible(message.body.decode(errors="backslashreplace")).encode() if sys.stdout.isatty() else message.body


def headline(message: MessageExt) -> str:
    """Return queue, offset, time, id, tags and keys of a message on one line."""
    queue = message.queue
    parts = [f"{queue.broker_name}:{queue.queue_id}", str(message.queue_offset), moment(message.store_time_ms), message.msg_id]
    if message.tags is not None:
        parts.append(f"tags={message.tags}")
    if message.keys:
        parts.append(f"keys={' '.join(message.keys)}")
    return visible(" ".join(parts), kept="")


def described(message: MessageExt) -> list[str]:
    """Return the lines that describe a message: one line for each field and each property, the size of the body, and
    the body.
    """
    lines = [f"{name + ':':<16}{_shown(value)}" for name, value in fields_of(message).items() if name not in _APART]
    lines += [f"property {name}: {value}" for name, value in message.properties.items()]
    body = message.body.decode(errors="backslashreplace")
    return [*(visible(line, kept="") for line in lines), f"body ({len(message.body)} bytes):", visible(body)]


def moment(time_ms: int) -> str:
    """Return epoch milliseconds as an ISO time in UTC. Return "-" for 0 and negative values, and from the year 10000 on."""
    if not 0 < time_ms < 253_402_300_800_000:  # the year 10000
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_APART = frozenset({"properties", "body", "body_base64"})


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return "" if value is None else str(value)


def visible(text: str, *, kept: str = "\n\t") -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


# Reads messages that ``--json`` printed, to send copies of them. The copies have the fields that the senders set, and the
# messages of each queue keep their order.
#
# A line is an object with ``body`` (text) or ``body_base64``, and any of ``tags``, ``keys``, ``flag``, ``properties``,
# ``broker`` and ``queue_id``. Other fields are ignored, so the objects of a newer version can be read. A copy has the
# properties that a sender may set (see ``Message.from_received``) but no system properties: it gets a new id, and a consumer
# group receives it as a first attempt.


class _Record(msgspec.Struct):
    body: str | None = None
    body_base64: str | None = None
    tags: str | msgspec.UnsetType | None = msgspec.UNSET
    keys: list[str] | str | msgspec.UnsetType | None = msgspec.UNSET
    flag: int = 0
    properties: dict[str, str] | None = None
    broker: str | None = None
    queue_id: int | None = None


_decode = msgspec.json.Decoder(_Record).decode


def read_record(line: bytes) -> tuple[MessageExt, tuple[str, int] | None]:
    """Return the message of a line, and the broker and number of its queue. The queue is None if the line does not name both.

    ``tags`` and ``keys`` replace the properties that hold them.

    Raises:
        ValueError: If the line is not a JSON object in the format of ``rmq pull --json``.
    """
    try:
        record = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a JSON object in the format of rmq pull --json ({error}); give one object per line") from None
    properties = record.properties or {}
    if record.tags is not msgspec.UNSET:
        properties["TAGS"] = record.tags or ""
    if record.keys is not msgspec.UNSET:
        keys = record.keys or ()
        properties["KEYS"] = keys if isinstance(keys, str) else " ".join(keys)
    message = MessageExt("", _body(record), flag=record.flag, properties=properties)
    place = None if record.broker is None or record.queue_id is None else (record.broker, record.queue_id)
    return message, place


def _body(record: _Record) -> bytes:
    if (record.body is None) is (record.body_base64 is None):
        has = "neither" if record.body is None else "both"
        raise ValueError(f"the object must have either body or body_base64, and it has {has}")
    if record.body is not None:
        return record.body.encode()
    assert record.body_base64 is not None
    try:
        return base64.b64decode(record.body_base64, validate=True)
    except ValueError as error:
        raise ValueError(f"body_base64 is not Base64: {error}; encode it as rmq pull --json does") from None


class LeftOut:
    """Counts the strings of received messages that ``Message.from_received`` leaves out because a Message does not allow them.

    Clients in other languages send blank strings, and strings that contain U+0001.
    """

    def __init__(self) -> None:
        self._texts = self._messages = 0
        self._first = ""

    def count(
        self, message: MessageExt, where: str, *, tags: bool = True, keys: bool = True, sharding_key: bool = True
    ) -> None:
        """Count the strings that the copy of a message lacks.

        Args:
            tags: Whether the tags of the message are copied.
            keys: Whether the keys are copied.
            sharding_key: Whether the sharding key is copied.
        """
        texts = [name for name, value in message.user_properties.items() if not (holdable(name) and holdable(value))]
        found = [f"property {name}" for name in texts]
        others = [("key", key) for key in message.keys if keys]
        others += [("tag", message.tags)] if tags and message.tags else []
        others += [("sharding key", message.sharding_key)] if sharding_key and message.sharding_key else []
        found += [f"{name} {text}" for name, text in others if holdable(text) is None]
        if found:
            self._texts += len(found)
            self._messages += 1
            self._first = self._first or printable(f"{found[0]} of {where}")

    def report(self, output: Output) -> None:
        """Print the counts on stderr, if there are any."""
        if self._texts:
            output.trouble(
                f"{self._texts} texts of {self._messages} messages are left out, because they are blank or have control "
                f"characters 0 to 2, which a message must not have; the first: {self._first}"
            )


class Queues:
    """The queues of the topic that copies are sent to."""

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self._all = queues
        self._by_place = {(queue.broker_name, queue.queue_id): queue for queue in queues}

    def of(self, place: tuple[str, int]) -> MessageQueue:
        """Return the queue for the copies of messages from queue ``place``.

        It is the queue with the same broker and number. If there is none, choose a queue by these two values only.
        """
        found = self._by_place.get(place)
        if found is None:
            broker, number = place
            found = self._all[(crc32(broker.encode()) + number) % len(self._all)]
        return found
