"""Splits messages into batches that a broker accepts, by their encoded size and not by the size of their bodies."""

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

    A batch ends where the next message would not fit, or has another topic or ``wait_store``. ``messages`` is read lazily, one
    message ahead of the batches. The size includes the unique id of each message, its own or the id that it gets when it is
    sent: 32 digits, or 56 while this process has a client with an IPv6 address.

    Raises:
        InvalidMessageError: At the position of the message in the iteration, for a message that a batch must not hold (delayed,
            of a retry topic, or otherwise invalid) and for one that alone is larger than ``max_bytes``: send that one by
            itself.
        ValueError: For a ``max_bytes`` that is not a whole number above 0.
        TypeError: In the iteration, for an object that is not a Message.
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
            f"message {number} ({_named(message)}) takes {size} bytes encoded, above max_bytes {max_bytes}; send it by itself"
        )
    return size


def _named(message: Message) -> str:
    keys = f", keys {' '.join(message.keys)[:80]!r}" if message.keys else ""
    return f"topic {shown(message.topic)}{keys}"
