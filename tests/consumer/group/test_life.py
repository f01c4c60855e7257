"""Start, stop, signals and states of a group consumer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from rmq_async import (
    ClientStateError,
    ConfigError,
    Consumer,
    ConsumerConfig,
    MessageExt,
    MessageQueue,
    NameServerError,
    Outcome,
    PullConsumer,
    QueueLostError,
    Retry,
    allocate_evenly,
)
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Seen, create, send, until

NOWHERE = "127.0.0.1:1"


async def handler(message: MessageExt) -> None:
    """Accepts every message."""


def yields(message: MessageExt) -> Iterator[MessageExt]:
    yield message


async def yields_later(message: MessageExt) -> AsyncIterator[MessageExt]:
    yield message


class Yielding:
    async def __call__(self, message: MessageExt) -> AsyncIterator[MessageExt]:
        yield message


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1"),
        ({"buffered_bytes_limit": 5}, "buffered_bytes_limit must be a whole number from 1024"),
        ({"max_span": True}, "max_span must be a whole number"),
        ({"start_from": "first"}, 'start_from must be "latest", "earliest" or an aware datetime'),
        ({"start_from": datetime(2026, 1, 1)}, "start_from must be an aware datetime"),
        ({"out_of_range": "skip"}, 'out_of_range must be "earliest", "latest" or "stop"'),
        ({"on_conflict": "ignore"}, 'on_conflict must be "warn" or "raise"'),
        ({"mode": "push"}, 'mode must be "pull" or "pop"'),
        ({"hooks": [1]}, "1 is not a Hook object"),
        ({"on_assigned": 3}, "on_assigned must be None or a function that takes a frozenset of queues, not 3"),
        ({"on_lost": yields_later}, r"on_lost must not be a generator function, .*remove the yield from .*yields_later"),
        ({"commit_interval": 0}, "commit_interval must be above 0 seconds"),
        ({"retry": 3}, "retry must be a Retry object, not 3"),
        ({"allocate": "AVG"}, "allocate must be a plain function"),
        ({"heartbeat_interval": -1}, "heartbeat_interval must be above 0"),
    ],
)
def test_consumer_wrong_option(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Consumer("g", **options)


def test_consumer_unknown_option() -> None:
    with pytest.raises(TypeError, match="did you mean concurrency"):
        Consumer("g", concurency=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"group|name"):
        Consumer("no such group!")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tags": "||"}, 'tags must be "\\*" or tags'),
        *(({"tags": tags}, 'tags must be "\\*" or tags') for tags in (None, " ", " || ", "\t")),
        ({"concurrency": 0}, "concurrency must be a whole number"),
        ({"retry": 3}, "retry must be a Retry object or None"),
        ({"dead_letter_on": (1,)}, "dead_letter_on must be a tuple of exception classes"),
        ({"dead_letter_on": (KeyboardInterrupt,)}, "dead_letter_on must be a tuple of exception classes"),
        ({"order": "keys"}, 'order must be "key", "queue" or None'),
        ({"key": str}, r'key=<class .str.> requires order="key"'),
        ({"order": "key", "key": handler}, "key must be a plain function"),
        ({"order": "key", "key": yields}, "key must be a plain function"),
        ({"order": "key", "batch_size": 10}, 'batch_size=10 cannot be used with order="key"'),
    ],
)
def test_subscribe_wrong_option(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Consumer("g").subscribe("T", handler, **options)


def test_subscribe_wrong_topic_handler_or_time() -> None:
    consumer = Consumer("g", namesrv=NOWHERE)
    with pytest.raises(ConfigError, match="topic"):
        consumer.subscribe("a topic", handler)
    with pytest.raises(ConfigError, match="handler must be a function that takes a message or a batch, not 'h'"):
        consumer.subscribe("T", "h")  # type: ignore[arg-type]
    for generator in (yields, yields_later, partial(yields_later), Yielding()):
        with pytest.raises(ConfigError, match=r"handler must not be a generator function, .*remove the yield from .*ield"):
            consumer.subscribe("T", generator)
    with pytest.raises(ValueError, match="timeout must be above 0"):
        consumer.subscribe("T", handler, timeout=0)
    first = consumer.subscribe("T", handler)
    with pytest.raises(TypeError, match="timeout must be a number of seconds, not '60'"):
        first.timeout = "60"  # type: ignore[assignment]
    assert first.timeout == 900.0
    first.timeout = None
    for name, value in {"retry": Retry(), "tags": "b", "handler": print, "order": "key"}.items():
        with pytest.raises(AttributeError, match=f"^{name} of subscription T cannot be changed; set it in the subscription"):
            setattr(first, name, value)
    assert consumer.subscriptions == (first,)
    with pytest.raises(ConfigError, match=r"topic T is already subscribed to, by handler .*test_life.handler"):
        consumer.subscribe("T", handler)


@pytest.mark.parametrize("delays", ["", "123", b"12", (), (1, -1), 5])
def test_retry_wrong_delays(delays: Any) -> None:
    with pytest.raises(ConfigError, match="delays"):
        Retry(delays=delays)


def test_retry_delay_after_an_attempt() -> None:
    assert Retry().delay_after(1) is None
    assert [Retry(delays=[1, 5]).delay_after(attempt) for attempt in (1, 2, 3)] == [1.0, 5.0, 5.0]
    assert Retry(delays=lambda attempt: 2**attempt).delay_after(3) == 8.0
    assert ConsumerConfig().allocate is allocate_evenly


async def test_consumer_without_a_subscription() -> None:
    with pytest.raises(ConfigError, match=r"consumer g has no subscription: subscribe\(\) a handler first"):
        await Consumer("g", namesrv=NOWHERE).start()


async def test_consumer_without_a_cluster_leaves_nothing() -> None:
    consumer = Consumer("g", namesrv=NOWHERE, request_timeout=0.2, connect_timeout=0.2)
    consumer.subscribe("T", handler)
    with pytest.raises(NameServerError):
        await consumer.start()
    assert not consumer.health().ready
    await consumer.stop()


async def test_consumer_used_before_its_start() -> None:
    consumer = Consumer("g", namesrv=NOWHERE)
    for call in (consumer.commit(), consumer.wait_idle(), consumer.wait_settled(1)):
        with pytest.raises(ClientStateError, match="consumer g is not started"):
            await call
    assert consumer.assignment == frozenset()
    assert consumer.lag().messages == 0
    assert [problem.code for problem in consumer.health().problems] == ["not_started"]


async def test_consumer_subscribes_while_it_runs() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler)
        async with consumer:
            with pytest.raises(ClientStateError, match=r"is running: subscribe before start\(\)"):
                consumer.subscribe("Other", handler)
            with pytest.raises(QueueLostError, match="does not read"):
                consumer.position(MessageQueue("T", "broker-a", 77))


async def test_group_twice_in_one_client() -> None:
    """The second one neither starts nor takes the group away from the first."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = Seen()
        first, second = Consumer("g", namesrv=server.namesrv), Consumer("g", namesrv=server.namesrv)
        first.subscribe("T", seen)
        second.subscribe("T", handler)
        async with first, PullConsumer("pulls", namesrv=server.namesrv):
            with pytest.raises(ConfigError, match="consumer group g is already in use by this client"):
                await second.start()
            third = Consumer("pulls", namesrv=server.namesrv)
            third.subscribe("T", handler)
            with pytest.raises(ConfigError, match="consumer group pulls is already in use by this client"):
                await third.start()
            await send(server.namesrv, b"x")
            await first.wait_settled(1)


async def test_consumer_starts_again_where_it_stopped() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", seen)
        for number in range(3):
            async with consumer:
                await send(server.namesrv, b"%d" % number)
                await consumer.wait_settled(1)
            await send(server.namesrv, b"between %d" % number)
        async with consumer:
            await consumer.wait_settled(1)
        assert len(seen.bodies) == 6
        assert seen.twice == 0


@pytest.mark.virtual_time
async def test_consumer_stopped_by_its_handler() -> None:
    """``stop()`` begins the stop and returns; the handler ends by itself, and its message is settled."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        ended: list[bytes] = []
        consumer = Consumer("g", namesrv=server.namesrv)

        @consumer.handler("T")
        async def stops(message: MessageExt) -> None:
            await consumer.stop()
            await asyncio.sleep(0.05)
            ended.append(message.body)

        await consumer.start()
        await send(server.namesrv, b"x")
        await until(lambda: repr(consumer) == "<Consumer g stopped>")
        assert ended == [b"x"]
        async with PullConsumer("g", namesrv=server.namesrv) as reader:
            committed = [await reader.committed(queue) for queue in await reader.queues("T")]
        assert sorted(offset or 0 for offset in committed) == [0, 0, 0, 1]


@pytest.mark.virtual_time
async def test_stop_waits_for_handlers_and_commits() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = Seen(lambda message: asyncio.sleep(0.3))
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", seen)
        await consumer.start()
        await send(server.namesrv, *[b"%d" % number for number in range(20)])
        await until(lambda: consumer.stats().running)
        await consumer.stop()
        begun = len(seen.attempts)
        assert len(seen.bodies) == begun > 0
        async with consumer:
            await until(lambda: len(seen.bodies) == 20)
            await consumer.wait_idle()
        assert seen.twice == 0


@pytest.mark.virtual_time
async def test_stop_with_a_time_that_is_over() -> None:
    """The handlers are cancelled; nothing is lost."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        cancelled: list[bytes] = []
        block = True

        async def blocks(message: MessageExt) -> None:
            try:
                if block and message.body != b"quick":
                    await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", blocks, retry=Retry(delays=(1,)))
        await consumer.start()
        await send(server.namesrv, b"slow 1", b"quick", b"slow 2")
        await until(lambda: consumer.stats().running == 2)
        await consumer.stop(timeout=0)
        assert sorted(cancelled) == [b"slow 1", b"slow 2"]
        block = False
        outcomes = []
        async with consumer:
            while len(outcomes) < 2:
                outcomes += [(each.message.body, each.outcome) for each in await consumer.wait_settled(1, timeout=20.0)]
        assert sorted(outcomes) == [(b"slow 1", Outcome.DONE), (b"slow 2", Outcome.DONE)]


async def test_run_until_a_signal(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        release = asyncio.Event()
        seen = Seen(lambda message: release.wait())
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", seen)
        running = asyncio.create_task(consumer.run(signals=(signal.SIGUSR1,)))
        await until(lambda: consumer.health().ready)
        await send(server.namesrv, b"x")
        await until(lambda: consumer.stats().running)
        os.kill(os.getpid(), signal.SIGUSR1)
        await until(lambda: not consumer.health().ready)
        assert not running.done()
        release.set()
        await running
        assert seen.bodies == {b"x": 1}
        assert not caplog.records


async def test_run_second_signal_ends_the_handlers(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", Seen(lambda message: asyncio.sleep(100)))
        running = asyncio.create_task(consumer.run(signals=(signal.SIGUSR1,)))
        await until(lambda: consumer.health().ready)
        await send(server.namesrv, b"x")
        await until(lambda: consumer.stats().running)
        os.kill(os.getpid(), signal.SIGUSR1)
        await until(lambda: not consumer.health().ready)
        assert not running.done()
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(running, 60)
        assert "a signal during the stop cancels the running handlers" in caplog.text


async def test_run_until_stop_and_again_but_not_twice_at_a_time() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler)
        for _ in range(2):
            running = asyncio.create_task(consumer.run(signals=()))
            await until(lambda: consumer.health().ready)
            with pytest.raises(ClientStateError, match=r"g is already in run\(\); await that call, or call stop\(\) first"):
                await consumer.run(signals=())
            assert consumer.health().ready
            await consumer.stop()
            await running


@pytest.mark.virtual_time
async def test_topic_that_does_not_exist_yet(caplog: pytest.LogCaptureFixture) -> None:
    """It is read as soon as it exists, from its first message on."""
    async with EmbeddedRocketMQ() as server:
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv, rebalance_interval=0.2)
        consumer.subscribe("T", seen)
        async with consumer:
            assert "a subscribed topic has no route yet and is read as soon as it has one: " in caplog.text
            await create(server.namesrv)
            await send(server.namesrv, b"1", b"2")
            await consumer.wait_settled(2, timeout=10.0)
        assert seen.bodies == {b"1": 1, b"2": 1}


@pytest.mark.virtual_time
async def test_stop_during_a_start_leaves_its_time_to_the_last_commits(caplog: pytest.LogCaptureFixture) -> None:
    """They had 1 s, with any timeout of the stop."""
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, *[b"%d" % number for number in range(8)])
        server.delay(1.0, broker="broker-b")  # whose queue the start still waits for
        stops: list[asyncio.Task[None]] = []

        async def handle(message: MessageExt) -> None:
            if not stops:
                server.delay(1.5)
                stops.append(asyncio.create_task(consumer.stop(30.0)))

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        consumer.subscribe("T", handle)
        with pytest.raises(ClientStateError):
            await consumer.start()
        await stops[0]
        server.delay(0)
        async with PullConsumer("g", namesrv=server.namesrv) as asked:
            assert await asked.committed(MessageQueue("T", "broker-a", 0)) == 4
    assert "was not committed in time" not in caplog.text
