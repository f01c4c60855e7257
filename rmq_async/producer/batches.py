"""Many messages as batches that a broker takes: cut by their size as it is on the wire, not by the sizes of bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rmq_protocol.batch import BATCH_OVERHEAD, check_batch
from rmq_protocol.constants import MAX_BODY_SIZE
from rmq_protocol.errors import InvalidMessageError, shown
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties
from rmq_protocol.validation import check_message

from ..client.unique_ids import longest_id

__all__ = ["split_batches"]


def split_batches(messages: Iterable[Message], max_bytes: int = MAX_BODY_SIZE) -> Iterator[list[Message]]:
    """Batches for ``send_batch``, in the order of ``messages``, each of at most ``max_bytes`` as it is encoded.

    A batch ends where the next message would not fit, or has another topic or ``wait_store``. ``messages`` is read as the batches
    are asked for, one message ahead. The unique id that each message gets when it is sent counts with 32 digits, or with 56
    once a client of this process that is addressed by IPv6 has started.

    Raises InvalidMessageError, in its place in the iteration, for what no batch may hold (delayed messages, those of retry topics,
    what ``send`` refuses) and for a message that alone takes more than ``max_bytes``: it has to be sent singly. ValueError for a
    ``max_bytes`` below 1.
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
    """Bytes of the message in a batch."""
    if not isinstance(message, Message):
        raise TypeError(f"message {number} is no Message but {type(message).__name__}")
    try:
        check_message(message.topic, message.body)
        check_batch((message,))
        properties = message_properties(message, message.unique_id or "0" * longest_id())
    except InvalidMessageError as error:
        raise InvalidMessageError(f"message {number} ({_named(message)}): {error}", code=error.code) from error
    size = BATCH_OVERHEAD + len(message.body) + len(properties.encode())
    if size > max_bytes:
        raise InvalidMessageError(
            f"message {number} ({_named(message)}) takes {size} bytes encoded, the limit of a batch is {max_bytes}; send it singly"
        )
    return size


def _named(message: Message) -> str:
    keys = f", keys {' '.join(message.keys)[:80]!r}" if message.keys else ""
    return f"topic {shown(message.topic)}{keys}"
