"""Pops, acks and redelivery by the broker's clock."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock, check_points, held_pops
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue

from ..inside import START, broker_of
from .support import PopClient, bodies, taken

pytestmark = pytest.mark.virtual_time

TWICE = 2 * [b"a"]


async def test_pop_an_unacknowledged_message_comes_back_with_its_handle(
    broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ
) -> None:
    await broker.stored("a", "b")
    first = await broker.popped(invisibleTime=10_000)
    assert bodies(first) == [b"a", b"b"]
    assert bodies(await broker.popped()) == []
    assert [message.body for message in server.in_flight("G")] == [b"a", b"b"]
    assert (await broker.ack("T", first[0])).code == 0
    await clock.advance(11.9)
    assert bodies(await broker.popped()) == []
    await clock.advance(0.1)
    (again,) = await broker.popped()
    assert again.body == b"b"
    assert (again.message.topic, again.message.reconsume_times, again.handle.retry) == ("T", 1, "1")
    assert again.message.properties["ORIGIN_GROUP"] == "G"
    assert again.message.properties["1ST_POP_TIME"] == str(first[1].handle.pop_time)
    assert [(each.topic, each.body) for each in server.retries("G")] == [("%RETRY%G_T", b"b")]
    assert (await broker.ack("T", again)).code == 0
    await clock.advance(100)
    assert bodies(await broker.popped()) == []
    assert server.in_flight("G") == []


async def test_pops_of_a_topic_with_priorities_begin_with_the_highest(broker: PopClient, clock: ManualClock) -> None:
    await broker.create_topic("P", 3, attributes="+message.type=PRIORITY")
    for text in ("0", "7", "1", "2", "x"):
        properties = {"UNIQ_KEY": text, "_SYS_MSG_PRIORITY_": text}
        assert (await broker.send("P", text.encode(), queue=0, properties=properties)).code == 0
    assert bodies(await broker.popped("P", maxMsgNums=3, invisibleTime=1000)) == [b"7", b"2", b"1"]
    await clock.advance(3)
    for expected in (b"0", b"x"):  # what comes again is looked for last
        assert bodies(await broker.popped("P", maxMsgNums=1)) == [expected]
    again = [body for _ in range(3) for body in bodies(await broker.popped("P", maxMsgNums=1))]
    assert sorted(again) == [b"1", b"2", b"7"]


async def test_a_late_ack_counts_until_the_message_comes_back(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored("a")
    (popped,) = await broker.popped(invisibleTime=1000)
    await clock.advance(2.9)
    assert (await broker.ack("T", popped)).code == 0
    await clock.advance(60)
    assert bodies(await broker.popped()) == []


async def test_a_change_makes_the_old_handle_void_and_a_second_one_makes_two_deliveries(
    broker: PopClient, clock: ManualClock
) -> None:
    await broker.stored("a")
    (popped,) = await broker.popped(invisibleTime=60_000)
    later = await broker.changed("T", popped, 5000)
    assert (later.handle.ck_queue_offset, later.handle.pop_time > popped.handle.pop_time) == (0, True)
    await clock.advance(1)
    await broker.changed("T", popped, 5000)
    assert (await broker.ack("T", popped)).code == 0
    await clock.advance(8.1)
    assert bodies(await broker.popped(invisibleTime=600_000)) == TWICE


async def test_a_change_after_an_ack_brings_the_message_back(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored("a")
    (popped,) = await broker.popped()
    assert (await broker.ack("T", popped)).code == 0
    await broker.changed("T", popped, 1000)
    await clock.advance(3.1)
    assert bodies(await broker.popped()) == [b"a"]


async def test_a_suspended_message_comes_back_without_counting_a_try(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored("a")
    (popped,) = await broker.popped()
    await broker.change("T", popped, 1000, suspend="true")
    await clock.advance(3.1)
    (again,) = await broker.popped()
    assert again.message.reconsume_times == 0
    await broker.change("T", again, 1000)
    await clock.advance(3.1)
    assert [each.message.reconsume_times for each in await broker.popped()] == [1]


async def test_held_pop_one_message_wakes_one(broker: PopClient, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a")
    await broker.popped()
    opaques = [broker.write(RequestCode.POP_MESSAGE, broker.pop_fields("T", pollTime=15_000)) for _ in range(3)]
    async with PopClient(server.brokers["broker-a"]) as other:
        info = {"consumerGroup": "G", "topic": "T", "queueId": "-1"}
        assert (await other.ask(RequestCode.POLLING_INFO, info)).ext_fields == {"pollingNum": "3"}
        await other.stored("b")
        response = await broker.read()
        assert (response.opaque, bodies(taken(response))) == (opaques[0], [b"b"])
        assert (await other.ask(RequestCode.POLLING_INFO, info)).ext_fields == {"pollingNum": "2"}
        await other.stored("c", queue=3)
        assert (await broker.read()).opaque == opaques[1]


async def test_held_pop_ends_at_its_deadline_and_when_the_clock_is_moved_past_it(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored("a")
    await broker.popped(invisibleTime=600_000)
    now = asyncio.get_running_loop().time
    began = now()
    response = await broker.pop(pollTime=150)
    assert (response.code, response.remark) == (210, "NO_MESSAGE_IN_QUEUE")
    assert now() - began > 0.08
    broker.write(RequestCode.POP_MESSAGE, broker.pop_fields("T", pollTime=60_000))
    await asyncio.sleep(0.05)
    await clock.advance(60)
    response = await broker.read()
    assert (response.code, (response.ext_fields or {})["popTime"]) == (210, str(clock.now_ms() - 50))


async def test_held_pop_gets_what_comes_back(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored("a")
    await broker.popped(invisibleTime=1000)
    broker.write(RequestCode.POP_MESSAGE, broker.pop_fields("T", pollTime=60_000, queueId=2))
    await asyncio.sleep(0.05)
    await clock.advance(3)
    assert bodies(taken(await broker.read())) == [b"a"]


async def test_held_pop_of_a_connection_that_has_ended_takes_nothing(broker: PopClient, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a")
    await broker.popped()
    async with PopClient(server.brokers["broker-a"]) as other:
        other.write(RequestCode.POP_MESSAGE, other.pop_fields("T", pollTime=60_000))
        await other.ask(RequestCode.POLLING_INFO, {"consumerGroup": "G", "topic": "T", "queueId": "-1"})
    while broker_of(server).popping.held.topics:
        await asyncio.sleep(0.01)
    await broker.stored("b")
    assert bodies(await broker.popped()) == [b"b"]


async def test_a_pop_whose_clock_is_behind_is_answered_at_once(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored("a")
    response = await broker.pop(bornTime=START - 10_000, pollTime=5000)
    assert (response.code, (response.remark or "")[-31:]) == (210, "pop message is timeout too much")
    assert (response.ext_fields or {})["popTime"] == "0"
    await broker.popped()
    assert (await broker.pop(bornTime=START - 5000, pollTime=5000)).code == 210


async def test_too_many_held_pops_are_answered_209(broker: PopClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pops, "MAX_HELD_PER_KEY", 1)
    await broker.stored("a")
    await broker.popped()
    for _ in range(3):
        opaque = broker.write(RequestCode.POP_MESSAGE, broker.pop_fields("T", pollTime=15_000))
    response = await broker.read()
    assert (response.opaque, response.code) == (opaque, 209)


async def test_too_many_popped_messages_are_refused(broker: PopClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.pops.MAX_IN_FLIGHT", 33)
    monkeypatch.setattr("rmq_async.embedded.acks.MAX_IN_FLIGHT", 2)
    await broker.stored("a", "b", "c")
    popped = await broker.popped(maxMsgNums=2)
    assert (await broker.pop()).code == 2
    await broker.ack("T", popped[0])
    await broker.ack("T", popped[1])
    assert len(await broker.popped()) == 1


async def test_every_fifth_pop_begins_with_retries(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored("a")
    await broker.popped(invisibleTime=1000)
    await clock.advance(3)
    await broker.stored(*"bcdefg")
    assert [bodies(await broker.popped(maxMsgNums=1)) for _ in range(6)] == [[b"b"], [b"c"], [b"d"], [b"a"], [b"e"], [b"f"]]


async def test_a_filter_holds_for_retries(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored("a", tags="x")
    assert bodies(await broker.popped(exp="x", invisibleTime=1000)) == [b"a"]
    await clock.advance(3)
    assert bodies(await broker.popped(exp="y")) == []
    assert bodies(await broker.popped(exp="x")) == []  # passed over, and gone for the group


async def test_a_reset_takes_effect_at_the_next_pop(broker: PopClient, server: EmbeddedRocketMQ) -> None:
    await broker.stored(*"abc")
    popped = await broker.popped()
    await broker.ack_batch("T", popped)
    assert server.progress("G")[MessageQueue("T", "broker-a", 0)] == 3
    reset = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
    assert (await broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
    assert bodies(await broker.popped()) == [b"b", b"c"]


async def test_a_new_group_begins_at_the_end_of_a_queue_that_has_lost_messages(
    broker: PopClient, server: EmbeddedRocketMQ
) -> None:
    await broker.stored(*"abc")
    server.expire(MessageQueue("T", "broker-a", 0), 1, corrected=True)
    assert bodies(await broker.popped(initMode=1)) == [b"c"]
    assert bodies(await broker.popped(initMode=0, consumerGroup="H")) == [b"b", b"c"]


async def test_deleted_topic_and_group_bring_nothing_back(
    broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ
) -> None:
    await broker.stored("a")
    await broker.stored("b", topic="U")
    await broker.popped(invisibleTime=1000)
    await broker.popped("U", invisibleTime=1000, consumerGroup="H")
    assert (await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    gone = {"groupName": "H", "cleanOffset": "true"}
    assert (await broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
    assert (server.in_flight("G"), [message.body for message in server.in_flight("H")]) == ([], [b"b"])
    await clock.advance(10)
    assert (server.retries("G"), server.retries("H")) == ([], [])


async def test_truncated_messages_do_not_come_back(broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a", "b")
    await broker.popped(invisibleTime=1000)
    server.truncate("broker-a", 1)
    await broker.stored("c")
    await clock.advance(3)
    assert [message.body for message in server.retries("G")] == [b"a"]


async def test_what_was_popped_survives_a_restart(broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a", "b")
    popped = await broker.popped(invisibleTime=5000)
    await server.stop()
    await server.start()
    async with PopClient(server.brokers["broker-a"]) as again:
        assert bodies(await again.popped()) == []
        await again.ack("T", popped[0])
        await clock.advance(7)
        assert bodies(await again.popped()) == [b"b"]


def test_check_points_of_acknowledged_messages_are_swept_out() -> None:
    points = check_points.CheckPoints()
    for number in range(10_000):
        handle = check_points.Handle("G", "T", 0, number, number, 60_000)
        points.add(handle, [number])
        points.ack(handle, number)
        assert points.kept <= 1026
    assert (points.messages, points.next_end()) == (0, None)
