"""Gathered messages are bounded by the limits of the producer and of its batching."""

from __future__ import annotations

import asyncio
import re

import pytest

from rmq_async import Batching, Producer, errors

from ...support.fakes import TOPIC, Cluster, late
from ..support import message, messages, producer, spin
from .support import at_rest, later, numbers

pytestmark = pytest.mark.virtual_time


def no_credits(sender: Producer) -> str:
    """What ``health`` says of calls that wait to be accepted."""
    (text,) = [problem.text for problem in sender.health().problems if problem.code == "no_credits"]
    return text


async def test_bytes_are_bounded_and_callers_wait(cluster: Cluster) -> None:
    cluster.a.answer = late(0.02)
    async with producer(cluster, batching=Batching(max_pending_bytes=100), topics=[TOPIC]) as sender:
        calls = [later(sender.send(item)) for item in messages(100)]
        await spin(5)
        assert re.search(r"84 calls wait to be accepted: .* 96 of 100 bytes", no_credits(sender))
        await asyncio.gather(*calls)
        assert at_rest(sender)
    assert max(numbers(cluster)) == 16


async def test_batching_smaller_byte_limit_holds(cluster: Cluster) -> None:
    cluster.a.answer = late(0.02)
    for limit, options in (50, {"pending_bytes_limit": 50}), (100, {}):
        async with producer(cluster, batching=Batching(max_pending_bytes=100), topics=[TOPIC], **options) as sender:
            calls = [later(sender.send(message(bytes(10)))) for _ in range(12)]
            await spin(5)
            assert f" {limit} of {limit} bytes" in no_credits(sender)
            await asyncio.gather(*calls)


@pytest.mark.parametrize(("count", "parts"), [(127, [127]), (128, [64, 64]), (191, [96, 95])])
async def test_gathered_messages_are_shared_out_in_parts_of_at_least_64(cluster: Cluster, count: int, parts: list[int]) -> None:
    async with producer(cluster, batching=Batching(lanes_per_broker=4), topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(count)])
    assert numbers(cluster) == parts


async def test_one_message_in_flight_at_a_time(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, async_limit=1) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(20)])
        assert at_rest(sender)
    assert numbers(cluster) == [1] * 20


async def test_a_caller_that_finds_no_room_in_time_fails(cluster: Cluster) -> None:
    cluster.a.answer = late(0.3)
    async with producer(cluster, batching=Batching(max_pending_bytes=10), topics=[TOPIC]) as sender:
        first = later(sender.send(message(b"x" * 10)))
        await spin(3)
        with pytest.raises(errors.BackpressureError):
            await sender.send(message(b"x"), timeout=0.05)
        await first
        assert at_rest(sender)
