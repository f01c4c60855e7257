"""The attempts of one call, in bounded memory: a call may make thousands.

The first attempts, the newest ones and the open ones (at most one per broker) are kept. Of the others only the sums that
decisions need remain: how many there were, how they ended, on which brokers, and whether any of them may have stored the
message.
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
    """The state of one attempt, see ``AttemptRecord``."""

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
    """The attempts of one call, in the order in which they began.

    ``made``: their number; ``repeated``: how many went to a broker that had been tried before; both include dropped attempts.
    ``tried``: the brokers of all attempts.
    """

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
        for record in records:
            self.add(record)

    def __iter__(self) -> Iterator[Record]:
        """Iterates over the attempts that are kept."""
        yield from self._first
        yield from self._newest

    def __len__(self) -> int:
        """Returns the number of attempts that are kept."""
        return len(self._first) + len(self._newest)

    @property
    def newest(self) -> Record | None:
        if self._newest:
            return self._newest[-1]
        return self._first[-1] if self._first else None

    @property
    def counted(self) -> int:
        """The number of attempts that count (``uses_retry``), of which a call may make ``retries`` plus one."""
        return self._dropped_counted + sum(_counts(record) for record in self)

    @property
    def maybe_stored(self) -> bool:
        return self._dropped_maybe_stored or any(record.maybe_stored for record in self)

    def kinds(self) -> Counter[str]:
        """Counts all attempts by the name of their error, "no answer" for those without one."""
        return self._dropped_kinds + Counter(kind_of(record.error) for record in self)

    @property
    def unanswered(self) -> set[str]:
        """The brokers of open attempts."""
        return {record.broker for record in self if record.open}

    def add(self, record: Record) -> None:
        """Adds the newest attempt; drops an old closed one when too many are kept."""
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
    """Returns the name under which an attempt that ended with ``error`` is counted."""
    return type(error).__name__ if error is not None else "no answer"


def uses_retry(error: BaseException) -> bool:
    """Returns whether an attempt that ended with ``error`` counts towards ``retries``."""
    return not isinstance(error, RocketMQError) or error.uses_retry
