"""Recall of delayed messages."""

from __future__ import annotations

import base64

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.schedule import MAX_DELAY_MS, TIMER_TOPIC
from rmq_protocol.constants import RequestCode
from rmq_protocol.recall import RecallHandle, encode_recall_handle

from ...support.fakes import RawClient, oneway
from ..inside import START, WatchedClock, log_of
from .support import bodies, recall, sent, timers

# ------------------------------------------------------------------------------------------------------------------- recall


async def test_a_recalled_message_does_not_come_and_the_others_of_its_second_do(
    server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock
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


async def test_a_message_that_came_cannot_be_recalled(broker: RawClient, clock: WatchedClock) -> None:
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


async def test_ids_that_no_message_can_have(server: EmbeddedRocketMQ, broker: RawClient, clock: WatchedClock) -> None:
    await sent(broker, b"u", TIMER_DELAY_SEC=5)
    parts = f"v1 T broker-a {START + 4001} "
    ids = ("x" * 40_000, "w\x02UNIQ_KEY\x01u\x02", "", "unknown")
    handles = [base64.urlsafe_b64encode((parts + each).encode()).decode() for each in ids]
    answers = [(await recall(broker, handle)).code for handle in handles]
    assert answers == [13, 0, 0, 0]
    await clock.advance(60)
    assert bodies(server) == [b"u"]


@pytest.mark.virtual_time
async def test_recalls_of_nothing_take_no_more_than_messages_do(clock: WatchedClock) -> None:
    async with EmbeddedRocketMQ(clock=clock, max_memory=500_000) as server, RawClient(server.brokers["broker-a"]) as broker:
        await broker.create_topic("T")
        for number in range(3000):
            handle = encode_recall_handle(RecallHandle("T", "broker-a", str(START + 5001), f"u{number}"))
            fields = {"producerGroup": "PG", "topic": "T", "recallHandle": handle}
            broker.write(RequestCode.RECALL_MESSAGE, fields, flag=oneway())
        assert await broker.offset(RequestCode.GET_MIN_OFFSET, TIMER_TOPIC) > 0
        assert log_of(server).memory <= 500_000
        assert timers(server) <= 1024 + 2 * len(server.messages(TIMER_TOPIC))
        await clock.advance(60)
        assert bodies(server) == []
