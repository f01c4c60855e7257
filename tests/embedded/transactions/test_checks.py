"""A broker's checks of transactions without an end."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.transactions import CHECK_MAX_TOPIC, HALF_TOPIC
from rmq_protocol.constants import MAX_PROPERTIES_SIZE, RequestCode
from rmq_protocol.ids import pack_offset_id
from rmq_protocol.properties import properties_text

from ...support.fakes import UNIQUE_ID, RawClient
from ..inside import WatchedClock
from .support import ADDED, COMMIT, HALF, ROLLBACK, answer_to, beat, checked, checks, end, put_half

pytestmark = pytest.mark.virtual_time


async def test_the_producer_is_asked_about_a_transaction_without_an_end(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
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
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
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
    broker: RawClient, producer: RawClient, clock: WatchedClock
) -> None:
    await clock.advance(24.5)
    await put_half(broker)
    await clock.advance(35)
    assert await checks(producer) == []
    await clock.advance(0.5)
    assert len(await checks(producer)) == 1


async def test_after_the_last_question_the_message_goes_to_a_topic_of_its_own(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
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


async def test_no_question_where_none_is_to_be_asked(clock: WatchedClock) -> None:
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
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
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


async def test_questions_without_a_client_count_too(server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock) -> None:
    await put_half(broker)
    await clock.advance(60)
    await beat(broker, "p1")
    await clock.advance(30)
    (check,) = await checks(broker)
    assert checked(check).properties["TRANSACTION_CHECK_TIMES"] == "3"
    await clock.advance(30)
    assert len(server.messages(CHECK_MAX_TOPIC)) == 1


async def test_a_message_that_is_too_long_to_be_asked_about_keeps_no_others_from_it(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
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
    assert len(clock.waiting) == 0  # so no timer looks at them any more


async def test_an_immunity_time_puts_the_question_off_and_bounds_the_producers_own_end(
    server: EmbeddedRocketMQ, broker: RawClient, producer: RawClient, clock: WatchedClock
) -> None:
    half = await put_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    await clock.advance(100)
    assert await checks(producer) == []
    await clock.advance(1)
    late = await end(broker, half, COMMIT)
    assert late.code == 604
    assert late.remark == (
        "the end came 101000 ms after the message, which has CHECK_IMMUNITY_TIME_IN_SECONDS: 100000 ms are allowed; "
        "answer the broker's check instead"
    )
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
    broker: RawClient, producer: RawClient, clock: WatchedClock, text: str
) -> None:
    half = await put_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS=text)
    await clock.advance(6.001)
    assert (await end(broker, half, ROLLBACK)).code == 604
    await clock.advance(23.999)
    assert len(await checks(producer)) == 1


@pytest.mark.parametrize("text", ["x", "-3", "9" * 40, "1.5"])
async def test_a_count_of_questions_that_is_none_begins_anew(
    broker: RawClient, producer: RawClient, clock: WatchedClock, text: str
) -> None:
    await put_half(broker, TRANSACTION_CHECK_TIMES=text)
    await clock.advance(30)
    (check,) = await checks(producer)
    assert checked(check).properties["TRANSACTION_CHECK_TIMES"] == "1"
