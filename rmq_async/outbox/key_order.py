"""Decides which rows may be sent now: rows of one sharding key one after the other, small rows without a key in batches.

A key order holds the rows of one key that this process has taken. It breaks when a send fails: later rows of the key go back to the
table until the failure is written there, because only the table knows which row is first then. A row stays in hand until its
outcome is written; ``breaks`` counts, so that the caller of a query sees whether a break has made its result stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from .rows import Held

__all__ = ["KeyOrder", "KeyOrders", "batches"]

Key = tuple[str, str]

_OVERHEAD: Final = 512
"""Upper bound of the bytes that a message takes in a batch beside body and texts."""


class KeyOrder:
    """The order of rows with equal keys.

    ``waiting``: rows behind the row in flight. ``in_hand``: all rows whose outcome is not written yet. ``busy``: a task sends
    it.
    """

    __slots__ = ("broken", "busy", "in_hand", "key", "waiting")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.waiting: deque[Held] = deque()
        self.in_hand: set[int] = set()
        self.busy = self.broken = False


class KeyOrders:
    def __init__(self) -> None:
        self.breaks = 0
        self._orders: dict[Key, KeyOrder] = {}

    def in_hand(self, keys: Iterable[Key] | None = None) -> list[int]:
        """Ids of the rows of these keys, or of all, that are sent before any row that is added now."""
        orders = [self._orders[key] for key in dict.fromkeys(self._orders if keys is None else keys) if key in self._orders]
        return [row for order in orders if not order.broken for row in order.in_hand]

    def add(self, key: Key, row: Held) -> KeyOrder | None:
        """Adds a row to its order and returns the order; None for a broken order, whose rows go back."""
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = KeyOrder(key)
        if order.broken:
            return None
        order.waiting.append(row)
        order.in_hand.add(row.id)
        return order

    def break_off(self, order: KeyOrder) -> list[Held]:
        """Breaks the order after a failure; returns the waiting rows."""
        order.broken = True
        self.breaks += 1
        back = list(order.waiting)
        order.waiting.clear()
        return back

    def recorded(self, key: Key, row: int) -> None:
        """Removes a row whose outcome is written."""
        order = self._orders.get(key)
        if order is not None:
            order.in_hand.discard(row)
            if not order.in_hand and not order.busy:
                del self._orders[key]


def batches(rows: Sequence[Held], small: int, max_bytes: int, max_rows: int) -> Iterator[list[Held]]:
    """Groups rows without a key: into batches that a broker takes (one topic, bodies below ``small`` bytes, no delay,
    ``max_bytes`` in all), else alone. A row that failed is sent alone, because the broker may have refused its batch."""
    open_ones: dict[tuple[str, bool], tuple[list[Held], int]] = {}
    for row in rows:
        message = row.message
        if (
            not row.whole
            or row.size >= small
            or row.attempts
            or message.delay_level
            or message.deliver_at is not None
            or message.topic.startswith("%RETRY%")
        ):
            yield [row]
            continue
        kind = message.topic, message.wait_store
        size = row.size + _OVERHEAD + _texts(row)
        batch, used = open_ones.get(kind, ([], 0))
        if batch and (used + size > max_bytes or len(batch) >= max_rows):
            yield batch
            batch, used = [], 0
        batch.append(row)
        open_ones[kind] = batch, used + size
    yield from (batch for batch, _ in open_ones.values())


def _texts(row: Held) -> int:
    """Upper bound of the bytes of tags, keys and properties."""
    message = row.message
    size = len(message.tags or "") + sum(map(len, message.keys))
    if message.properties:
        size += sum(len(name) + len(value) + 2 for name, value in message.properties.items())
    return 4 * size
