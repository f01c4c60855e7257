"""Finds the messages that a group may leave out, because they have offsets which a queue has given out again.

A member that held the queue when that lost messages must handle all that are stored afterwards, also if it is without the queue
for a moment. One that took the queue over later, or between two losses, knows only the group's offset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Any, Final, TypeVar

from rmq_async.testing.simulation.checkers import Stored
from rmq_protocol.message import MessageQueue

from .group_log import GroupLog, Sample
from .watched import Loss

__all__ = ["is_bound", "left_out"]

APART: Final = 5.0
"""Seconds between two looks at a member, at most, between which it has not given a queue up and taken it again."""
AWAY: Final = 20.0
"""Seconds for which a queue may be with other members while its broker lists the members again, after its start."""
SKIPPED: Final = "messages_skipped"
T = TypeVar("T")


def left_out(log: GroupLog, stored: Iterable[Stored], losses: Sequence[Loss]) -> set[str]:
    """Returns the unique ids of messages, at offsets that were given out again, that no member was bound to handle."""
    by_queue, by_life = _grouped(losses, attrgetter("queue")), _grouped(log.samples, attrgetter("life"))
    commits = _grouped(log.commits, attrgetter("queue"))
    bound: dict[Loss, bool] = {}
    found: set[str] = set()
    for each in stored:
        queue = MessageQueue(each.topic, each.broker, each.queue_id)
        known = by_queue.get(queue, ())
        # a message that is stored at the end was stored after each loss that would have taken it
        before = [loss for loss in known if loss.first <= each.offset]
        if not before or each.offset > max(loss.last for loss in known):
            continue
        loss = before[-1]
        if loss not in bound:
            first = min(each.time for each in known if 0 <= loss.time - each.time < AWAY)
            there = (samples for samples in by_life.values() if _holds(samples, first, queue))
            bound[loss] = any(is_bound(samples, loss, [each.time for each in commits[queue]], log.now()) for samples in there)
        if not bound[loss]:
            found.add(each.unique_id)
    return found


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> Mapping[Any, list[T]]:
    found = defaultdict[Hashable, list[T]](list)
    for item in items:
        found[key(item)].append(item)
    return found


def is_bound(samples: Sequence[Sample], loss: Loss, commits: Sequence[float], end: float) -> bool:
    """Returns whether a member held a queue when that lost messages, and on, until it has gone back in the queue and has
    committed that, or until the end of the run: then its successors go on from there. Once it has gone back, the queue may be away
    for a moment: brokers that start list the members of a group one by one.

    ``samples``: those of one life. ``commits``: the times at which the offset of the queue was stored.
    """
    if not _holds(samples, loss.time, loss.queue):
        return False
    before = [sample for sample in samples if sample.time <= loss.time]
    known, last, back, away = _said(before[-1], loss.queue), before[-1].time, inf, False
    for sample in samples[len(before) :]:
        if _said(sample, loss.queue) - known:
            back = min(back, sample.time)
        holds = loss.queue in sample.held
        if sample.time - last > (APART if holds and not away else AWAY) or (not holds and back == inf):
            return False
        if not holds:
            away = True
            continue
        if away:
            away, back = False, sample.time
        if any(back <= commit <= sample.time for commit in commits):
            return True
        last = sample.time
    return end - last <= APART


def _holds(samples: Sequence[Sample], time: float, queue: MessageQueue) -> bool:
    """Returns whether the last look at a member before ``time`` has seen that it holds a queue."""
    before = [sample for sample in samples if sample.time <= time]
    return bool(before) and queue in before[-1].held


def _said(sample: Sample, queue: MessageQueue) -> set[str]:
    return {text for code, text in sample.problems if code == SKIPPED and text.startswith(f"{queue} ")}
