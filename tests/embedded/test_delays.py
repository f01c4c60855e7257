"""Delay levels, timers and recall, on a clock that the test moves; and that clock."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging

import pytest

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock, SystemClock
from rmq_async.embedded.clock import Alarm
from rmq_async.embedded.schedule import DELAY_LEVELS, MAX_DELAY_MS, SCHEDULE_TOPIC, TIMER_TOPIC, Schedule
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.recall import RecallHandle, decode_recall_handle, encode_recall_handle

from .raw import RawClient, oneway, pull_fields, send_fields

START = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


def bodies(server: EmbeddedRocketMQ, topic: str = "T") -> list[bytes]:
    return [message.body for message in server.messages(topic)]


def schedule_of(server: EmbeddedRocketMQ) -> Schedule:
    return server._brokers[0]._schedule


async def send(broker: RawClient, body: bytes, topic: str = "T", **properties: object) -> RemotingCommand:
    named = {"UNIQ_KEY": body.decode(), **{name: str(value) for name, value in properties.items()}}
    return await broker.send(topic, body, properties=named)


async def sent(broker: RawClient, body: bytes, topic: str = "T", **properties: object) -> dict[str, str | None]:
    response = await send(broker, body, topic, **properties)
    assert response.code == 0, response.remark
    return response.ext_fields or {}


# ------------------------------------------------------------------------------------------------------------------- levels


async def test_each_level_delivers_when_its_time_has_come_and_not_before(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    for level in range(18, 0, -1):
        answer = await sent(broker, b"%d" % level, DELAY=level)
        assert (answer["queueId"], answer["queueOffset"], "recallHandle" in answer) == ("0", "0", False)
    for level, seconds in enumerate(DELAY_LEVELS, 1):
        await clock.advance(seconds - 0.001 - (clock.now_ms() - START) / 1000)
        assert len(bodies(server)) == level - 1
        await clock.advance(0.001)
        assert bodies(server)[-1] == b"%d" % level
    assert [message.store_time_ms for message in server.messages("T")] == [START + 1000 * each for each in DELAY_LEVELS]


async def test_a_delayed_message_comes_as_it_was_sent(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    properties = {
        "UNIQ_KEY": "u",
        "KEYS": "k1 k2",
        "TAGS": "A",
        "WAIT": "true",
        "mine": "x",
        "DELAY": "2",
        "REAL_TOPIC": "forged",
    }
    await broker.send("T", b"body", queue=3, properties=properties, h="-9", j="4")
    (waits,) = server.messages(SCHEDULE_TOPIC)
    assert (waits.queue.queue_id, waits.properties["REAL_TOPIC"], waits.properties["REAL_QID"]) == (1, "T", "3")
    await clock.advance(5)
    (message,) = server.messages("T")
    added = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert message.properties == {**properties, **added, "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert (message.body, message.flag, message.reconsume_times, message.queue.queue_id) == (b"body", -9, 4, 3)
    assert (message.born_time_ms, message.born_host) == (waits.born_time_ms, broker.local)


async def test_levels_above_the_last_are_the_last(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    await sent(broker, b"a", DELAY=99)
    await sent(broker, b"b", DELAY=2**31 - 1)
    await clock.advance(7199.999)
    assert bodies(server) == []
    await clock.advance(0.001)
    assert bodies(server) == [b"a", b"b"]
    assert {message.properties["DELAY"] for message in server.messages("T")} == {"18"}


@pytest.mark.parametrize("level", ["0", "-1", "-2147483648", "+0"])
async def test_levels_below_1_do_not_wait(server: EmbeddedRocketMQ, broker: RawClient, level: str) -> None:
    await sent(broker, b"a", DELAY=level)
    assert [message.properties["DELAY"] for message in server.messages("T")] == [level]


@pytest.mark.parametrize("level", ["x", "1.5", "2147483648", "-2147483649", "1" + "0" * 30, " 1", "٣"])
async def test_a_level_that_is_no_number_is_1_and_stores_nothing(
    server: EmbeddedRocketMQ, broker: RawClient, level: str
) -> None:
    response = await send(broker, b"a", DELAY=level)
    assert (response.code, response.remark) == (1, f'java.lang.NumberFormatException: For input string: "{level}"')
    assert bodies(server) == bodies(server, SCHEDULE_TOPIC) == []


async def test_levels_are_what_the_server_was_told(clock: ManualClock) -> None:
    async with EmbeddedRocketMQ(clock=clock, delay_levels=(0, 0.25)) as server, RawClient(server.brokers["broker-a"]) as broker:
        await sent(broker, b"now", DELAY=1)
        await sent(broker, b"later", DELAY=9)
        assert bodies(server) == [b"now"]
        await clock.advance(0.25)
        assert bodies(server) == [b"now", b"later"]


# ------------------------------------------------------------------------------------------------------------------- timers


@pytest.mark.parametrize(
    ("properties", "seconds"),
    [
        ({"TIMER_DELAY_SEC": 5}, 5),
        ({"TIMER_DELAY_MS": 1}, 1),
        ({"TIMER_DELAY_MS": 1000}, 1),
        ({"TIMER_DELAY_MS": 1001}, 2),
        ({"TIMER_DELIVER_MS": START + 2500}, 3),
        ({"TIMER_DELAY_MS": MAX_DELAY_MS}, MAX_DELAY_MS // 1000),
        ({"TIMER_DELAY_SEC": 2, "TIMER_DELAY_MS": 9000, "TIMER_DELIVER_MS": START + 9000}, 2),
        ({"TIMER_DELAY_MS": 2000, "TIMER_DELIVER_MS": START + 9000}, 2),
        ({"TIMER_DELAY_SEC": 9, "DELAY": 1}, 1),
    ],
)
async def test_timers_deliver_at_the_second_that_follows(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock, properties: dict[str, int], seconds: int
) -> None:
    await sent(broker, b"a", **properties)
    await clock.advance(seconds - 0.001)
    assert bodies(server) == []
    await clock.advance(0.001)
    assert bodies(server) == [b"a"]
    await clock.advance(MAX_DELAY_MS / 1000)
    assert len(bodies(server)) == 1


async def test_a_timer_message_says_when_it_waited(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    answer = await sent(broker, b"u", TIMER_DELAY_MS=2500)
    assert decode_recall_handle(answer["recallHandle"]) == RecallHandle("T", "broker-a", str(START + 2001), "u")
    await clock.advance(3)
    (message,) = server.messages("T")
    times = {name: message.properties[name] for name in ("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")}
    assert times == {"TIMER_OUT_MS": str(START + 2000), "TIMER_ENQUEUE_MS": str(START), "TIMER_DEQUEUE_MS": str(START + 3000)}


async def test_a_timer_message_without_room_for_its_times_is_delivered_without(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    room = 32767
    while (await send(broker, b"u", TIMER_DELAY_SEC=1, pad="x" * room)).code == 13:
        room -= 1 if room < 32600 else 100
    await clock.advance(1)
    (message,) = server.messages("T")
    assert len(message.properties["pad"]) == room
    assert "TIMER_DEQUEUE_MS" not in message.properties


@pytest.mark.parametrize(
    "properties",
    [{"TIMER_DELIVER_MS": START}, {"TIMER_DELIVER_MS": -(10**18)}, {"TIMER_DELAY_MS": -1}, {"TIMER_DELAY_SEC": 0}],
)
async def test_timers_in_the_past_do_not_wait(server: EmbeddedRocketMQ, broker: RawClient, properties: dict[str, int]) -> None:
    assert "recallHandle" not in await sent(broker, b"a", **properties)
    assert bodies(server) == [b"a"]


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
async def test_timers_that_are_none_or_too_far_are_13_and_store_nothing(
    server: EmbeddedRocketMQ, broker: RawClient, name: str
) -> None:
    texts = ["1" + "0" * 30, "-1" + "0" * 30, "soon", "1.5", "1e3", "0x10", " 5", str(2**63 - 1), str(START + MAX_DELAY_MS + 1)]
    for text in texts:
        response = await send(broker, b"a", **{name: text})
        assert (response.code, (response.remark or "")[:21]) == (13, "timer message illegal"), text
    assert (await send(broker, b"a", **{name: "-5", "TIMER_DEL_UNIQKEY": "u"})).code == 13
    assert bodies(server) == bodies(server, TIMER_TOPIC) == []


async def test_what_clients_send_to_the_timers_topic_themselves_just_lies_there(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    for properties in ({"DELAY": "0", "TIMER_OUT_MS": "x"}, {"DELAY": "0", "TIMER_OUT_MS": str(START + 1000)}):
        assert "recallHandle" not in await sent(broker, b"a", TIMER_TOPIC, **properties)
    broker.write(310, send_fields(TIMER_TOPIC, properties={"TRACE_ON": "true", "TIMER_OUT_MS": "x"}), b"x", flag=oneway())
    await clock.advance(10)
    assert len(bodies(server, TIMER_TOPIC)) == 3


# ---------------------------------------------------------------------------------------------------------------- the order


async def test_messages_come_in_the_order_of_their_times_then_in_that_of_sending(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
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
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, delay: str
) -> None:
    for number in range(10):
        await broker.send("T", bytes([number]) * 1_000_000, properties={"UNIQ_KEY": "u", delay: "1"})
    schedule, after = schedule_of(server), [0]
    ring = schedule._ring

    def counted() -> None:
        ring()
        after.append(len(bodies(server)))

    monkeypatch.setattr(schedule._alarm, "_ring", counted)
    await clock.advance(1)
    assert [body[0] for body in bodies(server)] == list(range(10))
    assert max(more - before for before, more in itertools.pairwise(after)) <= 5


async def test_a_pull_that_waits_is_answered_when_the_message_is_due(broker: RawClient, clock: ManualClock) -> None:
    await sent(broker, b"a", DELAY=18)
    broker.write(RequestCode.PULL_MESSAGE, pull_fields("T", sysFlag="6", suspendTimeoutMillis="60000"))
    await broker.offset(RequestCode.GET_MAX_OFFSET, "T")  # the pull is held by now
    await clock.advance(7200)
    response = await broker.read()
    assert (response.code, response.remark) == (0, "FOUND")


async def test_thousands_of_waiting_messages_have_one_timer(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    for number in range(1000):
        delay = {"DELAY": str(1 + number % 18)} if number % 2 else {"TIMER_DELAY_SEC": str(1000 - number)}
        broker.write(310, send_fields("T", properties={"UNIQ_KEY": "u", **delay}), b"x", flag=oneway())
    assert await broker.offset(RequestCode.GET_MAX_OFFSET, TIMER_TOPIC) == 500
    assert sum(timer.call is not None for _, _, timer in clock._timers) == 1


# ------------------------------------------------------------------------------------------------ restarts, deletion, bounds


async def test_messages_wait_through_a_restart_and_what_came_due_meanwhile_is_delivered_at_the_start(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    for number in range(300):
        broker.write(310, send_fields("T", properties={"UNIQ_KEY": "u", "DELAY": "1"}), b"%d" % number, flag=oneway())
    await sent(broker, b"timer", TIMER_DELAY_SEC=2)
    await sent(broker, b"later", TIMER_DELAY_SEC=20)
    recalled = await sent(broker, b"recalled", TIMER_DELAY_SEC=20)
    await recall(broker, recalled["recallHandle"])
    await server.stop()
    assert sum(timer.call is not None for _, _, timer in clock._timers) == 0
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
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"1", b"2"):
        await sent(broker, body, "gone", DELAY=1)
        await sent(broker, body, "stays", DELAY=1)
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})
    with caplog.at_level(logging.WARNING, "rmq_async.embedded"):
        await clock.advance(1)
    assert bodies(server, "stays") == [b"1", b"2"]
    (record,) = caplog.records
    assert record.getMessage().startswith("broker-a: messages that were due are lost, 2 of them: gone: topic[gone] not exist")


async def test_a_topic_made_anew_gets_what_waited_for_the_old_one(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    await sent(broker, b"a", DELAY=1)
    await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await broker.create_topic("T", 1)
    await clock.advance(1)
    assert bodies(server) == [b"a"]


async def test_cleared_messages_do_not_come(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    await sent(broker, b"level", DELAY=1)
    await sent(broker, b"timer", TIMER_DELAY_SEC=1)
    server.clear()
    await sent(broker, b"after", DELAY=1)
    await clock.advance(1)
    assert bodies(server) == [b"after"]


async def test_of_messages_that_wait_the_memory_bound_takes_the_oldest_and_what_is_known_of_them(clock: ManualClock) -> None:
    async with EmbeddedRocketMQ(clock=clock, max_memory=1_000_000) as server, RawClient(server.brokers["broker-a"]) as broker:
        for number in range(4000):
            delay = {"DELAY": "5"} if number % 2 else {"TIMER_DELAY_SEC": "60"}
            properties = {"UNIQ_KEY": f"{number}", **delay}
            broker.write(310, send_fields("T", properties=properties), b"%d" % number, flag=oneway())
        for where in ((SCHEDULE_TOPIC, 4), (TIMER_TOPIC, 0)):
            assert await broker.offset(RequestCode.GET_MIN_OFFSET, *where) > 0
        waiting = len(server.messages(SCHEDULE_TOPIC)) + len(server.messages(TIMER_TOPIC))
        schedule = schedule_of(server)
        assert len(schedule._heap) <= 1024 + 2 * waiting
        await clock.advance(60)
        assert await broker.offset(RequestCode.GET_MAX_OFFSET, "T") >= waiting // 2  # what came pushed out some that waited
        found = [int(body) for body in bodies(server)]
        for kind in (0, 1):
            of_kind = [number for number in found if number % 2 == kind]
            assert of_kind == sorted(of_kind)
        assert schedule._heap == []
        assert server._log.memory <= 1_000_000


async def test_timers_whose_messages_are_gone_are_swept_out(clock: ManualClock) -> None:
    async with EmbeddedRocketMQ(clock=clock) as server, RawClient(server.brokers["broker-a"]) as broker:
        for _ in range(1500):
            broker.write(310, send_fields("T", properties={"UNIQ_KEY": "u", "TIMER_DELAY_SEC": "60"}), b"x", flag=oneway())
        assert await broker.offset(RequestCode.GET_MAX_OFFSET, TIMER_TOPIC) == 1500
        server.clear()
        server._brokers[0].tick()  # as every few seconds
        assert schedule_of(server)._heap == []


# ------------------------------------------------------------------------------------------------------------------- recall


async def recall(broker: RawClient, handle: str | None, topic: str = "T") -> RemotingCommand:
    fields = {"producerGroup": "PG", "topic": topic, "recallHandle": handle or ""}
    return await broker.ask(RequestCode.RECALL_MESSAGE, fields)


async def test_a_recalled_message_does_not_come_and_the_others_of_its_second_do(
    server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock
) -> None:
    handles = {}
    for body in (b"1", b"2", b"3"):
        handles[body] = (await sent(broker, body, TIMER_DELAY_SEC=5))["recallHandle"]
        await sent(broker, body, "other", TIMER_DELAY_SEC=5)  # the same ids in another topic
        await sent(broker, body, TIMER_DELAY_SEC=6)
    for _ in range(2):  # again is no error
        response = await recall(broker, handles[b"2"])
        assert (response.code, response.remark) == (0, None)
        assert response.ext_fields == {"msgId": "2", "MSG_REGION": "DefaultRegion"}
    await clock.advance(5)
    assert bodies(server) == [b"1", b"3"]
    await clock.advance(5)
    assert bodies(server) == [b"1", b"3", b"1", b"2", b"3"]
    assert bodies(server, "other") == [b"1", b"2", b"3"]


async def test_a_message_that_came_cannot_be_recalled(broker: RawClient, clock: ManualClock) -> None:
    handle = (await sent(broker, b"u", TIMER_DELAY_SEC=2))["recallHandle"]
    await clock.advance(2)
    response = await recall(broker, handle)
    assert (response.code, response.remark) == (604, "recall failed, timestamp invalid")


async def test_handles_of_another_topic_broker_or_time(broker: RawClient) -> None:
    await sent(broker, b"u", TIMER_DELAY_SEC=5)
    soon = str(START + 4001)

    async def remark(*parts: str, topic: str = "T") -> str | None:
        response = await recall(broker, encode_recall_handle(RecallHandle(*parts)), topic)
        assert response.code in (17, 604)
        assert response.ext_fields == {"MSG_REGION": "DefaultRegion"}
        return response.remark

    assert await remark("nope", "broker-a", soon, "u", topic="nope") == "recall failed, the topic[nope] not exist"
    assert await remark("U", "broker-a", soon, "u") == "recall failed, topic not match"
    assert await remark("T", "broker-b", soon, "u") == "recall failed, broker service not available"
    for when in (str(START), "0", "-1", "x", "9" * 30, str(START + MAX_DELAY_MS), "٣" * 13, "1e13"):
        assert await remark("T", "broker-a", when, "u") == "recall failed, timestamp invalid", when


@pytest.mark.parametrize("text", ["", "!", "bm90IGEgaGFuZGxl", "v1", "A", "=" * 9, "A" * 100_000])
async def test_what_is_no_handle_is_604(server: EmbeddedRocketMQ, broker: RawClient, text: str) -> None:
    await broker.create_topic("T")
    response = await recall(broker, text)
    if text:
        assert (response.code, response.remark) == (604, "recall handle is invalid")
    else:
        assert response.code in (1, 604)
    assert bodies(server, TIMER_TOPIC) == []


async def test_ids_that_no_message_can_have(server: EmbeddedRocketMQ, broker: RawClient, clock: ManualClock) -> None:
    await sent(broker, b"u", TIMER_DELAY_SEC=5)
    parts = f"v1 T broker-a {START + 4001} "
    ids = ("x" * 40_000, "w\x02UNIQ_KEY\x01u\x02", "", "nobody's")
    handles = [base64.urlsafe_b64encode((parts + each).encode()).decode() for each in ids]
    answers = [(await recall(broker, handle)).code for handle in handles]
    assert answers == [13, 0, 0, 0]
    await clock.advance(60)
    assert bodies(server) == [b"u"]


async def test_recalls_of_nothing_take_no_more_than_messages_do(clock: ManualClock) -> None:
    async with EmbeddedRocketMQ(clock=clock, max_memory=500_000) as server, RawClient(server.brokers["broker-a"]) as broker:
        await broker.create_topic("T")
        for number in range(3000):
            handle = encode_recall_handle(RecallHandle("T", "broker-a", str(START + 5001), f"u{number}"))
            fields = {"producerGroup": "PG", "topic": "T", "recallHandle": handle}
            broker.write(RequestCode.RECALL_MESSAGE, fields, flag=oneway())
        assert await broker.offset(RequestCode.GET_MIN_OFFSET, TIMER_TOPIC) > 0
        assert server._log.memory <= 500_000
        assert len(schedule_of(server)._heap) <= 1024 + 2 * len(server.messages(TIMER_TOPIC))
        await clock.advance(60)
        assert bodies(server) == []


# ---------------------------------------------------------------------------------------------------------------- the clock


async def test_the_manual_clock_calls_in_the_order_of_times_each_at_its_own() -> None:
    clock = ManualClock(1000)
    calls: list[tuple[str, int]] = []

    def note(name: str) -> None:
        calls.append((name, clock.now_ms()))

    for name, when in (("c", 3000), ("a", 2000), ("b", 2000), ("d", 4001)):
        clock.call_at(when, lambda name=name: note(name))
    clock.call_at(2500, lambda: note("cancelled")).cancel()
    clock.call_at(2000, lambda: clock.call_at(2600, lambda: note("nested")))
    await clock.advance(3)
    assert calls == [("a", 2000), ("b", 2000), ("nested", 2600), ("c", 3000)]
    assert clock.now_ms() == 4000
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="from 0 on"):
            await clock.advance(seconds)


async def test_what_is_due_already_is_called_by_the_event_loop() -> None:
    clock = ManualClock(1000)
    calls: list[int] = []

    def again() -> None:
        calls.append(len(calls))
        if len(calls) < 3:
            clock.call_at(0, again)

    clock.call_at(1000, again)
    clock.call_at(500, lambda: calls.append(-1)).cancel()
    assert calls == []
    for turns in range(1, 4):
        await asyncio.sleep(0)
        assert len(calls) == turns  # others have their turn between them
    clock.call_at(1001, again)
    await asyncio.sleep(0)
    assert calls == [0, 1, 2]


async def test_an_alarm_rings_at_the_earliest_time_and_not_before_though_the_clock_goes_back() -> None:
    clock = ManualClock(10_000)
    rung: list[int] = []
    alarm = Alarm(clock, lambda: rung.append(clock.now_ms()))
    alarm.by(11_000)  # not on yet
    alarm.start()
    for when in (15_000, 12_000, 13_000):
        alarm.by(when)
    clock._now = 5000
    await clock.advance(6.999)
    assert rung == []
    await clock.advance(0.001)
    assert rung == [12_000]
    alarm.by(20_000)
    alarm.stop()
    alarm.by(20_000)
    await clock.advance(60)
    assert rung == [12_000]


async def test_the_machines_clock_delivers_too() -> None:
    levels = (0.02, 0.01)
    async with EmbeddedRocketMQ(delay_levels=levels) as server, RawClient(server.brokers["broker-a"]) as broker:
        assert isinstance(server._brokers[0]._schedule._clock, SystemClock)
        await sent(broker, b"second", DELAY=1)
        await sent(broker, b"first", DELAY=2)
        for _ in range(200):
            if len(bodies(server)) == 2:
                break
            await asyncio.sleep(0.005)
        waits, comes = server.messages(SCHEDULE_TOPIC), server.messages("T")
        assert {message.body for message in comes} == {b"first", b"second"}
        for body, delay in ((b"second", 20), (b"first", 10)):
            stored, came = (next(each for each in where if each.body == body).store_time_ms for where in (waits, comes))
            assert came - stored >= delay


async def test_levels_above_the_highest_count_as_it() -> None:
    """And there may be more than the 18 of a stock broker."""
    clock = ManualClock()
    levels = [1000.0] * 18 + [1.0, 2.0]
    async with EmbeddedRocketMQ(clock=clock, delay_levels=levels) as server, Producer("g", namesrv=server.namesrv) as sender:
        for level in (18, 19, 20, 21, 2**31 - 1):
            await sender.send(Message("T", b"%d" % level, delay_level=level))
        await clock.advance(1.5)
        assert [message.body for message in server.messages("T")] == [b"19"]
        await clock.advance(1.0)
        assert [(each.body, each.delay_level) for each in server.messages("T")] == [
            (b"19", 19), (b"20", 20), (b"21", 20), (b"2147483647", 20)
        ]  # fmt: skip
