"""PullConsumer.read: every message once, in the order of its queue, to the agreed end, and nothing left when it is over."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import tracemalloc
from contextlib import aclosing
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest

from rmq_async.admin import Admin
from rmq_async.consumer import PullConsumer
from rmq_async.errors import (
    ClientStateError,
    ConfigError,
    OffsetRangeError,
)
from rmq_async.reading import reader as reading_module
from rmq_protocol.headers import PullMessageRequestHeader
from rmq_protocol.message import MessageQueue

from ..client.support import ours, until
from .support import TOPIC, bodies, collect, each, embedded, offsets_by_queue, pulls_under_way, put, record, scripted, under_way

pytestmark = pytest.mark.virtual_time

Q0, Q1, Q2, Q3 = (MessageQueue(TOPIC, "broker-a", number) for number in range(4))


# From and to.


async def test_a_topic_is_read_from_its_first_to_its_last_message() -> None:
    async with embedded(brokers=2) as (_, consumer):
        seed = random.randrange(1 << 32)
        print("seed", seed)
        chance = random.Random(seed)
        expected: dict[MessageQueue, list[bytes]] = {}
        for queue in await consumer.queues(TOPIC):
            expected[queue] = [os.urandom(chance.randrange(1, 300)) for _ in range(chance.choice((0, 1, 31, 32, 33, 100)))]
            await put(consumer, queue, expected[queue])
        found: dict[MessageQueue, list[bytes]] = {queue: [] for queue in expected}
        async for message in consumer.read(TOPIC):
            assert message.queue_offset == len(found[message.queue])
            found[message.queue].append(message.body)
        assert found == expected
        assert pulls_under_way() == []


async def test_an_empty_topic_ends_at_once() -> None:
    async with embedded() as (server, consumer):
        start = monotonic()
        assert await collect(consumer.read(TOPIC)) == []
        assert await collect(consumer.read(TOPIC, start="latest")) == []
        assert monotonic() - start < 0.01
        assert server.requests[11] == 0


async def test_the_end_is_fixed_at_the_first_step() -> None:
    async with embedded(queues=1) as (_, consumer):
        await put(consumer, Q0, bodies(40))
        found = []
        async for message in consumer.read(TOPIC):
            found.append(message.queue_offset)
            if len(found) == 3:
                await put(consumer, Q0, bodies(10))
        assert found == list(range(40))


async def test_offsets_by_queue_choose_the_queues_and_the_end_is_exclusive() -> None:
    async with embedded() as (_, consumer):
        for queue in (Q0, Q1, Q2):
            await put(consumer, queue, bodies(50))
        found = await collect(consumer.read(TOPIC, start={Q0: 10, Q1: 49}, end={Q0: 45, Q1: 50}))
        assert offsets_by_queue(found) == {0: list(range(10, 45)), 1: [49]}
        assert offsets_by_queue(await collect(consumer.read(TOPIC, start={Q2: 48}))) == {2: [48, 49]}
        assert offsets_by_queue(await collect(consumer.read(TOPIC, end={Q2: 2}))) == {2: [0, 1]}
        assert await collect(consumer.read(TOPIC, start={Q0: 5}, end={Q0: 5})) == []
        assert await collect(consumer.read(TOPIC, start={Q0: 7}, end={Q0: 5})) == []
        chosen = await collect(consumer.read(TOPIC, queues=[Q1, Q2], end={Q1: 1, Q2: 1}))
        assert offsets_by_queue(chosen) == {1: [0], 2: [0]}


async def test_an_end_that_is_not_there_yet_is_waited_for() -> None:
    async with embedded() as (_, consumer):
        await put(consumer, Q0, bodies(2))
        reading = asyncio.ensure_future(collect(consumer.read(TOPIC, start={Q0: 0}, end={Q0: 4})))
        await asyncio.sleep(0.2)
        assert not reading.done()
        await put(consumer, Q0, bodies(5))
        assert [message.queue_offset for message in await reading] == [0, 1, 2, 3]


async def test_times_are_good_for_start_and_end() -> None:
    async with embedded() as (_, consumer):
        await put(consumer, Q0, bodies(5))
        await asyncio.sleep(0.01)
        between = datetime.now(UTC)
        await asyncio.sleep(0.01)
        await put(consumer, Q0, bodies(5))
        assert offsets_by_queue(await collect(consumer.read(TOPIC, start=between))) == {0: [5, 6, 7, 8, 9]}
        assert offsets_by_queue(await collect(consumer.read(TOPIC, end=between))) == {0: [0, 1, 2, 3, 4]}


async def test_only_messages_with_the_tags_are_read_and_the_end_is_found_all_the_same() -> None:
    async with embedded(queues=1) as (_, consumer):
        for number in range(100):
            await put(consumer, Q0, [str(number).encode()], tags="odd" if number % 2 else "even")
        found = await collect(consumer.read(TOPIC, tags="odd"))
        assert [int(message.body) for message in found] == list(range(1, 100, 2))
        assert await collect(consumer.read(TOPIC, tags="none")) == []


async def test_a_reading_that_follows_gets_what_comes_later() -> None:
    async with embedded() as (_, consumer):
        await put(consumer, Q0, bodies(3, "old"))
        found: list[bytes] = []
        following = asyncio.ensure_future(
            each(consumer.read(TOPIC, start="latest", end=None), lambda message: found.append(message.body))
        )
        await asyncio.sleep(0.1)
        for round_ in range(3):
            for queue in (Q0, Q1, Q2, Q3):
                await put(consumer, queue, [b"%d" % round_])
            await until(lambda round_=round_: len(found) == 4 * (round_ + 1), 1.0)  # type: ignore[misc]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert pulls_under_way() == []
        assert b"old0" not in found
        first = await collect(consumer.read(TOPIC, end=None), 3)
        assert b"old0" in [message.body for message in first]


async def test_a_reading_that_follows_takes_up_new_queues() -> None:
    async with embedded(queues=1, route_poll_interval=0.1) as (_, consumer):
        found: list[MessageQueue] = []
        following = asyncio.ensure_future(
            each(consumer.read(TOPIC, start="latest", end=None), lambda message: found.append(message.queue))
        )
        await asyncio.sleep(0.1)
        async with Admin(client=consumer.config, instance_name="other") as admin:
            await admin.create_topic(TOPIC, queues=3)
            await put(admin, Q2, bodies(1))
        await until(lambda: found == [Q2], 2.0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


# Offsets that are gone.


async def test_an_offset_below_the_minimum_is_an_error_with_the_range() -> None:
    async with embedded(queues=1) as (server, consumer):
        await put(consumer, Q0, bodies(10))
        server.clear()
        await put(consumer, Q0, bodies(5))
        with pytest.raises(OffsetRangeError) as caught:
            await collect(consumer.read(TOPIC, start={Q0: 3}))
        assert (caught.value.min_offset, caught.value.max_offset, caught.value.code) == (10, 15, 21)
        assert caught.value.broker == "broker-a"
        assert offsets_by_queue(await collect(consumer.read(TOPIC))) == {0: [10, 11, 12, 13, 14]}


async def test_earliest_goes_on_where_messages_vanish_on_the_way() -> None:
    async with embedded(queues=1) as (server, consumer):
        await put(consumer, Q0, bodies(200))
        found = []
        async for message in consumer.read(TOPIC, end=None):
            found.append(message.queue_offset)
            if len(found) == 10:
                server.clear()
                await put(consumer, Q0, bodies(5))
            if message.queue_offset == 204:
                break
        assert found[:10] == list(range(10))
        assert found[-5:] == [200, 201, 202, 203, 204]


async def test_an_offset_above_the_end_is_an_error() -> None:
    async with embedded() as (_, consumer):
        await put(consumer, Q0, bodies(3))
        with pytest.raises(OffsetRangeError):
            await collect(consumer.read(TOPIC, start={Q0: 5}))
        start = monotonic()
        with pytest.raises(OffsetRangeError) as caught:
            await collect(consumer.read(TOPIC, start={Q0: 5}, end=None))
        assert caught.value.max_offset == 3
        assert 0.95 < monotonic() - start < 1.1


async def test_what_is_stored_and_not_yet_readable_is_waited_for() -> None:
    """A broker acknowledges before its consume queue is built; the end is the acknowledged one."""
    visible = 3

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        at = header.queueOffset
        if at > visible:
            return 21, visible, b""
        if at == visible:
            return 19, at, b""
        return 0, visible, b"".join(record(offset) for offset in range(at, visible))

    async with scripted(pull) as (broker, consumer):
        broker.high = 5
        reading = asyncio.ensure_future(collect(consumer.read(TOPIC)))
        await asyncio.sleep(0.1)
        assert not reading.done()
        visible = 5
        assert [message.queue_offset for message in await reading] == [0, 1, 2, 3, 4]


async def test_an_end_that_never_becomes_readable_is_given_up_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted(lambda header: (19, header.queueOffset, b"")) as (broker, consumer):
        broker.high = 5
        start = monotonic()
        assert await collect(consumer.read(TOPIC)) == []
        assert 0.5 < monotonic() - start < 1.0
        assert "ends at offset 0 instead of 5, because the broker has sent no more messages for " in caplog.text


# Answers of odd brokers.


async def test_records_outside_what_was_asked_for_are_left_out() -> None:
    block = b"".join(record(offset) for offset in range(10))
    async with scripted(lambda header: (0, 10, block)) as (_, consumer):
        found = await collect(consumer.read(TOPIC, start={Q0: 3}, end={Q0: 7}))
        assert [message.queue_offset for message in found] == [3, 4, 5, 6]


async def test_waiting_reading_holds_no_body() -> None:
    size = 1 << 20
    async with embedded() as (_, consumer):
        for queue in (Q0, Q1, Q2, Q3):
            await put(consumer, queue, [b"%d" % queue.queue_id * size])
        read: list[int] = []
        tracemalloc.start()
        try:
            reading = asyncio.ensure_future(
                each(consumer.read(TOPIC, end=None), lambda message: read.append(len(message.body)))
            )
            await until(lambda: read == [size] * 4, 5.0)
            await until(lambda: tracemalloc.get_traced_memory()[0] < 2 * size, 2.0)  # one is the caller's
        finally:
            tracemalloc.stop()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def test_leaving_the_loop_leaves_nothing() -> None:
    async with embedded() as (_, consumer):
        for queue in (Q0, Q1, Q2, Q3):
            await put(consumer, queue, bodies(100))
        async for _message in consumer.read(TOPIC, end=None):
            break
        gc.collect()
        await until(lambda: not pulls_under_way(), 0.5)
        async with aclosing(consumer.read(TOPIC, end=None)) as messages:
            async for _message in messages:
                break
        assert pulls_under_way() == []
        assert not under_way(consumer)
        reader = consumer.read(TOPIC)
        del reader
        with pytest.raises(ZeroDivisionError):
            async for _message in consumer.read(TOPIC, end=None):
                raise ZeroDivisionError
        gc.collect()
        await until(lambda: not pulls_under_way(), 0.5)


async def test_stop_ends_a_reading_wherever_it_is() -> None:
    async with embedded() as (_, consumer):
        await put(consumer, Q0, bodies(100))
        waiting = asyncio.ensure_future(collect(consumer.read(TOPIC, start="latest", end=None)))
        midway = consumer.read(TOPIC)
        unread = consumer.read(TOPIC)
        await anext(midway)
        await asyncio.sleep(0.05)
        start = monotonic()
        await consumer.stop()
        assert monotonic() - start < 0.01
        with pytest.raises(ClientStateError):
            await waiting
        with pytest.raises(ClientStateError):
            await anext(midway)
        with pytest.raises(ClientStateError):
            await anext(unread)
        assert ours() == []


@pytest.mark.parametrize("steps", [*range(25), 40, 60, 100])
async def test_cancelling_a_reading_leaves_nothing(steps: int) -> None:
    async with embedded(queues=2) as (_, consumer):
        for queue in (Q0, Q1):
            await put(consumer, queue, bodies(70))
        before = ours()
        reading = asyncio.ensure_future(collect(consumer.read(TOPIC, end=None)))
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert reading.cancelled()
        gc.collect()
        await until(lambda: ours() == before, 0.5)
        assert not under_way(consumer)


async def test_a_stopped_reading_takes_up_no_new_queues() -> None:
    """Though the client lives on, for others, and learns of them."""
    async with embedded(queues=1) as (server, consumer), PullConsumer("other", client=consumer.config) as other:
        await put(consumer, Q0, bodies(2))
        reader = consumer.read(TOPIC, end=None)
        await anext(reader)
        await consumer.stop()
        pulls = server.requests[11]
        async with Admin(client=other.config) as admin:
            await admin.create_topic(TOPIC, queues=3)
        assert len(await other.queues(TOPIC)) == 3
        assert pulls_under_way() == []
        await other.queues(TOPIC)
        assert server.requests[11] == pulls
        with pytest.raises(ClientStateError):
            await anext(reader)


async def test_two_readings_do_not_disturb_each_other() -> None:
    async with embedded(queues=1) as (_, consumer):
        await put(consumer, Q0, bodies(100))
        one, two = await asyncio.gather(collect(consumer.read(TOPIC)), collect(consumer.read(TOPIC)))
        assert len(one) == len(two) == 100


# Ending it, and how far it is ahead.


async def test_the_next_pull_is_under_way_while_messages_are_worked_on_and_only_the_next() -> None:
    async with embedded(queues=1) as (server, consumer):
        await put(consumer, Q0, bodies(320))
        reader = consumer.read(TOPIC)
        await anext(reader)
        await asyncio.sleep(0.1)
        assert server.requests[11] == 2
        for _ in range(32):
            await anext(reader)
        await asyncio.sleep(0.1)
        assert server.requests[11] == 3
        assert len(await collect(reader)) == 320 - 33


async def test_many_queues_do_not_make_many_pulls_at_once() -> None:
    async with embedded(queues=100) as (server, consumer):
        for queue in await consumer.queues(TOPIC):
            await put(consumer, queue, bodies(2))
        reader = consumer.read(TOPIC)
        await anext(reader)
        await asyncio.sleep(0.1)
        assert server.requests[11] <= 2 * reading_module.PULLS_AHEAD
        assert len(await collect(reader)) == 199


@pytest.mark.parametrize(
    "options",
    [
        {"start": "first"},
        {"start": 5},
        {"start": 10**5000},
        {"start": {Q0: -(10**5000)}},
        {"start": datetime(2026, 1, 1)},
        {"end": "earliest"},
        {"end": 7},
        {"start": {Q0: -1}},
        {"start": {Q0: 0}, "end": {Q1: 5}},
        {"start": {MessageQueue("other", "b", 0): 0}},
        {"queues": [Q0], "start": {Q1: 0}},
        {"queues": [Q0, Q1], "end": {Q1: 0}},
        {"queues": ["q"]},
        {"queues": 5},
        {"queues": Q0},
        {"tags": "||"},
        {"tags": " "},
    ],
)
async def test_contradictions_are_refused_at_the_call(options: dict[str, Any]) -> None:
    async with embedded() as (_, consumer):
        with pytest.raises(ConfigError):
            consumer.read(TOPIC, **options)


async def test_reading_needs_a_started_consumer() -> None:
    with pytest.raises(ClientStateError):
        PullConsumer("g", namesrv="127.0.0.1:1").read(TOPIC)


async def test_read_refuses_tags_without_utf8() -> None:
    async with embedded(queues=1) as (_, consumer):
        with pytest.raises(ConfigError, match=r"tags='a\\ud800' has a lone surrogate"):
            consumer.read(TOPIC, tags="a\ud800")
