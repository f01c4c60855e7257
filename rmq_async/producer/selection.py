"""Which queue an attempt goes to, in a producer that does not simply take them in turn.

A producer has a Selection if it leaves failing brokers alone (``latency_fault``), or asks a function of the user's
(``queue_selector``) for each attempt. ``policy`` says which brokers come into question for an attempt; this chooses among their
queues.

With ``latency_fault="failures"`` a lane's round robin runs untouched until one of the lane's brokers is suspected. From then on
until none is, ``Passing`` stands before it. With ``latency_fault=True`` ``Turning`` stands there all the time: while no broker is
suspected all it does is to read the clock, and every few milliseconds it looks for attempts that have been waiting for too long.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from math import inf
from time import monotonic
from typing import Any, Final, cast

from rmq_protocol.message import Message, MessageQueue

from ..client.instance import ClientInstance
from ..client.text import printable
from ..client.vip import vip_address
from ..transport import Connection, ConnectionPool
from .config import ProducerConfig
from .detector import Detector
from .failures import Failures
from .faults import Faults
from .lanes import Lane, Target
from .selectors import Pick, Selector, ask, awaited, one_of, picking, select_best, select_by_hash
from .turns import Turns

__all__ = ["Overdue", "Passing", "Selection", "Turning", "selection_of"]

logger = logging.getLogger("rmq_async.producer")

LOOKS: Final = 16
"""How often, within a fault table's patience, attempts under way are looked at."""
ADDRESSES_KEPT: Final = 1024
SWEEP_COST: Final = 0.0002
"""Seconds per topic between two looks whether suspected brokers are in a route still, since all routes may change at once."""


class Overdue:
    """Measures for how long a producer's attempts have been waiting, without a note of each: by the opaques given out meanwhile.

    ``owner`` marks the producer's entries in the connections' tables.
    """

    __slots__ = ("_known", "_owner", "_patience", "_pool", "interval")

    def __init__(self, pool: ConnectionPool, owner: object, patience: float) -> None:
        self._pool = pool
        self._owner = owner
        self._patience = patience
        self.interval = min(patience / LOOKS, 1.0)
        """Seconds between two samples, and between two looks while all is well."""
        self._known: dict[str, _Known] = {}
        """By address."""

    def waits(self, address: str) -> bool:
        """Whether an attempt there is under way, or would have to wait for a connect that is."""
        connection = self._pool.get(address)
        if connection is None:
            self._known.pop(address, None)
            return self._pool.connecting(address)
        return self._look(address, connection)[0] != 0

    def late(self, address: str, now: float) -> bool:
        """Whether an attempt there has waited for longer than the patience, as far as the samples of earlier calls show."""
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
        oldest, newest = connection.unanswered(self._owner, known.since)
        known.since = oldest or newest
        return oldest, newest


class _Known:
    """Of one connection. ``since``: an opaque before which nothing of the producer is under way."""

    __slots__ = ("connection", "samples", "since")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.samples: deque[tuple[float, int]] = deque()
        """When which opaque was the newest; of those older than the patience the youngest."""
        self.since = 0


class Selection:
    """``selector``: asked for each attempt, unless it is ``select_best``. ``faults``: None with ``latency_fault=False``.

    ``lanes``: those of the producer, at any time. ``named``: says whether a broker has queues to write to.
    """

    __slots__ = (
        "_lanes", "_named", "_overdue", "_stale", "_sweep_from", "_turns", "custom", "detector", "faults", "interval", "selector",
    )  # fmt: skip

    def __init__(
        self,
        selector: Selector,
        faults: Failures | Faults | None,
        overdue: Overdue | None = None,
        named: Callable[[str], bool] = lambda _: True,
        lanes: Mapping[str, Lane] | None = None,
    ) -> None:
        self.selector = selector
        self.custom = selector is not select_best
        self.faults = faults
        self.detector: Detector | None = None
        self._overdue = overdue
        self.interval = 1.0 if overdue is None else overdue.interval
        self._named = named
        self._lanes = lanes if lanes is not None else {}
        self._stale = False
        self._sweep_from = -inf
        self._turns = Turns()
        if isinstance(faults, Failures) and not self.custom:
            faults.on_suspect = self._suspected

    def adopt(self, lane: Lane) -> None:
        """Chooses for the lane from now on, unless a selector of the user's does."""
        if self._stale:
            self.sweep(monotonic())
        if self.custom:
            return
        if isinstance(self.faults, Faults):
            lane.next = Turning(self, self.faults, lane).next
        elif self.faults is not None and lane.several and not self.faults.items.keys().isdisjoint(lane.brokers):
            lane.next = Passing(self, self.faults, lane).next

    def _suspected(self, broker: str) -> None:
        logger.info("broker %s does not answer, others are used for a moment", printable(broker))
        for lane in self._lanes.values():
            if broker in lane.brokers and len(lane.brokers) > 1:
                lane.next = Passing(self, cast(Failures, self.faults), lane).next

    def uninviting(self, brokers: Collection[str]) -> Collection[str]:
        """Those of ``brokers`` that are no reason to cap an attempt on another one: slow ones.

        A broker that did not answer may do so again before the whole budget of a call is over, so it stays a reason.
        """
        return self.avoided(brokers) if self.faults is not None and self.faults.measures else ()

    def avoided(self, brokers: Collection[str]) -> Collection[str]:
        """Those of ``brokers`` that no attempt is going to as long as there are others."""
        faults = self.faults
        if faults is None or self.custom or not (faults.items or faults.measures):
            return ()
        return faults.avoided(brokers, monotonic())

    def next(self, lane: Lane, brokers: Collection[str]) -> Target:
        """The lane's next queue on the best of ``brokers``."""
        faults = self.faults
        if faults is None or not (faults.items or faults.measures):
            return lane.next_of(brokers)
        now = monotonic()
        target = lane.next_of(self.best(faults, lane, brokers, now))
        faults.chosen(target.broker, now)
        return target

    def best(self, faults: Failures | Faults, lane: Lane, brokers: Collection[str], now: float) -> Collection[str]:
        """Those to choose among; ``brokers`` itself where nothing speaks against any of them."""
        self.sweep(now)
        if self._overdue is not None and isinstance(faults, Faults) and faults.patience < inf:
            late = [broker for broker, address in lane.addresses.items() if self._overdue.late(address, now)]
            if late or faults.late:
                faults.late = (faults.late - lane.brokers).union(late)
        return faults.best(brokers, now)

    def sweep(self, now: float) -> None:
        """Forgets brokers that have left the routes."""
        if self._stale and self.faults is not None and now >= self._sweep_from:
            self._stale, self._sweep_from = False, now + len(self._lanes) * SWEEP_COST
            self.faults.keep(self._named)

    def ask(
        self, selector: Selector | None, lane: Lane, brokers: Collection[str], message: Message, key: object, deadline: float
    ) -> MessageQueue | Coroutine[Any, Any, MessageQueue]:
        """What a selector says of the queues of ``brokers``, or will say. Without one: the producer's own, or by hash.

        RequestTimeoutError where it is said at ``deadline`` or later, so that nothing is written then.
        """
        selector = selector or (self.selector if self.custom else select_by_hash)
        queues = lane.queues if brokers is lane.brokers else lane.queues_of(brokers)
        pick = partial(self.pick, lane)
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

    def pick(self, lane: Lane, queues: Sequence[MessageQueue]) -> MessageQueue:
        """``next`` over any of the lane's queues; ``select_best`` does this while a selector is asked."""
        if self.faults is not None:
            return self._best_of(self.faults, lane, queues)
        return self._turns.next(queues)

    def _best_of(self, faults: Failures | Faults, lane: Lane, queues: Sequence[MessageQueue]) -> MessageQueue:
        if not (faults.items or faults.measures):
            return self._turns.next(queues)
        now = monotonic()
        brokers = frozenset([lane.target(queue).broker for queue in queues])
        best = self.best(faults, lane, brokers, now)
        if best is not brokers:
            queues = [queue for queue in queues if lane.target(queue).broker in best]
        chosen = self._turns.next(queues)
        faults.chosen(lane.target(chosen).broker, now)
        return chosen

    def route_changed(self, brokers: Collection[str]) -> None:
        """One that names ``brokers``, which may be elsewhere by now; others may have no queues any more."""
        if self.faults is not None:
            self._stale = bool(self.faults.items)
            self.faults.version += 1
            self.faults.moved(brokers)

    def close(self) -> None:
        if self.detector is not None:
            self.detector.cancel()

    async def closed(self) -> None:
        if self.detector is not None:
            await self.detector.ended()


class Turning:
    """Takes the place of a lane's round robin: the same as long as nothing speaks against one of its brokers."""

    __slots__ = ("_calm_until", "_faults", "_in_turn", "_interval", "_lane", "_selection", "_version")

    def __init__(self, selection: Selection, faults: Faults, lane: Lane) -> None:
        self._selection = selection
        self._faults = faults
        self._lane = lane
        self._in_turn = lane.next
        self._interval = selection.interval
        self._calm_until = 0.0
        self._version = -1

    def next(self) -> Target:
        now = monotonic()
        if now < self._calm_until and self._version == self._faults.version:
            return self._in_turn()
        return self._choose(now)

    def _choose(self, now: float) -> Target:
        faults, lane = self._faults, self._lane
        best = self._selection.best(faults, lane, lane.brokers, now)
        inviting = len(lane.brokers) - len(faults.avoided(lane.brokers, now)) or len(lane.brokers)
        lane.several = inviting > 1  # as ``policy.next_step`` counts for further attempts
        self._calm_until = now + self._interval if best is lane.brokers and not faults.items else 0.0
        self._version = faults.version
        return lane.next_of(best)


class Passing:
    """Takes the place of a lane's round robin while one of its brokers is suspected, and passes over those that are left alone."""

    __slots__ = ("_faults", "_good", "_lane", "_selection", "_until", "_version")

    def __init__(self, selection: Selection, faults: Failures, lane: Lane) -> None:
        self._selection = selection
        self._faults = faults
        self._lane = lane
        self._good: Collection[str] = lane.brokers
        self._until = -inf
        self._version = -1

    def next(self) -> Target:
        now = monotonic()
        if now < self._until and self._version == self._faults.version:
            return self._lane.next_of(self._good)
        return self._choose(now)

    def _choose(self, now: float) -> Target:
        """As for what is known at this moment; remembered until a suspect's time is over, or more is known."""
        faults, lane, selection = self._faults, self._lane, self._selection
        selection.sweep(now)
        suspects = faults.items.keys() & lane.brokers
        if not suspects:
            lane.take_turns()
            return lane.next()
        avoided = faults.avoided(lane.brokers, now)
        self._good = lane.brokers - avoided or lane.brokers
        self._until = -inf
        if len(avoided) == len(suspects):
            items = [faults.items[broker] for broker in suspects]
            self._until = min([max(item.available_from, item.tried_until) for item in items])
        self._version = faults.version
        target = lane.next_of(self._good)
        faults.chosen(target.broker, now)
        return target


def selection_of(
    config: ProducerConfig, instance: ClientInstance, lanes: Mapping[str, Lane], owner: object
) -> Selection | None:
    """What the settings ask for; None where queues simply take turns.

    ``lanes``: those of the producer, at any time; ``owner`` marks its entries in the connections' tables.
    """
    if config.latency_fault is False:
        return None if config.queue_selector is select_best else Selection(config.queue_selector, None)
    routes = instance.routes
    overdue = Overdue(instance.pool, owner, config.fault_table.patience)
    vip = instance.config.vip_channel

    def busy(broker: str) -> bool:
        address = routes.address_of(broker)  # not by the lanes: it is asked for each send while the broker is on trial
        return address is not None and overdue.waits(vip_address(address) if vip else address)

    def named(broker: str) -> bool:
        known = [routes.cached(topic) for topic in routes.topics]
        return any(
            route.broker_of(queue) == broker
            for route in known
            if route is not None and broker in route.addresses
            for queue in route.publish_queues
        )

    def topic_on(broker: str) -> str | None:
        return next((lane.route.topic for lane in lanes.values() if broker in lane.brokers), None)

    if config.latency_fault == "failures":
        return Selection(config.queue_selector, Failures(busy, routes.address_of), overdue, named, lanes)
    faults = Faults(config.fault_table, busy, routes.address_of)
    selection = Selection(config.queue_selector, faults, overdue, named, lanes)
    if config.detector:
        selection.detector = Detector(instance, faults, topic_on)
    return selection
