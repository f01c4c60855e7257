"""Which queue an attempt goes to, in a producer that does not simply take them in turn.

A producer has a Selection if it looks at faults (``latency_fault``), or asks a function of the user's (``queue_selector``) for each
attempt. ``policy`` says which brokers come into question for an attempt; this chooses among their queues. Of faults it learns as
hooks do: by being told of every attempt, before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from rmq_protocol.message import Message, MessageQueue

from ..client.instance import ClientInstance
from .config import ProducerConfig
from .detector import Detector
from .faults import Faults
from .hooks import Hook, SendContext
from .lanes import Lane, Target
from .selectors import Selector, asked, picking, select_best, select_by_hash
from .turns import Turns

__all__ = ["FaultWatch", "Selection", "selection_of"]


class Selection:
    """``selector``: asked for each attempt, unless it is ``select_best``. ``faults``: None without ``latency_fault``.

    ``stale``: to be set when a route has changed, so that brokers without queues are forgotten.
    """

    __slots__ = ("_named", "_turns", "custom", "detector", "faults", "selector", "stale")

    def __init__(self, selector: Selector, faults: Faults | None, named: Callable[[], Collection[str]] = tuple) -> None:
        self.selector = selector
        self.custom = selector is not select_best
        self.faults = faults
        self.stale = False
        self.detector: Detector | None = None
        self._named = named
        """Tells which brokers have queues to write to."""
        self._turns = Turns()

    def avoided(self, brokers: Collection[str]) -> Collection[str]:
        """Those of ``brokers`` that no attempt is going to as long as there are others."""
        if self.faults is None or self.custom:
            return ()
        return self.faults.avoided(brokers, monotonic())

    def several(self, brokers: Collection[str]) -> bool:
        """Whether an attempt on one of ``brokers`` leaves another one to try, in the sense of ``policy.next_step``."""
        return (len(brokers) - len(self.avoided(brokers)) or len(brokers)) > 1

    def next(self, lane: Lane, brokers: Collection[str]) -> Target:
        """The lane's next queue on the best of ``brokers``."""
        if self.faults is not None:
            brokers = self._best(self.faults, brokers)
        return lane.next() if brokers is lane.brokers else lane.next_of(brokers)

    def pick(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The same over any queues of one topic; ``select_best`` does this while this producer asks a selector."""
        if self.faults is not None:
            brokers = frozenset(queue.broker_name for queue in queues)
            best = self._best(self.faults, brokers)
            if best is not brokers:
                queues = [queue for queue in queues if queue.broker_name in best]
        return self._turns.next(queues)

    async def ask(
        self, selector: Selector | None, queues: Sequence[MessageQueue], message: Message, key: object, deadline: float
    ) -> MessageQueue:
        """What a selector says; without one, the producer's own, or the hash of the key."""
        with picking(self.pick):
            return await asked(selector or (self.selector if self.custom else select_by_hash), queues, message, key, deadline)

    def close(self) -> None:
        if self.detector is not None:
            self.detector.cancel()

    async def closed(self) -> None:
        if self.detector is not None:
            await self.detector.ended()

    def _best(self, faults: Faults, brokers: Collection[str]) -> Collection[str]:
        if self.stale:
            self.stale = False
            if faults:
                faults.keep(self._named())
        return faults.best(brokers, monotonic())


class FaultWatch(Hook):
    """Tells ``faults`` what becomes of attempts. One-way sends say nothing unless they fail at once."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def before_send(self, context: SendContext) -> None:
        if context.mode != "oneway":
            self._faults.began(context.broker, context, monotonic())

    def after_send(self, context: SendContext) -> None:
        faults, broker = self._faults, context.broker
        faults.ended(broker, context)
        if context.error is not None:
            faults.failed(broker, context.error, context.elapsed, monotonic())
        elif context.result is not None:
            faults.succeeded(broker, context.elapsed, monotonic())


def selection_of(config: ProducerConfig, instance: ClientInstance, lanes: Mapping[str, Lane]) -> Selection | None:
    """What the settings ask for; None where queues simply take turns. ``lanes``: those of the producer, at any time."""
    if not config.latency_fault and config.queue_selector is select_best:
        return None
    routes = instance.routes

    def named() -> Collection[str]:
        known = [routes.cached(topic) for topic in routes.topics]
        return {route.broker_of(queue) for route in known if route is not None for queue in route.publish_queues}

    def topic_on(broker: str) -> str | None:
        return next((lane.route.topic for lane in lanes.values() if broker in lane.brokers), None)

    faults = Faults(config.fault_table) if config.latency_fault else None
    selection = Selection(config.queue_selector, faults, named)
    if config.detector and faults is not None:
        selection.detector = Detector(instance, faults, topic_on)
    return selection
