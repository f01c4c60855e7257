"""Routes as producers use them on real name servers: how often they are asked for, and what happens when servers go or change."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from time import monotonic

import pytest

from rmq_async import (
    Admin,
    ClientConfig,
    Message,
    NameServerError,
    Producer,
    TopicNotFoundError,
    machine,
    run,
)
from rmq_async.client.route_table import TopicRoute
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.command import decode_command
from rmq_protocol.constants import RequestCode
from rmq_protocol.frame import FrameDecoder

from ..support.instances import client_of
from ..support.waiting import until
from .accounting import judge, read_all
from .conftest import NO_TIMERS, started


class CountingProxy:
    """Passes bytes on to a name server and back, and counts the route requests it sees, by topic."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.routes: Counter[str] = Counter()
        self.address = ""
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        self.writers |= {writer, server_writer}
        await asyncio.gather(self._pass(reader, server_writer, FrameDecoder()), self._pass(server_reader, writer, None))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: FrameDecoder | None) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                for frame in decoder.feed(data) if decoder is not None else ():
                    command = decode_command(frame)
                    if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                        self.routes[(command.ext_fields or {}).get("topic") or ""] += 1
                writer.write(data)
        writer.close()

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
        for writer in self.writers:
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def counted(target: str) -> AsyncIterator[CountingProxy]:
    proxy = CountingProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()


def new_topic(kind: str = "routes") -> str:
    return f"{kind}-{uuid.uuid4().hex[:12]}"


async def route_of(producer: Producer, topic: str) -> TopicRoute | None:
    return (await client_of(producer)).routes.cached(topic)


@pytest.mark.parametrize("created", [True, False], ids=["known", "made by sending"])
def test_500_first_sends_ask_for_the_route_once(cluster: RealCluster, created: bool) -> None:
    async def main() -> None:
        topic = new_topic()
        if created:
            async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
                await admin.create_topic(topic)
        async with counted(cluster.nameservers[0].address) as proxy:
            async with Producer("routes", namesrv=proxy.address) as producer:
                results = await asyncio.gather(*[producer.send(Message(topic, b"%d" % number)) for number in range(500)])
            print(f"route requests for 500 first sends: {dict(proxy.routes)}")
        assert len({(result.queue, result.queue_offset) for result in results}) == 500
        assert proxy.routes == ({topic: 1} if created else {topic: 1, "TBW102": 1})
        assert len(await read_all(cluster.namesrv, topic)) == 500

    run(main())


def test_a_raised_queue_count_is_used_by_a_running_producer(cluster: RealCluster) -> None:
    async def main() -> None:
        topic = new_topic()
        async with (
            Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin,
            Producer("routes", namesrv=cluster.namesrv, route_poll_interval=2.0) as producer,
        ):
            await admin.create_topic(topic, queues=4)
            used = {(await producer.send(Message(topic, b"before"))).queue.queue_id for _ in range(8)}
            assert used == {0, 1, 2, 3}
            await admin.create_topic(topic, queues=16)
            raised = monotonic()
            while (await producer.send(Message(topic, b"after"))).queue.queue_id < 4:
                assert monotonic() - raised < 35.0
                await asyncio.sleep(0.01)
            print(f"a new queue was used {monotonic() - raised:.3f} s after it was there; the route is polled every 2 s")
            assert monotonic() - raised < 2.5
            used = {(await producer.send(Message(topic, b"all"))).queue.queue_id for _ in range(16)}
            assert used == set(range(16))

    assert ClientConfig().route_poll_interval == 30.0  # so that it is 35 s at most with the defaults
    run(main())


def test_name_servers_die_one_after_the_other_and_forget_and_sends_go_on(two_brokers: RealCluster) -> None:
    async def main() -> None:
        known, later = new_topic("known"), new_topic("later")
        async with Admin(namesrv=two_brokers.namesrv) as admin:
            await admin.create_topic(known)
            await admin.create_topic(later)
        async with (
            # Both brokers are frozen while name servers start, which takes a busy machine longer than the default 3 s.
            Producer("routes", namesrv=two_brokers.namesrv, route_poll_interval=0.5, timeout=60.0) as producer,
            sending(producer, known) as acknowledged,
        ):
            in_use = (await client_of(producer)).name_servers
            first, second = sorted(two_brokers.nameservers, key=lambda server: in_use.addresses.index(server.address))

            await first.kill()
            died = monotonic()
            await producer.send(Message(later, b"its route comes from the second"))
            print(f"of two name servers the first died: a new topic was sent to after {monotonic() - died:.3f} s")
            assert in_use.addresses[0] == second.address

            await second.kill()
            sent = len(acknowledged)
            with pytest.raises(NameServerError, match="no name server answered"):
                await producer.send(Message(new_topic("unknown"), b"x"), timeout=1.0)
            await asyncio.sleep(1.2)
            await until(lambda: len(acknowledged) - sent > 20, 10.0)
            print(f"with both dead {len(acknowledged) - sent} sends succeeded")

            route = await forgotten(two_brokers, producer, known)
            assert await route_of(producer, known) is route
            sent, began = len(acknowledged), monotonic()
            await until(lambda: len(acknowledged) - sent > 20, 10.0)
            print(f"with both back, answering 17, 21 sends succeeded on the old route in {monotonic() - began:.3f} s")
        await two_brokers.heal()
        read = [message.msg_id for message in await read_all(two_brokers.namesrv, known)]
        verdict = judge(read, acknowledged, read)
        assert verdict.lost == ()
        assert verdict.duplicated <= 6  # of the few sends under way while both brokers were frozen, which were sent again

    run(main())


def test_fresh_producers_send_while_a_restarted_name_server_knows_nothing(
    each_cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(cluster: RealCluster) -> None:
        topic = new_topic("fresh")
        async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
            await admin.create_topic(topic)
        # Brokers register within 30 s at a restarted name server that they know, at any time; at this one never.
        async with RealCluster(brokers=0, version=cluster.version) as beside:
            (restarted,) = beside.nameservers
            await restarted.kill()
            await restarted.start()
            namesrv = f"{cluster.namesrv};{restarted.address}"
            for asked_first in (cluster.namesrv, restarted.address):
                monkeypatch.setattr(machine.random, "shuffle", lambda found, first=asked_first: found.sort(key=first.__ne__))
                for number in range(10):
                    config = ClientConfig(namesrv=namesrv, instance_name=f"{asked_first}-{number}")
                    async with Producer("routes", client=config) as producer:
                        assert (await producer.send(Message(topic, b"x"))).attempts == 1
                async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
                    assert topic in await admin.topics()
                    assert (await admin.cluster_info()).broker_addr_table
            async with Producer("routes", namesrv=restarted.address) as producer:
                with pytest.raises(TopicNotFoundError):
                    await producer.send(Message(topic, b"x"))

    run(main(each_cluster))


@asynccontextmanager
async def sending(producer: Producer, topic: str) -> AsyncIterator[list[str]]:
    """Sends to the topic all the while, 200 messages a second at most; none may fail. Gives the ids acknowledged so far."""
    acknowledged: list[str] = []

    async def work() -> None:
        while True:
            acknowledged.append((await producer.send(Message(topic, b"x"))).msg_id)
            await asyncio.sleep(0.005)

    working = asyncio.ensure_future(work())
    await asyncio.sleep(0.2)
    try:
        yield acknowledged
        if working.done():
            working.result()
    finally:
        working.cancel()
        await asyncio.wait([working])


async def forgotten(cluster: RealCluster, producer: Producer, topic: str) -> TopicRoute | None:
    """Name servers that come back know nothing until a broker registers; frozen ones do not. Returns the route from before.

    The producer itself has asked them when this returns, and believes neither.
    """
    for server in cluster.nameservers:
        await server.kill()
    route = await route_of(producer, topic)
    for broker in cluster.brokers:
        broker.pause()
    try:
        for server in cluster.nameservers:
            server.spawn()
        for server in cluster.nameservers:
            await server.wait_port(monotonic() + 30.0)
        # A name server that refused connections a moment ago is not asked again yet: then one says it, and one is not heard.
        with pytest.raises((NameServerError, TopicNotFoundError), match=r"knows no broker yet|no name server knows"):
            await (await client_of(producer)).routes.fetch(topic, 10.0)
    finally:
        for broker in cluster.brokers:
            broker.resume()
    return route


@pytest.fixture(scope="module")
def strict_cluster() -> Iterator[RealCluster]:
    """Its broker makes no topic by itself."""
    yield from started(RealCluster(broker_conf=NO_TIMERS | {"autoCreateTopicEnable": "false"}))


def test_an_unknown_topic_and_an_unreachable_name_server_differ(strict_cluster: RealCluster) -> None:
    async def main() -> None:
        topic = new_topic()
        async with Producer("routes", namesrv=strict_cluster.namesrv) as producer:
            with pytest.raises(
                TopicNotFoundError, match=rf"topic {topic} was not found.*autoCreateTopicEnable is off"
            ) as unknown:
                await producer.send(Message(topic, b"x"))
            assert unknown.value.address == strict_cluster.namesrv
            assert not unknown.value.maybe_stored
            with pytest.raises(TopicNotFoundError):
                await producer.send_oneway(Message(topic, b"x"))
            async with Admin(namesrv=strict_cluster.namesrv) as admin:
                await admin.create_topic(topic)
            await producer.send(Message(topic, b"x"))
            await strict_cluster.nameservers[0].kill()
            with pytest.raises(NameServerError, match=strict_cluster.nameservers[0].address) as unreachable:
                await producer.send(Message(new_topic(), b"x"), timeout=1.0)
            assert not isinstance(unreachable.value, TopicNotFoundError)
            await producer.send(Message(topic, b"y"))
        with pytest.raises(NameServerError, match=strict_cluster.nameservers[0].address):
            await Producer("routes", namesrv=strict_cluster.namesrv).start()

    run(main())
