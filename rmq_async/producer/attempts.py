"""The attempts of one call, as far as they are remembered: a call may make thousands, and its memory stays that of a few.

Kept are the first ones, the newest ones, and those whose answers may still come, of which each broker has one at most. Of the
others only what decisions need is left: how many there were, on which brokers, and whether any of them may be stored.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

from rmq_protocol.errors import RocketMQError

__all__ = ["FIRST_KEPT", "NEWEST_KEPT", "Attempts", "Facts", "kind_of", "uses_retry"]

FIRST_KEPT: Final = 8
NEWEST_KEPT: Final = 8


class Facts(Protocol):
    """What is known of one attempt. ``open``: its answer may still come. ``elapsed``: seconds until it ended."""

    @property
    def broker(self) -> str: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def open(self) -> bool: ...
    @property
    def maybe_stored(self) -> bool: ...
    @property
    def elapsed(self) -> float: ...


Record = TypeVar("Record", bound=Facts)


class Attempts(Generic[Record]):
    """In the order in which they began. ``made``: how many; ``repeated``: those of them to a broker that had been tried before."""

    __slots__ = (
        "_dropped_counted", "_dropped_kinds", "_dropped_maybe_stored", "_first", "_newest", "made", "repeated", "tried",
    )  # fmt: skip

    def __init__(self, *records: Record) -> None:
        self._first: list[Record] = []
        self._newest: deque[Record] = deque()
        self._dropped_counted = 0
        self._dropped_kinds: Counter[str] = Counter()
        self._dropped_maybe_stored = False
        self.made = 0
        self.repeated = 0
        self.tried: set[str] = set()
        """The brokers."""
        for record in records:
            self.add(record)

    def __iter__(self) -> Iterator[Record]:
        """Those that are kept."""
        yield from self._first
        yield from self._newest

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._first) + len(self._newest)

    @property
    def newest(self) -> Record | None:
        if self._newest:
            return self._newest[-1]
        return self._first[-1] if self._first else None

    @property
    def counted(self) -> int:
        """Those that ``retries`` counts, the first attempt included."""
        return self._dropped_counted + sum(_counts(record) for record in self)

    @property
    def maybe_stored(self) -> bool:
        return self._dropped_maybe_stored or any(record.maybe_stored for record in self)

    def kinds(self) -> Counter[str]:
        """How many attempts ended in which way."""
        return self._dropped_kinds + Counter(kind_of(record.error) for record in self)

    @property
    def unanswered(self) -> set[str]:
        """Brokers from which an answer may still come."""
        return {record.broker for record in self if record.open}

    def add(self, record: Record) -> None:
        self.made += 1
        self.repeated += record.broker in self.tried
        self.tried.add(record.broker)
        if len(self._first) < FIRST_KEPT:
            self._first.append(record)
            return
        self._newest.append(record)
        if len(self._newest) > NEWEST_KEPT:
            self._drop_one()

    def _drop_one(self) -> None:
        for index, record in enumerate(self._newest):
            if not record.open:
                self._dropped_counted += _counts(record)
                self._dropped_kinds[kind_of(record.error)] += 1
                self._dropped_maybe_stored |= record.maybe_stored
                del self._newest[index]
                return


def _counts(record: Facts) -> bool:
    return record.error is None or uses_retry(record.error)


def kind_of(error: BaseException | None) -> str:
    """What an attempt that ended so is called, where attempts are counted."""
    return type(error).__name__ if error is not None else "no answer"


def uses_retry(error: BaseException) -> bool:
    """Whether an attempt that ended with ``error`` is one of those that ``retries`` counts."""
    return not isinstance(error, RocketMQError) or error.uses_retry
