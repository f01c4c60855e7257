"""rmq spark dlq-replay: dead letters of the real broker go home, once, with all that is theirs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from rmq_async import Admin, Message, MessageExt, Producer
from rmq_async.errors import ConfigError, TopicNotFoundError
from rmq_protocol.constants import RequestCode

from ..embedded.raw import RawClient
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
    ("group", "more", "told"),
    [
        ("a b", {}, "holds a character"),
        ("g", {"topic": "a b"}, "holds a character"),
        ("g", {"max_replays": 0}, "max_replays must be 1 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(group: str, more: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        pipeline.replay_dead_letters(None, group, {}, **more)  # type: ignore[arg-type]


def test_a_group_without_dead_letters_is_told(embedded_topics: Topics) -> None:
    with pytest.raises(TopicNotFoundError, match="group nobody has no dead letters: there is no topic %DLQ%nobody"):
        pipeline.replay_dead_letters(None, "nobody", {"nameserver": embedded_topics.namesrv})  # type: ignore[arg-type]


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

        async with Admin(namesrv=topics.namesrv) as admin:
            await admin.delete_topic(lost)

    topics.loop.run(more())

    command = [group, "--namesrv", topics.namesrv, "--json"]
    assert pipeline.main(command) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_topic = {line["topic"]: line for line in lines[:-1]}
    assert {name: (line["found"], line["to_send"], line["no_target"]) for name, line in by_topic.items()} == {
        orders: (6, 6, 0), refunds: (3, 3, 0), lost: (1, 0, 1), "(none)": (1, 0, 1),
    }  # fmt: skip
    assert any(f"{message.msg_id} ({' '.join(message.keys)})" in by_topic[orders]["examples"] for message in first)
    assert lines[-1] == {
        "event": "summary", "dry_run": True, "found": 11, "replayed": 0, "to_send": 9, "before": 0, "guarded": 0, "no_target": 2,
        "topics": {orders: 6, refunds: 3}, "missing_topics": lines[-1]["missing_topics"], "failed": False,
    }  # fmt: skip
    assert lost in str(lines[-1]["missing_topics"])
    assert len(topics.read(orders)) == 6

    options = {"nameserver": topics.namesrv}
    some = pipeline.replay_dead_letters(spark, group, options, send=True, tags="a", key="all", where="keys != 'k1 all'")
    assert (some.found, some.replayed, some.topics) == (2, 2, {orders: 2})
    rest = pipeline.replay_dead_letters(spark, group, options, send=True)
    assert (rest.found, rest.before, rest.replayed, rest.no_target, rest.to_send) == (11, 2, 7, 2, 0)
    assert rest.topics == {orders: 4, refunds: 3}
    again = {message.body: message for topic in (orders, refunds) for message in topics.read(topic) if message not in first}
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

    bury(topics, group, [again[b"order 1"]])
    guarded = pipeline.replay_dead_letters(spark, group, options, send=True)
    assert (guarded.found, guarded.before, guarded.guarded, guarded.replayed) == (12, 9, 1, 0)
    last = pipeline.replay_dead_letters(spark, group, options, send=True, max_replays=2, key="k1")
    assert (last.found, last.before, last.replayed) == (2, 1, 1)
    twice = [message for message in topics.read(orders) if message.properties.get("RMQ_DLQ_REPLAYS") == "2"]
    origin = next(message for message in first if message.body == b"order 1")
    assert [(message.body, message.properties["RMQ_DLQ_ORIGIN_ID"]) for message in twice] == [(b"order 1", origin.msg_id)]
