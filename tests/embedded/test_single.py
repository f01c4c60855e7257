"""A broker and name servers that are built one by one, each with tables of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rmq_async import Message, Producer, PullConsumer, machine
from rmq_async.embedded import Broker, BrokerDisk, DiskLog, NameServer, Registrations, SystemClock
from rmq_protocol.bodies import TopicList, decode_body
from rmq_protocol.cluster import decode_cluster_info
from rmq_protocol.constants import RequestCode
from rmq_protocol.route import TopicRouteData, decode_route

from ..support.fakes import RawClient

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@asynccontextmanager
async def running(name: str = "broker-a") -> AsyncIterator[Broker]:
    broker = Broker(BrokerDisk(name, DiskLog(1_000_000, SystemClock().now_ms)))
    await broker.start("127.0.0.1", 0)
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def serving(registrations: Registrations, name: str = "namesrv-0") -> AsyncIterator[NameServer]:
    server = NameServer(registrations, name=name)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop()


async def route(server: NameServer, topic: str) -> TopicRouteData | None:
    async with RawClient(server.listener.address()) as names:
        response = await names.ask(ROUTE, {"topic": topic})
        return None if response.code == 17 else decode_route(response.body)


async def holders(server: NameServer, topic: str) -> list[str]:
    found = await route(server, topic)
    return [] if found is None else [data.broker_name for data in found.queue_datas]


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that name servers go by, as the only item of a list that a test may change."""
    now = [1000.0]
    monkeypatch.setattr(machine, "monotonic", lambda: now[0])
    return now


async def test_servers_built_alone_serve_producer_and_consumer() -> None:
    registrations = Registrations()
    async with running("broker-a") as a, running("broker-b") as b, serving(registrations) as server:
        registrations.register(a.registration())
        registrations.register(b.registration())
        namesrv = server.listener.address()
        async with Producer("shop", namesrv=namesrv) as producer, PullConsumer("report", namesrv=namesrv) as consumer:
            results = [await producer.send(Message("Order", b"%d" % number)) for number in range(8)]
            assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}
            assert [result.queue_offset for result in results] == [0] * 8
            for broker in (a, b):
                registrations.register(broker.registration())
            assert len(await consumer.queues("Order")) == 8
        bodies = {broker.name: [message.body for message in broker.messages("Order")] for broker in (a, b)}
        assert sorted(bodies["broker-a"] + bodies["broker-b"]) == [b"%d" % number for number in range(8)]
        assert len(bodies["broker-a"]) == 4
        first = [broker.messages("Order")[0].commit_log_offset for broker in (a, b)]
        assert first == [0, 0]  # each has a log of its own


async def test_topics_changed_is_called_for_each_change_of_topics() -> None:
    async with running() as broker, RawClient(broker.listener.address()) as client:
        seen: list[int | None] = []

        def changed() -> None:
            config = broker.registration().topics.get("T")
            seen.append(None if config is None else config.write_queue_nums)

        broker.topics_changed = changed
        await client.create_topic("T", 4)
        await client.create_topic("T", 2)
        await client.send("T")
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert seen == [4, 2, None]
        await client.send("T")
        assert seen == [4, 2, None, 4]


async def test_registration_is_a_snapshot_with_the_listeners_address() -> None:
    broker = Broker(BrokerDisk("broker-a", DiskLog(1_000_000, SystemClock().now_ms)))
    with pytest.raises(RuntimeError, match="broker-a has no address before its first start"):
        broker.registration()
    await broker.start("127.0.0.1", 0)
    try:
        registration = broker.registration()
        assert registration[:2] == ("broker-a", broker.listener.address())
        async with RawClient(registration.address) as client:
            await client.create_topic("T")
        assert "T" not in registration.topics
        assert "T" in broker.registration().topics
    finally:
        await broker.stop()


async def test_name_server_knows_what_was_registered_with_it() -> None:
    first, second = Registrations(), Registrations()
    async with running() as broker, serving(first) as one, serving(second, "namesrv-1") as two:
        assert (await route(one, "TBW102"), await route(two, "TBW102")) == (None, None)
        first.register(broker.registration())
        found = await route(one, "TBW102")
        assert found is not None
        assert found.broker_datas[0].broker_addrs == {0: broker.listener.address()}
        assert await route(two, "TBW102") is None
        async with RawClient(one.listener.address()) as names:
            info = decode_cluster_info((await names.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
            assert info.cluster_addr_table == {"DefaultCluster": ("broker-a",)}
            system = await names.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
            assert decode_body(TopicList, system.body) == TopicList(("DefaultCluster", "broker-a"), broker.listener.address())
            topics = await names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert list(broker.registration().topics) == list(decode_body(TopicList, topics.body).topic_list)


async def test_broker_without_registrations_is_forgotten(seconds: list[float]) -> None:
    registrations = Registrations()
    async with running("broker-a") as a, running("broker-b") as b, serving(registrations) as server:
        registrations.register(a.registration())
        seconds[0] += 60
        registrations.register(b.registration())
        seconds[0] += 59.9
        assert await holders(server, "TBW102") == ["broker-a", "broker-b"]
        seconds[0] += 0.2
        assert await holders(server, "TBW102") == ["broker-b"]
        registrations.register(a.registration())
        registrations.unregister("broker-b")
        registrations.unregister("broker-b")
        assert await holders(server, "TBW102") == ["broker-a"]


async def test_deleted_topic_keeps_its_route_until_the_name_server_deletes_it(seconds: list[float]) -> None:
    registrations = Registrations()
    async with running() as broker, serving(registrations) as server, RawClient(broker.listener.address()) as client:
        await client.create_topic("T")
        registrations.register(broker.registration())
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        registrations.register(broker.registration())
        assert await holders(server, "T") == ["broker-a"]
        async with RawClient(server.listener.address()) as names:
            assert (await names.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})).code == 0
        assert await holders(server, "T") == []
        registrations.register(broker.registration())
        assert await holders(server, "T") == []
        await client.create_topic("T")
        registrations.register(broker.registration())
        assert await holders(server, "T") == ["broker-a"]


async def test_route_follows_a_broker_to_its_new_address() -> None:
    registrations = Registrations()
    async with running() as broker, serving(registrations) as server:
        registrations.register(broker.registration())
        old = broker.listener.address()
        await broker.stop()
        await broker.start("127.0.0.2", 0)
        registrations.register(broker.registration())
        found = await route(server, "TBW102")
        assert found is not None
        assert found.broker_datas[0].broker_addrs == {0: broker.listener.address()} != {0: old}
