"""Checks the behaviour of the members of a group that pops. Each function returns a line for each violation; they are pure.

A message is known by its unique id: it is delivered from its queue first, from a retry topic later. Effects of a fault end
within a lease and a little more (``AFTER``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import Final

from rmq_async.testing.simulation.checkers import Stored
from rmq_protocol.constants import DLQ_TOPIC_PREFIX

from .group_log import GROUP, Delivery, GroupLog
from .troubles import Troubles
from .watched import PopRequest

__all__ = ["awoken", "changed_twice", "early_deaths", "halted", "pop_violations", "popped_again", "undead", "unfinished"]

AFTER: Final = 20.0
"""Seconds, in addition to a lease, for which a fault is felt: a broker may restart with offsets of 10 s ago, and messages may come
back late or twice."""
SETTLED: Final = 5.0
"""Seconds from the end of a call to the acknowledgement of its message, at most, while no fault strikes."""
RESUMED: Final = 30.0
"""Seconds after the last fault within which each queue with messages is popped from."""


def pop_violations(
    log: GroupLog, stored: Sequence[Stored], requests: Sequence[PopRequest], troubles: Troubles, excused: Collection[str]
) -> list[str]:
    """Returns the violations of all checks. ``excused``: unique ids of messages that brokers lost or deleted."""
    return [
        *popped_again(log, troubles),
        *early_deaths(log, stored, troubles),
        *undead(log, stored, excused),
        *halted(log),
        *changed_twice(requests),
        *awoken(requests, log, troubles),
        *unfinished(log, excused),
    ]


def popped_again(log: GroupLog, troubles: Troubles) -> list[str]:
    """Returns messages of which a second call began although the first one had succeeded, or was still running, and neither a fault
    nor a kill explains it."""
    found: list[str] = []
    for first, second in _pairs(log.deliveries):
        if first.how in ("failed", "dead", "cancelled") or _felt(log, troubles, first.began, second.began):
            continue
        life, ended = log.lives[first.life], inf if first.ended is None else first.ended
        killed = troubles.killed(life, first.began)
        if killed < inf and killed <= ended + SETTLED:
            continue
        what = "is handled" if ended > second.began else "was handled"
        found.append(
            f"popped again: {_named(first)} {what} by {life.member} from {first.began:.6f} s on, and began again at "
            f"{second.began:.6f} s on {log.lives[second.life].member}"
        )
    return found


def early_deaths(log: GroupLog, stored: Iterable[Stored], troubles: Troubles) -> list[str]:
    """Returns dead letters that no handler has given up and that had attempts left, and those that exist more than once. Messages
    that met a fault are left out, and those of which a call did not end or was cancelled."""
    calls = _calls(log.deliveries)
    found: list[str] = []
    deaths = Counter(each.unique_id for each in stored if each.topic == DLQ_TOPIC_PREFIX + GROUP)
    for unique_id, number in deaths.items():
        made = calls.get(unique_id, [])
        first, last = (made[0].began, made[-1].began) if made else (0.0, inf)
        if _felt(log, troubles, first, last) or any(each.how in ("", "cancelled") for each in made):
            continue
        if not any(each.how == "dead" for each in made) and len(made) < log.attempts:
            found.append(f"early death: {unique_id} is a dead letter after {len(made)} of {log.attempts} attempts")
        if number > 1:
            found.append(f"early death: {unique_id} is a dead letter {number} times")
    return found


def undead(log: GroupLog, stored: Iterable[Stored], excused: Collection[str]) -> list[str]:
    """Returns messages that their last handler has given up and that are no dead letters."""
    dead = {each.unique_id for each in stored if each.topic == DLQ_TOPIC_PREFIX + GROUP}
    return [
        f"undead: {_named(made[-1])} was given up at {made[-1].began:.6f} s, and is no dead letter"
        for unique_id, made in _calls(log.deliveries).items()
        if all(each.how == "dead" for each in made[-1:]) and unique_id not in dead and unique_id not in excused
    ]


def halted(log: GroupLog) -> list[str]:
    """Returns queues with messages of which none is begun within 30 s of the end of all faults, although there are members."""
    begun: defaultdict[str, list[float]] = defaultdict(list)
    for each in log.deliveries:
        begun[each.unique_id].append(each.began)
    found: list[str] = []
    for backlog in log.backlogs:
        unread = next((each for each in log.unread if each.time == backlog.time), None)
        if not backlog.resting or unread is None or not _members(log, backlog.time):
            continue
        last = backlog.time + RESUMED
        found += [
            f"halted: no message of {queue} was begun within {RESUMED:g} s of {backlog.time:.6f} s, when all faults were over; "
            f"{len(ids)} were there"
            for queue, ids in unread.queues.items()
            if not any(backlog.time <= began <= last for unique_id in ids for began in begun[unique_id])
        ]
    return found


def changed_twice(requests: Iterable[PopRequest]) -> list[str]:
    """Returns handles whose invisible time was changed more than once: the message is delivered more than once then."""
    changed = Counter(each.handle for each in requests if each.what == "change" and each.group == GROUP)
    return [
        f"changed twice: the handle {handle} was changed {number} times" for handle, number in changed.items() if number > 1
    ]


def awoken(requests: Iterable[PopRequest], log: GroupLog, troubles: Troubles) -> list[str]:
    """Returns handles whose invisible time was changed after an acknowledgement, so that the message is delivered again.
    During a fault a change may arrive late."""
    acked: dict[object, float] = {}
    found: list[str] = []
    for each in requests:
        if each.what == "ack":
            acked.setdefault(each.handle, each.time)
        elif each.handle in acked and not _felt(log, troubles, acked[each.handle], each.time):
            found.append(
                f"awoken: the handle {each.handle} was acknowledged at {acked[each.handle]:.6f} s, and its time changed at "
                f"{each.time:.6f} s"
            )
    return found


def unfinished(log: GroupLog, excused: Collection[str]) -> list[str]:
    """Returns messages that the group has not popped, or not acknowledged, when all its members have stopped."""
    if not log.unread:
        return []
    last = log.unread[-1]
    found = [
        f"unfinished: {unique_id} of {queue} was not popped when all members had stopped"
        for queue, ids in last.queues.items()
        for unique_id in ids
        if unique_id not in excused
    ]
    found += [
        f"unfinished: {unique_id} was popped, and not acknowledged when all members had stopped" for unique_id in last.in_flight
    ]
    return found


def _felt(log: GroupLog, troubles: Troubles, first: float, last: float) -> bool:
    return troubles.felt(first, last, (log.lease or 0.0) + AFTER)


def _members(log: GroupLog, time: float) -> bool:
    """Returns whether one member ran from a time to ``RESUMED`` seconds later."""
    return any(
        sample.life == other.life
        for sample in log.samples
        if time - 5.0 <= sample.time <= time + 5.0
        for other in log.samples
        if time + RESUMED - 5.0 <= other.time <= time + RESUMED + 5.0
    )


def _calls(deliveries: Iterable[Delivery]) -> dict[str, list[Delivery]]:
    """Returns the calls of each message, in the order in which they began."""
    found: defaultdict[str, list[Delivery]] = defaultdict(list)
    for each in deliveries:
        found[each.unique_id].append(each)
    return found


def _pairs(deliveries: Iterable[Delivery]) -> list[tuple[Delivery, Delivery]]:
    """Returns each pair of calls that followed one another for the same message."""
    return [pair for line in _calls(deliveries).values() if len(line) > 1 for pair in pairwise(line)]


def _named(delivery: Delivery) -> str:
    return f"{delivery.unique_id} of {delivery.queue}"
