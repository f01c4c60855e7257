"""``LagListener``: what it makes of progress, of planners on a broker in memory and of a query of Spark."""

from __future__ import annotations

import json
import logging
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from rmq_async.spark import LagListener
from rmq_async.spark.lag import lag_of

from .conftest import Loop, Topics
from .scripted import Broker, Planner, worker_of_its_own
from .test_stream_queries import Stream, numbered, send, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DASHBOARD = Path(__file__).parents[2] / "docs" / "spark-dashboard.json"
RUN = str(uuid4())
LOG = "rmq_async.spark.lag"


@pytest.fixture
def broker(loop: Loop) -> Iterator[Broker]:
    with worker_of_its_own():
        made = Broker(loop)
        yield made
        made.close()


class Session:
    """``spark.streams`` is the session itself."""

    def __init__(self) -> None:
        self.listeners: list[StreamingQueryListener] = []

    @property
    def streams(self) -> Any:
        return self

    def addListener(self, listener: StreamingQueryListener) -> None:
        self.listeners.append(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        self.listeners.remove(listener)


class Watched:
    """A listener of a session without Spark, and the gauges it makes."""

    def __init__(self, **options: Any) -> None:
        self.session: Any = Session()
        self.reader = InMemoryMetricReader()
        meter = MeterProvider(metric_readers=[self.reader]).get_meter("tests")
        self.listener = LagListener(self.session, meter=meter, **options)

    def gauges(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Values by the names of the gauges and the values of their attributes."""
        return gauges_of(self.reader)

    def report(self, *sources: tuple[object, object, object], run: str = RUN, milliseconds: int = 500) -> None:
        self.listener.onQueryProgress(QueryProgressEvent(progress_of(*sources, run=run, milliseconds=milliseconds)))


def gauges_of(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, ...], float]]:
    data = reader.get_metrics_data()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for resource in [] if data is None else data.resource_metrics:
        for metric in resource.scope_metrics[0].metrics:
            points: Any = metric.data.data_points
            found[metric.name] = {tuple(str(value) for value in point.attributes.values()): point.value for point in points}
    return found


def progress_of(*sources: tuple[object, object, object], run: str = RUN, milliseconds: int = 500) -> StreamingQueryProgress:
    """``sources``: start, end and latest offset of each."""
    data = {
        "id": str(uuid4()), "runId": run, "name": "orders", "timestamp": "2026-11-25T00:00:00.000Z", "batchId": 7,
        "batchDuration": milliseconds, "durationMs": {"triggerExecution": milliseconds}, "eventTime": {}, "stateOperators": [],
        "sources": [
            {
                "description": "", "startOffset": json.dumps(start), "endOffset": json.dumps(end),
                "latestOffset": json.dumps(latest), "numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0,
                "metrics": {},
            }
            for start, end, latest in sources
        ],
        "sink": {"description": "", "numOutputRows": 0, "metrics": {}}, "numInputRows": 0, "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0, "observedMetrics": {},
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(data)


def offset(queues: dict[str, int], **more: object) -> dict[str, object]:
    return {"v": 1, "q": queues, **more}


def test_stream_that_falls_behind_and_catches_up(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """As a planner sees it: its offsets are those of a progress."""
    caplog.set_level(logging.INFO, "rmq_async.spark.lag")
    watched = Watched(interval=0)
    broker.topic("t")
    planner = Planner(broker, topic="t", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    sent = time.time()
    broker.send("t", 35)
    found = []
    while planner.plan():
        start, end = map(json.loads, planner.log[-2:])
        watched.report((start, end, planner.reader.reportLatestOffset()))
        gauges = watched.gauges()
        found.append((gauges["rmq.spark.lag.offsets"]["orders", "t"], gauges["rmq.spark.read.rate"]["orders", "t"]))
        seconds = gauges["rmq.spark.lag.time"]["orders", "t"]
        if found[-1][0]:
            assert 0 < seconds < time.time() - sent + 1
        else:
            assert seconds == 0
    assert found == [(25, 20), (15, 20), (5, 20), (0, 10)]
    assert "query orders, micro-batch 7 of 0.5 s: t: 25 offsets, " in caplog.messages[0]
    assert re.search(r"t: 0 offsets, 0\.0 s behind, 10 read per second$", caplog.messages[-1])


def test_start_is_in_checkpoints_once(broker: Broker) -> None:
    """Half of the text of each progress otherwise."""
    broker.topic("t")
    planner = Planner(broker, topic="t", startingOffsets="earliest")
    broker.send("t", 3)
    assert planner.step() is not None
    broker.send("t", 3)
    assert planner.step() is not None
    assert [json.loads(text).get("init") for text in planner.log] == [None, {"t/broker-a/0": 0}, {}]


def test_topics_of_query_are_apart_and_its_sources_together() -> None:
    one = offset({"a/b/0": 5, "a/b/1": 5, "b/b/0": 1}), offset({"a/b/0": 7, "a/b/1": 5, "b/b/0": 1}, init={})
    other = offset({"a/b/2": 0}), offset({"a/b/2": 4}, init={})
    progress = progress_of(
        (*one, offset({"a/b/0": 17, "a/b/1": 6, "b/b/0": 1}, t={"a": 5000})),
        (*other, offset({"a/b/2": 9}, t={"a": 3000})),
    )
    lag = lag_of(progress)
    assert lag is not None
    assert [(each.topic, each.behind, each.read, each.oldest) for each in lag.topics] == [("a", 16, 6, 3.0), ("b", 0, 0, None)]
    assert lag.topics[0].seconds_behind(10.0) == 7.0
    assert lag.rate(lag.topics[0]) == 12.0


def test_age_that_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    """Not 0 seconds: a lag that is not known raises no false calm."""
    caplog.set_level(logging.INFO, "rmq_async.spark.lag")
    watched = Watched(interval=0)
    watched.report(
        (offset({"a/b/0": 5, "c/b/0": 5}), offset({"a/b/0": 6, "c/b/0": 6}, init={}), offset({"a/b/0": 9, "c/b/0": 6}))
    )
    gauges = watched.gauges()
    assert gauges["rmq.spark.lag.offsets"] == {("orders", "a"): 3, ("orders", "c"): 0}
    assert gauges["rmq.spark.lag.time"] == {("orders", "c"): 0.0}
    assert "a: 3 offsets, age unknown, " in caplog.messages[0]
    assert "c: 0 offsets, 0.0 s behind, " in caplog.messages[0]


def test_first_micro_batch_new_queue_and_one_made_anew() -> None:
    """The end says where they begin."""
    first = progress_of((None, offset({"a/b/0": 7}, init={"a/b/0": 3}), offset({"a/b/0": 7})))
    later = progress_of((offset({"a/b/0": 90}), offset({"a/b/0": 5, "a/b/1": 4}, init={"a/b/0": 1, "a/b/1": 0}), None))
    assert [each.read for lag in (lag_of(first), lag_of(later)) if lag is not None for each in lag.topics] == [4, 8]


def test_other_sources_are_left_out() -> None:
    watched = Watched(interval=0)
    watched.report(({"kafka": {"0": 1}}, {"kafka": {"0": 5}}, {"kafka": {"0": 5}}))
    watched.report((1, 2, 3))
    assert watched.listener.lags == {}


def test_log_line_once_per_interval(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "rmq_async.spark.lag")
    now = 1000.0
    monkeypatch.setattr("rmq_async.spark.lag.monotonic", lambda: now)
    watched = Watched(interval=10.0)
    source = offset({"a/b/0": 5}), offset({"a/b/0": 6}, init={}), offset({"a/b/0": 6})
    for seconds, lines in ((0, 1), (9, 1), (1, 2), (9.5, 2)):
        now += seconds
        watched.report(source)
        assert len(caplog.messages) == lines
    assert watched.gauges()["rmq.spark.progress.age"] == {("orders",): 0.0}
    watched.listener.onQueryTerminated(QueryTerminatedEvent(uuid4(), watched_run(watched), None, None))
    assert watched.listener.lags == {}
    watched.listener.close()
    assert watched.session.listeners == []
    with pytest.raises(ValueError, match="interval must be 0 or more seconds, not -1"):
        Watched(interval=-1)


def watched_run(watched: Watched) -> Any:
    (run,) = watched.listener.lags
    return run


def test_dashboard_shows_every_gauge() -> None:
    """By the names that Prometheus gives them: dots become underscores, units are appended."""
    watched = Watched()
    watched.report((offset({"a/b/0": 5}), offset({"a/b/0": 6}, init={}), offset({"a/b/0": 6})))
    shown = set(re.findall(r"rmq_spark_\w+", DASHBOARD.read_text()))
    ends = {"rmq.spark.lag.offsets": "", "rmq.spark.read.rate": "_per_second"}
    assert shown == {name.replace(".", "_") + ends.get(name, "_seconds") for name in watched.gauges()}


def test_query_of_spark(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """It falls behind as each micro-batch takes 20 of 100 messages, and catches up."""
    topic = topics.make(4)
    send(topics, topic, numbered(0, 100))
    reader = InMemoryMetricReader()
    listener = LagListener(spark, meter=MeterProvider(metric_readers=[reader]).get_meter("tests"), interval=0)
    behind: list[float] = []

    def look() -> bool:
        found = gauges_of(reader).get("rmq.spark.lag.offsets", {})
        behind.extend(value for value in found.values() if [value] != behind[-1:])
        return behind[-1:] == [0]

    query = Stream(spark, topics, tmp_path, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=20).start(
        processingTime="0 seconds"
    )
    try:
        until(look, query)
        (lag,) = listener.lags.values()
        assert (lag.name, [each.topic for each in lag.topics]) == (str(query.id), [topic])
    finally:
        query.stop()
        listener.close()
    assert behind == sorted(behind, reverse=True)
    assert 0 < behind[0] <= 80


def test_age_is_unknown_where_one_of_two_sources_does_not_know_it() -> None:
    known = offset({"a/b/0": 5}), offset({"a/b/0": 5}, init={}), offset({"a/b/0": 9}, t={"a": 5000})
    unknown = offset({"a/b/1": 5}), offset({"a/b/1": 5}, init={}), offset({"a/b/1": 9})
    read = offset({"a/b/1": 5}), offset({"a/b/1": 9}, init={}), offset({"a/b/1": 9})
    for other, oldest in ((unknown, None), (read, 5.0)):
        lag = lag_of(progress_of(known, other))
        assert lag is not None
        assert lag.topics[0].oldest == oldest


def test_idle_query_has_the_lag_of_its_last_progress_and_its_age_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query in which nothing arrives is none that stands still."""
    now = 1000.0
    monkeypatch.setattr("rmq_async.spark.lag.monotonic", lambda: now)
    watched = Watched(interval=0)
    idle = QueryIdleEvent(id=uuid4(), runId=UUID(RUN), timestamp="2026-11-25T00:00:00.000Z")
    watched.listener.onQueryIdle(idle)
    assert watched.listener.lags == {}, "there was no progress yet"
    watched.report((offset({"a/b/0": 5}), offset({"a/b/0": 6}, init={}), offset({"a/b/0": 9}, t={"a": 5000})))
    (before,) = watched.listener.lags.values()
    now += 60
    assert watched.gauges()["rmq.spark.progress.age"] == {("orders",): 60.0}
    watched.listener.onQueryIdle(idle)
    (lag,) = watched.listener.lags.values()
    gauges = watched.gauges()
    assert gauges["rmq.spark.progress.age"] == {("orders",): 0.0}
    assert gauges["rmq.spark.lag.offsets"] == {("orders", "a"): 3}
    assert (lag.topics, lag.batch, lag.duration) == (before.topics, before.batch, before.duration)


@pytest.mark.parametrize("latest", [None, "17", offset({"c/b/0": 6})], ids=["missing", "of another source", "of other topics"])
def test_lag_that_is_not_known(latest: object, caplog: pytest.LogCaptureFixture) -> None:
    """None, and no value: 0 would say that all is read."""
    caplog.set_level(logging.INFO, "rmq_async.spark.lag")
    watched = Watched(interval=0)
    watched.report((offset({"a/b/0": 5}), offset({"a/b/0": 6}, init={}), latest))
    (lag,) = watched.listener.lags.values()
    assert [(each.behind, each.oldest, each.seconds_behind(9.0), each.read) for each in lag.topics] == [(None, None, None, 1)]
    gauges = watched.gauges()
    assert (gauges.get("rmq.spark.lag.offsets", {}), gauges.get("rmq.spark.lag.time", {})) == ({}, {})
    assert gauges["rmq.spark.read.rate"] == {("orders", "a"): 2.0}
    assert caplog.messages[0].endswith("of 0.5 s: a: lag unknown, 2 read per second")


def test_lag_is_unknown_where_one_of_two_sources_does_not_know_it() -> None:
    known = offset({"a/b/0": 5}), offset({"a/b/0": 5}, init={}), offset({"a/b/0": 9}, t={"a": 5000})
    lag = lag_of(progress_of(known, (offset({"a/b/1": 5}), offset({"a/b/1": 9}, init={}), None)))
    assert lag is not None
    assert [(each.behind, each.oldest, each.read) for each in lag.topics] == [(None, None, 4)]


def test_queue_in_no_route_counts_nothing() -> None:
    """Removed queues stay in the offsets of a query for ever, and cannot be read."""
    ends = offset({"a/b/0": 6, "a/b/1": 7}, init={})
    lag = lag_of(progress_of((offset({"a/b/0": 5, "a/b/1": 7}), ends, offset({"a/b/0": 9}))))
    assert lag is not None
    assert [(each.behind, each.read) for each in lag.topics] == [(3, 1)]


JAVA = "\n\tat org.apache.spark.sql.Thing.call(Thing.scala:17)\nCaused by: java.io.IOException: more\n\t... 3 more"
PYTHON = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/somewhere/job.py", line 72, in parse
    raise error
         ^^^^^^
"""


@pytest.mark.parametrize(
    ("exception", "logged"),
    [
        (
            "org.apache.spark.sql.AnalysisException: [PYTHON_DATA_SOURCE_ERROR] Failed to plan: "
            "rmq_async.errors.TopicNotFoundError: topic T not found\n SQLSTATE: 38000",
            "topic T not found",
        ),
        (
            f"org.apache.spark.api.python.PythonException: {PYTHON}ValueError: no order\n SQLSTATE: 38000",
            "ValueError: no order",
        ),
        ("org.apache.spark.SparkException: [A_CLASS] This went wrong. SQLSTATE: 1", "[A_CLASS] This went wrong. SQLSTATE: 1"),
        ("java.lang.OutOfMemoryError", "java.lang.OutOfMemoryError"),
        ("x" * 600, "x" * 500 + "..."),
    ],
    ids=["of ours", "of Python", "of Spark", "without a text", "long"],
)
def test_error_that_ends_a_query_is_logged_in_one_line(exception: str, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq_async.spark.lag")
    watched = Watched(interval=60)
    query, run = uuid4(), UUID(RUN)
    watched.listener.onQueryStarted(QueryStartedEvent(query, run, "orders", "2026-11-25T00:00:00.000Z", set()))
    watched.listener.onQueryTerminated(QueryTerminatedEvent(query, run, exception + JAVA, "A_CLASS"))
    expected = ("rmq_async.spark.lag", logging.ERROR, f"query orders ended with an error: {logged}")
    assert caplog.record_tuples == [expected]
    assert watched.listener.lags == {}


def test_query_that_was_there_before_the_listener_is_named_by_its_progress_or_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq_async.spark.lag")
    watched = Watched(interval=60)
    query = uuid4()
    watched.report((offset({"a/b/0": 5}), offset({"a/b/0": 6}, init={}), offset({"a/b/0": 6})))
    caplog.clear()
    watched.listener.onQueryTerminated(QueryTerminatedEvent(query, UUID(RUN), "java.lang.Error: it fails", None))
    watched.listener.onQueryTerminated(QueryTerminatedEvent(query, uuid4(), "java.lang.Error: it fails", None))
    assert caplog.messages == [f"query {name} ended with an error: it fails" for name in ("orders", query)]
    assert all(value == {} for value in watched.gauges().values())


def test_query_that_ends_without_an_error_is_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq_async.spark.lag")
    watched = Watched(interval=60)
    watched.report((offset({"a/b/0": 5}), offset({"a/b/0": 6}, init={}), offset({"a/b/0": 6})))
    caplog.clear()
    watched.listener.onQueryTerminated(QueryTerminatedEvent(uuid4(), UUID(RUN), None, None))
    watched.listener.onQueryTerminated(QueryTerminatedEvent(uuid4(), uuid4(), None, None))  # it read something else
    assert caplog.record_tuples == [("rmq_async.spark.lag", logging.INFO, "query orders ended")]


def test_idle_query_of_spark_and_one_that_fails(
    spark: SparkSession, topics: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark says every so often that a query is idle; the error of one has neither a trace nor a secret."""
    topic = topics.make(1)
    send(topics, topic, numbered(0, 5), 1)
    listener = LagListener(spark, interval=60)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    heard: set[float] = set()
    given = {"topic": topic, "startingOffsets": "earliest"}
    query = Stream(spark, topics, tmp_path / "idle", **given).start(processingTime="0 seconds")

    def idle() -> bool:
        heard.update(lag.at for lag in listener.lags.values())
        return len(heard) >= 4

    try:
        until(idle, query)
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [5]
        assert [each.behind for lag in listener.lags.values() for each in lag.topics] == [0]
        query.stop()
        secret = {"accessKey": "alice", "secretKey": "not to be seen"}
        absent = {**given, "topic": f"{topic}-absent", "fetchOffset.numRetries": "1", **secret}
        caplog.clear()
        failing = Stream(spark, topics, tmp_path / "failing", **absent).start(availableNow=True)
        with pytest.raises(StreamingQueryException):
            failing.awaitTermination(60)
        until(lambda: any(record.levelno == logging.ERROR for record in caplog.records if record.name == LOG))
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        query.stop()
        listener.close()
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR and record.name == LOG]
    assert message.startswith(f"query {failing.id} ended with an error: topic {topic}-absent was not found")
    assert "\tat " not in message
    assert "Traceback" not in message
    assert "not to be seen" not in caplog.text
    assert listener.lags == {}


def test_prometheus_gets_the_gauges_as_the_page_says() -> None:
    """The snippet of the page on a free port, with the names of the page."""
    page = DASHBOARD.with_name("spark.md").read_text()
    (snippet,) = re.findall(r"^```text\n(from opentelemetry\.exporter.*?)^```$", page, re.MULTILINE | re.DOTALL)
    source = snippet.replace(
        'start_http_server(9464, addr="127.0.0.1")', "server, thread = start_http_server(0, addr='127.0.0.1')"
    )
    names: dict[str, Any] = {"spark": Session()}
    exec(source, names)
    try:
        progress = progress_of((offset({"a/b/0": 5}), offset({"a/b/0": 6}, init={}), offset({"a/b/0": 9})))
        names["listener"].onQueryProgress(QueryProgressEvent(progress))
        with urllib.request.urlopen(f"http://127.0.0.1:{names['server'].server_port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    finally:
        names["server"].shutdown()
        names["server"].server_close()
        names["thread"].join()
        names["provider"].shutdown()
    of_the_page = set(re.findall(r"^\| `rmq\.spark\.[\w.]+` \| `(\w+)`", page, re.MULTILINE))
    found = set(re.findall(r"^(rmq_spark_\w+)\{", text, re.MULTILINE))
    assert found == of_the_page - {"rmq_spark_lag_time_seconds"}, "the age of this lag is not known"
    assert re.search(r'^rmq_spark_lag_offsets\{[^}]*topic="a"[^}]*\} 3\.0$', text, re.MULTILINE)
