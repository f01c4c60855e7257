"""Unique message ids (property UNIQ_KEY) from a clock and a counter; the layout is Java's, see ``rmq_protocol.ids``.

Each message has an id, so the hot path is one clock read (none where the caller has read one), three comparisons and one
concatenation (measured: 130 ns); the common part of 256 ids of one millisecond is one cached text. No id of an object occurs twice
in a month, even if the clock is set: the millisecond in use only grows, and after 65,536 ids within it the next one starts early.
After a clock was set back, the ids' time runs ahead of it. The salt is random per object and drawn again in a forked child, which
shares everything else.
"""

from __future__ import annotations

import ipaddress
import os
import weakref
from time import localtime, mktime
from typing import Final

from rmq_protocol.ids import unique_id_prefix
from rmq_protocol.send_codec import ID_LENGTH

from .. import machine

_PER_MILLISECOND: Final = 0x10000
_HEX: Final = tuple(f"{number:02X}" for number in range(256))


class UniqueIds:
    """A maker of unique message ids.

    Args:
        ip: The client's address, 4 or 16 bytes. Belongs to one thread.
    """

    __slots__ = (
        "__weakref__", "_begins", "_ends", "_from", "_ip", "_millisecond", "_month_begins", "_month_ends", "_number", "_page",
        "_page_stop", "_prefix", "_stop", "_time_text", "_until", "_wall", "born_ms", "length",
    )  # fmt: skip

    _ends: float
    _number: int
    _page: str
    _page_stop: int
    _stop: int

    def __init__(self, ip: bytes) -> None:
        self._ip = ip
        self.length = 2 * (len(ip) + 12)
        """Length of every id."""
        self._millisecond = self._wall = 0
        self.born_ms = b""
        """Wall clock at the last id or ``now``: thirteen digits, milliseconds since the epoch; empty before the first."""
        self._month_begins = self._month_ends = 0
        self._seed()
        _instances.add(self)

    def next(self) -> str:
        """Return a new id."""
        number = self._number
        if number == self._page_stop or not self._begins <= machine.time() < self._ends:
            self._turn_page()
        self._number = number + 1
        return self._page + _HEX[number & 0xFF]

    def next_at(self, now: float) -> str:
        """Return a new id.

        A change of the wall clock takes effect up to a millisecond later.

        Args:
            now: The present machine.monotonic(), which saves a clock read.
        """
        number = self._number
        if number == self._page_stop or not self._from <= now < self._until:
            self._turn_page()
        self._number = number + 1
        return self._page + _HEX[number & 0xFF]

    def take(self, count: int) -> list[str]:
        """Return ``count`` new ids."""
        ids: list[str] = []
        while (left := count - len(ids)) > 0:
            number = self._number
            if number == self._page_stop or not self._begins <= machine.time() < self._ends:
                self._turn_page()
            page, low = self._page, number & 0xFF
            part = min(left, self._page_stop - number)
            ids += [page + digits for digits in _HEX[low : low + part]]
            self._number = number + part
        return ids

    def now(self) -> bytes:
        """Return the time as ``born_ms``, formatted once per millisecond."""
        if not self._begins <= machine.time() < self._ends:
            self._turn_page()
        return self.born_ms

    def given(self, unique_id: str) -> str:
        """Return ``unique_id``, an id that a message already has, and bring ``born_ms`` up to date as a new id would."""
        self.now()
        return unique_id

    def _seed(self) -> None:
        source = machine.entropy
        self._prefix = unique_id_prefix(self._ip, machine.process_id(), source.getrandbits(32))
        self._number = self._page_stop = self._stop = source.getrandbits(16)
        self._begins = self._ends = self._from = self._until = 0.0
        self._page = self._time_text = ""

    def _turn_page(self) -> None:
        """Start the next page, of up to 256 numbers: in the clock's millisecond, or in a later one if the ids have got ahead of
        it.
        """
        clock, since = machine.time(), machine.monotonic()
        wall = int(clock * 1000)
        if wall != self._wall:
            self._wall = wall
            self._begins, self._ends = wall / 1000, (wall + 1) / 1000
            self.born_ms = b"%013d" % wall
        self._from, self._until = since + (self._begins - clock), since + (self._ends - clock)
        if self._number == self._stop or wall > self._millisecond:
            self._millisecond = now = max(wall, self._millisecond + 1)
            if not self._month_begins <= now < self._month_ends:
                self._month_begins, self._month_ends = _local_month(now)
            self._time_text = f"{self._prefix}{(now - self._month_begins) & 0xFFFFFFFF:08X}"
            self._stop = self._number + _PER_MILLISECOND
        page = self._number >> 8
        self._page = self._time_text + _HEX[page & 0xFF]
        self._page_stop = min((page + 1) << 8, self._stop)


def packed_ip(text: str) -> bytes | None:
    """Return the 4 or 16 bytes of an address, without its zone ("%eth0"); None for a text that is not an address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped.packed if mapped is not None else address.packed


def _local_month(now_ms: int) -> tuple[int, int]:
    """Return the beginnings of the local month that contains ``now_ms`` and of the next month, in milliseconds since the epoch."""
    year, month = localtime(now_ms // 1000)[:2]
    begins = mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    ends = mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(begins) * 1000, int(ends) * 1000


_instances: weakref.WeakSet[UniqueIds] = weakref.WeakSet()


def longest_id() -> int:
    """Return the maximum length of an id of any client in this process."""
    return max([ID_LENGTH, *(ids.length for ids in _instances)])


def _after_fork_in_child() -> None:
    for ids in list(_instances):
        ids._seed()  # noqa: SLF001 - this module's class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
