"""A master that is away and a replica that lacks what it acknowledged: planning never takes the replica's word, on real brokers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from rmq_async import Admin, Message, MessageQueue, Producer
from rmq_async.errors import BrokerNotFoundError, ConfigError
from rmq_async.spark.options import read_options
from rmq_async.spark.pipelines import dlq_replay, reconcile
from rmq_async.spark.pipelines.outgoing import Arrivals
from rmq_async.spark.planning import EndOffset, Range
from rmq_async.spark.reading import BatchReader, Slice, StreamReader
from rmq_async.testing._probe import ask
from rmq_async.testing.cluster import RealCluster, require
from rmq_protocol.constants import RequestCode, ResponseCode

from .conftest import Loop
from .faults import checker, queries, runs
from .scripted import ranges_of, rows_of, worker_of_its_own

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "BenchmarkTest"
"""Brokers make it at their start, and replicas too: other topics reach a replica within a minute."""
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
ALL = 2000
"""Acknowledged messages; the replica has the first half of them, and what was on its way when it stopped."""
REFUSED = r"broker broker-a has no master now, .*fetchOffset\.numRetries.*offsetsFromReplicas"


@dataclass
class Lagging:
    """``copied``: messages that the replica has. ``planned``: the offsets of a micro-batch [0, ALL), by the master's word."""

    cluster: RealCluster
    loop: Loop
    copied: int
    planned: tuple[dict[str, Any], dict[str, Any]]

    def options(self, *, streaming: bool, **options: str) -> Any:
        given = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "300", "pullTimeoutMs": "1500", **options}
        assign = json.dumps({TOPIC: {"broker-a": [0]}})
        return read_options({"nameserver": self.cluster.namesrv, "assign": assign, **given}, streaming=streaming)

    def batch(self, **options: str) -> BatchReader:
        return BatchReader(self.options(streaming=False, **options))

    def stream(self, **options: str) -> StreamReader:
        return StreamReader(self.options(streaming=True, **{"startingOffsets": "earliest", **options}))


async def send(namesrv: str, count: int) -> None:
    async with Producer("feeds", namesrv=namesrv) as producer:
        for _ in range(count // 100):
            await producer.send_batch([Message(TOPIC, b"." * 2000) for _ in range(100)], queue=QUEUE)


async def end_by_any(namesrv: str) -> int:
    async with Admin(namesrv=namesrv) as admin:
        while (await admin.topic_route(TOPIC)).broker_datas[0].broker_addrs.keys() != {1}:
            await asyncio.sleep(0.1)
        before, end = -1, await admin.max_offset(QUEUE)
        while end != before:  # of what it has copied, it may still have to enter some into the queue
            await asyncio.sleep(0.5)
            before, end = end, await admin.max_offset(QUEUE)
        return end


@pytest.fixture(scope="module")
def lagging(loop: Loop) -> Iterator[Lagging]:
    """Replication has stopped while the master went on; then the master is killed, and the replica answers."""
    cluster = RealCluster(
        replicas=1, broker_conf={"slaveReadEnable": "true", "enableSlaveActingMaster": "true", "timerWheelEnable": "false"}
    )
    require(cluster.version)
    loop.run(cluster.start(), 180)
    try:
        with worker_of_its_own():
            loop.run(send(cluster.namesrv, ALL // 2))
            loop.run(cluster.replicated())
            cluster.replicas[0].pause()
            loop.run(send(cluster.namesrv, ALL // 2))
            made = Lagging(cluster, loop, 0, ({}, {}))
            assert ranges_of(made.batch().partitions()) == [[Range(*QUEUE, 0, ALL)]]
            stream = made.stream()
            first = stream.initialOffset()
            made.planned = first, stream.latestOffset(first, stream.getDefaultReadLimit())
            assert EndOffset.from_json(made.planned[1]).queues == {QUEUE: ALL}
            loop.run(cluster.brokers[0].kill())
            cluster.replicas[0].resume()
            made.copied = loop.run(end_by_any(cluster.namesrv))
            assert ALL // 2 <= made.copied < ALL
            yield made
    finally:
        loop.run(cluster.stop(), 60)


@pytest.mark.parametrize(
    "options",
    [{}, {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "latest"}, {"endingTimestamp": "4102444800000"}],
)
def test_batch_without_master_is_refused(lagging: Lagging, options: dict[str, str]) -> None:
    begun = time.monotonic()
    with pytest.raises(BrokerNotFoundError, match=REFUSED):
        lagging.batch(**options).partitions()
    assert time.monotonic() - begun >= 0.6  # two more tries


@pytest.mark.parametrize("lossy", ["true", "false"])
def test_planned_batch_without_master_keeps_its_messages(lagging: Lagging, lossy: str) -> None:
    """Neither a loss that is none nor a range that ends where the replica does."""
    with pytest.raises(BrokerNotFoundError, match=REFUSED):
        lagging.stream(failOnDataLoss=lossy).partitions(*lagging.planned)


def test_stream_without_master_plans_nothing(lagging: Lagging) -> None:
    for question in (
        lambda: lagging.stream().initialOffset(),
        lambda: lagging.stream().prepareForTriggerAvailableNow(),
        lambda: lagging.stream().latestOffset(lagging.planned[1], lagging.stream().getDefaultReadLimit()),
    ):
        with pytest.raises(BrokerNotFoundError, match=REFUSED):
            question()


def test_option_plans_with_what_replica_has(lagging: Lagging) -> None:
    batch = lagging.batch(offsetsFromReplicas="true")
    slices = batch.partitions()
    assert ranges_of(slices) == [[Range(*QUEUE, 0, lagging.copied)]]
    assert len(rows_of(batch, slices)) == lagging.copied


def test_option_concludes_no_loss(lagging: Lagging) -> None:
    """What a checkpoint or the options name is waited for in the task; a stream never goes back to what a replica has."""
    stream = lagging.stream(offsetsFromReplicas="true")
    assert ranges_of(stream.partitions(*lagging.planned)) == [[Range(*QUEUE, 0, ALL)]]
    assert stream.latestOffset(lagging.planned[1], stream.getDefaultReadLimit()) == lagging.planned[1]
    given = {"startingOffsets": json.dumps({f"{TOPIC}/broker-a/0": ALL - 5}), "offsetsFromReplicas": "true"}
    assert EndOffset.from_json(lagging.stream(**given).initialOffset()).queues == {QUEUE: ALL - 5}
    ending = {"endingOffsets": json.dumps({f"{TOPIC}/broker-a/0": ALL}), "offsetsFromReplicas": "true"}
    assert ranges_of(lagging.batch(**ending).partitions()) == [[Range(*QUEUE, 0, ALL)]]


def test_growth_is_unknown_without_master(lagging: Lagging) -> None:
    """Counted with a replica, what was acknowledged would be called missing."""
    assert Arrivals(lagging.options(streaming=False).access, [TOPIC]).settled(1) is None


def test_acting_master_is_no_master(lagging: Lagging) -> None:
    """A name server that supports acting masters calls the replica broker 0 in routes."""
    support_acting_masters(lagging, True)
    try:
        with pytest.raises(BrokerNotFoundError, match=REFUSED):
            lagging.batch().partitions()
        with pytest.raises(BrokerNotFoundError, match=REFUSED):
            lagging.stream().partitions(*lagging.planned)
        allowed = lagging.batch(offsetsFromReplicas="true")
        assert ranges_of(allowed.partitions()) == [[Range(*QUEUE, 0, lagging.copied)]]
    finally:
        support_acting_masters(lagging, False)


def support_acting_masters(lagging: Lagging, support: bool) -> None:
    server = lagging.cluster.nameservers[0].address
    setting = f"supportActingMaster={str(support).lower()}\n".encode()
    answer = lagging.loop.run(ask(server, RequestCode.UPDATE_NAMESRV_CONFIG, body=setting))
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_pipelines_that_prove_refuse_replicas(spark: SparkSession) -> None:
    options = {"nameserver": "127.0.0.1:1", "offsetsFromReplicas": "true"}
    with pytest.raises(ConfigError, match="option offsetsFromReplicas"):
        dlq_replay.replay_dead_letters(spark, "group", options)
    with pytest.raises(ConfigError, match="option offsetsFromReplicas"):
        reconcile.reconcile(spark, spark.createDataFrame([], "msgId string, state string"), "t", options)


def test_master_that_returns_is_waited_for(lagging: Lagging) -> None:
    """The cluster is whole again afterwards."""
    patient = {"fetchOffset.numRetries": "100"}
    starting = lagging.loop.start(lagging.cluster.brokers[0].start())
    assert ranges_of(lagging.batch(**patient).partitions()) == [[Range(*QUEUE, 0, ALL)]]
    stream = lagging.stream(**patient)
    slices = stream.partitions(*lagging.planned)
    assert [each.ranges for each in slices if isinstance(each, Slice)] == [(Range(*QUEUE, 0, ALL),)]
    assert len(rows_of(stream, slices)) == ALL
    starting.result(60)


@pytest.mark.deep
def test_stream_survives_master_away(lagging: Lagging, spark: SparkSession, tmp_path: Path) -> None:
    """One run of the fault matrix, on the cluster that is here; after the test above."""
    assert lagging.cluster.brokers[0].running
    queries.register(spark)
    bench = runs.Bench(spark, lagging.loop.run, tmp_path, lagging.cluster.namesrv)
    run = runs.master_away(bench, lagging.cluster, 4)
    verdict = checker.check(run.place)
    assert verdict.good, verdict
    assert verdict.read == verdict.produced > 1200
