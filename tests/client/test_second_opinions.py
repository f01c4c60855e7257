"""One name server's word is not enough for what would be lost by it: a restarted one knows nothing, or less than the others."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from rmq_async import Admin, Message, Producer
from rmq_async.client.name_servers import NameServers, NoUsableAnswerError
from rmq_async.client.route_table import RouteTable
from rmq_async.config import ClientConfig
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import TopicNotFoundError
from rmq_async.transport import ConnectionPool
from rmq_protocol.bodies import TopicList, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData

from ..support.fakes import Answer, Link, NameServer, Peer, route, silence
from .support import client

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
BOTH = {"c": {"a": A, "b": B}}
ONLY_A = {"c": {"a": A}}


@asynccontextmanager
async def table(*addresses: str, timeout: float = 1.0) -> AsyncIterator[RouteTable]:
    """The name servers are asked in the order given."""
    pool = ConnectionPool(ClientConfig(namesrv="127.0.0.1:1"))
    servers = NameServers(pool, addresses)
    while servers.addresses != addresses:
        servers = NameServers(pool, addresses)
    routes = RouteTable(servers, request_timeout=timeout, poll_interval=30.0)
    try:
        yield routes
    finally:
        await asyncio.gather(*routes.close(), return_exceptions=True)
        await pool.aclose()


@pytest.fixture
def closed() -> str:
    """An address that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


CALLS: dict[str, Callable[[RouteTable], object]] = {
    "get": lambda routes: routes.get("t", 1.0),
    "refresh": lambda routes: routes.refresh("t", 1.0),
    "fetch": lambda routes: routes.fetch("t", 1.0),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("said", [None, TopicRouteData(), route(perm=0)], ids=["no such topic", "empty", "no queues"])
async def test_name_server_without_the_topic(call: str, said: TopicRouteData | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with (
        NameServer(BOTH, t=said) as first,
        NameServer(BOTH, t=route()) as second,
        table(first.address, second.address) as routes,
    ):
        found = await CALLS[call](routes)  # type: ignore[misc]
        assert len(found.publish_queues) == 4
        assert first.asked == second.asked == ["t"]
        assert caplog.messages[0] == f"requests now go to name server {second.address}: {first.address} has no route of topic t"
        await routes.refresh("t")
        assert len(second.asked) == 2


async def test_name_servers_without_the_topic() -> None:
    async with NameServer(BOTH) as first, NameServer(BOTH) as second, table(first.address, second.address) as routes:
        with pytest.raises(TopicNotFoundError, match=f"name server {first.address} says: No topic route info") as caught:
            await routes.get("t", 1.0)
        assert not caught.value.retriable
        assert first.asked == second.asked == ["t"]


async def test_name_server_without_brokers_is_no_witness() -> None:
    async with NameServer() as empty, NameServer(BOTH) as second, table(empty.address, second.address) as routes:
        with pytest.raises(TopicNotFoundError, match=f"name server {second.address} says") as caught:
            await routes.get("t", 1.0)
        assert not caught.value.retriable


async def test_name_servers_without_brokers() -> None:
    async with NameServer() as first, NameServer() as second, table(first.address, second.address) as routes:
        with pytest.raises(
            TopicNotFoundError, match="no name server knows a broker, as for some seconds after a start"
        ) as caught:
            await routes.get("t", 1.0)
        assert caught.value.retriable
        assert await routes.refresh_all() == {}


async def test_only_a_name_server_without_brokers_answers(closed: str) -> None:
    async with NameServer() as empty, table(empty.address, closed) as routes:
        with pytest.raises(NoUsableAnswerError) as caught:
            await routes.get("t", 1.0)
    assert f"{empty.address}: it knows no broker yet; {closed}: cannot connect" in str(caught.value)
    assert caught.value.__cause__ is not None


async def test_name_server_that_has_lost_its_brokers_is_no_witness_any_more(closed: str) -> None:
    """They cannot reach it, and its connections to clients stay."""
    async with NameServer(BOTH, t=route()) as server, table(server.address, closed) as routes:
        await routes.get("t", 1.0)
        server.clusters = {}
        with pytest.raises(NoUsableAnswerError, match="it knows no broker yet"):
            await routes.get("u", 1.0)


async def test_witness_beside_a_closed_port(closed: str) -> None:
    async with NameServer(BOTH) as witness, table(witness.address, closed) as routes:
        with pytest.raises(TopicNotFoundError):
            await routes.get("t", 1.0)


async def test_default_topic_of_another_name_server() -> None:
    async with (
        NameServer() as empty,
        NameServer(BOTH, TBW102=route()) as second,
        table(empty.address, second.address) as routes,
    ):
        assert (await routes.get("new", 1.0, create_key="TBW102")).provisional


@pytest.mark.virtual_time
async def test_silent_name_server_takes_half_of_the_time_once() -> None:
    async with NameServer(BOTH) as witness, Peer(silence) as silent, table(witness.address, silent.address) as routes:
        began = monotonic()
        with pytest.raises(TopicNotFoundError):
            await routes.get("t", 1.0)
        assert monotonic() - began == pytest.approx(0.5, abs=0.02)
        began = monotonic()
        for number in range(20):
            with pytest.raises(TopicNotFoundError):
                await routes.get(f"t{number}", 1.0)
        assert monotonic() - began < 0.01


@pytest.mark.virtual_time
async def test_connection_that_breaks_under_a_second_opinion() -> None:
    def once(link: Link, request: RemotingCommand) -> None:
        if len(second.links) == 1:
            link.close()
        else:
            second.answer_route(link, request)

    async with NameServer(BOTH) as first, NameServer(BOTH, t=route()) as second, table(first.address, second.address) as routes:
        second.answer = once
        assert (await routes.get("t", 1.0)).publish_queues


# A first route.


@pytest.mark.parametrize("call", ["get", "refresh"])
async def test_first_route_has_the_brokers_that_a_restarted_name_server_does_not_know(call: str) -> None:
    less, both = route({"a": A}), route({"a": A, "b": B})
    async with (
        NameServer(ONLY_A, t=less) as young,
        NameServer(BOTH, t=both) as old,
        table(young.address, old.address) as routes,
    ):
        await CALLS[call](routes)  # type: ignore[misc]
        assert {*routes.masters()} == {"a", "b"}


async def test_topic_is_created_by_sending_on_brokers_that_a_restarted_name_server_does_not_know() -> None:
    less, both = route({"a": A}), route({"a": A, "b": B})
    async with (
        NameServer(ONLY_A, TBW102=less) as young,
        NameServer(BOTH, TBW102=both) as old,
        table(young.address, old.address) as routes,
    ):
        assert len((await routes.get("new", 1.0, create_key="TBW102")).addresses) == 2


@pytest.mark.virtual_time
async def test_first_route_waits_half_a_second_for_a_silent_name_server() -> None:
    async with NameServer(BOTH, t=route()) as first, Peer(silence) as silent, table(first.address, silent.address) as routes:
        began = monotonic()
        await routes.get("t", 1.0)
        assert monotonic() - began == pytest.approx(0.5, abs=0.02)


# A route that would lose a broker.


async def known(routes: RouteTable, first: NameServer, second: NameServer) -> None:
    first.routes["t"] = second.routes["t"] = route({"a": A, "b": B})
    await routes.get("t", 1.0)
    assert [*routes.addresses_of("b")] == [0]
    first.routes["t"] = route({"a": A})


async def test_broker_that_a_restarted_name_server_does_not_know_stays() -> None:
    async with NameServer(ONLY_A) as first, NameServer(BOTH) as second, table(first.address, second.address) as routes:
        await known(routes, first, second)
        await routes.refresh_all()
        assert {queue.broker_name for queue in routes.cached("t").publish_queues} == {"a", "b"}  # type: ignore[union-attr]
        assert (len(first.asked), len(second.asked)) == (2, 2)
        await routes.refresh_all()
        assert (len(first.asked), len(second.asked)) == (2, 3)


async def test_broker_that_no_name_server_knows_goes() -> None:
    async with NameServer(ONLY_A) as first, NameServer(ONLY_A) as second, table(first.address, second.address) as routes:
        await known(routes, first, second)
        second.routes["t"] = route({"a": A})
        await routes.refresh_all()
        assert routes.address_of("b") is None


async def test_topic_that_a_listed_broker_does_not_have_any_more_goes() -> None:
    async with NameServer(BOTH) as first, NameServer(BOTH) as second, table(first.address, second.address) as routes:
        await known(routes, first, second)
        await routes.refresh_all()
        assert routes.address_of("b") is None


async def test_fewer_queues_of_a_listed_broker_are_believed() -> None:
    async with NameServer(BOTH) as first, NameServer(BOTH) as second, table(first.address, second.address) as routes:
        await known(routes, first, second)
        first.routes["t"] = route({"a": A, "b": B}, queues=1)
        await routes.refresh_all()
        assert len(routes.cached("t").publish_queues) == 2  # type: ignore[union-attr]
        assert len(second.asked) == 1


async def test_master_that_a_restarted_name_server_does_not_know_stays() -> None:
    replica = TopicRouteData((QueueData("a", 4, 4, 6),), (BrokerData("a", {1: B}, "c"),))
    async with NameServer({}) as first, NameServer(ONLY_A) as second, table(first.address, second.address) as routes:
        first.routes["t"] = second.routes["t"] = route({"a": A})
        await routes.get("t", 1.0)
        first.routes["t"] = replica
        await routes.refresh_all()
        assert routes.address_of("a") == A


async def test_order_of_queues_that_only_another_name_server_has_stays() -> None:
    plain, ordered = route({"a": A}), TopicRouteData((QueueData("a", 4, 4, 6),), (BrokerData("a", {0: A}, "c"),), "a:4;b:4")
    async with NameServer(ONLY_A) as first, NameServer(ONLY_A) as second, table(first.address, second.address) as routes:
        first.routes["t"] = second.routes["t"] = ordered
        await routes.get("t", 1.0)
        first.routes["t"] = plain
        await routes.refresh_all()
        assert routes.cached("t").data.order_topic_conf == "a:4;b:4"  # type: ignore[union-attr]
        second.routes["t"] = first.routes["t"] = plain
        await routes.refresh_all()
        assert routes.cached("t").data.order_topic_conf is None  # type: ignore[union-attr]


async def test_route_stays_where_name_servers_know_as_many_but_other_brokers() -> None:
    """Another topic, which only the second one knows, has the client ask that one from then on."""
    async with (
        NameServer(ONLY_A) as first,
        NameServer({"c": {"a": A, "z": C}}) as second,
        table(first.address, second.address) as routes,
    ):
        first.routes["t"], second.routes["t"] = route({"a": A, "b": B}), route({"a": A, "z": C})
        second.routes["u"] = route({"z": C})
        await routes.get("t", 1.0)
        for _ in range(2):
            await routes.get("u", 1.0)
            await routes.refresh_all()
            assert [*routes.cached("t").addresses] == ["a", "b"]  # type: ignore[union-attr]


async def test_fetch_returns_the_fuller_route() -> None:
    less, both = route({"a": A}), route({"a": A, "b": B})
    async with NameServer(ONLY_A, t=less) as young, NameServer(BOTH, t=less) as full, NameServer(BOTH, t=both) as other:
        for first, brokers in ((young, 2), (full, 1)):
            async with table(first.address, other.address) as routes:
                assert len((await routes.fetch("t", 1.0)).addresses) == brokers


# Clients.


@pytest.mark.parametrize("number", range(4))
async def test_client_begins_with_the_name_server_that_knows_most(number: int) -> None:
    async with (
        NameServer() as empty,
        NameServer(ONLY_A) as young,
        NameServer(BOTH) as old,
        client(empty, young, old) as instance,
    ):
        assert instance.name_servers.addresses[0] == old.address
        assert instance.cluster_probe.cluster_found.is_set()


def topics(*names: str) -> Answer:
    return lambda link, request: link.reply(request, body=encode_body(TopicList(names)))


async def test_admin_takes_the_fullest_list() -> None:
    async with NameServer(ONLY_A) as young, NameServer(ONLY_A) as old:
        young.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = topics("t")
        old.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = topics("t", "u")
        async with Admin(namesrv=[young.address, old.address]) as admin:
            old.clusters = BOTH  # since the start
            for _ in range(2):
                assert await admin.topics() == ("t", "u")
                assert [*(await admin.cluster_info()).broker_addr_table] == ["a", "b"]


async def test_create_topic_beside_an_empty_name_server() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, NameServer() as empty:
        empty.answers[RequestCode.PUT_KV_CONFIG] = lambda link, request: link.reply(request)
        empty.answers[RequestCode.GET_KV_CONFIG] = lambda link, request: link.reply(request, 22, "No config item")
        for _ in range(3):
            async with Admin(namesrv=[empty.address, server.namesrv]) as admin:
                await admin.create_topic("t", order=True)
                assert len((await admin.topic_route("t")).queue_datas) == 2
                await admin.create_topic("t", order=True, broker="broker-a")


async def test_fresh_producers_beside_an_empty_name_server() -> None:
    async with EmbeddedRocketMQ(auto_create_topics=False) as server, NameServer() as empty:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic("t", queues=2)
        for number in range(6):
            config = ClientConfig(namesrv=[empty.address, server.namesrv], instance_name=f"i{number}")
            async with Producer("g", client=config) as producer:
                assert (await producer.send(Message("t", b"x"))).attempts == 1
