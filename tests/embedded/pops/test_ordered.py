"""Pops in order: a queue belongs to the last pop until all is acknowledged or visible again."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue

from .support import PopClient, bodies, taken

pytestmark = pytest.mark.virtual_time

QUEUE = MessageQueue("T", "broker-a", 0)


async def test_a_queue_is_blocked_until_all_its_messages_are_acknowledged(broker: PopClient, server: EmbeddedRocketMQ) -> None:
    await broker.stored(*"abc")
    popped = await broker.popped(order="true", maxMsgNums=2)
    assert [each.handle.revive_qid for each in popped] == [999, 999]
    assert bodies(await broker.popped(order="true")) == []
    assert (await broker.ack("T", popped[1])).code == 0
    assert server.progress("G")[QUEUE] == 0
    assert bodies(await broker.popped(order="true")) == []
    assert (await broker.ack("T", popped[0])).code == 0
    assert server.progress("G")[QUEUE] == 2
    assert bodies(await broker.popped(order="true")) == [b"c"]


async def test_the_same_attempt_gets_the_same_messages_and_voids_the_first_handles(
    broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ
) -> None:
    await broker.stored("a")
    (first,) = await broker.popped(order="true", attemptId="1")
    await clock.advance(0.001)
    response = await broker.pop(order="true", attemptId="1")
    assert (response.ext_fields or {})["orderCountInfo"] == "0 0 0"
    (again,) = taken(response)
    assert (await broker.ack("T", first)).code == 0
    assert server.progress("G")[QUEUE] == 0
    assert (await broker.ack("T", again)).code == 0
    assert server.progress("G")[QUEUE] == 1


async def test_messages_come_again_from_the_queue_and_are_counted(broker: PopClient, clock: ManualClock) -> None:
    await broker.stored(*"ab")
    await broker.popped(order="true", maxMsgNums=1, invisibleTime=1000)
    await clock.advance(1)
    response = await broker.pop(order="true", invisibleTime=1000)
    assert (bodies(taken(response)), (response.ext_fields or {})["orderCountInfo"]) == ([b"a", b"b"], "0 qo0%0 1;0 0 0")
    await clock.advance(1)
    response = await broker.pop(order="true")
    assert (response.ext_fields or {})["orderCountInfo"] == "0 qo0%0 2;0 qo0%1 1;0 0 1"


async def test_a_held_pop_gets_a_queue_when_it_is_free(broker: PopClient, server: EmbeddedRocketMQ) -> None:
    await broker.stored(*"ab")
    (popped,) = await broker.popped(order="true", maxMsgNums=1)
    broker.write(RequestCode.POP_MESSAGE, broker.pop_fields("T", order="true", pollTime=15_000))
    async with PopClient(server.brokers["broker-a"]) as other:
        await other.ack("T", popped)
        assert bodies(taken(await broker.read())) == [b"b"]


async def test_a_held_pop_looks_when_the_first_message_is_visible_and_at_no_other_time(
    broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ
) -> None:
    await broker.stored(*"ab")
    popped = await broker.popped(order="true", invisibleTime=4000)
    response = await broker.change("T", popped[0], 1500)
    assert (response.ext_fields or {})["invisibleTime"] == "1500"
    broker.write(RequestCode.POP_MESSAGE, broker.pop_fields("T", order="true", pollTime=10_000))
    await asyncio.sleep(0.05)
    for seconds in (1.5, 2.5):
        await clock.advance(seconds)
    async with PopClient(server.brokers["broker-a"]) as other:
        info = {"consumerGroup": "G", "topic": "T", "queueId": "-1"}
        assert (await other.ask(RequestCode.POLLING_INFO, info)).ext_fields == {"pollingNum": "1"}
        await clock.advance(6)
        assert bodies(taken(await broker.read())) == [b"a", b"b"]  # its last look


async def test_an_ack_of_a_message_that_was_not_popped_is_refused(broker: PopClient) -> None:
    await broker.stored(*"ab")
    (popped,) = await broker.popped(order="true", maxMsgNums=1)
    response = await broker.ack("T", popped, offset=1)
    assert (response.code, (response.remark or "")[:20]) == (13, "offset is illegal, k")
