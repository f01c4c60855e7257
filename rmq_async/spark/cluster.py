"""What a planner asks of the cluster: which queues there are, and which offsets they hold.

Every question is asked again for a while where that may help, so that a restart of a broker does not end a stream. Offsets are
those of masters: a replica may lack what was acknowledged, and does not know it. Where the options allow a replica's, no loss is
concluded from them (``Extents.proven``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from rmq_protocol.constants import DLQ_TOPIC_PREFIX, MASTER_ID, RETRY_TOPIC_PREFIX
from rmq_protocol.message import MessageQueue
from rmq_protocol.validation import is_system_topic

from ..client import ClientInstance
from ..client import offsets as queue_offsets
from ..client.at_once import for_each
from ..client.route_table import TopicRoute
from ..client.text import printable
from ..errors import (
    BrokerNotFoundError,
    ConfigError,
    NameServerError,
    NoPermissionError,
    RequestTimeoutError,
    RocketMQError,
    TopicNotFoundError,
)
from .options import ReadOptions
from .positions import key_of
from .worker import SparkReader, worker

__all__ = ["Cluster", "Extents", "may_pass"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Offsets = dict[MessageQueue, int]


class Find(Protocol):
    """A question about one queue; see ``rmq_async.client.offsets``."""

    def __call__(self, instance: ClientInstance, queue: MessageQueue, *, any_replica: bool) -> Awaitable[int]: ...


class Extents(NamedTuple):
    """What queues hold now. ``proven``: those whose master said so; of the others a replica may be behind."""

    earliest: Offsets
    latest: Offsets
    proven: frozenset[MessageQueue]


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

    def newest(self, *, settled: bool = False) -> Extents:
        """``latest`` of the queues of a stream that runs. A broker that does not come back is left out when its route is gone."""

        async def newest(reader: SparkReader) -> Extents:
            asked = await self._asked(reader, await self._queues(reader, True))
            if settled:
                await self._settle(asked)
            return Extents({}, await asked.each(queue_offsets.max_offset), asked.proven)

        return self._ask(newest, begun=True)

    def extents(self, queues: Iterable[MessageQueue], *, settled: bool = False) -> Extents:
        """``settled``: what was acknowledged before this call is counted; costs each broker some 60 ms."""
        queues = tuple(queues)

        async def extents(reader: SparkReader) -> Extents:
            asked = await self._asked(reader, queues)
            if settled:
                await self._settle(asked)
            earliest = await asked.each(queue_offsets.min_offset)
            return Extents(earliest, await asked.each(queue_offsets.max_offset), asked.proven)

        return self._ask(extents)

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._offsets(queues, queue_offsets.min_offset)

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._offsets(queues, queue_offsets.max_offset)

    def stored_at(self, moments: Mapping[MessageQueue, int]) -> Offsets:
        """Offsets of the first messages stored at these moments (milliseconds) or later; a queue's end where there is none."""

        async def search(reader: SparkReader) -> Offsets:
            asked = await self._asked(reader, moments)
            seconds = {asked.wired[queue]: moment / 1000 for queue, moment in moments.items()}

            async def find(instance: ClientInstance, queue: MessageQueue, *, any_replica: bool) -> int:
                return await queue_offsets.search_offset(instance, queue, seconds[queue], any_replica=any_replica)

            return await asked.each(find)

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
        with here.using(reader):
            return here.run(asking())

    def _offsets(self, queues: Iterable[MessageQueue], find: Find) -> Offsets:
        queues = tuple(queues)

        async def offsets(reader: SparkReader) -> Offsets:
            return await (await self._asked(reader, queues)).each(find)

        return self._ask(offsets)

    async def _asked(self, reader: SparkReader, queues: Iterable[MessageQueue]) -> _Asked:
        """Raises BrokerNotFoundError for a broker that has only replicas now, unless they may be asked."""
        instance = reader.instance
        wired = {queue: instance.names.wire_queue(queue) for queue in queues}
        timeout = instance.config.request_timeout
        brokers = await for_each(wired, lambda queue: instance.holder_of(wired[queue], timeout))
        topics = {broker: wired[queue].topic for queue, broker in brokers.items()}
        routes = instance.routes
        if absent := {topic for name, topic in topics.items() if routes.address_of(name) is None}:
            await for_each(absent, routes.refresh)
        led = frozenset(name for name in topics if routes.address_of(name) is not None)
        led -= await _acting(instance, led, set(topics.values()))
        alone = sorted(name for name in topics.keys() - led if routes.addresses_of(name))
        if alone and not self._options.replicas:
            raise BrokerNotFoundError(
                f"broker {printable(alone[0])} has no master now, and its replicas may lack messages that were acknowledged; asked "
                f"{self._options.fetch_retries} times more, {self._options.fetch_interval:.3g} s apart (option "
                "fetchOffset.numRetries); offsetsFromReplicas=true plans with what a replica has",
                broker=alone[0],
            )
        return _Asked(instance, wired, brokers, led if self._options.replicas else frozenset(topics))

    async def _settle(self, asked: _Asked) -> None:
        instance, options = asked.instance, self._options
        topics = {broker: asked.wired[queue].topic for queue, broker in asked.brokers.items() if broker in asked.led}
        patience = max(instance.config.request_timeout, options.fetch_retries * options.fetch_interval)

        async def settle(name: str) -> None:
            if not await queue_offsets.until_readable(instance, name, topics[name], any_replica=False, timeout=patience):
                raise _BehindError(
                    f"the queues of broker {printable(name)} have not caught up with its commit log in {patience:.3g} s (option "
                    "fetchOffset.numRetries), so messages that it has acknowledged cannot be read yet",
                    broker=name,
                )

        await for_each(topics, settle)

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


class _Asked(NamedTuple):
    """Queues of one question, as servers know them, and the brokers that hold them. ``led``: those whose master is to be asked; of
    the others a replica will do."""

    instance: ClientInstance
    wired: Mapping[MessageQueue, MessageQueue]
    brokers: Mapping[MessageQueue, str]
    led: frozenset[str]

    @property
    def proven(self) -> frozenset[MessageQueue]:
        return frozenset(queue for queue, broker in self.brokers.items() if broker in self.led)

    async def each(self, find: Find) -> Offsets:
        return await for_each(
            self.wired,
            lambda queue: find(self.instance, self.wired[queue], any_replica=self.brokers[queue] not in self.led),
        )


async def _acting(instance: ClientInstance, led: frozenset[str], topics: Iterable[str]) -> set[str]:
    """Brokers whose master by the route is a replica: with ``enableSlaveActingMaster`` a name server names one in its place.

    The list of the cluster's brokers (106) keeps their own numbers.
    """
    routes = [route for topic in topics if (route := instance.routes.cached(topic)) is not None]
    doubted = {data.broker_name for route in routes for data in route.data.broker_datas if data.enable_acting_master} & led
    if not doubted:
        return set()
    from ..admin.asking import cluster_info

    known = (await cluster_info(instance, monotonic() + instance.config.request_timeout)).broker_addr_table
    return {name for name in doubted if name not in known or MASTER_ID not in known[name].broker_addrs}


def _is_of_servers(topic: str, route: TopicRoute | None) -> bool:
    """Brokers make topics of their own names, and of their cluster's."""
    brokers = () if route is None else route.data.broker_datas
    return any(topic in (each.broker_name, each.cluster, f"{each.cluster}_REPLY_TOPIC") for each in brokers)


_OF_GROUPS: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


class _BehindError(RequestTimeoutError):
    """It has been waited for already."""

    retriable = False


class _MissingError(BrokerNotFoundError):
    """``found``: the queues that are there."""

    def __init__(self, message: str = "", *, found: tuple[MessageQueue, ...] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.found = found
