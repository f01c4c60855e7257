"""Finds queues that brokers write to and no member can read, from the routes in use and the settings of the group.

There are three causes. An operator has removed the read permission of a topic or a broker. A topic has fewer read queues than
write queues. Or the group has more retry queues than its retry topic, because a broker puts failed messages into any of
``retryQueueNums`` queues but creates the topic only once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from rmq_protocol.bodies import SubscriptionGroupConfig
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, Perm
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import TopicRouteData

from ... import machine
from ..._asyncio import for_each
from ...client import ClientInstance, TopicRoute, max_offset
from ...errors import RocketMQError
from ...health import Problem, ProblemCode
from .settings import GroupLimits, settings_in_table

logger = logging.getLogger(__name__)

LOOK_EVERY: Final = 60.0
"""Seconds between two checks of the group's settings."""
SPACING: Final = 1.0
"""Minimum seconds between two checks. A check requests the route of the retry topic, and a changed route triggers a check."""
OLD_EVERY: Final = 1800.0
"""Seconds between two checks at a broker before version 5.0, which can only return the settings of all groups."""
MOST_COUNTED: Final = 64
"""Maximum number of unreadable retry queues at one broker whose messages are counted."""


class Closed(NamedTuple):
    """Queues of one topic (name on the wire) at one broker, which no member can read.

    Attributes:
        numbers: The ids of the queues.
        perm: The permission in the route. None if reading is permitted, but the topic has fewer read queues than write queues.
    """

    topic: str
    broker: str
    numbers: range
    perm: int | None


def closed_brokers(topic: str, route: TopicRouteData) -> list[Closed]:
    """Return the queues of a route that no member can read: all queues at a broker without the read permission, and the write
    queues beyond the number of read queues. Neither applies to a static topic.
    """
    if route.topic_queue_mapping_by_broker:
        return []
    found: list[Closed] = []
    for data in route.queue_datas:
        readable = max(data.read_queue_nums, 0) if data.perm & Perm.READ else 0
        queues = data.write_queue_nums if data.perm & Perm.WRITE else 0
        if not data.perm & Perm.READ:
            found.append(Closed(topic, data.broker_name, range(max(data.write_queue_nums, data.read_queue_nums, 0)), data.perm))
        elif readable < queues:
            found.append(Closed(topic, data.broker_name, range(readable, queues), None))
    return found


class ClosedQueues:
    """Finds the closed queues of a member's topics: queues that brokers write to and no member can read.

    Args:
        topics: Names of the topics on the wire.
        group: Name of the group on the wire.

    Attributes:
        limits: Requests the settings of the group; None for a member that reads no retry topic.
    """

    def __init__(self, instance: ClientInstance, topics: Iterable[str], group: str) -> None:
        self._instance = instance
        self._topics = tuple(topics)
        self._retry_topic = RETRY_TOPIC_PREFIX + group
        self._group = group
        self.limits: GroupLimits | None = None
        self._tables: dict[str, tuple[float, SubscriptionGroupConfig]] = {}
        """By broker: the monotonic time of the last request for the settings of all groups, and the settings of this group."""
        self._problems: dict[tuple[str, str, ProblemCode], Problem] = {}
        self._grown = asyncio.Event()
        """An event that is set when the route of the retry topic has changed."""

    def problems(self) -> list[Problem]:
        """Return the problems that the last checks found. May be called from any thread."""
        return [*self._problems.copy().values()]

    async def run(self) -> None:
        """Check now, and then every LOOK_EVERY seconds and after changes of the retry topic's route. Never return."""
        while True:
            self.look()
            if self.limits is not None:
                await self._look_at_retry_queues(self._retry_topic, self.limits)
            await asyncio.sleep(SPACING)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY - SPACING):
                    await self._grown.wait()
            self._grown.clear()

    def route_changed(self, route: TopicRoute) -> None:
        if route.topic in self._topics:
            self.look()
        if route.topic == self._retry_topic:
            self._grown.set()

    def has(self, queue: MessageQueue) -> bool:
        """Return whether the topic of a queue has unreadable queues at the queue's broker. May be called from any thread."""
        return (queue.topic, queue.broker_name, ProblemCode.UNREADABLE_TOPIC) in self._problems

    def look(self) -> None:
        """Check the routes in use, and log changes."""
        routes = [self._instance.routes.cached(topic) for topic in self._topics]
        found = [closed for route in routes if route is not None for closed in closed_brokers(route.topic, route.data)]
        self._note(ProblemCode.UNREADABLE_TOPIC, {(each.topic, each.broker): self._text(each) for each in found})

    def _text(self, closed: Closed) -> str:
        topic, queues = self._instance.names.shown(closed.topic), _listed(closed.numbers)
        if closed.perm is None:
            return (
                f"topic {topic} has fewer read queues than write queues on broker {closed.broker}: messages in {queues} reach no "
                "member; give it as many read queues as write queues"
            )
        return (
            f"topic {topic} may not be read on broker {closed.broker}, where its permission is {closed.perm}: messages in {queues} "
            "reach no member; give the topic, and the broker (brokerPermission), the permission 4 (read)"
        )

    async def _look_at_retry_queues(self, topic: str, limits: GroupLimits) -> None:
        """Compare the number of the group's retry queues at each broker with the queues of the retry topic."""
        route = self._instance.routes.cached(topic)
        if route is None or route.provisional:
            return

        async def look(broker: str) -> str | None:
            """Return a text about missing queues at a broker, or "" if none are missing. Return None if the broker does not
            respond.
            """
            settings = await limits.settings(broker, topic) or await self._old_settings(broker, topic)
            if settings is None:
                return None
            wanted = settings.retry_queue_nums
            if wanted < 1:
                return self._no_retry_queue(broker)
            numbers = range(_readable(self._instance, topic, broker), wanted)
            if numbers:  # the route in use may be older than the settings
                with suppress(RocketMQError):
                    await self._instance.routes.refresh(topic)
                numbers = range(_readable(self._instance, topic, broker), wanted)
            return await self._retry_text(topic, broker, numbers) if numbers else ""

        texts = await for_each([data.broker_name for data in route.data.queue_datas], look)
        code = ProblemCode.QUEUE_MISSING
        gaps: dict[tuple[str, str], str] = {}
        for broker, text in texts.items():
            known = self._problems.get((topic, broker, code))
            if text is None and known is not None:
                gaps[topic, broker] = known.text
            elif text:
                gaps[topic, broker] = text
        self._note(code, gaps)

    async def _old_settings(self, broker: str, topic: str) -> SubscriptionGroupConfig | None:
        """Return the settings at a broker that cannot return the settings of a single group.

        The settings of all groups are requested every OLD_EVERY seconds; until they contain the group, at each check.
        """
        known, now = self._tables.get(broker), machine.monotonic()
        if known is not None and now - known[0] < OLD_EVERY:
            return known[1]
        found = await settings_in_table(self._instance, self._group, broker, topic, self._instance.config.request_timeout)
        if found is not None:  # else the broker has not responded, or has not created the group yet
            self._tables[broker] = now, found
        return found

    def _no_retry_queue(self, broker: str) -> str:
        group = self._instance.names.display_name(self._group)
        return (
            f"group {group} has no retry queue on broker {broker}, so the broker drops messages that fail, although it reports "
            f"that they are stored; create_group(retry_queue_nums=1) or rmq group create {group} --retry-queues 1 adds one"
        )

    async def _retry_text(self, topic: str, broker: str, numbers: range) -> str:
        count, counted = 0, numbers[:MOST_COUNTED]
        timeout = self._instance.config.request_timeout
        try:
            for number in counted:
                queue = MessageQueue(topic, broker, number)
                count += await max_offset(self._instance, queue, any_replica=False, timeout=timeout)
            messages = f"{count} failed messages, and all further ones,"
        except RocketMQError:
            messages = "failed messages"
        group = self._instance.names.display_name(self._group)
        return (
            f"group {group} has {numbers.stop} retry queues on broker {broker}, and its retry topic has {numbers.start}: "
            f"{messages} in {_listed(numbers)} reach no member; create_group(retry_queue_nums={numbers.stop}) or rmq group "
            f"create {group} --retry-queues {numbers.stop} adds the missing queues"
        )

    def _note(self, code: ProblemCode, texts: dict[tuple[str, str], str]) -> None:
        """Replace the problems with a ProblemCode. Log each new or changed problem, and the end of each problem."""
        for (topic, broker), text in texts.items():
            known = self._problems.get((topic, broker, code))
            if known is None or known.text != text:
                self._problems[topic, broker, code] = Problem(code, text, broker=broker)
                logger.warning("%s", text)
        for topic, broker, each in [*self._problems]:
            if each is code and (topic, broker) not in texts:
                del self._problems[topic, broker, each]
                logger.info("all queues of topic %s on broker %s can be read", self._instance.names.shown(topic), broker)


def _readable(instance: ClientInstance, topic: str, broker: str) -> int:
    """Return the number of read queues at a broker in the route in use."""
    route = instance.routes.cached(topic)
    numbers = [] if route is None else [each.read_queue_nums for each in route.data.queue_datas if each.broker_name == broker]
    return max(numbers, default=0)


def _listed(numbers: range) -> str:
    if len(numbers) == 1:
        return f"queue {numbers[0]}"
    return f"queues {numbers[0]} to {numbers[-1]}" if numbers else "its queues"
