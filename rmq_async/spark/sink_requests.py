"""The requests of one task of the sink: several rows of one topic as a batch, or one row by itself, encoded once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ..producer import PreparedSend, Producer, prepare
from .rows import Block, Part

__all__ = ["cuts", "sink_request"]


def cuts(sizes: Sequence[int], limit: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield runs of rows as start and exclusive end.

    A run has at most ``most`` rows and ``limit`` bytes; a larger row makes a run alone.
    """
    ends = list(accumulate(sizes, initial=0))
    start, count = 0, len(sizes)
    while start < count:
        end = min(max(bisect_right(ends, ends[start] + limit) - 1, start + 1), start + most)
        yield start, end
        start = end


def sink_request(producer: Producer, block: Block, part: Part, start: int, end: int) -> PreparedSend:
    """Encode the rows of ``part`` from ``start`` to ``end`` under new unique ids. Runs on the loop of the producer."""
    rows = part.rows[start:end]
    if isinstance(rows, range):
        chosen = slice(rows.start, rows.stop)
        bodies, texts = block.bodies[chosen], block.texts[chosen]
        flags = None if block.flags is None else block.flags[chosen]
    else:
        bodies, texts = [block.bodies[row] for row in rows], [block.texts[row] for row in rows]
        flags = None if block.flags is None else [block.flags[row] for row in rows]
    return prepare(producer, part.topic, bodies, texts, flags, part.queue)
