"""Topics whose list of queues is fixed, by an order conf or because they are static: keys keep their queues while a broker is
away. In simulations, where broker-b ends, restarts, or comes back with fewer queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rmq_async import (
    Admin,
    BrokerNotFoundError,
    Message,
    MessageQueue,
    Producer,
    TransactionProducer,
    TransactionStatus,
    select_best,
    select_by_hash,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import QueueNotExistError
from rmq_async.testing.simulation import Simulation
from rmq_protocol.route import BrokerData, QueueData, TopicQueueMapping, TopicRouteData

from ..support.fakes import TOPIC, Cluster
from .support import producer

pytestmark = pytest.mark.virtual_time

KEYS = [f"k{number}" for number in range(12)]
QUEUES = tuple(MessageQueue("T", broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in range(4))
POLL = 5.0
Way = Callable[[Producer, str, float], Awaitable[Any]]


@asynccontextmanager
async def ordered(simulation: Simulation, **options: Any) -> AsyncIterator[Producer]:
    async with Admin(namesrv=simulation.namesrv) as admin:
        await admin.create_topic("T", queues=4, order=True)
    async with TransactionProducer(
        "group",
        execute=lambda message, argument: TransactionStatus.COMMIT,
        check=lambda message: TransactionStatus.COMMIT,
        namesrv=simulation.namesrv,
        route_poll_interval=POLL,
        **options,
    ) as sender:
        yield sender


async def away(simulation: Simulation) -> None:
    """The broker ends, and the polls of the routes notice it."""
    simulation.machine("broker-b").crash()
    await asyncio.sleep(3 * POLL)


async def awaited(sender: Producer, key: str, timeout: float) -> MessageQueue:
    return (await sender.send(Message("T", b"x"), key=key, timeout=timeout)).queue


async def sharded(sender: Producer, key: str, timeout: float) -> MessageQueue:
    return (await sender.send(Message("T", b"x", sharding_key=key))).queue


async def deferred(sender: Producer, key: str, timeout: float) -> MessageQueue:
    return (await (await sender.send_async(Message("T", b"x"), key=key, timeout=timeout))).queue


async def selected(sender: Producer, key: str, timeout: float) -> MessageQueue:
    async def selector(queues: Any, message: Message, key: Any) -> MessageQueue:
        return select_by_hash(queues, message, key)

    return (await sender.send(Message("T", b"x"), selector=selector, key=key, timeout=timeout)).queue


async def transactional(sender: Any, key: str, timeout: float) -> MessageQueue:
    return (await sender.send_in_transaction(Message("T", b"x", sharding_key=key), timeout=timeout)).queue


WAYS = [awaited, sharded, deferred, selected, transactional]


@pytest.mark.parametrize("options", [{}, {"batching": True}, {"latency_fault": True}], ids=["plain", "batching", "faults"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_key_moves_while_a_broker_is_away(way: Way, options: dict[str, Any]) -> None:
    async def main(simulation: Simulation) -> None:
        async with ordered(simulation, **options) as sender:
            before = {key: await way(sender, key, 3.0) for key in KEYS}
            assert {queue.broker_name for queue in before.values()} == {"broker-a", "broker-b"}
            await away(simulation)
            assert await sender.fetch_publish_queues("T") == QUEUES
            for key, queue in before.items():
                began = simulation.now
                if queue.broker_name == "broker-a":
                    assert await way(sender, key, 3.0) == queue
                    assert simulation.now - began < 0.5
                    continue
                with pytest.raises(BrokerNotFoundError, match="'broker-b' has no master's address") as caught:
                    await way(sender, key, 3.0)
                assert 2.9 < simulation.now - began < 3.2
                assert not caught.value.maybe_stored
            plain = [(await sender.send(Message("T", b"x"))).queue for _ in range(8)]
            assert {queue.broker_name for queue in plain} == {"broker-a"}
            simulation.machine("broker-b").restart()
            await asyncio.sleep(3 * POLL)
            assert {key: await way(sender, key, 3.0) for key in KEYS} == before

    Simulation(1, faults=None).run(main)


def test_keyed_send_waits_for_its_broker_and_holds_up_no_other_key() -> None:
    async def main(simulation: Simulation) -> None:
        async with ordered(simulation) as sender:
            before = {key: await awaited(sender, key, 3.0) for key in KEYS}
            here = next(key for key, queue in before.items() if queue.broker_name == "broker-a")
            there = next(key for key, queue in before.items() if queue.broker_name == "broker-b")
            await away(simulation)
            began = simulation.now
            waits = [asyncio.ensure_future(awaited(sender, there, 60.0)) for _ in range(3)]
            one_way = asyncio.ensure_future(sender.send_oneway(Message("T", b"x"), key=there, timeout=60.0))
            await asyncio.sleep(0.1)
            assert await awaited(sender, here, 1.0) == before[here]
            assert await sharded(sender, here, 1.0) == before[here]
            await asyncio.sleep(2.0)
            simulation.machine("broker-b").restart()
            assert await asyncio.gather(*waits) == [before[there]] * 3
            await one_way
            assert 2.0 < simulation.now - began < 10.0

    Simulation(1, faults=None).run(main)


def test_new_producer_waits_for_a_broker_that_it_has_never_seen() -> None:
    async def main(simulation: Simulation) -> None:
        async with ordered(simulation) as sender:
            before = {key: await awaited(sender, key, 3.0) for key in KEYS}
        there = next(key for key, queue in before.items() if queue.broker_name == "broker-b")
        simulation.machine("broker-b").crash()
        await asyncio.sleep(1.0)
        async with Producer("new", namesrv=simulation.namesrv) as sender:
            waiting = asyncio.ensure_future(awaited(sender, there, 30.0))
            await asyncio.sleep(1.0)
            simulation.machine("broker-b").restart()
            assert await waiting == before[there]

    Simulation(1, faults=None).run(main)


def test_broker_that_comes_back_with_fewer_queues_moves_no_key() -> None:
    """Sends to the queues that it has no more are refused; those without a key leave them out."""

    async def main(simulation: Simulation) -> None:
        async with ordered(simulation) as sender:
            before = {key: await awaited(sender, key, 3.0) for key in KEYS}
            async with Admin(namesrv=simulation.namesrv) as admin:
                await admin.create_topic("T", queues=2, broker="broker-b")
            await asyncio.sleep(2 * POLL)
            for _ in range(8):
                await sender.send(Message("T", b"x"))
            for key, queue in before.items():
                if queue.broker_name == "broker-b" and queue.queue_id >= 2:
                    with pytest.raises(QueueNotExistError):
                        await awaited(sender, key, 3.0)
                else:
                    assert await awaited(sender, key, 3.0) == queue
            assert await sender.fetch_publish_queues("T") == QUEUES

    Simulation(1, faults=None).run(main)


def test_selector_without_a_key_may_take_the_best_queue_beside_a_broker_that_is_away() -> None:
    async def main(simulation: Simulation) -> None:
        async with ordered(simulation) as sender:
            await sender.send(Message("T", b"x"))
            await away(simulation)
            for _ in range(8):
                result = await sender.send(Message("T", b"x"), selector=select_best)
                assert result.queue.broker_name == "broker-a"

    Simulation(1, faults=None).run(main)


async def test_key_of_a_static_topic_keeps_its_queue_while_its_holder_is_away() -> None:
    async with Cluster(2) as cluster:
        held = {"a": {0: 0, 2: 1}, "b": {1: 0, 3: 1}}

        def route(*names: str) -> TopicRouteData:
            """The mapping stays, as at real name servers, where a broker is gone."""
            return TopicRouteData(
                tuple(QueueData(broker.name, 2, 2, 6) for broker in cluster.brokers if broker.name in names),
                tuple(BrokerData(broker.name, {0: broker.address}, "c") for broker in cluster.brokers if broker.name in names),
                topic_queue_mapping_by_broker={
                    name: TopicQueueMapping(TOPIC, total_queues=4, bname=name, epoch=1, curr_id_map=queues)
                    for name, queues in held.items()
                },
            )

        cluster.name_server.routes[TOPIC] = route("a", "b")
        async with producer(cluster, route_poll_interval=1.0) as sender:
            before = [(await sender.send(Message(TOPIC, b"x"), key=number)).queue for number in range(4)]
            cluster.name_server.routes[TOPIC] = route("a")
            async with asyncio.timeout(5):
                while len({(await sender.send(Message(TOPIC, b"x"))).queue for _ in range(4)}) > 2:
                    await asyncio.sleep(0.05)
            assert len(await sender.fetch_publish_queues(TOPIC)) == 4
            assert (await sender.send(Message(TOPIC, b"x"), key=2)).queue == before[2]
            with pytest.raises(BrokerNotFoundError, match="'b', which holds queue 1 of __syslo__global__, has no master"):
                await sender.send(Message(TOPIC, b"x"), key=1, timeout=0.3)
            waiting = asyncio.ensure_future(sender.send(Message(TOPIC, b"x"), key=1, timeout=10))
            await asyncio.sleep(0.1)
            cluster.name_server.routes[TOPIC] = route("a", "b")
            assert (await waiting).queue == before[1]


@pytest.mark.parametrize("order_conf", [False, True])
async def test_embedded_route_carries_the_order_conf_where_it_is_switched_on(*, order_conf: bool) -> None:
    async with EmbeddedRocketMQ(brokers=2, order_conf=order_conf) as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=4, order=True)
        await admin.create_topic("U", queues=4)
        conf = "broker-a:4;broker-b:4" if order_conf else None
        assert (await admin.topic_route("T")).order_topic_conf == conf
        assert (await admin.topic_route("U")).order_topic_conf is None
        await admin.delete_topic("T")
