"""A data engineer's first mistakes, by what he reads: one sentence that says what is wrong, at the end of a line or two of Spark's.

What is wrong with options and columns is found without a cluster, so most of it is tested without Spark; then each way on which an
error leaves (making a read, planning it, a task, a stream and its tasks) is tested in the session.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from rmq_async import Admin
from rmq_async.errors import ConfigError
from rmq_async.spark.short_errors import HIDING, sentence, short_errors, short_errors_iterated
from rmq_async.spark.source import RocketMQDataSource

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDRESS = {"nameserver": "127.0.0.1:9876"}
COLUMNS = (
    "topic, brokerName, queueId, offset, msgId, offsetMsgId, tags, keys, body, properties, bornTimestamp, storeTimestamp, "
    "bornHost, storeHost, reconsumeTimes, flag, sysFlag"
)
NO_BODY = r"row 0 of partition \d has no body: column body is NULL; give a value, or leave the row out"
SINK_COLUMNS = (
    "body, topic, tags, keys, properties, shardingKey, brokerName, queueId, delayLevel, deliverTimestamp, flag, bornTimestamp"
)


def text_of(mistake: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        mistake()
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "nothing says what to read: give one of the options topic, subscribe, subscribePattern, assign"),
        ({"topic": "T", "subscribe": "U"}, "options topic and subscribe contradict each other; give one of them"),
        ({"topik": "T"}, "unknown option 'topik'; is topic meant?"),
        ({"topic": "T", "kafka.bootstrap.servers": "x:1"},
         "option 'kafka.bootstrap.servers' is Kafka's: the option nameserver gives the addresses of name servers, not of brokers"),
        ({"topic": "T", "bootstrap.servers": "x:1"},
         "option 'bootstrap.servers' is Kafka's: the option nameserver gives the addresses of name servers, not of brokers"),
        ({"topic": "T", "group.id": "g"}, "option 'group.id' is Kafka's: it is called consumerGroup"),
        ({"topic": "T", "max.poll.records": "9"}, "option 'max.poll.records' is Kafka's: it is called pullBatchSize"),
        ({"topic": "T", "acks": "all"}, "option 'acks' is Kafka's: it is called requireStatus"),
        ({"topic": "T", "key.deserializer": "X"}, "option 'key.deserializer' is Kafka's: keys is a string, body is binary: cast()"),
        ({"topic": "T", "kafka.value.serializer": "X"}, "option 'kafka.value.serializer' is Kafka's: keys is a string or an array"),
        ({"topic": "T", "headers": "true"}, "option 'headers' is Kafka's: headers are the column properties, read and written"),
        ({"topic": "T", "SASL.jaas.config": "x"}, "option 'SASL.jaas.config' is Kafka's: accessKey, secretKey"),
        ({"topic": "T", "session.timeout.ms": "1"}, "option 'session.timeout.ms' is Kafka's: settings of Kafka's clients are not"),
        ({"topic": "T", "includeHeaders": "true"}, "option 'includeHeaders' is Kafka's: headers are always read, as the column "
         "properties"),
        ({"topic": "T", "groupIdPrefix": "g"}, "option 'groupIdPrefix' is Kafka's: it is called consumerGroupPrefix"),
        ({"topic": "T", "kafka.group.id": "g"}, "option 'kafka.group.id' is Kafka's: it is called consumerGroup"),
        ({"topic": "T", "kafka.sasl.jaas.config": "secret"}, "option 'kafka.sasl.jaas.config' is Kafka's: accessKey, secretKey"),
        ({"topic": "T", "kafka.fetch.min.bytes": "1"},
         "option 'kafka.fetch.min.bytes' is Kafka's: settings of Kafka's clients are not passed on"),
        ({"topic": "T", "columns": "key,value"}, "option columns: there is no column 'key'; it is called keys"),
        ({"topic": "T", "consumerGroup": "a", "consumerGroupPrefix": "b", "maxOffsetsPerTrigger": "5"},
         "options consumerGroup and consumerGroupPrefix contradict each other"),
        ({"topic": "T", "consumerGroupPrefix": "b" * 84},
         "option consumerGroupPrefix: group '" + "b" * 48),
        ({"topic": "T", "startingOffsets": "latest", "startingOffsets.default": "latest"},
         "option startingOffsets.default needs startingOffsets or startingOffsetsByTimestamp as JSON by queue"),
        ({"topic": "T", "startingOffset": "latest"}, "unknown option 'startingOffset'; is startingOffsets meant?"),
        ({"topic": "T", "secretkeys": "s"}, "unknown option 'secretkeys'; is secretKey meant?"),
        ({"topic": "T", "path": "/x"},
         "a topic is not a path: use .option('topic', ...) with .load() and .save(), without an argument"),
        ({"topic": ""}, "option topic is empty"),
        ({"topic": "T", "tags": " "}, "option tags is empty"),
        ({"topic": "T", "columns": "body,bodi"}, f"option columns: there is no column 'bodi', only {COLUMNS}"),
        ({"topic": "T", "columns": "body,body"}, "option columns: body is given twice"),
        ({"topic": "T", "startingOffsets": "first"},
         "option startingOffsets must be earliest, latest or JSON by queue, not 'first'"),
        ({"topic": "T", "startingOffsets": '{"T/a/0": 1'}, "option startingOffsets must be JSON (Expecting ',' delimiter"),
        ({"topic": "T", "startingOffsets": '{"T": "first"}'}, "option startingOffsets: T"),
        ({"topic": "T", "endingOffsets": "earliest"}, "option endingOffsets must be latest or JSON by queue, not 'earliest'"),
        ({"topic": "T", "startingTimestamp": "yesterday"}, "option startingTimestamp must be "),
        ({"topic": "T", "failOnDataLoss": "no"}, "option failOnDataLoss must be true or false, not 'no'"),
        ({"topic": "T", "minPartitions": "0"}, "option minPartitions must be a whole number from 1 to 1000000, not '0'"),
        ({"topic": "T", "namesrv": "x:1"},
         "option nameserver is given twice; give it once, as nameserver or namesrv or namesrvAddr"),
        ({"topic": "T", "accessKey": "k"}, "the access key needs its secret: give the option secretKey or set RMQ_SECRET_KEY"),
        ({"topic": "T", "secretKey": "s"}, "options secretKey and securityToken need accessKey"),
        ({"topic": "T", "sendTimeoutMs": "1"}, "option sendTimeoutMs does not apply to a batch read, only to a batch write or a "
         "streaming write"),
        ({"topic": "T", "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
         "minOffsetsPerTrigger 6 is more than maxOffsetsPerTrigger 5"),
        ({"topic": "T", "maxOffsetsPerTrigger": "5", "endingOffsets": "latest"},
         "option endingOffsets does not apply to a streaming read, only to a batch read"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_wrong_read_is_reported_before_anything_is_asked(
    options: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RMQ_SECRET_KEY", raising=False)
    assert text_of(RocketMQDataSource(ADDRESS | options).schema).startswith(expected)


def test_without_a_name_server_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    expected = "no name server is known: give the option nameserver or set NAMESRV_ADDR"
    assert text_of(RocketMQDataSource({"topic": "T"}).schema) == expected


@pytest.mark.parametrize(
    ("options", "schema", "overwrite", "expected"),
    [
        ({"topic": "T"}, "body binary", True, "a topic cannot be overwritten: use .mode('append')"),
        ({"topic": "T"}, "text binary", False,
         f"2 mistakes: (1) there is no column text to write, only {SINK_COLUMNS}; keep only these with .select(); "
         "(2) column body is"),
        ({"topic": "T"}, "value binary", False, "there is no column value to write, it is called body"),
        ({"topic": "T"}, "body binary, key string", False,
         "there is no column key to write, it is called keys; shardingKey sends rows with the same one to the same queue"),
        ({"topic": "T"}, "body binary, partition integer", False,
         "there is no column partition to write, it is called queueId, with brokerName"),
        ({"topic": "T"}, "key string, Body binary, timestamp timestamp", False,
         f"3 mistakes: (1) there is no column key to write, it is called keys; shardingKey sends rows with the same one to the "
         f"same queue; (2) there is no column Body to write, it is spelt body; (3) there is no column timestamp to write, only "
         f"{SINK_COLUMNS}; keep only these with .select()"),
        ({"topic": "T"}, "keys string, tags string", False,
         "column body is missing: a write needs it, as binary or string; there are keys, tags"),
        ({"topic": "T"}, "body integer", False, "column body must be binary or string, not int"),
        ({"topic": "T"}, "body string, deliverTimestamp timestamp_ntz", False,
         "column deliverTimestamp must be timestamp, not timestamp_ntz; cast it to timestamp_ltz"),
        ({"topic": "T"}, "body string, keys integer", False, "column keys must be string or array<string>, not int"),
        ({}, "body string", False, "nothing says which topic to write to: give the option topic or a column topic"),
        ({"topic": "T"}, "body string, queueId integer", False,
         "columns brokerName and queueId name a queue together; one of them is missing"),
        ({"topic": "T", "idColumn": "id"}, "body string", False, "option idColumn: there is no column id, only body"),
        ({"topic": "T", "startingOffsets": "latest"}, "body string", False,
         "option startingOffsets does not apply to a batch write, only to a batch read or a streaming read"),
        ({"topic": "T", "maxMessagesPerSecond": "fast"}, "body string", False,
         "option maxMessagesPerSecond must be a whole number from 1 to 1099511627776, not 'fast'"),
    ],
)  # fmt: skip
def test_a_wrong_write_is_reported_before_anything_is_sent(
    options: dict[str, str], schema: str, overwrite: bool, expected: str
) -> None:
    columns = StructType()
    for column in schema.split(", "):
        name, kind = column.split()
        columns.add(name, kind)
    source = RocketMQDataSource(ADDRESS | options)
    assert text_of(lambda: source.writer(columns, overwrite)).startswith(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tpoic": "T", "acks": "1"},
         ["unknown option 'tpoic'; is topic meant?", "option 'acks' is Kafka's: it is called requireStatus"]),
        ({"kafka.group.id": "g", "zzz": "1", "minPartitions": "0"},
         ["option 'kafka.group.id' is Kafka's: it is called consumerGroup", "unknown option 'zzz'; docs/spark.md lists all",
          "nothing says what to read: give one of the options topic, subscribe, subscribePattern, assign",
          "option minPartitions must be a whole number from 1 to 1000000, not '0'"]),
        ({"topic": "T", "startingOffsets": '{"T": {"0": 5}}', "endingOffsets": "last", "tags": "||", "columns": "x",
          "tlsVerify": "false", "secretKey": "s"},
         ["option startingOffsets: T: a queue is named by its broker too", "option endingOffsets must be latest or JSON by queue",
          "options secretKey and securityToken need accessKey", "option tlsVerify needs tls=true",
          "option columns: there is no column 'x'", "option tags: "]),
        ({"topic": "", "failOnDataLoss": "", "commitOffsets": "x"},
         ["option commitOffsets must be true or false, not 'x'", "option topic is empty", "option failOnDataLoss is empty"]),
    ],
    ids=["two", "four", "values", "empty"],
)  # fmt: skip
def test_several_mistakes_of_a_read_are_one_error(options: dict[str, str], expected: list[str]) -> None:
    text = text_of(RocketMQDataSource(ADDRESS | options).schema)
    assert text.startswith(f"{len(expected)} mistakes: (1) ")
    for mistake in expected:
        assert text.count(mistake) == 1, mistake


def test_bootstrap_servers_are_the_only_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to give; that no name server is known would be the same once more."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    text = text_of(RocketMQDataSource({"topic": "T", "kafka.bootstrap.servers": "x:1"}).schema)
    assert text == (
        "option 'kafka.bootstrap.servers' is Kafka's: the option nameserver gives the addresses of name servers, not of brokers"
    )


def test_several_mistakes_of_a_write_are_one_error() -> None:
    columns = StructType().add("value", "binary").add("keys", "integer").add("queueId", "integer")
    text = text_of(lambda: RocketMQDataSource(ADDRESS | {"kafka.acks": "all"}).writer(columns, True))
    assert text == (
        "6 mistakes: (1) option 'kafka.acks' is Kafka's: it is called requireStatus; (2) a topic cannot be overwritten: use "
        ".mode('append'); (3) there is no column value to write, it is called body; (4) column keys must be string or "
        "array<string>, not int; (5) nothing says which topic to write to: give the option topic or a column topic; (6) columns "
        "brokerName and queueId name a queue together; one of them is missing: give both or none"
    )


def test_mistakes_of_options_and_schema_are_one_error() -> None:
    source = RocketMQDataSource(ADDRESS | {"topic": "T", "acks": "1"})
    text = text_of(lambda: source.reader(StructType().add("value", "binary")))
    assert text.startswith(
        "2 mistakes: (1) option 'acks' is Kafka's: it is called requireStatus; (2) schema: there is no column value;"
    )


class TestTheWayOut:
    """Of errors, by what stands in the way: no session is needed."""

    def test_no_traceback_in_a_worker_of_spark_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong() -> None:
            raise ConfigError("explanation")

        monkeypatch.setattr(os, "environ", {"PATH": ""})
        with pytest.raises(ConfigError):
            short_errors(wrong)()
        assert HIDING not in os.environ

        monkeypatch.setattr(os, "environ", {"PYTHON_WORKER_FACTORY_SECRET": "x"})
        with pytest.raises(ConfigError, match="explanation"):
            short_errors(wrong)()
        assert os.environ[HIDING] == "1"

    def test_bugs_keep_theirs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def steps() -> Iterator[int]:
            yield 1
            raise KeyError("a bug")

        monkeypatch.setattr(os, "environ", {"PYTHON_WORKER_FACTORY_SECRET": "x"})
        with pytest.raises(KeyError):
            list(short_errors_iterated(steps)())
        assert HIDING not in os.environ

    def test_the_sentence_is_found_in_what_spark_says(self) -> None:
        said = "[PYTHON_DATA_SOURCE_ERROR] Failed to x: rmq_async.errors.ConfigError: option a: b is c\n SQLSTATE: 38000"
        assert sentence(RuntimeError(said)) == "option a: b is c"
        said = "Failed to plan: rmq_async.client.name_servers.NoUsableAnswerError: a:1 is the address of a broker\n SQLSTATE: 38000"
        assert sentence(RuntimeError(said)) == "a:1 is the address of a broker"
        assert sentence(RuntimeError("[DIVIDE_BY_ZERO] Division by zero")) is None


class TestInSpark:
    """Each way on which an error leaves: what ``str`` of Spark's exception holds."""

    def explanation(self, mistake: Callable[[], object], lines: int | None = 2) -> str:
        """Our sentence, at most ``lines`` lines into an exception that shows no trace of anybody's."""
        with pytest.raises(PySparkException) as caught:
            mistake()
        text = str(caught.value)
        assert "Traceback" not in text
        assert ".py" not in text
        assert not re.search(r"^\s*at [\w.$]+\(", text, re.MULTILINE), "a trace of Java"
        assert (
            lines is None
            or len([line for line in text.splitlines() if line.strip(" ") and "SQLSTATE" not in line[:12]]) <= lines
        )
        return sentence(caught.value) or text

    def test_of_a_batch_read(self, spark: SparkSession, embedded_topics: Topics) -> None:
        def reading(**options: str) -> Any:
            return spark.read.format("rocketmq").options(**{"nameserver": embedded_topics.namesrv, **options}).load()

        assert self.explanation(lambda: reading(topic="T", startingOffsets="{earliest}")).startswith(
            "option startingOffsets must be JSON (Expecting property name enclosed in double quotes"
        )
        explanation = self.explanation(lambda: reading(topic="NoSuchTopic").collect())
        assert explanation.startswith("topic NoSuchTopic was not found; name server 127.0.0.1:")

        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            quick = {"fetchOffset.numRetries": "0", "requestTimeoutMs": "300"}
            explanation = self.explanation(lambda: reading(topic="T", nameserver=address, **quick).collect())
        assert explanation.startswith(f"no name server answered: {address}: cannot connect to {address}")

    def test_of_a_read_at_the_address_of_a_broker(self, spark: SparkSession, embedded_topics: Topics) -> None:
        """Not after the 30 s for which a read waits for name servers."""

        async def find() -> str:
            async with Admin(namesrv=embedded_topics.namesrv) as admin:
                return next(iter((await admin.cluster_info()).broker_addr_table.values())).broker_addrs[0]

        broker = embedded_topics.loop.run(find())
        frame = spark.read.format("rocketmq").options(nameserver=broker, topic="T").load()
        started = monotonic()
        explanation = self.explanation(frame.collect)
        assert explanation.startswith(f"{broker} is the address of a broker, not of a name server; pass the addresses of name")
        assert monotonic() - started < 20

    def test_of_a_batch_write(self, spark: SparkSession, embedded_topics: Topics) -> None:
        topic = embedded_topics.make()

        def write(query: str, mode: str | None) -> None:
            writer = (
                spark.sql(query).write.format("rocketmq").option("nameserver", embedded_topics.namesrv).option("topic", topic)
            )
            (writer if mode is None else writer.mode(mode)).save()

        assert (
            self.explanation(lambda: write("select 'x' body", "overwrite"))
            == "a topic cannot be overwritten: use .mode('append')"
        )
        explanation = self.explanation(lambda: write("select cast(null as string) body", "append"))
        assert re.fullmatch(NO_BODY, explanation)
        explanation = self.explanation(lambda: write("select 'x' body", None))  # errorifexists: this sentence is Spark's
        assert 'The data source "rocketmq" cannot be written in the "ErrorIfExists" mode.' in explanation
        assert embedded_topics.read(topic) == []

    def test_of_a_stream(self, spark: SparkSession, embedded_topics: Topics, tmp_path: Path) -> None:
        address = embedded_topics.namesrv
        topic = embedded_topics.make()

        def run(frame: Any, sink: str, **options: str) -> None:
            place = str(tmp_path / str(len(list(tmp_path.iterdir()))))
            writer = frame.writeStream.format(sink).options(checkpointLocation=place, **options).trigger(availableNow=True)
            writer.start().awaitTermination()

        def reading(**options: str) -> Any:
            return spark.readStream.format("rocketmq").option("nameserver", address).options(**options).load()

        # The stream finds these; Spark adds the state of the query below the sentence.
        explanation = self.explanation(lambda: run(reading(topic=topic, endingOffsets="latest"), "noop"), None)
        assert explanation == "option endingOffsets does not apply to a streaming read, only to a batch read; leave it out"
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        nulls = rows.selectExpr("cast(null as string) body")
        explanation = self.explanation(lambda: run(nulls, "rocketmq", nameserver=address, topic=topic), None)
        assert re.fullmatch(NO_BODY, explanation)
        assert embedded_topics.read(topic) == []
