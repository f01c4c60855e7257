"""What was tried, what came of each try, and the rules that hold between that and what is stored.

The rules know nothing of retries, pools or batches: they are what a user may rely on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final

from .stored import StoredRecord

__all__ = ["Account", "Entry", "body_of"]

SLACK: Final = 0.3
"""Seconds that a call may end after its time, besides what the loop was blocked for."""
SHOWN: Final = 8


@dataclasses.dataclass(slots=True)
class Entry:
    """One message of one call. ``turn``: of the call among all of its producer. ``end``: acked, failed, cancelled or sent."""

    number: int
    mode: str
    producer: str
    turn: int
    size: int
    topic: str
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = dataclasses.field(default_factory=dict)
    flag: int = 0
    ordered: bool = False
    unordered_place: bool = False
    """The result's place is not the message's own: it waits elsewhere first (delays, half messages)."""
    grace: float = 0.0
    """Seconds that the call may take besides its time (a transaction's end)."""
    rolled_back: bool = False
    started: float = 0.0
    timeout: float = 0.0
    ended: float = 0.0
    end: str = "open"
    maybe_stored: bool = True
    error: str = ""
    attempts: int = 0
    place: tuple[str, int, int] | None = None
    msg_id: str = ""
    calls: list[str] = dataclasses.field(default_factory=list)
    """Callbacks that were called, of send_async."""

    @property
    def name(self) -> str:
        return f"#{self.number} {self.mode} of {self.producer} turn {self.turn} {self.end} {self.error} x{self.attempts}"


def body_of(number: int, size: int) -> bytes:
    """The message's body: its number first, then bytes that are its own and compress well."""
    head = b"%d:" % number
    return head + (head * (size // len(head) + 1))[: max(0, size - len(head))]


class Account:
    """Entries by number, pauses of the loop, and the verdict."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.pauses: list[tuple[float, float]] = []
        """When the loop was blocked: from, to."""
        self.turns: Counter[str] = Counter()
        self.repeated = frozenset({"transaction"})
        """Modes whose messages a broker itself may store more than once: it commits a half message again when the sender's COMMIT
        and the answer to its own question cross each other."""
        self.reports: list[str] = []
        """What reached the loop's exception handler, unasked."""

    def open(self, mode: str, producer: str, topic: str, size: int, turn: int, **facts: Any) -> Entry:
        number = len(self.entries) + 1
        entry = self.entries[number] = Entry(number, mode, producer, turn, size, topic, **facts)
        return entry

    def turn(self, producer: str) -> int:
        self.turns[producer] += 1
        return self.turns[producer]

    def verdict(self, records: Iterable[tuple[str, StoredRecord]]) -> list[str]:
        """Every broken rule, in words; nothing where all hold. ``records``: topic and record."""
        broken: list[str] = list(self.reports)
        copies: dict[int, list[tuple[str, StoredRecord]]] = defaultdict(list)
        for topic, record in records:
            number = int(record.body.partition(b":")[0] or b"0")
            entry = self.entries.get(number)
            if entry is None or entry.topic != topic:
                broken.append(f"stored, but never sent: {topic} {record}"[:300])
                continue
            copies[number].append((topic, record))
            broken += _content(entry, record)
        for entry in self.entries.values():
            broken += self.of_one(entry, [record for _, record in copies[entry.number]])
        broken += self.order()
        return broken

    def of_one(self, entry: Entry, records: list[StoredRecord]) -> Iterable[str]:
        many = len(records)
        if entry.end == "open":
            yield f"never ended: {entry.name}"
        if entry.end == "acked":
            if entry.rolled_back:
                if many:
                    yield f"rolled back, but stored {many} times: {entry.name}"
                return
            if not many:
                yield f"LOST: {entry.name} at {entry.place}"
            elif many > entry.attempts and entry.mode not in self.repeated:
                yield f"{many} copies of {entry.attempts} attempts: {entry.name}"
            if many and not entry.unordered_place and entry.place not in {(r.broker, r.queue_id, r.offset) for r in records}:
                yield f"stored elsewhere than at {entry.place}: {entry.name}"
        elif entry.end == "failed" and not entry.maybe_stored and many:
            yield f"maybe_stored=False, but stored {many} times: {entry.name}"
        elif entry.mode.startswith("oneway") and many > 1:
            yield f"one-way, but stored {many} times: {entry.name}"
        if len({record.properties.get("UNIQ_KEY") for record in records}) > 1:
            yield f"copies with different unique ids: {entry.name}"
        if entry.end not in ("open", "cancelled", "stopped") and entry.ended - entry.started > entry.timeout + SLACK:
            late = entry.ended - entry.started - entry.timeout - self.blocked(entry.started, entry.ended) - entry.grace
            if late > SLACK:
                yield f"ended {late:.2f} s after its {entry.timeout} s: {entry.name}"
        if entry.mode.startswith("async") and len(entry.calls) != 1 and entry.end != "refused":
            yield f"callbacks {entry.calls}: {entry.name}"

    def blocked(self, start: float, end: float) -> float:
        return sum(max(0.0, min(end, until) - max(start, since)) for since, until in self.pauses)

    def order(self) -> Iterable[str]:
        """What was acknowledged in one queue, of one producer's calls with an order: stored as it was called."""
        queues: dict[tuple[str, str, str, int], list[Entry]] = defaultdict(list)
        for entry in self.entries.values():
            if entry.ordered and entry.end == "acked" and entry.place is not None and not entry.unordered_place:
                queues[entry.producer, entry.topic, *entry.place[:2]].append(entry)
        for place, entries in queues.items():
            entries.sort(key=lambda entry: (entry.turn, entry.number))
            for one, two in itertools.pairwise(entries):
                assert one.place is not None
                assert two.place is not None
                if one.place[2] > two.place[2]:
                    yield f"order in {place}: {one.name} at {one.place[2]}, then {two.name} at {two.place[2]}"


def _content(entry: Entry, record: StoredRecord) -> Iterable[str]:
    if record.body != body_of(entry.number, entry.size):
        yield f"another body: {entry.name}"
    found = record.properties
    flags = {entry.flag, 0} if "TRANSACTION_CHECK_TIMES" in found else {entry.flag}  # a real broker that asks keeps no flag
    if (found.get("TAGS"), tuple(found.get("KEYS", "").split())) != (entry.tags, entry.keys) or record.flag not in flags:
        yield f"other tags, keys or flag: {entry.name}, {entry.tags} {entry.keys} {entry.flag}: {record.flag} {found}"
    if any(found.get(name) != value for name, value in entry.properties.items()):
        yield f"other properties: {entry.name}: {found}"
    if entry.msg_id and found.get("UNIQ_KEY") != entry.msg_id:
        yield f"another unique id than {entry.msg_id}: {entry.name}: {found}"
