"""Checks that members of a group handle the messages of a key, or of a queue, one after the other and in order.

The functions are pure, and return a line for each violation. Order is promised by queue: messages of one key in two queues have
none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Final

from rmq_protocol.message import MessageQueue

from .group_log import Delivery, GroupLog
from .troubles import Troubles

__all__ = ["NO_ORDER", "disordered", "is_ordered", "overlapping", "repeats_behind_open"]

SETTLED: Final = ("done", "dead")
NO_ORDER: Final = "no-order"
"""The key of messages that a group with ``order="key"`` handles in no order; those without a key are in order."""
Line = tuple[MessageQueue, str]


def is_ordered(log: GroupLog, queue: MessageQueue) -> bool:
    """Returns whether the group handles a queue in order: a message whose handler raises is handled again in its place."""
    return log.order is not None and queue.topic in log.topics


def overlapping(log: GroupLog, troubles: Troubles) -> list[str]:
    """Returns calls of one key, or one queue, that ran at the same time. Those of one member must never do that, those of two
    members only during a fault."""
    found: list[str] = []
    for (queue, key), line in _lines(log):
        last: Delivery | None = None
        until = -inf
        for each in line:
            if last is not None and until > each.began and each.call != last.call:
                same = each.life == last.life
                if same or not troubles.felt(last.began, each.began):
                    found.append(
                        f"overlapping: offset {each.offset} of {queue}{_of(key)} began at {each.began:.6f} s, while offset "
                        f"{last.offset} ran on {'the same member' if same else log.lives[last.life].member}"
                    )
            ended = min(inf if each.ended is None else each.ended, troubles.killed(log.lives[each.life], each.began))
            if ended >= until:
                last, until = each, ended
    return found


def disordered(log: GroupLog, troubles: Troubles) -> list[str]:
    """Returns messages of one key, or one queue, that a member has begun after a later one, or before an earlier one that is to be
    handled again."""
    settled = _settled(log)
    found: list[str] = []
    for (queue, key), line in _lines(log):
        attempts: defaultdict[tuple[int, int], int] = defaultdict(int)
        for first, second in pairwise(line):
            attempts[first.life, first.offset] += 1
            if first.life != second.life or first.call == second.call or troubles.felt(first.began, second.began):
                continue
            text = f"offset {second.offset} of {queue}{_of(key)} at {second.began:.6f} s after offset {first.offset}"
            if second.offset < first.offset and not _is_repeat(log, first, second):
                found.append(f"disordered: {log.lives[first.life].member} began {text}")
            elif (
                second.offset > first.offset
                and first.how not in SETTLED
                and settled.get((queue, first.offset), inf) > second.began
                and attempts[first.life, first.offset] < log.attempts
            ):
                found.append(f"disordered: {log.lives[first.life].member} began {text}, which is to be handled again")
    return found


def _is_repeat(log: GroupLog, first: Delivery, second: Delivery) -> bool:
    """Returns whether ``second`` may repeat an earlier offset: the call of ``first``, a batch, has not settled its message; or the
    message was begun before, and is repeated because one before ``first`` is still open."""
    place = second.queue, second.offset
    if any(
        (each.queue, each.offset) == place and each.call == first.call and each.how not in SETTLED for each in log.deliveries
    ):
        return True
    begun = any((each.queue, each.offset) == place and each.began < first.began for each in log.deliveries)
    return begun and _open_below(log, first, second.began)


def repeats_behind_open(log: GroupLog, first: Delivery, second: Delivery) -> bool:
    """Returns whether an ordered message is handled again because one before it was open when its queue came to the member of
    ``second``, or, in the same life, when ``second`` began."""
    if not is_ordered(log, first.queue):
        return False
    since = second.began
    if first.life != second.life:  # that member begins with its first calls at the offset that the group has committed
        since = min(
            each.began
            for each in log.deliveries
            if each.queue == first.queue and each.life == second.life and each.began >= first.began
        )
    return _open_below(log, first, since)


def _open_below(log: GroupLog, first: Delivery, time: float) -> bool:
    """Returns whether a message before that of ``first`` in its queue was not settled at a time: settled messages behind such a
    message are repeated when the queue moves to another member."""
    settled = _settled(log)
    return any(
        each.queue == first.queue and each.offset < first.offset and settled.get((each.queue, each.offset), inf) > time
        for each in log.deliveries
    )


def _settled(log: GroupLog) -> dict[tuple[MessageQueue, int], float]:
    """Returns the time at which the message of a place, a queue and offset, was first settled."""
    found: dict[tuple[MessageQueue, int], float] = {}
    for each in log.deliveries:
        if each.how in SETTLED and each.ended is not None:
            place = each.queue, each.offset
            found[place] = min(each.ended, found.get(place, inf))
    return found


def _lines(log: GroupLog) -> Iterator[tuple[Line, list[Delivery]]]:
    """Yields the calls of each ordered key, or queue, in the order in which they began."""
    lines: defaultdict[Line, list[Delivery]] = defaultdict(list)
    for each in log.deliveries:
        if is_ordered(log, each.queue) and (each.key != NO_ORDER or log.order == "queue"):
            lines[each.queue, each.key if log.order == "key" else ""].append(each)
    yield from lines.items()


def _of(key: str) -> str:
    return f" with key {key}" if key else ""
