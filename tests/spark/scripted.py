"""A stream as its planner sees it, without Spark: the calls that Spark makes, in any order that a test wants; and
brokers in memory for it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from rmq_async import Admin, Message, MessageQueue, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.spark import worker as workers
from rmq_async.spark.options import read_options
from rmq_async.spark.planning import Range
from rmq_async.spark.reading import BatchReader, PushingReader, Slice, StreamReader

from ..embedded.inside import broker_of
from .conftest import Loop

__all__ = ["Broker", "Planner", "batch", "everything", "offsets", "ranges_of", "rows_of", "worker_of_its_own"]


@contextmanager
def worker_of_its_own() -> Iterator[None]:
    """A process that has no worker yet, and has none afterwards."""
    before, workers._worker = workers._worker, None
    logger = logging.getLogger("rmq_async")
    level = logger.level
    try:
        yield
    finally:
        made, workers._worker = workers._worker, before
        if made is not None:
            made.close()
        logger.setLevel(level)


class Broker:
    """One's own, of ``brokers`` names; what is sent to it has its number as body."""

    def __init__(self, loop: Loop, brokers: int = 1) -> None:
        self.loop = loop
        self.servers = EmbeddedRocketMQ(brokers=brokers)
        self.sent = 0
        self.ports: dict[str, int] = {}
        loop.run(self.servers.start())

    @property
    def namesrv(self) -> str:
        return self.servers.namesrv

    def close(self) -> None:
        self.loop.run(self.servers.stop())

    def lose(self, name: str) -> None:
        """A broker ends."""
        broker = broker_of(self.servers, name)
        self.ports[name] = broker.listener.port
        self.loop.run(broker.stop())

    async def regain(self, name: str) -> None:
        await broker_of(self.servers, name).start("127.0.0.1", self.ports[name])

    def topic(self, name: str, queues: int = 1, **settings: Any) -> None:
        async def make() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                await admin.create_topic(name, queues=queues, **settings)

        self.loop.run(make())

    def delete(self, name: str) -> None:
        async def delete() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                await admin.delete_topic(name)

        self.loop.run(delete())

    def send(self, topic: str, count: int, queue: tuple[str, int] = ("broker-a", 0), **fields: Any) -> list[str]:
        """The bodies."""
        bodies = [str(self.sent + number) for number in range(count)]
        self.sent += count

        async def send() -> None:
            async with Producer("sends", namesrv=self.namesrv, namespace=fields.pop("namespace", None)) as producer:
                for body in bodies:
                    await producer.send(Message(topic, body.encode(), **fields), queue=MessageQueue(topic, *queue))

        self.loop.run(send())
        return bodies


class Planner:
    """``start`` to ``end`` of the last micro-batch, as the checkpoint has them: as text."""

    def __init__(self, broker: Broker, **options: str) -> None:
        self.broker = broker
        self.options = {
            "nameserver": broker.namesrv,
            "fetchOffset.retryIntervalMs": "20",
            "fetchOffset.numRetries": "3",
            **options,
        }
        self.log: list[str] = []
        self.begin()

    def begin(self, **options: str) -> None:
        """A new process of the planner."""
        self.reader = StreamReader(read_options({**self.options, **options}, streaming=True))
        if not self.log:
            self.log = [json.dumps(self.reader.initialOffset())]

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Whether there is another micro-batch; it is written down then."""
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        end = json.dumps(self.reader.latestOffset(json.loads(self.log[-1]), limit))
        if end == self.log[-1]:
            return False
        self.log.append(end)
        return True

    def partitions(self, *, restarted: bool = False) -> Sequence[InputPartition]:
        """Of the last one. ``restarted``: before it was committed; of the first one Spark asks for the initial offset again."""
        start = json.loads(self.log[-2])
        if restarted:
            self.begin()
            if len(self.log) == 2:
                start = self.reader.initialOffset()
        return self.reader.partitions(start, json.loads(self.log[-1]))

    def read(self, *, restarted: bool = False) -> list[str]:
        """The bodies of the last one."""
        return rows_of(self.reader, self.partitions(restarted=restarted))

    def step(self, limit: ReadLimit | None = None) -> list[str] | None:
        return self.read() if self.plan(limit) else None


def batch(broker: Broker, **options: str) -> BatchReader:
    given = read_options({"nameserver": broker.namesrv, "fetchOffset.numRetries": "0", **options}, streaming=False)
    return PushingReader(given) if given.pushdown else BatchReader(given)


def ranges_of(slices: Sequence[InputPartition]) -> list[list[Range]]:
    assert all(isinstance(each, Slice) for each in slices)
    return [list(each.ranges) for each in slices if isinstance(each, Slice)]


def rows_of(reader: BatchReader | StreamReader, slices: Sequence[InputPartition]) -> list[str]:
    return [
        body.decode()
        for each in slices
        for found in reader.read(each)
        for body in found.column(found.schema.get_field_index("body")).to_pylist()
    ]


def everything(planner: Planner) -> list[str]:
    """Makes micro-batches until there is nothing left; returns the bodies."""
    found: list[str] = []
    while (bodies := planner.step()) is not None:
        found += bodies
    return found


def offsets(text: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(text)["q"]
    return found
