"""Queues that come, leave, return or are made anew while they are read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rmq_async import BrokerNotFoundError, ClientConfig, MessageQueue, OffsetRangeError, PullConsumer
from rmq_async.admin import Admin
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import NoPermissionError
from rmq_async.reading import backoff
from rmq_async.reading import reader as reading
from rmq_async.reading import skipped_offsets as continuity
from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import PullMessageRequestHeader
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData

from ..client.support import until
from ..support.fakes import Link, NameServer, route
from .support import TOPIC, collect, each, record, scripted

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue(TOPIC, "broker-a", 0)
Q1 = MessageQueue(TOPIC, "broker-a", 1)
POLL = 0.05
Place = tuple[int, int]


@asynccontextmanager
async def late_name_server(away: dict[str, int]) -> AsyncIterator[tuple[PullConsumer, Callable[..., None]]]:
    """A broker whose topic of two queues was changed, and a name server with its former route; the function changes that."""
    async with EmbeddedRocketMQ() as server, NameServer() as names:

        def publish(read_queues: int) -> None:
            queues = (QueueData("broker-a", read_queues, 2, 6),)
            names.routes[TOPIC] = TopicRouteData(queues, (BrokerData("broker-a", {0: server.brokers["broker-a"]}, "c"),))

        publish(2)
        async with Admin(client=ClientConfig(namesrv=server.namesrv)) as admin:
            await admin.create_topic(TOPIC, **({"queues": 2} | away))
        async with PullConsumer("g", client=ClientConfig(namesrv=names.address)) as consumer:
            yield consumer, publish


@asynccontextmanager
async def followed(consumer: PullConsumer, **bounds: object) -> AsyncIterator[list[Place]]:
    """Queue and offset of each message, as they come."""
    found: list[Place] = []
    messages = consumer.read(TOPIC, end=None, **bounds)  # type: ignore[arg-type]
    task = asyncio.ensure_future(each(messages, lambda item: found.append((item.queue.queue_id, item.queue_offset))))
    try:
        yield found
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stored(header: PullMessageRequestHeader, end: int) -> tuple[int, int, bytes]:
    """What the queue has below ``end``."""
    offset = int(header.queueOffset)
    if offset >= end:
        return 19, offset, b""
    return 0, end, b"".join(record(each, queue_id=header.queueId) for each in range(offset, end))


async def test_a_queue_that_comes_while_opening() -> None:
    """The route has it after the read has looked where to begin, and before it listens to changes."""
    held: list[tuple[Link, RemotingCommand]] = []
    async with scripted(lambda header: stored(header, 3), route_poll_interval=POLL, request_timeout=5.0) as (broker, consumer):
        serve, names = broker.serve, broker.name_server

        def answer(link: Link, request: RemotingCommand) -> None:
            if request.code == RequestCode.GET_MIN_OFFSET and not held:
                held.append((link, request))
            else:
                serve(link, request)

        broker.serve = answer
        async with followed(consumer) as found:
            await until(lambda: held)
            names.routes[TOPIC] = route(broker.address, queues=2)
            asked = names.asked.count(TOPIC)
            await until(lambda: names.asked.count(TOPIC) > asked + 2)
            serve(*held[0])
            await until(lambda: len(found) == 6)
            assert sorted(found) == [(queue, offset) for queue in (0, 1) for offset in range(3)]


async def test_named_queues_are_read_alone() -> None:
    """With offsets by queue the others that the topic has are left out; one that comes later is followed."""
    async with (
        scripted(lambda header: stored(header, 3), queues=2, route_poll_interval=POLL) as (broker, consumer),
        followed(consumer, start={Q0: 1}) as found,
    ):
        await until(lambda: len(found) == 2)
        broker.name_server.routes[TOPIC] = route(broker.address, queues=3)
        await until(lambda: len(found) == 5)
        assert sorted(found) == [(0, 1), (0, 2), (2, 0), (2, 1), (2, 2)]


async def test_a_queue_that_returns_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The topic loses the permission to read for a while: nothing is delivered twice."""
    caplog.set_level(logging.INFO)
    closed, end = False, 5

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        return (16, 0, b"") if closed else stored(header, end)

    async with scripted(pull, route_poll_interval=POLL) as (broker, consumer), followed(consumer) as found:
        await until(lambda: len(found) == 5)
        broker.name_server.routes[TOPIC] = route(broker.address, queues=1, perm=2)
        asked = broker.name_server.asked.count(TOPIC)
        await until(lambda: broker.name_server.asked.count(TOPIC) > asked + 2)
        closed = True
        await until(lambda: "no longer in its topic's route" in caplog.text, 20)
        closed, end = False, 7
        broker.name_server.routes[TOPIC] = route(broker.address, queues=1)
        await until(lambda: (0, 6) in found)
        assert found == [(0, offset) for offset in range(7)]


async def test_a_refusal_before_the_route_is_polled(caplog: pytest.LogCaptureFixture) -> None:
    """The broker refuses reads at once, the poll of the route is far away: the route is asked for, and the stream goes on."""
    caplog.set_level(logging.INFO)
    closed, end = False, 5

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        return (16, 0, b"") if closed else stored(header, end)

    async with scripted(pull, route_poll_interval=600.0) as (broker, consumer), followed(consumer) as found:
        await until(lambda: len(found) == 5)
        broker.name_server.routes[TOPIC] = route(broker.address, queues=1, perm=2)
        closed = True
        await until(lambda: "no longer in its topic's route" in caplog.text, 20)
        closed, end = False, 7
        broker.name_server.routes[TOPIC] = route(broker.address, queues=1)
        await consumer.queues(TOPIC)
        await until(lambda: (0, 6) in found)
        assert found == [(0, offset) for offset in range(7)]


async def test_places_of_queues_that_left_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three queues that leave, the places of the last two are kept; the first begins anew."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(reading, "MOST_GONE", 2)
    closed: set[int] = set()

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        return (16, 0, b"") if header.queueId in closed else stored(header, 2)

    async with scripted(pull, queues=3, route_poll_interval=600.0) as (broker, consumer), followed(consumer) as found:
        await until(lambda: len(found) == 6)
        for count in (2, 1, 0):
            broker.name_server.routes[TOPIC] = route(broker.address, queues=max(count, 1), perm=6 if count else 2)
            closed.add(count)
            await until(lambda count=count: caplog.text.count("no longer in its topic's route") == 3 - count, 20)
        closed.clear()
        broker.name_server.routes[TOPIC] = route(broker.address, queues=3)
        await consumer.queues(TOPIC)
        await until(lambda: len(found) == 8)
        assert found[6:] == [(2, 0), (2, 1)]


async def test_a_queue_made_anew_is_read_from_its_first(caplog: pytest.LogCaptureFixture) -> None:
    """The topic was deleted on one of its brokers and is back there."""
    caplog.set_level(logging.INFO)
    ends: dict[int, int | None] = {0: 5, 1: 5}

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        end = ends[header.queueId]
        return (17, 0, b"") if end is None else stored(header, end)

    async with scripted(pull, queues=2, route_poll_interval=POLL) as (broker, consumer), followed(consumer) as found:
        await until(lambda: len(found) == 10)
        broker.name_server.routes[TOPIC] = route(broker.address, queues=1)
        asked = broker.name_server.asked.count(TOPIC)
        await until(lambda: broker.name_server.asked.count(TOPIC) > asked + 2)
        ends[1] = None
        await until(lambda: "no longer in its topic's route" in caplog.text, 20)
        ends[1] = 2
        broker.name_server.routes[TOPIC] = route(broker.address, queues=2)
        await until(lambda: len(found) == 12)
        assert [offset for queue, offset in found if queue == 1] == [0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize("replica", [False, True])
async def test_tags_beside_a_queue_made_anew(monkeypatch: pytest.MonkeyPatch, replica: bool) -> None:
    """It ends before what was passed over: an error, not a check without end; of a replica it is not believed."""
    monkeypatch.setattr(continuity, "CHECK_EVERY", 0.05)
    end = 10

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        offset = int(header.queueOffset)
        if offset > end:
            return 21, 0, b""
        if offset == end:
            return 19, offset, b""
        return stored(header, end) if header.subscription == "*" else (20, end, b"")

    async with scripted(pull, route_poll_interval=POLL) as (broker, consumer):
        broker.high = 10
        if replica:
            data = BrokerData("broker-a", {1: broker.address}, "DefaultCluster")
            broker.name_server.routes[TOPIC] = TopicRouteData((QueueData("broker-a", 1, 1, 6),), (data,))
        task = asyncio.ensure_future(collect(consumer.read(TOPIC, start={Q0: 5}, end=None, tags="rare")))
        await until(lambda: any(header.queueOffset == 10 for header in broker.pulls))
        end = broker.high = 2
        if replica:
            checks = len(broker.pulls)
            await until(lambda: len([header for header in broker.pulls[checks:] if header.subscription == "*"]) > 1)
            assert not task.done()
            broker.name_server.routes[TOPIC] = route(broker.address, queues=1)
        with pytest.raises(
            OffsetRangeError, match=r"was read up to offset 10, and may have other messages from 2 on"
        ) as caught:
            await asyncio.wait_for(task, 10)
        assert (caught.value.max_offset, caught.value.broker) == (2, "broker-a")


async def test_an_acting_master_of_another_topic() -> None:
    """The route of the topic to read is not in use; another one's named a replica in the master's place."""
    async with scripted(lambda header: stored(header, 3)) as (broker, consumer):
        broker.high = 3
        names = broker.name_server
        names.clusters = encode_cluster_info(
            ClusterInfo({"broker-a": BrokerData("broker-a", {1: broker.address}, "DefaultCluster")}, {})
        )
        data = BrokerData("broker-a", {0: broker.address}, "DefaultCluster", enable_acting_master=True)
        names.routes["other"] = names.routes[TOPIC] = TopicRouteData((QueueData("broker-a", 1, 1, 6),), (data,))
        await consumer.queues("other")
        with pytest.raises(BrokerNotFoundError, match="broker-a has no master now"):
            await collect(consumer.read(TOPIC, queues=[Q0]))


@pytest.mark.parametrize("away", [{"perm": 2}, {"queues": 2, "read_queues": 1}], ids=["unreadable", "fewer"])
async def test_a_queue_refused_before_its_route_changes_is_waited_for(
    away: dict[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FOLLOW_SUSPEND", 0.1)
    async with late_name_server(away) as (consumer, publish), followed(consumer) as found:
        await until(lambda: "a pull of PullConsumer.read() failed and is repeated: " in caplog.text)
        caplog.set_level(logging.INFO)
        publish(read_queues=1)
        await until(lambda: f"queue {Q1} is no longer in its topic's route" in caplog.text)
        assert not found


async def test_a_queue_refused_for_longer_than_routes_lag_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FOLLOW_SUSPEND", 0.1)
    monkeypatch.setattr(backoff, "ROUTE_LAG", 0.3)
    async with late_name_server({"perm": 2}) as (consumer, _):
        with pytest.raises(NoPermissionError, match="pulling message is forbidden"):
            await collect(consumer.read(TOPIC, end=None))
