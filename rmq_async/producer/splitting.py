"""Splits messages into batches that a broker accepts. The encoded size is limited, not the size of the bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rmq_protocol.batch import BATCH_OVERHEAD, check_batch
from rmq_protocol.constants import MAX_BODY_SIZE
from rmq_protocol.errors import InvalidMessageError, shown
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties
from rmq_protocol.validation import check_message

from .._text import type_name
from ..client import longest_id


def split_batches(messages: Iterable[Message], max_bytes: int = MAX_BODY_SIZE) -> Iterator[list[Message]]:
    """Yield batches for ``send_batch``, in the order of ``messages``, each of at most ``max_bytes`` encoded bytes.

    A batch ends if the next message does not fit, or has another topic or ``wait_store``. ``messages`` is read lazily, one message
    ahead of the batches. The size includes the unique id of each message. If a message has no unique id yet, it will get one with
    32 digits, or with 56 digits while this process has a client with an IPv6 address.

    Raises:
        InvalidMessageError: If a batch must not contain the message (because it is delayed, belongs to a retry topic or is
            otherwise invalid), or if the message alone is larger than ``max_bytes``. Send such a message by itself. The error is
            raised when the iteration reaches the message.
        ValueError: If ``max_bytes`` is not a whole number above 0.
        TypeError: If an object is not a Message. The error is raised when the iteration reaches the object.
    """
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
        raise ValueError(f"max_bytes must be a whole number above 0, not {shown(max_bytes)}")
    return _batches(messages, max_bytes)


def _batches(messages: Iterable[Message], max_bytes: int) -> Iterator[list[Message]]:
    batch: list[Message] = []
    used = 0
    for number, message in enumerate(messages):
        size = _checked_size(number, message, max_bytes)
        if batch and (
            used + size > max_bytes or message.topic != batch[0].topic or message.wait_store is not batch[0].wait_store
        ):
            yield batch
            batch, used = [], 0
        batch.append(message)
        used += size
    if batch:
        yield batch


def _checked_size(number: int, message: Message, max_bytes: int) -> int:
    """Return the bytes that a valid message takes in a batch."""
    if not isinstance(message, Message):
        raise TypeError(f"message {number} must be a Message, not {type_name(message)}")
    try:
        check_message(message.topic, message.body, max(max_bytes, MAX_BODY_SIZE))
        check_batch((message,))
        properties = message_properties(message, message.unique_id or "0" * longest_id())
    except InvalidMessageError as error:
        raise InvalidMessageError(f"message {number} ({_named(message)}): {error}", code=error.code) from error
    size = BATCH_OVERHEAD + len(message.body) + len(properties.encode())
    if size > max_bytes:
        raise InvalidMessageError(
            f"message {number} ({_named(message)}) has {size} encoded bytes, above max_bytes {max_bytes}; send it by itself"
        )
    return size


def _named(message: Message) -> str:
    keys = f", keys {' '.join(message.keys)[:80]!r}" if message.keys else ""
    return f"topic {shown(message.topic)}{keys}"
