"""``start_without_cluster``: clients start while no name server answers, and their calls wait for the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest

from rmq_async import (
    Admin,
    ClientConfig,
    ClientStateError,
    ConfigError,
    Consumer,
    Message,
    NameServerError,
    Producer,
    PullConsumer,
    RocketMQError,
    TopicNotFoundError,
    TransactionProducer,
    TransactionStatus,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import GroupNotOnlineError
from rmq_async.testing import Answer, FaultProxy, ScriptedPeer
from rmq_async.testing.scripted import routes_to
from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.constants import RequestCode, ResponseCode

pytestmark = pytest.mark.virtual_time

TOPIC = "LateTopic"
Client = Producer | PullConsumer | Admin


@pytest.fixture
def port() -> int:
    """A port on which nothing listens."""
    return 9876


def config(port: int, **options: Any) -> ClientConfig:
    return ClientConfig(namesrv=f"127.0.0.1:{port}", start_without_cluster=True, **options)


def transactional(client: ClientConfig, **options: Any) -> TransactionProducer:
    return TransactionProducer(
        "group", execute=lambda *_: TransactionStatus.COMMIT, check=lambda _: TransactionStatus.COMMIT, client=client, **options
    )


KINDS: dict[str, Callable[[ClientConfig], Client]] = {
    "Producer": lambda client: Producer("group", client=client),
    "TransactionProducer": transactional,
    "PullConsumer": lambda client: PullConsumer("group", client=client),
    "Admin": lambda client: Admin(client=client),
}


def left() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("rmq_async")]


@pytest.mark.parametrize("kind", KINDS)
async def test_start_without_cluster(kind: str, port: int, caplog: pytest.LogCaptureFixture) -> None:
    began = monotonic()
    async with KINDS[kind](config(port)):
        assert monotonic() - began < 0.01
        assert "started without a cluster" in caplog.text
        assert f"cannot connect to 127.0.0.1:{port}" in caplog.text
    assert not left()


@pytest.mark.parametrize("kind", KINDS)
async def test_start_with_cluster_needed(kind: str, port: int) -> None:
    client = KINDS[kind](ClientConfig(namesrv=f"127.0.0.1:{port}"))
    with pytest.raises(NameServerError, match="cannot connect"):
        await client.start()
    assert not left()


@pytest.mark.parametrize("options", [{"mode": "pull"}, {"mode": "pop"}, {"start_from": "earliest"}])
async def test_start_of_a_group_consumer_waits_for_the_cluster_and_raises(options: dict[str, Any], port: int) -> None:
    consumer = Consumer("group", client=config(port, request_timeout=0.4), **options)
    consumer.subscribe("topic", lambda _: None)
    began = monotonic()
    with pytest.raises(NameServerError, match="none has answered since the start"):
        await consumer.start()
    assert monotonic() - began == pytest.approx(0.4, abs=0.01)
    assert not left()


async def test_start_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(NameServerError, match="no name server is configured"):
        await Producer("group", start_without_cluster=True).start()
    assert not left()


def test_option_of_wrong_type() -> None:
    with pytest.raises(ConfigError, match="start_without_cluster must be True or False"):
        ClientConfig(start_without_cluster=1)  # type: ignore[arg-type]


async def test_calls_before_the_cluster(port: int) -> None:
    """Each fails at its own time, with what is wrong."""
    client = config(port, request_timeout=0.4)
    producer, consumer, admin = Producer("group", client=client), PullConsumer("group", client=client), Admin(client=client)
    calls: list[tuple[Callable[[], Awaitable[object]], float]] = [
        (lambda: producer.send(Message(TOPIC, b"x"), timeout=0.7), 0.7),
        (lambda: producer.send(Message(TOPIC, b"x"), key=1, timeout=0.2), 0.2),
        (lambda: producer.send_batch([Message(TOPIC, b"x")], timeout=0.3), 0.3),
        (lambda: producer.send_async(Message(TOPIC, b"x"), timeout=0.2), 0.2),
        (lambda: producer.send_oneway(Message(TOPIC, b"x"), timeout=0.2), 0.2),
        (lambda: consumer.queues(TOPIC), 0.4),
        (lambda: anext(consumer.read(TOPIC)), 0.4),
        (lambda: admin.topics(), 0.4),
        (lambda: admin.topic_route(TOPIC), 0.4),
        (lambda: admin.create_topic(TOPIC), 0.4),
    ]

    async def fails(call: Callable[[], Awaitable[object]], after: float) -> None:
        began = monotonic()
        with pytest.raises(NameServerError, match=r"has answered since the start.*cannot connect"):
            await call()
        assert monotonic() - began == pytest.approx(after, abs=0.01)

    async with producer, consumer, admin:
        await asyncio.gather(*[fails(*call) for call in calls])
        stopped = asyncio.ensure_future(producer.send(Message(TOPIC, b"x"), timeout=20))
        await asyncio.sleep(0.01)
        await producer.stop(0)
        with pytest.raises(ClientStateError):
            await stopped
    assert not left()


async def test_calls_end_when_the_cluster_is_there(port: int) -> None:
    client = config(port)
    producer, consumer, admin = Producer("group", client=client), PullConsumer("group", client=client), Admin(client=client)
    async with producer, consumer, admin:
        creating = asyncio.ensure_future(admin.create_topic("Other", queues=2))
        listing = asyncio.ensure_future(admin.topics())
        sending = [asyncio.ensure_future(producer.send(Message(TOPIC, b"%d" % n), timeout=20)) for n in range(500)]
        keyed = [asyncio.ensure_future(producer.send(Message(TOPIC, b"k"), key=n, timeout=20)) for n in range(10)]
        await asyncio.sleep(0.3)
        async with EmbeddedRocketMQ(port=port) as server:
            began = monotonic()
            results = await asyncio.gather(*sending, *keyed)
            assert monotonic() - began < 1.0, "it is looked for once a second at least"
            assert {result.attempts for result in results} == {1}
            await creating
            await listing
            assert [message async for message in consumer.read(TOPIC)]
            assert len(server.messages(TOPIC)) == 510
            later = await producer.send(Message("Other", b"x"), timeout=0.5)
            assert later.queue.topic == "Other"
    assert not left()


async def test_name_server_that_knows_no_broker() -> None:
    """A name server that has just started says of every topic that it does not exist: calls wait for the first broker."""
    async with EmbeddedRocketMQ() as server:
        here = routes_to(server.brokers["broker-a"])
        nothing = Answer(code=ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        aside = {RequestCode.GET_BROKER_CLUSTER_INFO: Answer(body=encode_cluster_info(ClusterInfo()))}
        aside[RequestCode.GET_ROUTEINFO_BY_TOPIC] = nothing
        async with (
            ScriptedPeer(aside=aside) as names,
            Producer("g", namesrv=names.address, start_without_cluster=True) as sender,
        ):
            with pytest.raises(NameServerError, match="they know no broker"):
                await sender.send(Message(TOPIC, b"x"), timeout=0.2)
            sending = asyncio.ensure_future(sender.send(Message(TOPIC, b"y"), timeout=20))
            await asyncio.sleep(0.1)
            assert not sending.done()
            aside.update(here)
            assert (await sending).attempts == 1
            aside[RequestCode.GET_ROUTEINFO_BY_TOPIC] = nothing
            with pytest.raises(TopicNotFoundError):
                await sender.send(Message("Unknown", b"z"), timeout=20)
        assert [message.body for message in server.messages(TOPIC)] == [b"y"]
    assert not left()


async def test_name_server_behind_a_silent_network() -> None:
    """The start takes no longer than ``request_timeout``; calls made meanwhile are those of a client that is not started."""
    async with EmbeddedRocketMQ() as server, FaultProxy(server.namesrv) as proxy:
        proxy.to_server.stall()
        client = ClientConfig(namesrv=proxy.address, start_without_cluster=True, request_timeout=0.3)
        began = monotonic()
        async with Producer("group", client=client) as producer:
            assert monotonic() - began == pytest.approx(0.3, abs=0.01)
            sending = asyncio.ensure_future(producer.send(Message(TOPIC, b"x"), timeout=20))
            await asyncio.sleep(0.1)
            proxy.to_server.resume()
            assert (await sending).attempts == 1


async def test_topics_of_a_late_cluster(port: int) -> None:
    """They are fetched, and their brokers greeted, as soon as the cluster is there: brokers ask about transactions only then."""
    late = EmbeddedRocketMQ(port=port)
    async with transactional(config(port), topics=[TOPIC]), late, Admin(namesrv=late.namesrv) as admin:
        async with asyncio.timeout(60):
            while True:
                try:
                    assert len(await admin.producer_connections("group")) == 1
                    break
                except GroupNotOnlineError:
                    await asyncio.sleep(0.01)
    producer = Producer("group", client=config(port), topics=[TOPIC])
    await producer.start()
    await producer.stop()
    assert not left()


async def test_late_cluster_that_goes_away_again(port: int) -> None:
    """Once there was a cluster, calls fail at once when no name server can be reached, as without the option."""
    async with Producer("group", client=config(port)) as producer:
        async with EmbeddedRocketMQ(port=port):
            await producer.send(Message(TOPIC, b"x"), timeout=20)
        began = monotonic()
        with pytest.raises(RocketMQError):
            await producer.send(Message("Other", b"x"), timeout=20)
        assert monotonic() - began < 0.01


async def test_clients_with_and_without_the_option_share_nothing() -> None:
    async with EmbeddedRocketMQ() as server:
        strict = ClientConfig(namesrv=server.namesrv)
        lenient = ClientConfig(namesrv=server.namesrv, start_without_cluster=True)
        async with Producer("group", client=strict) as one, Producer("group", client=lenient) as two:
            for producer in (one, two):
                await producer.send(Message(TOPIC, b"x"))
        assert len(server.messages(TOPIC)) == 2
