"""The producer against the embedded servers: what was acknowledged is there, under faults too."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmq_async import Message, Producer, SendStatus, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode, ResponseCode

from ..support.fakes import TOPIC
from .harm import harm
from .support import message, messages, outcomes, seeded, timed, until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as running:
        yield running


@pytest.fixture
async def servers() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(brokers=3) as running:
        yield running


@pytest.mark.parametrize("form", ["json", "rocketmq"])
async def test_every_way_arrives_as_it_was_sent(server: EmbeddedRocketMQ, form: str) -> None:
    properties = {"colour": "grün", "empty-ish": "x", "__SHARDINGKEYX": "no"}
    item = Message(TOPIC, b"\x00\xff" * 5000, tags="tag", keys=["k1", "k2"], flag=-5, properties=properties, sharding_key="s")
    async with Producer("group", namesrv=server.namesrv, serialize_type=form) as sender:
        results = [
            await sender.send(item),
            await (await sender.send_async(item)),
            *(await sender.send_batch([item, item])).results,
        ]
        await sender.send_oneway(item)
        await sender.flush()
        await asyncio.sleep(0.05)
    found = server.messages(TOPIC)
    assert len(found) == 5
    for one in found:
        assert (one.body, one.tags, one.keys, one.flag, one.sharding_key) == (item.body, "tag", ("k1", "k2"), -5, "s")
        assert properties.items() <= one.properties.items()
    by_id = {one.msg_id: one for one in found}
    for result in results:
        stored = by_id[result.msg_id]
        assert (stored.queue, stored.queue_offset, stored.offset_msg_id) == (
            result.queue, result.queue_offset, result.offset_msg_id,
        )  # fmt: skip
        assert result.status is SendStatus.SEND_OK


async def test_the_next_sends_fail_as_they_are_set(server: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=server.namesrv) as sender:
        await sender.send(message())
        server.fail_next(1, 2, request=RequestCode.SEND_MESSAGE_V2)
        assert (await sender.send(message())).attempts == 3
        server.fail_next(13)
        with pytest.raises(errors.MessageIllegalError):
            await sender.send(message())
        server.fail_next(10)
        assert (await sender.send(message())).status is SendStatus.FLUSH_DISK_TIMEOUT
        server.fail_next(1, 3, request=RequestCode.SEND_BATCH_MESSAGE)
        with pytest.raises(errors.SendError):
            await sender.send_batch([message()])
    assert len(server.messages(TOPIC)) == 3


async def test_a_stalled_broker_is_gone_round_and_comes_back(servers: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=servers.namesrv, timeout=1.5) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(12)])
        servers.stall("broker-a")
        results = await asyncio.gather(*[sender.send(item) for item in messages(12)])
        assert {result.queue.broker_name for result in results} == {"broker-b", "broker-c"}
        accepted = servers.statistics("broker-a").accepted
        servers.resume("broker-a")
        with timed(most=1.1):  # a second, and it is tried again
            while (result := await sender.send(message())).queue.broker_name != "broker-a":
                assert result.attempts == 1
                await asyncio.sleep(0.01)
        results = await asyncio.gather(*[sender.send(item) for item in messages(12)])
        assert {result.attempts for result in results} == {1}
        assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b", "broker-c"}
        assert servers.statistics("broker-a").accepted == accepted, "no connection was made anew"


async def test_under_random_faults_nothing_acknowledged_is_lost(servers: EmbeddedRocketMQ) -> None:
    """Duplicates are those of retries: each has the id of a message that was tried more than once."""
    source = seeded()
    counts: Counter[str] = Counter()
    acknowledged: dict[str, Any] = {}
    attempted = 0

    async def worker(number: int) -> None:
        nonlocal attempted
        for index in range(60):
            body = b"%d-%d" % (number, index)
            attempted += 1
            try:
                if index % 3:
                    result = await sender.send(message(body))
                else:
                    result = await (await sender.send_async(message(body)))
            except errors.RocketMQError:
                counts["failed"] += 1
            else:
                counts["retried"] += result.attempts > 1
                acknowledged[result.msg_id] = body
            await asyncio.sleep(source.random() * 0.01)

    async with Producer("group", namesrv=servers.namesrv, timeout=3.0) as sender:
        await sender.send(message(b"warm"))
        codes, requests = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY), [RequestCode.SEND_MESSAGE_V2]
        async with harm(servers, source, codes=codes, requests=requests, longest_stall=0.3, longest_pause=0.03) as harmed:
            await asyncio.gather(*[worker(number) for number in range(10)])
    found = servers.messages(TOPIC)
    copies = Counter(one.msg_id for one in found)
    lost = acknowledged.keys() - copies.keys()
    duplicated = sum(count - 1 for count in copies.values())
    print(f"{attempted=} acknowledged={len(acknowledged)} read={len(found)} {lost=} {duplicated=}", dict(counts), dict(harmed))
    assert counts["retried"] > 0, "void: nothing was tried again"
    assert not lost
    assert max(copies.values()) <= 3
    for one in found:
        assert acknowledged.get(one.msg_id, one.body) == one.body


async def test_many_producers_and_topics_at_once(servers: EmbeddedRocketMQ) -> None:
    topics = [f"topic-{number}" for number in range(20)]
    senders = [Producer(f"group-{number}", namesrv=servers.namesrv, timeout=10.0) for number in range(5)]
    await asyncio.gather(*[sender.start() for sender in senders])
    await asyncio.gather(*[sender.send(message(topic=topic)) for sender in senders for topic in topics for _ in range(5)])
    assert servers.statistics("namesrv").connections == 1
    assert all(servers.statistics(name).connections == 1 for name in servers.brokers)
    await asyncio.gather(*[sender.stop() for sender in senders])
    assert sum(len(servers.messages(topic)) for topic in topics) == 500


async def test_stop_in_the_middle_of_everything(servers: EmbeddedRocketMQ) -> None:
    source = seeded()
    for _ in range(5):
        sender = Producer("group", namesrv=servers.namesrv, stop_timeout=source.choice([0.0, 0.05, 1.0]), oneway_window=8)
        await sender.start()
        tasks = [asyncio.ensure_future(sender.send(item, key=key)) for item in messages(50) for key in (None, 3)]
        tasks += [asyncio.ensure_future(sender.send_async(item)) for item in messages(50)]  # type: ignore[misc]
        tasks += [asyncio.ensure_future(sender.send_oneway(item)) for item in messages(50)]  # type: ignore[misc]
        await asyncio.sleep(source.random() * 0.03)
        await sender.stop()
        results = await outcomes(*tasks)
        results += await outcomes(*[result for result in results if isinstance(result, asyncio.Future)])
        kinds = {type(result) for result in results if isinstance(result, BaseException)}
        assert kinds <= {errors.ClientStateError}


async def test_bodies_in_flight_are_not_kept(server: EmbeddedRocketMQ) -> None:
    """800 sends of 64 KiB random bytes, 64 at a time: the client keeps none of them."""

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    body = random.randbytes(64 * 1024)
    async with Producer("group", namesrv=server.namesrv) as sender:

        async def worker(count: int) -> None:
            for _ in range(count):
                await sender.send(message(body))

        await asyncio.gather(*[worker(3) for _ in range(64)])
        server.clear()
        before = resident()
        for _ in range(4):
            await asyncio.gather(*[worker(3) for _ in range(64)])
            server.clear()
        assert resident() - before < 16 << 20


async def test_a_loop_blocked_while_connecting_sends_nothing_twice(servers: EmbeddedRocketMQ) -> None:
    blocked = 0

    async def block_once() -> None:
        nonlocal blocked
        await until(lambda: any(servers.statistics(name).connections for name in servers.brokers))
        time.sleep(1.2)  # longer than an attempt of 3 s shared by three
        blocked += 1

    async with Producer("group", namesrv=servers.namesrv) as sender:
        blocking = asyncio.ensure_future(block_once())
        results = await asyncio.gather(*[sender.send(item) for item in messages(100)])
        await blocking
    assert blocked == 1
    assert [result.attempts for result in results] == [1] * 100
    assert len(servers.messages(TOPIC)) == 100
