"""DataFrames written to topics: what arrives, what a task that fails sends twice, which mistakes are found by planning."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from rmq_async import ConfigError
from rmq_async.embedded import EmbeddedRocketMQ

from .conftest import Topics, resume

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf
from pyspark.sql.types import StructType

from rmq_async.spark.options import write_options
from rmq_async.spark.writing import BatchWriter, sink_columns, warn_of_speculation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(frame: DataFrame, topics: Topics, topic: str | None = None, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("rocketmq").mode(mode).option("nameserver", topics.namesrv)
    for name, value in {**({} if topic is None else {"topic": topic}), **options}.items():
        writer = writer.option(name, str(value))
    writer.save()


def test_every_column_arrives_and_what_is_read_can_be_written_again(
    spark: SparkSession, topics: Topics, reading: Callable[..., Any]
) -> None:
    first, second, copy, moved = (topics.make() for _ in range(4))
    frame = spark.range(0, 600, 1, 3).selectExpr(
        f"if(id % 3 = 0, '{second}', '{first}') topic",
        "encode(cast(id as string), 'utf-8') body",
        "if(id % 2 = 0, 'even', null) tags",
        "if(id % 5 = 0, null, array('all', concat('k', id))) keys",
        "if(id % 7 = 0, null, map('colour', 'röd', 'nothing', null, 'UNIQ_KEY', 'mine')) properties",
        "concat('s', id % 10) shardingKey",
        "cast(if(id % 2 = 0, 9, null) as bigint) flag",
        "case when id = 101 then 1 end delayLevel",
        "case when id = 102 then current_timestamp() + interval 1 second end deliverTimestamp",
        "current_timestamp() bornTimestamp",
    )
    write(frame, topics)
    deadline = time.monotonic() + 60
    while len(found := topics.read(first) + topics.read(second)) < 600 and time.monotonic() < deadline:
        time.sleep(0.2)  # the two that are delivered later
    assert {message.body for message in found} == {str(number).encode() for number in range(600)}
    found = [message for message in found if int(message.body) not in (101, 102)]
    assert len(found) == 598
    orders = defaultdict(list)
    for message in found:
        number = int(message.body)
        user = {name: value for name, value in message.properties.items() if name in ("colour", "nothing", "mine")}
        assert (message.topic, message.tags, message.flag) == (
            (second, first)[bool(number % 3)], (None, "even")[number % 2 == 0], (0, 9)[number % 2 == 0],
        )  # fmt: skip
        assert message.keys == (() if number % 5 == 0 else ("all", f"k{number}"))
        assert user == ({} if number % 7 == 0 else {"colour": "röd"})
        assert message.properties["__SHARDINGKEY"] == f"s{number % 10}"
        assert message.unique_id != "mine"
        assert re.fullmatch(r"[0-9a-f]{32}:0:[012]:[0-9]+", message.properties["RMQ_SPARK_ID"])
        orders[message.topic, number % 10, number // 200].append((message.queue, number))
    assert len({message.properties["RMQ_SPARK_ID"] for message in found}) == 598
    assert len({message.properties["RMQ_SPARK_ID"].split(":")[0] for message in found}) == 1
    for rows in orders.values():  # of one key and one task
        assert len({queue for queue, _ in rows}) == 1
        assert [number for _, number in rows] == sorted(number for _, number in rows)

    read = reading(first)
    with pytest.raises(PySparkException) as caught:
        write(read, topics, copy)
    expected = (
        "there are no columns offset, msgId, offsetMsgId, storeTimestamp, bornHost, storeHost, reconsumeTimes, sysFlag to write"
    )
    assert expected in str(caught.value)
    write(read.select("topic", "tags", "keys", "body", "properties", "flag"), topics, copy)
    write(read.select("brokerName", "queueId", "body", "properties"), topics, moved)
    original = topics.read(first)

    def seen(message: Any) -> tuple[object, ...]:
        kept = {"colour", "TAGS", "KEYS", "__SHARDINGKEY"}
        return message.body, sorted((name, value) for name, value in message.properties.items() if name in kept)

    exact = [(message.queue.queue_id, *seen(message)) for message in original]
    assert [(message.queue.queue_id, *seen(message)) for message in topics.read(moved)] == exact
    copied = topics.read(copy)
    assert sorted(map(str, map(seen, copied))) == sorted(map(str, map(seen, original)))
    assert Counter(message.flag for message in copied) == Counter(message.flag for message in original)
    assert not {message.unique_id for message in copied} & {message.unique_id for message in original}


def test_a_task_that_is_tried_again_repeats_ids(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make()

    def failing_once(number: int) -> str:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        if number == 750 and context is not None and not context.attemptNumber():
            time.sleep(1)
            raise RuntimeError("once")
        return str(number).ljust(2000)  # more than Spark keeps back

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        write(spark.range(0, 1000, 1, 2).select(udf(failing_once, useArrow=False)("id").alias("body")), topics, topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    ids = defaultdict(list)
    for message in topics.read(topic):
        ids[message.properties["RMQ_SPARK_ID"]].append(message.body)
    assert sorted(int(bodies[0]) for bodies in ids.values()) == list(range(1000))
    assert all(len(set(bodies)) == 1 for bodies in ids.values())
    twice = [identity.split(":")[2] for identity, bodies in ids.items() if len(bodies) > 1]
    assert 0 < len(twice) <= 250
    assert set(twice) == {"1"}
    assert max(map(len, ids.values())) == 2


def test_a_write_without_all_answers_fails(spark: SparkSession, embedded: EmbeddedRocketMQ, embedded_topics: Topics) -> None:
    """Answers take 2 s, those to the last 1 % never come."""
    topic = embedded_topics.make()
    frame = spark.range(0, 1000, 1, 1).selectExpr(
        "cast(id as string) body", "if(id < 990, null, 'broker-b') brokerName", "if(id < 990, null, 1) queueId"
    )
    embedded.delay(2.0, broker="broker-a")
    embedded.stall("broker-b")
    try:
        with pytest.raises(PySparkException, match=f"RequestTimeoutError: topic {topic}: 10 rows .* 3 s .option sendTimeoutMs"):
            write(frame, embedded_topics, topic, sendTimeoutMs=3000)
    finally:
        resume(embedded_topics.loop, embedded)
        embedded.delay(0, broker="broker-a")


def test_mistakes_are_reported_in_a_sentence_before_there_are_tasks(
    spark: SparkSession, topics: Topics, embedded_topics: Topics
) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) body", "cast(null as string) topic")
    started = time.monotonic()

    def refused(text: str, **given: Any) -> None:
        with pytest.raises(PySparkException) as caught:
            write(given.pop("frame", frame), given.pop("topics", topics), **given)
        assert text in str(caught.value)
        assert str(caught.value).count("Traceback") <= 1

    refused("a topic cannot be overwritten: use .mode('append')", topic="any", mode="overwrite")
    refused("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", topic="any", mode="errorifexists")
    refused("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", topic="any", mode="ignore")
    refused("column body is missing", frame=frame.select("topic"))
    refused("option topic: topic 'no such' holds a character", topic="no such")
    refused("row 0 of partition 0 has no topic: column topic is NULL or empty", frame=frame.coalesce(1))
    body = frame.selectExpr("cast(null as string) body").coalesce(1)
    refused("row 0 of partition 0 has no body: column body is NULL", frame=body, topics=embedded_topics, topic="any")
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        ("note string", {"topic": "t"}, "there is no column note to write, only body, topic, "),
        ("note string, sum string", {"topic": "t"}, "there are no columns note, sum to write, only body"),
        ("key string", {"topic": "t"}, "there is no column key to write, it is called keys"),
        ("value string, headers string", {"topic": "t"}, "there is no column value to write, it is called body"),
        ("Body string", {"topic": "t"}, "there is no column Body to write, it is spelt body"),
        ("tags string", {"topic": "t"}, "column body is missing: a write needs it, as binary or string; there are tags"),
        ("body int", {"topic": "t"}, "column body must be binary or string, not int; cast it, or use to_json() if it has parts"),
        ("body struct<a:int>", {"topic": "t"}, "column body must be binary or string, not struct<a:int>; cast it"),
        ("body string, keys array<int>", {"topic": "t"}, "column keys must be string or array<string>, not array<int>"),
        ("body string, properties map<string,int>", {"topic": "t"}, "column properties must be map<string,string>, not map<str"),
        ("body string, body string", {"topic": "t"}, "column body occurs 2 times; keep one of them with .select()"),
        ("body string", {}, "nothing says which topic to write to: give the option topic or a column topic"),
        ("body string", {"topic": "OFFSET_MOVED_EVENT"}, "option topic: topic 'OFFSET_MOVED_EVENT' belongs to the broker"),
        ("body string, queueId int", {"topic": "t"}, "columns brokerName and queueId name a queue together; one of them is "),
        ("body string", {"topic": "t", "idColumn": "id"}, "option idColumn: there is no column id, only body"),
        ("body string, id int", {"topic": "t", "idColumn": "id"}, "column id must be string, not int"),
        (
            "body binary, queueId int, brokerName string, offset bigint, tags string", {"topic": "t"},
            "there is no column offset to write, because brokers set them: .select('body', 'tags') (and brokerName and queueId, ",
        ),
    ],
)  # fmt: skip
def test_columns_are_looked_at_when_a_write_is_planned(
    spark: SparkSession, schema: str, options: dict[str, str], text: str
) -> None:
    chosen = write_options({"nameserver": "localhost:9876", **options}, streaming=False)
    with pytest.raises(ConfigError) as caught:
        sink_columns(StructType.fromDDL(schema), chosen)
    assert text in str(caught.value)


def test_all_types_of_columns_are_taken(spark: SparkSession) -> None:
    schema = (
        "body binary, topic string, tags string collate UNICODE_CI, keys array<string>, properties map<string,string>, "
        "shardingKey string, brokerName string, queueId smallint, delayLevel bigint, deliverTimestamp timestamp, flag tinyint, "
        "bornTimestamp timestamp, id string"
    )
    chosen = write_options({"nameserver": "localhost:9876", "idColumn": "id"}, streaming=True)
    assert sink_columns(StructType.fromDDL(schema), chosen)[-1] == "id"


def test_a_queue_that_does_not_exist(spark: SparkSession, topics: Topics) -> None:
    """Both tries of the task fail at once, not each after 30 s."""
    topic = topics.make(2)
    (broker,) = {message.queue.broker_name for message in _one_row(spark, topics, topic)}
    started = time.monotonic()
    with pytest.raises(PySparkException) as caught:
        write(spark.sql(f"select 'x' body, '{broker}' brokerName, 2 queueId"), topics, topic)
    expected = f"there is no queue {topic}/{broker}/2 to write to: columns brokerName and queueId must name one of "
    assert f"{expected}{topic}/{broker}/0, {topic}/{broker}/1" in str(caught.value)
    assert time.monotonic() - started < 50
    assert len(topics.read(topic)) == 1


def _one_row(spark: SparkSession, topics: Topics, topic: str) -> list[Any]:
    write(spark.sql("select 'first' body"), topics, topic)
    return topics.read(topic)


def test_speculation_is_warned_of(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    class Session:
        """A second one cannot be had with another setting of this kind."""

        conf: ClassVar = {"spark.speculation": "true"}

    warn_of_speculation(spark)
    assert not caplog.records
    warn_of_speculation(Session())  # type: ignore[arg-type]
    assert "spark.speculation is on" in caplog.text


def test_tasks_warn_of_speculation(spark: SparkSession, embedded_topics: Topics) -> None:
    """Outside the pipelines too, once a write: what a session says reaches its tasks."""
    topic = embedded_topics.make(1)
    writer = BatchWriter(write_options({"nameserver": embedded_topics.namesrv, "topic": topic}, streaming=False), ("body",))

    @udf("string", useArrow=False)
    def warnings(number: int) -> str:
        texts: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("rmq_async").addHandler(handler)
        try:
            writer.write(iter([pa.RecordBatch.from_pydict({"body": [str(number)]})]))
        finally:
            logging.getLogger("rmq_async").removeHandler(handler)
        return "; ".join(texts)

    frame = spark.range(0, 2, 1, 2).select(warnings("id").alias("warnings"))
    state = spark._jsparkSession.sessionState().conf()  # what a session takes over from the settings it was started with
    try:
        assert [row.warnings for row in frame.collect()] == ["", ""]
        state.setConfString("spark.speculation", "true")
        warned, other = (row.warnings for row in frame.collect())
    finally:
        state.unsetConf("spark.speculation")
    assert "spark.speculation is on" in warned
    assert other == ""
    assert len(embedded_topics.read(topic)) == 4
