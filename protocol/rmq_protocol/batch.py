"""The body of SEND_BATCH_MESSAGE, which is also the body of an inner batch in the store (``MessageDecoder.encodeMessage``).

Messages follow each other. Each has these fields, with their bytes: TOTALSIZE 4 (22 + body + properties), MAGICCODE 4 and BODYCRC
4 (both 0), FLAG 4, body length 4, body, properties length 2, properties. ``decode_batch`` finds the next message by the two
length fields, and does not read TOTALSIZE, MAGICCODE and BODYCRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .constants import MAX_PROPERTIES_SIZE, RETRY_TOPIC_PREFIX, ResponseCode
from .errors import InvalidMessageError, RemoteProtocolError, shown
from .message import NO_KEYS, Message
from .properties import AFTER_ID, AFTER_ID_NO_WAIT, BEFORE_ID, message_properties
from .validation import check_message

__all__ = [
    "BATCH_OVERHEAD",
    "BatchRecord",
    "check_batch",
    "decode_batch",
    "encode_batch",
    "encode_batch_message",
    "encode_batch_records",
    "encode_batch_texts",
    "encode_plain_batch",
]

BATCH_OVERHEAD: Final = 22
"""Bytes that a message takes in a batch in addition to its body and its properties."""

PLAIN_FROM: Final = 4
"""With at least this many messages, it is worth checking whether they can be encoded all at once."""

_HEAD: Final = struct.Struct(">iiiii")
_FLAG_AND_LENGTH: Final = struct.Struct(">12xii")
_HEAD_SIZE: Final = _HEAD.size
_LENGTH: Final = struct.Struct(">H")
_BEFORE_ID: Final = BEFORE_ID.encode()
_AFTER_ID: Final = AFTER_ID.encode()
_AFTER_ID_NO_WAIT: Final = AFTER_ID_NO_WAIT.encode()
"""The encoded properties before and after the unique id of a message that has no other properties."""


class BatchRecord(NamedTuple):
    """One message of a batch.

    Attributes:
        properties: The encoded properties, as on the wire.
    """

    flag: int
    body: bytes
    properties: bytes


def encode_batch_message(body: bytes, flag: int, properties: bytes) -> bytes:
    """Return one encoded message of a batch body. A batch body is the concatenation of such messages.

    Raises:
        InvalidMessageError: If the properties take more than 32767 bytes, the body is not ``bytes``, the flag is not a signed
            32-bit integer, or the message has 2 GiB or more (code 13).
    """
    if len(properties) > MAX_PROPERTIES_SIZE:
        raise InvalidMessageError(
            f"the properties take {len(properties)} bytes, the limit is {MAX_PROPERTIES_SIZE}; shorten them"
        )
    if not isinstance(body, bytes):
        raise InvalidMessageError(f"the body must be bytes, not {type(body).__name__}")
    size = len(body)
    try:
        head = _HEAD.pack(BATCH_OVERHEAD + size + len(properties), 0, 0, flag, size)
    except struct.error:
        raise InvalidMessageError(
            f"the flag, {shown(flag)}, must be a 32-bit integer, and the message, {BATCH_OVERHEAD + size + len(properties)} "
            "bytes, must be smaller than 2 GiB"
        ) from None
    return b"".join((head, body, _LENGTH.pack(len(properties)), properties))


def encode_batch(messages: Sequence[Message], unique_ids: list[str], max_body: int) -> bytes:
    """Return the uncompressed body of a batch.

    The UNIQ_KEY of each message is the id at the same position in ``unique_ids``.

    If a message has its own ``unique_id``, that id replaces the id in the caller's list. Messages of one topic that have only a
    body can be encoded all at once (0.4 us each). Other messages are encoded one by one in one loop (0.9 us each; separate calls of
    ``check_batch``, ``check_message`` and ``encode_batch_message`` would take 1.4 us).

    Args:
        max_body: Maximum bytes of one message's body.

    Raises:
        InvalidMessageError: If the batch is empty, ``check_message`` refuses a topic or body, ``check_batch`` refuses the messages,
            or the properties of a message have more than 32767 bytes.
        TypeError: If an object is not a Message.
        ValueError: If the numbers of ids and messages differ.
    """
    if not messages:
        raise InvalidMessageError("a batch needs at least one message")
    if len(messages) != len(unique_ids):
        raise ValueError(f"{len(messages)} messages need as many unique ids, not {len(unique_ids)}")
    first = messages[0]
    if first.__class__ is not Message or first.keys is not NO_KEYS or len(messages) < PLAIN_FROM:
        return _encode_each(messages, unique_ids, max_body)
    topic, wait_store = first.topic, first.wait_store
    bodies = [
        message.body
        for message in messages
        if message.__class__ is Message
        and message.keys is NO_KEYS
        and message.topic is topic
        and message.wait_store is wait_store
        and message.body.__class__ is bytes
    ]
    if (
        len(bodies) == len(messages)
        and min(sizes := list(map(len, bodies))) > 0
        and max(sizes) <= max_body
        and len(set(map(len, unique_ids))) == 1
    ):
        check_message(topic, bodies[0], max_body)
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            return encode_plain_batch(bodies, unique_ids, wait_store=wait_store)
    return _encode_each(messages, unique_ids, max_body)


def encode_plain_batch(bodies: Sequence[bytes], unique_ids: Sequence[str], *, wait_store: bool = True) -> bytes:
    """Return the body of a batch of messages whose only properties are UNIQ_KEY and WAIT.

    There must be at least one message, and all ids must have the same length. The function does not check this.
    """
    number, sizes = len(bodies), list(map(len, bodies))
    after = _AFTER_ID if wait_store else _AFTER_ID_NO_WAIT
    width = len(_BEFORE_ID) + len(unique_ids[0]) + len(after)
    parts = [_LENGTH.pack(width) + _BEFORE_ID] * (4 * number)
    parts[0::4] = bodies
    parts[2::4] = [unique_id.encode() for unique_id in unique_ids]
    size = sizes[0]
    head = _HEAD.pack(BATCH_OVERHEAD + size + width, 0, 0, 0, size)
    if sizes.count(size) == number:
        parts[3::4] = [after + head] * number
    else:
        heads = {size: after + _HEAD.pack(BATCH_OVERHEAD + size + width, 0, 0, 0, size) for size in set(sizes)}
        parts[3:-1:4] = [heads[size] for size in sizes[1:]]
    parts[-1] = after
    parts.insert(0, head)
    return b"".join(parts)


def _encode_each(messages: Sequence[Message], unique_ids: list[str], max_body: int) -> bytes:
    first = messages[0]
    _check_member(first, first, max_body)
    topic, wait_store = first.topic, first.wait_store
    parts: list[bytes] = []
    head = tail = b""
    size = width = flag = -1
    for message, unique_id in zip(messages, unique_ids, strict=True):
        if message.__class__ is not Message:
            _check_member(message, first, max_body)
        body = message.body
        if (
            message.topic is not topic
            or body.__class__ is not bytes
            or not 0 < len(body) <= max_body
            or message.wait_store is not wait_store
            or message.delay_level
            or message.delay is not None
            or message.deliver_at is not None
            or message.lite_topic is not None
            or message.priority is not None
        ):
            _check_member(message, first, max_body)
        if message.unique_id is not None:
            unique_id = unique_ids[len(parts) // 4] = message.unique_id
        properties = message_properties(message, unique_id).encode()
        if len(body) != size or len(properties) != width or message.flag != flag:
            size, width, flag = len(body), len(properties), message.flag
            head = _HEAD.pack(BATCH_OVERHEAD + size + width, 0, 0, flag, size)
            tail = _LENGTH.pack(width)
        parts += (head, body, tail, properties)
    return b"".join(parts)


def _check_member(message: object, first: Message, max_body: int) -> None:
    if not isinstance(message, Message):
        raise TypeError(f"a batch must be made of Messages, not of {type(message).__name__}")
    check_message(message.topic, message.body, max_body)
    check_batch((first, message))


def encode_batch_records(records: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body of a batch. Each record has the flag, the body and the encoded properties of one message (``BatchRecord``).

    Apart from the cases below, nothing is checked.

    Raises:
        struct.error: If a flag is not a signed 32-bit integer, the properties of a message take more than 65535 bytes, or a message
            has 2 GiB or more.
    """
    parts: list[bytes] = []
    head = tail = b""
    size = width = last = -1
    for flag, body, properties in records:
        if len(body) != size or len(properties) != width or flag != last:
            size, width, last = len(body), len(properties), flag
            head = _HEAD.pack(BATCH_OVERHEAD + size + width, 0, 0, flag, size)
            tail = _LENGTH.pack(width)
        parts += (head, body, tail, properties)
    return b"".join(parts)


def encode_batch_texts(items: Iterable[tuple[Message, str]], unique_ids: Iterable[str]) -> bytes:
    """Return the body of a batch of messages. Each item is a message and the part of its properties after the unique id.

    Apart from the cases below, nothing is checked.

    Raises:
        ValueError: If the numbers of ids and messages differ.
        struct.error: If a flag is not a signed 32-bit integer, the properties of a message take more than 65535 bytes, or a message
            has 2 GiB or more.
    """
    parts: list[bytes] = []
    head = tail = b""
    size = width = last = -1
    for (message, after_id), unique_id in zip(items, unique_ids, strict=True):
        body, flag, properties = message.body, message.flag, f"{BEFORE_ID}{unique_id}{after_id}".encode()
        if len(body) != size or len(properties) != width or flag != last:
            size, width, last = len(body), len(properties), flag
            head = _HEAD.pack(BATCH_OVERHEAD + size + width, 0, 0, flag, size)
            tail = _LENGTH.pack(width)
        parts += (head, body, tail, properties)
    return b"".join(parts)


def decode_batch(data: bytes, max_records: int | None = None) -> list[BatchRecord]:
    """Return the messages of a batch body.

    Raises:
        RemoteProtocolError: If a message is cut off, has a negative length or has properties above 32767 bytes (the error contains
            the position), or if there are more than ``max_records`` messages (the error has code 13, MESSAGE_ILLEGAL). If
            ``max_records`` is None, the number of messages is not limited.
    """
    records: list[BatchRecord] = []
    position, end = 0, len(data)
    while position < end:
        if position + BATCH_OVERHEAD > end:
            raise RemoteProtocolError(
                f"batch: {end - position} bytes are left at byte {position}, but a message takes at least {BATCH_OVERHEAD}"
            )
        if max_records is not None and len(records) >= max_records:
            raise RemoteProtocolError(
                f"a batch must have at most {max_records} messages, this one has more", code=ResponseCode.MESSAGE_ILLEGAL
            )
        flag, length = _FLAG_AND_LENGTH.unpack_from(data, position)
        body_at = position + _HEAD_SIZE
        body_end = body_at + length
        if length < 0 or body_end + 2 > end:
            raise RemoteProtocolError(
                f"batch: body length {length} at byte {position + 16} must be from 0 to {end - body_at - 2}, the bytes that are "
                "left minus 2 for the properties length"
            )
        properties_at = body_end + 2
        length = data[body_end] << 8 | data[body_end + 1]
        position = properties_at + length
        if length > MAX_PROPERTIES_SIZE or position > end:
            raise RemoteProtocolError(
                f"batch: properties length {length} at byte {body_end} must be at most {MAX_PROPERTIES_SIZE} and at most "
                f"{end - properties_at}, the bytes that are left"
            )
        records.append(BatchRecord(flag, data[body_at:body_end], data[properties_at:position]))
    return records


def check_batch(messages: Sequence[Message]) -> None:
    """Check the rules of ``MessageBatch.generateFromList``: at least one message, all of the same topic and ``wait_store``, no
    delays, no retry topic.

    Timers (``delay``, ``deliver_at``) count as delays too, and lite topics and priorities are refused: brokers would ignore all of
    them silently.

    Raises:
        InvalidMessageError: If a rule is broken. The code is -1 for different topics and for a retry topic, else 13.
    """
    if not messages:
        raise InvalidMessageError("a batch needs at least one message")
    first = messages[0]
    for message in messages:
        if message.topic != first.topic:
            raise InvalidMessageError(
                f"the messages of a batch must have one topic, not {first.topic!r} and {message.topic!r}; send a batch for each",
                code=-1,
            )
        if message.wait_store != first.wait_store:
            raise InvalidMessageError("the messages of a batch must have the same wait_store, True or False; send two batches")
        if message.delay_level or message.delay is not None or message.deliver_at is not None:
            raise InvalidMessageError("delayed messages cannot be sent in a batch; send each alone")
        if message.lite_topic is not None or message.priority is not None:
            what = "a priority" if message.lite_topic is None else "a lite topic"
            raise InvalidMessageError(
                f"a message with {what} cannot be sent in a batch, where brokers ignore it; send it alone"
            )
    if first.topic.startswith(RETRY_TOPIC_PREFIX):
        raise InvalidMessageError(
            f"messages of retry topic {first.topic!r} cannot be sent in a batch; send each alone", code=-1
        )
