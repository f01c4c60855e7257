"""PullConsumer.read beside brokers that refuse, restart, repeat themselves or damage records."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Literal

import pytest

from rmq_async import Admin
from rmq_async.errors import (
    BrokerError,
    BrokerNotFoundError,
    ConnectError,
    CorruptMessageError,
    NoPermissionError,
    RemoteProtocolError,
    TopicNotFoundError,
)
from rmq_async.reading import reader as reading_module
from rmq_protocol.headers import PullMessageRequestHeader
from rmq_protocol.message import MessageQueue

from ..client.support import until
from ..support.fakes import route
from .support import TOPIC, bodies, collect, each, embedded, offsets_by_queue, pulls_under_way, put, record, scripted

pytestmark = pytest.mark.virtual_time

Q0, Q1, Q2, Q3 = (MessageQueue(TOPIC, "broker-a", number) for number in range(4))


async def test_a_broker_that_never_holds_a_pull_is_not_asked_all_the_time() -> None:
    async with scripted(lambda header: (19, header.queueOffset, b"")) as (broker, consumer):
        reading = asyncio.ensure_future(collect(consumer.read(TOPIC, end=None)))
        await asyncio.sleep(1.0)
        assert 3 < len(broker.pulls) < 12
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("code", [0, 20])
async def test_an_answer_that_does_not_move_on_cannot_make_a_busy_loop(code: int) -> None:
    async with scripted(lambda header: (code, header.queueOffset, b"")) as (broker, consumer):
        broker.high = 5
        if code == 0:
            with pytest.raises(RemoteProtocolError, match="has the next offset 0"):
                await collect(consumer.read(TOPIC))
        else:
            assert await collect(consumer.read(TOPIC)) == []
        assert len(broker.pulls) < 20


async def test_sound_messages_come_before_the_error_of_a_damaged_one() -> None:
    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        if header.queueOffset == 0:
            return 0, 2, record(0) + record(1)
        return 0, 5, record(2) + record(3, b"bad", body_crc=7) + record(4)

    async with scripted(pull) as (broker, consumer):
        broker.high = 5
        found: list[int] = []
        with pytest.raises(CorruptMessageError, match="CRC") as caught:
            await each(consumer.read(TOPIC), lambda message: found.append(message.queue_offset))
        assert found == [0, 1, 2, 4]
        assert caught.value.queue_offset == 3
        assert caught.value.broker == "broker-a"
        assert pulls_under_way() == []


async def test_a_broken_connection_is_no_end_and_no_repetition() -> None:
    async with embedded(queues=2) as (server, consumer):
        for queue in (Q0, Q1):
            await put(consumer, queue, bodies(300))
        found = []
        async for message in consumer.read(TOPIC):
            found.append(message)
            if len(found) % 100 == 0:
                server.drop_connections()
        assert offsets_by_queue(found) == {0: list(range(300)), 1: list(range(300))}


async def test_a_restarted_server_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with embedded(queues=1) as (server, consumer):
        await put(consumer, Q0, bodies(200))
        found = []
        restarts: list[asyncio.Task[None]] = []
        async for message in consumer.read(TOPIC):
            found.append(message.queue_offset)
            if len(found) == 5:
                await server.stop()
                asyncio.get_running_loop().call_later(0.3, lambda: restarts.append(asyncio.ensure_future(server.start())))
        assert found == list(range(200))
        assert "a pull of PullConsumer.read() failed and is repeated: " in caplog.text


async def test_a_busy_broker_is_asked_again() -> None:
    async with embedded(queues=1) as (server, consumer):
        await put(consumer, Q0, bodies(5))
        server.fail_next(2, 3, request=11)
        assert len(await collect(consumer.read(TOPIC))) == 5


async def test_trouble_that_does_not_end_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "PATIENCE", 0.4)
    async with embedded(queues=1) as (server, consumer):
        await put(consumer, Q0, bodies(5))
        reader = consumer.read(TOPIC, end={Q0: 6})
        assert (await anext(reader)).queue_offset == 0
        await server.stop()
        start = monotonic()
        with pytest.raises(ConnectError):
            await collect(reader)
        assert 0.4 < monotonic() - start < 1.0


async def test_a_refusal_is_not_waited_out() -> None:
    async with embedded(queues=1) as (server, consumer):
        await put(consumer, Q0, bodies(5))
        for end in ("latest", None):
            server.fail_next(16, 1, request=11)
            with pytest.raises(NoPermissionError):
                await collect(consumer.read(TOPIC, end=end))  # type: ignore[arg-type]
        server.fail_next(29, 1, request=11)
        with pytest.raises(BrokerError):
            await collect(consumer.read(TOPIC))
        with pytest.raises(TopicNotFoundError):
            await collect(consumer.read("missing-topic"))


async def test_a_queue_that_leaves_the_route_leaves_the_reading() -> None:
    async with scripted(lambda header: (29, 0, b"") if header.queueId else (19, 0, b""), queues=2) as (broker, consumer):
        reader = consumer.read(TOPIC, start="latest", end=None)
        broker.on_pull = lambda header: (19, header.queueOffset, b"")
        reading = asyncio.ensure_future(collect(reader))
        await until(lambda: {pull.queueId for pull in broker.pulls} == {0, 1})
        broker.name_server.routes[TOPIC] = route(broker.address, queues=1)
        await consumer.queues(TOPIC)
        broker.on_pull = lambda header: (29, 0, b"") if header.queueId else (19, header.queueOffset, b"")
        await until(lambda: len(pulls_under_way()) == 1)
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("end", ["latest", None])
async def test_topic_without_a_readable_queue_is_an_error(end: Literal["latest"] | None) -> None:
    async with embedded(queues=2) as (_, consumer), Admin(client=consumer.config) as admin:
        await admin.create_topic(TOPIC, queues=2, perm=2)
        with pytest.raises(BrokerNotFoundError) as caught:
            await anext(consumer.read(TOPIC, end=end))
        assert str(caught.value) == (
            "topic t has no readable queue: its brokers do not permit reading, or it has no read queues there; give it the "
            "permission 4 (read) or 6 (read and write), and read queues"
        )


@pytest.mark.parametrize("end", ["latest", None])
async def test_given_queue_that_may_not_be_read_is_an_error(end: Literal["latest"] | None) -> None:
    """Also where it is empty: an iteration without messages would not show that there will never be any."""
    async with embedded(queues=2) as (_, consumer), Admin(client=consumer.config) as admin:
        await admin.create_topic(TOPIC, queues=2, read_queues=1)
        with pytest.raises(BrokerNotFoundError) as caught:
            await anext(consumer.read(TOPIC, end=end, queues=[Q0, Q1]))
        assert str(caught.value) == (
            "queue 1 of topic t on broker broker-a may not be read: the topic has 1 read queues there; give it more"
        )
        assert await collect(consumer.read(TOPIC, queues=[Q0])) == []
        await admin.create_topic(TOPIC, queues=2, perm=2)
        assert await consumer.queues(TOPIC) == ()
        with pytest.raises(BrokerNotFoundError) as caught:
            await anext(consumer.read(TOPIC, end=end, queues=[Q0]))
        assert str(caught.value) == (
            "queue 0 of topic t on broker broker-a may not be read: the topic has the permission 2 there; give it 4 (read) or 6 "
            "(read and write)"
        )
        await admin.create_topic(TOPIC, queues=2)
        assert await collect(consumer.read(TOPIC, queues=[Q0, Q1])) == []
