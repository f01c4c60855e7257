"""What a planner asks of the cluster: which queues there are, and which offsets they hold.

Every question is asked again for a while where that may help, so that a restart of a broker does not end a stream."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from rmq_protocol.constants import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from rmq_protocol.message import MessageQueue
from rmq_protocol.validation import is_system_topic

from ..client import ClientInstance
from ..client import offsets as queue_offsets
from ..client.at_once import for_each
from ..client.route_table import TopicRoute
from ..client.text import printable
from ..errors import BrokerNotFoundError, ConfigError, NameServerError, NoPermissionError, RocketMQError, TopicNotFoundError
from .options import ReadOptions
from .positions import key_of
from .worker import SparkReader, worker

__all__ = ["Cluster", "may_pass"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Find = Callable[[ClientInstance, MessageQueue], Awaitable[int]]


def may_pass(error: RocketMQError) -> bool:
    """Whether the same request may succeed later: the broker or the way to it is in trouble, not the request."""
    if isinstance(error, NoPermissionError):
        return False
    return error.retriable or isinstance(error, NameServerError | BrokerNotFoundError)


class Cluster:
    """Asked from Spark's thread; each method waits for the answers."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def queues(self, *, begun: bool = False, wanted: Collection[MessageQueue] = ()) -> tuple[MessageQueue, ...]:
        """The readable queues that the options mean, now. Raises TopicNotFoundError, ConfigError, NameServerError.

        ``begun``: of a stream that runs already, where nothing has to be there. ``wanted``: is waited for, as long as any question
        is asked again: brokers that are started again are in no route for a while.
        """

        async def queues(reader: SparkReader) -> tuple[MessageQueue, ...]:
            found = await self._queues(reader, begun or bool(wanted))
            missing = [queue for queue in wanted if queue not in found]
            if missing:
                raise _MissingError(f"{key_of(missing[0])} is in no route", found=found)
            return found

        try:
            return self._ask(queues, begun=begun)
        except _MissingError as error:
            return error.found

    def newest(self, *, settled: bool = False) -> dict[MessageQueue, int]:
        """``latest`` of the queues of a stream that runs. A broker that does not come back is left out when its route is gone."""

        async def newest(reader: SparkReader) -> dict[MessageQueue, int]:
            queues = await self._queues(reader, True)
            if settled:
                await self._settle(reader, queues)
            return await _each(reader, queues, queue_offsets.max_offset)

        return self._ask(newest, begun=True)

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return self._offsets(queues, queue_offsets.min_offset)

    def latest(self, queues: Iterable[MessageQueue], *, settled: bool = False) -> dict[MessageQueue, int]:
        """``settled``: what was acknowledged before this call is counted; costs each broker some 60 ms."""
        queues = tuple(queues)
        if settled:
            self._ask(lambda reader: self._settle(reader, queues))
        return self._offsets(queues, queue_offsets.max_offset)

    def led(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those whose broker has a master now; a replica's offsets may be behind."""

        async def led(reader: SparkReader) -> list[MessageQueue]:
            instance = reader.instance
            routes = instance.routes
            return [each for each in queues if routes.address_of(routes.broker_of(instance.names.wire_queue(each))) is not None]

        return self._ask(led)

    def stored_at(self, moments: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Offsets of the first messages stored at these moments (milliseconds) or later; a queue's end where there is none."""

        async def search(reader: SparkReader) -> dict[MessageQueue, int]:
            instance = reader.instance
            wire = instance.names.wire_queue
            return await for_each(
                moments, lambda queue: queue_offsets.search_offset(instance, wire(queue), moments[queue] / 1000)
            )

        return self._ask(search)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """For dashboards, so it is tried once; whether brokers took them all. Failing is logged, and nothing else."""
        group = self._options.group

        async def commit(reader: SparkReader) -> None:
            names = reader.instance.names

            async def one(queue: MessageQueue) -> None:
                try:
                    await queue_offsets.commit(reader.instance, names.wire(group), names.wire_queue(queue), offsets[queue])
                except RocketMQError as error:
                    failed.append(error)

            await for_each(offsets, one)

        failed: list[RocketMQError] = []
        try:
            self._ask(commit, retries=0)
        except RocketMQError as error:
            failed.append(error)
        if failed:
            text = printable(failed[0])
            logger.warning("group %s: offsets of %d queues were not committed, first: %s", group, len(failed), text)
        return not failed

    # -- inside

    def _ask(self, question: Callable[[SparkReader], Awaitable[T]], retries: int | None = None, *, begun: bool = False) -> T:
        """``begun``: a topic that is not there may come back, too; it is not while its only broker is started again."""
        options = self._options

        async def asking() -> T:
            left = options.fetch_retries if retries is None else retries
            while True:
                try:
                    return await question(reader)
                except RocketMQError as error:
                    if not left or not (may_pass(error) or (begun and isinstance(error, TopicNotFoundError))):
                        raise
                    logger.info("asking again in %.3g s: %s", options.fetch_interval, printable(error))
                left -= 1
                await asyncio.sleep(options.fetch_interval)

        here = worker()
        reader = here.reader(options.access, options.group)
        return here.run(asking())

    def _offsets(self, queues: Iterable[MessageQueue], find: Find) -> dict[MessageQueue, int]:
        return self._ask(lambda reader: _each(reader, queues, find))

    async def _settle(self, reader: SparkReader, queues: Iterable[MessageQueue]) -> None:
        instance = reader.instance
        wired = [instance.names.wire_queue(queue) for queue in queues]
        brokers = {instance.routes.broker_of(queue): queue.topic for queue in wired}
        await for_each(brokers, lambda name: queue_offsets.until_readable(instance, name, brokers[name]))

    async def _queues(self, reader: SparkReader, begun: bool) -> tuple[MessageQueue, ...]:
        options = self._options
        if options.pattern is not None:
            return await self._matching(reader, options.pattern, begun)
        found = await for_each(options.topics, reader.queues)
        if options.assign is None:
            return tuple(queue for queues in found.values() for queue in queues)
        chosen = [
            MessageQueue(topic, broker, number)
            for topic, brokers in options.assign.items()
            for broker, numbers in brokers.items()
            for number in numbers
        ]
        absent = [queue for queue in chosen if queue not in found[queue.topic]]
        if absent and not begun:
            raise ConfigError(f"option assign: {key_of(absent[0])} is no readable queue of topic {absent[0].topic}")
        return tuple(sorted(set(chosen).difference(absent)))

    async def _matching(self, reader: SparkReader, pattern: str, begun: bool) -> tuple[MessageQueue, ...]:
        """Topics of the system never match; retry and dead-letter topics do where the pattern itself has a "%"."""
        known = await worker().topics(self._options.access)
        matches = re.compile(pattern).fullmatch
        topics = [
            name
            for name in known
            if matches(name) and not is_system_topic(name) and ("%" in pattern or not name.startswith(_OF_GROUPS))
        ]

        async def queues(topic: str) -> tuple[MessageQueue, ...]:
            try:
                found = await reader.queues(topic)
            except TopicNotFoundError:  # deleted a moment ago, or without queues
                return ()
            return () if _is_of_servers(topic, reader.instance.routes.cached(reader.instance.names.wire(topic))) else found

        found = await for_each(topics, queues)
        if not any(found.values()) and not begun:
            raise ConfigError(f"option subscribePattern: no topic matches {pattern}")
        return tuple(queue for topic in topics for queue in found[topic])


async def _each(reader: SparkReader, queues: Iterable[MessageQueue], find: Find) -> dict[MessageQueue, int]:
    instance = reader.instance
    return await for_each(queues, lambda queue: find(instance, instance.names.wire_queue(queue)))


def _is_of_servers(topic: str, route: TopicRoute | None) -> bool:
    """Brokers make topics of their own names, and of their cluster's."""
    brokers = () if route is None else route.data.broker_datas
    return any(topic in (each.broker_name, each.cluster, f"{each.cluster}_REPLY_TOPIC") for each in brokers)


_OF_GROUPS: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


class _MissingError(BrokerNotFoundError):
    """``found``: the queues that are there."""

    def __init__(self, message: str = "", *, found: tuple[MessageQueue, ...] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.found = found
