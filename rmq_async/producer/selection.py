"""Which queue an attempt goes to, in a producer that does not simply take them in turn.

A producer has a Selection if it looks at faults (``latency_fault``), or asks a function of the user's (``queue_selector``) for each
attempt. ``policy`` says which brokers come into question for an attempt; this chooses among their queues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import monotonic

from rmq_protocol.message import MessageQueue

from .faults import Faults
from .lanes import Lane, Target
from .selectors import Selector, select_best
from .turns import Turns

__all__ = ["Selection"]


class Selection:
    """``selector``: asked for each attempt, unless it is ``select_best``. ``faults``: None without ``latency_fault``."""

    __slots__ = ("_turns", "custom", "faults", "selector")

    def __init__(self, selector: Selector, faults: Faults | None) -> None:
        self.selector = selector
        self.custom = selector is not select_best
        self.faults = faults
        self._turns = Turns()

    def avoided(self, brokers: Collection[str]) -> Collection[str]:
        """Those of ``brokers`` that are left alone at the moment."""
        return () if self.faults is None else self.faults.avoided(brokers, monotonic())

    def next(self, lane: Lane, brokers: Collection[str]) -> Target:
        """The lane's next queue on the best of ``brokers``."""
        if self.faults is not None:
            brokers = self.faults.best(brokers, monotonic())
        return lane.next() if brokers is lane.brokers else lane.next_of(brokers)

    def pick(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The same over any queues of one topic; ``select_best`` does this while this producer asks a selector."""
        if self.faults is not None:
            brokers = frozenset(queue.broker_name for queue in queues)
            best = self.faults.best(brokers, monotonic())
            if best is not brokers:
                queues = [queue for queue in queues if queue.broker_name in best]
        return self._turns.next(queues)
