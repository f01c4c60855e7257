"""The shared client on real servers: routes that change, name servers and brokers that die, and who the brokers think we are."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import Any

import pytest

from rmq_async import Message, Producer
from rmq_async.admin import Admin
from rmq_async.client import ClientInstance, look_at_clock
from rmq_async.config import ClientConfig
from rmq_async.consumer import PullConsumer
from rmq_async.errors import NameServerError, TopicNotFoundError
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_async.transport import ConnectionPool
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue

from ..consumer.support import collect, each, put
from ..support.fakes import resolving
from ..support.instances import client_of


def new_topic() -> str:
    return f"Client_{uuid.uuid4().hex}"


@asynccontextmanager
async def client(cluster: RealCluster | ExternalCluster, **options: Any) -> AsyncIterator[ClientInstance]:
    instance = await ClientInstance.acquire(ClientConfig(namesrv=cluster.namesrv, **options))
    try:
        yield instance
    finally:
        await instance.release()


async def until(condition: Callable[[], Any], timeout: float) -> float:
    """Seconds until the condition holds; fails when it does not come to hold."""
    start = monotonic()
    while not condition():
        assert monotonic() - start < timeout, f"not within {timeout} s"
        await asyncio.sleep(0.01)
    return monotonic() - start


async def test_broker_says_its_time(each_cluster: RealCluster) -> None:
    topic = new_topic()
    async with client(each_cluster) as instance, Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=1)
        broker = each_cluster.brokers[0].name
        await look_at_clock(instance, MessageQueue(topic, broker, 0))
        shown = instance.clocks.of(broker).broker_ms(monotonic())
        assert shown is not None
        assert abs(shown / 1000 - time()) < 1.0
        assert instance.clocks.age(broker, round(time() * 1000) - 60_000) == pytest.approx(60.0, abs=1.0)


async def test_name_with_two_addresses(each_cluster: RealCluster) -> None:
    """A connection counts when the server has answered on it: name servers and brokers answer what they are asked for that."""
    servers = [each_cluster.nameservers[0].address, each_cluster.brokers[0].address]
    with resolving(host=["127.0.0.1", "127.0.0.2"]):
        named = [f"host:{address.rpartition(':')[2]}" for address in servers]
        pool = ConnectionPool(ClientConfig(namesrv=named[0]))
        for address in named:
            connection = await pool.connect(address, 3.0)
            assert connection.has_received
            assert connection.ip == "127.0.0.1"
        await pool.aclose()


def publish_queues(instance: ClientInstance, topic: str) -> int:
    route = instance.routes.cached(topic)
    return 0 if route is None else len(route.publish_queues)


async def connected(instance: ClientInstance, broker_name: str, topic: str, code: int, **fields: str) -> list[str]:
    """Client ids that the broker lists for a group."""
    command = RemotingCommand(code=code, ext_fields={**fields})
    response, _ = await instance.ask_broker(broker_name, topic, command, 3.0)
    body = decode_body(dict, response.body) if response.code == 0 else {}
    return [connection["clientId"] for connection in body.get("connectionSet", [])]


@pytest.mark.parametrize("serialize_type", ["json", "rocketmq"])
async def test_routes_of_topics_there_are_and_of_those_there_will_be(cluster: RealCluster, serialize_type: str) -> None:
    topic = new_topic()
    async with client(cluster, serialize_type=serialize_type) as instance:
        with pytest.raises(TopicNotFoundError, match="No topic route info"):
            await instance.routes.get(topic, 3.0)
        provisional = await instance.routes.get(topic, 3.0, create_key="TBW102")
        assert provisional.provisional
        assert len(provisional.publish_queues) == 4
        async with Admin(namesrv=cluster.namesrv, serialize_type=serialize_type) as admin:
            await admin.create_topic(topic, queues=4)
            await put(admin, provisional.publish_queues[0], [b"x"])
        async with PullConsumer("G", namesrv=cluster.namesrv, serialize_type=serialize_type) as consumer:
            assert [message.body for message in await collect(consumer.read(topic))] == [b"x"]
        real = await instance.routes.refresh(topic)
        assert not real.provisional
        assert real.publish_queues == provisional.publish_queues


async def test_start_at_the_address_of_a_broker(each_cluster: RealCluster) -> None:
    async with Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin:
        brokers = [each.broker_addrs[0] for each in (await admin.cluster_info()).broker_addr_table.values()]
    with pytest.raises(NameServerError, match=r"not of (a name server|name servers); pass the addresses") as caught:
        await Producer("G", namesrv=brokers).start()
    assert caught.value.permanent
    async with Producer("G", namesrv=[*brokers, each_cluster.namesrv]) as producer:
        assert await producer.fetch_publish_queues("TBW102")


async def test_a_raised_queue_count_is_used_after_the_next_poll(cluster: RealCluster) -> None:
    topic = new_topic()
    async with (
        Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin,
        client(cluster, route_poll_interval=0.5) as instance,
    ):
        await admin.create_topic(topic, queues=2)
        assert len((await instance.routes.get(topic, 3.0)).publish_queues) == 2
        await admin.create_topic(topic, queues=16)
        assert await until(lambda: publish_queues(instance, topic) == 16, 2.0) < 1.0


async def test_the_broker_lists_each_group_once_until_it_leaves(cluster: RealCluster) -> None:
    topic = new_topic()
    config = ClientConfig(namesrv=cluster.namesrv, heartbeat_interval=1.0, instance_name=uuid.uuid4().hex)
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=1)
        watcher = await client_of(admin)
        queue = (await watcher.routes.get(topic, 3.0)).publish_queues[0]

        async def producers(group: str) -> list[str]:
            code = RequestCode.GET_PRODUCER_CONNECTION_LIST
            return await connected(watcher, queue.broker_name, topic, code, producerGroup=group)

        async def consumers(group: str) -> list[str]:
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            return await connected(watcher, queue.broker_name, topic, code, consumerGroup=group)

        async with PullConsumer("GC", client=config) as consumer:
            instance = await client_of(consumer)
            instance.register_producer("GP1")
            instance.register_producer("GP2")
            await consumer.pull(queue, 0)
            deadline = monotonic() + 5.0
            while not (await producers("GP1") and await producers("GP2") and await consumers("GC")):
                assert monotonic() < deadline, "no heartbeat named the groups"
                await asyncio.sleep(0.02)
            assert await producers("GP1") == await producers("GP2") == await consumers("GC") == [instance.client_id]
            await asyncio.sleep(1.5)
            assert await producers("GP1") == [instance.client_id]
            await instance.unregister_producer("GP1", 3.0)
            assert (await producers("GP1"), await producers("GP2")) == ([], [instance.client_id])
            await instance.unregister_producer("GP2", 3.0)
            assert await producers("GP2") == []
            assert await consumers("GC") == [instance.client_id]
        assert await consumers("GC") == []


async def test_of_two_name_servers_the_first_dies_and_work_goes_on(two_brokers: RealCluster) -> None:
    topic, later = new_topic(), new_topic()
    async with client(two_brokers, route_poll_interval=0.3) as instance, Admin(client=instance.config) as admin:
        await admin.create_topic(topic, queues=2)
        await instance.routes.get(topic, 3.0)
        first = next(s for s in two_brokers.nameservers if s.address == instance.name_servers.addresses[0])
        other = next(s for s in two_brokers.nameservers if s is not first)
        await first.kill()
        start = monotonic()
        await admin.create_topic(later, queues=2)
        await admin.create_topic(topic, queues=6)
        assert len((await instance.routes.get(later, 3.0)).publish_queues) == 4
        await until(lambda: publish_queues(instance, topic) == 12, 2.0)
        assert monotonic() - start < 3.0
        assert instance.name_servers.addresses[0] == other.address
        await put(admin, MessageQueue(topic, "broker-a", 5), [b"x"])
        await first.start()
        await other.kill()
        await instance.routes.refresh(later)
        assert instance.name_servers.addresses[0] == first.address


async def test_client_started_before_its_cluster(two_brokers: RealCluster) -> None:
    """The name server is away at the start, and knows no broker when it is back."""
    names = two_brokers.nameservers[0]
    await names.kill()
    async with Producer("late", namesrv=names.address, start_without_cluster=True) as producer:
        with pytest.raises(NameServerError, match="none has answered since the start"):
            await producer.send(Message(new_topic(), b"too early"), timeout=0.3)
        sending = [asyncio.create_task(producer.send(Message(new_topic(), b"x"), timeout=60.0)) for _ in range(20)]
        await names.start()
        assert {result.attempts for result in await asyncio.gather(*sending)} == {1}


async def test_a_frozen_name_server_costs_one_share_of_one_call(two_brokers: RealCluster) -> None:
    async with client(two_brokers, request_timeout=1.0) as instance:
        first = next(s for s in two_brokers.nameservers if s.address == instance.name_servers.addresses[0])
        first.pause()
        start = monotonic()
        route = await instance.routes.get(new_topic(), 2.0, create_key="TBW102")
        assert route.provisional
        assert 0.4 < monotonic() - start < 1.8
        start = monotonic()
        await instance.routes.get(new_topic(), 2.0, create_key="TBW102")
        assert monotonic() - start < 0.3
        first.resume()


async def test_a_killed_broker_leaves_the_routes_in_use_and_comes_back(two_brokers: RealCluster) -> None:
    topic = new_topic()
    async with client(two_brokers, route_poll_interval=1.0) as instance, Admin(client=instance.config) as admin:
        await admin.create_topic(topic, queues=2)
        instance.register_producer("G")
        await instance.routes.get(topic, 3.0)
        victim = two_brokers.brokers[1]
        for broker in two_brokers.brokers:
            await instance.pool.connect(broker.address, 3.0)

        def brokers() -> set[str]:
            route = instance.routes.cached(topic)
            return {queue.broker_name for queue in route.publish_queues} if route is not None else set()

        assert brokers() == {"broker-a", "broker-b"}
        await victim.kill()
        assert await until(lambda: brokers() == {"broker-a"}, 3.0) < 2.0
        assert instance.pool.get(victim.address) is None
        await victim.start()
        await until(lambda: brokers() == {"broker-a", "broker-b"}, 5.0)
        await instance.unregister_producer("G", 1.0)


async def test_a_reading_outlives_the_restart_of_its_broker(two_brokers: RealCluster) -> None:
    topic = new_topic()
    async with Admin(namesrv=two_brokers.namesrv) as admin, PullConsumer("G", namesrv=two_brokers.namesrv) as consumer:
        await admin.create_topic(topic, queues=1)
        queues = await consumer.queues(topic)
        for queue in queues:
            await put(admin, queue, [b"%d" % number for number in range(200)])
        found: list[tuple[str, int]] = []
        following = asyncio.ensure_future(
            each(consumer.read(topic, end=None), lambda m: found.append((m.queue.broker_name, m.queue_offset)))
        )
        await until(lambda: len(found) == 400, 10.0)
        await two_brokers.brokers[0].kill()
        await put(admin, queues[1], [b"meanwhile"])
        await until(lambda: ("broker-b", 200) in found, 3.0)
        await two_brokers.brokers[0].start()
        await put(admin, queues[0], [b"after"])
        await until(lambda: ("broker-a", 200) in found, 10.0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert sorted(found) == [(name, offset) for name in ("broker-a", "broker-b") for offset in range(201)]
