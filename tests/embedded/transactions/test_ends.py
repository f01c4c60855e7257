"""Half messages are invisible until they are committed; which ends a broker takes."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.transactions import CHECK_MAX_TOPIC, HALF_TOPIC
from rmq_protocol.constants import RequestCode
from rmq_protocol.properties import properties_text
from rmq_protocol.stored import decode_messages

from ...support.fakes import UNIQUE_ID, RawClient, oneway, pull_fields
from ..inside import WatchedClock
from .support import ADDED, COMMIT, END, HALF, NOT_FOUND, ROLLBACK, UNKNOWN, answer_to, checks, end, put_half


@pytest.mark.virtual_time
async def test_half_messages_are_invisible_in_their_topic(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T")
    reply = await broker.send("T", queue=2, f="4", properties=HALF)
    (half,) = server.messages(HALF_TOPIC)
    assert reply.ext_fields == {
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
        "msgId": half.offset_msg_id,
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": UNIQUE_ID,
    }
    assert (half.sys_flag, half.queue_offset) == (0, 0)
    real = {"REAL_TOPIC": "T", "REAL_QID": "2", "__transactionId__": UNIQUE_ID}
    assert half.properties == {**HALF, **ADDED, **real}
    assert server.messages("T") == []
    assert await broker.offset(RequestCode.GET_MAX_OFFSET, "T", 2) == 0
    assert (await broker.pull("T", 2, sysFlag="4")).code == 19


async def test_a_commit_delivers_to_the_queue_and_tag_that_were_asked_for(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    half = await put_half(broker, queue=3, TAGS="B", REAL_TOPIC="other", REAL_QID="9")
    assert (await end(broker, half, COMMIT)).code == 0
    pulled = await broker.pull("T", 3, subscription="B")
    (message,) = decode_messages(pulled.body).messages
    assert message.properties == {**HALF, "TAGS": "B", **ADDED, "__transactionId__": UNIQUE_ID}
    assert (message.body, message.flag, message.sys_flag, message.born_host) == (b"half", 7, 8, broker.local)
    assert message.born_time_ms == 1700000000000
    assert message.prepared_transaction_offset == int(half["commitLogOffset"])
    assert server.messages("other") == []


async def test_a_held_pull_gets_the_message_with_its_commit(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    half = await put_half(broker)
    async with RawClient(server.brokers["broker-a"]) as consumer:
        consumer.write(11, pull_fields("T", sysFlag="6", suspendTimeoutMillis="20000"))
        await consumer.writer.drain()
        broker.write(END, {**half, "commitOrRollback": "8"}, flag=oneway())
        assert decode_messages((await consumer.read()).body).messages[0].body == b"half"


async def test_a_rollback_delivers_nothing_and_ends_the_questions(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
) -> None:
    half = await put_half(broker)
    assert (await end(broker, half, ROLLBACK)).code == 0
    await clock.advance(3600)
    assert await checks(producer) == []
    assert server.messages("T") == server.messages(CHECK_MAX_TOPIC) == []


@pytest.mark.virtual_time
async def test_an_end_that_is_not_known_is_not_answered_and_asked_about(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
) -> None:
    half = await put_half(broker)
    async with RawClient(server.brokers["broker-a"]) as silent:
        for from_check in ("false", "true"):
            silent.write(END, {**half, "commitOrRollback": str(UNKNOWN), "fromTransactionCheck": from_check})
        with pytest.raises(TimeoutError):
            await silent.read(0.05)
    assert await broker.offset(RequestCode.GET_MAX_OFFSET, "T") == 0
    await clock.advance(30)
    assert len(await checks(producer)) == 1
    assert server.messages("T") == []
    assert server.requests[END] == 2


@pytest.mark.parametrize("state", [4, 1, -1, 2**31 - 1])
async def test_an_end_that_is_none_is_refused(broker: RawClient, state: int) -> None:
    refused = await end(broker, await put_half(broker), state)
    assert (refused.code, refused.remark) == (1, f"EndTransactionRequestHeader.commitOrRollback: {state} is none of [0, 8, 12]")


@pytest.mark.parametrize(
    ("over", "remark"),
    [
        ({"producerGroup": "PG2"}, "The producer group wrong"),
        ({"producerGroup": ""}, "The producer group wrong"),
        ({"tranStateTableOffset": "1"}, "The transaction state table offset wrong"),
        ({"tranStateTableOffset": "-1"}, "The transaction state table offset wrong"),
        ({"tranStateTableOffset": str(2**63 - 1)}, "The transaction state table offset wrong"),
        ({"commitLogOffset": "0"}, NOT_FOUND),  # of another message
        ({"commitLogOffset": "7"}, NOT_FOUND),
        ({"commitLogOffset": "-1"}, NOT_FOUND),
        ({"commitLogOffset": str(-(2**63))}, NOT_FOUND),
        ({"commitLogOffset": str(2**63 - 1)}, NOT_FOUND),
    ],
)
@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
async def test_an_end_that_does_not_fit_its_message_is_refused(
    server: EmbeddedRocketMQ,
    broker: RawClient,
    producer: RawClient,
    clock: WatchedClock,
    state: int,
    over: dict[str, str],
    remark: str,
) -> None:
    await broker.send("T", b"first")
    half = await put_half(broker)
    refused = await end(broker, half, state, **over)
    assert (refused.code, refused.remark) == (1, remark)
    assert [message.body for message in server.messages("T")] == [b"first"]
    await clock.advance(30)
    assert len(await checks(producer)) == 1


@pytest.mark.parametrize("name", ["producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback", "msgId"])
async def test_an_end_without_one_of_its_fields_is_refused(broker: RawClient, name: str) -> None:
    fields = {**await put_half(broker), "commitOrRollback": "8"}
    del fields[name]
    refused = await broker.ask(END, fields)
    assert (refused.code, refused.remark) == (1, f"EndTransactionRequestHeader.{name} is missing")
    fields[name] = "2" * 30
    assert (await broker.ask(END, {**fields, "tranStateTableOffset": "x"})).code == 1


async def test_another_broker_does_not_end_the_transaction(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    half = await put_half(broker)
    async with RawClient(server.brokers["broker-b"]) as other:
        await put_half(other)
        refused = await end(other, half, COMMIT)
    assert (refused.code, refused.remark) == (1, NOT_FOUND)
    assert server.messages("T") == []


async def test_as_on_a_real_broker_what_has_ended_can_end_again(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
) -> None:
    half = await put_half(broker)
    assert [(await end(broker, half, state)).code for state in (ROLLBACK, COMMIT, COMMIT)] == [0, 0, 0]
    assert [message.queue_offset for message in server.messages("T")] == [0, 1]
    await clock.advance(3600)
    assert await checks(producer) == []


async def test_a_committed_message_waits_for_its_delay(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
) -> None:
    half = await put_half(broker, DELAY="3")
    await clock.advance(10)
    assert (await end(broker, half, COMMIT)).code == 0
    await clock.advance(9.9)
    assert server.messages("T") == []
    await clock.advance(0.1)
    assert [message.sys_flag for message in server.messages("T")] == [8]


async def test_a_commit_that_cannot_be_stored_ends_nothing(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
) -> None:
    await broker.create_topic("T")
    half = await put_half(broker)
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (await end(broker, half, COMMIT)).code == 17
    await clock.advance(30)
    (check,) = await checks(producer)
    await broker.create_topic("T")
    assert (await end(producer, answer_to(check), COMMIT)).code == 0
    assert len(server.messages("T")) == 1


async def test_no_client_deletes_or_changes_the_topics_of_transactions(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    half = await put_half(broker)
    for topic in (HALF_TOPIC, CHECK_MAX_TOPIC):
        assert (await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code == 29
        assert (await broker.create_topic(topic)).code == 29
        assert (await broker.send(topic, properties=HALF, f="4")).code == 16
    assert (await end(broker, half, COMMIT)).code == 0
    assert len(server.messages("T")) == 1


async def test_properties_with_no_room_for_a_half_message_are_13(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    added = {"__transactionId__": UNIQUE_ID, "REAL_TOPIC": "T", "REAL_QID": "0", "K": ""}
    room = 32767 - len(properties_text({**HALF, **ADDED, **added}))
    refused = await broker.send("T", f="4", properties={**HALF, "K": "v" * (room + 1)})
    assert refused.code == 13
    assert server.messages(HALF_TOPIC) == []
    await put_half(broker, K="v" * room)


@pytest.mark.parametrize("brokers", [1, 2])
async def test_truncate_takes_the_end_with_the_committed_message(clock: WatchedClock, brokers: int) -> None:
    """The brokers share a log, whose end stays where another one has stored behind it."""
    async with EmbeddedRocketMQ(brokers=brokers, clock=clock) as server, RawClient(server.brokers["broker-a"]) as broker:
        half = await put_half(broker)
        assert (await end(broker, half, COMMIT)).code == 0
        if brokers == 2:
            async with RawClient(server.brokers["broker-b"]) as other:
                assert (await other.send("other", b"x")).code == 0
        assert server.truncate("broker-a", 1) == 1
        assert server.messages("T") == []
        await clock.advance(40)
        assert [message.properties.get("TRANSACTION_CHECK_TIMES") for message in server.messages(HALF_TOPIC)] == [None, "1"]
        assert (await end(broker, half, COMMIT)).code == 0
        assert [message.body for message in server.messages("T")] == [b"half"]
