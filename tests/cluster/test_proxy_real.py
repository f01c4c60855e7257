"""ClusterProxy in front of real name servers and brokers, whose JSON is their own."""

from __future__ import annotations

import uuid

from rmq_async import Admin, Message, Producer, PullConsumer
from rmq_async.testing import ClusterProxy
from rmq_async.testing.cluster import RealCluster


async def test_a_real_cluster_is_used_through_proxies_and_survives_their_faults(each_cluster: RealCluster) -> None:
    topic = f"proxied-{uuid.uuid4().hex[:12]}"
    async with ClusterProxy(each_cluster.namesrv) as proxies:
        assert {name: proxy.target for name, proxy in proxies.brokers.items()} == {
            broker.name: broker.address for broker in each_cluster.brokers
        }
        name = each_cluster.brokers[0].name
        broker = proxies.brokers[name]
        async with Admin(namesrv=proxies.namesrv) as admin:
            await admin.create_topic(topic, queues=1, broker=name)
        async with Producer("proxied", namesrv=proxies.namesrv, timeout=10, attempt_timeout=2) as producer:
            await producer.send(Message(topic, b"plain"))
            broker.to_server.slice(7)
            broker.to_client.latency(0.05, jitter=0.02)
            await producer.send(Message(topic, b"sliced"))
            proxies.clear()
            broker.to_client.cut_after(30, reset=True)
            assert (await producer.send(Message(topic, b"cut"))).attempts == 2
        async with PullConsumer("proxied", namesrv=proxies.namesrv) as consumer:
            read = [message.body async for message in consumer.read(topic)]
        assert read == [b"plain", b"sliced", b"cut", b"cut"]  # the cut answer was of a message that was stored
        assert broker.accepted >= 3
        assert {"slice", "latency", "cut"} <= broker.injected.keys()
