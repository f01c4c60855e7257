"""Unique message ids (property UNIQ_KEY) from a clock and a counter. The layout is Java's (see ``rmq_protocol.ids``).

Each message gets an id, so making one must be fast: one clock read (none if the caller has already read the clock), three
comparisons and one concatenation (measured: 130 ns). The common part of 256 ids of one millisecond is one cached string. An object
never returns an id twice within a month, even if the clock is adjusted: the millisecond in its ids only grows, and after 65,536 ids
within a millisecond the next one starts early. After the clock was set back, the time in the ids is ahead of the clock. The salt is
random for each object and drawn again in a forked child, which inherits all other state.
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
    """Makes unique message ids. An object must be used by one thread only.

    Args:
        ip: The client's address, 4 or 16 bytes.
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
        """The length of every id."""
        self._millisecond = self._wall = 0
        self.born_ms = b""
        """The wall clock at the last call of a method that returns an id or the time, as thirteen digits of epoch ms. Empty before
        the first call."""
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
        """Return a new id. If the wall clock is adjusted, the ids follow up to one millisecond later.

        Args:
            now: The current ``machine.monotonic()``, which saves a clock read.
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
        """Return the current time in the form of ``born_ms``. It is formatted once per millisecond."""
        if not self._begins <= machine.time() < self._ends:
            self._turn_page()
        return self.born_ms

    def given(self, unique_id: str) -> str:
        """Update ``born_ms`` as making a new id would, and return ``unique_id``, which the message already has."""
        self.now()
        return unique_id

    def _seed(self) -> None:
        source = machine.entropy
        self._prefix = unique_id_prefix(self._ip, machine.process_id(), source.getrandbits(32))
        self._number = self._page_stop = self._stop = source.getrandbits(16)
        self._begins = self._ends = self._from = self._until = 0.0
        self._page = self._time_text = ""

    def _turn_page(self) -> None:
        """Begin the next range of up to 256 numbers, whose ids share a cached prefix.

        The range belongs to the clock's millisecond, or to a later millisecond if the ids are ahead of the clock.
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
    """Return the 4 or 16 bytes of an IP address without its zone ("%eth0"). Return None if ``text`` is not an IP address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped.packed if mapped is not None else address.packed


def _local_month(now_ms: int) -> tuple[int, int]:
    """Return the start of the local month that contains ``now_ms`` and the start of the next month, in epoch ms."""
    year, month = localtime(now_ms // 1000)[:2]
    begins = mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    ends = mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(begins) * 1000, int(ends) * 1000


_instances: weakref.WeakSet[UniqueIds] = weakref.WeakSet()


def longest_id() -> int:
    """Return the length of the longest ids that a client in this process makes."""
    return max([ID_LENGTH, *(ids.length for ids in _instances)])


def _after_fork_in_child() -> None:
    for ids in list(_instances):
        ids._seed()  # noqa: SLF001 - this module's class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
