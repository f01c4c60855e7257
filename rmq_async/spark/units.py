"""What travels as one request: several rows of one topic as a batch, or one row by itself, encoded once.

It is encoded before the first attempt and sent as it is by every further one, so that all copies of a row have the same unique id.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from time import monotonic
from typing import Final, NamedTuple

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.message import MessageQueue
from rmq_protocol.properties import properties_text

from ..producer import Producer
from ..producer.outgoing import Outgoing
from ..producer.replies import stored_batch, stored_message
from ..producer.selectors import checked_wish
from ..results import BatchSendResult, SendResult
from .rows import Block, Part

__all__ = ["SinkProducer", "Unit", "cuts"]

_HEAD: Final = struct.Struct(">iiiii").pack
_LENGTH: Final = struct.Struct(">H").pack
_BATCH_PROPERTIES: Final = "WAIT\x01true\x02"


class Unit(NamedTuple):
    """``rows``: how many. ``bytes``: of their bodies. ``held``: of all that is kept until the answer. ``queue``: where they must
    go, None where any will do."""

    outgoing: Outgoing
    queue: MessageQueue | None
    rows: int
    bytes: int
    held: int


def cuts(sizes: Sequence[int], limit: int, most: int) -> Iterator[tuple[int, int]]:
    """Runs [start, end) of rows that together take up to ``limit`` bytes and are at most ``most``; a larger row is a run itself."""
    ends = list(accumulate(sizes, initial=0))
    start, count = 0, len(sizes)
    while start < count:
        end = min(max(bisect_right(ends, ends[start] + limit) - 1, start + 1), start + most)
        yield start, end
        start = end


class SinkProducer(Producer):
    """Sends what is encoded already."""

    def unit(self, block: Block, part: Part, start: int, end: int) -> Unit:
        """The rows of ``part`` from ``start`` to ``end``, encoded under new unique ids. On the loop."""
        whole = part.rows[start:end]
        if isinstance(whole, range):
            chosen = slice(whole.start, whole.stop)
            bodies, texts = block.bodies[chosen], block.texts[chosen]
            flags = None if block.flags is None else block.flags[chosen]
        else:
            bodies, texts = [block.bodies[row] for row in whole], [block.texts[row] for row in whole]
            flags = None if block.flags is None else [block.flags[row] for row in whole]
        size = sum(map(len, bodies))
        encoder = self._usable().encoder
        ids = encoder.ids.take(len(bodies))
        namespace = properties_text(encoder.instance)
        if len(bodies) == 1:
            properties = f"UNIQ_KEY\x01{ids[0]}\x02WAIT\x01true\x02{texts[0]}{namespace}"
            outgoing = encoder.outgoing(part.topic, ids[0], properties, bodies[0], 0, flags[0] if flags else 0)
        else:
            body = _encoded(bodies, texts, ids, flags or [0] * len(bodies))
            outgoing = encoder.outgoing(part.topic, ids[0], _BATCH_PROPERTIES + namespace, body, 0, 0, tuple(ids))
        held = len(outgoing.body) + len(outgoing.properties)
        return Unit(outgoing, part.queue, len(bodies), size, held)

    async def compact(self, unit: Unit, timeout: float) -> Unit:
        """A single large row compressed, as ``send`` would do it. Raises RequestTimeoutError after ``timeout`` seconds."""
        sender = self._usable()
        if unit.outgoing.batch_ids is not None or unit.bytes < sender.encoder.compress_over:
            return unit
        return unit._replace(outgoing=await sender.compressed(unit.outgoing, monotonic() + timeout))

    async def deliver(self, unit: Unit, timeout: float) -> SendResult | BatchSendResult:
        """Sends a unit; ``timeout``, result and errors are those of ``send`` and ``send_batch``. It may be sent again."""
        sender = self._usable()
        started = monotonic()
        outgoing, queue = unit.outgoing, unit.queue
        wish = checked_wish(outgoing.topic, queue, None, None, sender.prefix) if queue is not None else None
        deadline = started + timeout
        if outgoing.batch_ids is None:
            return await sender.deliver(outgoing, None, wish, 1, unit.bytes, stored_message, started, deadline)
        return await sender.deliver(outgoing, None, wish, unit.rows, unit.bytes, stored_batch, started, deadline)


def _encoded(bodies: list[bytes], texts: list[str], ids: list[str], flags: list[int]) -> bytes:
    """The body of a batch, as ``rmq_protocol.batch.encode_batch`` makes it of messages."""
    parts: list[bytes] = []
    head = tail = b""
    size = width = last = -1
    for body, text, unique_id, flag in zip(bodies, texts, ids, flags, strict=True):
        properties = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02{text}".encode()
        if len(body) != size or len(properties) != width or flag != last:
            size, width, last = len(body), len(properties), flag
            head = _HEAD(BATCH_OVERHEAD + size + width, 0, 0, flag, size)
            tail = _LENGTH(width)
        parts += (head, body, tail, properties)
    return b"".join(parts)
