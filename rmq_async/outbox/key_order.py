"""Decides which rows may be sent now: rows of one sharding key one after the other, small rows without a key in batches.

A key order holds the rows of one key that this process has taken. It breaks when a row is not sent: the rows behind it go back
to the table, and so do rows that are added until the outcomes are written, because only the table knows which row comes first
after a failure. A row stays in hand until its outcome is written. ``KeyOrders.breaks`` is the number of breaks: a query whose
result arrives after another break is stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from .rows import Held

__all__ = ["KeyOrder", "KeyOrders", "batches"]

Key = tuple[str, str]

_OVERHEAD: Final = 512
"""Number of bytes that a message counts in a batch beside body and texts."""


class KeyOrder:
    """The order of the rows with one topic and sharding key.

    Attributes:
        waiting: Rows behind the row in flight.
        in_hand: Ids of all rows whose outcome is not written yet.
        busy: Whether a task sends its rows.
        broken: Whether it takes no more rows.
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
        """Return the ids of the rows in hand of these keys (None: of all keys), without those of broken orders, which go back
        to the table.
        """
        orders = [self._orders[key] for key in dict.fromkeys(self._orders if keys is None else keys) if key in self._orders]
        return [row for order in orders if not order.broken for row in order.in_hand]

    def add(self, key: Key, row: Held) -> KeyOrder | None:
        """Add a row to the order of its key and return the order; None for a broken order, which takes no row."""
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = KeyOrder(key)
        if order.broken:
            return None
        order.waiting.append(row)
        order.in_hand.add(row.id)
        return order

    def break_off(self, order: KeyOrder) -> list[Held]:
        """Break the order after a row was not sent; return the waiting rows."""
        order.broken = True
        self.breaks += 1
        back = list(order.waiting)
        order.waiting.clear()
        return back

    def recorded(self, key: Key, row: int) -> None:
        """Remove a row whose outcome is written."""
        order = self._orders.get(key)
        if order is not None:
            order.in_hand.discard(row)
            if not order.in_hand and not order.busy:
                del self._orders[key]


def batches(rows: Sequence[Held], small: int, max_bytes: int, max_rows: int) -> Iterator[list[Held]]:
    """Group rows without a key: small ones form batches of one topic and one ``wait_store``, of up to ``max_rows`` rows and, if
    there is more than one, up to ``max_bytes`` bytes. Alone are rows whose body is not held or has ``small`` bytes or more,
    rows with a delay, rows of retry topics, and rows that failed before.
    """
    open_ones: dict[tuple[str, bool], tuple[list[Held], int]] = {}
    for row in rows:
        message = row.message
        if (
            not row.whole
            or row.size >= small
            or row.attempts  # the broker may have refused their batch
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
    """Return an upper bound of the bytes of tags, keys and properties."""
    message = row.message
    size = len(message.tags or "") + sum(map(len, message.keys))
    if message.properties:
        size += sum(len(name) + len(value) + 2 for name, value in message.properties.items())
    return 4 * size
