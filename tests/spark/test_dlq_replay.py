"""rmq spark dlq-replay: dead letters of the real broker go home, once, with all that is theirs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from rmq_async import Admin, Message, MessageExt, Producer
from rmq_async.errors import ConfigError, TopicNotFoundError
from rmq_protocol.constants import RequestCode

from ..support.fakes import RawClient
from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

from rmq_async.spark.pipelines import dlq_replay as pipeline


def bury(topics: Topics, group: str, messages: list[MessageExt]) -> None:
    """What a consumer's client asks for when it gives a message up."""

    async def send_back() -> None:
        for message in messages:
            async with RawClient(message.store_host) as broker:
                fields = {
                    "offset": str(message.commit_log_offset), "group": group, "delayLevel": "0", "maxReconsumeTimes": "0",
                    "originMsgId": message.msg_id, "originTopic": message.topic, "unitMode": "false",
                }  # fmt: skip
                reply = await broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
                assert reply.code == 0, reply.remark

    topics.loop.run(send_back())


@pytest.mark.parametrize(
    ("group", "more", "expected"),
    [
        ("a b", {}, "holds a character"),
        ("g", {"topic": "a b"}, "holds a character"),
        ("g", {"max_replays": 0}, "max_replays must be 1 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(group: str, more: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        pipeline.replay_dead_letters(None, group, {}, **more)  # type: ignore[arg-type]


def test_options_name_no_topic() -> None:
    with pytest.raises(ConfigError, match="option Topic does not apply to this pipeline"):
        pipeline.replay_dead_letters(None, "g", {"nameserver": "h:1", "Topic": "t"})  # type: ignore[arg-type]


def test_a_group_without_dead_letters_is_reported(embedded_topics: Topics) -> None:
    with pytest.raises(TopicNotFoundError, match="group missing has no dead letters: there is no topic %DLQ%missing"):
        pipeline.replay_dead_letters(None, "missing", {"nameserver": embedded_topics.namesrv})  # type: ignore[arg-type]


@pytest.mark.deep
def test_dead_letters_go_home_once(spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    group = f"spark-dead-{os.getpid()}"
    orders, refunds, lost = topics.make(2), topics.make(2), topics.make(1)
    dead = f"%DLQ%{group}"

    async def send() -> None:
        async with Producer("dies", namesrv=topics.namesrv) as producer:
            for number in range(6):
                await producer.send(
                    Message(
                        orders, b"order %d" % number, tags="a" if number % 2 else "b", keys=[f"k{number}", "all"],
                        properties={"RMQ_SPARK_ID": "of the first life", "who": "é"}, sharding_key="s", flag=7,
                    )
                )  # fmt: skip
            for number in range(3):
                await producer.send(Message(refunds, b"refund %d" % number))
            await producer.send(Message(lost, b"lost"))

    topics.loop.run(send())
    first = [message for topic in (orders, refunds, lost) for message in topics.read(topic)]
    bury(topics, group, first)

    async def more() -> None:
        async with Producer("dies", namesrv=topics.namesrv) as producer:
            await producer.send(Message(dead, b"from nowhere"))
            await producer.send(Message(refunds, b"refund 3"))

        async with Admin(namesrv=topics.namesrv) as admin:
            await admin.delete_topic(lost)

    topics.loop.run(more())
    new = next(message for message in topics.read(refunds) if message.body == b"refund 3")

    options = {"nameserver": topics.namesrv}
    some = pipeline.replay_dead_letters(spark, group, options, send=True, tags="a", key="all", where="keys != 'k1 all'")
    assert (some.found, some.replayed, some.topics) == (2, 2, {orders: 2})
    rest = pipeline.replay_dead_letters(spark, group, options, send=True)
    assert (rest.found, rest.before, rest.replayed, rest.no_target, rest.to_send) == (11, 2, 7, 2, 0)
    assert rest.topics == {orders: 4, refunds: 3}
    again = {
        message.body: message for topic in (orders, refunds) for message in topics.read(topic) if message not in (*first, new)
    }
    assert len(topics.read(orders)) == 12
    assert len(again) == 9
    for message in first[:-1]:
        copy = again[message.body]
        assert (copy.topic, copy.tags, copy.keys, copy.flag) == (message.topic, message.tags, message.keys, message.flag)
        assert copy.msg_id != message.msg_id
        assert copy.reconsume_times == 0
        kept = {"who", "__SHARDINGKEY"} & message.properties.keys()
        assert {name: copy.properties[name] for name in kept} == {name: message.properties[name] for name in kept}
        assert copy.properties["RMQ_DLQ_REPLAYS"] == "1"
        assert copy.properties["RMQ_DLQ_ORIGIN_ID"] == message.msg_id
        assert copy.properties["RMQ_SPARK_ID"].startswith(f"dlq/{dead}/")
        assert not copy.properties.keys() & {"RETRY_TOPIC", "DELAY", "REAL_TOPIC", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"}
    assert len({copy.properties["__SHARDINGKEY"] + str(copy.queue) for copy in again.values() if copy.topic == orders}) == 1

    # One dies again, and one for the first time: what would be sent is reported, and not sent.
    bury(topics, group, [again[b"order 1"], new])
    assert pipeline.main([group, "--namesrv", topics.namesrv, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_topic = {line["topic"]: line for line in lines[:-1]}
    assert {name: (line["found"], line["to_send"], line["no_target"]) for name, line in by_topic.items()} == {
        orders: (7, 0, 0), refunds: (4, 1, 0), lost: (1, 0, 1), "(none)": (1, 0, 1),
    }  # fmt: skip
    oldest = next(message for message in first if message.body == b"order 0")
    assert by_topic[orders]["examples"].startswith(f"{oldest.msg_id} (k0 all); ")
    assert lines[-1] == {
        "event": "summary", "dry_run": True, "found": 13, "replayed": 0, "to_send": 1, "before": 9, "guarded": 1, "no_target": 2,
        "topics": {refunds: 1}, "missing_topics": lines[-1]["missing_topics"], "failed": False,
    }  # fmt: skip
    assert lost in str(lines[-1]["missing_topics"])

    last = pipeline.replay_dead_letters(spark, group, options, send=True, max_replays=2, key="k1", rate=1000)
    assert (last.found, last.before, last.replayed) == (2, 1, 1)
    twice = [message for message in topics.read(orders) if message.properties.get("RMQ_DLQ_REPLAYS") == "2"]
    origin = next(message for message in first if message.body == b"order 1")
    assert [(message.body, message.properties["RMQ_DLQ_ORIGIN_ID"]) for message in twice] == [(b"order 1", origin.msg_id)]
    assert [len(topics.read(topic)) for topic in (orders, refunds)] == [13, 7]


def test_where_a_dead_letter_goes(spark: SparkSession) -> None:
    """By its properties; the columns of the source without a broker."""
    given = [
        {"DLQ_ORIGIN_TOPIC": "a", "RETRY_TOPIC": "b", "RMQ_DLQ_REPLAYS": "3", "DLQ_ORIGIN_MESSAGE_ID": "first"},
        {"DLQ_ORIGIN_TOPIC": "", "RETRY_TOPIC": "ns%b", "RMQ_DLQ_REPLAYS": "many", "RMQ_DLQ_ORIGIN_ID": "older"},
        {"RETRY_TOPIC": "%RETRY%g"},
        {"RETRY_TOPIC": "%DLQ%g"},
        {"who": "me"},
    ]
    schema = "topic string, brokerName string, queueId int, offset bigint, msgId string, properties map<string,string>"
    rows = [("%DLQ%g", "broker-a", 0, number, f"id{number}", properties) for number, properties in enumerate(given)]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    found = pipeline._understood(frame, None, "ns").unionByName(pipeline._understood(frame, "t", None)).collect()  # noqa: SLF001
    assert [row.target for row in found] == ["a", "b", None, None, None, "a", "ns%b", "t", "t", "t"]
    assert [row.replays for row in found[:5]] == [3, 0, 0, 0, 0]
    assert [row.origin for row in found[:5]] == ["first", "older", "id2", "id3", "id4"]
    assert found[4].id == "dlq/%DLQ%g/broker-a/0/4/id4"
