"""The body that acknowledges many popped messages at once (BATCH_ACK_MESSAGE): members of an ack have names of one or two
letters, and offsets are bits."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..errors import LocalProtocolError
from ..java_types import Int, Long

__all__ = ["MAX_ACK_SPAN", "BatchAck", "BatchAckMessageRequestBody", "pack_bits", "unpack_bits"]

MAX_ACK_SPAN = 65_536
"""The highest offset that one ack may name, counted from its ``start_offset``; a pop returns 32 messages at most."""


class BatchAck(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledges messages of one queue from one pop. ``start_offset``: queue offset at which the pop began, ``retry``: 0, 1
    or 2 as in ``ExtraInfo``, ``pop_time``: epoch ms, ``invisible_time``: ms, ``bit_set``: see ``pack_bits``."""

    consumer_group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    retry: str = msgspec.field(name="r", default="0")
    start_offset: Long = msgspec.field(name="so")
    queue_id: Int = msgspec.field(name="q")
    revive_queue_id: Int = msgspec.field(name="rq")
    pop_time: Long = msgspec.field(name="pt")
    invisible_time: Long = msgspec.field(name="it")
    bit_set: bytes = msgspec.field(name="b", default=b"")


class BatchAckMessageRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str = ""
    acks: tuple[BatchAck, ...] = ()


def pack_bits(bits: Iterable[int]) -> bytes:
    """Returns bytes in which the bits with the given numbers are set. Bit i says that the message at ``start_offset + i`` is
    acknowledged; bit 0 is the lowest bit of the first byte.

    Raises LocalProtocolError for a number outside 0..MAX_ACK_SPAN.
    """
    value = 0
    for bit in bits:
        if not 0 <= bit <= MAX_ACK_SPAN:
            raise LocalProtocolError(
                f"offset {bit}, counted from start_offset, must be from 0 to {MAX_ACK_SPAN}; acknowledge this message alone"
            )
        value |= 1 << bit
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def unpack_bits(data: bytes) -> tuple[int, ...]:
    """Returns the numbers of the set bits as in ``pack_bits``, ascending; numbers above MAX_ACK_SPAN are left out."""
    octets = enumerate(data[: MAX_ACK_SPAN // 8 + 1])
    bits = (8 * at + place for at, octet in octets if octet for place in range(8) if octet >> place & 1)
    return tuple(bit for bit in bits if bit <= MAX_ACK_SPAN)
