"""Pause, resume and seek."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from rmq_async import ClientStateError, ConfigError, Consumer, MessageExt, MessageQueue, QueueLostError, RetryLater
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Seen, create, member, send, until

pytestmark = pytest.mark.virtual_time

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


async def test_paused_topic_begins_nothing_until_it_is_resumed() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen) as consumer:
            await send(server.namesrv, b"1")
            await consumer.wait_idle()
            consumer.pause("T")
            await send(server.namesrv, *[b"%d" % number for number in range(2, 10)])
            await asyncio.sleep(0.3)
            assert set(seen.bodies) == {b"1"}
            assert len(consumer.assignment) == 5
            consumer.resume("T")
            await until(lambda: len(seen.bodies) == 9)
            assert seen.twice == 0


async def test_paused_queue_leaves_the_others_running() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen) as consumer:
            consumer.pause(Q0)
            await send(server.namesrv, *[b"%d" % number for number in range(10)])
            await until(lambda: len(seen.bodies) == 5)
            await asyncio.sleep(0.1)
            assert len(seen.bodies) == 5
            assert consumer.position(Q0) == 0
            consumer.resume(Q0)
            await until(lambda: len(seen.bodies) == 10)


async def test_pause_drops_what_has_not_begun_and_lets_calls_end() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        go_on = asyncio.Event()
        begun: list[bytes] = []

        async def work(message: MessageExt) -> None:
            begun.append(message.body)
            await go_on.wait()

        seen = Seen(work)
        async with member("g", server.namesrv, "one", seen, concurrency=2) as consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(8)])
            await until(lambda: len(begun) == 2 and consumer.stats().buffered >= 4)
            consumer.pause()
            await until(lambda: consumer.stats().buffered == 2)
            go_on.set()
            await until(lambda: len(seen.bodies) == 2)
            await asyncio.sleep(0.1)
            assert len(begun) == 2
            consumer.resume()
            await until(lambda: len(seen.bodies) == 8)
            assert seen.twice == 0


async def test_paused_topic_holds_messages_that_are_delivered_again() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        failed = asyncio.Event()

        async def work(message: MessageExt) -> None:
            if not message.reconsume_times:
                failed.set()
                raise RetryLater(1)

        seen = Seen(work)
        async with member("g", server.namesrv, "one", seen) as consumer:
            await send(server.namesrv, b"1")
            await failed.wait()
            await until(lambda: server.retries("g") or consumer.stats().retried)
            consumer.pause("T")
            await asyncio.sleep(1.5)
            assert seen.attempts == [(b"1", 1)]
            consumer.resume()
            await until(lambda: seen.attempts == [(b"1", 1), (b"1", 2)])


async def test_paused_queues_are_handed_over() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen, other = Seen(), Seen()
        async with member("g", server.namesrv, "one", seen, start_from="earliest") as first:
            first.pause()
            await send(server.namesrv, *[b"%d" % number for number in range(8)])
            async with member("g", server.namesrv, "two", other):
                await until(lambda: len(other.bodies) >= 4)
            assert not seen.bodies
            first.resume()
            await until(lambda: len(seen.bodies) + len(other.bodies) == 8)


async def test_seek_delivers_again_or_skips(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen) as consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(6)])
            await consumer.wait_idle()
            await consumer.seek(Q0, 4)
            await consumer.wait_idle()
            assert [seen.bodies[b"%d" % number] for number in range(6)] == [1, 1, 1, 1, 2, 2]
            await consumer.seek(Q0, "earliest")
            await consumer.wait_idle()
            assert [seen.bodies[b"%d" % number] for number in range(6)] == [2, 2, 2, 2, 3, 3]
            consumer.pause(Q0)
            await send(server.namesrv, b"skipped")
            await consumer.seek(Q0, "latest")
            assert server.progress("g")[Q0] == consumer.position(Q0) == 7
            consumer.resume(Q0)
            await consumer.seek(Q0, datetime.now(UTC) + timedelta(hours=1))
            await send(server.namesrv, b"next")
            await until(lambda: seen.bodies[b"next"])
            assert b"skipped" not in seen.bodies
    assert caplog.records == []  # what the program wants is no warning


async def test_control_refuses_what_it_does_not_know() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        errors: list[BaseException] = []

        async def work(message: MessageExt) -> None:
            try:
                await consumer.seek(Q0, "earliest")
            except ClientStateError as error:
                errors.append(error)

        consumer = member("g", server.namesrv, "one", Seen(work))
        with pytest.raises(ClientStateError):
            consumer.pause()
        async with consumer:
            with pytest.raises(ConfigError, match="no subscription to topic 'other'"):
                consumer.pause("other")
            with pytest.raises(QueueLostError):
                consumer.pause(MessageQueue("T", "broker-a", 9))
            for queue in (MessageQueue("T", "broker-a", 9), ("T", "broker-a", 9)):
                with pytest.raises(QueueLostError, match=r"does not read .*queue_id=9"):
                    await consumer.seek(queue, 0)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="give an offset from 0 to 0"):
                await consumer.seek(Q0, 1)
            for bad in (-1, True, 1.0, "begin", datetime(2026, 1, 1)):
                with pytest.raises(ConfigError):
                    await consumer.seek(Q0, bad)  # type: ignore[arg-type]
            consumer.pause("T")
            with pytest.raises(ClientStateError, match="topic T is paused"):
                consumer.resume(Q1)
            consumer.pause()
            with pytest.raises(ClientStateError, match="as a whole"):
                consumer.resume("T")
            consumer.resume()
            await send(server.namesrv, b"1")
            await until(lambda: errors)


async def test_pauses_end_with_the_stop() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = Seen()
        consumer: Consumer = member("g", server.namesrv, "one", seen)
        async with consumer:
            consumer.pause()
        async with consumer:
            await send(server.namesrv, b"1")
            await until(lambda: seen.bodies)
