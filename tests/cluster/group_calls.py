"""What members of a group have written down: handler calls, and what follows from them. Pure but for reading the files.

A line is ``begun|ended|failed NUMBER PLACE TIMES SECONDS``: of which message, stored where, delivered again how often, when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

__all__ = ["Call", "Pause", "high", "longest_overlap", "pauses", "read_calls"]


class Call(msgspec.Struct):
    """A handler call: of which message, stored where, by which member. ``ended``: None for one that did not end. ``failed``: it
    raised at ``ended``."""

    number: int
    place: str
    times: int
    member: str
    begun: float
    ended: float | None = None
    failed: bool = False

    @property
    def done(self) -> bool:
        """Whether the handler returned."""
        return self.ended is not None and not self.failed


def read_calls(directory: Path) -> list[Call]:
    """All handler calls of all members."""
    found: list[Call] = []
    for file in sorted(directory.glob("member-*")):
        if file.suffix:
            continue
        open_calls: dict[tuple[str, str], Call] = {}
        for line in file.read_text().splitlines():
            what, number, place, times, at = line.split()
            if what == "begun":
                open_calls[place, times] = call = Call(int(number), place, int(times), file.name, float(at))
                found.append(call)
            else:
                call = open_calls.pop((place, times))
                call.ended, call.failed = float(at), what == "failed"
    return found


class Pause(NamedTuple):
    """A queue that went from one member to another. ``seconds``: between the last handler call that the former one began and the
    first of the next one. ``beyond``: of these, from the moment at which the former one's handlers of this queue had ended and
    the next message was stored."""

    queue: str
    former: str
    next: str
    at: float
    seconds: float
    beyond: float


def pauses(calls: Iterable[Call], sent: Mapping[int, float]) -> list[Pause]:
    """``sent``: number -> when its send was confirmed."""
    by_queue: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if not call.times:
            by_queue[call.place.rpartition(":")[0]].append(call)
    found = []
    for queue, of_queue in by_queue.items():
        of_queue.sort(key=lambda call: call.begun)
        former, last_end = of_queue[0], 0.0
        for call in of_queue:
            if call.member != former.member:
                free = max(last_end, former.begun, min(sent.get(call.number, call.begun), call.begun))
                pause = Pause(queue, former.member, call.member, call.begun, call.begun - former.begun, call.begun - free)
                found.append(pause)
                last_end = 0.0
            former, last_end = call, max(last_end, call.ended or call.begun)
    return found


def longest_overlap(calls: Iterable[Call]) -> float:
    """Seconds for which two calls of one message ran at a time, the most of all messages."""
    by_number: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_number[call.number].append(call)
    longest = 0.0
    for found in by_number.values():
        found.sort(key=lambda call: call.begun)
        for first, second in pairwise(found):
            longest = max(longest, (first.ended or second.begun) - second.begun)
    return longest


def high(values: Iterable[float], share: float = 0.99) -> float:
    """The value below which ``share`` of ``values`` lie, rounded to ms; 0 without any."""
    found = sorted(values)
    return round(found[min(int(len(found) * share), len(found) - 1)], 3) if found else 0.0
