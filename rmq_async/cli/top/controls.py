"""The choices of a user of the live view: the table in focus, its order, the filter, the scroll position.

This module does no I/O.

The keys are: Tab selects the next table, s selects the next column to sort by, r reverses the order, / begins a filter, j, k and
arrows scroll, and q ends the view.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, TypeVar

from .figures import BrokerRow, GroupRow, TopicRow

Row = TypeVar("Row", TopicRow, GroupRow, BrokerRow)

TABLES: Final = ("topics", "groups", "brokers")
COLUMNS: Final = {
    "topics": ("topic", "in", "out", "messages", "queues", "groups"),
    "groups": ("group", "lag", "rate", "members", "oldest", "retries"),
    "brokers": ("broker", "state", "in", "out", "disk", "version", "address", "replicas", "cluster"),
}
"""The headings of the columns of each table. The first heading is the name."""
_FIELDS: Final = {"in": "in_rate", "out": "out_rate", "disk": "disk_used"}
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_SCROLL: Final = {
    "j": 1, "k": -1, "\x1b[B": 1, "\x1b[A": -1, "\x1bOB": 1, "\x1bOA": -1, "\x1b[6~": 10, "\x1b[5~": -10, "\x1b[H": -(1 << 30),
}  # fmt: skip
LONGEST_FILTER: Final = 127


@dataclass
class Order:
    """The order of a table's rows.

    Attributes:
        column: A heading.
        reverse: Whether names are sorted from Z to A, and numbers from the smallest.
    """

    column: str
    reverse: bool = False

    def sorted(self, rows: Sequence[Row], table: str) -> list[Row]:
        """Return the sorted rows. Names are sorted from A to Z, and numbers from the largest. ``reverse`` reverses both.

        Unknown values come last. Rows with equal values keep their order.
        """
        name = _FIELDS.get(self.column, self.column)
        known = [row for row in rows if getattr(row, name) is not None]
        unknown = [row for row in rows if getattr(row, name) is None]
        is_text = bool(known) and isinstance(getattr(known[0], name), str)
        known.sort(key=attrgetter(name), reverse=self.reverse is is_text)
        return known + unknown


@dataclass
class Controls:
    """The settings that keys change.

    Attributes:
        filter: A substring of names, or a pattern with * and ?.
        typing: The filter that is being typed. None if no filter is being typed.
    """

    filter: str = ""
    orders: dict[str, Order] = field(
        default_factory=lambda: {"topics": Order("in"), "groups": Order("lag"), "brokers": Order("broker")}
    )
    focus: str = "topics"
    scrolled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    typing: str | None = None
    ended: bool = False

    def sort_by(self, column: str) -> None:
        """Sort the tables that have ``column`` by this column. Each table has the column "name"."""
        for table, order in self.orders.items():
            if column in ("name", *COLUMNS[table]):
                order.column = COLUMNS[table][0] if column == "name" else column

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of the names that pass the filter. A filter with * or ? is itself the pattern. For any other filter, the
        patterns match the names that contain it, case-insensitively.
        """
        text = self.filter
        if not text or "*" in text or "?" in text:
            return (text or "*",)
        either = [f"[{each.lower()}{each.upper()}]" if each.isalpha() else "[[]" if each == "[" else each for each in text]
        return (f"*{''.join(either)}*",)

    def press(self, key: str) -> None:
        """Apply a key. A key without a meaning has no effect."""
        if self.typing is not None:
            self._type(key)
        elif key == "q":
            self.ended = True
        elif key == "\t":
            self.focus = TABLES[(TABLES.index(self.focus) + 1) % len(TABLES)]
        elif key == "s":
            order, columns = self.orders[self.focus], COLUMNS[self.focus]
            order.column = columns[(columns.index(order.column) + 1) % len(columns)]
        elif key == "r":
            self.orders[self.focus].reverse ^= True
        elif key == "/":
            self.typing = ""
        elif key == "\x1b":
            self.filter = ""
        elif key in _SCROLL:
            self.scrolled[self.focus] = max(self.scrolled[self.focus] + _SCROLL[key], 0)

    def _type(self, key: str) -> None:
        assert self.typing is not None
        if key in ("\r", "\n"):
            self.filter, self.typing = self.typing, None
            self.scrolled = dict.fromkeys(TABLES, 0)
        elif key == "\x1b":
            self.typing = None
        elif key in ("\x7f", "\b"):
            self.typing = self.typing[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.typing) < LONGEST_FILTER:
            self.typing += key


def keys_of(text: str) -> Iterator[str]:
    """Yield the keys in the input of a terminal: characters and escape sequences."""
    yield from (found.group() for found in _KEY.finditer(text))
