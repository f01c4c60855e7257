"""ClusterProxy: a real Producer finds the brokers through it, and meets the faults of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from rmq_async import Admin, ConnectionLostError, Message, Producer, PullConsumer, RequestTimeoutError, SendError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import ClusterError, ClusterProxy
from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, decode_route, encode_route

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.virtual_time]


@pytest.fixture
async def server(nothing_left: None) -> AsyncIterator[EmbeddedRocketMQ]:
    """Topic "T" has 2 queues on each of two brokers."""
    async with EmbeddedRocketMQ(brokers=2) as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic("T", queues=2)
        yield server


@pytest.fixture
async def cluster(server: EmbeddedRocketMQ) -> AsyncIterator[ClusterProxy]:
    async with ClusterProxy(server.namesrv, seed=1) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: ClusterProxy) -> AsyncIterator[Producer]:
    """Connected to both brokers, with two messages sent to each."""
    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        for queue in await producer.fetch_publish_queues("T"):
            await producer.send(Message("T", b"first"), queue=queue)
        yield producer


async def test_everything_a_producer_does_goes_through_the_proxies(
    server: EmbeddedRocketMQ, cluster: ClusterProxy, producer: Producer
) -> None:
    assert cluster.brokers.keys() == server.brokers.keys()
    results = [await producer.send(Message("T", b"%d" % number)) for number in range(16)]
    assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}
    other = server.statistics("namesrv").accepted - cluster.name_servers[0].accepted
    assert other == 2  # the topic's creator, and the proxy's own look-up
    for name, proxy in cluster.brokers.items():
        assert proxy.target == server.brokers[name]
        assert proxy.accepted == 1
        assert server.statistics(name).connections == 1
        assert proxy.to_server.passed > 16 / 2 * 100
    async with PullConsumer("reader", namesrv=cluster.namesrv) as consumer:
        read = [message.body async for message in consumer.read("T")]
    assert sorted(read) == sorted([b"first"] * 4 + [b"%d" % number for number in range(16)])
    assert not sum((proxy.injected for proxy in cluster.proxies), start=cluster.proxies[0].injected)


async def test_an_answer_cut_in_the_middle_is_a_lost_connection_and_the_message_may_be_stored(
    server: EmbeddedRocketMQ, cluster: ClusterProxy
) -> None:
    async with Producer("shop", namesrv=cluster.namesrv, retries=0) as producer:
        queue = (await producer.send(Message("T", b"first"))).queue
        cluster.brokers[queue.broker_name].to_client.cut_after(40)
        with pytest.raises(ConnectionLostError) as lost:
            await producer.send(Message("T", b"second"), queue=queue)
        assert lost.value.maybe_stored
        assert (await producer.send(Message("T", b"third"), queue=queue)).queue == queue
    assert [message.body for message in server.messages("T")] == [b"first", b"second", b"third"]
    assert cluster.brokers[queue.broker_name].injected == {"cut": 1}


async def test_sends_go_round_a_broker_that_is_silent_and_come_back(
    server: EmbeddedRocketMQ, cluster: ClusterProxy, producer: Producer
) -> None:
    silent = cluster.brokers["broker-a"]
    silent.stall()
    results = [await producer.send(Message("T", b"x"), timeout=1) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"broker-b"}
    assert silent.injected["stall"] > 0
    silent.resume()
    queues = [queue for queue in await producer.fetch_publish_queues("T") if queue.broker_name == "broker-a"]
    assert (await producer.send(Message("T", b"back"), queue=queues[0])).queue == queues[0]


async def test_latency_and_small_pieces_change_nothing_but_the_time(cluster: ClusterProxy, producer: Producer) -> None:
    for proxy in cluster.brokers.values():
        proxy.to_client.latency(0.1, jitter=0.02)
        proxy.to_server.slice(50)
    begin = time.monotonic()
    results = await asyncio.gather(*[producer.send(Message("T", b"%d" % number)) for number in range(20)])
    assert time.monotonic() - begin >= 0.1
    assert [result.attempts for result in results] == [1] * 20


async def test_a_reset_is_survived_by_a_retry(server: EmbeddedRocketMQ, cluster: ClusterProxy, producer: Producer) -> None:
    for proxy in cluster.brokers.values():
        proxy.to_client.stall()
    sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(4)]
    await asyncio.sleep(0.05)
    for proxy in cluster.brokers.values():
        proxy.reset()
        proxy.resume()
    assert all([(await send).attempts > 1 for send in sends])


async def test_a_time_out_is_reported_and_the_connection_goes_on(cluster: ClusterProxy, producer: Producer) -> None:
    for proxy in cluster.brokers.values():
        proxy.to_client.latency(0.5)
    with pytest.raises((RequestTimeoutError, SendError)):
        await producer.send(Message("T", b"late"), timeout=0.2)
    cluster.clear()
    assert (await producer.send(Message("T", b"in time"))).attempts == 1
    assert {proxy.accepted for proxy in cluster.brokers.values()} == {1}


async def test_a_name_server_may_be_cut_off_while_sends_go_on(cluster: ClusterProxy, producer: Producer) -> None:
    cluster.name_servers[0].stall()
    assert (await producer.send(Message("T", b"second"))).attempts == 1


async def test_both_forms_of_a_name_servers_answer_are_led_through(cluster: ClusterProxy, server: EmbeddedRocketMQ) -> None:
    address = server.brokers["broker-a"]
    data = BrokerData("broker-a", {0: address, 1: "127.0.0.1:19"}, "c")
    route = TopicRouteData((QueueData("broker-a", 1, 1, 6),), (data,))
    for standard in (True, False):
        received = decode_route(await cluster.lead_through(encode_route(route, standard=standard)))
        assert received.queue_datas == route.queue_datas
        assert received.broker_datas[0].broker_addrs == {
            0: cluster.brokers["broker-a"].address,
            1: cluster.proxy_of("127.0.0.1:19").address,
        }
    info = encode_cluster_info(ClusterInfo({"new": BrokerData("new", {0: "127.0.0.1:18"})}), standard=False)
    assert cluster.brokers.get("new") is None
    assert b"127.0.0.1:18" not in await cluster.lead_through(info)
    assert cluster.brokers["new"].target == "127.0.0.1:18"
    for strange in (b"", b"\xff", b'{"brokerDatas": 7}', b'{"table": {"x": "127.0.0.1:18"}}'):
        assert await cluster.lead_through(strange) == strange


async def test_the_admin_sees_the_proxies_too(cluster: ClusterProxy, producer: Producer) -> None:
    async with Admin(namesrv=cluster.namesrv) as admin:
        route = await admin.topic_route("T")
    assert {data.broker_addrs[0] for data in route.broker_datas} == {each.address for each in cluster.brokers.values()}


async def test_it_can_be_stopped_and_started_again_on_its_ports(server: EmbeddedRocketMQ) -> None:
    cluster = ClusterProxy(server.namesrv)
    with pytest.raises(RuntimeError, match="has no address before"):
        _ = cluster.namesrv
    async with cluster:
        before = [proxy.address for proxy in cluster.proxies]
        with pytest.raises(RuntimeError, match="is already running"):
            await cluster.start()
    await cluster.stop()
    async with cluster, Producer("shop", namesrv=cluster.namesrv) as producer:
        assert [proxy.address for proxy in cluster.proxies] == before
        await producer.send(Message("T", b"x"))


async def test_without_a_name_server_there_is_nothing_to_stand_before() -> None:
    cluster = ClusterProxy("127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"no response from name servers 127\.0\.0\.1:1 within 2 s; start them"):
        await cluster.start()
    with pytest.raises(ValueError, match="names no server"):
        ClusterProxy(" ; ")
