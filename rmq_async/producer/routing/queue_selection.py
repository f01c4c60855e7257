"""Queue selection for producers that avoid brokers (``latency_fault``) or have a selector (``queue_selector``).

``retry_policy`` determines from which brokers an attempt may choose, and QueueSelection chooses among their queues.

The following applies without a selector of the user. With ``latency_fault="failures"``, a topic on several brokers has plain round
robin until a broker is suspected; ``FailureRotation`` then replaces it until no broker is suspected. With ``latency_fault=True``,
``LatencyRotation`` always replaces it. While no broker is suspected, it only reads the clock, and at intervals
(``Overdue.interval``) it looks for attempts that have been in flight for too long.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from math import inf
from typing import Any, Final, cast

from rmq_protocol.message import Message, MessageQueue

from ... import machine
from ..._text import printable
from ...transport import Connection, ConnectionPool
from .broker_probe import BrokerProbe
from .fault_table import LatencyTable
from .selectors import Pick, RoundRobin, Selector, ask, awaited, one_of, picking, select_best, select_by_hash
from .suspects import FailureTable
from .topic_queues import Target, TopicQueues

logger = logging.getLogger("rmq_async.producer")

LOOKS: Final = 16
"""Minimum number of samples of the attempts in flight that are taken within the fault table's ``patience``, if attempts are
frequent."""
ADDRESSES_KEPT: Final = 1024
SWEEP_COST: Final = 0.0002
"""Minimum seconds per topic between two calls of ``sweep`` that check all routes. All routes may change at once."""


class Overdue:
    """Finds attempts that have been in flight for too long, without a record for each attempt.

    It samples the newest opaque (request number) of a connection. Attempts with opaques up to an old sample began before that
    sample.

    Args:
        owner: The object that identifies the producer's requests in the connections' request tables.
        patience: An attempt that has been in flight for more than this many seconds is late.

    Attributes:
        interval: Minimum seconds between two samples of an address, and between two checks of a topic without suspected brokers.
    """

    __slots__ = ("_known", "_owner", "_patience", "_pool", "interval")

    def __init__(self, pool: ConnectionPool, owner: object, patience: float) -> None:
        self._pool = pool
        self._owner = owner
        self._patience = patience
        self.interval = min(patience / LOOKS, 1.0)
        self._known: dict[str, _Known] = {}  # by address

    def waits(self, address: str) -> bool:
        """Return whether an attempt to ``address`` is in flight, or a connection attempt is in progress."""
        connection = self._pool.get(address)
        if connection is None:
            self._known.pop(address, None)
            return self._pool.connecting(address)
        return self._look(address, connection)[0] != 0

    def late(self, address: str, now: float) -> bool:
        """Return whether an attempt to ``address`` has been in flight for longer than ``patience``.

        Each call may add a sample. The shorter the time between samples, the more accurate the result.
        """
        connection = self._pool.get(address)
        if connection is None:
            self._known.pop(address, None)
            return False
        oldest, newest = self._look(address, connection)
        samples, before = self._known[address].samples, now - self._patience
        if not samples or now - samples[-1][0] >= self.interval:
            samples.append((now, newest))
        while len(samples) > 1 and samples[1][0] <= before:
            samples.popleft()
        return oldest != 0 and samples[0][0] <= before and oldest <= samples[0][1]

    def _look(self, address: str, connection: Connection) -> tuple[int, int]:
        known = self._known.get(address)
        if known is None or known.connection is not connection:
            if len(self._known) >= ADDRESSES_KEPT:
                self._known.clear()
            known = self._known[address] = _Known(connection)
        oldest, newest = connection.requests.oldest_of(self._owner, known.since)
        known.since = oldest or newest
        return oldest, newest


class _Known:
    """The samples of one connection.

    Attributes:
        since: An opaque (request number). The producer has no request in flight with a lower one.
        samples: Pairs (time, newest opaque), the oldest first. One sample that is older than ``patience`` is kept.
    """

    __slots__ = ("connection", "samples", "since")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.samples: deque[tuple[float, int]] = deque()
        self.since = 0


class QueueSelection:
    """Chooses the queues of one producer.

    Args:
        selector: The ``queue_selector``. It is called unless it is ``select_best``.
        faults: The fault table. None with ``latency_fault=False``.
        named: Returns whether a known route has writable queues on a broker.
        queues_by_topic: A mapping of topics to their queues that is always current.

    Attributes:
        custom: Whether the selector is not ``select_best``.
    """

    __slots__ = (
        "_named",
        "_overdue",
        "_queues_by_topic",
        "_stale",
        "_sweep_from",
        "_turns",
        "custom",
        "detector",
        "faults",
        "interval",
        "selector",
    )  # fmt: skip

    def __init__(
        self,
        selector: Selector,
        faults: FailureTable | LatencyTable | None,
        overdue: Overdue | None = None,
        named: Callable[[str], bool] = lambda _: True,
        queues_by_topic: Mapping[str, TopicQueues] | None = None,
    ) -> None:
        self.selector = selector
        self.custom = selector is not select_best
        self.faults = faults
        self.detector: BrokerProbe | None = None
        self._overdue = overdue
        self.interval = 1.0 if overdue is None else overdue.interval
        self._named = named
        self._queues_by_topic = queues_by_topic if queues_by_topic is not None else {}
        self._stale = False
        self._sweep_from = -inf
        self._turns = RoundRobin()
        if isinstance(faults, FailureTable) and not self.custom:
            faults.on_suspect = self._suspected

    def adopt(self, topic_queues: TopicQueues) -> None:
        """Replace the round robin of a topic's new queues if the fault policy requires it. With a selector of the user, keep it."""
        if self._stale:
            self.sweep(machine.monotonic())
        if self.custom:
            return
        if isinstance(self.faults, LatencyTable):
            topic_queues.next = LatencyRotation(self, self.faults, topic_queues).next
        elif self.faults is not None and topic_queues.several and not self.faults.items.keys().isdisjoint(topic_queues.brokers):
            topic_queues.next = FailureRotation(self, self.faults, topic_queues).next

    def _suspected(self, broker: str) -> None:
        logger.info("broker %s does not respond and is avoided for a moment", printable(broker))
        for topic_queues in self._queues_by_topic.values():
            if broker in topic_queues.brokers and len(topic_queues.brokers) > 1:
                topic_queues.next = FailureRotation(self, cast(FailureTable, self.faults), topic_queues).next

    def uninviting(self, brokers: Collection[str]) -> Collection[str]:
        """Return those of ``brokers`` that ``latency_fault=True`` avoids. Attempts on other brokers need not leave time for them.

        Return no brokers with ``latency_fault="failures"``: a broker that did not respond may be back in time, so time is left for
        it.
        """
        return self.avoided(brokers) if self.faults is not None and self.faults.measures else ()

    def avoided(self, brokers: Collection[str]) -> Collection[str]:
        """Return those of ``brokers`` that attempts avoid if others are available."""
        faults = self.faults
        if faults is None or self.custom or not (faults.items or faults.measures):
            return ()
        return faults.avoided(brokers, machine.monotonic())

    def next(self, topic_queues: TopicQueues, brokers: Collection[str]) -> Target:
        """Return the topic's next queue on the best of ``brokers``. If the fault table has entries, report the choice to it."""
        faults = self.faults
        if faults is None or not (faults.items or faults.measures):
            return topic_queues.next_of(brokers)
        now = machine.monotonic()
        target = topic_queues.next_of(self.best(faults, topic_queues, brokers, now))
        faults.chosen(target.broker, now)
        return target

    def best(
        self, faults: FailureTable | LatencyTable, topic_queues: TopicQueues, brokers: Collection[str], now: float
    ) -> Collection[str]:
        """Return the brokers from which to choose. Return ``brokers`` itself if no broker is suspected or late."""
        self.sweep(now)
        if self._overdue is not None and isinstance(faults, LatencyTable) and faults.patience < inf:
            late = [broker for broker, address in topic_queues.addresses.items() if self._overdue.late(address, now)]
            if late or faults.late:
                faults.late = (faults.late - topic_queues.brokers).union(late)
        return faults.best(brokers, now)

    def sweep(self, now: float) -> None:
        """Remove brokers that are in no route from the fault table, if a route has changed. Do this at most once per interval
        (``SWEEP_COST``).
        """
        if self._stale and self.faults is not None and now >= self._sweep_from:
            self._stale, self._sweep_from = False, now + len(self._queues_by_topic) * SWEEP_COST
            self.faults.keep(self._named)

    def ask(
        self,
        selector: Selector | None,
        topic_queues: TopicQueues,
        queues: Sequence[MessageQueue],
        message: Message,
        key: object,
        deadline: float,
    ) -> MessageQueue | Coroutine[Any, Any, MessageQueue]:
        """Return the queue that a selector chooses among ``queues`` of the topic, or a coroutine that returns it.

        Args:
            selector: The selector to call. None stands for the producer's selector, or for ``select_by_hash`` if the producer has
                none.

        Raises:
            SelectorError: If the selector raises an error, or chooses a queue that it was not given. A RocketMQError of the
                selector is raised unchanged.
            RequestTimeoutError: If the selector returns at ``deadline`` or later.
        """
        if selector is None:
            selector = self.selector if self.custom else select_by_hash
        pick = partial(self.pick, topic_queues)
        with picking(pick):
            chosen = ask(selector, queues, message, key)
        if not isinstance(chosen, MessageQueue) and isawaitable(chosen):
            return self._awaited(selector, chosen, queues, pick, deadline)
        return one_of(chosen, queues, selector, deadline)

    async def _awaited(
        self, selector: Selector, choosing: Awaitable[MessageQueue], queues: Sequence[MessageQueue], pick: Pick, deadline: float
    ) -> MessageQueue:
        with picking(pick):
            return one_of(await awaited(selector, choosing, deadline), queues, selector, deadline)

    def pick(self, topic_queues: TopicQueues, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the next of ``queues`` in turn. ``select_best`` calls this if a send of this producer has called it.

        Queues of brokers that are avoided or down are skipped if there are others.

        Args:
            queues: Any queues of the topic.
        """
        if topic_queues.route.is_fixed:
            here = [queue for queue in queues if topic_queues.knows(queue)]
            if not here:
                return self._turns.next(queues)
            queues = here
        if self.faults is not None:
            return self._best_of(self.faults, topic_queues, queues)
        return self._turns.next(queues)

    def _best_of(
        self, faults: FailureTable | LatencyTable, topic_queues: TopicQueues, queues: Sequence[MessageQueue]
    ) -> MessageQueue:
        if not (faults.items or faults.measures):
            return self._turns.next(queues)
        now = machine.monotonic()
        brokers = frozenset([topic_queues.target(queue).broker for queue in queues])
        best = self.best(faults, topic_queues, brokers, now)
        if best is not brokers:
            queues = [queue for queue in queues if topic_queues.target(queue).broker in best]
        chosen = self._turns.next(queues)
        faults.chosen(topic_queues.target(chosen).broker, now)
        return chosen

    def route_changed(self, brokers: Collection[str]) -> None:
        """Update the fault table for a new route that names ``brokers``. Their addresses may have changed, and other brokers may be
        gone.
        """
        if self.faults is not None:
            self._stale = bool(self.faults.items)
            self.faults.version += 1
            self.faults.moved(brokers)

    def close(self) -> None:
        """Cancel the detector, if there is one."""
        if self.detector is not None:
            self.detector.cancel()

    async def closed(self) -> None:
        """Wait until the detector, if there is one, has ended."""
        if self.detector is not None:
            await self.detector.ended()


class LatencyRotation:
    """Replaces a topic's round robin with ``latency_fault=True``. It is also a round robin while no broker is suspected or late."""

    __slots__ = ("_calm_until", "_faults", "_in_turn", "_interval", "_selection", "_topic_queues", "_version")

    def __init__(self, selection: QueueSelection, faults: LatencyTable, topic_queues: TopicQueues) -> None:
        self._selection = selection
        self._faults = faults
        self._topic_queues = topic_queues
        self._in_turn = topic_queues.next
        self._interval = selection.interval
        self._calm_until = 0.0
        self._version = -1

    def next(self) -> Target:
        now = machine.monotonic()
        if now < self._calm_until and self._version == self._faults.version:
            return self._in_turn()
        return self._choose(now)

    def _choose(self, now: float) -> Target:
        faults, topic_queues = self._faults, self._topic_queues
        best = self._selection.best(faults, topic_queues, topic_queues.brokers, now)
        inviting = len(topic_queues.brokers) - len(faults.avoided(topic_queues.brokers, now)) or len(topic_queues.brokers)
        topic_queues.several = inviting > 1  # counted as in ``retry_policy.next_step``
        self._calm_until = now + self._interval if best is topic_queues.brokers and not faults.items else 0.0
        self._version = faults.version
        return topic_queues.next_of(best)


class FailureRotation:
    """Replaces a topic's round robin while one of its brokers is suspected. It skips avoided brokers if there are others."""

    __slots__ = ("_faults", "_good", "_selection", "_topic_queues", "_until", "_version")

    def __init__(self, selection: QueueSelection, faults: FailureTable, topic_queues: TopicQueues) -> None:
        self._selection = selection
        self._faults = faults
        self._topic_queues = topic_queues
        self._good: Collection[str] = topic_queues.brokers
        self._until = -inf
        self._version = -1

    def next(self) -> Target:
        now = machine.monotonic()
        if now < self._until and self._version == self._faults.version:
            return self._topic_queues.next_of(self._good)
        return self._choose(now)

    def _choose(self, now: float) -> Target:
        """Choose by the current entries of the fault table. Keep the set of chosen brokers until these entries can change."""
        faults, topic_queues, selection = self._faults, self._topic_queues, self._selection
        selection.sweep(now)
        suspects = faults.items.keys() & topic_queues.brokers
        if not suspects:
            topic_queues.take_turns()
            return topic_queues.next()
        avoided = faults.avoided(topic_queues.brokers, now)
        self._good = topic_queues.brokers - avoided or topic_queues.brokers
        self._until = -inf
        if len(avoided) == len(suspects):
            items = [faults.items[broker] for broker in suspects]
            self._until = min([max(item.available_from, item.tried_until) for item in items])
        self._version = faults.version
        target = topic_queues.next_of(self._good)
        faults.chosen(target.broker, now)
        return target
