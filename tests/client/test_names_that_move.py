"""Host names that lead elsewhere while a client runs, and names that lead to several servers."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Any

import pytest

from rmq_async import Admin, Message, NameServerError, Producer, RocketMQError
from rmq_async.client.name_servers import NameServers
from rmq_async.config import ClientConfig
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import RequestTimeoutError, TopicNotFoundError
from rmq_async.testing import Answer, ScriptedPeer, routes_to
from rmq_async.transport import ConnectionPool
from rmq_async.transport import pool as pool_module
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ..support.fakes import Link, Names, NameServer, Peer, echo, route, silence
from ..support.waiting import until
from .support import client

pytestmark = pytest.mark.virtual_time

HERE, THERE = "127.0.0.1", "127.0.0.2"
PING = RemotingCommand(code=RequestCode.HEART_BEAT)


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """The loop's resolver; a look-up of a ``hanging`` name takes for ever."""
    names = Names(host=[HERE])

    async def getaddrinfo(host: Any, port: Any, **options: Any) -> list[Any]:
        if host in names.hanging:
            names.asked.append(host)
            await asyncio.Event().wait()
        return names(host, port, **options)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return names


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are looked up as soon as there is trouble, also just after they were."""
    monkeypatch.setattr(pool_module, "LOOK_SPACING", 0.0)


def named(address: str) -> str:
    return f"host:{address.rpartition(':')[2]}"


# Connections.


async def test_connection_is_given_up_when_its_answers_have_come(
    names: Names, at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    held: list[tuple[Link, RemotingCommand]] = []
    async with Peer() as old, Peer(host=THERE, port=old.port) as new:
        pool = ConnectionPool(ClientConfig())
        old.answer = lambda link, request: held.append((link, request))
        waiting = asyncio.ensure_future(pool.request(named(old.address), PING, 5.0))
        await until(lambda: held, 5.0)
        names.hosts["host"] = [THERE]
        assert await pool.look_again(named(old.address), 1.0)
        said = f"giving up the connection of {named(old.address)} to {HERE}; 1 requests still wait for responses: "
        assert caplog.messages == [f"{said}the host name now resolves to {THERE}"]
        await pool.request(named(old.address), PING, 1.0)
        assert (old.received, new.received) == (1, 1)
        echo(*held[0])
        assert (await waiting).code == 0
        await until(lambda: not old.open_links, 5.0)
        await pool.aclose()


@pytest.mark.parametrize("found", [[HERE], [THERE, HERE], []], ids=["the same", "one more", "none"])
async def test_connection_is_kept(found: list[str], names: Names, at_once: None) -> None:
    async with Peer() as peer:
        pool = ConnectionPool(ClientConfig())
        await pool.connect(named(peer.address), 1.0)
        names.hosts["host"] = found
        assert not await pool.look_again(named(peer.address), 1.0)
        assert pool.get(named(peer.address)) is not None
        assert names.asked == ["host", "host"]
        await pool.aclose()


async def test_look_up_that_hangs_or_was_made_just_now(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Peer() as peer:
        pool = ConnectionPool(ClientConfig(connect_timeout=0.2))
        await pool.connect(named(peer.address), 1.0)
        assert not await pool.look_again(named(peer.address), 1.0)
        assert names.asked == ["host"]
        monkeypatch.setattr(pool_module, "LOOK_SPACING", 0.0)
        names.hanging.add("host")
        began = monotonic()
        assert not await pool.look_again(named(peer.address), 0.1)
        assert monotonic() - began == pytest.approx(0.1, abs=0.01)
        assert not await pool.look_again(peer.address, 0.1)
        assert names.asked == ["host", "host"]
        await pool.aclose()


async def test_names_are_looked_up_from_time_to_time(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LOOK_EVERY", 0.1)
    async with Peer() as old, Peer(host=THERE, port=old.port) as new:
        pool = ConnectionPool(ClientConfig())
        await pool.request(named(old.address), PING, 1.0)
        await until(lambda: len(names.asked) > 2, 5.0)
        assert len(old.links) == 1
        names.hosts["host"] = [THERE]
        await until(lambda: not old.open_links, 5.0)
        await pool.request(named(old.address), PING, 1.0)
        assert new.received == 1
        await pool.aclose()


# Producers.


@pytest.mark.parametrize("said", ["no such topic", "the old route"])
async def test_name_of_the_name_server_leads_to_another_cluster(said: str, names: Names, at_once: None) -> None:
    """The old one still runs, without brokers: it has forgotten them, or not noticed yet that they are gone."""
    async with EmbeddedRocketMQ() as old, EmbeddedRocketMQ(host=THERE) as new:
        aside = {**routes_to(old.brokers["broker-a"])}
        async with (
            ScriptedPeer(aside=aside) as old_names,
            FixedPort(routes_to(new.brokers["broker-a"]), old_names.address),
        ):
            config = ClientConfig(namesrv=named(old_names.address), request_timeout=1.0)
            async with Producer("group", client=config) as producer:
                await producer.send(Message("T", b"1"))
                names.hosts["host"] = [THERE]
                if said == "no such topic":
                    aside[RequestCode.GET_ROUTEINFO_BY_TOPIC] = Answer(code=17, remark="No topic route info")
                await old.stop()
                began = monotonic()
                while not new.messages("T"):
                    assert monotonic() - began < 10.0
                    try:
                        await producer.send(Message("T", b"2"), timeout=1.0)
                    except RocketMQError:
                        await asyncio.sleep(0.05)


class FixedPort(NameServer):
    """A name server at the other address, on the same port."""

    def __init__(self, aside: dict[int, Answer], address: str) -> None:
        super().__init__(aside[RequestCode.GET_BROKER_CLUSTER_INFO].body)
        self.host, self.port = THERE, int(address.rpartition(":")[2])
        body = aside[RequestCode.GET_ROUTEINFO_BY_TOPIC].body
        self.answer = lambda link, request: link.reply(request, body=body)


async def test_unknown_topic_at_the_old_place_of_a_name(names: Names, at_once: None) -> None:
    async with EmbeddedRocketMQ(auto_create_topics=False) as old:
        port = int(old.namesrv.rpartition(":")[2])
        async with EmbeddedRocketMQ(auto_create_topics=False, host=THERE, port=port) as new:
            async with Admin(namesrv=new.namesrv) as admin:
                await admin.create_topic("T")
            async with Producer("group", namesrv=named(old.namesrv)) as producer:
                with pytest.raises(TopicNotFoundError):
                    await producer.send(Message("T", b"x"))
                names.hosts["host"] = [THERE]
                assert (await producer.send(Message("T", b"x"))).attempts == 1


async def test_resolver_that_hangs_hardly_holds_up_new_topics(names: Names) -> None:
    """The name server that the name led to answers all the time."""
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=named(server.namesrv)) as producer:
        await asyncio.sleep(10.0)
        names.hanging.add("host")
        began = monotonic()
        for number in range(10):
            await producer.send(Message(f"New{number}", b"x"))
        assert monotonic() - began < 1.5
        await asyncio.sleep(10.0)
        assert names.asked.count("host") == 2


async def test_name_moves_before_there_is_a_cluster(names: Names, at_once: None) -> None:
    """What it led to at the start still runs, and knows no broker."""
    async with (
        EmbeddedRocketMQ(host=THERE) as new,
        former(new),
        Producer("group", namesrv=named(new.namesrv), start_without_cluster=True) as producer,
    ):
        with pytest.raises(NameServerError, match="they know no broker"):
            await producer.send(Message("T", b"x"))
        names.hosts["host"] = [THERE]
        assert (await producer.send(Message("T", b"x"))).attempts == 1


@pytest.mark.parametrize("lists_brokers", [False, True], ids=["empty", "with dead brokers"])
async def test_admin_after_a_name_has_moved(lists_brokers: bool, names: Names, at_once: None) -> None:
    async with EmbeddedRocketMQ() as dead:
        clusters = {"DefaultCluster": dead.brokers} if lists_brokers else None
        async with (
            EmbeddedRocketMQ(host=THERE) as new,
            former(new, clusters),
            Admin(namesrv=named(new.namesrv)) as admin,
        ):
            await dead.stop()
            with pytest.raises(RocketMQError):
                await admin.create_topic("T")
            names.hosts["host"] = [THERE]
            await admin.create_topic("T")
            assert "T" in await admin.topics()


async def test_topics_of_a_name_that_has_moved(names: Names, at_once: None) -> None:
    async with EmbeddedRocketMQ(host=THERE) as new, Admin(namesrv=new.namesrv) as there, former(new) as old:
        await there.create_topic("T")
        body = b'{"topicList":[]}'
        old.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = lambda link, request: link.reply(request, body=body)
        async with Admin(namesrv=named(new.namesrv)) as admin:
            assert await admin.topics() == ()
            names.hosts["host"] = [THERE]
            assert "T" in await admin.topics()


def former(new: EmbeddedRocketMQ, clusters: dict[str, dict[str, str]] | None = None) -> NameServer:
    """The name server at the place to which the name led before; None: one that knows no broker."""
    server = NameServer(clusters)
    server.port = int(new.namesrv.rpartition(":")[2])
    return server


async def test_name_that_moved_away_from_a_silent_name_server(names: Names, at_once: None) -> None:
    """The connection to its old address stays open for seconds."""
    first, second = NameServer(t=route(), u=route()), NameServer(u=route())
    second.host = THERE
    async with first:
        second.port = first.port
        async with second, client(port_of(first)) as instance:
            await instance.routes.get("t", 1.0)
            fall_silent(first)
            names.hosts["host"] = [THERE]
            with pytest.raises(NameServerError):
                await instance.routes.get("u", 0.2)
            await until(lambda: second.links, 5.0)
            assert first.open_links
            await instance.routes.get("u", 1.0)


def fall_silent(server: NameServer) -> None:
    server.answer, server.answers = silence, {}
    server.serve_other = silence  # type: ignore[method-assign]


# Names with several addresses.


async def test_first_address_accepts_and_stays_silent(names: Names) -> None:
    names.hosts["host"] = [THERE, HERE]
    async with EmbeddedRocketMQ() as server, Peer(silence, host=THERE, port=int(server.namesrv.rpartition(":")[2])) as silent:
        async with Producer("group", namesrv=named(server.namesrv), request_timeout=1.0) as producer:
            assert (await producer.send(Message("T", b"x"))).attempts == 1
        assert silent.links


async def test_address_in_use_falls_silent(names: Names) -> None:
    """Its connection stays open, and the other address is asked in the same call."""
    names.hosts["host"] = [HERE, THERE]
    first, second = NameServer(t=route(), u=route()), NameServer(u=route())
    second.host = THERE
    async with first:
        second.port = first.port
        async with second, client(port_of(first)) as instance:
            await instance.routes.get("t", 1.0)
            fall_silent(first)
            began = monotonic()
            await instance.routes.get("u", 1.0)
            assert monotonic() - began == pytest.approx(0.5, abs=0.02)
            assert instance.name_servers.addresses == (named(first.address),)
            connection = instance.pool.get(named(first.address))
            assert connection is None or connection.ip == THERE


async def test_address_that_answered_is_the_first_next_time(names: Names) -> None:
    names.hosts["host"] = [THERE, HERE]
    async with Peer() as peer, Peer(silence, host=THERE, port=peer.port) as silent:
        pool = ConnectionPool(ClientConfig(connect_timeout=1.0))
        for _ in range(3):
            connection = await pool.connect(named(peer.address), 1.0)
            assert connection.ip == HERE
            peer.link.close()
            await until(lambda: not connection.is_open, 5.0)  # noqa: B023
        assert len(silent.links) == 1
        await pool.aclose()


async def test_no_address_answers(names: Names) -> None:
    """A connection is made all the same, and its requests say what is wrong."""
    names.hosts["host"] = [THERE, HERE]
    async with Peer(silence) as peer, Peer(silence, host=THERE, port=peer.port):
        pool = ConnectionPool(ClientConfig(connect_timeout=0.5))
        with pytest.raises(RequestTimeoutError):
            await pool.request(named(peer.address), PING, 1.0)
        await pool.aclose()


async def test_only_address_that_accepts_need_not_answer(names: Names) -> None:
    """It may be busy for long, and nothing better is there."""
    names.hosts["host"] = ["127.0.0.3", THERE]
    async with Peer(silence, host=THERE) as peer:
        pool = ConnectionPool(ClientConfig(connect_timeout=1.0))
        assert (await pool.connect(named(peer.address), 0.9)).ip == THERE
        await pool.aclose()


@pytest.mark.parametrize("hosts", [[HERE, THERE], [THERE, HERE]])
async def test_name_of_several_name_servers_of_which_one_knows_nothing(hosts: list[str], names: Names) -> None:
    names.hosts["host"] = hosts
    async with EmbeddedRocketMQ(auto_create_topics=False) as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic("T")
        empty = NameServer()
        empty.host, empty.port = THERE, int(server.namesrv.rpartition(":")[2])
        async with empty, Producer("group", namesrv=named(server.namesrv)) as producer:
            assert (await producer.send(Message("T", b"x"))).attempts == 1
            assert empty.links


async def test_all_name_servers_of_a_name_are_asked(names: Names) -> None:
    names.hosts["host"] = ["127.0.0.3", THERE, HERE]
    async with Peer() as first, Peer(host=THERE, port=first.port) as second, client(port_of(first)) as instance:
        answers = await instance.name_servers.each(RemotingCommand(code=100), 1.0)
        assert first.codes[100] == second.codes[100] == 1
        assert len(answers) == 2


def port_of(peer: Peer) -> Peer:
    """The same server by its name."""
    named_peer = Peer(host="host")
    named_peer.port = peer.port
    return named_peer


async def test_all_name_servers_of_a_name_must_answer(names: Names) -> None:
    names.hosts["host"] = [HERE, THERE]
    async with Peer() as first, Peer(host=THERE, port=first.port) as second:
        second.answers[100] = silence
        pool = ConnectionPool(ClientConfig(namesrv=named(first.address)))
        servers = NameServers(pool, [named(first.address)])
        with pytest.raises(RocketMQError, match="1 of 2 name servers did not respond, but all must respond"):
            await servers.each(RemotingCommand(code=100), 0.5)
        await pool.aclose()
