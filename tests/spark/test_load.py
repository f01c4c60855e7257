"""``rmq spark load``: what a task counts, without Spark; what Spark makes of what tasks counted; the whole on the cluster."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ConfigError
from rmq_protocol.constants import RequestCode, ResponseCode

from .conftest import Topics

pytest.importorskip("pyspark")

from rmq_async.spark.options import write_options
from rmq_async.spark.pipelines.latencies import HIGHEST, bucket_of, highest_in
from rmq_async.spark.pipelines.load import load, main
from rmq_async.spark.pipelines.load_plot import plot
from rmq_async.spark.pipelines.load_report import Figures, ModeReport, RunReport, report
from rmq_async.spark.pipelines.load_tasks import COLUMNS, LoadPlan, Result, results_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- latencies


def test_a_bucket_is_less_than_1_6_percent_wide() -> None:
    seconds = [random.Random(5).lognormvariate(-6, 3) for _ in range(5000)] + [0.0, 1e-6, 127e-6, 128e-6, 129e-6, 3600.0]
    for each in seconds:
        exact = round(each * 1e6) / 1e6
        assert exact <= highest_in(bucket_of(each)) + 1e-12 <= exact * 1.016 + 2e-12
    assert [bucket_of(each) for each in sorted(seconds)] == sorted(bucket_of(each) for each in seconds)
    assert bucket_of(-1.0) == 0
    assert bucket_of(1e12) == bucket_of(HIGHEST / 1e6)
    assert len({bucket_of(1e-6 * 1.01**power) for power in range(2700)}) < 2300


# -- a task


def plan_for(topics: Topics, mode: str, **changes: Any) -> LoadPlan:
    options = {"nameserver": topics.namesrv, "sendRetries": "0", "sendTimeoutMs": "5000", "producerGroup": f"load-{mode}"}
    chosen: dict[str, Any] = {"rate": 400.0, "size": 200, "seconds": 0.6, "tasks": 1, "callers": 4, "batch": 8, **changes}
    topic = topics.make()
    return LoadPlan("run", write_options({**options, "topic": topic}, streaming=False), topic, mode, **chosen)


def counted_by(plan: LoadPlan, task: int = 0) -> list[Result]:
    return results_of(plan, task, fresh=False, ready=lambda: None)


def totals(results: list[Result]) -> Counter[str]:
    found: Counter[str] = Counter()
    for result in results:
        found[result.what] += result.messages
    return found


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch"])
def test_a_task_sends_what_is_due_and_counts_it(mode: str, embedded_topics: Topics, embedded: EmbeddedRocketMQ) -> None:
    plan = plan_for(embedded_topics, mode, seconds=0.25)
    results = counted_by(plan, 3)
    found = totals(results)
    wanted = 104 if mode == "batch" else 100
    assert found == {"scheduled": wanted, "attempted": wanted, "handed over" if mode == "oneway" else "acknowledged": wanted}
    assert sum(sum(result.latencies.values()) for result in results) == wanted
    until = time.monotonic() + 5
    while len(stored := embedded.messages(plan.topic)) < wanted and time.monotonic() < until:
        time.sleep(0.02)
    assert {len(message.body) for message in stored} == {200}
    assert sorted(int(message.body.split()[3]) for message in stored) == list(range(wanted))


def test_a_task_of_few_messages_lasts_as_long_as_the_load(embedded_topics: Topics) -> None:
    """Its rate is over that time, and the tasks beside it run at the same time."""
    results = counted_by(plan_for(embedded_topics, "sync", rate=1.0, seconds=0.3))
    assert totals(results)["acknowledged"] == 1
    assert {round(result.ended - result.began, 6) for result in results} == {0.3}


def test_a_broker_that_stands_still_is_seen_by_everything_that_was_due(
    embedded_topics: Topics, embedded: EmbeddedRocketMQ
) -> None:
    """Four callers are under way when it stops; it is felt by the hundred messages that were due meanwhile."""
    plan = plan_for(embedded_topics, "sync", seconds=0.8)

    def stand_still() -> None:
        time.sleep(0.2)
        embedded_topics.loop.run(stalled())

    async def stalled() -> None:
        embedded.stall()
        await asyncio.sleep(0.4)
        embedded.resume()

    halting = threading.Thread(target=stand_still)
    halting.start()
    results = counted_by(plan)
    halting.join()
    slow = sum(
        number for result in results for bucket, number in result.latencies.items() if highest_in(bucket) > 0.1
    )  # those due in the first 0.3 s of it
    found = totals(results)
    assert found["acknowledged"] == found["attempted"]
    assert 80 <= slow <= found["attempted"] - 40
    assert max(result.longest for result in results) == pytest.approx(0.4, abs=0.25)


def test_failures_are_counted_by_kind(embedded_topics: Topics, embedded: EmbeddedRocketMQ) -> None:
    plan = plan_for(embedded_topics, "async", seconds=0.25)
    code = RequestCode.SEND_MESSAGE_V2

    async def refuse() -> None:
        embedded.fail_next(ResponseCode.SYSTEM_BUSY, 7, request=code)
        embedded.fail_next(ResponseCode.FLUSH_DISK_TIMEOUT, 5, request=code)

    embedded_topics.loop.run(refuse())
    found = totals(counted_by(plan))
    assert found == {
        "scheduled": 100, "attempted": 100, "acknowledged": 88, "SystemBusyError": 7, "FLUSH_DISK_TIMEOUT": 5,
    }  # fmt: skip


def test_what_cannot_be_begun_in_time_is_missed(embedded_topics: Topics, embedded: EmbeddedRocketMQ) -> None:
    plan = plan_for(embedded_topics, "sync", seconds=0.3, callers=1)

    async def slow(seconds: float) -> None:
        embedded.delay(seconds)

    embedded_topics.loop.run(slow(0.05))
    try:
        found = totals(counted_by(plan))
    finally:
        embedded_topics.loop.run(slow(0.0))
    assert found["scheduled"] == 120
    assert 1 <= found["attempted"] == found["acknowledged"] <= 10


def test_without_a_rate_as_many_go_as_go(embedded_topics: Topics) -> None:
    results = counted_by(plan_for(embedded_topics, "async", seconds=0.2, rate=None))
    found = totals(results)
    assert found["scheduled"] == found["attempted"] == found["acknowledged"] > 100


# -- what is made of it


def counted(
    run: str, task: int, second: int, seconds: list[float], *, began: float = 100.0, mode: str = "sync", failed: int = 0
) -> list[Result]:
    def result(what: str, number: int, latencies: dict[int, int], longest: float) -> Result:
        return Result(run, task, mode, second, what, number, 10 * number, latencies, longest, began, began + 2)

    lines = [result(what, len(seconds) + failed, {}, 0.0) for what in ("scheduled", "attempted")]
    if failed:
        lines.append(result("SendError", failed, {}, 0.0))
    return [*lines, result("acknowledged", len(seconds), dict(Counter(map(bucket_of, seconds))), max(seconds))]


def test_figures_of_several_tasks_are_those_of_all_their_messages(spark: SparkSession) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    parts = {(task, second): [draw.lognormvariate(-6, 2) for _ in range(500)] for task in (0, 1) for second in (0, 1)}
    lines = [
        line for (task, second), seconds in parts.items() for line in counted("a", task, second, seconds, began=100.0 + task)
    ]
    lines.append(Result("a", -1, "sync", -1, "stored", 1990, 0, {}, 0.0, 100.0, 104.0))
    lines += counted("b", 0, 0, [0.001] * 3, began=200.0, failed=2) + counted("b", 1, 0, [0.001], began=300.0)
    first, second = report(spark.createDataFrame(lines, COLUMNS).coalesce(1))

    (mode,) = first.modes
    for place, wanted in (
        (mode.total, sorted(each for part in parts.values() for each in part)),
        (mode.by_second[1], sorted(parts[0, 1] + parts[1, 1])),
    ):
        assert (place.scheduled, place.attempted, place.done, place.uncounted) == (len(wanted),) * 3 + (0,)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)):
            exact = wanted[math.ceil(share * len(wanted)) - 1] * 1000
            assert exact - 0.001 <= place.latencies[name] <= exact * 1.016 + 0.001, name
        assert place.latencies["max"] == pytest.approx(wanted[-1] * 1000)
    assert (mode.rate, mode.bytes, mode.tasks, mode.tasks_at_once) == (1000.0, 20000, 2, 2)
    assert (mode.stored, first.lost, first.acknowledged) == (1990, 10, 2000)
    assert first.problems() == ["10 of 2000 messages acknowledged in mode sync are not in the topic"]

    (mode,) = second.modes
    assert (mode.stored, mode.lost, mode.tasks_at_once, mode.total.failed) == (None, 0, 1, {"SendError": 2})
    assert second.problems() == [
        "2 of 6 messages of mode sync failed: 2 SendError",
        "only 1 of 2 tasks of mode sync ran at the same time",
    ]


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    times = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "p99.9": 4.0, "max": 5.0}
    seconds = {0: Figures(100, 100, 90, {"SendError": 10}, times), 1: Figures(100, 0, 0, {}, {})}
    run = RunReport("a", [ModeReport("sync", seconds[0], seconds, 90.0, 9000, 90, 1, 1)])
    plot(run, str(tmp_path / "load.png"))
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
    plot(run, str(tmp_path / "load.svg"))
    assert "<svg" in (tmp_path / "load.svg").read_text()
    with pytest.raises(ConfigError, match=r"load\.doc': its ending must be one of .*png"):
        plot(run, str(tmp_path / "load.doc"))


def test_a_picture_needs_matplotlib(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--report", "nowhere", "--plot", "load.png"]) == 2
    assert (
        capsys.readouterr().err
        == "rmq spark load: a plot needs matplotlib, which is not installed; run pip install 'rmq-async[bench]'\n"
    )


# -- the command


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rate": -1.0}, "rate must be above 0"),
        ({"modes": ("sync", "fast")}, "there is no mode 'fast', only sync, async, oneway, batch"),
        ({"modes": ("sync", "sync")}, "one is named more than once"),
        ({"size": 0}, "size must be from 1 to 4194304, not 0"),
        ({"seconds": 0}, "seconds must be above 0"),
        (
            {"modes": ("batch",), "batch": 4096},
            "a batch of 4096 messages of 1024 bytes, with 256 more for each, takes 5242880 bytes; the limit",
        ),
        ({"tasks": 64}, r"tasks must be from 1 to 2, what --master local\[2,2\] runs at a time, not 64"),
        ({"options": {"maxMessagesPerSecond": "5"}}, "option maxMessagesPerSecond has no meaning for a load"),
        ({"options": {"sendTimeout": "5"}}, "unknown option 'sendTimeout'; is sendTimeoutMs meant"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_is_sent(
    spark: SparkSession, given: dict[str, Any], expected: str
) -> None:
    options = {"nameserver": "127.0.0.1:1", **given.pop("options", {})}
    with pytest.raises(ConfigError, match=expected):
        load(spark, topic="T", results="nowhere", options=options, **given)


def test_the_tasks_of_a_load_on_a_cluster_have_no_upper_limit(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.spark.pipelines.load.master_of", lambda spark: "yarn")
    with pytest.raises(ConfigError, match=r"^tasks must be 1 or more, not 0$"):
        load(spark, topic="T", results="nowhere", options={"nameserver": "127.0.0.1:1"}, tasks=0)


def test_a_load_on_the_cluster_is_counted_stored_and_reported(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"{topics.make()}-load"
    results = str(tmp_path / "results")
    arguments = ["--topic", topic, "--create", "4", "--results", results, "--namesrv", topics.namesrv, "--json"]
    assert main([*arguments, "--modes", "oneway,batch", "--rate", "600", "--seconds", "0.5", "--size", "300"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    modes = {line["mode"]: line for line in lines if line["event"] == "progress" and "attempted" in line}
    assert list(modes) == ["oneway", "batch"]
    for name, mode in modes.items():
        done = mode["handed_over" if name == "oneway" else "acknowledged"]
        assert mode["attempted"] == done == mode["stored"] == (320 if name == "batch" else 300)
        assert mode["failed"] == mode["missed"] == 0
        assert 0 < mode["p50_ms"] <= mode["p90_ms"] <= mode["p99_ms"] <= mode["p99.9_ms"] <= mode["max_ms"] < 5000
        assert 300 < mode["rate"] < 1000
    summary = lines[-1]
    assert (summary["attempted"], summary["acknowledged"], summary["handed_over"]) == (620, 320, 300)
    assert (summary["lost"], summary["problems"], summary["failed"]) == (0, [], False)

    heads = Counter(tuple(message.body.split()[1:3]) for message in topics.read(topic))
    assert heads == {
        (task, mode): (160 if mode == b"batch" else 150) for task in (b"0", b"1") for mode in (b"oneway", b"batch")
    }

    assert main(["--report", results, "--json"]) == 0
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [{key: value for key, value in line.items() if key != "run"} for line in again[:-1]] == list(modes.values())

    assert main(["--report", str(tmp_path)]) != 0
    assert main(["--topic", topic, "--namesrv", topics.namesrv]) == 2
    assert "--topic needs --results" in capsys.readouterr().err
    assert main(["--topic", "there-is-none", "--results", results, "--namesrv", topics.namesrv]) == 1
    assert "there-is-none" in capsys.readouterr().err
