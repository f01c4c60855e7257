"""Delivery of delayed messages: their order, restarts, deleted topics, and the bounds of memory."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.schedule import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_protocol.constants import RequestCode

from ...support.fakes import RawClient, oneway, pull_fields, send_fields
from ..inside import START, WatchedClock, broker_of, log_of
from .support import bodies, recall, sent, timers

pytestmark = pytest.mark.virtual_time

# ---------------------------------------------------------------------------------------------------------------- the order


async def test_messages_come_in_the_order_of_their_times_then_in_that_of_sending(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
) -> None:
    plan = [(b"%d" % number, 1 + number * 7 % 5) for number in range(600)]
    for body, seconds in plan:
        properties = {"UNIQ_KEY": "u", "TIMER_DELAY_SEC": str(seconds)}
        broker.write(310, send_fields("T", properties=properties), body, flag=oneway())
    await sent(broker, b"level", DELAY=2)
    await clock.advance(60)
    expected = [body for body, _ in sorted(plan, key=lambda each: each[1])]
    assert bodies(server) == [*expected[:480], b"level", *expected[480:]]
    times = [message.store_time_ms - START for message in server.messages("T")]
    assert times == sorted(times)
    assert set(times) == {1000, 2000, 3000, 4000, 5000}


@pytest.mark.parametrize("delay", ["DELAY", "TIMER_DELAY_SEC"])
async def test_of_large_messages_that_are_due_some_4_mb_leave_before_others_have_their_turn(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock, delay: str
) -> None:
    for number in range(10):
        await broker.send("T", bytes([number]) * 1_000_000, properties={"UNIQ_KEY": "u", delay: "1"})
    after = [0]
    clock.after = lambda: after.append(len(bodies(server)))
    await clock.advance(1)
    assert [body[0] for body in bodies(server)] == list(range(10))
    assert max(more - before for before, more in itertools.pairwise(after)) <= 5


async def test_a_pull_that_waits_is_answered_when_the_message_is_due(broker: RawClient, clock: WatchedClock) -> None:
    await sent(broker, b"a", DELAY=18)
    broker.write(RequestCode.PULL_MESSAGE, pull_fields("T", sysFlag="6", suspendTimeoutMillis="60000"))
    await broker.offset(RequestCode.GET_MAX_OFFSET, "T")  # the pull is held by now
    await clock.advance(7200)
    response = await broker.read()
    assert (response.code, response.remark) == (0, "FOUND")


async def test_thousands_of_waiting_messages_have_one_timer(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
) -> None:
    for number in range(1000):
        delay = {"DELAY": str(1 + number % 18)} if number % 2 else {"TIMER_DELAY_SEC": str(1000 - number)}
        broker.write(310, send_fields("T", properties={"UNIQ_KEY": "u", **delay}), b"x", flag=oneway())
    assert await broker.offset(RequestCode.GET_MAX_OFFSET, TIMER_TOPIC) == 500
    assert len(clock.waiting) == 1


# ------------------------------------------------------------------------------------------------ restarts, deletion, bounds


async def test_messages_wait_through_a_restart_and_what_came_due_meanwhile_is_delivered_at_the_start(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
) -> None:
    for number in range(300):
        broker.write(310, send_fields("T", properties={"UNIQ_KEY": "u", "DELAY": "1"}), b"%d" % number, flag=oneway())
    await sent(broker, b"timer", TIMER_DELAY_SEC=2)
    await sent(broker, b"later", TIMER_DELAY_SEC=20)
    recalled = await sent(broker, b"recalled", TIMER_DELAY_SEC=20)
    await recall(broker, recalled["recallHandle"])
    await server.stop()
    assert len(clock.waiting) == 0
    await clock.advance(10)
    assert bodies(server) == []
    await server.start()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(bodies(server)) == 301
    assert set(bodies(server)) == {b"timer", *(b"%d" % number for number in range(300))}
    await clock.advance(10)
    assert bodies(server)[301:] == [b"later"]


async def test_messages_that_are_due_for_a_deleted_topic_are_lost_with_one_warning(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"1", b"2"):
        await sent(broker, body, "gone", DELAY=1)
        await sent(broker, body, "stays", DELAY=1)
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})
    with caplog.at_level(logging.WARNING, "rmq_async.embedded"):
        await clock.advance(1)
    assert bodies(server, "stays") == [b"1", b"2"]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "broker-a: 2 due messages could not be stored and are lost, last gone: topic[gone] not exist"
    )


async def test_a_topic_made_anew_gets_what_waited_for_the_old_one(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
) -> None:
    await sent(broker, b"a", DELAY=1)
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await broker.create_topic("T", 1)
    await clock.advance(1)
    assert bodies(server) == [b"a"]


async def test_cleared_messages_do_not_come(server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock) -> None:
    await sent(broker, b"level", DELAY=1)
    await sent(broker, b"timer", TIMER_DELAY_SEC=1)
    server.clear()
    await sent(broker, b"after", DELAY=1)
    await clock.advance(1)
    assert bodies(server) == [b"after"]


async def test_of_messages_that_wait_the_memory_bound_takes_the_oldest_and_what_is_known_of_them(clock: WatchedClock) -> None:
    async with EmbeddedRocketMQ(clock=clock, max_memory=1_000_000) as server, RawClient(server.brokers["broker-a"]) as broker:
        for number in range(4000):
            delay = {"DELAY": "5"} if number % 2 else {"TIMER_DELAY_SEC": "60"}
            properties = {"UNIQ_KEY": f"{number}", **delay}
            broker.write(310, send_fields("T", properties=properties), b"%d" % number, flag=oneway())
        for where in ((SCHEDULE_TOPIC, 4), (TIMER_TOPIC, 0)):
            assert await broker.offset(RequestCode.GET_MIN_OFFSET, *where) > 0
        waiting = len(server.messages(SCHEDULE_TOPIC)) + len(server.messages(TIMER_TOPIC))
        assert timers(server) <= 1024 + 2 * waiting
        await clock.advance(60)
        assert await broker.offset(RequestCode.GET_MAX_OFFSET, "T") >= waiting // 2  # what came pushed out some that waited
        found = [int(body) for body in bodies(server)]
        for kind in (0, 1):
            of_kind = [number for number in found if number % 2 == kind]
            assert of_kind == sorted(of_kind)
        assert timers(server) == 0
        assert log_of(server).memory <= 1_000_000


async def test_timers_whose_messages_are_gone_are_swept_out(clock: WatchedClock) -> None:
    async with EmbeddedRocketMQ(clock=clock) as server, RawClient(server.brokers["broker-a"]) as broker:
        for _ in range(1500):
            broker.write(310, send_fields("T", properties={"UNIQ_KEY": "u", "TIMER_DELAY_SEC": "60"}), b"x", flag=oneway())
        assert await broker.offset(RequestCode.GET_MAX_OFFSET, TIMER_TOPIC) == 1500
        server.clear()
        broker_of(server).tick()  # as every few seconds
        assert timers(server) == 0
