"""Finds the messages that a group may leave out, because they have offsets which a queue has given out again.

A member that held the queue when that lost messages must handle all that are stored afterwards. One that took the queue over
later knows only the group's offset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from rmq_protocol.message import MessageQueue

from .checkers import Stored
from .group_log import GroupLog, Sample
from .servers import Loss

__all__ = ["is_bound", "left_out"]

APART: Final = 5.0
"""Seconds between two looks at a member, at most, between which it has not given a queue up and taken it again."""
SKIPPED: Final = "messages_skipped"


def left_out(log: GroupLog, stored: Iterable[Stored], losses: Sequence[Loss]) -> set[str]:
    """Returns the unique ids of messages, at offsets that were given out again, that no member was bound to handle."""
    by_queue: defaultdict[MessageQueue, list[Loss]] = defaultdict(list)
    for loss in losses:
        by_queue[loss.queue].append(loss)
    by_life: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in log.samples:
        by_life[sample.life].append(sample)
    commits: defaultdict[MessageQueue, list[float]] = defaultdict(list)
    for commit in log.commits:
        commits[commit.queue].append(commit.time)
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
            bound[loss] = any(is_bound(samples, loss, commits[queue], log.now()) for samples in by_life.values())
        if not bound[loss]:
            found.add(each.unique_id)
    return found


def is_bound(samples: Sequence[Sample], loss: Loss, commits: Sequence[float], end: float) -> bool:
    """Returns whether a member held a queue when that lost messages, and on, until it has gone back in the queue and has
    committed that, or until the end of the run: then its successors go on from there.

    ``samples``: those of one life. ``commits``: the times at which the offset of the queue was stored.
    """
    before = [sample for sample in samples if sample.time <= loss.time]
    if not before or loss.queue not in before[-1].held:
        return False
    known, last, back = _said(before[-1], loss.queue), before[-1].time, inf
    for sample in samples[len(before) :]:
        if sample.time - last > APART or loss.queue not in sample.held:
            return False
        if any(back <= commit <= sample.time for commit in commits):
            return True
        last = sample.time
        if _said(sample, loss.queue) - known:
            back = min(back, sample.time)
    return end - last <= APART


def _said(sample: Sample, queue: MessageQueue) -> set[str]:
    return {text for code, text in sample.problems if code == SKIPPED and text.startswith(f"{queue} ")}
