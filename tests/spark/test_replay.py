"""An archive of a topic of the real broker, replayed: what is sent, where to, in which order."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from rmq_async import Message, MessageExt, MessageQueue, Producer

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 600


class Archived(NamedTuple):
    path: Path
    topic: str
    messages: list[MessageExt]

    def boundaries(self) -> tuple[int, int]:
        """Two store times inside, in milliseconds."""
        times = sorted(message.store_time_ms for message in self.messages)
        return times[len(times) // 4], times[3 * len(times) // 4]


@pytest.fixture(scope="module")
def archived(spark: SparkSession, topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> Archived:
    from rmq_async.spark.pipelines.archive import archive

    topic = topics.make(queues=4)

    async def send(numbers: range) -> None:
        async with Producer("sends", namesrv=topics.namesrv) as producer:
            queues = await producer.fetch_publish_queues(topic)
            for n in numbers:
                message = Message(
                    topic,
                    b"%d" % n,
                    tags=f"t{n % 3}",
                    keys=[f"k{n}", "all"],
                    flag=n,
                    properties={"n": str(n), "spaced": " a b "},
                    sharding_key=f"s{n % 4}" if n % 2 else None,
                )
                await producer.send(message, queue=queues[n % 4])

    topics.loop.run(send(range(8)))
    time.sleep(0.002)  # a message that is stored in the millisecond of ``middle`` would be archived, too
    middle = datetime.now(UTC)
    topics.loop.run(send(range(8, 8 + COUNT)))
    place = tmp_path_factory.mktemp("replay")
    reports: list[Any] = []
    summary = archive(
        spark,
        topic,
        str(place / "archive"),
        checkpoint=str(place / "read"),
        starting=middle,
        files=2,
        compression="zstd",
        options={"nameserver": topics.namesrv},
        progress=reports.append,
    )
    assert (summary.messages, [figures["messages"] for figures in reports]) == (COUNT, [COUNT])
    assert list(summary.offsets.values()) == [(2, 2 + COUNT // 4)] * 4
    return Archived(place / "archive", topic, [each for each in topics.read(topic) if each.queue_offset >= 2])


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    from rmq_async.spark.pipelines.replay import main

    code = main([str(each) for each in arguments])
    output = capsys.readouterr()
    return code, [json.loads(line) for line in output.out.splitlines()], output.err


def origin(message: MessageExt) -> str:
    return f"{message.topic}/{message.queue.broker_name}/{message.queue.queue_id}/{message.queue_offset}"


def content(message: MessageExt) -> Any:
    own = {name: message.properties.get(name) for name in ("n", "spaced", "KEYS", "__SHARDINGKEY")}
    return message.body, message.tags, message.flag, own


def by_source(messages: list[MessageExt]) -> dict[str, list[tuple[MessageQueue, int]]]:
    """By queue of the archive: queue and number of each message, in the order of the topic."""
    found: dict[str, list[tuple[MessageQueue, int]]] = defaultdict(list)
    for message in messages:
        place, _, offset = message.properties["RMQ_SPARK_ID"].rpartition("/")
        found[place].append((message.queue, int(offset)))
    return found


def test_a_window_to_a_smaller_topic(topics: Topics, archived: Archived, capsys: pytest.CaptureFixture[str]) -> None:
    start, end = archived.boundaries()
    target = topics.make(queues=2)
    given = ["--json", "--namesrv", topics.namesrv, "--path", archived.path, "--topic", target, "--from", start, "--to", end]
    expected = {origin(m): content(m) for m in archived.messages if start <= m.store_time_ms < end}
    assert 0 < len(expected) < COUNT

    code, (_, planned), _ = run(capsys, *given, "--dry-run")
    assert (code, planned["found"], planned["messages"], planned["dry_run"]) == (0, len(expected), 0, True)
    assert topics.read(target) == []
    assert sum(count for count, _ in planned["queues"].values()) == len(expected)

    code, (_, *_, summary), error = run(capsys, *given)
    assert (code, error) == (0, "")
    assert (summary["found"], summary["messages"], summary["arrived"]) == (len(expected),) * 3
    messages = topics.read(target)
    assert {m.properties["RMQ_SPARK_ID"]: content(m) for m in messages} == expected
    assert len(messages) == len(expected)
    for place, sent in by_source(messages).items():
        assert len({queue for queue, _ in sent}) == 1, place
        assert [offset for _, offset in sent] == sorted(offset for _, offset in sent), place
    assert {f"{m.queue.topic}/{m.queue.broker_name}/{m.queue.queue_id}" for m in messages} == {
        where for _, where in planned["queues"].values()
    }


def test_twice_to_the_original_at_a_rate(spark: SparkSession, topics: Topics, archived: Archived) -> None:
    """Twice is recognised by the ids; each goes to the queue it came from."""
    from rmq_async.spark.pipelines.replay import replay

    for _ in range(2):
        summary = replay(
            spark,
            str(archived.path),
            to_original=True,
            exact_queues=True,
            where="cast(properties['n'] as int) < 200 and tags = 't0'",
            rate=100,
            options={"nameserver": topics.namesrv},
        )
        assert (summary.found, summary.messages, summary.arrived, summary.failed) == (64, 64, 64, False)
        assert summary.seconds > 0.4
    new = [message for message in topics.read(archived.topic) if "RMQ_SPARK_ID" in message.properties]
    chosen = {origin(m) for m in archived.messages if m.tags == "t0" and int(m.properties["n"]) < 200}
    assert sorted(message.properties["RMQ_SPARK_ID"] for message in new) == sorted([*chosen, *chosen])
    assert all(message.properties["RMQ_SPARK_ID"].startswith(f"{key(message.queue)}/") for message in new)


def key(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def test_mistakes_are_one_sentence(
    spark: SparkSession, topics: Topics, archived: Archived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = topics.make(queues=1)
    (tmp_path / "empty").mkdir()
    spark.range(1).write.parquet(str(tmp_path / "other"))
    for arguments, code, sentence in (
        (
            [tmp_path / "nowhere", "--topic", small],
            2,
            f"there is no archive at {tmp_path / 'nowhere'}: the path does not exist",
        ),
        ([tmp_path / "empty", "--topic", small], 1, f"the archive at {tmp_path / 'empty'} is empty"),
        (
            [tmp_path / "other", "--topic", small],
            2,
            f"{tmp_path / 'other'} is not an archive of topics: it has no column topic",
        ),
        ([archived.path, "--topic", small, "--exact-queues"], 2, f"topic {small} has no queue"),
        ([archived.path, "--topic", "spark-no-such"], 1, "spark-no-such"),
        ([archived.path], 2, "one of the arguments --topic --to-original is required"),
        ([archived.path, "--topic", small, "--from", "2026-11-22", "--to", "2026-11-21"], 2, "the window is empty"),
        ([archived.path, "--topic", small, "--where", "x = 1"], 1, "`x` cannot be resolved"),
    ):
        found, _, error = run(capsys, "--json", "--namesrv", topics.namesrv, "--path", *arguments)
        assert (found, sentence in error) == (code, True), (arguments, error)
    assert topics.read(small) == []
