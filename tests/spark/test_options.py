"""Options, by what comes of them. What is said of wrong ones: test_mistakes."""

from __future__ import annotations

import dataclasses
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThanOrEqual, Not
from pyspark.sql.types import StructType

from rmq_async.errors import ConfigError
from rmq_async.spark import OPTIONS, source, worker
from rmq_async.spark.options import ReadOptions, read_options, write_options
from rmq_async.spark.pushdown import SLACK_MS, PushedFilters, push_down
from rmq_async.spark.reading import BatchReader, PushingReader, StreamReader
from rmq_async.spark.source import RocketMQDataSource
from rmq_protocol.message import MessageQueue

GIVEN = {"nameserver": "127.0.0.1:9876", "topic": "T"}


def reading(streaming: bool = False, **options: str) -> ReadOptions:
    return read_options({**GIVEN, **options}, streaming=streaming)


class TestNames:
    def test_the_table_is_what_is_taken(self) -> None:
        """Each option stands where the table says, under any spelling of Spark's, and nowhere else."""
        values = {
            "startingOffsetsByTimestamp": '{"T": 1}', "endingOffsetsByTimestamp": '{"T": 1}', "startingOffsets": "latest",
            "startingOffsets.default": "latest",
            "endingOffsets": "latest", "assign": '{"T": {"b": [0]}}', "columns": "body", "maxTriggerDelay": "1s",
            "startingOffsetsByTimestampStrategy": "latest", "requireStatus": "stored", "tlsKeyFile": "k", "accessKey": "a",
            "nameserver": "y:2", "credentialsProvider": "a.b:c",
        }  # fmt: skip
        needs = {
            "startingOffsetsByTimestampStrategy": {"startingTimestamp": "1"},
            "startingOffsets.default": {"startingOffsets": '{"T/b/0": 1}'}, "maxTriggerDelay": {"minOffsetsPerTrigger": "5"},
            "commitOffsets": {"consumerGroup": "g"}, "tlsVerify": {"tls": "true"}, "tlsServerName": {"tls": "true"},
            "tlsKeyFile": {"tlsCertFile": "c"}, "accessKey": {"secretKey": "s"}, "secretKey": {"accessKey": "a"},
            "securityToken": {"accessKey": "a", "secretKey": "s"},
        }  # fmt: skip
        for option in OPTIONS:
            value = values.get(option.name)
            if value is None:
                switch = option.default in ("true", "false")
                value = "true" if switch else "5"
            for use in ("batch read", "streaming read", "batch write", "streaming write"):
                needed = needs.get(option.name, {}) if use in option.uses else {}
                given = {"nameserver": "x:1", "topic": "T", **needed, option.name.lower(): value}
                if option.name in ("subscribe", "subscribePattern", "assign") and use in option.uses:
                    del given["topic"]
                call = read_options if use.endswith("read") else write_options
                if use in option.uses:
                    call(given, streaming=use.startswith("streaming"))
                else:
                    with pytest.raises(ConfigError, match=rf"option [.\w]+ does not apply to a {use}, only"):
                        call(given, streaming=use.startswith("streaming"))

    def test_aliases_and_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NAMESRV_ADDR", "c:3;d:4")
        assert reading().access.name_servers == ("127.0.0.1:9876",)
        assert read_options({"topic": "T"}, streaming=False).access.name_servers == ("c:3", "d:4")
        for name in ("nameServer", "namesrv", "namesrvAddr", "NAMESRVADDR"):
            assert read_options({"topic": "T", name: "a:1, b:2"}, streaming=False).access.name_servers == ("a:1", "b:2")

    def test_what_spark_itself_reads_passes_in_streams(self) -> None:
        assert reading(streaming=True, checkpointLocation="/x", queryName="q").topics == ("T",)


class TestValues:
    def test_defaults(self) -> None:
        batch, stream = reading(), reading(streaming=True)
        assert (batch.start, batch.end, stream.start, stream.end) == ("earliest", "latest", "latest", None)
        for options in (batch, stream):
            assert (options.tags, options.fail_on_data_loss, options.no_match_error, options.commit) == ("*", True, True, False)
            assert (options.pull_size, options.pull_timeout, options.group) == (256, 120.0, "spark-rocketmq-source")
            assert options.fetch_retries * options.fetch_interval >= 30, "a broker that is started again is waited for"
            assert not options.pushdown
        assert all(dataclasses.asdict(batch)[name] is None for name in ("min_partitions", "max_records", "max_partitions"))

    def test_times(self) -> None:
        for text, seconds in (("500ms", 0.5), ("90s", 90), ("15m", 900), ("1 h", 3600), ("2d", 172800)):
            assert reading(True, minOffsetsPerTrigger="1", maxTriggerDelay=text).max_delay == seconds
        for text in ("15", "m", "-1s", "1w", "1.5s"):
            with pytest.raises(
                ConfigError, match="option maxTriggerDelay must be a number of at most 9 digits and ms, s, m, h or d"
            ):
                reading(True, minOffsetsPerTrigger="1", maxTriggerDelay=text)

    def test_topics(self) -> None:
        del_topic = {"nameserver": "x:1"}
        several = read_options({**del_topic, "subscribe": "a, %DLQ%g,a,%RETRY%g"}, streaming=True)
        assert several.topics == ("a", "%DLQ%g", "%RETRY%g")
        assign = read_options({**del_topic, "assign": '{"t": {"b": [1, 0]}}'}, streaming=True)
        assert (assign.topics, assign.assign) == (("t",), {"t": {"b": (1, 0)}})
        assert read_options({**del_topic, "subscribePattern": "a.*"}, streaming=True).pattern == "a.*"

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"minPartitions": "2", "maxPartitions": "3"}, "options minPartitions and maxPartitions contradict each other"),
            ({"maxRecordsPerPartition": "2", "maxPartitions": "3"}, "options maxRecordsPerPartition and maxPartitions contradict"),
            ({"startingTimestamp": "5", "endingTimestamp": "4"}, "startingTimestamp 5 is after endingTimestamp 4"),
            ({"startingTimestamp": "253402300800000"}, "option startingTimestamp must be a whole number from 0 to 253402300799999"),
            ({"startingOffsetsByTimestampStrategy": "latest"}, "option startingOffsetsByTimestampStrategy needs startingTimestamp"),
            ({"endingOffsets": '{"T": -2}'}, r"option endingOffsets: -2 \(earliest\) cannot be an end"),
            ({"endingOffsets": '{"T/b/0": -2}'}, r"option endingOffsets: -2 \(earliest\) cannot be an end"),
            ({"pullBatchSize": "1025"}, "option pullBatchSize must be a whole number from 1 to 1024, not '1025'"),
            ({"tags": "||"}, "option tags: "),
            ({"consumerGroup": "a b"}, "option consumerGroup: group 'a b' holds a character that is not allowed"),
            ({"topic": "a,b"}, "option topic: topic 'a,b' holds a character that is not allowed"),
        ],
    )  # fmt: skip
    def test_contradictions(self, given: dict[str, str], expected: str) -> None:
        with pytest.raises(ConfigError, match=expected):
            reading(**given)

    def test_commits_need_a_group_and_delays_a_number(self) -> None:
        with pytest.raises(ConfigError, match="option commitOffsets needs consumerGroup"):
            reading(True, commitOffsets="true")
        with pytest.raises(ConfigError, match="option maxTriggerDelay needs minOffsetsPerTrigger; give both, or leave it out"):
            reading(True, maxTriggerDelay="1s")
        assert reading(True, commitOffsets="true", consumerGroup="g").commit


SOURCE_SCHEMA = StructType().add("offset", "long").add("body", "binary")


class TestSource:
    def test_a_schema_of_the_user_narrows(self) -> None:
        reader: Any = RocketMQDataSource(dict(GIVEN)).reader(SOURCE_SCHEMA)
        assert reader._options.columns == ("offset", "body")  # noqa: SLF001
        both: Any = RocketMQDataSource({**GIVEN, "columns": "offset,body"}).streamReader(SOURCE_SCHEMA)
        assert both._options.columns == ("offset", "body")  # noqa: SLF001

    @pytest.mark.parametrize(
        ("schema", "columns", "expected"),
        [
            (StructType().add("text", "binary"), None, "schema: there is no column text, only topic, brokerName"),
            (StructType().add("value", "binary"), None, "schema: there is no column value; it is called body"),
            (StructType().add("Body", "binary"), None, "schema: there is no column Body; body is meant"),
            (StructType().add("body", "string"), None, "schema: column body must be binary, not string"),
            (StructType().add("storeTimestamp", "timestamp_ntz"), None, "schema: column storeTimestamp must be timestamp, not"),
            (StructType().add("body", "binary").add("body", "binary"), None, "schema: column body occurs more than once"),
            (StructType(), None, "schema: it has no column"),
            (SOURCE_SCHEMA, "body", "option columns is body, the schema has offset, body; give one of them"),
        ],
    )
    def test_a_schema_that_is_not_ours(self, schema: StructType, columns: str | None, expected: str) -> None:
        given = GIVEN if columns is None else {**GIVEN, "columns": columns}
        with pytest.raises(ConfigError, match=expected):
            RocketMQDataSource(dict(given)).reader(schema)
        with pytest.raises(ConfigError, match=expected):
            RocketMQDataSource(dict(given)).streamReader(schema).initialOffset()

    def test_making_readers_opens_nothing_and_they_travel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise AssertionError("a socket")

        monkeypatch.setattr(socket, "socket", refuse)
        monkeypatch.setattr(worker, "Worker", refuse)
        made = RocketMQDataSource({**GIVEN, "accessKey": "somebody", "secretKey": "hush-hush"})
        for reader in (made.reader(SOURCE_SCHEMA), made.streamReader(SOURCE_SCHEMA)):
            again: Any = pickle.loads(pickle.dumps(reader))
            assert again._options == reader._options  # type: ignore[attr-defined]  # noqa: SLF001
        assert "hush-hush" not in repr(made) + repr(again._options) + repr(vars(again))  # noqa: SLF001

    def test_filters_are_taken_where_they_were_asked_for(self) -> None:
        """Spark refuses a reader that takes them unless its session allows it."""
        plain, pushing = (
            RocketMQDataSource({**GIVEN, "filterPushdown": value}).reader(SOURCE_SCHEMA) for value in ("false", "true")
        )
        assert isinstance(pushing, PushingReader)
        assert type(plain) is BatchReader
        assert BatchReader.pushFilters is DataSourceReader.pushFilters
        assert isinstance(RocketMQDataSource(dict(GIVEN)).streamReader(SOURCE_SCHEMA), StreamReader)

    def test_an_old_spark_is_reported_only_where_this_source_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for version in ("4.2.0", "4.3.0.dev1", "5.0.0"):
            monkeypatch.setattr(source.pyspark, "__version__", version)
            RocketMQDataSource(dict(GIVEN))
        for version in ("4.0.4", "4.1.4"):
            monkeypatch.setattr(source.pyspark, "__version__", version)
            with pytest.raises(ConfigError, match=rf"format rocketmq needs pyspark 4\.2 or later, this is {version}"):
                RocketMQDataSource(dict(GIVEN))

    def test_being_found_imports_nothing_that_may_be_missing(self) -> None:
        """Spark imports it wherever any Python data source is used; failing there would break all of them."""
        code = (
            "import sys, pyspark_rocketmq\n"
            "late = {'pyarrow', 'rmq_async.spark.reading', 'rmq_async.spark.writing'}\n"
            "print(pyspark_rocketmq.DefaultSource.name(), sorted(late & sys.modules.keys()))"
        )
        root = Path(source.__file__).parents[2]
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root)
        assert (done.stdout, done.stderr) == ("rocketmq []\n", "")


QUEUE = MessageQueue("t", "broker-a", 1)


def instant(milliseconds: int) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class TestPushed:
    def test_tags(self) -> None:
        equal, several = EqualTo(("tags",), "a"), In(("tags",), ("a", "b"))
        assert push_down([equal]).tags_with("*") == "a"
        assert push_down([several]).tags_with("*") == "a || b"
        assert push_down([several]).tags_with("b || c") == "b"
        assert push_down([several, equal]).tags_with("*") == "a"
        assert push_down([several]).tags_with("c") is None
        assert push_down([]).tags_with("c") == "c"
        for value in ("a || b", " a", "", "*", 5):
            assert push_down([EqualTo(("tags",), value)]) == PushedFilters(), value

    def test_queues_and_offsets(self) -> None:
        filters: list[Filter] = [
            EqualTo(("topic",), "t"),
            In(("queueId",), (1, 2)),
            GreaterThan(("offset",), 10),
            GreaterThanOrEqual(("offset",), 12),
            LessThanOrEqual(("offset",), 20),
        ]
        found = push_down(filters)
        assert found.wants(QUEUE)
        assert not found.wants(QUEUE._replace(queue_id=3))
        assert not found.wants(QUEUE._replace(topic="u"))
        assert not push_down([EqualTo(("queueId",), 1), EqualTo(("queueId",), 2)]).wants(QUEUE)
        assert found.within(0, 100) == (12, 21)
        assert found.within(15, 18) == (15, 18)

    def test_times_are_taken_wider(self) -> None:
        found = push_down(
            [GreaterThan(("storeTimestamp",), instant(1_000_000)), LessThanOrEqual(("storeTimestamp",), instant(2_000_000))]
        )
        assert found.stored == (1_000_000 - SLACK_MS, 2_000_000 + SLACK_MS)
        assert push_down([EqualTo(("storeTimestamp",), instant(5))]).stored == (0, 5 + SLACK_MS)

    def test_others_say_nothing(self) -> None:
        others: list[Filter] = [
            Not(EqualTo(("tags",), "a")),
            EqualTo(("tags", "x"), "a"),
            EqualTo(("body",), b"a"),
            EqualTo(("offset",), True),
            EqualTo(("storeTimestamp",), instant(5).replace(tzinfo=None)),
            GreaterThan(("bornTimestamp",), instant(5)),
        ]
        assert push_down(others) == PushedFilters()
