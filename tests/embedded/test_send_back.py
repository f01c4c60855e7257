"""Messages a group could not handle: sent back by request (36) or by a send to the retry topic, retried later, buried at last."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.embedded.schedule import SCHEDULE_TOPIC
from rmq_protocol.bodies import LockBatchRequestBody, SubscriptionGroupConfig, TopicList, decode_body, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.properties import properties_text

from ..support.fakes import UNIQUE_ID, RawClient
from .inside import START, broker_of, log_of

BACK = RequestCode.CONSUMER_SEND_MSG_BACK
RETRY, DEAD = "%RETRY%CG", "%DLQ%CG"
SENT = {"UNIQ_KEY": UNIQUE_ID, "WAIT": "true", "TAGS": "A"}
ADDED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
async def server(nothing_left: None, clock: ManualClock) -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(clock=clock, brokers=2) as server:
        yield server


async def send_back(broker: RawClient, offset: int, level: int = 0, **over: str) -> RemotingCommand:
    fields = {"offset": str(offset), "group": "CG", "delayLevel": str(level), "originMsgId": UNIQUE_ID, "originTopic": "T"}
    return await broker.ask(BACK, {**fields, **over})


async def stored(server: EmbeddedRocketMQ, broker: RawClient, body: bytes = b"hello", **over: str) -> MessageExt:
    """A message of topic T, fresh from the log."""
    assert (await broker.send("T", body, **over)).code == 0
    return server.messages("T")[-1]


async def group(broker: RawClient, **settings: int) -> None:
    body = encode_body(SubscriptionGroupConfig("CG", **settings))  # type: ignore[arg-type]
    assert (await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)).code == 0


async def test_a_message_sent_back_comes_again_in_the_retry_topic(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    await broker.send("T", b"first")
    origin = await stored(server, broker, queue=2)
    reply = await send_back(broker, origin.commit_log_offset)
    assert (reply.code, reply.remark, reply.ext_fields) == (0, None, None)
    await clock.advance(9.9)
    assert server.messages(RETRY) == []
    await clock.advance(0.1)
    (again,) = server.messages(RETRY)
    assert again.properties == {
        **SENT,
        **ADDED,
        "WAIT": "false",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": origin.offset_msg_id,
        "DELAY": "3",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
    }
    assert (again.body, again.flag, again.reconsume_times) == (origin.body, origin.flag, 1)
    assert (again.born_time_ms, again.born_host) == (origin.born_time_ms, origin.born_host)
    assert again.store_time_ms == origin.store_time_ms + 10_000
    assert len(server.messages("T")) == 2


async def test_each_retry_waits_a_level_longer_and_the_last_is_a_dead_letter(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    await group(broker, retry_max_times=4)
    origin = message = await stored(server, broker)
    for times, delay in enumerate([10, 30, 60, 120], 1):
        assert (await send_back(broker, message.commit_log_offset)).code == 0
        await clock.advance(delay - 0.1)
        assert len(server.messages(RETRY)) == times - 1
        await clock.advance(0.1)
        message = server.messages(RETRY)[-1]
        assert message.reconsume_times == times
    assert (await send_back(broker, message.commit_log_offset)).code == 0
    (dead,) = server.messages(DEAD)
    assert (dead.reconsume_times, dead.queue) == (5, MessageQueue(DEAD, "broker-a", 0))
    assert (dead.properties["ORIGIN_MESSAGE_ID"], dead.properties["RETRY_TOPIC"]) == (origin.offset_msg_id, "T")
    assert dead.properties["DELAY"] == "0"
    await clock.advance(7200)
    assert (len(server.messages(RETRY)), len(server.messages(DEAD))) == (4, 1)


@pytest.mark.parametrize(("level", "delay"), [(1, 1), (5, 60), (18, 7200), (99, 7200), (2**31 - 1, 7200)])
async def test_the_consumer_may_choose_the_delay(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock, level: int, delay: int
) -> None:
    message = await stored(server, broker)
    assert (await send_back(broker, message.commit_log_offset, level)).code == 0
    await clock.advance(delay - 0.1)
    assert server.messages(RETRY) == []
    await clock.advance(0.1)
    assert len(server.messages(RETRY)) == 1


@pytest.mark.parametrize(
    ("times", "level", "limit", "buried"),
    [
        ("0", -1, None, True),
        ("0", -(2**31), "100", True),
        ("16", 1, None, True),
        ("15", 1, None, False),
        ("15", 1, "15", True),
        ("16", 1, "17", False),
        ("0", 1, "0", True),
        ("0", 1, "-1", True),
        ("-5", 0, None, False),
        ("2147483646", 0, "2147483647", False),
        ("2147483647", 0, "2147483647", True),
    ],
)
async def test_who_is_buried(
    server: EmbeddedRocketMQ,
    broker: RawClient,
    clock: ManualClock,
    times: str,
    level: int,
    limit: str | None,
    buried: bool,
) -> None:
    message = await stored(server, broker, j=times)
    over = {} if limit is None else {"maxReconsumeTimes": limit}
    assert (await send_back(broker, message.commit_log_offset, level, **over)).code == 0
    assert len(server.messages(DEAD)) == buried
    await clock.advance(7200)
    found = server.messages(DEAD if buried else RETRY)
    assert [message.reconsume_times for message in found] == [min(int(times) + 1, 2**31 - 1)]


async def test_what_was_compressed_or_committed_stays_so(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    packed = zlib.compress(b"hello " * 100)
    await broker.send("T", packed, f=str(0x309), properties={"UNIQ_KEY": "u", "TRAN_MSG": "false"})
    (message,) = server.messages("T")
    await send_back(broker, message.commit_log_offset, 1)
    await clock.advance(1)
    (again,) = server.messages(RETRY)
    assert (again.body, again.body_crc, again.sys_flag) == (message.body, message.body_crc, message.sys_flag)
    assert message.body == b"hello " * 100


async def test_a_timer_message_waits_for_its_level_when_it_is_sent_back(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    await broker.send("T", properties={**SENT, "TIMER_DELAY_SEC": "1000"})
    await clock.advance(1001)
    (message,) = server.messages("T")
    await send_back(broker, message.commit_log_offset, 2)
    await send_back(broker, message.commit_log_offset, -1)
    assert server.messages(DEAD)[0].properties["TIMER_DELAY_SEC"] == "1000"
    await clock.advance(5)
    assert "TIMER_DELAY_SEC" not in server.messages(RETRY)[0].properties


async def test_the_settings_of_the_group_say_how_many_retry_queues_there_are(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    message = await stored(server, broker)
    await group(broker, retry_queue_nums=0)
    assert (await send_back(broker, message.commit_log_offset)).code == 0
    await clock.advance(7200)
    assert len(log_of(server)) == 1
    await group(broker, retry_queue_nums=3)
    for _ in range(40):
        await send_back(broker, message.commit_log_offset, 1)
    await clock.advance(1)
    assert {message.queue.queue_id for message in server.messages(RETRY)} == {0, 1, 2}


async def test_a_retry_topic_that_no_client_may_write_to_gets_nothing(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    message = await stored(server, broker)
    await broker.create_topic(RETRY, perm="4")
    refused = await send_back(broker, message.commit_log_offset)
    assert (refused.code, refused.remark) == (16, f"the topic[{RETRY}] sending message is forbidden")
    assert len(log_of(server)) == 1


async def test_the_unit_mode_marks_the_retry_topic(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    message = await stored(server, broker)
    await send_back(broker, message.commit_log_offset, unitMode="true")
    topic = broker_of(server).state.topics.get(RETRY)
    assert topic is not None
    assert (topic.config.topic_sys_flag, topic.config.read_queue_nums, topic.config.perm) == (2, 1, 6)


@pytest.mark.parametrize("name", ["", "  ", "a b", "g" * 121, "文"])
async def test_a_name_that_is_no_groups_is_26(server: EmbeddedRocketMQ, broker: RawClient, name: str) -> None:
    message = await stored(server, broker)
    refused = await send_back(broker, message.commit_log_offset, group=name)
    assert refused.code == 26
    assert (refused.remark or "").startswith(f"subscription group not exist, {name} \n")
    assert len(log_of(server)) == 1


@pytest.mark.parametrize("offset", [1, -1, 2**63 - 1, -(2**63)])
async def test_an_offset_without_a_message_is_refused(server: EmbeddedRocketMQ, broker: RawClient, offset: int) -> None:
    await stored(server, broker)
    refused = await send_back(broker, offset)
    assert (refused.code, refused.remark) == (1, f"look message by offset failed, {offset}")
    assert len(log_of(server)) == 1


async def test_messages_of_other_brokers_cannot_be_sent_back(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    async with RawClient(server.brokers["broker-b"]) as other:
        message = await stored(server, other)
    assert (await send_back(broker, message.commit_log_offset)).code == 1


@pytest.mark.parametrize("over", [{"delayLevel": "x"}, {"maxReconsumeTimes": str(2**31)}])
async def test_an_unreadable_field_is_1_and_named(broker: RawClient, over: dict[str, str]) -> None:
    refused = await send_back(broker, 0, **over)
    assert refused.code == 1
    assert next(iter(over)) in (refused.remark or "")
    assert (await send_back(broker, 2**63)).code == (await broker.ask(BACK, None)).code == 1


async def test_properties_with_no_room_for_a_retry_are_13(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    room = 32767 - len(properties_text({**SENT, **ADDED, "K": ""}))
    message = await stored(server, broker, properties={**SENT, "K": "v" * room})
    assert [(await send_back(broker, message.commit_log_offset, level)).code for level in (1, -1)] == [13, 13]
    assert len(log_of(server)) == 1


async def test_retry_topics_count_among_the_topics(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = await stored(server, broker)
    monkeypatch.setattr("rmq_async.embedded.topics.MAX_TOPICS", 3)
    codes = [(await send_back(broker, message.commit_log_offset, -1, group=f"G{index}")).code for index in range(4)]
    assert codes == [0, 1, 1, 1]
    refused = await send_back(broker, message.commit_log_offset, group="G9")
    assert refused.remark == "this broker has 3 topics, the maximum; delete some"


async def test_a_retry_outlives_its_origin(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    message = await stored(server, broker)
    await send_back(broker, message.commit_log_offset)
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (await send_back(broker, message.commit_log_offset)).code == 1
    await clock.advance(10)
    assert [message.body for message in server.messages(RETRY)] == [b"hello"]


async def test_a_retry_topic_deleted_meanwhile_comes_again_with_the_retry(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    message = await stored(server, broker)
    await send_back(broker, message.commit_log_offset, 1)
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": RETRY})
    await clock.advance(1)
    assert [message.body for message in server.messages(RETRY)] == [b"hello"]


@pytest.mark.virtual_time
async def test_retries_that_the_memory_bound_takes_are_gone(clock: ManualClock) -> None:
    async with (
        EmbeddedRocketMQ(clock=clock, max_memory=100_000) as server,
        RawClient(server.brokers["broker-a"]) as broker,
    ):
        message = await stored(server, broker)
        for _ in range(3):
            await send_back(broker, message.commit_log_offset)
        for _ in range(200):
            await broker.send("T", bytes(400))
        assert (await send_back(broker, message.commit_log_offset)).code == 1
        assert await broker.offset(RequestCode.GET_MIN_OFFSET, SCHEDULE_TOPIC, 2) == 3
        kept = server.messages("T")[-1]
        await send_back(broker, kept.commit_log_offset)
        await clock.advance(10)
        assert [message.body for message in server.messages(RETRY)] == [bytes(400)]


async def test_a_restart_keeps_what_waits(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    message = await stored(server, broker)
    await send_back(broker, message.commit_log_offset)
    await server.stop()
    await clock.advance(20)
    assert server.messages(RETRY) == []
    await server.start()
    await clock.advance(0)
    assert len(server.messages(RETRY)) == 1


@pytest.mark.parametrize(
    ("times", "limit", "buried"),
    [("0", None, False), ("16", None, False), ("17", None, True), ("3", "2", True), ("17", "17", False), (None, None, False)],
)
async def test_what_a_consumer_sends_to_the_retry_topic_itself(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock, times: str | None, limit: str | None, buried: bool
) -> None:
    await broker.create_topic(RETRY, 2)
    reply = await broker.send(RETRY, queue=1, j=times, l=limit, properties={**SENT, "DELAY": "3", "RETRY_TOPIC": "T"})
    assert (reply.code, (reply.ext_fields or {})["queueId"]) == (0, "1")
    if buried:
        (message,) = server.messages(DEAD)
        assert (message.queue.queue_id, message.properties["DELAY"]) == (0, "-1")
        assert (message.properties["RETRY_TOPIC"], message.reconsume_times) == ("T", int(times or 0))
    await clock.advance(7200)
    assert len(server.messages(DEAD)) == buried
    assert [message.queue.queue_id for message in server.messages(RETRY)] == [1] * (not buried)


async def test_a_group_that_consumes_in_order_gives_up_with_its_first_send(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    body = encode_body(LockBatchRequestBody("CG", "c1", (MessageQueue("T", "broker-a", 0),)))
    await broker.ask(RequestCode.LOCK_BATCH_MQ, None, body)
    await broker.send(RETRY, properties={**SENT, "DELAY": "3"})
    await broker.send("%RETRY%CG2", properties={**SENT, "DELAY": "3"})
    assert len(server.messages(DEAD)) == 1
    await broker.ask(RequestCode.UNLOCK_BATCH_MQ, None, body)
    await broker.send(RETRY, properties={**SENT, "DELAY": "3"})
    await clock.advance(10)
    assert [len(server.messages(topic)) for topic in (RETRY, "%RETRY%CG2", DEAD)] == [1, 1, 1]


async def test_sends_to_the_retry_topic_of_a_name_that_is_no_groups_are_26(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    for name in ("%RETRY%", "%RETRY%" + "g" * 121):
        refused = await broker.send(name)
        assert refused.code == 26
        assert refused.ext_fields == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
    assert len(log_of(server)) == 0


async def test_old_consumers_retries_of_committed_messages_are_no_half_messages(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    properties = {**SENT, "TRAN_MSG": "true", "PGROUP": "PG"}
    assert (await broker.send(RETRY, j="1", properties={**properties, "DELAY": "1"})).code == 0
    assert (await broker.send(RETRY, f="4", j="1", properties=properties)).code == 0
    assert (await broker.send(RETRY, f="4", j="0", properties={**properties, "DELAY": "1"})).code == 0
    await clock.advance(1)
    assert len(server.messages(RETRY)) == 1
    assert len(server.messages("RMQ_SYS_TRANS_HALF_TOPIC")) == 2


async def test_a_retry_topic_is_made_where_no_others_are() -> None:
    async with EmbeddedRocketMQ(auto_create_topics=False) as server, RawClient(server.brokers["broker-a"]) as broker:
        assert (await broker.send(RETRY)).code == 0
        assert (await broker.send("T")).code == 17
        async with RawClient(server.namesrv) as names:
            listed = await names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)
        assert RETRY in decode_body(TopicList, listed.body).topic_list
