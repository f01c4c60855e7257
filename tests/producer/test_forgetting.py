"""Topics that are used no longer: what is kept of them, and for how long."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from time import monotonic

import pytest

from rmq_async import Admin, Message, MessageQueue, NameServerError, Producer, PullConsumer, TopicNotFoundError
from rmq_async.client import topic_route
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.producer.routing import topic_table
from rmq_async.testing import Answer, ScriptedPeer, routes_to
from rmq_async.testing.scripted import HEARTBEATS
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route

from ..support.fakes import Link, NameServer
from .support import until

pytestmark = pytest.mark.virtual_time

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
SEND = RequestCode.SEND_MESSAGE_V2
STORED = Answer(ext_fields={"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"})
BROKER = {**HEARTBEATS, SEND: STORED, RequestCode.SEND_BATCH_MESSAGE: STORED}

BESIDE_CACHES = [tracemalloc.Filter(False, "*rmq_protocol/validation.py")]
"""Without the bounded set of topics whose names are legal, which takes 128 KiB more at once when it has grown enough."""

POLL = 0.01
UNUSED_POLLS = 10
UNKNOWN_POLLS = 3
"""As docs/routing.md promises."""


async def polls(asked: Callable[[], int], number: int) -> None:
    """Waits for so many further polls, of a client that polls one topic at least."""
    enough = asked() + number
    await until(lambda: asked() >= enough)


async def quiet(asked: Callable[[], int], most: int) -> None:
    """Waits until ten intervals of the poll bring no more than ``most`` requests an interval."""

    async def few() -> bool:
        before = asked()
        await asyncio.sleep(10 * POLL)
        return asked() - before <= 10 * most + 2

    while not await few():
        pass


@pytest.mark.parametrize("batching", [False, True])
async def test_memory_is_flat_over_topics_used_once(batching: bool) -> None:
    """It comes down again to where it was after the topics before: what the first ones leave in caches is not counted."""
    number, left = 80, 60 * 1024

    def traced() -> int:
        gc.collect()
        found = tracemalloc.take_snapshot().filter_traces(BESIDE_CACHES)
        return sum(statistic.size for statistic in found.statistics("filename"))

    async def used_once(prefix: str) -> int:
        """The memory once they are forgotten, or do not get fewer."""
        asked, least = names.answered_aside[ROUTE], traced() + left
        for item in range(number):
            await sender.send(Message(f"{prefix}{item}", b"x"))
        await until(lambda: names.answered_aside[ROUTE] > asked + number * UNUSED_POLLS, 60)
        deadline = monotonic() + 10
        while (now := traced()) > least and monotonic() < deadline:
            await asyncio.sleep(0.1)
        return now

    async with (
        ScriptedPeer(aside=BROKER) as broker,
        ScriptedPeer(aside=routes_to(broker.address)) as names,
        Producer("g", namesrv=names.address, route_poll_interval=POLL, batching=batching) as sender,
    ):
        await sender.send(Message("warm", b"x"))
        tracemalloc.start()
        try:
            before = await used_once("first-")
            grown = await used_once("second-") - before
        finally:
            tracemalloc.stop()
    print(f"{grown} bytes after {number} topics")
    assert grown <= left, f"{grown} bytes after {number} topics"


async def test_topics_of_400_queues_are_small() -> None:
    """On 50 brokers with 8 queues each."""
    number = 20
    async with ScriptedPeer(aside=BROKER) as broker:
        route = TopicRouteData(
            tuple(QueueData(f"broker-{item}", 8, 8, 6) for item in range(50)),
            tuple(BrokerData(f"broker-{item}", {0: broker.address}, "c") for item in range(50)),
        )
        aside = {**routes_to(broker.address), ROUTE: Answer(body=encode_route(route))}
        async with ScriptedPeer(aside=aside) as names, Producer("g", namesrv=names.address) as sender:
            assert len(await sender.fetch_publish_queues("warm")) == 400
            tracemalloc.start()
            try:
                gc.collect()
                before = tracemalloc.get_traced_memory()[0]
                for item in range(number):
                    await sender.fetch_publish_queues(f"T{item}")
                gc.collect()
                each = (tracemalloc.get_traced_memory()[0] - before) / number / 1024
            finally:
                tracemalloc.stop()
    print(f"{each:.1f} KiB a topic")
    assert each < 60, f"{each:.1f} KiB a topic"


async def test_names_that_a_name_server_invents_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer names 100 other brokers: those of the last 20 answers would take half a megabyte."""
    monkeypatch.setattr(topic_route, "MAX_BROKERS", 100)
    monkeypatch.setattr(topic_table, "NAMES_KEPT", 100)

    def invented(link: Link, request: RemotingCommand) -> None:
        brokers = ["broker-a", *(f"{names.asked.count('T'):04}-{item:0200}" for item in range(100))]
        queues = tuple(QueueData(name, 1, 1, 6) for name in brokers)
        link.reply(
            request,
            body=encode_route(TopicRouteData(queues, tuple(BrokerData(name, {0: "127.0.0.1:1"}, "c") for name in brokers))),
        )

    async def answered(number: int) -> int:
        """The memory after so many further answers, with a use of the topic between them."""
        for _ in range(number):
            await sender.fetch_publish_queues("T")
            await polls(lambda: names.asked.count("T"), 1)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with NameServer(T=invented) as names, Producer("g", namesrv=names.address, route_poll_interval=POLL) as sender:
        tracemalloc.start()
        try:
            before = await answered(5)
            grown = await answered(20) - before
        finally:
            tracemalloc.stop()
    assert grown < 250_000, f"{grown} bytes"


async def test_topics_in_use_and_configured_stay_known() -> None:
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        for topic in ("used", "configured", "once"):
            await admin.create_topic(topic, queues=1)
        async with Producer("g", namesrv=server.namesrv, route_poll_interval=POLL, topics=["configured"]) as sender:
            await sender.send(Message("once", b"x"))
            for _ in range(3 * UNUSED_POLLS):
                await sender.send(Message("used", b"x"))
                await polls(lambda: server.requests[ROUTE], 2)
            server.fail_next(1, 1_000_000, request=ROUTE)
            await sender.send(Message("used", b"x"))
            await sender.send(Message("configured", b"x"))
            with pytest.raises(NameServerError):
                await sender.send(Message("once", b"x"))


async def test_deleted_topics_are_asked_for_anew() -> None:
    async with EmbeddedRocketMQ(auto_create_topics=False) as server, Admin(namesrv=server.namesrv) as admin:
        for topic in ("stays", "goes"):
            await admin.create_topic(topic, queues=1)
        async with Producer("g", namesrv=server.namesrv, route_poll_interval=POLL, topics=["stays"]) as sender:
            await sender.send(Message("goes", b"x"))
            await admin.delete_topic("goes")
            await polls(lambda: server.requests[ROUTE], 2 * (UNKNOWN_POLLS + 2))
            await asyncio.wait_for(quiet(lambda: server.requests[ROUTE], 1), 10)
            with pytest.raises(TopicNotFoundError):
                await sender.send(Message("goes", b"x"))
            await admin.create_topic("goes", queues=1)
            await sender.send(Message("goes", b"again"))


async def test_no_answers_forget_no_topic() -> None:
    """Name servers that cannot be reached are no reason to forget what they said."""
    async with EmbeddedRocketMQ() as server, Producer("g", namesrv=server.namesrv, route_poll_interval=POLL) as sender:
        for topic in ("A", "B"):
            await sender.send(Message(topic, b"x"))
        server.fail_next(1, 1_000_000, request=ROUTE)
        await polls(lambda: server.requests[ROUTE], 3 * UNUSED_POLLS)
        for topic in ("A", "B"):
            assert (await sender.send(Message(topic, b"x"))).attempts == 1


async def test_brokers_of_forgotten_topics_hear_heartbeats() -> None:
    """They may still have a half message to ask about: one topic of each broker stays."""
    async with EmbeddedRocketMQ(brokers=2) as server, Admin(namesrv=server.namesrv) as admin:
        for topic in ("A", "B", "C"):
            await admin.create_topic(topic, queues=1)
        async with Producer("g", namesrv=server.namesrv, route_poll_interval=POLL, heartbeat_interval=0.05) as sender:
            for topic in ("A", "B", "C"):
                await sender.send(Message(topic, b"x"))
            await polls(lambda: server.requests[ROUTE], 3 * (UNUSED_POLLS + 2))
            await asyncio.wait_for(quiet(lambda: server.requests[ROUTE], 1), 10)
            server.fail_next(1, 1_000_000, request=ROUTE)
            beats = server.requests[RequestCode.HEART_BEAT]
            await until(lambda: server.requests[RequestCode.HEART_BEAT] >= beats + 4)


async def test_followed_topics_stay_known() -> None:
    """Though nothing comes, and the pulls are held by the broker all the time."""
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        for topic in ("A", "B"):
            await admin.create_topic(topic, queues=1)
        async with PullConsumer("g", namesrv=server.namesrv, route_poll_interval=POLL) as consumer:
            readers = [consumer.read(topic, end=None) for topic in ("A", "B")]
            steps = [asyncio.ensure_future(anext(reader)) for reader in readers]
            await polls(lambda: server.requests[ROUTE], 3 * UNUSED_POLLS)
            for topic in ("A", "B"):
                await admin.create_topic(topic, queues=2)
            async with Producer("p", namesrv=server.namesrv) as sender:
                for topic in ("A", "B"):
                    await sender.send(Message(topic, b"new queue"), queue=MessageQueue(topic, "broker-a", 1))
            found = await asyncio.wait_for(asyncio.gather(*steps), 5)
            assert [message.queue.queue_id for message in found] == [1, 1]
            for reader in readers:
                await reader.aclose()
