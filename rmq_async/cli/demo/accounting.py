"""Compares attempted, acknowledged and read messages. No I/O, no clock; any hashable value is a message's key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Account", "account"]

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Account(Generic[Key]):
    """Counts of one run, and the keys of the messages that differ.

    ``attempted``, ``acknowledged``, ``stored``: numbers of messages; ``stored`` were read at least once. ``lost``: acknowledged
    and not read. ``absent``: neither acknowledged nor read (failed sends, one-way messages that no broker stored).
    ``unacknowledged``: read without an acknowledgement. ``duplicated``: read more than once; ``copies``: number of readings after
    the first, of all messages. ``unknown``: read and never attempted.
    """

    attempted: int
    acknowledged: int
    stored: int
    lost: tuple[Key, ...]
    absent: tuple[Key, ...]
    unacknowledged: tuple[Key, ...]
    duplicated: tuple[Key, ...]
    copies: int
    unknown: tuple[Key, ...]


def account(attempted: Iterable[Key], acknowledged: Iterable[Key], read: Iterable[Key]) -> Account[Key]:
    """Compares the keys of messages. ``read`` has a key once for each time that its message was read. An acknowledged key counts
    as attempted too."""
    confirmed = dict.fromkeys(acknowledged)
    tried = dict.fromkeys(attempted) | confirmed
    times = Counter(read)
    return Account(
        attempted=len(tried),
        acknowledged=len(confirmed),
        stored=sum(key in times for key in tried),
        lost=tuple(key for key in confirmed if key not in times),
        absent=tuple(key for key in tried if key not in times and key not in confirmed),
        unacknowledged=tuple(key for key in tried if key in times and key not in confirmed),
        duplicated=tuple(key for key, number in times.items() if number > 1),
        copies=sum(number - 1 for number in times.values()),
        unknown=tuple(key for key in times if key not in tried),
    )
