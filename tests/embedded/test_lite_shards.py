"""Which broker serves a lite topic: the choice of the consistent hash over the write queues of all masters, or a broker that has
messages of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from rmq_async.embedded import Broker, BrokerDisk, EmbeddedRocketMQ, Holder, SystemClock
from rmq_async.embedded.store import CommitLog
from rmq_protocol.java_types import string_hash
from rmq_protocol.lite import LiteAction, consistent_hash
from rmq_protocol.topics import TopicConfig

from .lite_client import LiteClient, bodies

pytestmark = pytest.mark.virtual_time

NAMES = [f"l{number}" for number in range(40)]


@pytest.fixture
async def pair(nothing_left: None) -> AsyncIterator[tuple[EmbeddedRocketMQ, list[LiteClient]]]:
    """A server with two brokers, and a client of each: broker-a has one queue of the topic, broker-b has three."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedRocketMQ(brokers=2))
        clients = [await stack.enter_async_context(LiteClient(address)) for address in server.brokers.values()]
        for client, queues in zip(clients, (1, 3), strict=True):
            await client.prepare(queues=queues)
        yield server, clients


def shard(name: str, queues: str = "abbb") -> str:
    return queues[consistent_hash(string_hash(name), len(queues))]


async def shards(clients: list[LiteClient]) -> str:
    """The letter of the broker that says it is the shard, by name; "?" where not one does."""
    found = []
    for name in NAMES:
        own = [
            letter
            for client, letter in zip(clients, "ab", strict=True)
            if (await client.topic_details(name)).sharding_to_broker
        ]
        found.append(own[0] if len(own) == 1 else "?")
    return "".join(found)


async def test_the_shard_is_the_broker_of_the_queue_that_senders_choose(
    pair: tuple[EmbeddedRocketMQ, list[LiteClient]],
) -> None:
    _, clients = pair
    expected = "".join(map(shard, NAMES))
    assert await shards(clients) == expected
    assert set(expected) == {"a", "b"}


async def test_a_subscription_at_another_broker_is_ignored_until_it_has_messages(
    pair: tuple[EmbeddedRocketMQ, list[LiteClient]],
) -> None:
    _, (a, b) = pair
    name = next(name for name in NAMES if shard(name) == "b")
    for client in (a, b):
        await client.subscribe(name)
    assert (await a.subscribers(name), await b.subscribers(name)) == (set(), {"one"})
    await a.stored(name, "misplaced")
    assert await a.popped() == []
    assert (await a.control(LiteAction.SET, name)).code == 0
    assert bodies(await a.popped()) == [b"misplaced"]


async def test_the_shard_moves_with_the_route(pair: tuple[EmbeddedRocketMQ, list[LiteClient]]) -> None:
    server, clients = pair
    server.resize("T", 3, broker="broker-a")
    for client in clients:  # which has no attributes left
        await client.prepare(queues=3)
    assert await shards(clients) == "".join(shard(name, "aaabbb") for name in NAMES)
    await clients[1].create_topic("T", 3, perm="4")
    assert await shards(clients) == "a" * len(NAMES)


async def test_a_replica_is_no_shard(pair: tuple[EmbeddedRocketMQ, list[LiteClient]]) -> None:
    server, (a, b) = pair
    await b.subscribe(*NAMES)
    server.lose_master("broker-b")
    assert [(await a.topic_details(name)).sharding_to_broker for name in NAMES] == [True] * len(NAMES)
    server.elect_master("broker-b")
    assert [(await a.topic_details(name)).sharding_to_broker for name in NAMES] == [shard(name) == "a" for name in NAMES]
    async with LiteClient(b.address) as again:
        assert await again.subscribers(next(name for name in NAMES if shard(name) == "b")) == set()


async def test_a_broker_without_a_server_asks_its_own_function_for_the_route() -> None:
    broker = Broker(BrokerDisk("broker-b", CommitLog(1 << 20, SystemClock().now_ms)))
    await broker.start("127.0.0.1", 0)
    async with LiteClient(broker.listener.address()) as client:
        await client.prepare(queues=3)
        assert (await client.topic_details("a")).sharding_to_broker
        config = TopicConfig("T", 1, 1)
        broker.state.holders = lambda topic: [
            Holder("broker-b", "", TopicConfig("T", 3, 3)), Holder("broker-a", "", config), Holder("broker-a", "", config, 1),
        ]  # fmt: skip
        own = [(await client.topic_details(name)).sharding_to_broker for name in NAMES]
    await broker.stop()
    assert own == [shard(name) == "b" for name in NAMES]
