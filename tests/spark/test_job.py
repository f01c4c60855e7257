"""What commands of pipelines share, and what pipelines decide without Spark."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark.errors import PySparkException

from rmq_async import MessageQueue
from rmq_async.errors import ConfigError, TopicNotFoundError
from rmq_async.spark.pipelines import archive, dlq_replay, job, outgoing, publish, reconcile, replay
from rmq_async.testing.threaded import ThreadedRocketMQ

from .conftest import QUICK, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-22T12:00:00Z", NOON),
        ("2026-11-22T12:00:00", NOON),
        ("2026-11-22T13:00:00+01:00", NOON),
        ("2026-11-22", NOON.replace(hour=0)),
        (str(int(NOON.timestamp() * 1000)), NOON),
        ("1795348800123", NOON + timedelta(milliseconds=123)),
    ],
)
def test_times(text: str, meant: datetime) -> None:
    assert job.moment(text) == meant
    assert job.moment(text).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text", ["noon", "20261122", "1795348800", "", "2026-13-01", "-1", "9" * 15, "0001-01-01T00:00:00+02:00"]
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"milliseconds since 1970"):
        job.moment(text)


def test_options_of_the_shared_arguments() -> None:
    given = job.parser("p", Trial(None)).parse_args(
        ["--namesrv", "a:1;b:2", "--access-key", "u", "--ca", "f", "--option", "tags=a || b=c", "--option", "pullBatchSize=64"]
    )
    assert job.connection_options(given) == {
        "nameserver": "a:1;b:2", "accessKey": "u", "tls": "true", "tlsCaFile": "f", "tags": "a || b=c", "pullBatchSize": "64",
    }  # fmt: skip
    for wrong in ("tags", "=a"):
        with pytest.raises(ConfigError, match=f"--option must be NAME=VALUE, not {wrong!r}"):
            job.connection_options(job.parser("p", Trial(None)).parse_args(["--option", wrong]))


TRACE = (
    "[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: Job aborted\n"
    'Traceback (most recent call last):\n  File "x.py", line 3\n'
    "rmq_async.errors.{kind}: what is wrong SQLSTATE: 38000\n\tat org.apache.spark.Some(Some.scala:1)\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TRACE.format(kind="ConfigError"), ("what is wrong", 2)),
        (TRACE.format(kind="RequestTimeoutError"), ("what is wrong", 1)),
        ("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03", ("Path does not exist: file:/x.", 1)),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at '='. SQLSTATE: 42601 (line 1, pos 4)\n\n== SQL ==",
            ("Syntax error at '='.", 1),
        ),
        (
            "An error occurred while calling o1.load.\n: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE] No x.",
            ("No x.", 1),
        ),
        (
            "[X] y\nTraceback (most recent call last):\n  File z\n    a()\n  File b\nKeyError: 'c'\n\n\tat d",
            ("KeyError: 'c'", 1),
        ),
        ("", ("PySparkException", 1)),
    ],
)
def test_what_spark_says_becomes_a_sentence(text: str, expected: tuple[str, int]) -> None:
    assert job.explained(PySparkException(text)) == expected


def test_our_own_errors_keep_their_text() -> None:
    assert job.explained(ConfigError("no")) == ("no", 2)
    assert job.explained(TopicNotFoundError("no topic")) == ("no topic", 1)


@dataclass(frozen=True)
class Done:
    messages: int
    failed: bool
    at: datetime
    offsets: dict[str, tuple[int, int]]


class Trial:
    DESCRIPTION = "A trial."
    EXAMPLES = "rmq spark trial --n 3"

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--n", type=job.whole_number(1, 9))

    def check(self, given: argparse.Namespace) -> None:
        """Finds nothing wrong."""

    def run(self, spark: Any, given: argparse.Namespace, progress: job.Progress) -> Any:
        progress({"messages": given.n, "left": None})
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def run(outcome: Any, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Without a session, which the trial does not ask for."""
    monkeypatch.setattr(job, "running_or", nullcontext)
    return job.run_job("trial", Trial(outcome), arguments)


def test_lines_and_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    done = Done(3, False, NOON, {"t/b/0": (1, 4)})

    assert run(done, "--n", "3", "--json", monkeypatch=monkeypatch) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"event": "progress", "messages": 3, "left": None},
        {"event": "summary", "messages": 3, "failed": False, "at": NOON.isoformat(), "offsets": {"t/b/0": [1, 4]}},
    ]
    assert run(Done(3, True, NOON, {"t/b/0": (1, 4)}), "--n", "3", monkeypatch=monkeypatch) == 1
    assert capsys.readouterr().out.splitlines() == [
        "progress messages 3",
        "summary  messages 3, failed True, at 2026-11-22T12:00:00+00:00",
        "         offsets:",
        "           t/b/0 1 to 4",
    ]
    for outcome, code in (
        (ConfigError("wrong\nuse"), 2),
        (job.PipelineError("no"), 1),
        (OSError("disk"), 1),
        (KeyboardInterrupt(), 130),
    ):
        assert run(outcome, "--json", monkeypatch=monkeypatch) == code
        output = capsys.readouterr()
        text = str(outcome).replace("\n", " ") or "interrupted"
        assert json.loads(output.out.splitlines()[-1]) == {"event": "error", "error": text, "code": code}
        assert output.err == f"rmq spark trial: {text}\n"
    assert run(done, "--n", "10", monkeypatch=monkeypatch) == 2
    assert "must be a whole number from 1 to 9, not '10'" in capsys.readouterr().err


@pytest.mark.parametrize("module", [archive, replay, publish])
def test_help_and_missing_arguments(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["--help"]) == 0
    output = capsys.readouterr().out
    assert 0 < output.index("--topic") < output.index("--namesrv") < output.index("--master") < output.index("examples:")
    assert module.main([]) == 2
    assert "--topic" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedRocketMQ]:
    with ThreadedRocketMQ(auto_create_topics=False) as running:
        yield running


@pytest.mark.parametrize(
    ("module", "arguments", "expected"),
    [
        (archive, ["--topic", "gone", "--path", "p"], "gone"),
        (archive, ["--topic", "gone", "--path", "p", "--option", "tagz=a"], "unknown option 'tagz'; is tags meant?"),
        (archive, ["--pattern", "[", "--path", "p"], "option subscribePattern must be a regular expression"),
        (replay, ["--topic", "gone", "--path", "p"], "gone"),
        (
            replay,
            ["--topic", "gone", "--path", "p", "--option", "idColumns=x"],
            "unknown option 'idColumns'; is idColumn meant?",
        ),
        (publish, ["--topic", "gone", "--format", "csv", "--path", "p"], "gone"),
        (publish, ["--topic", "gone"], "nothing says what to publish: give a table, or a format and a path"),
        (
            publish,
            ["--topic", "gone", "--table", "t", "--secret-option", "a=NO_SUCH"],
            "there is no environment variable 'NO_SUCH'",
        ),
        (dlq_replay, ["gone"], "group gone has no dead letters: there is no topic %DLQ%gone; check the name"),
        (
            archive,
            ["--topic", "gone", "--path", "s3a://b/a", "--compact"],
            "s3a://b/a cannot be compacted: a store s3a is not known to rename",
        ),
        (dlq_replay, ["g o"], "group 'g o' holds a character that is not allowed"),
        (reconcile, ["--topic", "gone", "--sent", "p"], "gone"),
        (reconcile, ["--topic", "gone", "--by", "name"], "by must be id, key, spark-id or property:NAME, not 'name'"),
    ],
    ids=lambda value: value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else None,
)
def test_mistakes_are_found_before_spark_starts(
    module: Any, arguments: list[str], expected: str, server: ThreadedRocketMQ, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def refuse(*_: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(job, "running_or", refuse)
    assert module.main([*arguments, "--namesrv", server.namesrv]) in (1, 2)
    assert expected in capsys.readouterr().err


def test_archive_that_cannot_be_compacted_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path without a scheme is on the session's default store, which only Hadoop knows."""

    class Files:
        def __init__(self, _: object) -> None: ...

        def scheme(self, path: str) -> str:
            return "s3a"

    monkeypatch.setattr(archive, "Files", Files)
    monkeypatch.setattr(archive, "activate", lambda _: None)
    spark: Any = None
    with pytest.raises(ConfigError, match="archive cannot be compacted: a store s3a is not known to rename files atomically"):
        archive.archive(spark, "T", "archive", compacting=True)


@pytest.mark.parametrize("event", ["progress", "summary"])
def test_reader_that_goes_away_ends_a_program_quietly(event: str) -> None:
    """As given to spark-submit, without ``rmq`` around it."""
    program = f"""
import contextlib, sys
from rmq_async.spark.pipelines import job

class Done:
    __dataclass_fields__ = {{}}
    failed = False

class Job:
    DESCRIPTION = EXAMPLES = ""
    def arguments(self, parser): pass
    def check(self, given): pass
    def run(self, spark, given, progress):
        if {event!r} == "progress":
            progress({{"messages": 1}})
        return Done()

job.running_or = lambda begin: contextlib.nullcontext()
job.dataclasses.fields = lambda _: ()
sys.stdin.read()
raise SystemExit(job.run_job("fake", Job(), ["--json"]))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert (process.wait(60), process.stderr.read()) == (1, b"")


# -- archive: whether path and checkpoint belong together


@pytest.mark.parametrize(
    ("content", "written", "read", "done"),
    [
        (None, [], [], []),
        (["_checkpoint"], [], [], []),
        (["_checkpoint"], [], [0], []),
        (["_spark_metadata", "topic=a"], [0, 1], [0, 1, 2], [0, 1]),
        (["_spark_metadata", "topic=a"], [0, 1], [0, 1], [0]),
        (["topic=a"], [], [0], []),
    ],
)
def test_pairs_that_go_on(content: Any, written: Sequence[int], read: Sequence[int], done: Sequence[int]) -> None:
    archive.check_pair("p", "c", content, written, read, done)


@pytest.mark.parametrize(
    ("content", "written", "read", "done", "sentence"),
    [
        (["topic=a"], [0, 1], [], [], "p holds an archive of 2 micro-batches, but its checkpoint c is missing or empty"),
        (["topic=a"], [0, 1, 2], [0, 1], [0], "its checkpoint c knows 2"),
        (None, [], [0, 1], [0], "checkpoint c says that 1 micro-batches are archived, but p holds none of them"),
        (["topic=a"], [0], [0, 1, 2], [0, 1], "says that 2 micro-batches are archived, but p holds 1"),
        (["a.parquet"], [], [], [], "p is not empty and not an archive; give another path"),
    ],
)
def test_pairs_that_do_not(content: Any, written: Any, read: Any, done: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        archive.check_pair("p", "c", content, written, read, done)


def test_offsets_of_a_checkpoint() -> None:
    entry = 'v1\n{"batchWatermarkMs":0}\n{"v":1,"q":{"a/b/0":7},"init":{"a/b/0":1}}'
    assert archive.known_offsets(entry, "c") == {"a/b/0": 7}
    for other in ('v1\n{}\n{"logOffset":0}', "v1", "", "v1\n{}\n-"):
        with pytest.raises(ConfigError, match="checkpoint c does not belong to an archive of topics"):
            archive.known_offsets(other, "c")


def test_topics_of_a_checkpoint() -> None:
    archive.check_topics("c", {"a"}, ["a", "b"], None)
    archive.check_topics("c", {"a1", "a2"}, [], "a.")
    with pytest.raises(ConfigError, match="checkpoint c belongs to an archive of topic a, which b does not include"):
        archive.check_topics("c", {"a", "b"}, ["b"], None)
    with pytest.raises(ConfigError, match=r"topic b1, which pattern 'a\.' does not include"):
        archive.check_topics("c", {"a1", "b1"}, [], "a.")


# -- replay: where queues go


def archived(queue: int, messages: int = 10, topic: str = "t", broker: str = "b") -> replay.ArchivedQueue:
    return replay.ArchivedQueue(topic, broker, queue, 5, 4 + messages, messages, NOON, NOON)


def queues(topic: str, count: int, broker: str = "b") -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker, number) for number in range(count))


def test_queues_of_the_same_name_stay_and_the_others_go_where_every_window_sends_them() -> None:
    targets = {"x": queues("x", 2)}
    plan = replay.routes([archived(number) for number in (3, 0, 1, 2)], targets, "x", 2, exact=False)
    assert [route.source.queue_id for route in plan] == [0, 1, 2, 3]
    assert [route.queue for route in plan[:2]] == list(queues("x", 2))
    assert {route.queue for route in plan[2:]} == set(queues("x", 2))
    assert [route.queue for route in replay.routes([archived(3)], targets, "x", 1, exact=False)] == [plan[3].queue]
    back = replay.routes([archived(0), archived(0, topic="u")], {"t": queues("t", 1), "u": queues("u", 1)}, None, 2, exact=True)
    assert [route.queue.topic for route in back] == ["t", "u"]


def test_tasks_share_messages_and_not_queues() -> None:
    sizes = [100, 60, 50, 10]
    plan = replay.routes([archived(n, size) for n, size in enumerate(sizes)], {"x": queues("x", 4)}, "x", 2, exact=True)
    loads = [sum(route.source.messages for route in plan if route.slot == slot) for slot in (0, 1)]
    assert sorted(loads) == [110, 110]


def test_exact_queues_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match="topic x has no queue b/2 to write to; it has b/0, b/1; add it"):
        replay.routes([archived(2)], {"x": queues("x", 2)}, "x", 1, exact=True)
    with pytest.raises(job.PipelineError, match="topic x has no queue that can be written to"):
        replay.routes([archived(0)], {"x": ()}, "x", 1, exact=False)


@pytest.mark.parametrize(
    ("rate", "tasks", "shared"), [(1, 8, (1, 1)), (5000, 8, (1, 5000)), (12_000, 8, (3, 4000)), (90_000, 4, (4, 22_500))]
)
def test_a_rate_is_shared_and_never_exceeded(rate: int, tasks: int, shared: tuple[int, int]) -> None:
    assert outgoing.shared_rate(rate, tasks) == shared
    assert shared[0] * shared[1] <= rate


def test_mistakes_that_need_no_session() -> None:
    here: Any = None
    options = {"nameserver": "127.0.0.1:9"}
    with pytest.raises(ConfigError, match="a replay needs one target: give a topic"):
        replay.replay(here, "p")
    with pytest.raises(ConfigError, match=r"a replay needs one target: give a topic, or to_original=True \(--to-original\)"):
        replay.replay(here, "p", topic="t", to_original=True)
    with pytest.raises(ConfigError, match="the window is empty"):
        replay.replay(here, "p", topic="t", start=NOON, end=NOON.astimezone(timezone(timedelta(hours=3))), options=options)
    with pytest.raises(ConfigError, match="give either topics or a pattern"):
        archive.archive(here, (), "p")
    with pytest.raises(ConfigError, match="option columns: an archive holds all columns"):
        archive.archive(here, "t", "p", options={"columns": "body"})
    with pytest.raises(ConfigError, match="are both given; give a table of the catalogue, or a format"):
        publish.read_table(here, table="t", format="csv")
    with pytest.raises(ConfigError, match="nothing says what to publish"):
        publish.read_table(here)


class Reading(Trial):
    """A session's thread finds the format; the outcome is how many messages there are."""

    def run(self, spark: Any, given: argparse.Namespace, progress: job.Progress) -> Any:
        rows = spark.read.format("rocketmq").options(**self.outcome).load().count()
        return Done(rows, False, NOON, {})


def test_a_session_that_another_thread_began_is_used_and_goes_on(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"nameserver": topics.namesrv, "topic": topics.make()}
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: spark.getActiveSession()).result() is None
        assert thread.submit(job.run_job, "trial", Reading(given), ["--json"]).result() == 0
        assert thread.submit(lambda: spark.getActiveSession()).result() is spark
    assert json.loads(capsys.readouterr().out)["messages"] == 0
    assert spark.range(3).count() == 3


def test_what_has_arrived_is_not_known_of_a_cluster_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "PATIENCE", 0.0)
    with ThreadedRocketMQ() as server:
        arrivals = outgoing.Arrivals(outgoing.access_for({"nameserver": server.namesrv, "topic": "orders"}), ["orders"])
        assert arrivals.settled(0) == 0
    assert arrivals.settled(1) is None


@pytest.mark.deep
def test_a_pipeline_is_a_file_for_spark_submit(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, orders = topics.make(), tmp_path / "orders.csv"
    orders.write_text("id,amount\n17,5\n18,7\n")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = ["--master", "local[1]", "--driver-java-options", QUICK]
    settings += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.codegen.wholeStage=false"]
    given = ["--json", "--namesrv", topics.namesrv, "--topic", topic, "--format", "csv", "--path", str(orders)]
    command = [str(submit), *settings, publish.__file__, *given, "--read-option", "header=true", "--key", "id"]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_HOSTNAME": "localhost"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["messages"] == 2
    assert {message.body for message in topics.read(topic)} == {b'{"id":"17","amount":"5"}', b'{"id":"18","amount":"7"}'}
