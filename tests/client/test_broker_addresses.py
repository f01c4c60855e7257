"""A broker's address where a name server's is wanted: the first mistake of those who come from Kafka. It fails at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from socket import socket
from time import monotonic

import pytest

from rmq_async import Admin, ClientConfig, Consumer, Message, NameServerError, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode, ResponseCode

from ..support.fakes import NameServer, Peer, refuse, silence

Client = Producer | PullConsumer | Admin | Consumer
UNSUPPORTED = refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 106 not supported")
SAID = "is the address of a broker, not of a name server; pass the addresses of name servers (default port 9876)"


async def consume(_: object) -> None:
    """Handles no message: no consumer starts here."""


def group_consumer(client: ClientConfig) -> Consumer:
    consumer = Consumer("group", client=client)
    consumer.subscribe("T", consume)
    return consumer


KINDS: dict[str, Callable[[ClientConfig], Client]] = {
    "Producer": lambda client: Producer("group", client=client),
    "PullConsumer": lambda client: PullConsumer("group", client=client),
    "Consumer": group_consumer,
    "Admin": lambda client: Admin(client=client),
}


@pytest.fixture
async def servers() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(brokers=2) as running:
        yield running


async def brokers_of(servers: EmbeddedRocketMQ) -> list[str]:
    async with Admin(namesrv=servers.namesrv) as admin:
        info = await admin.cluster_info()
    return [broker.broker_addrs[0] for broker in info.broker_addr_table.values()]


@pytest.mark.virtual_time
@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_start_at_a_broker(kind: str, patient: bool, servers: EmbeddedRocketMQ) -> None:
    (broker, _) = await brokers_of(servers)
    config = ClientConfig(namesrv=broker, start_without_cluster=patient, request_timeout=30.0)
    started = monotonic()
    with pytest.raises(NameServerError) as caught:
        await KINDS[kind](config).start()
    assert monotonic() - started < 0.01
    assert str(caught.value).startswith(f"{broker} {SAID}")
    assert caught.value.permanent


async def test_start_at_several_brokers(servers: EmbeddedRocketMQ) -> None:
    brokers = await brokers_of(servers)
    with pytest.raises(NameServerError, match="are addresses of brokers, not of name servers; ") as caught:
        await Admin(namesrv=brokers).start()
    assert all(broker in str(caught.value) for broker in brokers)
    assert caught.value.permanent


async def test_start_at_brokers_and_a_name_server(servers: EmbeddedRocketMQ) -> None:
    for _ in range(8):  # the order is drawn
        async with Producer("group", namesrv=[*await brokers_of(servers), servers.namesrv]) as producer:
            await producer.send(Message("T", b"x"))
    assert len(servers.messages("T")) == 8


async def test_start_at_a_broker_and_a_name_server_that_is_down(servers: EmbeddedRocketMQ) -> None:
    """The name server may come back, so this is no error for ever."""
    broker = (await brokers_of(servers))[0]
    with closing(socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(NameServerError) as caught:
            await Admin(namesrv=[broker, address]).start()
    assert not caught.value.permanent
    assert f"{broker}: this is a broker, not a name server" in str(caught.value)
    assert f"{address}: cannot connect" in str(caught.value)


async def test_start_at_a_proxy() -> None:
    """A proxy knows routes, and refuses the request for the list of brokers."""
    proxy = NameServer()
    proxy.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = UNSUPPORTED
    async with proxy, Producer("group", namesrv=proxy.address):
        assert proxy.asked == ["TBW102"]


@pytest.mark.virtual_time
async def test_start_at_a_server_that_gives_no_route() -> None:
    server = Peer(silence)
    server.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = UNSUPPORTED
    async with server:
        with pytest.raises(NameServerError, match="no response in its share of the time") as caught:
            await Admin(namesrv=server.address, request_timeout=0.3).start()
    assert not caught.value.permanent


@pytest.mark.virtual_time
async def test_send_when_only_brokers_come_after_the_start() -> None:
    """A client that started without a cluster waits for none where a broker comes in the place of a name server."""
    port = 9876
    async with Producer("group", namesrv=f"127.0.0.1:{port}", start_without_cluster=True, timeout=60.0) as producer:
        sending = asyncio.create_task(producer.send(Message("T", b"x")))
        await asyncio.sleep(0.1)
        async with EmbeddedRocketMQ(broker_port=port):
            started = monotonic()
            with pytest.raises(NameServerError) as caught:
                await sending
            assert monotonic() - started < 1.0, "it is looked for once a second at least"
    assert caught.value.permanent
    assert f"127.0.0.1:{port} {SAID}" in str(caught.value)
