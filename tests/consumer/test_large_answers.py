"""Answers above ``max_frame_size``: fewer messages are asked for, and one that is too large alone is named."""

from __future__ import annotations

import os

import pytest

from rmq_async.client.pull_sizes import PullSizes
from rmq_async.consumer import PullConsumer
from rmq_async.errors import FrameTooLargeError
from rmq_protocol.constants import RequestCode
from rmq_protocol.message import MessageQueue

from .support import TOPIC, collect, embedded, put, under_way

Q0, Q1 = (MessageQueue(TOPIC, "broker-a", number) for number in range(2))
LIMIT = 65_536
LARGE = 20_000


async def read_all(consumer: PullConsumer) -> dict[MessageQueue, list[bytes]]:
    found: dict[MessageQueue, list[bytes]] = {}
    for message in await collect(consumer.read(TOPIC)):
        found.setdefault(message.queue, []).append(message.body)
    return found


async def test_reading_asks_for_fewer_messages_until_answers_fit() -> None:
    async with embedded(queues=2, max_frame_size=LIMIT) as (server, consumer):
        sent = {Q0: [os.urandom(LARGE) for _ in range(24)], Q1: [b"%d" % number for number in range(40)]}
        for queue, bodies in sent.items():
            await put(consumer, queue, bodies)
        assert await read_all(consumer) == sent
        assert server.requests[RequestCode.PULL_MESSAGE] < 24, "two messages or more at a time"
        assert under_way(consumer) == set()


async def test_pull_returns_as_many_messages_as_fit() -> None:
    async with embedded(max_frame_size=LIMIT) as (server, consumer):
        await put(consumer, Q0, [bytes(LARGE)] * 12)
        first = await consumer.pull(Q0, 0)
        assert len(first.messages) == first.next_offset == 2
        before = server.requests[RequestCode.PULL_MESSAGE]
        assert len((await consumer.pull(Q0, 2)).messages) == 2
        assert server.requests[RequestCode.PULL_MESSAGE] == before + 1, "it remembers what fits"


async def test_pulls_grow_again_behind_large_messages() -> None:
    async with embedded(max_frame_size=LIMIT) as (server, consumer):
        await put(consumer, Q0, [bytes(LARGE)] * 8 + [b"small"] * 320)
        assert len((await read_all(consumer))[Q0]) == 328
        before = server.requests[RequestCode.PULL_MESSAGE]
        assert len((await consumer.pull(Q0, 300)).messages) == 28
        assert server.requests[RequestCode.PULL_MESSAGE] == before + 1


async def test_message_above_max_frame_size_is_named_and_can_be_passed_over() -> None:
    async with embedded(max_frame_size=LIMIT) as (_, consumer):
        await put(consumer, Q0, [b"0", b"1", bytes(LIMIT), b"3"])
        found = []
        with pytest.raises(FrameTooLargeError) as caught:
            async for message in consumer.read(TOPIC):
                found += [message.body]
        assert found == [b"0", b"1"]
        text, size = str(caught.value), caught.value.size
        assert (
            f"the message at offset 2 of {Q0} has {size} bytes, above max_frame_size={LIMIT}; set max_frame_size={size}" in text
        )
        assert caught.value.broker == "broker-a"
        assert [message.body for message in (await consumer.pull(Q0, 3)).messages] == [b"3"]


async def test_large_message_with_another_tag_does_not_stop_a_filtered_reading() -> None:
    async with embedded(queues=1, max_frame_size=LIMIT) as (_, consumer):
        await put(consumer, Q0, [b"0"], tags="a")
        await put(consumer, Q0, [bytes(LIMIT)], tags="b")
        await put(consumer, Q0, [b"2"], tags="a")
        assert [message.body for message in await collect(consumer.read(TOPIC, tags="a"))] == [b"0", b"2"]


def test_pull_sizes_halve_and_double() -> None:
    sizes = PullSizes(1000)
    assert sizes.limit(Q0, 32) == 32
    assert sizes.lower(Q0, 32)
    assert sizes.lower(Q0, 32), "another pull that was under way"
    assert (sizes.limit(Q0, 32), sizes.limit(Q0, 5), sizes.limit(Q1, 32)) == (16, 5, 32)
    assert sizes.lower(Q0, 16)
    sizes.answered(Q0, 8, 251)  # twice as much might not fit
    sizes.answered(Q0, 1, 10)  # says nothing about eight
    assert sizes.limit(Q0, 32) == 8
    sizes.answered(Q0, 8, 250)
    assert sizes.limit(Q0, 32) == 16
    sizes.answered(Q0, 16, 250)
    assert not sizes.lowered
    assert not sizes.lower(Q0, 1)


def test_pull_sizes_are_kept_for_a_bounded_number_of_queues() -> None:
    sizes = PullSizes(1000)
    for number in range(5000):
        sizes.lower(MessageQueue("t", "b", number), 32)
    assert len(sizes.lowered) == 4096
