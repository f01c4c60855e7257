"""The settings of a producer that gathers messages into batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmq_protocol.constants import MAX_FRAME_SIZE

from ...config import check_int, check_seconds
from ...options import suggests_keywords

__all__ = ["Batching"]

LANES: Final = 3
"""Measured with 128-byte bodies on a stock broker, see docs/performance.md: with one lane client and broker wait for each other."""


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Batching:
    """How messages gather. ``batching=True`` of a producer is ``Batching()``.

    A send leaves at once, at the end of the loop's iteration with all others of it, while its lane is idle; while requests are
    under way in the lane further messages gather, and leave as one batch when one of those is answered. A lane is a topic (and
    ``wait_store``), or, for a send with a queue, selector or key, a queue, which has one request under way at a time.

    ``max_bytes``: of one batch as it is on the wire; a message that alone takes more goes singly. ``max_messages``: of one batch.
    A batch that is full leaves without waiting for an answer, where it carries no order. ``linger``: seconds that the first
    message waits for others even in an idle lane, up to half of what is left of any caller's timeout; where it carries no order
    also up to half of the producer's own ``timeout``. ``max_pending_bytes``: of bodies accepted and not finished, for all sends
    of the producer; the smaller of this and ``pending_bytes_limit`` holds, and callers wait. ``lanes_per_broker``: requests of
    one topic that may be under way to one broker before messages gather; one that is not answered within the producer's
    ``timeout`` does not count any more.

    Raises ConfigError for values out of range.
    """

    max_bytes: int = 256 * 1024
    max_messages: int = 1024
    linger: float = 0.0
    max_pending_bytes: int = 32 * 1024 * 1024
    lanes_per_broker: int = LANES

    def __post_init__(self) -> None:
        check_int("max_bytes", self.max_bytes, 1, MAX_FRAME_SIZE - 128 * 1024)
        check_int("max_messages", self.max_messages, 1, 1 << 16)
        check_seconds("linger", self.linger, zero=True)
        check_int("max_pending_bytes", self.max_pending_bytes, 1, 1 << 40)
        check_int("lanes_per_broker", self.lanes_per_broker, 1, 1 << 16)
