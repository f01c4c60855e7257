"""Which queue an attempt goes to, in a producer that does not simply take them in turn.

A producer has a Selection if it looks at faults (``latency_fault``), or asks a function of the user's (``queue_selector``) for each
attempt. ``policy`` says which brokers come into question for an attempt; this chooses among their queues.

While no broker is suspected the shortest way of sending stays in use: ``Turning`` stands before a lane's round robin, and all it
does then is to read the clock. Every few milliseconds it looks for attempts that have been waiting for too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from time import monotonic
from typing import Any, Final

from rmq_protocol.message import Message, MessageQueue

from ..client.instance import ClientInstance
from ..client.vip import vip_address
from ..transport import Connection, ConnectionPool
from .config import ProducerConfig
from .detector import Detector
from .faults import Faults
from .lanes import Lane, Target
from .selectors import Pick, Selector, ask, awaited, one_of, picking, select_best, select_by_hash
from .turns import Turns

__all__ = ["Overdue", "Selection", "Turning", "selection_of"]

LOOKS: Final = 16
"""How often, within a fault table's patience, attempts under way are looked at."""
ADDRESSES_KEPT: Final = 1024


class Overdue:
    """Tells for how long a producer's attempts have been waiting, without a note of each: by the opaques given out meanwhile.

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
        return self._pool.connecting(address) if connection is None else self._look(address, connection)[0] != 0

    def late(self, address: str, now: float) -> bool:
        """Whether an attempt there has waited for longer than the patience, as far as the samples of earlier calls tell."""
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
    """``selector``: asked for each attempt, unless it is ``select_best``. ``faults``: None without ``latency_fault``."""

    __slots__ = ("_named", "_overdue", "_stale", "_turns", "custom", "detector", "faults", "interval", "selector")

    def __init__(
        self,
        selector: Selector,
        faults: Faults | None,
        overdue: Overdue | None = None,
        named: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.selector = selector
        self.custom = selector is not select_best
        self.faults = faults
        self.detector: Detector | None = None
        self._overdue = overdue
        self.interval = 1.0 if overdue is None else overdue.interval
        self._named = named
        """Tells which brokers have queues to write to."""
        self._stale = False
        self._turns = Turns()

    def adopt(self, lane: Lane) -> None:
        """Chooses for the lane from now on, unless a selector of the user's does."""
        if self.faults is not None and not self.custom:
            lane.next = Turning(self, self.faults, lane).next

    def avoided(self, brokers: Collection[str]) -> Collection[str]:
        """Those of ``brokers`` that no attempt is going to as long as there are others."""
        if self.faults is None or self.custom:
            return ()
        return self.faults.avoided(brokers, monotonic())

    def next(self, lane: Lane, brokers: Collection[str]) -> Target:
        """The lane's next queue on the best of ``brokers``."""
        if self.faults is not None:
            brokers = self.best(self.faults, lane, brokers, monotonic())
        return lane.next_of(brokers)

    def best(self, faults: Faults, lane: Lane, brokers: Collection[str], now: float) -> Collection[str]:
        """Those to choose among; ``brokers`` itself where nothing speaks against any of them."""
        if self._stale:
            self._stale = False
            if faults.items:
                faults.keep(self._named())
        if self._overdue is not None and faults.patience < float("inf"):
            late = [broker for broker, address in lane.addresses.items() if self._overdue.late(address, now)]
            if late or faults.late:
                faults.late = (faults.late - lane.brokers).union(late)
        return faults.best(brokers, now)

    def ask(
        self, selector: Selector | None, lane: Lane, brokers: Collection[str], message: Message, key: object, deadline: float
    ) -> MessageQueue | Coroutine[Any, Any, MessageQueue]:
        """What a selector says of the queues of ``brokers``, or will say. Without one: the producer's own, or by hash."""
        selector = selector or (self.selector if self.custom else select_by_hash)
        queues = lane.queues if brokers is lane.brokers else lane.queues_of(brokers)
        pick = partial(self.pick, lane)
        with picking(pick):
            chosen = ask(selector, queues, message, key)
        if not isinstance(chosen, MessageQueue) and isawaitable(chosen):
            return self._awaited(selector, chosen, queues, pick, deadline)
        return one_of(chosen, queues, selector)

    async def _awaited(
        self, selector: Selector, choosing: Awaitable[MessageQueue], queues: Sequence[MessageQueue], pick: Pick, deadline: float
    ) -> MessageQueue:
        with picking(pick):
            return one_of(await awaited(selector, choosing, deadline), queues, selector)

    def pick(self, lane: Lane, queues: Sequence[MessageQueue]) -> MessageQueue:
        """``next`` over any of the lane's queues; ``select_best`` does this while a selector is asked."""
        if self.faults is not None:
            brokers = frozenset([lane.target(queue).broker for queue in queues])
            best = self.best(self.faults, lane, brokers, monotonic())
            if best is not brokers:
                queues = [queue for queue in queues if lane.target(queue).broker in best]
        return self._turns.next(queues)

    def route_changed(self) -> None:
        """Brokers may have no queues any more."""
        self._stale = True
        if self.faults is not None:
            self.faults.version += 1

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


def selection_of(
    config: ProducerConfig, instance: ClientInstance, lanes: Mapping[str, Lane], owner: object
) -> Selection | None:
    """What the settings ask for; None where queues simply take turns.

    ``lanes``: those of the producer, at any time; ``owner`` marks its entries in the connections' tables.
    """
    if not config.latency_fault:
        return None if config.queue_selector is select_best else Selection(config.queue_selector, None)
    routes = instance.routes
    overdue = Overdue(instance.pool, owner, config.fault_table.patience)

    vip = instance.config.vip_channel

    def busy(broker: str) -> bool:
        address = routes.address_of(broker)  # not by the lanes: it is asked for each send while the broker is on trial
        return address is not None and overdue.waits(vip_address(address) if vip else address)

    def named() -> Collection[str]:
        known = [routes.cached(topic) for topic in routes.topics]
        return {route.broker_of(queue) for route in known if route is not None for queue in route.publish_queues}

    def topic_on(broker: str) -> str | None:
        return next((lane.route.topic for lane in lanes.values() if broker in lane.brokers), None)

    faults = Faults(config.fault_table, busy)
    selection = Selection(config.queue_selector, faults, overdue, named)
    if config.detector:
        selection.detector = Detector(instance, faults, topic_on)
    return selection
