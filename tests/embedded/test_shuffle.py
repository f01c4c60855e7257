"""Requests in flight that a broker serves in any order, as the threads of a real one do."""

from __future__ import annotations

import asyncio
import random

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import RawClient, oneway, send_fields

NUMBERS = [b"%02d" % number for number in range(40)]


def seeded() -> int:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return seed


def stored(server: EmbeddedRocketMQ) -> list[bytes]:
    return [message.body for message in server.messages("T")]


async def in_flight(server: EmbeddedRocketMQ, broker: RawClient) -> list[int]:
    """Has the broker read all of NUMBERS at once, and reads the answers; returns which request each of these is for."""
    server.stall("broker-a")
    opaques = [broker.write(310, send_fields("T"), body) for body in NUMBERS]
    await broker.writer.drain()
    await asyncio.sleep(0.05)  # on a busy machine the kernel delivers in parts
    server.resume("broker-a")
    answers = [await broker.read() for _ in NUMBERS]
    assert [answer.code for answer in answers] == [0] * len(NUMBERS)
    return [opaques.index(answer.opaque) for answer in answers]


@pytest.mark.virtual_time
async def test_shuffled_requests_change_places(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """Each is served once, and answered when it is."""
    server.shuffle(seeded())
    order = await in_flight(server, broker)
    assert order != sorted(order)
    assert stored(server) == [NUMBERS[number] for number in order]
    assert sorted(order) == list(range(len(NUMBERS)))


async def test_later_requests_overtake_earlier_ones(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """Also where they arrive later, while the earlier ones are in flight."""
    server.shuffle(seeded())
    for body in NUMBERS:
        broker.write(310, send_fields("T"), body)
        await asyncio.sleep(0)
    for _ in NUMBERS:
        await broker.read()
    assert sorted(stored(server)) == NUMBERS
    assert stored(server) != NUMBERS


async def test_answered_requests_keep_their_order(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.shuffle(seeded())
    for body in NUMBERS:
        await broker.send("T", body)
    assert stored(server) == NUMBERS


@pytest.mark.virtual_time
async def test_seed_repeats_the_order() -> None:
    seed, orders = seeded(), []
    for _ in range(2):
        async with EmbeddedRocketMQ() as server:
            server.shuffle(seed)
            async with RawClient(server.brokers["broker-a"]) as broker:
                orders.append(await in_flight(server, broker))
    assert orders[0] == orders[1]


@pytest.mark.virtual_time
async def test_shuffle_ends_with_none(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """Requests that wait for their turn are served at once."""
    server.shuffle(seeded(), broker="broker-a")
    server.stall("broker-a")
    opaques = [broker.write(310, send_fields("T"), body) for body in NUMBERS]
    await asyncio.sleep(0.05)
    server.resume("broker-a")
    while not stored(server):
        await asyncio.sleep(0)
    assert len(stored(server)) < len(NUMBERS)
    server.shuffle(None)
    assert sorted(stored(server)) == NUMBERS
    assert {(await broker.read()).opaque for _ in NUMBERS} == {*opaques}
    server.clear()
    assert await in_flight(server, broker) == list(range(len(NUMBERS)))
    with pytest.raises(ValueError, match="broker-x"):
        server.shuffle(1, broker="broker-x")


@pytest.mark.virtual_time
async def test_requests_of_closed_connection_are_served(server: EmbeddedRocketMQ) -> None:
    """One-way messages whose sender has gone are stored all the same."""
    server.shuffle(seeded())
    async with RawClient(server.brokers["broker-a"]) as broker:
        for body in NUMBERS:
            broker.write(310, send_fields("T"), body, flag=oneway())
    async with asyncio.timeout(60):
        while len(stored(server)) < len(NUMBERS):
            await asyncio.sleep(0.001)
    assert sorted(stored(server)) == NUMBERS


@pytest.mark.virtual_time
async def test_shuffle_waits_while_stalled(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    server.shuffle(seeded())
    server.stall()
    for body in NUMBERS:
        broker.write(310, send_fields("T"), body)
    await asyncio.sleep(0.02)
    assert stored(server) == []
    server.resume()
    for _ in NUMBERS:
        await broker.read()
    assert sorted(stored(server)) == NUMBERS


@pytest.mark.virtual_time
async def test_shuffled_first_commits_of_a_group_lose_some(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """All are answered with success, as real brokers do whose threads race; the commits after them are kept."""
    seed = seeded()
    kept = []
    await broker.send("T", b"first")
    for number in range(20):
        server.shuffle(seed + number)
        group = f"g{number}"
        await broker.ask(200, {}, b'{"groupName": "%s"}' % group.encode())
        server.stall("broker-a")
        for queue_id in range(4):
            broker.write(15, {"consumerGroup": group, "topic": "T", "queueId": str(queue_id), "commitOffset": "1"})
        await broker.writer.drain()
        await asyncio.sleep(0.02)
        server.resume("broker-a")
        assert [(await broker.read()).code for _ in range(4)] == [0] * 4
        kept.append(len(server.progress(group)))
        await broker.ask(15, {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "2"})
        assert 0 in [queue.queue_id for queue in server.progress(group)]
    assert min(kept) < 4
    assert min(kept) >= 1
