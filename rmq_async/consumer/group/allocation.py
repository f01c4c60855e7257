"""Computes this member's share of the queues of a topic from the lists of members that brokers return. It does no I/O."""

# Each member computes its share alone. The lists of two brokers differ for as long as one of them has not seen a heartbeat or
# the end of a connection; a client with two connections is listed twice. While members disagree, ``handover`` decides which of
# them reads a queue.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from ..strategies import ANOTHER, Allocate

__all__ = ["merged_members", "share_of"]


def merged_members(lists: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], bool]:
    """Returns the client ids of all lists, sorted, and whether all lists are equal but for their order. An id occurs as often
    as in the list in which it occurs most often."""
    counts = [Counter(each) for each in lists]
    merged: Counter[str] = Counter()
    for count in counts:
        merged |= count
    return tuple(sorted(merged.elements())), all(count == merged for count in counts)


def share_of(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], allocate: Allocate
) -> frozenset[MessageQueue]:
    """Returns the queues of ``client_id``. If ``members`` lists it more than once, it gets the shares of all its places:
    ``allocate`` finds only the first one, and no member would read the other shares.

    ``queues`` and ``members``: sorted. Raises the errors of ``allocate``; TypeError if its result is not iterable, or has an
    unhashable item; ValueError if the result has other items than the given queues.
    """
    found = set(allocate(client_id, queues, members))
    first = members.index(client_id) if client_id in members else 0
    for place in [index for index, member in enumerate(members) if member == client_id and index > first]:
        others = [
            f"{member}{ANOTHER}{index})" if member == client_id and index != place else member
            for index, member in enumerate(members)
        ]
        found.update(allocate(client_id, queues, others))
    if strange := found.difference(queues):
        text = ", ".join(sorted(map(shown, strange))[:3])
        raise ValueError(f"allocate must return queues out of those that it was given, not {text}")
    return frozenset(found)
