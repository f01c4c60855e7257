"""The queues of each topic to which a producer sends. They are made from the route at the first send and when the route changes.

At each poll (the regular refresh of all routes), all entries move to ``resting``; the next send to a topic moves its entry back.
Therefore the table knows at each poll which topics were used since the last poll, without any cost per message. Entries that are
still in ``resting`` at the next poll are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Final

from rmq_protocol.message import MessageQueue
from rmq_protocol.namespace import without_namespace
from rmq_protocol.validation import check_topic, is_not_allowed_send_topic

from ... import machine
from ..._asyncio import SingleFlight, StopScope
from ..._text import printable
from ...client import ClientInstance, TopicRoute
from ...errors import BrokerError, BrokerNotFoundError, NotLeaderForQueueError, RequestTimeoutError, RocketMQError
from .topic_queues import HeaderSettings, Target, TopicQueues, is_writable

logger = logging.getLogger("rmq_async.producer")

DEPARTED_KEPT: Final = 1024
"""Maximum number of topics whose brokers are remembered, and of topics for which brokers that left the route are remembered."""
NAMES_KEPT: Final = 256
"""Maximum number of brokers that are remembered for one topic, because each response of a name server may name other brokers."""
LONGEST_NAME: Final = 255
"""Maximum number of characters of a broker's name that is remembered."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Maximum seconds between two checks whether a broker is back in a route. The first pause is FIRST_PAUSE, and each further one is
twice as long."""


class TopicTable:
    """The queues of all topics to which one producer sends.

    Args:
        topics: Topics whose routes are fetched at the start (``warm_up``) and always kept.

    Attributes:
        queues_by_topic: The queues of each topic, by the topic's name in the API. It is a plain dict, because each message looks up
            its topic there. This dict and ``resting`` are never replaced by other objects.
        resting: The entries of topics without a send since the last poll (regular refresh of all routes).
        adopt: Called with the topic and the entry when an entry is made.
        on_change: Called with each changed route.
    """

    def __init__(
        self, settings: HeaderSettings, instance: ClientInstance, waits: StopScope, topics: Collection[str] = ()
    ) -> None:
        self.queues_by_topic: dict[str, TopicQueues] = {}
        self.resting: dict[str, TopicQueues] = {}
        self._settings = settings
        self._topics = topics
        self._instance = instance
        self._waits = waits
        self.adopt: Callable[[str, TopicQueues], object] = _ignore
        self.on_change: Callable[[TopicRoute], object] = _ignore
        # Timers of topics for which ``without`` has left queues out. When a timer fires, the full route is used again.
        self._restoring: dict[str, asyncio.TimerHandle] = {}
        # Shared waits for the return of a broker to the route of a topic.
        self._returning: SingleFlight[None] = SingleFlight("return of")
        # Topic -> the brokers of all its entries, including dropped entries; the oldest comes first.
        self._brokers: dict[str, tuple[str, ...]] = {}
        # Topic -> the brokers that were in use and now have no master in its route; the oldest comes first.
        self._departed: dict[str, tuple[str, ...]] = {}
        self._ending: list[asyncio.Task[None]] = []
        self._warming: asyncio.Task[None] | None = None
        """The task that waits for the cluster and then fetches the routes of ``topics``."""
        self._kept = {settings.wire_topic(topic) for topic in topics}
        routes = self._instance.routes
        routes.on_change.append(self._changed)
        routes.use.reports.append(self._used)
        for topic in self._kept:
            routes.use.hold(topic)

    def close(self) -> None:
        """Cancel tasks and timers, and detach from the route table. Further calls do nothing."""
        if self._warming is not None:
            self._warming.cancel()
            self._ending.append(self._warming)
        self._ending += self._returning.close()
        for timer in self._restoring.values():
            timer.cancel()
        routes = self._instance.routes
        if self._used in routes.use.reports:
            routes.use.reports.remove(self._used)
            for topic in self._kept:
                routes.use.release(topic)
        if self._changed in routes.on_change:
            routes.on_change.remove(self._changed)

    async def closed(self) -> None:
        """Wait until the tasks that ``close`` has cancelled have ended."""
        if self._ending:
            await asyncio.wait(self._ending)

    def wire_topic(self, topic: str) -> str:
        """Return the topic's name on the wire, with the namespace."""
        return self._settings.wire_topic(topic)

    async def find(self, topic: str, deadline: float) -> TopicQueues:
        """Return the topic's queues. Look up the route if it is unknown.

        Raises:
            RequestTimeoutError: If no time is left before ``deadline`` (``time.monotonic``).
            BrokerNotFoundError: If the route has no writable queue on a broker with a master.
            InvalidMessageError: If the topic name is too long with the namespace.
            RocketMQError: Other errors of the route lookup.
        """
        topic_queues = self._known(topic)
        if topic_queues is None:
            remaining = deadline - machine.monotonic()
            if remaining <= 0:
                raise RequestTimeoutError(
                    f"send to topic {topic}: the timeout ended before the route lookup; use a longer timeout"
                )
            routes, settings = self._instance.routes, self._settings
            wire_topic = self._settings.wire_topic(topic)
            if wire_topic is not topic:
                check_topic(wire_topic)
            known = routes.cached(wire_topic)
            route = await routes.get(
                wire_topic,
                remaining,
                create_key=settings.create_topic_key,
                default_queues=settings.default_topic_queues,
                wait=self._waits.wait,
            )
            route = routes.cached(wire_topic) or route  # it may have changed during the await
            topic_queues = self._known(topic)
            if topic_queues is None or topic_queues.route is not route:
                try:
                    topic_queues = self._new_entry(route, topic)
                except BrokerNotFoundError:
                    if known is None:  # the route has just been looked up
                        raise
                    topic_queues = await self._regained(topic, wire_topic, deadline)
                if not is_not_allowed_send_topic(topic):  # the fast path does not check topics in the table
                    self.queues_by_topic[topic] = topic_queues
        return topic_queues

    def clear(self) -> None:
        """Drop all entries. They are made again at the next send."""
        self.queues_by_topic.clear()
        self.resting.clear()

    def _known(self, topic: str) -> TopicQueues | None:
        """Return the topic's entry, if any. If it is in ``resting``, move it back."""
        topic_queues = self.queues_by_topic.get(topic)
        if topic_queues is None and (topic_queues := self.resting.pop(topic, None)) is not None:
            self.queues_by_topic[topic] = topic_queues
        return topic_queues

    def _used(self) -> list[str]:
        """Return the topics (with their names on the wire) that were used since the last call, and move their entries to
        ``resting``.
        """
        self.resting.clear()
        self.resting.update(self.queues_by_topic)
        self.queues_by_topic.clear()
        return [topic_queues.route.topic for topic_queues in self.resting.values()]

    def _new_entry(self, route: TopicRoute, topic: str, without: frozenset[MessageQueue] = frozenset()) -> TopicQueues:
        topic_queues = TopicQueues(route, self._settings, topic, without)
        now = topic_queues.brokers
        earlier = [broker for broker in self._brokers.get(route.topic, ()) if broker not in now]
        _remember(self._brokers, route.topic, [*earlier, *topic_queues.addresses])
        self.adopt(topic, topic_queues)
        return topic_queues

    async def _regained(self, topic: str, wire_topic: str, deadline: float) -> TopicQueues:
        """Wait until a broker of the topic is back in its route, and return the topic's queues.

        Raises:
            BrokerNotFoundError: If no broker is back at the deadline. It is raised without a wait if no broker has left the route,
                or if no broker in the route permits writes.
        """
        route = await self.newer_route(wire_topic, deadline)
        try:
            return self._new_entry(route, topic)
        except BrokerNotFoundError:
            if wire_topic not in self._departed or not is_writable(route):
                raise
            await self._until(lambda: self.now(topic) is not None, wire_topic, deadline)
            topic_queues = self.now(topic)
            if topic_queues is None:
                raise
            return topic_queues

    async def with_queue(self, topic: str, queue: MessageQueue, deadline: float) -> TopicQueues:
        """Return the topic's queues from a newer route.

        While a broker restarts, it is in no route. Therefore wait for the broker of ``queue`` if it was in the route earlier, or if
        the topic has a fixed list of queues that contains ``queue``. At the deadline, return the queues that are known then.

        Raises:
            RocketMQError: The errors of ``find``.
        """
        wire_topic = self._settings.wire_topic(topic)
        await self.newer_route(wire_topic, deadline)

        def is_there() -> bool:
            topic_queues = self.now(topic)
            return topic_queues is not None and topic_queues.knows(queue)

        def may_return() -> bool:
            topic_queues = self.now(topic)
            if topic_queues is None:
                return queue.broker_name in self._departed.get(wire_topic, ())
            return topic_queues.is_away(queue) or topic_queues.holder(queue) in self._departed.get(wire_topic, ())

        if not is_there() and may_return():
            await self._until(is_there, wire_topic, deadline)
        return self.now(topic) or await self.find(topic, deadline)

    def has_used(self, topic: str, broker_name: str) -> bool:
        """Return whether the broker was in an earlier route of the topic, so that it may come back."""
        return broker_name in self._brokers.get(self._settings.wire_topic(topic), ())

    async def _until(self, is_there: Callable[[], bool], wire_topic: str, deadline: float) -> None:
        """Refresh the topic's route until ``is_there()`` is true, or until the deadline. Concurrent calls share the refreshes."""
        with suppress(TimeoutError):
            while not is_there() and machine.monotonic() < deadline:
                look = partial(self._look, wire_topic, self._instance.routes.cached(wire_topic))
                await self._waits.run(self._returning.start(wire_topic, look).wait(deadline))

    async def _look(self, wire_topic: str, before: TopicRoute | None) -> None:
        """Refresh the topic's route until it differs from ``before``, or until no call waits for this."""
        routes, pause = self._instance.routes, FIRST_PAUSE
        await asyncio.sleep(0)  # lets the caller join first, even with an eager task factory
        while routes.cached(wire_topic) is before and self._returning.waiting(wire_topic):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            with suppress(RocketMQError):
                await routes.refresh(wire_topic)

    async def newer_route(self, wire_topic: str, deadline: float) -> TopicRoute:
        """Fetch the route from the name servers, for a call whose queue has no address in the known route.

        Raises:
            RocketMQError: The errors of the route lookup.
        """
        return await self._waits.run(self._instance.routes.refresh(wire_topic, max(deadline - machine.monotonic(), 0.0)))

    def now(self, topic: str) -> TopicQueues | None:
        """Return the topic's queues in the newest known route, without waiting. Return None if no usable queues are known."""
        route = self._instance.routes.cached(self._settings.wire_topic(topic))
        topic_queues = self._known(topic)
        if route is None or (topic_queues is not None and topic_queues.route is route):
            return topic_queues
        try:
            topic_queues = self.queues_by_topic[topic] = self._new_entry(route, topic)
        except BrokerNotFoundError:
            return None
        return topic_queues

    def without(self, topic: str, gone: MessageQueue) -> bool:
        """Stop using a queue that its broker does not have. Return whether the topic has any other queue.

        The queue is not used by any call until the route changes or one ``route_poll_interval`` has passed.
        """
        topic_queues = self.now(topic)
        if topic_queues is None or gone not in topic_queues.queues:
            return topic_queues is not None
        if len(topic_queues.queues) == 1:
            return False
        logger.debug(
            "topic %s: queue %d is left out because broker %s does not have it", topic, gone.queue_id, gone.broker_name
        )
        self.queues_by_topic[topic] = self._new_entry(topic_queues.route, topic, topic_queues.without | {gone})
        if topic not in self._restoring:
            after = self._instance.config.route_poll_interval
            self._restoring[topic] = asyncio.get_running_loop().call_later(after, self._restore, topic, context=Context())
        return True

    def _restore(self, topic: str) -> None:
        """Use all queues of the route again, because the route does not change if a queue is removed and created again."""
        del self._restoring[topic]
        self._drop(topic)

    def doubt(self, topic: str, error: BaseException) -> None:
        """If ``error`` means that queues may have moved, start a refresh of the route in the background. "Busy" responses do
        not.
        """
        elsewhere = isinstance(error, NotLeaderForQueueError) or (isinstance(error, RocketMQError) and error.retriable)
        if elsewhere and not (isinstance(error, BrokerError) and error.backs_off):
            self._instance.routes.refresh_soon(self._settings.wire_topic(topic))

    async def renew(self, topic: str, deadline: float) -> None:
        """After an error that means that queues may have moved, wait for the refresh of the route, at most until ``deadline``
        (monotonic).
        """
        await self._instance.routes.renew(self._settings.wire_topic(topic), deadline)

    def moved(self, topic: str, target: Target) -> Target:
        """Return a target for the same queue at its broker's newest known address. Return ``target`` itself if no address is
        known.
        """
        newest = self.now(topic)
        return newest.target(target.queue) if newest is not None and newest.knows(target.queue) else target

    async def warm_up(self) -> None:
        """Fetch the routes of ``topics`` and send heartbeats to their brokers, so that the first sends are not delayed.

        If this fails, log a WARNING. If the client was started without a cluster, do this in the background once the cluster is
        found.
        """
        if not self._topics:
            return
        if self._instance.config.start_without_cluster and not self._instance.cluster_probe.cluster_found.is_set():
            self._warming = asyncio.get_running_loop().create_task(
                self._warm_up_later(), name="rmq_async warm-up", context=Context()
            )
        else:
            await self._warm_up()

    async def _warm_up_later(self) -> None:
        await self._instance.cluster_probe.cluster_found.wait()
        await self._warm_up()

    async def _warm_up(self) -> None:
        topics, timeout = self._topics, self._instance.config.request_timeout
        deadline = machine.monotonic() + timeout
        found = await asyncio.gather(*[self.find(topic, deadline) for topic in topics], return_exceptions=True)
        for topic, topic_queues in zip(topics, found, strict=True):
            if isinstance(topic_queues, RocketMQError):
                logger.warning(
                    "topic %s is not ready at the start: %s; its first send tries again", topic, printable(topic_queues, 1000)
                )
            elif isinstance(topic_queues, BaseException):
                raise topic_queues
        await self._instance.heartbeats.send_first(max(deadline - machine.monotonic(), 0.0))

    def _changed(self, route: TopicRoute) -> None:
        self.on_change(route)
        names = {route.topic}
        if self._settings.namespace:
            names.add(without_namespace(route.topic, self._settings.namespace))
        self._note_departed(route, [topic_queues for name in names for topic_queues in self._drop(name)])

    def _drop(self, topic: str) -> list[TopicQueues]:
        """Remove the topic from the table and return its entries."""
        found = (self.queues_by_topic.pop(topic, None), self.resting.pop(topic, None))
        return [topic_queues for topic_queues in found if topic_queues is not None]

    def _note_departed(self, route: TopicRoute, previous: Iterable[TopicQueues]) -> None:
        """Record the brokers that have left the route.

        Args:
            previous: The entries that were made from the previous route.
        """
        seen = dict.fromkeys(self._departed.pop(route.topic, ()))
        for names in (self._brokers.get(route.topic, ()), *[topic_queues.addresses for topic_queues in previous]):
            seen.update(dict.fromkeys(names))
        if departed := [broker for broker in seen if route.master_address(broker) is None]:
            _remember(self._departed, route.topic, departed)


def _remember(brokers: dict[str, tuple[str, ...]], topic: str, names: Sequence[str]) -> None:
    """Move the topic's entry to the end, with the last ``NAMES_KEPT`` names. Keep at most ``DEPARTED_KEPT`` topics."""
    brokers.pop(topic, None)
    brokers[topic] = tuple([name for name in names[-NAMES_KEPT:] if len(name) <= LONGEST_NAME])
    if len(brokers) > DEPARTED_KEPT:
        del brokers[next(iter(brokers))]


def _ignore(*_: object) -> None:
    """Do nothing. This is the default callback."""
