"""Heartbeats: one per broker and period however many share the client, at once on a new connection, and a farewell."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from rmq_async import machine
from rmq_async.client import ClientInstance, heartbeat
from rmq_async.client import heartbeat as heartbeat_module
from rmq_async.errors import ConfigError
from rmq_async.transport import CloseReason, Connection
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, decode_heartbeat, encode_heartbeat
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData

from ..support.fakes import Broker, NameServer, route
from .support import client, config_of, ours, until

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def cluster(*, brokers: int = 1) -> AsyncIterator[tuple[NameServer, list[Broker]]]:
    """A name server that knows topic "t" on all the brokers."""
    peers = [Broker() for _ in range(brokers)]
    async with NameServer() as server:
        for peer in peers:
            await peer.start()
        names = [f"broker-{number}" for number in range(brokers)]
        server.routes["t"] = TopicRouteData(
            queue_datas=tuple(QueueData(name, 4, 4, 6) for name in names),
            broker_datas=tuple(BrokerData(name, {0: peer.address}) for name, peer in zip(names, peers, strict=True)),
        )
        try:
            yield server, peers
        finally:
            for peer in peers:
                await peer.stop()


def groups(broker: Broker, beat: int = -1) -> tuple[list[str], list[str]]:
    data = broker.beats[beat]
    return [p.group_name for p in data.producer_data_set], [c.group_name for c in data.consumer_data_set]


async def test_a_new_broker_connection_gets_its_heartbeat_at_once() -> None:
    async with cluster() as (server, [broker]), client(server) as instance:
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        await instance.pool.connect(broker.address, 1.0)
        await until(lambda: broker.beats)
        assert broker.beats[0].client_id == instance.client_id
        assert groups(broker) == (["p"], [])
        assert broker.requests[0].version == 513
        await instance.unregister_producer("p", 1.0)


async def test_without_groups_there_are_no_heartbeats() -> None:
    async with cluster() as (server, [broker]), client(server, heartbeat_interval=0.05) as instance:
        await instance.routes.get("t", 1.0)
        await instance.pool.connect(broker.address, 1.0)
        await asyncio.sleep(0.2)
        assert broker.beats == []


async def test_a_connection_to_a_name_server_gets_none() -> None:
    async with cluster() as (server, _), client(server, heartbeat_interval=0.05) as instance:
        instance.register_producer("p")
        await asyncio.sleep(0.2)
        assert all(request.code != 34 for request in server.requests)
        await instance.unregister_producer("p", 1.0)


async def test_three_sharers_make_one_connection_and_one_heartbeat_per_broker_and_period() -> None:
    async with cluster(brokers=2) as (server, brokers):
        config = config_of(server, heartbeat_interval=0.4)
        instances = [await ClientInstance.acquire(config) for _ in range(3)]
        instance = instances[0]
        assert all(each is instance for each in instances)
        instance.register_producer("p1")
        instance.register_producer("p2")
        instance.register_consumer(ConsumerData(group_name="c"))
        await instance.routes.get("t", 1.0)
        await asyncio.gather(*[instance.pool.connect(broker.address, 1.0) for broker in brokers for _ in range(5)])
        await asyncio.sleep(2.1)
        for broker in brokers:
            assert len(broker.beats) == 6, "one at once, and one in each of five periods"
            assert groups(broker) == (["p1", "p2"], ["c"])
            assert len(broker.links) == 1
        assert len(server.links) == 1
        consumer = brokers[0].beats[-1].consumer_data_set[0]
        assert (consumer.consume_type, consumer.message_model) == ("CONSUME_ACTIVELY", "CLUSTERING")

        await instance.unregister_producer("p2", 1.0)
        await instance.release()
        for broker in brokers:
            assert broker.farewells == [{"clientID": instance.client_id, "producerGroup": "p2"}]
            assert broker.link.lost.done() is False
            broker.beats.clear()
        await until(lambda: all(broker.beats for broker in brokers))
        assert groups(brokers[0]) == (["p1"], ["c"])

        await instance.unregister_consumer("c", 1.0)
        await instance.release()
        await instance.unregister_producer("p1", 1.0)
        await instance.release()
        for broker in brokers:
            assert broker.farewells[1:] == [
                {"clientID": instance.client_id, "consumerGroup": "c"},
                {"clientID": instance.client_id, "producerGroup": "p1"},
            ]
            await until(lambda broker=broker: broker.link.lost.done())  # type: ignore[misc]


async def test_groups_that_join_later_are_announced_at_once_and_together() -> None:
    async with cluster() as (server, [broker]), client(server) as instance:
        instance.register_producer("p1")
        await instance.routes.get("t", 1.0)
        await instance.pool.connect(broker.address, 1.0)
        await until(lambda: broker.beats)
        instance.register_producer("p2")
        instance.register_consumer(ConsumerData(group_name="c"))
        await until(lambda: len(broker.beats) == 2)
        await asyncio.sleep(0.05)
        assert len(broker.beats) == 2
        assert groups(broker) == (["p1", "p2"], ["c"])
        for leave in (
            instance.unregister_producer("p1", 1.0),
            instance.unregister_producer("p2", 1.0),
            instance.unregister_consumer("c", 1.0),
        ):
            await leave


async def test_heartbeat_is_encoded_once_for_groups_that_change_together(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def encode(data: HeartbeatData) -> bytes:
        encoded.append(len(data.producer_data_set))
        return encode_heartbeat(data)

    monkeypatch.setattr(heartbeat, "encode_heartbeat", encode)
    names = [f"p{number:02}" for number in range(50)]
    async with cluster() as (server, [broker]), client(server) as instance:
        await instance.routes.get("t", 1.0)
        await instance.pool.connect(broker.address, 1.0)
        for name in names:
            instance.register_producer(name)
        await until(lambda: broker.beats)
        assert groups(broker) == (names, [])
        await asyncio.gather(*[instance.unregister_producer(name, 1.0) for name in names])
    assert encoded == [50]


async def test_a_group_may_join_once_only() -> None:
    async with cluster() as (server, _), client(server) as instance:
        instance.register_producer("g")
        instance.register_consumer(ConsumerData(group_name="g"))
        with pytest.raises(ConfigError, match=r"producer group g .* instance_name"):
            instance.register_producer("g")
        with pytest.raises(ConfigError, match=r"consumer group g .* instance_name"):
            instance.register_consumer(ConsumerData(group_name="g"))
        await instance.unregister_producer("g", 1.0)
        instance.register_producer("g")
        await instance.unregister_producer("g", 1.0)
        await instance.unregister_producer("g", 1.0)
        await instance.unregister_consumer("g", 1.0)


async def test_rounds_connect_to_brokers_that_are_not_connected() -> None:
    async with cluster(brokers=2) as (server, brokers), client(server, heartbeat_interval=0.1) as instance:
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        await until(lambda: all(broker.beats for broker in brokers))
        await instance.unregister_producer("p", 1.0)


async def test_a_connection_made_before_its_broker_came_into_use_is_caught_up_with() -> None:
    async with cluster() as (server, [broker]), client(server) as instance:
        instance.register_producer("p")
        await instance.pool.connect(broker.address, 1.0)
        await asyncio.sleep(0.05)
        assert broker.beats == []
        await instance.routes.get("t", 1.0)
        await until(lambda: broker.beats)
        await instance.unregister_producer("p", 1.0)


async def test_two_unanswered_heartbeats_close_the_connection_as_dead(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as (server, [broker]), client(server, heartbeat_interval=0.3, request_timeout=0.1) as instance:
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        broker.silent = True
        connection = await instance.pool.connect(broker.address, 1.0)
        start = monotonic()
        await until(lambda: not connection.is_open)
        assert connection.close_reason is CloseReason.DEAD
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING][:2] == [
            f"broker {broker.address} did not respond to {count} heartbeats in a row; the connection is closed after 2; check the "
            "broker's log and load, and the network in between" for count in (1, 2)
        ]  # fmt: skip
        assert len(broker.links[0].requests) == 2
        assert monotonic() - start == pytest.approx(0.3 + 0.1, abs=0.01)
        broker.silent = False
        await until(lambda: len(broker.links) > 1)
        await instance.unregister_producer("p", 1.0)


async def test_heartbeat_of_group_leaving_at_once_is_not_sent() -> None:
    async with cluster() as (server, [broker]), client(server) as instance:
        await instance.routes.get("t", 1.0)
        connection = await instance.pool.connect(broker.address, 1.0)
        instance.register_producer("p")
        await asyncio.sleep(0)  # it has been announced, and the heartbeat has not begun
        await instance.unregister_producer("p", 1.0)
        await asyncio.sleep(0.05)
        assert broker.beats == []
        assert connection.is_open


async def test_one_answer_between_them_keeps_the_connection() -> None:
    async with cluster() as (server, [broker]), client(server, heartbeat_interval=0.2, request_timeout=0.1) as instance:
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        connection = await instance.pool.connect(broker.address, 1.0)
        for _ in range(4):
            beats = len(broker.beats)
            broker.silent = not broker.silent
            await until(lambda beats=beats: len(broker.beats) > beats)  # type: ignore[misc]
        assert connection.is_open
        broker.silent = False
        await instance.unregister_producer("p", 1.0)


async def test_a_refused_heartbeat_is_reported_once_and_closes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as (server, [broker]), client(server, heartbeat_interval=0.05) as instance:
        broker.serve = lambda link, request: link.reply(request, code=16, remark="check signature failed.\n")
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        connection = await instance.pool.connect(broker.address, 1.0)
        await until(lambda: broker.received > 4)
        assert connection.is_open
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        hint = "check this client's credentials and the broker's log"
        assert warnings == [f"broker {broker.address} refused a heartbeat ({hint}): 16 check signature failed."]
        await instance.unregister_producer("p", 0.2)


async def test_refusals_forgotten_when_broker_leaves_route(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is reported once; anew after the broker was in no route, and not for a connect that began before it left."""

    def reports() -> list[str]:
        texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        return sorted(broker.address for broker in brokers for text in texts if f"broker {broker.address}" in text)

    async with cluster(brokers=2) as (server, brokers), client(server) as instance:
        staying, leaving = brokers
        both, heartbeats, pool = server.routes["t"], instance.heartbeats, instance.pool
        for broker in brokers:
            broker.serve = lambda link, request: link.reply(request, code=16, remark="no")
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        for broker in brokers:
            await pool.connect(broker.address, 1.0)
        known = sorted(broker.address for broker in brokers)
        await until(lambda: reports() == known)
        with monkeypatch.context() as patch:
            patch.setattr(machine, "monotonic", lambda: monotonic() + 3600)  # the last heartbeats were long ago
            heartbeats.round()
        await until(lambda: staying.received == leaving.received == 2)
        await asyncio.sleep(0.02)
        assert reports() == known, "they are reported once"

        await leaving.stop()
        await until(lambda: pool.get(leaving.address) is None)
        connect, left = pool.connect, asyncio.Event()

        async def slow(address: str, *rest: Any) -> Connection:
            await left.wait()
            return await connect(address, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(pool, "connect", slow)
            heartbeats.round()
            await asyncio.sleep(0)
        caplog.clear()
        server.routes["t"] = route(staying.address, name="broker-0")
        await instance.routes.refresh_all()
        heartbeats.round()
        left.set()
        await until(lambda: pool.trouble(leaving.address) is not None and not pool.connecting(leaving.address))
        await asyncio.sleep(0.02)
        assert reports() == []

        await leaving.start()
        server.routes["t"] = both
        await instance.routes.refresh_all()
        heartbeats.round()
        await until(lambda: reports() == [leaving.address])
        await instance.unregister_producer("p", 0.2)


async def test_a_silent_broker_does_not_hold_up_the_farewell() -> None:
    async with cluster() as (server, [broker]), client(server) as instance:
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        await instance.pool.connect(broker.address, 1.0)
        await until(lambda: broker.beats)
        broker.silent = True
        start = monotonic()
        await instance.unregister_producer("p", 0.3)
        assert monotonic() - start == pytest.approx(0.3, abs=0.01)
        assert len(broker.farewells) == 1


async def test_farewell_waits_for_a_heartbeat_for_half_of_its_time() -> None:
    """A broker that handles the heartbeat after the farewell has the group as long as the connection."""
    async with cluster() as (server, [broker]), client(server) as instance:
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        broker.silent = True
        await instance.pool.connect(broker.address, 1.0)
        await until(lambda: broker.beats)
        start = monotonic()
        leaving = asyncio.ensure_future(instance.unregister_producer("p", 0.8))
        await until(lambda: broker.farewells)
        assert monotonic() - start == pytest.approx(0.4, abs=0.02)
        await leaving
        assert monotonic() - start == pytest.approx(0.8, abs=0.02)


async def test_a_broker_that_left_the_route_is_not_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(brokers=2) as (server, brokers), client(server, heartbeat_interval=0.1) as instance:
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        await until(lambda: all(broker.beats for broker in brokers))
        server.routes["t"] = route(brokers[0].address, name="broker-0")
        await brokers[1].stop()
        await until(lambda: instance.routes.address_of("broker-1") is None, 2.0)
        caplog.clear()
        await asyncio.sleep(0.3)
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        await instance.unregister_producer("p", 1.0)


@pytest.mark.parametrize("steps", range(8))
async def test_cancelling_a_farewell_leaves_nothing(steps: int) -> None:
    async with cluster() as (server, [broker]):
        instance = await ClientInstance.acquire(config_of(server))
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        connection = await instance.pool.connect(broker.address, 1.0)
        broker.silent = True
        leaving = asyncio.ensure_future(instance.unregister_producer("p", 5.0))
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert leaving.cancelled()
        await instance.release()
        assert not connection.is_open
        assert ours() == []


UNREGISTER, BEAT = RequestCode.UNREGISTER_CLIENT, RequestCode.HEART_BEAT


def registrations(broker: Broker, link: int = 0) -> list[tuple[int, str]]:
    """Heartbeats and farewells of one connection, with their producer groups."""
    return [
        (request.code, (request.ext_fields or {}).get("producerGroup") or "")
        if request.code == UNREGISTER
        else (request.code, ",".join(each.group_name for each in decode_heartbeat(request.body).producer_data_set))
        for request in broker.links[link].requests
    ]


@pytest.mark.parametrize("before", [True, False])
async def test_when_a_group_leaves_another_one_joins_anew_where_replies_are_waited_for(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any group a broker drops the client's id, and only a group that it did not know brings that back."""
    async with cluster() as (server, [broker]), client(server) as instance:
        for group in ("p1", "p2", "p3"):
            instance.register_producer(group)
        await instance.routes.get("t", 1.0)
        await instance.pool.connect(broker.address, 1.0)
        await until(lambda: broker.beats)
        if before:
            await instance.heartbeats.introduce([broker.address], 1.0)
        await instance.unregister_producer("p2", 1.0)
        expected = [(BEAT, "p1,p2,p3"), (UNREGISTER, "p2")]
        if not before:
            with monkeypatch.context() as patch:
                patch.setattr(machine, "monotonic", lambda: monotonic() + 3600)  # the last heartbeat was long ago
                instance.heartbeats.round()
            expected += [(BEAT, "p1,p3")]
            await until(lambda: len(registrations(broker)) == 3)
            await asyncio.sleep(0.02)
            assert registrations(broker) == expected
        await instance.heartbeats.introduce([broker.address], 1.0)
        expected += [(UNREGISTER, "p1"), (BEAT, "p1,p3")]
        assert registrations(broker) == expected
        await instance.heartbeats.introduce([broker.address], 1.0)
        await asyncio.gather(*[instance.unregister_producer(group, 1.0) for group in ("p1", "p3")])
        assert sorted(registrations(broker)[len(expected) :]) == [(UNREGISTER, "p1"), (UNREGISTER, "p3")]


async def test_a_former_connection_that_ends_takes_the_id_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "NOTICED", 0.05)
    async with cluster() as (server, [broker]), client(server) as instance:
        instance.register_producer("p")
        await instance.routes.get("t", 1.0)
        await instance.heartbeats.introduce([broker.address], 1.0)
        broker.serve = lambda link, request: link.reply(request, code=1500, remark="go away")
        former = instance.pool.get(broker.address)
        assert former is not None
        (beat,) = [request.body for request in broker.requests if request.code == BEAT]
        await former.request(RemotingCommand(code=BEAT, body=beat), 1.0)
        del broker.serve
        await instance.heartbeats.introduce([broker.address], 1.0)
        assert (former.closed.done(), registrations(broker, 1)) == (False, [(BEAT, "p")])
        await until(lambda: len(registrations(broker, 1)) == 3)
        assert former.closed.done()
        assert registrations(broker, 1)[1:] == [(UNREGISTER, "p"), (BEAT, "p")]
        await instance.unregister_producer("p", 1.0)
