"""The lanes of one producer: made of routes when a topic is first sent to, and anew whenever its route changes.

At each poll of the routes all lanes are put aside, into ``resting``; a send that finds no lane takes it back from there. So the
table learns once per poll which topics are in use, and a message costs nothing for it. What rests for a whole interval is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Final

from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.message import MessageQueue
from rmq_protocol.namespace import without_namespace
from rmq_protocol.validation import check_topic, is_not_allowed_send_topic

from ..client.route_table import TopicRoute
from ..client.text import printable
from ..errors import BrokerError, BrokerNotFoundError, NotLeaderForQueueError, RequestTimeoutError, RocketMQError
from ..transport import SingleFlight
from .lanes import Lane, LaneSettings, is_writable
from .policy import FIRST_PAUSE, LONGEST_PAUSE

if TYPE_CHECKING:
    from .sender import Sender

__all__ = ["LaneTable"]

logger = logging.getLogger("rmq_async.producer")

DEPARTED_KEPT: Final = 1024


class LaneTable:
    """``lanes``: topic, as its user writes it, -> lane; a plain dict, because it is asked for every message.

    ``resting``: the lanes that nothing was sent to since the last poll. Both dicts stay the same objects.
    """

    def __init__(self, sender: Sender, settings: LaneSettings) -> None:
        self.lanes: dict[str, Lane] = {}
        self.resting: dict[str, Lane] = {}
        self._sender = sender
        self._settings = settings
        self._config = sender.config
        self._instance = sender.instance
        self._restoring: dict[str, asyncio.TimerHandle] = {}
        """Topics whose lanes lack queues that their routes name, and when those are tried again."""
        self._returning: SingleFlight[None] = SingleFlight("return of")
        """What calls wait for: that a broker is back in the route of a topic."""
        self._departed: dict[str, frozenset[str]] = {}
        """By topic, brokers that it was sent to and that its route does not name now; the oldest first."""
        self._ending: list[asyncio.Task[None]] = []
        self._warming: asyncio.Task[None] | None = None
        """Waits for the cluster, to fetch the routes of ``topics`` then."""
        self._kept = {settings.wire_topic(topic) for topic in sender.config.topics}
        routes = self._instance.routes
        routes.on_change.append(self._changed)
        routes.use.reports.append(self._used)
        for topic in self._kept:
            routes.use.hold(topic)

    def close(self) -> None:
        """Leaves the route table; harmless when done already."""
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
        """Waits until nothing runs any more, which ``close`` has ended."""
        if self._ending:
            await asyncio.wait(self._ending)

    def wire_topic(self, topic: str) -> str:
        """The topic as servers know it."""
        return self._settings.wire_topic(topic)

    async def lane(self, topic: str, deadline: float) -> Lane:
        """The topic's lane, from the route table. Raises what the look-up raises, within the call's budget."""
        lane = self._known(topic)
        if lane is None:
            remaining = deadline - monotonic()
            if remaining <= 0:
                raise RequestTimeoutError(f"send to topic {topic}: the budget was used up before the route was asked for")
            routes, config = self._instance.routes, self._config
            wire_topic = self._settings.wire_topic(topic)
            if wire_topic is not topic:
                check_topic(wire_topic)
            known = routes.cached(wire_topic)
            route = await routes.get(
                wire_topic,
                remaining,
                create_key=config.create_topic_key,
                default_queues=config.default_topic_queues,
                wait=self._sender.landed,
            )
            route = routes.cached(wire_topic) or route  # it may have changed since
            lane = self._known(topic)
            if lane is None or lane.route is not route:
                try:
                    lane = self._new_lane(route, topic)
                except BrokerNotFoundError:
                    if known is None:  # the name servers have just said so
                        raise
                    lane = await self._regained(topic, wire_topic, deadline)
                if not is_not_allowed_send_topic(topic):  # a topic that has a lane is not checked again
                    self.lanes[topic] = lane
        return lane

    def clear(self) -> None:
        """Drops all lanes, which are made anew at their next use."""
        self.lanes.clear()
        self.resting.clear()

    def _known(self, topic: str) -> Lane | None:
        """The topic's lane, if there is one; it is in use from now on."""
        lane = self.lanes.get(topic)
        if lane is None and (lane := self.resting.pop(topic, None)) is not None:
            self.lanes[topic] = lane
        return lane

    def _used(self) -> list[str]:
        """The topics, as servers know them, that were sent to since the last call. Their lanes rest until they are used again."""
        self.resting.clear()
        self.resting.update(self.lanes)
        self.lanes.clear()
        return [lane.route.topic for lane in self.resting.values()]

    def _new_lane(self, route: TopicRoute, topic: str, without: frozenset[MessageQueue] = frozenset()) -> Lane:
        lane = Lane(route, self._settings, topic, without)
        if self._sender.selection is not None:
            self._sender.selection.adopt(lane)
        if self._sender.gathers and not topic.startswith(RETRY_TOPIC_PREFIX):
            lane.gathering = self._sender.batcher.in_turn(topic, wait_store=True)
        return lane

    async def _regained(self, topic: str, wire_topic: str, deadline: float) -> Lane:
        """The lane of a topic whose brokers are gone, once one is back. Raises BrokerNotFoundError at the deadline.

        Not waited for is a topic that no broker lets anybody write to: that is somebody's decision.
        """
        route = await self.newer_route(wire_topic, deadline)
        try:
            return self._new_lane(route, topic)
        except BrokerNotFoundError:
            if wire_topic not in self._departed or not is_writable(route):
                raise
            await self._until(lambda: self.now(topic) is not None, (wire_topic, None), deadline)
            lane = self.now(topic)
            if lane is None:
                raise
            return lane

    async def with_queue(self, topic: str, queue: MessageQueue, deadline: float) -> Lane:
        """The topic's lane once it knows the broker of ``queue``, if it ever did: a restarted one is not in routes meanwhile."""
        wire_topic = self._settings.wire_topic(topic)
        await self.newer_route(wire_topic, deadline)

        def is_there() -> bool:
            lane = self.now(topic)
            return lane is not None and lane.knows(queue)

        if not is_there() and queue.broker_name in self._departed.get(wire_topic, ()):
            await self._until(is_there, (wire_topic, queue.broker_name), deadline)
        return self.now(topic) or await self.lane(topic, deadline)

    async def _until(self, is_there: Callable[[], bool], key: tuple[str, str | None], deadline: float) -> None:
        """Waits for a change of the route of topic ``key[0]``, together with others, at most until the deadline."""

        async def look() -> None:
            pause = FIRST_PAUSE
            await asyncio.sleep(0)  # all who wait are there by then, also where Tasks begin at once
            while not is_there() and self._returning.waiting(key):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                with suppress(RocketMQError):
                    await self._instance.routes.refresh(key[0])

        with suppress(TimeoutError):
            await self._sender.unless_stopped(self._returning.start(key, look).wait(deadline))

    async def newer_route(self, wire_topic: str, deadline: float) -> TopicRoute:
        """The route as name servers know it now, for a call that finds no address in the one in use."""
        return await self._sender.unless_stopped(self._instance.routes.refresh(wire_topic, max(deadline - monotonic(), 0.0)))

    def now(self, topic: str) -> Lane | None:
        """The lane of the route that is known at this moment, if it is one that can be sent to."""
        route = self._instance.routes.cached(self._settings.wire_topic(topic))
        lane = self._known(topic)
        if route is None or (lane is not None and lane.route is route):
            return lane
        try:
            lane = self.lanes[topic] = self._new_lane(route, topic)
        except BrokerNotFoundError:
            return None
        return lane

    def without(self, topic: str, gone: MessageQueue) -> bool:
        """Leaves out a queue that its broker does not have, for all calls, until the route changes or is polled again.

        Returns whether the topic has any other queue.
        """
        lane = self.now(topic)
        if lane is None or gone not in lane.queues:
            return lane is not None
        if len(lane.queues) == 1:
            return False
        logger.debug(
            "topic %s: queue %d of %s is left out, its broker does not have it", topic, gone.queue_id, gone.broker_name
        )
        self.lanes[topic] = self._new_lane(lane.route, topic, lane.without | {gone})
        if topic not in self._restoring:
            after = self._instance.config.route_poll_interval
            self._restoring[topic] = asyncio.get_running_loop().call_later(after, self._restore, topic, context=Context())
        return True

    def _restore(self, topic: str) -> None:
        """Lets the whole route be used again: queues that were taken away and given back leave it as it was."""
        del self._restoring[topic]
        self._drop(topic)

    def doubt(self, topic: str, error: BaseException) -> None:
        """After an attempt failed: unless the broker merely was too busy, the queues may be elsewhere by now."""
        elsewhere = isinstance(error, NotLeaderForQueueError) or (isinstance(error, RocketMQError) and error.retriable)
        if elsewhere and not (isinstance(error, BrokerError) and error.backs_off):
            self._instance.routes.refresh_soon(self._settings.wire_topic(topic))

    async def warm_up(self) -> None:
        """Fetches the routes of ``topics`` and greets their brokers, so that the first send finds both; what fails is a warning.

        Where the client was started without a cluster, this is done when there is one.
        """
        if not self._config.topics:
            return
        if self._instance.config.start_without_cluster and not self._instance.contact.cluster_found.is_set():
            self._warming = asyncio.get_running_loop().create_task(
                self._warm_up_later(), name="rmq_async warm-up", context=Context()
            )
        else:
            await self._warm_up()

    async def _warm_up_later(self) -> None:
        await self._instance.contact.cluster_found.wait()
        await self._warm_up()

    async def _warm_up(self) -> None:
        topics, timeout = self._config.topics, self._instance.config.request_timeout
        deadline = monotonic() + timeout
        found = await asyncio.gather(*[self.lane(topic, deadline) for topic in topics], return_exceptions=True)
        for topic, lane in zip(topics, found, strict=True):
            if isinstance(lane, RocketMQError):
                logger.warning("topic %s, which was to be ready at the start: %s", topic, printable(lane, 1000))
            elif isinstance(lane, BaseException):
                raise lane
        await self._instance.heartbeats.greet(max(deadline - monotonic(), 0.0))

    def _changed(self, route: TopicRoute) -> None:
        if self._sender.selection is not None:
            self._sender.selection.route_changed(route.addresses.keys())
        self._sender.recovery.route_changed(route.topic)
        names = {route.topic}
        if self._settings.namespace:
            names.add(without_namespace(route.topic, self._settings.namespace))
        self._note_departed(route, [lane for name in names for lane in self._drop(name)])

    def _drop(self, topic: str) -> list[Lane]:
        """Takes the topic's lanes out of the table, and returns them."""
        found = (self.lanes.pop(topic, None), self.resting.pop(topic, None))
        return [lane for lane in found if lane is not None]

    def _note_departed(self, route: TopicRoute, lanes: Iterable[Lane]) -> None:
        """``lanes``: those of the route before."""
        seen = self._departed.pop(route.topic, frozenset()).union(*[lane.brokers for lane in lanes])
        if departed := frozenset(broker for broker in seen if route.master_address(broker) is None):
            self._departed[route.topic] = departed
            if len(self._departed) > DEPARTED_KEPT:
                del self._departed[next(iter(self._departed))]
