"""Messages of lite topics in the store: their queues, their offsets there, and what becomes of them when the log loses records."""

from __future__ import annotations

import pytest

from rmq_async.embedded import Broker, BrokerDisk, DiskLog, EmbeddedRocketMQ, SystemClock
from rmq_async.embedded.store import RECORD_OVERHEAD
from rmq_protocol.bodies import ConsumeStats, decode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.lite import lmq_name
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient
from .inside import broker_of, log_of
from .lite_client import LiteClient, bodies

pytestmark = pytest.mark.virtual_time


def messages(response: RemotingCommand) -> list[MessageExt]:
    assert response.code == 0, response
    return decode_messages(response.body).messages


async def test_a_message_is_in_its_parent_queue_and_in_its_lite_topic(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare(queues=2)
    await lite.stored("a", "1")
    await lite.stored("b", "2", queue=1)
    await lite.stored("a", "3", queue=1)
    found = messages(await lite.pull("T", 0, 0, liteTopic="a"))
    assert [(each.body, each.queue.queue_id, each.queue_offset) for each in found] == [(b"1", 0, 0), (b"3", 1, 1)]
    assert [each.properties["INNER_MULTI_DISPATCH"] for each in found] == ["%LMQ%$T$a"] * 2
    assert [each.properties["INNER_MULTI_QUEUE_OFFSET"] for each in found] == ["0", "1"]
    assert [each.lite_topic for each in found] == ["a", "a"]
    assert [each.body for each in server.messages("T")] == [b"1", b"2", b"3"]
    assert [each.body for each in messages(await lite.pull("T", 1, 0))] == [b"2", b"3"]


async def test_a_type_other_than_lite_is_not_refused(lite: LiteClient) -> None:
    await lite.create_topic("T", 1)
    await lite.stored("a", "1")
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, lmq_name("T", "a")) == 1


async def test_offsets_of_a_lite_topic_are_those_of_its_queue(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.stored("a", "1", "2")
    name = lmq_name("T", "a")
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, name) == 2
    assert await lite.offset(RequestCode.GET_MIN_OFFSET, name) == 0
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, name, 1) == 0
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    late = str(4_000_000_000_000)
    assert [await lite.offset(search, "T", timestamp=time, liteTopic="a") for time in ("0", late)] == [0, 2]
    assert await lite.offset(search, "T", 1, timestamp=late, liteTopic="a") == 0
    assert await lite.offset(search, "T", timestamp=late, liteTopic="none") == 0


async def test_a_pull_of_a_lite_topic_waits_for_its_messages(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    empty = await lite.pull("T", 0, 0, liteTopic="a")
    assert empty.code == 19
    await lite.stored("a", "1")
    opaque = lite.write(11, {**_pull(offset="1"), "sysFlag": "6", "suspendTimeoutMillis": "20000"})
    async with LiteClient(server.brokers["broker-a"]) as other:
        await other.stored("b", "2")
        await other.stored("a", "3")
    response = await lite.read()
    assert response.opaque == opaque
    assert [each.body for each in messages(response)] == [b"3"]


def _pull(offset: str) -> dict[str, str]:
    return {
        "consumerGroup": "CG", "topic": "T", "queueId": "0", "queueOffset": offset, "maxMsgNums": "32", "commitOffset": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG", "liteTopic": "a",
    }  # fmt: skip


async def test_a_batch_is_only_in_the_parent_queue(lite: LiteClient) -> None:
    await lite.prepare()
    assert (await lite.send("T", _batch_body(), code=320, m="true")).code == 0
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, "T") == 1
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, lmq_name("T", "a")) == 0


def _batch_body() -> bytes:
    properties = b"__LITE_TOPIC\x01a\x02"
    size = 4 + 4 + 4 + 4 + 4 + 1 + 2 + len(properties)
    return b"".join(
        (
            size.to_bytes(4, "big"), bytes(12), (1).to_bytes(4, "big"), b"x", len(properties).to_bytes(2, "big"), properties,
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", ["a$b", "a,b", "a/b", "x" * 65, " "])
async def test_names_that_would_hang_the_dispatch_are_refused(lite: LiteClient, name: str) -> None:
    await lite.prepare()
    assert (await lite.store(name, "1")).code == 13
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, "T") == 0


async def test_queues_that_a_sender_names_itself_get_the_message(lite: LiteClient) -> None:
    await lite.create_topic("T", 1)
    properties = {"UNIQ_KEY": "1", "INNER_MULTI_DISPATCH": "%LMQ%x,other,%LMQ%y"}
    assert (await lite.send("T", b"1", properties=properties)).code == 0
    (message,) = messages(await lite.pull("T"))
    assert message.properties["INNER_MULTI_QUEUE_OFFSET"] == "0,,0"
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, "%LMQ%y") == 1
    for dispatch in ("%LMQ%a/b", "%LMQ%" + "x" * 255, ",".join(["%LMQ%x"] * 33)):
        properties = {"UNIQ_KEY": "2", "INNER_MULTI_DISPATCH": dispatch}
        assert (await lite.send("T", b"2", properties=properties)).code == 13


async def test_new_lite_topics_above_the_limit_are_refused_with_2017() -> None:
    async with EmbeddedRocketMQ(max_lite_topics=2) as server, LiteClient(server.brokers["broker-a"]) as lite:
        await lite.prepare()
        await lite.stored("a", "1")
        await lite.stored("b", "1")
        refused = await lite.store("c", "1")
        assert (refused.code, refused.remark) == (
            2017,
            "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded.",
        )
        await lite.stored("a", "2")
        assert len(server.messages("T")) == 3


async def test_without_lite_topics_a_message_is_only_in_its_parent_queue() -> None:
    async with EmbeddedRocketMQ(lite_topics=False) as server, LiteClient(server.brokers["broker-a"]) as lite:
        await lite.prepare()
        await lite.stored("a", "1")
        (message,) = server.messages("T")
        assert message.properties["INNER_MULTI_DISPATCH"] == "%LMQ%$T$a"
        assert "INNER_MULTI_QUEUE_OFFSET" not in message.properties
        assert await lite.offset(RequestCode.GET_MAX_OFFSET, lmq_name("T", "a")) == 0
        config = (await lite.ask(RequestCode.GET_BROKER_CONFIG)).body.decode().split("\n")
        assert {"enableLmq=false", "enableMultiDispatch=false"} <= set(config)
        await lite.subscribe("a")
        assert await lite.popped() == []


async def test_a_broker_with_lite_topics_says_so(broker: RawClient) -> None:
    config = (await broker.ask(RequestCode.GET_BROKER_CONFIG)).body.decode().split("\n")
    assert {"enableLmq=true", "enableMultiDispatch=true"} <= set(config)


async def test_an_old_broker_knows_no_lite_topics() -> None:
    async with EmbeddedRocketMQ(version="4.9.7") as server, LiteClient(server.brokers["broker-a"]) as lite:
        await lite.create_topic("T", 1)
        await lite.stored("a", "1")
        (message,) = server.messages("T")
        assert "INNER_MULTI_DISPATCH" not in message.properties
        codes = (200070, 200071, 200074, 200075, 200076, 200077, 200078, 200079)
        assert {(await lite.ask(code, {})).code for code in codes} == {3}


async def test_a_deleted_topic_takes_its_lite_topics_along(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    await lite.stored("a", "1", "2")
    await lite.subscribe("a")
    await lite.acked(*await lite.popped())
    assert server.progress("G")[MessageQueue("%LMQ%$T$a", "broker-a", 0)] == 2
    assert (await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, lmq_name("T", "a")) == 0
    assert server.progress("G") == {}
    await lite.prepare()
    assert await lite.subscribers("a") == set()
    await lite.stored("a", "3")
    await lite.subscribe("a")
    assert bodies(await lite.popped()) == [b"3"]


async def test_the_memory_of_lite_topics_is_counted_and_given_back(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.create_topic("T", 1)
    await lite.stored("a", "1", "2")
    log, records = log_of(server), [record for record, _ in log_of(server).records()]
    assert log.memory == sum(map(len, records)) + 4 * RECORD_OVERHEAD
    server.clear()
    assert log.memory == 0
    queue = broker_of(server).state.topics.light.find("%LMQ%$T$a")
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (2, 2)


async def test_expired_messages_leave_their_lite_topics(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare(queues=2)
    await lite.stored("a", "1", queue=1)
    await lite.stored("a", "2", "3", queue=0)
    await lite.stored("b", "4", queue=0)
    server.expire(MessageQueue("T", "broker-a", 0), 1, corrected=True)
    name = lmq_name("T", "a")
    assert await lite.offset(RequestCode.GET_MIN_OFFSET, name) == 2
    await lite.subscribe("a", "b")
    assert bodies(await lite.popped()) == [b"3", b"4"]
    server.clear()
    assert log_of(server).memory == 0
    assert await lite.offset(RequestCode.GET_MIN_OFFSET, name) == 3


async def test_truncated_messages_leave_their_lite_topics(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    await lite.stored("a", "1", "2", "3")
    await lite.subscribe("a")
    await lite.acked(*await lite.popped())
    assert server.truncate("broker-a", 2) == 2
    assert await lite.offset(RequestCode.GET_MAX_OFFSET, lmq_name("T", "a")) == 1
    await lite.stored("a", "4")
    assert await lite.popped() == []  # the group's offset was beyond the end, and is now the end
    await lite.stored("a", "5")
    assert bodies(await lite.popped()) == [b"5"]


async def test_lite_topics_survive_a_crash_and_subscriptions_do_not() -> None:
    disk = BrokerDisk("broker-a", DiskLog(1 << 26, SystemClock().now_ms, flush_interval=0))
    broker = Broker(disk)
    await broker.start("127.0.0.1", 0)
    async with LiteClient(broker.listener.address()) as lite:
        await lite.prepare()
        await lite.stored("a", "1", "2")
        await lite.subscribe("a")
        assert bodies(await lite.popped(maxMsgNum=1, invisibleTime=60_000)) == [b"1"]
    broker.crash()
    broker = Broker(disk)
    await broker.start("127.0.0.1", 0)
    async with LiteClient(broker.listener.address()) as lite:
        assert await lite.subscribers("a") == set()
        assert await lite.popped() == []
        await lite.subscribe("a")
        assert bodies(await lite.popped()) == [b"1", b"2"]  # nothing is blocked
    await broker.stop()


async def test_a_loss_of_power_takes_what_was_not_flushed_from_lite_topics() -> None:
    disk = BrokerDisk("broker-a", DiskLog(1 << 26, SystemClock().now_ms, flush_interval=100))
    broker = Broker(disk)
    await broker.start("127.0.0.1", 0)
    async with LiteClient(broker.listener.address()) as lite:
        await lite.prepare()
        await lite.stored("a", "1")
        disk.log.flush()
        await lite.stored("a", "2")
    broker.crash()
    assert disk.power_loss() == 1
    assert disk.topics.light.max_offset("%LMQ%$T$a") == 1


async def test_a_light_queue_is_a_topic_with_one_queue(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.stored("a", "1", "2")
    name = lmq_name("T", "a")
    assert [each.body for each in messages(await lite.pull(name, 0, 1))] == [b"2"]
    assert (await lite.pull(name, 1, 0)).code == 29
    assert (await lite.pull(lmq_name("T", "none"), 0, 0)).code == 19
    await lite.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "CG", "topic": name, "queueId": "0", "commitOffset": "1"}
    )
    shown = decode_body(ConsumeStats, (await lite.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG"})).body)
    row = shown.offset_table[MessageQueue(name, "broker-a", 0)]
    assert (row.broker_offset, row.consumer_offset) == (2, 1)


async def test_without_lite_topics_a_light_queue_is_no_topic() -> None:
    async with EmbeddedRocketMQ(lite_topics=False) as server, LiteClient(server.brokers["broker-a"]) as lite:
        assert (await lite.pull(lmq_name("T", "a"), 0, 0)).code == 17
