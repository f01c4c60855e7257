"""Unique message ids (property UNIQ_KEY) from a clock and a counter; the layout is Java's, see ``rmq_protocol.ids``.

One id per message, so the hot path is one clock read (none where the caller has read one), two comparisons and one
concatenation (measured: 130 ns); everything that stays the same for 256 ids of one millisecond is one cached text. An id may
not come twice, whatever the clock does: the millisecond used only ever grows, and after 65,536 ids within it the next one is
begun early. So a clock that is set back costs nothing but a time in the ids that runs ahead of it. The salt is random per
object and drawn again in a forked child, which shares everything else.
"""

from __future__ import annotations

import ipaddress
import os
import random
import time
import weakref
from typing import Final

from rmq_protocol.ids import unique_id_prefix
from rmq_protocol.send_codec import ID_LENGTH

__all__ = ["UniqueIds", "longest_id", "packed_ip"]

_PER_MILLISECOND: Final = 0x10000
_HEX: Final = tuple(f"{number:02X}" for number in range(256))

_time = time.time
_monotonic = time.monotonic


class UniqueIds:
    """``ip``: the client's address, 4 or 16 bytes. Belongs to one thread."""

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
        """Characters of every id."""
        self._millisecond = self._wall = 0
        self.born_ms = b""
        """The clock when the last id was made: thirteen digits, milliseconds since the epoch."""
        self._month_begins = self._month_ends = 0
        self._seed()
        _instances.add(self)

    def next(self) -> str:
        """A new id."""
        number = self._number
        if number == self._page_stop or not self._begins <= _time() < self._ends:
            self._turn_page()
        self._number = number + 1
        return self._page + _HEX[number & 0xFF]

    def next_at(self, now: float) -> str:
        """A new id. ``now``: time.monotonic() of this moment, for a caller that has read it: one clock less to look at.

        A wall clock that is set is noticed a millisecond later.
        """
        number = self._number
        if number == self._page_stop or not self._from <= now < self._until:
            self._turn_page()
        self._number = number + 1
        return self._page + _HEX[number & 0xFF]

    def take(self, count: int) -> list[str]:
        """``count`` new ids; per id a third of the price of ``next``."""
        ids: list[str] = []
        while (left := count - len(ids)) > 0:
            number = self._number
            if number == self._page_stop or not self._begins <= _time() < self._ends:
                self._turn_page()
            page, low = self._page, number & 0xFF
            part = min(left, self._page_stop - number)
            ids += [page + digits for digits in _HEX[low : low + part]]
            self._number = number + part
        return ids

    def now(self) -> bytes:
        """The clock as ``born_ms``, formatted once per millisecond."""
        if not self._begins <= _time() < self._ends:
            self._turn_page()
        return self.born_ms

    def _seed(self) -> None:
        source = random.SystemRandom()
        self._prefix = unique_id_prefix(self._ip, os.getpid(), source.getrandbits(32))
        self._number = self._page_stop = self._stop = source.getrandbits(16)
        self._begins = self._ends = self._from = self._until = 0.0
        self._page = self._time_text = ""

    def _turn_page(self) -> None:
        """The next 256 numbers: of the clock's millisecond, or of one further where the last one is used up and still goes on."""
        clock, since = _time(), _monotonic()
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
    """4 or 16 bytes of an address in text, a zone ("%eth0") left out; None for anything that is not an address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped.packed if mapped is not None else address.packed


def _local_month(now_ms: int) -> tuple[int, int]:
    """First millisecond of the month in local time, and of the next one."""
    year, month = time.localtime(now_ms // 1000)[:2]
    begins = time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    ends = time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(begins) * 1000, int(ends) * 1000


_instances: weakref.WeakSet[UniqueIds] = weakref.WeakSet()


def longest_id() -> int:
    """Characters that an id of any client of this process has at most."""
    return max([ID_LENGTH, *(ids.length for ids in _instances)])


def _after_fork_in_child() -> None:
    for ids in list(_instances):
        ids._seed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
