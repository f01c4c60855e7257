"""Timers: messages for a time of their own."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.schedule import MAX_DELAY_MS, TIMER_TOPIC
from rmq_protocol.recall import RecallHandle, decode_recall_handle

from ...support.fakes import RawClient, oneway, send_fields
from ..inside import START, WatchedClock
from .support import bodies, send, sent

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
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock, properties: dict[str, int], seconds: int
) -> None:
    await sent(broker, b"a", **properties)
    await clock.advance(seconds - 0.001)
    assert bodies(server) == []
    await clock.advance(0.001)
    assert bodies(server) == [b"a"]
    await clock.advance(MAX_DELAY_MS / 1000)
    assert len(bodies(server)) == 1


async def test_a_timer_message_says_when_it_waited(server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock) -> None:
    answer = await sent(broker, b"u", TIMER_DELAY_MS=2500)
    assert decode_recall_handle(answer["recallHandle"]) == RecallHandle("T", "broker-a", str(START + 2001), "u")
    await clock.advance(3)
    (message,) = server.messages("T")
    times = {name: message.properties[name] for name in ("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")}
    assert times == {"TIMER_OUT_MS": str(START + 2000), "TIMER_ENQUEUE_MS": str(START), "TIMER_DEQUEUE_MS": str(START + 3000)}


async def test_a_timer_message_without_room_for_its_times_is_delivered_without(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
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
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
) -> None:
    for properties in ({"DELAY": "0", "TIMER_OUT_MS": "x"}, {"DELAY": "0", "TIMER_OUT_MS": str(START + 1000)}):
        assert "recallHandle" not in await sent(broker, b"a", TIMER_TOPIC, **properties)
    broker.write(310, send_fields(TIMER_TOPIC, properties={"TRACE_ON": "true", "TIMER_OUT_MS": "x"}), b"x", flag=oneway())
    await clock.advance(10)
    assert len(bodies(server, TIMER_TOPIC)) == 3
