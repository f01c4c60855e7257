"""The links between machines: the latency of segments in each direction, and the faults of links."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import ECONNRESET
from random import Random
from typing import Final, Protocol

from ..errors import SimulationError
from ..scheduler import Scheduler, nanoseconds

FASTEST: Final = 100_000
"""Minimum latency between two machines in nanoseconds."""
SPREAD: Final = 400_000
"""Maximum number of nanoseconds that are drawn and added to the minimum latency of every segment."""
TAIL_SHARE: Final = 0.004
"""Share of the segments that take longer than usual."""
TAIL: Final = 4_000_000
"""Minimum number of additional nanoseconds of these segments. For half of them, the number is at least twice the minimum, and for
one in ten at least ten times. The distribution needs no logarithm, whose last bit depends on the system."""
LONGEST_TAIL: Final = 200_000_000
"""Maximum number of additional nanoseconds of these segments."""
LOCAL_SHARE: Final = 0.1
"""Latency from a machine to itself, as a share of the latency between two machines. It has no tail."""
BYTE_TIME: Final = 8
"""Nanoseconds per byte at 1 Gbit/s."""
ENDS: Final = 2
"""Number of ends of one stream. The number of an end, divided by this value and rounded down, is the number of the stream."""
LARGEST_SEGMENT: Final = 64 * 1024
CUT_SHARE: Final = 0.125
"""Share of the segments that end at a random position."""


class Carried(Protocol):
    """One end of a stream, as seen by the link that carries the stream."""

    def fail(self, error: OSError) -> None:
        """Close the end with an error, which its owner gets."""

    def heal(self) -> None:
        """Retransmit lost segments at the next time at which a kernel would do so."""


class Way:
    """One direction of a link.

    Args:
        name: "sender->receiver".
    """

    def __init__(self, name: str, scheduler: Scheduler, chance: Random, *, local: bool = False) -> None:
        self.name = name
        self.cut = False
        self.extra = 0
        """Nanoseconds of additional latency."""
        self.carried = 0
        """Number of segments that were sent."""
        self.held = 0
        """Number of segments that did not arrive because of a cut or the absence of a machine."""
        self._scheduler = scheduler
        self._chance = chance
        self._local = local
        self._busy_until = 0

    def latency(self) -> int:
        """Draw the latency of a segment without data, in nanoseconds."""
        chance = self._chance.random
        if self._local:
            return int((FASTEST + SPREAD * chance()) * LOCAL_SHARE) + self.extra
        latency = FASTEST + int(SPREAD * chance()) + self.extra
        if chance() < TAIL_SHARE:
            latency += min(LONGEST_TAIL, int(TAIL / (1.0 - chance())))
        return latency

    def send(self, size: int, arrive: Callable[..., None], *args: object) -> None:
        """Call ``arrive(*args)`` when a segment of ``size`` bytes has arrived at the other side."""
        now = self._scheduler.now
        self.carried += 1
        self._busy_until = max(self._busy_until, now) + size * BYTE_TIME
        self._scheduler.after(self._busy_until - now + self.latency(), arrive, *args)

    def segment(self, size: int) -> int:
        """Draw how many of ``size`` bytes the next segment carries."""
        if size > 1 and self._chance.random() < CUT_SHARE:
            size = self._chance.randrange(1, size)
        return min(size, LARGEST_SEGMENT)

    def retransmission_timeout(self) -> int:
        """Draw the nanoseconds after which a kernel retransmits a segment for the first time."""
        return 200_000_000 + int(100_000_000 * self._chance.random())

    def flip(self) -> bool:
        """Return True or False at random."""
        return self._chance.random() < 0.5


class Link:
    """The connection between two machines (or of a machine to itself).

    Args:
        a: Name of one machine.
        b: Name of the other machine.
    """

    def __init__(self, a: str, b: str, scheduler: Scheduler, generator: Callable[[str], Random]) -> None:
        self.a, self.b = a, b
        self.hanging = False
        self.refusing = False
        self.closing = False
        self.resets = 0
        """Number of streams that ``drop`` has reset."""
        self.unconnected = 0
        """Number of times that a fault of this link has lost or refused a connection request, lost the response to one, or
        closed a new connection."""
        self.ends: dict[int, Carried] = {}
        """The ends of the streams over this link, by number."""
        self._ways = {
            sender: Way(f"{sender}->{receiver}", scheduler, generator(f"{sender}->{receiver}"), local=a == b)
            for sender, receiver in dict.fromkeys([(a, b), (b, a)])
        }

    def __repr__(self) -> str:
        return f"<Link {self.a} - {self.b}, {len(self.ends)} ends of streams>"

    @property
    def held(self) -> int:
        """Number of segments of streams, in both directions, that did not arrive because of a cut or because a machine was off
        or had moved.
        """
        return sum(way.held for way in self._ways.values())

    @property
    def carried(self) -> int:
        """Number of segments, in both directions, that were sent."""
        return sum(way.carried for way in self._ways.values())

    def way(self, sender: str) -> Way:
        """Return the direction in which a machine sends.

        Raises:
            SimulationError: For a machine that is not at this link.
        """
        way = self._ways.get(sender)
        if way is None:
            raise SimulationError(f"{sender!r} is not at the link of {self.a!r} and {self.b!r}; name one of these machines")
        return way

    def cut(self, *, one_way: str | None = None) -> None:
        """Lose all segments from now on.

        Kernels retransmit lost segments, which arrive after ``heal``. After about 924 s without an acknowledgement, kernels
        give up a stream (ETIMEDOUT). They give up a connection attempt after 127 s.

        Args:
            one_way: The name of the machine whose segments are lost. Segments to that machine still arrive.

        Raises:
            SimulationError: For a machine that is not at this link.
        """
        for way in self._ways.values() if one_way is None else (self.way(one_way),):
            way.cut = True

    def heal(self) -> None:
        """End a cut.

        Lost segments arrive when the kernels retransmit them. After this call, that takes at most as long as the cut has lasted
        plus 0.3 s, and never more than 120 s.
        """
        for way in self._ways.values():
            way.cut = False
        for end in list(self.ends.values()):
            end.heal()

    def slow(self, seconds: float) -> None:
        """Set the additional latency of both directions in seconds. 0 removes it.

        Raises:
            SimulationError: For anything but a finite number of at least 0.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise SimulationError(f"a link must be slowed by a finite, non-negative number of seconds, not {seconds!r}")
        for way in self._ways.values():
            way.extra = nanoseconds(seconds)

    def drop(self) -> int:
        """Reset each stream of the link at both ends at once. Return the number of streams. New connections succeed."""
        streams = len({number // ENDS for number in self.ends})
        for end in list(self.ends.values()):
            end.fail(system_error(ECONNRESET))
        self.resets += streams
        return streams

    def hang(self, on: bool = True) -> None:
        """Lose the requests for new connections, as a firewall does. Existing streams continue.

        Args:
            on: True begins the fault. False ends it.
        """
        self.hanging = on

    def refuse(self, on: bool = True) -> None:
        """Respond to requests for new connections with a reset (ECONNREFUSED). Existing streams continue.

        Args:
            on: True begins the fault. False ends it.
        """
        self.refusing = on

    def close_early(self, on: bool = True) -> None:
        """End new connections as soon as they are accepted, as a load balancer without a backend does. Existing streams
        continue.

        Args:
            on: True begins the fault. False ends it.
        """
        self.closing = on


def system_error(number: int, text: str = "") -> OSError:
    """Return the OSError of an errno, with the system's text unless ``text`` is given."""
    return OSError(number, text or os.strerror(number))
