"""Checks the behaviour of the members of a consumer group. Each function returns a line for each violation.

The functions are pure. A fault has effects for a while after its end (``SHADOW``); properties that hold only without faults are
checked outside of these times.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from math import inf
from types import MappingProxyType
from typing import Final

from rmq_async.testing.simulation.checkers import Stored
from rmq_async.testing.simulation.history import Call
from rmq_protocol.constants import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rmq_protocol.message import MessageQueue

from .group_log import GROUP, Backlog, Delivery, GroupLog, Sample
from .loss_checkers import left_out
from .order_checkers import disordered, is_ordered, overlapping, repeats_behind_open
from .pop_checkers import pop_violations
from .troubles import Troubles
from .watched import Commit, Loss, PopRequest

__all__ = [
    "backwards", "group_violations", "repeated", "restarted", "sick", "stalled", "together", "uncalled",
    "uncommitted", "undelivered", "unnamed",
]  # fmt: skip

RESUMED: Final = 30.0
"""Seconds after the last fault within which every queue with messages is read."""
LISTED: Final = 15.0
"""Seconds for which the name servers must list a broker until each member has it in a route: members poll every 10 s."""
NAMED: Final = 35.0
"""Seconds without a delivery of a queue with messages after which a member names a problem: a held pull is given up after 30 s."""
LOOK: Final = 5.0
"""Seconds between two looks at the queues, and at the health of each member, at most."""
HEALED: Final = 5.0
"""Seconds within which a member writes its offset again after one of its older commits has arrived late."""
HEALED_AFTER_START: Final = 25.0
"""The same for a commit of its process before the member was made anew: a full round comes each 20 s."""
LATE: Final = 90.0
"""Seconds after a start in which such a commit may arrive: a link hangs for up to 60 s."""
SEEN: Final = 35.0
"""Seconds for which a queue must be in its topic until each member has seen it: members poll routes every 10 s, and a broker that
a name server has lost registers within 30 s."""
MISSING: Final = re.compile(r"queues ([\d, ]+) of topic (\S+) on (\S+) left ")
"""The text of the problem ``queue_missing``, with queues, topic and broker."""
BEFORE: Final = 45.0
AFTER: Final = 10.0
"""Seconds before and after a failover in which messages may be handled twice, and no others: members keep the offsets of all
others, up to one that ran or was not given back when they stopped."""
REBALANCED: Final = 25.0
"""Seconds within which all members act on a change of the members."""
SLACK: Final = 1.5
"""Seconds from the end of a message's call to the commit that covers it, besides the interval of commits."""


def group_violations(
    log: GroupLog,
    calls: Iterable[Call],
    stored: Sequence[Stored],
    troubles: Troubles,
    excused: Collection[str],
    losses: Sequence[Loss],
    pops: Sequence[PopRequest] = (),
) -> list[str]:
    """Returns the violations of the checks for members that pull or that pop; none for a run without a group. ``excused``: unique
    ids of messages that brokers lost or deleted. ``losses``: queues that give offsets out again; members that pop do not see the
    messages that get these offsets, those that pull must (``left_out``). Messages of queues that were removed from their topic
    are left out, too. ``pops``: requests of members that pop."""
    if not log.lives:
        return []
    readable: Collection[MessageQueue] = log.idle.queues if log.idle is not None else ()
    if log.lease is not None:
        readable = log.unread[-1].readable if log.unread else ()
    topics = (*log.topics, RETRY_TOPIC_PREFIX + GROUP, *log.retry_topics)
    unread = {
        each.unique_id
        for each in stored
        if each.topic in topics and MessageQueue(each.topic, each.broker, each.queue_id) not in readable
    }
    if log.lease is not None:
        skipped = {*excused, *unread, *(each.unique_id for each in stored if _is_given_again(each, losses))}
        found = pop_violations(log, stored, pops, troubles, skipped)
        return [*undelivered(calls, log, stored, skipped), *found, *sick(log), *restarted(log)]
    lossy = {loss.queue for loss in losses}
    return [
        *undelivered(calls, log, stored, {*excused, *unread, *left_out(log, stored, losses)}),
        *uncalled(log, stored, excused),
        *repeated(log, troubles, losses),
        *together(log, troubles),
        *backwards(log.commits, troubles, lossy, log.starts),
        *stalled(log, troubles),
        *unnamed(log, troubles),
        *uncommitted(log),
        *sick(log),
        *restarted(log),
        *overlapping(log, troubles),
        *disordered(log, troubles),
    ]


def undelivered(calls: Iterable[Call], log: GroupLog, stored: Iterable[Stored], excused: Collection[str]) -> list[str]:
    """Returns acknowledged messages that no handler has handled with success and that are no dead letters."""
    handled = {each.unique_id for each in log.deliveries if each.how == "done"}
    handled |= {each.unique_id for each in stored if each.topic == DLQ_TOPIC_PREFIX + GROUP}
    return [
        f"undelivered: {result.msg_id} of {result.queue}, offset {result.queue_offset}, was acknowledged at {call.ended:.6f} s, "
        "and no member has handled it"
        for call in calls
        if call.topic in log.topics
        for result in call.results
        if result.msg_id not in handled and result.msg_id not in excused
    ]


def uncalled(log: GroupLog, stored: Iterable[Stored], excused: Collection[str]) -> list[str]:
    """Returns dead letters with which no handler was ever called."""
    called = {each.unique_id for each in log.deliveries}
    dead = {each.unique_id for each in stored if each.topic == DLQ_TOPIC_PREFIX + GROUP}
    return [
        f"uncalled: {unique_id} is a dead letter, and no handler was called with it"
        for unique_id in sorted(dead.difference(called, excused))
    ]


def _is_given_again(each: Stored, losses: Iterable[Loss]) -> bool:
    queue = MessageQueue(each.topic, each.broker, each.queue_id)
    return any(loss.queue == queue and each.offset <= loss.last for loss in losses)


def repeated(log: GroupLog, troubles: Troubles, losses: Sequence[Loss] = ()) -> list[str]:
    """Returns messages that were handled again although their member had met no fault. After a kill of the member, only those count
    that it had the time to commit.

    Left out are calls that were cancelled or have no end, ordered messages that are handled again in their place or behind one
    that is still open, messages that were taken from hand, and those of a queue that has lost messages meanwhile, in which its
    member goes back."""
    settled = _settled(log)
    found: list[str] = []
    for first, second in _pairs(log.deliveries):
        life = log.lives[first.life]
        in_place = first.how == "failed" and is_ordered(log, first.queue)
        if first.how in ("", "cancelled") or in_place or troubles.felt(first.began, second.began):
            continue
        if any(loss.queue == first.queue and first.began <= loss.time <= second.began for loss in losses):
            continue
        killed = troubles.killed(life, first.began)
        text = (
            f"repeated: {_named(first)} was handled by {life.member} at {first.began:.6f} s, and began again at "
            f"{second.began:.6f} s"
        )
        if repeats_behind_open(log, first, second) or _taken_from_hand(log, first, second) or _near_failover(log, first):
            continue
        if killed > second.began:
            found.append(text)
        elif settled[first.life, first.queue, first.offset] + log.commit_interval + SLACK < killed:
            found.append(f"{text}: it could have been committed before the kill at {killed:.6f} s")
    return found


def _near_failover(log: GroupLog, delivery: Delivery) -> bool:
    """Returns whether a message was handled when its broker lost its master, or shortly before or after: the new master knows no
    lock, and may grant one to another member at once."""
    return any(began - BEFORE <= delivery.began <= ended + AFTER for began, ended in log.failovers)


def together(log: GroupLog, troubles: Troubles) -> list[str]:
    """Returns messages that two calls handled at the same time: one member must never do that, two members only during a fault,
    or after a message was in hand for ``in_hand`` seconds."""
    return [
        f"together: {_named(second)} began at {second.began:.6f} s, while the call {second.began - first.began:.3f} s before ran "
        f"on {'the same member' if first.life == second.life else log.lives[first.life].member}"
        for first, second in _pairs(log.deliveries)
        if min(_end(first), troubles.killed(log.lives[first.life], first.began)) > second.began
        if first.life == second.life
        or not (troubles.felt(first.began, second.began) or _taken_from_hand(log, first, second) or _near_failover(log, first))
    ]


def _taken_from_hand(log: GroupLog, first: Delivery, second: Delivery) -> bool:
    """Returns whether another call may have got a message in hand, whose queue is given up after ``in_hand`` seconds if the
    members change: one of another member, or a later one of the same, to which the queue has come back."""
    if min(_end(first), second.began) - first.began < log.in_hand:
        return False
    return first.life != second.life or any(
        first.began - REBALANCED < time < second.began for life in log.lives for time in (life.began, life.ended or -inf)
    )


def backwards(
    commits: Sequence[Commit],
    troubles: Troubles,
    taken: Collection[MessageQueue],
    starts: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> list[str]:
    """Returns commits below the offset that the broker had.

    Without a fault they are violations of any member. During a fault they are violations only of the member that has the queue's
    lock and has written the higher offset itself, because another one may be separated from the group and still commit; and only
    if the higher offset is not written again soon, because a commit on a blocked connection may arrive after a later one on a new
    connection.

    ``taken``: queues that have lost messages; they are left out, because a group goes back to their end. ``starts``: the times at
    which members have joined, by client id.
    """
    found: list[str] = []
    writers: dict[MessageQueue, Commit] = {}
    for commit in commits:
        last = writers.get(commit.queue)
        writers[commit.queue] = commit
        if commit.offset >= commit.before or commit.queue in taken:
            continue
        own = commit.holder is not None and commit.holder == commit.client_id
        if not troubles.felt(commit.time, commit.time) or (
            own
            and last is not None
            and last.client_id == commit.client_id
            and not _healed(commit, commits, starts.get(commit.client_id or "", ()))
        ):
            found.append(
                f"backwards: {commit.client_id} committed {commit.offset} of {commit.queue} at {commit.time:.6f} s after "
                f"{commit.before}"
            )
    return found


def _healed(commit: Commit, commits: Sequence[Commit], starts: Sequence[float]) -> bool:
    """Returns whether any member has soon written again the offset that a commit has put back."""
    index = bisect_left(commits, commit.time, key=lambda each: each.time)
    late = any(-HEALED < commit.time - start < LATE for start in starts)
    end = commit.time + (HEALED_AFTER_START if late else HEALED)
    soon = takewhile(lambda each: each.time <= end, commits[index:])
    return any(each.queue == commit.queue and each.offset >= commit.before for each in soon)


def stalled(log: GroupLog, troubles: Troubles) -> list[str]:
    """Returns a text for each queue with waiting messages of which no member begins one within 30 s of a look at rest, although
    a member lives all that time. A look at rest is made when all faults have ended and the name servers list all brokers again.

    Not reported: times in which a broker still lists a member that has left, because the others leave its share alone; queues that
    a client which has left still locks; queues whose next message is ``max_span`` or more offsets ahead of a message whose call is
    running.
    """
    begun = _begun(log.deliveries)
    return [
        f"stalled: no message of {queue} was begun within {RESUMED:g} s of {backlog.time:.6f} s, when all faults were over; it "
        f"had {len(waiting)} from offset {waiting[0]} on"
        for backlog in log.backlogs
        if backlog.resting and _members(log.samples, backlog.time, backlog.time + RESUMED)
        if not _ghosts(log.backlogs, backlog.time, backlog.time + RESUMED)
        for queue, waiting in _waiting(backlog, begun)
        if not _locked(queue, log.backlogs, backlog.time, backlog.time + RESUMED)
        if not any(begun.get((queue, offset), inf) <= backlog.time + RESUMED for offset in waiting)
        and not _spanned(log, troubles, queue, waiting[0], backlog.time, backlog.time + RESUMED)
    ]


def _spanned(log: GroupLog, troubles: Troubles, queue: MessageQueue, offset: int, first: float, last: float) -> bool:
    """Returns whether a call keeps ``offset`` from being read: it runs from ``first`` to ``last``, ``max_span`` offsets or more
    behind."""
    return any(
        each.queue == queue and each.began <= first and offset - each.offset >= log.max_span
        for each in log.deliveries
        if min(_end(each), troubles.killed(log.lives[each.life], each.began)) > last
    )


def unnamed(log: GroupLog, troubles: Troubles) -> list[str]:
    """Returns queues that were not read for ``NAMED`` seconds while no member's ``health()`` named a problem.

    Left out are times in which a member's process ended or was stopped, and those in which a broker lists a member that has left,
    because the others cannot know that; messages that their broker lost or deleted before the end of the time; and messages
    ``max_span`` behind one that is handled meanwhile. A queue that is removed from its topic during that time must have been there
    for ``SEEN`` seconds before: otherwise members may not know of it.
    """
    begun = _begun(log.deliveries)
    members = {life.member for life in log.lives}
    ill = [sample.time for sample in log.samples if sample.problems]
    found: dict[MessageQueue, str] = {}
    for backlog in log.backlogs:
        first, last = backlog.time, backlog.time + NAMED
        if (
            not _members(log.samples, first, last)
            or _ghosts(log.backlogs, first - NAMED, last)
            or any(troubles.away(member, first - NAMED, last) for member in members)
        ):
            continue
        index = bisect_left(ill, first)
        if index < len(ill) and ill[index] <= last:
            continue
        for queue, offsets in _waiting(backlog, begun):
            offset = _unread(queue, offsets, log, begun, first)
            if offset is not None and not _spanned(log, troubles, queue, offset, first, last):
                found.setdefault(
                    queue,
                    f"unnamed: no message of {queue} was begun from {first:.6f} s on, where offset {offset} comes next, and "
                    f"for {NAMED:g} s no member's health() named a problem",
                )
    return list(found.values())


def _unread(
    queue: MessageQueue,
    offsets: list[int],
    log: GroupLog,
    begun: Mapping[tuple[MessageQueue, int], float],
    first: float,
) -> int | None:
    """Returns the first of the offsets that wait in a queue from ``first`` on, if a member should read it or name a problem; else
    None."""
    last = first + NAMED
    waiting = _kept(queue, offsets, log.backlogs, first, last)
    if not waiting or any(begun.get((queue, offset), inf) <= last for offset in offsets):
        return None
    return waiting[0] if _may_be_known(queue, log, first, last) and _may_be_found(queue, log, first, last) else None


def uncommitted(log: GroupLog) -> list[str]:
    """Returns queues whose last offset was not committed after the orderly stop of all members."""
    return [
        f"uncommitted: {queue} ends at {high}, and the group has committed {low} after the stop of all members"
        for queue, (low, high) in (log.idle.queues.items() if log.idle is not None else ())
        if low != high
    ]


def sick(log: GroupLog) -> list[str]:
    """Returns members whose ``health()`` was not fine from ``log.fine_from`` on. A problem is right if it reports an earlier
    event, or if it names only queues that were removed from their topic with unread messages, and did not come back.

    Left out are times at which a broker lists a member that has left."""
    return [
        f"sick: {log.lives[sample.life].member} at {sample.time:.6f} s: ready is {sample.ready}, {dict(sample.problems)}"
        for sample in log.samples
        if sample.time >= log.fine_from
        if not sample.ready or not all(_is_right(problem, log.backlogs, sample.time) for problem in sample.problems)
        if not _ghosts(log.backlogs, sample.time - LOOK, sample.time)
    ]


def _is_right(problem: tuple[str, str], backlogs: Sequence[Backlog], time: float) -> bool:
    """Returns whether a problem reports an earlier event, or names only queues that were removed and have unread messages,
    at a time."""
    code, text = problem
    if code in ("queue_lost", "messages_skipped"):  # for some minutes
        return True
    named = MISSING.match(text) if code == "queue_missing" else None
    at = bisect_right(backlogs, time, key=lambda backlog: backlog.time)
    if named is None or not at:
        return False
    taken_away = backlogs[at - 1].taken_away
    return all(MessageQueue(named[2], named[3], int(number)) in taken_away for number in named[1].split(", "))


def restarted(log: GroupLog) -> list[str]:
    """Returns members with a problem ``restarted``: a task inside of the consumer has failed."""
    texts = {text: sample for sample in reversed(log.samples) for code, text in sample.problems if code == "restarted"}
    return [f"restarted: {log.lives[sample.life].member} before {sample.time:.6f} s: {text}" for text, sample in texts.items()]


def _pairs(deliveries: Iterable[Delivery]) -> list[tuple[Delivery, Delivery]]:
    """Returns each pair of calls that followed one another for the same stored message."""
    places: defaultdict[object, list[Delivery]] = defaultdict(list)
    for each in deliveries:
        places[each.queue, each.offset, each.unique_id].append(each)
    return [pair for line in places.values() if len(line) > 1 for pair in pairwise(line)]


def _settled(log: GroupLog) -> dict[tuple[int, MessageQueue, int], float]:
    """Returns the time at which a life had settled a message of a queue and all before it, by life, queue and offset."""
    lines: defaultdict[tuple[int, MessageQueue], list[Delivery]] = defaultdict(list)
    for each in log.deliveries:
        lines[each.life, each.queue].append(each)
    found: dict[tuple[int, MessageQueue, int], float] = {}
    for (life, queue), line in lines.items():
        latest = 0.0
        for each in sorted(line, key=lambda each: each.offset):
            latest = max(latest, _end(each))
            found[life, queue, each.offset] = latest
    return found


def _begun(deliveries: Iterable[Delivery]) -> dict[tuple[MessageQueue, int], float]:
    """Returns the time at which the first call for a place, a queue and offset, began."""
    found: dict[tuple[MessageQueue, int], float] = {}
    for each in deliveries:
        found.setdefault((each.queue, each.offset), each.began)
    return found


def _waiting(backlog: Backlog, begun: Mapping[tuple[MessageQueue, int], float]) -> list[tuple[MessageQueue, list[int]]]:
    """Returns each queue with offsets for which no call had begun at the time of ``backlog``, and those offsets."""
    found = [
        (queue, [offset for offset in range(low, high) if begun.get((queue, offset), inf) > backlog.time])
        for queue, (low, high) in backlog.queues.items()
    ]
    return [each for each in found if each[1]]


def _kept(queue: MessageQueue, offsets: list[int], backlogs: Sequence[Backlog], first: float, last: float) -> list[int]:
    """Returns those of ``offsets`` that were in the queue and not committed in each backlog recorded from ``first`` to ``last``. A
    backlog without the queue excludes no offset."""
    at = bisect_left(backlogs, first, key=lambda backlog: backlog.time)
    for backlog in takewhile(lambda backlog: backlog.time <= last, backlogs[at:]):
        low, high = backlog.queues.get(queue, (0, inf))
        offsets = [offset for offset in offsets if low <= offset < high]
    return offsets


def _may_be_known(queue: MessageQueue, log: GroupLog, first: float, last: float) -> bool:
    """Returns whether a queue was in its topic from ``first`` to ``last``, or so long before that a member knew it by a route."""
    at = bisect_left(log.backlogs, first - SEEN, key=lambda backlog: backlog.time)
    looks = [*takewhile(lambda backlog: backlog.time <= last, log.backlogs[at:])]
    if not any(queue in look.taken_away for look in looks):
        return True
    return all(queue in look.queues for look in looks if look.time <= first) and _members(log.samples, first - SEEN, last)


def _may_be_found(queue: MessageQueue, log: GroupLog, first: float, last: float) -> bool:
    """Returns whether the name servers listed the broker of a queue for ``LISTED`` seconds in the life of a member that lived from
    ``first`` to ``last``. A member that started while they did not list it cannot know of the queue, nor name it."""
    for life in _lives(log.samples, first, last):
        at = bisect_left(log.backlogs, log.lives[life].began, key=lambda backlog: backlog.time)
        looks = [*takewhile(lambda backlog: backlog.time <= last, log.backlogs[at:])]
        if not any(queue.broker_name in look.unlisted for look in looks):
            return True
        since = inf
        for look in looks:
            since = inf if queue.broker_name in look.unlisted else min(since, look.time)
            if look.time - since >= LISTED:
                return True
    return False


def _ghosts(backlogs: Sequence[Backlog], first: float, last: float) -> bool:
    """Returns whether a backlog recorded between two times has ghosts."""
    at = bisect_left(backlogs, first, key=lambda backlog: backlog.time)
    while at < len(backlogs) and backlogs[at].time <= last:
        if backlogs[at].ghosts:
            return True
        at += 1
    return False


def _locked(queue: MessageQueue, backlogs: Sequence[Backlog], first: float, last: float) -> bool:
    """Returns whether a backlog recorded between two times has a queue as locked."""
    at = bisect_left(backlogs, first, key=lambda backlog: backlog.time)
    return any(queue in look.locked for look in takewhile(lambda look: look.time <= last, backlogs[at:]))


def _members(samples: Sequence[Sample], first: float, last: float) -> bool:
    """Returns whether a member lived from ``first`` to ``last``."""
    return bool(_lives(samples, first, last))


def _lives(samples: Sequence[Sample], first: float, last: float) -> set[int]:
    """Returns the lives of the members that lived from ``first`` to ``last``."""
    at = bisect_left(samples, first - LOOK, key=lambda sample: sample.time)
    lives = {sample.life for sample in samples[at:] if sample.time <= first + LOOK}
    at = bisect_left(samples, last - LOOK, key=lambda sample: sample.time)
    return lives & {sample.life for sample in samples[at:] if sample.time <= last + LOOK}


def _end(delivery: Delivery) -> float:
    return inf if delivery.ended is None else delivery.ended


def _named(delivery: Delivery) -> str:
    return f"offset {delivery.offset} of {delivery.queue} ({delivery.unique_id})"
