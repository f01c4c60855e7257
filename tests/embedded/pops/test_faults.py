"""What a test makes go wrong with pops."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.constants import RequestCode

from ..inside import broker_of
from .support import PopClient, bodies, taken

pytestmark = pytest.mark.virtual_time


async def test_empty_pops_are_answered_at_once(broker: PopClient, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a")
    server.empty_pops(2)
    for _ in range(2):
        response = await broker.pop(pollTime=15_000)
        assert (response.code, (response.ext_fields or {})["msgOffsetInfo"]) == (210, "")
    assert bodies(await broker.popped()) == [b"a"]


async def test_lost_acks_have_no_effect(broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a", "b")
    popped = await broker.popped(invisibleTime=1000)
    server.lose_acks(2)
    assert (await broker.ack("T", popped[0])).code == 0
    assert (await broker.ack_batch("T", popped)).code == 0
    assert len(server.in_flight("G")) == 2
    assert (await broker.ack_batch("T", popped[:1])).code == 0
    assert len(server.in_flight("G")) == 1
    await clock.advance(3)
    assert bodies(await broker.popped()) == [b"b"]


async def test_lost_answers_of_pops_leave_the_messages_taken(
    broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ
) -> None:
    await broker.stored("a")
    server.lose_answers(1, request=RequestCode.POP_MESSAGE)
    broker.write(RequestCode.POP_MESSAGE, broker.pop_fields("T", invisibleTime=1000))
    assert bodies(await broker.popped()) == []
    server.lose_answers(1, request=RequestCode.POP_MESSAGE)
    broker.write(RequestCode.POP_MESSAGE, broker.pop_fields("T", invisibleTime=1000, pollTime=15_000))
    await asyncio.sleep(0.05)
    await clock.advance(3)  # comes back to the pop that is held, whose answer is lost, too
    await asyncio.sleep(0.05)
    assert bodies(await broker.popped()) == []
    await clock.advance(3)
    (again,) = await broker.popped()
    assert again.message.reconsume_times == 2


async def test_late_and_repeated_revival(broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a")
    server.delay_revival(10)
    server.repeat_revival(2)
    await broker.popped(invisibleTime=1000)
    await clock.advance(12.9)
    assert bodies(await broker.popped()) == []
    await clock.advance(0.1)
    assert bodies(await broker.popped(invisibleTime=1000)) == [b"a", b"a"]
    server.repeat_revival(1)
    server.delay_revival(0)
    await clock.advance(3)
    assert bodies(await broker.popped()) == [b"a", b"a"]


async def test_lost_offsets_bring_acknowledged_messages_again(
    broker: PopClient, clock: ManualClock, server: EmbeddedRocketMQ
) -> None:
    await broker.stored("a", "b", "c")
    (first,) = await broker.popped(maxMsgNums=1)
    await broker.ack("T", first)
    for _ in range(2):
        broker_of(server).tick()
    second = await broker.popped(invisibleTime=1000)
    await broker.ack("T", second[0])
    server.lose_offsets()
    await clock.advance(0.001)
    again = await broker.popped()
    assert ([each.message.reconsume_times for each in again], bodies(again)) == ([0, 0], [b"b", b"c"])
    await broker.ack_batch("T", again)
    await clock.advance(3)
    assert bodies(await broker.popped()) == [b"c"]  # of the first pop, by whose handle it was not acknowledged


async def test_switches_refuse_what_is_no_number(server: EmbeddedRocketMQ) -> None:
    for call in (server.empty_pops, server.lose_acks):
        with pytest.raises(ValueError, match="n must not be negative, it is -1"):
            call(-1)
    with pytest.raises(ValueError, match="copies must be from 1 to 16, not 0"):
        server.repeat_revival(0)
    with pytest.raises(ValueError, match="seconds must be a finite, non-negative number of seconds, not -1"):
        server.delay_revival(-1)
    with pytest.raises(ValueError, match="n must not be negative, it is -1"):
        server.lose_answers(-1, request=200050)
    with pytest.raises(ValueError, match="there is no broker 'broker-z'"):
        server.empty_pops(broker="broker-z")
    server.lose_answers(3, request=200050)
    server.lose_answers(0, request=200050)


async def test_notification_says_when_there_is_a_message(broker: PopClient, server: EmbeddedRocketMQ) -> None:
    await broker.stored("a")
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "pollTime": "15000", "bornTime": "0"}
    response = await broker.ask(RequestCode.NOTIFICATION, fields)
    assert (response.code, response.ext_fields) == (0, {"hasMsg": "true", "pollingFull": "false"})
    assert bodies(await broker.popped()) == [b"a"]
    broker.write(RequestCode.NOTIFICATION, fields)
    async with PopClient(server.brokers["broker-a"]) as other:
        await other.stored("b")
        assert (await broker.read()).ext_fields == {"hasMsg": "true", "pollingFull": "false"}
        response = await other.ask(RequestCode.NOTIFICATION, {**fields, "topic": "U"})
        assert (response.code, response.ext_fields) == (17, {"hasMsg": "false", "pollingFull": "false"})
    assert bodies(taken(await broker.pop())) == [b"b"]
