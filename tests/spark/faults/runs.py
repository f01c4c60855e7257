"""Runs in a session that lives on: tasks that fail, workers and brokers that go, queues that come, messages that expire, and
micro-batches that a checkpoint asks for again.

Each function does one run for a seed and returns it; ``checker`` says what came of it. A checkpoint whose last commit is taken
away again is what a driver leaves that is killed between the offset log and the commit; drivers that are killed: ``kills``.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_async import Admin, MessageQueue, TopicNotFoundError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.spark.positions import key_of
from rmq_async.testing._probe import ask
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import GetTopicConfigRequestHeader, to_ext

from . import checker, deleting
from .feeding import Feeder, spread
from .history import Fault, QueryFailedError, Run, ticks
from .queries import finish, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES = ("latest", "earliest", "timestamp")
SINKS = ("parquet", "topic")


@dataclass
class Bench:
    """``wait``: does a coroutine on a loop; ``place``: where directories of runs are made; ``restart``: stops the broker at
    ``namesrv``, does what it is given, and starts the broker again."""

    spark: SparkSession
    wait: Callable[[Coroutine[Any, Any, Any]], Any]
    place: Path
    namesrv: str
    restart: Callable[[Callable[[], None]], None] | None = None

    def __post_init__(self) -> None:
        self.feeder = Feeder(self.wait, self.namesrv)

    def run(self, case: str, seed: int, sink: str, mode: str = "earliest", queues: int = 2, **options: object) -> Run:
        return new_run(self.feeder, self.place, self.namesrv, case, seed, sink, mode, queues, **options)


def new_run(
    feeder: Feeder, place: Path, namesrv: str, case: str, seed: int, sink: str, mode: str, queues: int, **options: object
) -> Run:
    """With its topics, and some messages in them that are older than the start."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{case}-{seed}-{time.time_ns() % 10**9}")
    topic, target = f"{name}-in", f"{name}-out" if sink == "topic" else None
    feeder.make(topic, queues)
    if target is not None:
        feeder.make(target)
    run = Run(case, seed, str(place / name), namesrv, topic, mode, target)
    run.place.mkdir(parents=True)
    feeder.send(run, spread(random.Random(seed), 3, 20, queues), old=True)
    given = {key: str(value) for key, value in options.items()}
    if mode == "timestamp":
        time.sleep(0.02)
        given["startingTimestamp"] = str(time.time_ns() // 10**6)
        time.sleep(0.02)
        feeder.send(run, dict.fromkeys(range(queues), 3))  # where there is nothing that young the start is an error
    else:
        given["startingOffsets"] = mode
    run = replace(run, options=given)
    run.save()
    return run


def with_faults(run: Run, *faults: Fault) -> Run:
    run = replace(run, faults=faults)
    run.save()
    return run


def task_faults(bench: Bench, case: str, seed: int, sink: str, *kinds: tuple[str, str], **options: object) -> Run:
    """A first attempt fails in each micro-batch: place and action in the first, in the second, ... Places are "read" and "write",
    after some rows, and "written", after the last one; actions "raise" and "kill"."""
    rng = random.Random(seed)
    run = bench.run(f"{case}: {sink}", seed, sink, maxOffsetsPerTrigger=80, **options)
    tasks = int(str(options.get("maxPartitions", 2)))
    faults = []
    for batch, (place, action) in enumerate(kinds):
        number = rng.randrange(2 if place == "read" else tasks)
        faults.append(Fault(place, action, batch, number, 0 if place == "written" else rng.randint(1, 25)))
    run = with_faults(run, *faults)
    bench.feeder.send(run, spread(rng, 40 * len(kinds), 40 * len(kinds) + 30))
    run.note("fed")
    finish(run, start(bench.spark, run))
    return run


def replayed(bench: Bench, seed: int, kinds: list[tuple[str, str]]) -> list[Run]:
    """The last micro-batch is asked for again, after more messages have come: its commit is taken out of the checkpoint, and in
    every other run what the file sink has logged of it. ``kinds``: mode and sink of queries side by side."""
    rng = random.Random(seed)
    limit = {"maxOffsetsPerTrigger": 60} if rng.random() < 0.4 else {}
    runs = [bench.run(f"batch again: {sink}, {mode}", seed, sink, mode, **limit) for mode, sink in kinds]
    queries = [start(bench.spark, run) for run in runs]
    for run, query in zip(runs, queries, strict=True):
        run.wait_event("initial", alive=lambda query=query: query.isActive)
        bench.feeder.send(run, spread(rng, 20, 60))
        run.note("fed")
    for run, query in zip(runs, queries, strict=True):
        finish(run, query)
        _take_back(run, manifest=rng.random() < 0.5)
        bench.feeder.send(run, spread(rng, 1, 40))
    queries = [start(bench.spark, run, faults=False) for run in runs]
    for run, query in zip(runs, queries, strict=True):
        finish(run, query)
    return runs


def _take_back(run: Run, *, manifest: bool) -> None:
    """What a driver leaves that is killed before the last commit, or (``manifest``) before the file sink's own."""
    last = run.state()["offsets"][-1]
    logs = [run.checkpoint / "commits"]
    if manifest and run.target is None:
        logs.append(run.out / "_spark_metadata")
    for log in logs:
        (log / str(last)).unlink()
        (log / f".{last}.crc").unlink(missing_ok=True)
    run.note("injected", what="commit taken back", manifest=manifest)
    run.note("killed", state=run.state(), again=[last])


def broker_restart(bench: Bench, seed: int, sink: str, count: int = 9000) -> Run:
    """The broker goes while a task reads, and comes back."""
    assert bench.restart is not None
    rng = random.Random(seed)
    run = bench.run(f"broker restart: {sink}", seed, sink)
    run = with_faults(run, Fault("read", "wait", 0, rng.randrange(2), rng.randint(500, 4000)))
    bench.feeder.send(run, spread(rng, count, count + 500))
    run.note("fed")
    query = start(bench.spark, run)
    run.wait_event("fired")

    def gone() -> None:
        run.note("injected", what="broker down")
        run.signal("go")
        time.sleep(rng.uniform(0.1, 1.0))

    bench.restart(gone)
    finish(run, query)
    return run


def queue_added(bench: Bench, seed: int) -> Run:
    """A running query's topic gets two more queues."""
    rng = random.Random(seed)
    run = bench.run("queue added", seed, "parquet")
    bench.feeder.send(run, spread(rng, 5, 50))
    run.note("fed")
    query = start(bench.spark, run, available_now=False)
    _until_read(run, query)
    bench.feeder.make(run.topic, 4)
    run.note("injected", what="two queues")
    bench.feeder.send(run, spread(rng, 5, 50, 4))
    _until_read(run, query)
    query.stop()
    return run


def retention(bench: Bench, seed: int, real: bool = False) -> Run:
    """Messages are deleted after they were planned. The query fails and says what is missing; started again with
    failOnDataLoss=false it reads the rest. In odd seeds it is started so at once. On a broker of its own, since what others
    write would delete messages too."""
    rng = random.Random(seed)
    server = RealCluster(broker_conf=deleting.SOON_CORRECTED) if real else EmbeddedRocketMQ(max_memory=200_000)
    bench.wait(server.start())
    try:
        own = Bench(bench.spark, bench.wait, bench.place, server.namesrv)
        run, query = _held_by_a_loss(own, "messages deleted", seed)
        own.feeder.send(run, spread(rng, 60, 80), size=1000)
        run.note("fed")
        run.wait_event("fired", 2, alive=lambda: query.isActive)
        own.feeder.send(run, spread(rng, 40, 70), size=16_000 if real else 1000)
        if isinstance(server, RealCluster):
            deletion = deleting.Deletion(server, _queues(run), int(deleting.SOON_CORRECTED[deleting.SIZE]))
            least = own.wait(deletion.first_left())
            own.feeder.send(run, spread(rng, 5, 20))  # the last file may hold next to nothing
            own.wait(deletion.corrected(least))
        else:
            least = own.wait(_minimums(run))
        _go_on_with(own, run, query, least)
        if own.wait(_minimums(run)) != least:
            run.note("void", why="more was deleted while it was read")
        return run
    finally:
        bench.wait(server.stop())


def vanishing(bench: Bench, seed: int, real: bool = False) -> Run:
    """Messages are deleted while a query reads, and the broker still says that they are there. Otherwise as ``retention``."""
    rng = random.Random(seed)
    server = RealCluster(broker_conf=deleting.SLOW_TO_CORRECT) if real else EmbeddedRocketMQ()
    bench.wait(server.start())
    try:
        own = Bench(bench.spark, bench.wait, bench.place, server.namesrv)
        run, query = _held_by_a_loss(own, "messages deleted while they are read", seed)
        for low, high in ((60, 80), (40, 70)):
            own.feeder.send(run, spread(rng, low, high), size=16_000 if real else 1000)
        run.note("fed")
        run.wait_event("fired", 2, alive=lambda: query.isActive)
        if isinstance(server, RealCluster):
            deletion = deleting.Deletion(server, _queues(run), int(deleting.SLOW_TO_CORRECT[deleting.SIZE]))
            least = own.wait(deletion.first_left())
        else:
            least = {key_of(queue): rng.randint(5, 60) for queue in _queues(run)}
            for queue in _queues(run):
                server.expire(queue, least[key_of(queue)])
        if any(own.wait(_minimums(run)).values()):
            run.note("void", why="minimum offsets were corrected before it was read")
        _go_on_with(own, run, query, least)
        return run
    finally:
        bench.wait(server.stop())


def _held_by_a_loss(bench: Bench, case: str, seed: int) -> tuple[Run, Any]:
    """A run and its query, whose two tasks wait before their first message. In odd seeds the query leaves lost messages out."""
    run = bench.run(case, seed, "parquet")
    run = replace(run, options=run.options | {"failOnDataLoss": str(seed % 2 == 0).lower()})
    run = with_faults(run, *[Fault("read", "wait", 0, number) for number in range(2)])
    return run, start(bench.spark, run)


def _go_on_with(bench: Bench, run: Run, query: Any, least: dict[str, int]) -> None:
    """Lets the tasks go on: ``least`` are the first offsets that are left."""
    for queue, offset in least.items():
        run.note("skipped", queue=queue, range=[0, offset])
    run.note("injected", what="deleted", least=least)
    run.signal("go")
    _judge_loss(bench, run, query, least)


def _judge_loss(bench: Bench, run: Run, query: Any, least: dict[str, int]) -> None:
    """The end of a query that met a loss, and a second one that goes on without what is lost."""
    for _ in ticks("the query did not end"):
        if not query.isActive:
            break
    error = str(query.exception() or "")
    if run.options["failOnDataLoss"] == "false":
        if error:
            run.fail(error)
    elif not _says_loss(run, error, least):
        run.fail(f"not the error of lost data: {error or 'none'}")
    again = replace(run, options=run.options | {"failOnDataLoss": "false"})
    finish(again, start(bench.spark, again, faults=False))


def _queues(run: Run) -> list[MessageQueue]:
    return [MessageQueue(run.topic, "broker-a", number) for number in range(2)]


def lagging_replica(bench: Bench, seed: int) -> Run:
    """The master goes while its replica lacks acknowledged messages; on a cluster of its own."""
    cluster = RealCluster(replicas=1, broker_conf={"slaveReadEnable": "true"})
    bench.wait(cluster.start())
    try:
        return master_away(Bench(bench.spark, bench.wait, bench.place, cluster.namesrv), cluster, seed)
    finally:
        bench.wait(cluster.stop())


def master_away(bench: Bench, cluster: RealCluster, seed: int) -> Run:
    """In odd seeds it goes before the end is planned, in even ones between that and the partitions. It comes back while planning
    waits for it; in every third seed later: then the query fails with that reason, and is started again."""
    rng = random.Random(seed)
    planned, late = seed % 2 == 0, seed % 3 == 0
    options = {"failOnDataLoss": rng.choice(("true", "false"))} | ({"fetchOffset.numRetries": "1"} if late else {})
    run = bench.run("master away, replica behind", seed, "parquet", **options)
    if planned:
        run = with_faults(run, Fault("partitions", "wait"))
    bench.feeder.send(run, spread(rng, 300, 500), size=2000)
    bench.wait(cluster.replicated())
    bench.wait(_topic_copied(cluster, run.topic))
    cluster.replicas[0].pause()
    bench.feeder.send(run, spread(rng, 300, 500), size=2000)
    if planned:
        run.note("fed")
    query = start(bench.spark, run)
    run.wait_event("fired" if planned else "initial", alive=lambda: query.isActive)
    bench.wait(cluster.brokers[0].kill())
    cluster.replicas[0].resume()
    copied = bench.wait(_ends_without_master(run))
    missing = {each["queue"]: each["first"] + each["count"] - copied[each["queue"]] for each in run.history("produced")}
    run.note("injected", what="master away", missing=missing)
    if not all(count > 0 for count in missing.values()):
        run.note("void", why="the replica had everything of a queue")
    run.note("fed")
    run.signal("go")
    if late:
        for _ in ticks("the query did not end without a master"):
            if not query.isActive:
                break
        if "has no master now" not in (error := str(query.exception() or "no error")):
            run.fail(f"not the error of a missing master: {error}")
    else:
        time.sleep(rng.uniform(4.0, 8.0))  # longer than what asks a replica takes to believe it
    bench.wait(cluster.brokers[0].start())
    finish(run, start(bench.spark, run, faults=False) if late else query)
    return run


async def _topic_copied(cluster: RealCluster, topic: str) -> None:
    """Returns when the replica knows the topic, which it copies each 10 s apart from messages: what it does not know it does not
    register."""
    fields = {**to_ext(GetTopicConfigRequestHeader(topic=topic, lo=True))}
    async for _ in deleting.until(f"the replica does not know {topic}"):
        answer = await ask(cluster.replicas[0].address, RequestCode.GET_TOPIC_CONFIG, fields)
        if answer is not None and answer.code == 0:
            return


async def _ends_without_master(run: Run) -> dict[str, int]:
    """What the replica says once routes name it and nothing else. Where heartbeats are asked for each second, a name server forgets
    a replica that stood still for 10 s, until it registers again."""
    async with Admin(namesrv=run.namesrv) as admin:
        async for _ in deleting.until("routes do not name the replica alone"):
            with contextlib.suppress(TopicNotFoundError):
                if all(each.broker_addrs.keys() == {1} for each in (await admin.topic_route(run.topic)).broker_datas):
                    break
        return {key_of(queue): await admin.max_offset(queue) for queue in _queues(run)}


async def _minimums(run: Run) -> dict[str, int]:
    """The minimum offsets of both queues, as the broker says."""
    async with Admin(namesrv=run.namesrv) as admin:
        return {key_of(queue): await admin.min_offset(queue) for queue in _queues(run)}


def _says_loss(run: Run, error: str, least: dict[str, int]) -> bool:
    """Whether it names the queue, all that is lost of what was planned of it, what was wanted and what there is."""
    match = re.search(
        r"data is lost: (\S+): .*\(0(?: to (\d+))?\); offsets 0 to \d+ were to be read, available are (\d+) to \d+", error
    )
    if match is None or least.get(match[1]) != int(match[3]):
        return False
    fed = run.history("fed")[0]["at"]
    planned = sum(part["count"] for part in run.history("produced") if part["queue"] == match[1] and part["at"] <= fed)
    return int(match[2] or 0) + 1 == min(least[match[1]], planned)


def _until_read(run: Run, query: Any) -> None:
    wanted = len(checker.expected(run))
    for _ in ticks(f"{run.case}: not all was read"):
        if error := query.exception():
            raise QueryFailedError(str(error))
        state = run.state()
        done = [number for number in state["commits"] if number in state["offsets"]]
        if sum(checker.size_of(run, number) for number in done) >= wanted:
            return
