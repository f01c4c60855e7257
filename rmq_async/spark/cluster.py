"""Requests the queues that a query reads, and their first and last offsets, from the cluster.

A request is repeated for a while if that may help, so that the restart of a broker does not end a stream. Requests for reports
and dashboards (``store_times``, ``commit``) are not repeated. Offsets come from masters, because a replica may lack
acknowledged messages without knowing it. If the options allow a replica, its offsets do not prove a loss (``Extents.proven``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from rmq_protocol.constants import DLQ_TOPIC_PREFIX, MASTER_ID, RETRY_TOPIC_PREFIX
from rmq_protocol.message import MessageQueue
from rmq_protocol.validation import is_system_topic

from .. import client, errors, machine
from .._asyncio import for_each
from .._text import printable
from ..reading import may_pass
from .options import ReadOptions
from .positions import key_of
from .renewal import forget
from .worker import SparkReader, worker

logger = logging.getLogger(__name__)

T = TypeVar("T")
Offsets = dict[MessageQueue, int]


class Find(Protocol):
    """A function that requests an offset of one queue, such as ``rmq_async.client.max_offset``."""

    def __call__(self, instance: client.ClientInstance, queue: MessageQueue, *, any_replica: bool) -> Awaitable[int]: ...


class Extents(NamedTuple):
    """The first offsets of queues (``earliest``) and their exclusive ends (``latest``).

    Attributes:
        proven: Queues whose offsets came from a master. The offsets of other queues may have come from a replica.
    """

    earliest: Offsets
    latest: Offsets
    proven: frozenset[MessageQueue]


class Cluster:
    """The cluster of one reader. Spark's thread calls its methods, which block until the responses arrive."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def queues(self, *, begun: bool = False, wanted: Collection[MessageQueue] = ()) -> tuple[MessageQueue, ...]:
        """Return the readable queues that the options select.

        Raise the errors of requests, too.

        Args:
            begun: Whether the stream is already running. If so, queues of ``assign`` may be missing, and a pattern may match
                nothing.
            wanted: Queues to wait for. While one of them is missing, the request is repeated, as often as the options allow,
                because a broker that restarts is missing from routes for a while.

        Raises:
            TopicNotFoundError: If a topic does not exist.
            ConfigError: For a queue of ``assign`` that is not readable, or for a pattern that matches no readable queue.
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
        """Return ``latest`` and ``proven`` for the queues that a running stream finds now. ``earliest`` is empty.

        Args:
            settled: As for ``extents``.
        """

        async def newest(reader: SparkReader) -> Extents:
            holders = await self._holders(reader, await self._queues(reader, True), settled=settled)
            return Extents({}, await holders.each(client.max_offset), holders.proven)

        return self._ask(newest, begun=True)

    def extents(self, queues: Iterable[MessageQueue], *, settled: bool = False) -> Extents:
        """Return the first offsets and the ends of the queues.

        Args:
            settled: True waits until the ends include all messages that masters acknowledged before this call, and raises
                RequestTimeoutError if that takes too long.
        """
        queues = tuple(queues)

        async def extents(reader: SparkReader) -> Extents:
            holders = await self._holders(reader, queues, settled=settled)
            earliest = await holders.each(client.min_offset)
            return Extents(earliest, await holders.each(client.max_offset), holders.proven)

        return self._ask(extents)

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._offsets(queues, client.min_offset)

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        return self._offsets(queues, client.max_offset)

    def stored_at(self, moments: Mapping[MessageQueue, int]) -> Offsets:
        """Return the offsets of the first messages stored at these moments (milliseconds since 1970) or later.

        For a queue without such a message, return the queue's end.
        """

        async def search(reader: SparkReader) -> Offsets:
            holders = await self._holders(reader, moments)
            seconds = {holders.wired[queue]: moment / 1000 for queue, moment in moments.items()}

            async def find(instance: client.ClientInstance, queue: MessageQueue, *, any_replica: bool) -> int:
                return await client.search_offset(instance, queue, seconds[queue], any_replica=any_replica)

            return await holders.each(find)

        return self._ask(search)

    def store_times(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the store times of the messages at these offsets, for reports.

        The times are epoch ms, converted to this machine's clock if the broker reports its own time. Requests are not
        repeated. Queues that have no message at the offset, or whose request fails, are left out.
        """

        async def times(reader: SparkReader) -> dict[MessageQueue, int]:
            instance = reader.instance
            timeout = instance.config.request_timeout
            found: dict[MessageQueue, int] = {}

            async def one(queue: MessageQueue) -> None:
                with suppress(errors.RocketMQError):
                    moment = await client.store_time_ms(instance, instance.names.wire_queue(queue), offsets[queue], timeout)
                    if moment > 0:
                        found[queue] = moment

            await for_each(offsets, one)
            clocks = instance.clocks
            doubtful = [queue for queue, moment in found.items() if clocks.wants_look(queue.broker_name, moment)]
            await for_each(doubtful, lambda queue: client.look_at_clock(instance, instance.names.wire_queue(queue)))
            now_ms = machine.time() * 1000
            return {queue: round(now_ms - clocks.age(queue.broker_name, found[queue]) * 1000) for queue in found}

        with suppress(errors.RocketMQError):
            return self._ask(times, retries=0)
        return {}

    def commit(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Commit offsets for dashboards, without repeating requests, and log the first error.

        Returns:
            Whether brokers accepted all offsets.
        """
        group = self._options.group

        async def commit(reader: SparkReader) -> None:
            names = reader.instance.names

            async def one(queue: MessageQueue) -> None:
                try:
                    await client.commit_offset(reader.instance, names.wire(group), names.wire_queue(queue), offsets[queue])
                except errors.RocketMQError as error:
                    failed.append(error)

            await for_each(offsets, one)

        failed: list[errors.RocketMQError] = []
        try:
            self._ask(commit, retries=0)
        except errors.RocketMQError as error:
            failed.append(error)
        if failed:
            text = printable(failed[0])
            logger.warning(
                "group %s: not all offsets were committed, so dashboards may show old ones; first error: %s", group, text
            )
        return not failed

    # -- helpers

    def _ask(self, question: Callable[[SparkReader], Awaitable[T]], retries: int | None = None, *, begun: bool = False) -> T:
        """Make a request, and repeat it while that may help, at most ``retries`` times. If ``retries`` is None, the options set
        the limit. After an AuthenticationError, repeat the request once if credentials can be read again.

        Args:
            begun: True also repeats the request for a missing topic, because a topic is missing while its only broker restarts.
        """
        options = self._options

        async def asking(reader: SparkReader) -> T:
            left = options.fetch_retries if retries is None else retries
            while True:
                try:
                    return await question(reader)
                except errors.RocketMQError as error:
                    if not left or not (may_pass(error) or (begun and isinstance(error, errors.TopicNotFoundError))):
                        raise
                    logger.info("asking again in %.3g s: %s", options.fetch_interval, printable(error))
                left -= 1
                await asyncio.sleep(options.fetch_interval)

        here = worker()
        try:
            with here.using(reader := here.reader(options.access, options.group)):
                return here.run(asking(reader))
        except errors.AuthenticationError:
            if not forget(options.access):
                raise
        with here.using(reader := here.reader(options.access, options.group)):  # with newer credentials
            return here.run(asking(reader))

    def _offsets(self, queues: Iterable[MessageQueue], find: Find) -> Offsets:
        queues = tuple(queues)

        async def offsets(reader: SparkReader) -> Offsets:
            return await (await self._holders(reader, queues)).each(find)

        return self._ask(offsets)

    async def _holders(self, reader: SparkReader, queues: Iterable[MessageQueue], *, settled: bool = False) -> _Holders:
        """Return the brokers of the queues.

        Args:
            settled: As for ``extents``.

        Raises:
            BrokerNotFoundError: For a broker that has only replicas, unless an option allows replicas.
        """
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
            raise errors.BrokerNotFoundError(
                f"broker {printable(alone[0])} has no master now, and its replicas may lack messages that were acknowledged; "
                f"start the master, let reads wait longer for it (fetchOffset.numRetries, now {self._options.fetch_retries} tries, "
                f"{self._options.fetch_interval:.3g} s apart), or set offsetsFromReplicas=true to plan with what a replica has",
                broker=alone[0],
            )
        holders = _Holders(instance, wired, brokers, led if self._options.replicas else frozenset(topics))
        if settled:
            await self._settle(holders)
        return holders

    async def _settle(self, holders: _Holders) -> None:
        instance, options = holders.instance, self._options
        topics = {broker: holders.wired[queue].topic for queue, broker in holders.brokers.items() if broker in holders.led}
        patience = max(instance.config.request_timeout, options.fetch_retries * options.fetch_interval)

        async def settle(name: str) -> None:
            if not await client.until_readable(instance, name, topics[name], any_replica=False, timeout=patience):
                raise _BehindError(
                    f"the queues of broker {printable(name)} have not caught up with its commit log in {patience:.3g} s, so "
                    "messages that it has acknowledged cannot be read yet; run again later, or raise fetchOffset.numRetries",
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
            raise errors.ConfigError(
                f"option assign: {key_of(absent[0])} is not a readable queue of topic {absent[0].topic}; leave it out"
            )
        return tuple(sorted(set(chosen).difference(absent)))

    async def _matching(self, reader: SparkReader, pattern: str, begun: bool) -> tuple[MessageQueue, ...]:
        """Return the queues of matching topics, without system topics and topics that brokers create for themselves.

        Retry and dead-letter topics match only if the pattern has a "%".
        """
        from ..admin import Admin

        async with Admin(client=reader.instance.config) as admin:
            known = await admin.topics()
        matches = re.compile(pattern).fullmatch
        topics = [
            name
            for name in known
            if matches(name) and not is_system_topic(name) and ("%" in pattern or not name.startswith(_OF_GROUPS))
        ]

        async def queues(topic: str) -> tuple[MessageQueue, ...]:
            try:
                found = await reader.queues(topic)
            except errors.TopicNotFoundError:  # the topic was deleted a moment ago, or has no queues
                return ()
            return () if _is_of_servers(topic, reader.instance.routes.cached(reader.instance.names.wire(topic))) else found

        found = await for_each(topics, queues)
        if not any(found.values()) and not begun:
            raise errors.ConfigError(
                f"option subscribePattern: no readable topic matches {pattern!r}; change it, or create a topic"
            )
        return tuple(queue for topic in topics for queue in found[topic])


class _Holders(NamedTuple):
    """The queues of one request, with their names on the wire, and the brokers that hold them.

    Attributes:
        led: Brokers whose master must respond. For other brokers, a replica may respond.
    """

    instance: client.ClientInstance
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


async def _acting(instance: client.ClientInstance, led: frozenset[str], topics: Iterable[str]) -> set[str]:
    """Return the brokers of ``led`` that have no master and whose routes name a replica instead, which happens with
    ``enableSlaveActingMaster``.

    The list of the cluster's brokers (GET_BROKER_CLUSTER_INFO, 106) shows the real broker ids.
    """
    routes = [route for topic in topics if (route := instance.routes.cached(topic)) is not None]
    doubted = {data.broker_name for route in routes for data in route.data.broker_datas if data.enable_acting_master} & led
    if not doubted:
        return set()
    from ..admin import cluster_info

    known = (await cluster_info(instance, monotonic() + instance.config.request_timeout)).broker_addr_table
    return {name for name in doubted if name not in known or MASTER_ID not in known[name].broker_addrs}


def _is_of_servers(topic: str, route: client.TopicRoute | None) -> bool:
    """Return whether the topic is one that each broker creates at its start (Java's TopicConfigManager).

    Such a topic is named after the broker or its cluster, or is the cluster's topic for replies, <cluster>_REPLY_TOPIC.
    """
    brokers = () if route is None else route.data.broker_datas
    return any(topic in (each.broker_name, each.cluster, f"{each.cluster}_REPLY_TOPIC") for each in brokers)


_OF_GROUPS: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


class _BehindError(errors.RequestTimeoutError):
    """The queues of a broker are still behind its commit log after the wait. The request is not repeated."""

    retriable = False


class _MissingError(errors.BrokerNotFoundError):
    """A wanted queue is missing from all routes.

    Args:
        found: The queues that were found.
    """

    def __init__(self, message: str = "", *, found: tuple[MessageQueue, ...] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.found = found
