"""What ``start`` makes ready with ``topics=[...]``, what may be missing then, and the states on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import ClientStateError, ConfigError, Producer, TopicNotFoundError
from rmq_async.producer import ProducerState
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import decode_heartbeat

from ..support.fakes import TOPIC, Cluster, Link
from .support import Send, awaited, batched, deferred, message, producer, timed, until

pytestmark = pytest.mark.virtual_time

LOG = "rmq_async.producer"


def heard(cluster: Cluster) -> list[set[str]]:
    """The groups of every heartbeat that the first broker got."""
    return [
        {group.group_name for group in decode_heartbeat(command.body).producer_data_set}
        for command in cluster.a.requests
        if command.code == RequestCode.HEART_BEAT
    ]


@pytest.mark.parametrize("send", [awaited, deferred, batched], ids=lambda send: send.__name__)
async def test_the_first_send_finds_route_and_connection(pair: Cluster, send: Send) -> None:
    async with producer(pair, topics=[TOPIC]) as sender:
        asked, accepted = len(pair.name_server.asked), [len(broker.links) for broker in pair.brokers]
        assert (asked, accepted) == (1, [1, 1])
        for _ in range(4):
            await send(sender)
        await sender.send_oneway(message())
        assert (len(pair.name_server.asked), [len(broker.links) for broker in pair.brokers]) == (asked, accepted)


async def test_brokers_know_the_group_before_start_returns(pair: Cluster) -> None:
    sender = producer(pair, topics=[TOPIC])
    await sender.start()
    try:
        assert [broker.codes[RequestCode.HEART_BEAT] for broker in pair.brokers] == [1, 1]
        assert heard(pair) == [{"group"}]
    finally:
        await sender.stop()


async def test_a_second_producer_of_the_client_is_announced_too(cluster: Cluster) -> None:
    async with producer(cluster, "one", topics=[TOPIC]), producer(cluster, "two", topics=[TOPIC]):
        assert heard(cluster)[-1] == {"one", "two"}
        assert len(cluster.a.links) == 1


async def test_without_topics_start_asks_no_broker(cluster: Cluster) -> None:
    async with producer(cluster):
        assert not cluster.received


async def test_a_topic_that_is_missing_is_one_warning(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", LOG):
        async with producer(cluster, topics=["missing", TOPIC], create_topic_key="none") as sender:
            assert cluster.a.codes[RequestCode.HEART_BEAT] == 1
            with pytest.raises(TopicNotFoundError):
                await sender.send(message(topic="missing"))
            await sender.send(message())
    [record] = [record for record in caplog.records if record.name == LOG]
    assert "topic missing is not ready at the start: topic missing was not found" in record.getMessage()


async def test_a_broker_that_is_gone_is_one_warning(pair: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await pair.b.stop()
    with caplog.at_level("WARNING", "rmq_async"):
        async with producer(pair, topics=[TOPIC]) as sender:
            assert pair.a.codes[RequestCode.HEART_BEAT] == 1
            await sender.send(message(), queue=pair.queue())
    [reported] = [record.getMessage() for record in caplog.records if pair.b.address in record.getMessage()]
    assert reported.startswith(f"cannot send a heartbeat to broker {pair.b.address}: ")
    assert reported.endswith("; check that it runs and that this host can reach its address")


async def test_a_broker_or_name_server_that_is_silent_costs_request_timeout(cluster: Cluster) -> None:
    cluster.a.silent = True
    with timed(0.3, 0.5):
        async with asyncio.timeout(5), producer(cluster, topics=[TOPIC], request_timeout=0.3) as sender:
            await sender.send(message())
            await sender.stop(0.05)

    def never(link: Link, command: Any) -> None: ...

    cluster.name_server.answer = never
    with timed(0.2, 0.6):
        async with producer(cluster, topics=[TOPIC], request_timeout=0.3, retries=0):
            pass


async def test_a_start_that_fails_leaves_no_group(cluster: Cluster) -> None:
    async with producer(cluster, topics=[TOPIC]) as sender:
        for _ in range(2):
            twin = producer(cluster)
            with pytest.raises(ConfigError):
                await twin.start()
            assert twin.state is ProducerState.NEW
            await twin.stop()
        await sender.send(message())
    assert cluster.a.unregistered == ["group"]


@pytest.mark.parametrize("steps", [1, 2, 5, 10, 20])
async def test_cancelled_while_it_makes_ready(cluster: Cluster, steps: int) -> None:
    cluster.name_server.delay = 0.02
    sender = producer(cluster, topics=[TOPIC])
    starting = asyncio.ensure_future(sender.start())
    for _ in range(steps):
        await asyncio.sleep(0.002)
    starting.cancel()
    await asyncio.wait([starting])
    await sender.stop()
    async with producer(cluster, topics=[TOPIC]) as again:
        await again.send(message())


async def test_states(cluster: Cluster) -> None:
    sender = producer(cluster, topics=[TOPIC])
    assert sender.state is ProducerState.NEW
    await sender.stop()
    assert sender.state is ProducerState.NEW
    starting = asyncio.ensure_future(sender.start())
    await asyncio.sleep(0)
    assert sender.state is ProducerState.STARTING
    await starting
    assert sender.state is ProducerState.RUNNING
    assert "group running" in repr(sender)
    cluster.a.silent = True
    stopping = asyncio.ensure_future(sender.stop(0.05))
    await asyncio.sleep(0)
    assert sender.state is ProducerState.STOPPING
    await stopping
    assert sender.state is ProducerState.STOPPED
    cluster.a.silent = False
    await sender.start()
    await sender.start()
    assert sender.state is ProducerState.RUNNING
    await sender.aclose()
    await sender.stop()
    assert sender.state is ProducerState.STOPPED


async def test_stopped_while_it_makes_ready(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.05
    sender = producer(cluster, topics=[TOPIC])
    starting = asyncio.ensure_future(sender.start())
    await until(lambda: cluster.name_server.asked)
    await sender.stop()
    with pytest.raises(ClientStateError, match="was stopped while it started"):
        await starting


@pytest.mark.parametrize("step", ["name server", "route"])
async def test_stop_ends_a_start_that_waits_for_a_silent_server(cluster: Cluster, step: str) -> None:
    def never(link: Link, command: Any) -> None:
        asked.append(command)

    asked: list[Any] = []
    if step == "route":
        cluster.name_server.answer = never
    else:
        cluster.name_server.serve = never  # type: ignore[method-assign]
    sender = producer(cluster, topics=[TOPIC], request_timeout=5.0)
    starting = asyncio.ensure_future(sender.start())
    await until(lambda: asked)
    with timed(0, 1.0):
        await sender.stop(0.05)
        with pytest.raises(ClientStateError, match="was stopped while it started"):
            await starting
    assert sender.state is ProducerState.NEW


def test_topics_are_checked_when_they_are_given() -> None:
    with pytest.raises(ConfigError, match=r"topics: .*'a b'"):
        Producer("group", topics=["a b"])
    with pytest.raises(ConfigError, match="topics must be a list or tuple"):
        Producer("group", topics="orders")
