"""Producers and consumers with equal settings are one client to the servers: by their sockets, heartbeats and lists of clients."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from time import monotonic
from typing import Any

import psutil
import pytest

from rmq_async import Admin, ClientConfig, Message, Producer, PullConsumer, run
from rmq_async.testing._probe import ask
from rmq_async.testing.cluster import RealCluster
from rmq_async.transport import Connection
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.json_body import decode_body

from ..support.instances import client_of, registered

HEARTBEAT = 1.0


class Requests:
    """Counts the requests with answers that leave, by address and code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        request = Connection.request

        async def counted(connection: Connection, command: RemotingCommand, timeout: float, **options: Any) -> RemotingCommand:
            self.counts[connection.address, command.code] += 1
            return await request(connection, command, timeout, **options)

        monkeypatch.setattr(Connection, "request", counted)

    def heartbeats(self) -> dict[str, int]:
        return {address: count for (address, code), count in self.counts.items() if code == RequestCode.HEART_BEAT}


def sockets(cluster: RealCluster) -> dict[str, int]:
    """This process's connections to the cluster's servers, by address."""
    ours = {server.address for server in (*cluster.nameservers, *cluster.brokers)}
    found: Counter[str] = Counter()
    for connection in psutil.Process().net_connections(kind="tcp"):
        if connection.raddr and connection.status == psutil.CONN_ESTABLISHED:
            address = f"{connection.raddr.ip}:{connection.raddr.port}"
            if address in ours:
                found[address] += 1
    return dict(found)


async def listed(cluster: RealCluster, code: int, group: str) -> set[str]:
    """The clients that any of the brokers lists for the group."""
    name = "producerGroup" if code == RequestCode.GET_PRODUCER_CONNECTION_LIST else "consumerGroup"
    found: set[str] = set()
    for broker in cluster.brokers:
        answer = await ask(broker.address, code, {name: group})
        assert answer is not None
        if answer.code == 0:
            found |= {each["clientId"] for each in decode_body(dict, answer.body)["connectionSet"]}
    return found


async def producers(cluster: RealCluster, group: str) -> set[str]:
    return await listed(cluster, RequestCode.GET_PRODUCER_CONNECTION_LIST, group)


async def consumers(cluster: RealCluster, group: str) -> set[str]:
    return await listed(cluster, RequestCode.GET_CONSUMER_CONNECTION_LIST, group)


def test_two_producers_and_a_consumer_are_one_client_until_the_last_stops(
    two_brokers: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topic, name = f"sharing-{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
        async with Admin(namesrv=two_brokers.namesrv) as admin:
            await admin.create_topic(topic, queues=2)
        requests = Requests(monkeypatch)
        config = ClientConfig(namesrv=two_brokers.namesrv, heartbeat_interval=HEARTBEAT, instance_name=name)
        first, second = Producer("first", client=config), Producer("second", client=config)
        consumer = PullConsumer("third", client=config)
        await asyncio.gather(first.start(), second.start(), consumer.start())
        await asyncio.gather(*[producer.send(Message(topic, b"x")) for producer in (first, second) for _ in range(20)])
        assert len([message async for message in consumer.read(topic)]) == 40
        for queue in await consumer.queues(topic):
            await consumer.pull(queue, 0)

        name_servers = set((await client_of(first)).name_servers.addresses)  # the start compares what they know
        addresses = {*name_servers, *(broker.address for broker in two_brokers.brokers)}
        print(f"sockets: {sockets(two_brokers)}")
        assert sockets(two_brokers) == dict.fromkeys(addresses, 1)
        async with asyncio.timeout(10):  # the first heartbeat is under way
            while not (client_ids := await producers(two_brokers, "first")):
                await asyncio.sleep(0.05)
        assert len(client_ids) == 1
        assert client_ids == await producers(two_brokers, "second") == await consumers(two_brokers, "third")
        assert client_ids.pop().endswith(f"@{name}")

        before, began = requests.heartbeats(), monotonic()
        await asyncio.sleep(4 * HEARTBEAT)
        beats = {address: count - before[address] for address, count in requests.heartbeats().items()}
        print(f"heartbeats in {monotonic() - began:.2f} s, one each {HEARTBEAT:g} s: {beats}")
        assert beats.keys() == addresses - name_servers
        assert all(3 <= count <= 5 for count in beats.values())

        await first.stop()
        assert await producers(two_brokers, "first") == set()
        assert await producers(two_brokers, "second") == await consumers(two_brokers, "third") != set()
        assert sockets(two_brokers) == dict.fromkeys(addresses, 1)
        await second.send(Message(topic, b"after the first stop"))

        await consumer.stop()
        assert await consumers(two_brokers, "third") == set()
        assert await producers(two_brokers, "second") != set()
        await second.send(Message(topic, b"after the second stop"))

        await second.stop()
        assert await producers(two_brokers, "second") == set()
        assert sockets(two_brokers) == {}
        assert not [key for key in registered() if key[2].instance_name == name]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_other_settings_make_another_client(cluster: RealCluster) -> None:
    async def main() -> None:
        topic = f"sharing-{uuid.uuid4().hex[:12]}"
        async with (
            Producer("first", namesrv=cluster.namesrv, instance_name="one of two") as first,
            Producer("first", namesrv=cluster.namesrv, instance_name="two of two") as second,
        ):
            for producer in (first, second):
                await producer.send(Message(topic, b"x"))
            assert set(sockets(cluster).values()) == {2}
            assert len(await producers(cluster, "first")) == 2
        assert sockets(cluster) == {}
        assert await producers(cluster, "first") == set()

    run(main())
