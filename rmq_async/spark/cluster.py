"""What a planner asks of the cluster: which queues there are, and which offsets they hold.

Every question is asked again for a while where that may help, so that a restart of a broker does not end a stream."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TypeVar

from rmq_protocol.message import MessageQueue
from rmq_protocol.validation import is_system_topic

from ..client import offsets as queue_offsets
from ..client.at_once import for_each
from ..client.text import printable
from ..errors import BrokerNotFoundError, ConfigError, NameServerError, NoPermissionError, OffsetRangeError, RocketMQError
from .options import ReadOptions
from .positions import EARLIEST, LATEST, Positions, Start, Times, key_of
from .worker import SparkReader, Worker, worker

__all__ = ["Cluster", "may_pass"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


def may_pass(error: RocketMQError) -> bool:
    """Whether the same request may succeed later: the broker or the way to it is in trouble, not the request."""
    if isinstance(error, NoPermissionError):
        return False
    return error.retriable or isinstance(error, NameServerError | BrokerNotFoundError)


class Cluster:
    """Asked from Spark's thread; each method waits for the answers."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def queues(self) -> tuple[MessageQueue, ...]:
        """The readable queues that the options mean, now. Raises TopicNotFoundError, ConfigError, NameServerError."""
        return self._ask(self._queues)

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return self._offsets(queues, queue_offsets.min_offset)

    def latest(self, queues: Iterable[MessageQueue], *, settled: bool = False) -> dict[MessageQueue, int]:
        """``settled``: what was acknowledged before this call is counted; costs each broker some 60 ms."""
        queues = tuple(queues)
        if settled:
            self._ask(lambda reader: self._settle(reader, queues))
        return self._offsets(queues, queue_offsets.max_offset)

    def at(self, queues: Iterable[MessageQueue], bound: Start, *, settled: bool = True) -> dict[MessageQueue, int]:
        """Offsets for ``bound``, of every one of ``queues``.

        Raises ConfigError where the bound names a queue that is not read, or nothing for one that is; OffsetRangeError where a
        queue holds nothing that young, unless the option says to take its end.
        """
        queues = tuple(queues)
        if bound == "earliest":
            return self.earliest(queues)
        if bound == "latest":
            return self.latest(queues, settled=settled)
        if isinstance(bound, Positions):
            return self._at_positions(queues, bound)
        times = bound if isinstance(bound, Times) else Times({}, {queue.topic: bound for queue in queues})
        return self._at_times(queues, times)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """For dashboards: failing is logged, and nothing else."""
        group = self._options.group

        async def commit(reader: SparkReader) -> None:
            wire = reader.instance.names.wire(group)
            await for_each(
                offsets,
                lambda queue: queue_offsets.commit(
                    reader.instance, wire, reader.instance.names.wire_queue(queue), offsets[queue]
                ),
            )

        try:
            self._ask(commit)
        except RocketMQError as error:
            logger.warning("offsets of group %s were not committed: %s", group, printable(error))

    # -- inside

    def _worker(self) -> Worker:
        return worker()

    def _ask(self, question: Callable[[SparkReader], Awaitable[T]]) -> T:
        options = self._options

        async def asking() -> T:
            left = options.fetch_retries
            while True:
                try:
                    return await question(reader)
                except RocketMQError as error:
                    if not left or not may_pass(error):
                        raise
                    logger.info("asking again in %.3g s: %s", options.fetch_interval, printable(error))
                left -= 1
                await asyncio.sleep(options.fetch_interval)

        reader = self._worker().reader(options.access, options.group)
        return self._worker().run(asking())

    def _offsets(self, queues: Iterable[MessageQueue], find: Callable[..., Awaitable[int]]) -> dict[MessageQueue, int]:
        async def offsets(reader: SparkReader) -> dict[MessageQueue, int]:
            instance = reader.instance
            return await for_each(queues, lambda queue: find(instance, instance.names.wire_queue(queue)))

        return self._ask(offsets)

    async def _settle(self, reader: SparkReader, queues: Iterable[MessageQueue]) -> None:
        instance = reader.instance
        wired = [instance.names.wire_queue(queue) for queue in queues]
        brokers = {instance.routes.broker_of(queue): queue.topic for queue in wired}
        await for_each(brokers, lambda name: queue_offsets.until_readable(instance, name, brokers[name]))

    async def _queues(self, reader: SparkReader) -> tuple[MessageQueue, ...]:
        options = self._options
        topics: Iterable[str] = options.topics
        if options.pattern is not None:
            matches = re.compile(options.pattern).fullmatch
            known = await self._worker().topics(options.access)
            topics = sorted(name for name in known if matches(name) and not is_system_topic(name))
            if not topics:
                raise ConfigError(f"option subscribePattern: no topic matches {options.pattern}")
        found = await for_each(topics, reader.queues)
        if options.assign is None:
            return tuple(queue for queues in found.values() for queue in queues)
        chosen = [
            MessageQueue(topic, broker, number)
            for topic, brokers in options.assign.items()
            for broker, numbers in brokers.items()
            for number in numbers
        ]
        for queue in chosen:
            if queue not in found[queue.topic]:
                raise ConfigError(f"option assign: {key_of(queue)} is no readable queue of topic {queue.topic}")
        return tuple(sorted(chosen))

    def _at_positions(self, queues: tuple[MessageQueue, ...], bound: Positions) -> dict[MessageQueue, int]:
        unknown = [queue for queue in bound.queues if queue not in queues]
        if unknown:
            raise ConfigError(f"offsets are given for {key_of(unknown[0])}, which is not read")
        missing = [queue for queue in queues if queue not in bound.queues]
        if missing:
            raise ConfigError(f"no offset is given for {key_of(missing[0])}; -2 means earliest, -1 latest")
        given = dict(bound.queues)
        first = [queue for queue, offset in given.items() if offset == EARLIEST]
        last = [queue for queue, offset in given.items() if offset == LATEST]
        return given | (self.earliest(first) if first else {}) | (self.latest(last, settled=True) if last else {})

    def _at_times(self, queues: tuple[MessageQueue, ...], times: Times) -> dict[MessageQueue, int]:
        moments = {queue: times.of(queue) for queue in queues}
        missing = [queue for queue, moment in moments.items() if moment is None]
        if missing:
            raise ConfigError(f"no timestamp is given for {key_of(missing[0])}")

        async def search(reader: SparkReader) -> dict[MessageQueue, int]:
            instance = reader.instance

            async def find(queue: MessageQueue) -> int:
                moment = datetime.fromtimestamp((moments[queue] or 0) / 1000, UTC)
                return await queue_offsets.search_offset(instance, instance.names.wire_queue(queue), moment)

            return await for_each(queues, find)

        self.latest(queues, settled=True)
        return self._ask(search)

    def check_matches(self, offsets: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], what: str) -> None:
        """Raises OffsetRangeError for a starting time that a queue holds nothing for: RocketMQ answers with the queue's end."""
        for queue, offset in sorted(offsets.items()):
            if offset >= latest[queue]:
                raise OffsetRangeError(
                    f"{key_of(queue)} holds nothing stored at {what} or later; "
                    "startingOffsetsByTimestampStrategy=latest begins at its end",
                    max_offset=latest[queue],
                    broker=queue.broker_name,
                )
