"""Transactions: half messages nobody sees, their end, and the broker's questions about those without one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_async.embedded.transactions import CHECK_MAX_TOPIC, HALF_TOPIC, Transactions
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import MAX_PROPERTIES_SIZE, RequestCode
from rmq_protocol.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from rmq_protocol.ids import pack_offset_id, unpack_offset_id
from rmq_protocol.message import MessageExt
from rmq_protocol.properties import properties_text
from rmq_protocol.stored import decode_messages

from .raw import UNIQUE_ID, RawClient, oneway, pull_fields

START = 1_700_000_000_000
END = RequestCode.END_TRANSACTION
UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
ADDED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
HALF = {"UNIQ_KEY": UNIQUE_ID, "TRAN_MSG": "true", "PGROUP": "PG", "WAIT": "true", "TAGS": "A"}
NOT_FOUND = "Find prepared transaction message failed"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
async def server(nothing_left: None, clock: ManualClock) -> AsyncIterator[EmbeddedRocketMQ]:
    """Asks each 30 s about what is 6 s old, three times."""
    async with EmbeddedRocketMQ(clock=clock, brokers=2, transaction_check_max=3) as server:
        yield server


@pytest.fixture
async def producer(server: EmbeddedRocketMQ) -> AsyncIterator[RawClient]:
    """Of group "PG" on broker-a, with a heartbeat."""
    async with RawClient(server.brokers["broker-a"]) as client:
        await beat(client, "p1")
        yield client


async def beat(client: RawClient, client_id: str, group: str = "PG") -> None:
    data = HeartbeatData(client_id, (ProducerData(group),))
    assert (await client.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(data))).code == 0


async def put_half(
    broker: RawClient, topic: str = "T", body: bytes = b"half", *, queue: int = 0, **over: str
) -> dict[str, str]:
    """Returns the fields of its END_TRANSACTION, but for what became of it."""
    reply = await broker.send(topic, body, queue=queue, f="4", properties={**HALF, **over})
    assert reply.code == 0, reply
    ext = reply.ext_fields or {}
    return end_fields(ext["queueOffset"] or "", str(unpack_offset_id(ext["msgId"] or "").offset))


def end_fields(offset: str, position: str) -> dict[str, str]:
    return {"producerGroup": "PG", "tranStateTableOffset": offset, "commitLogOffset": position, "msgId": UNIQUE_ID}


async def end(broker: RawClient, half: dict[str, str], state: int, **over: str) -> RemotingCommand:
    return await broker.ask(END, {**half, "commitOrRollback": str(state), **over})


def answer_to(check: RemotingCommand) -> dict[str, str]:
    ext = check.ext_fields or {}
    return {**end_fields(ext["tranStateTableOffset"] or "", ext["commitLogOffset"] or ""), "fromTransactionCheck": "true"}


def checked(check: RemotingCommand) -> MessageExt:
    assert (check.code, check.is_oneway) == (39, True)
    (message,) = decode_messages(check.body).messages
    return message


async def checks(client: RawClient) -> list[RemotingCommand]:
    """Those that the broker has sent by now."""
    await client.offset(RequestCode.GET_MAX_OFFSET, HALF_TOPIC)
    found, client.pushed = client.pushed, []
    return found


def transactions(server: EmbeddedRocketMQ) -> Transactions:
    return server._brokers[0]._transactions


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
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    half = await put_half(broker)
    assert (await end(broker, half, ROLLBACK)).code == 0
    await clock.advance(3600)
    assert await checks(producer) == []
    assert server.messages("T") == server.messages(CHECK_MAX_TOPIC) == []


async def test_an_end_that_is_not_known_is_not_answered_and_asked_about(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
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
    clock: ManualClock,
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
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    half = await put_half(broker)
    assert [(await end(broker, half, state)).code for state in (ROLLBACK, COMMIT, COMMIT)] == [0, 0, 0]
    assert [message.queue_offset for message in server.messages("T")] == [0, 1]
    await clock.advance(3600)
    assert await checks(producer) == []


async def test_the_producer_is_asked_about_a_transaction_without_an_end(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    await broker.send("T", b"first")
    await clock.advance(2)
    half = await put_half(broker, queue=1)
    await clock.advance(27.9)
    assert await checks(producer) == []
    await clock.advance(0.1)
    (check,) = await checks(producer)
    again = server.messages(HALF_TOPIC)[-1]
    assert check.ext_fields == {
        "bname": "broker-a",
        "topic": HALF_TOPIC,
        "tranStateTableOffset": "1",
        "commitLogOffset": str(again.commit_log_offset),
        "msgId": UNIQUE_ID,
        "transactionId": UNIQUE_ID,
        "offsetMsgId": pack_offset_id(server.brokers["broker-a"], again.commit_log_offset),
    }
    message = checked(check)
    assert (message.topic, message.body, message.sys_flag, message.flag) == ("T", b"half", 0, 7)
    assert (message.queue_offset, message.offset_msg_id) == (1, again.offset_msg_id)
    assert message.properties == {
        **HALF,
        **ADDED,
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        "WAIT": "false",
        "TRANSACTION_CHECK_TIMES": "1",
        "__transactionId__": UNIQUE_ID,
    }
    assert (await end(producer, answer_to(check), COMMIT)).code == 0
    delivered = server.messages("T")[-1]
    assert delivered.prepared_transaction_offset == again.commit_log_offset != int(half["commitLogOffset"])
    properties = {**HALF, **ADDED, "__transactionId__": UNIQUE_ID, "TRANSACTION_CHECK_TIMES": "1"}
    assert (delivered.sys_flag, delivered.properties) == (8, properties)
    await clock.advance(3600)
    assert await checks(producer) == []


async def test_as_on_a_real_broker_an_end_that_crosses_with_a_question_leaves_the_message_open(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    half = await put_half(broker)
    await clock.advance(30)
    assert (await end(broker, half, COMMIT)).code == 0
    await clock.advance(30)
    first, second = await checks(producer)
    assert (await end(producer, answer_to(second), COMMIT)).code == 0
    assert len(server.messages("T")) == 2
    assert (await end(producer, answer_to(first), ROLLBACK)).code == 0
    await clock.advance(3600)
    assert await checks(producer) == []


async def test_what_is_younger_than_the_timeout_waits_for_the_next_round(
    broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    await clock.advance(24.5)
    await put_half(broker)
    await clock.advance(35)
    assert await checks(producer) == []
    await clock.advance(0.5)
    assert len(await checks(producer)) == 1


async def test_after_the_last_question_the_message_goes_to_a_topic_of_its_own(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    await put_half(broker)
    times = []
    for _ in range(6):
        await clock.advance(30)
        times += [checked(check).properties["TRANSACTION_CHECK_TIMES"] for check in await checks(producer)]
    assert times == ["1", "2", "3"]
    (given_up,) = server.messages(CHECK_MAX_TOPIC)
    assert (given_up.body, given_up.properties["REAL_TOPIC"]) == (b"half", "T")
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert server.messages("T") == []
    assert (await broker.send(CHECK_MAX_TOPIC)).code == 16


async def test_no_question_where_none_is_to_be_asked(clock: ManualClock) -> None:
    async with (
        EmbeddedRocketMQ(clock=clock, transaction_check_max=0) as server,
        RawClient(server.brokers["broker-a"]) as broker,
    ):
        await beat(broker, "p1")
        await put_half(broker)
        await clock.advance(30)
        assert await checks(broker) == []
        assert len(server.messages(CHECK_MAX_TOPIC)) == 1


async def test_members_of_the_group_that_are_there_are_asked_in_turn(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    address = server.brokers["broker-a"]
    async with RawClient(address) as second, RawClient(address) as stranger:
        await beat(second, "p2")
        await beat(stranger, "p3", "PG3")
        async with RawClient(address) as gone:
            await beat(gone, "p4")
        for _ in range(4):
            await put_half(broker)
        await clock.advance(30)
        assert [len(await checks(client)) for client in (producer, second, stranger)] == [2, 2, 0]
        await beat(stranger, "p3", "PG")
        await producer.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "p1", "producerGroup": "PG"})
        await clock.advance(30)
        assert [len(await checks(client)) for client in (producer, second, stranger)] == [0, 2, 2]


async def test_questions_that_nobody_is_there_for_count_too(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    await put_half(broker)
    await clock.advance(60)
    await beat(broker, "p1")
    await clock.advance(30)
    (check,) = await checks(broker)
    assert checked(check).properties["TRANSACTION_CHECK_TIMES"] == "3"
    await clock.advance(30)
    assert len(server.messages(CHECK_MAX_TOPIC)) == 1


async def test_a_message_that_is_too_long_to_be_asked_about_keeps_no_others_from_it(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    properties = {"UNIQ_KEY": UNIQUE_ID, "TRAN_MSG": "true", "PGROUP": "PG", "pad": "x"}
    await broker.send("T", b"long", f="4", properties=properties)
    stored = properties_text({**server.messages(HALF_TOPIC)[0].properties, "TRANSACTION_CHECK_TIMES": "1"})
    server.clear()
    properties["pad"] += "x" * (MAX_PROPERTIES_SIZE - len(stored))  # fits with a count of questions, but not with WAIT
    assert (await broker.send("T", b"long", f="4", properties=properties)).code == 0
    await put_half(broker)
    times = []
    for _ in range(5):
        await clock.advance(30)
        messages = [checked(check) for check in await checks(producer)]
        times += [(message.body, message.properties["TRANSACTION_CHECK_TIMES"]) for message in messages]
    assert times == [(b"half", "1"), (b"half", "2"), (b"half", "3")]
    assert [message.body for message in server.messages(CHECK_MAX_TOPIC)] == [b"long", b"half"]
    assert len(server.messages(HALF_TOPIC)) == 2 + 2 * 3
    assert sum(timer.call is not None for _, _, timer in clock._timers) == 0  # so nobody looks at them any more


async def test_an_immunity_time_puts_the_question_off_and_bounds_the_producers_own_end(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
) -> None:
    half = await put_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    await clock.advance(100)
    assert await checks(producer) == []
    await clock.advance(1)
    late = await end(broker, half, COMMIT)
    assert late.code == 604
    assert late.remark == "the transaction ended after 101000 ms, CHECK_IMMUNITY_TIME_IN_SECONDS is 100"
    assert server.messages("T") == []
    await clock.advance(19)
    (check,) = await checks(producer)
    assert (await end(producer, answer_to(check), COMMIT)).code == 0
    assert len(server.messages("T")) == 1
    in_time = await put_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    await clock.advance(100)
    assert (await end(broker, in_time, COMMIT)).code == 0


@pytest.mark.parametrize("text", ["-1", "-9", "x", "1e3", "٣", "9" * 40, "1\x01"])
async def test_an_immunity_time_that_is_none_is_the_timeout(
    broker: RawClient, producer: RawClient, clock: ManualClock, text: str
) -> None:
    half = await put_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS=text)
    await clock.advance(6.001)
    assert (await end(broker, half, ROLLBACK)).code == 604
    await clock.advance(23.999)
    assert len(await checks(producer)) == 1


@pytest.mark.parametrize("text", ["x", "-3", "9" * 40, "1.5"])
async def test_a_count_of_questions_that_is_none_begins_anew(
    broker: RawClient, producer: RawClient, clock: ManualClock, text: str
) -> None:
    await put_half(broker, TRANSACTION_CHECK_TIMES=text)
    await clock.advance(30)
    (check,) = await checks(producer)
    assert checked(check).properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_a_committed_message_waits_for_its_delay(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    half = await put_half(broker, DELAY="3")
    await clock.advance(10)
    assert (await end(broker, half, COMMIT)).code == 0
    await clock.advance(9.9)
    assert server.messages("T") == []
    await clock.advance(0.1)
    assert [message.sys_flag for message in server.messages("T")] == [8]


async def test_a_commit_that_cannot_be_stored_ends_nothing(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock
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


async def test_nobody_deletes_or_changes_the_topics_of_transactions(server: EmbeddedRocketMQ, broker: RawClient) -> None:
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


async def test_a_half_message_with_no_room_for_a_count_is_given_up_but_can_be_committed(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    added = {"__transactionId__": UNIQUE_ID, "REAL_TOPIC": "T", "REAL_QID": "0", "K": ""}
    room = 32767 - len(properties_text({**HALF, **ADDED, **added}))
    half = await put_half(broker, K="v" * room)
    await clock.advance(60)
    assert await checks(producer) == []
    assert [record.message[:46] for record in caplog.records] == ["broker-a: a half message cannot be kept: the m"]
    assert (await end(broker, half, COMMIT)).code == 0
    assert len(server.messages("T")) == 1


async def test_large_half_messages_are_asked_about_in_several_steps(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.transactions._BATCH_BYTES", 1000)
    for index in range(5):
        await put_half(broker, body=bytes([index]) * 600)
    await clock.advance(29)
    steps = []
    look_at, ring = Transactions._look_at, Transactions._ring
    monkeypatch.setattr(Transactions, "_look_at", lambda *given: steps.append("look") or look_at(*given))
    monkeypatch.setattr(transactions(server)._alarm, "_ring", lambda: steps.append("ring") or ring(transactions(server)))
    await clock.advance(1)
    assert steps == ["ring", "look", "look"] * 2 + ["ring", "look"]
    assert [checked(check).body[0] for check in await checks(producer)] == [0, 1, 2, 3, 4]


async def test_random_ends_leave_the_questions_to_those_without_one(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr("rmq_async.embedded.transactions._BATCH", rng.choice([1, 7, 256]))
    halves: dict[str, dict[str, str]] = {}
    for number in range(120):
        halves[f"u{number}"] = await put_half(broker, UNIQ_KEY=f"u{number}")
        if rng.random() < 0.6:
            gone = halves.pop(rng.choice(list(halves)))
            await end(broker, gone, rng.choice([COMMIT, ROLLBACK]))
    for times in range(1, 4):
        await clock.advance(30)
        asked = {}
        for check in await checks(producer):
            message = checked(check)
            assert message.properties["TRANSACTION_CHECK_TIMES"] == str(times)
            asked[message.properties["UNIQ_KEY"]] = answer_to(check)
        assert asked.keys() == halves.keys()
        for unique_id in rng.sample(list(asked), len(asked) // 2):
            await end(producer, asked[unique_id], rng.choice([COMMIT, ROLLBACK]))
            del halves[unique_id]
    await clock.advance(60)
    assert {message.properties["UNIQ_KEY"] for message in server.messages(CHECK_MAX_TOPIC)} == halves.keys()
    state = transactions(server)
    assert (state._open, state._ended) == (state._queue.max_offset, b"")


async def test_half_messages_that_the_memory_bound_takes_are_gone(clock: ManualClock) -> None:
    async with (
        EmbeddedRocketMQ(clock=clock, max_memory=100_000) as server,
        RawClient(server.brokers["broker-a"]) as broker,
    ):
        await beat(broker, "p1")
        half = await put_half(broker)
        kept = await put_half(broker, UNIQ_KEY="kept")
        for _ in range(200):
            await broker.send("T", bytes(300))
        refused = await end(broker, half, COMMIT)
        assert (refused.code, refused.remark) == (1, NOT_FOUND)
        assert (await end(broker, kept, COMMIT)).code == 1
        assert await broker.offset(RequestCode.GET_MIN_OFFSET, HALF_TOPIC) == 2
        last = await put_half(broker, UNIQ_KEY="last")
        await clock.advance(30)
        assert [checked(check).properties["UNIQ_KEY"] for check in await checks(broker)] == ["last"]
        assert (await end(broker, last, COMMIT)).code == 0


async def test_transactions_that_never_end_keep_no_more_than_the_memory_bound(clock: ManualClock) -> None:
    """Ended behind one that is not, never ended, and ended after they were asked about."""
    async with (
        EmbeddedRocketMQ(clock=clock, max_memory=50_000, transaction_check_max=1000) as server,
        RawClient(server.brokers["broker-a"]) as broker,
    ):
        state = transactions(server)
        await put_half(broker)
        for _ in range(300):
            await end(broker, await put_half(broker), ROLLBACK)
            assert len(state._ended) <= state._queue.max_offset - state._queue.min_offset
        assert state._queue.min_offset > 100
        assert state._open == state._queue.max_offset
        for _ in range(300):
            await put_half(broker)
        for _ in range(20):
            await clock.advance(30)
            live = state._queue.max_offset - state._queue.min_offset
            assert len(state._ended) <= live < 130
            assert server._log.memory <= 50_000
        server.clear()
        await clock.advance(60)
        assert (state._open, state._ended, len(server._log)) == (state._queue.max_offset, b"", 0)


async def test_a_restart_goes_on_asking(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    first = await put_half(broker, UNIQ_KEY="first")
    await put_half(broker, UNIQ_KEY="second")
    await clock.advance(29)
    await server.stop()
    assert not [timer for _, _, timer in clock._timers if timer.call is not None]
    await clock.advance(3600)
    await server.start()
    async with RawClient(server.brokers["broker-a"]) as producer:
        await beat(producer, "p1")
        assert (await end(producer, first, COMMIT)).code == 0
        await clock.advance(29.9)
        assert await checks(producer) == []
        await clock.advance(0.1)
        (check,) = await checks(producer)
        assert checked(check).properties["UNIQ_KEY"] == "second"
        assert (await end(producer, answer_to(check), COMMIT)).code == 0
    assert [message.properties["UNIQ_KEY"] for message in server.messages("T")] == ["first", "second"]


async def test_a_round_that_a_stop_interrupts_is_made_again(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.transactions._BATCH", 2)
    for index in range(5):
        await put_half(broker, UNIQ_KEY=f"u{index}")
    ring: Any = transactions(server)._alarm._ring
    await clock.advance(29)
    monkeypatch.setattr(transactions(server)._alarm, "_ring", lambda: None)
    await clock.advance(1)
    ring()
    await server.stop()
    monkeypatch.undo()
    await server.start()
    async with RawClient(server.brokers["broker-a"]) as producer:
        await beat(producer, "p1")
        await clock.advance(30)
        asked = [checked(check).properties for check in await checks(producer)]
    times = {properties["UNIQ_KEY"]: properties["TRANSACTION_CHECK_TIMES"] for properties in asked}
    assert times == {"u0": "2", "u1": "2", "u2": "1", "u3": "1", "u4": "1"}
