"""Converts messages to rows and back. This module uses no clock, database or event loop."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from rmq_protocol.constants import PropertyName
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties
from rmq_protocol.validation import check_message

from .._text import type_name

LONGEST_ID: Final = 255
SMALL_BODY: Final = 64 * 1024
"""Maximum number of bytes of a body that is held with its row. A larger body is read when its row is sent."""
_LONGEST_KEY: Final = 2000
"""Maximum number of bytes of a sharding key. The key and the topic must fit into an index entry of PostgreSQL, which holds 2704
bytes.
"""
_LITE_TOPIC: Final = PropertyName.LITE_TOPIC.value
_PRIORITY: Final = PropertyName.PRIORITY.value
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


class StuckMessage(msgspec.Struct, frozen=True):
    """A message that has waited for a long time, has failed often, or cannot be sent at all (``state`` "FAILED").

    Attributes:
        id: Id of the row.
        age: Seconds since the message was added.
        attempts: Number of failed sends. If ``retry`` was called for the row, only sends after that call count.
        last_error: Type and message of the last error. None if no send has failed.
        state: "PENDING", "SENDING" or "FAILED".
        unique_id: The id that all copies of the message have.
    """

    id: int
    topic: str
    keys: tuple[str, ...]
    age: float
    attempts: int
    last_error: str | None
    state: str
    unique_id: str


class Held(msgspec.Struct, gc=False):
    """A row that is reserved for this process.

    Attributes:
        size: Size of the body in bytes.
        whole: False if ``message`` does not have its body yet, because the body is large.
        attempts: Number of failed sends.
        until: Monotonic time at which the lease expires. After that, another process may own the row.
    """

    id: int
    message: Message
    size: int
    attempts: int
    until: float
    whole: bool = True

    @property
    def key(self) -> tuple[str, str] | None:
        """Topic and sharding key, or topic and lite topic. Rows with the same topic and key are sent one after the other. None if
        the message has neither.
        """
        key = _key_of(self.message)
        return None if key is None else (self.message.topic, key)


def row_of(message: Message, unique_id: str, now: float, max_size: int) -> dict[str, Any]:
    """Return the values of the columns for a message.

    Args:
        now: Epoch seconds, from which ``delay`` counts.
        max_size: Maximum size of the body in bytes.

    Raises:
        InvalidMessageError: For a message that ``Producer.send`` refuses, and for values that a column cannot hold: a
            ``unique_id`` of more than 255 characters, a sharding key of more than 2000 bytes, a delivery outside the years 1970
            to 9999.
        TypeError: For an object that is not a Message.
    """
    if not isinstance(message, Message):
        raise TypeError(f"message must be a Message, not {type_name(message)}")
    check_message(message.topic, message.body, max_size, message.properties)
    unique_id = message.unique_id or unique_id
    if len(unique_id) > LONGEST_ID:
        raise InvalidMessageError(
            f"unique_id has {len(unique_id)} characters, the limit of an outbox is {LONGEST_ID}; shorten it"
        )
    if message.sharding_key is not None and (length := len(message.sharding_key.encode())) > _LONGEST_KEY:
        raise InvalidMessageError(f"sharding_key has {length} bytes, the limit of an outbox is {_LONGEST_KEY}; shorten it")
    message_properties(message, unique_id)  # raises an error if the properties are too large
    return {
        "topic": message.topic,
        "tags": message.tags or None,
        "keys": " ".join(message.keys) or None,
        "body": message.body,
        "properties": _properties_of(message),
        "sharding_key": _key_of(message),
        "flag": int(message.flag),
        "wait_store": bool(message.wait_store),
        "delay_level": int(message.delay_level),
        "deliver_at": _deliver_at(message, now),
        "unique_id": unique_id,
    }


def _key_of(message: Message) -> str | None:
    return message.lite_topic if message.sharding_key is None else message.sharding_key


def _properties_of(message: Message) -> str | None:
    """Return the properties as JSON, with the lite topic and the priority under their names on the wire, which no user's property
    may have.
    """
    properties = dict(message.properties or {})
    if message.lite_topic is not None:
        properties[_LITE_TOPIC] = message.lite_topic
    if message.priority is not None:
        properties[_PRIORITY] = str(message.priority)
    return msgspec.json.encode(properties).decode() if properties else None


def _deliver_at(message: Message, now: float) -> datetime | None:
    when = message.deliver_at
    if message.delay is not None:
        when = now + message.delay
    if when is None:
        return None
    seconds = when.timestamp() if isinstance(when, datetime) else when
    if not 0 <= seconds <= _LATEST:
        raise InvalidMessageError(f"the time of delivery must be from 1970 to the year 9999, not {seconds} s after 1970")
    return datetime.fromtimestamp(seconds, UTC)


def as_added(row: int, message: Message, columns: Mapping[str, Any], until: float) -> Held:
    """Return the row of a message that this process has just added.

    Args:
        columns: The result of ``row_of``.
        until: As in ``Held``.
    """
    size = len(message.body)
    whole = size <= SMALL_BODY
    if message.unique_id is None or message.delay is not None or not whole:
        body = message.body if whole else b""
        message = msgspec.structs.replace(
            message, body=body, unique_id=columns["unique_id"], delay=None, deliver_at=columns["deliver_at"]
        )
    return Held(row, message, size, 0, until, whole)


def message_of(row: Mapping[str, Any], body: bytes) -> Message:
    """Return the message of a row. It equals the message that was added, but has its ``unique_id``, and ``deliver_at`` in place
    of ``delay``.
    """
    properties = msgspec.json.decode(row["properties"]) if row["properties"] else {}
    lite_topic, priority = properties.pop(_LITE_TOPIC, None), properties.pop(_PRIORITY, None)
    return Message(
        row["topic"],
        body,
        tags=row["tags"],
        keys=row["keys"] or (),
        flag=row["flag"],
        properties=properties or None,
        delay_level=row["delay_level"],
        deliver_at=row["deliver_at"],
        wait_store=row["wait_store"],
        sharding_key=row["sharding_key"] if lite_topic is None else None,
        unique_id=row["unique_id"],
        lite_topic=lite_topic,
        priority=None if priority is None else int(priority),
    )
