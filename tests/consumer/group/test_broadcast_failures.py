"""Messages that fail in broadcast: handled again by the same member, and given up at last."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rmq_async import (
    Batch,
    Consumer,
    DeadLetter,
    Message,
    MessageExt,
    MessageQueue,
    Outcome,
    Producer,
    Retry,
    RetryLater,
    current_delivery,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from .support import create, send, until
from .test_broadcast import Store, numbers

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue("T", "broker-a", 0)
NEVER = [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE]


def consumer_of(server: EmbeddedRocketMQ, handler: Any, **options: Any) -> Consumer:
    retry, broadcast = options.pop("retry", None), options.pop("broadcast", True)
    consumer = Consumer("g", namesrv=server.namesrv, broadcast=broadcast, start_from="earliest")
    consumer.subscribe("T", handler, retry=retry, **options)
    return consumer


async def test_failed_message_is_handled_again_while_others_go_on() -> None:
    attempts: list[tuple[bytes, int]] = []

    async def handle(message: MessageExt) -> None:
        attempts.append((message.body, current_delivery().attempt))
        if message.body == b"0" and current_delivery().attempt < 3:
            raise ValueError("not now")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, *numbers(0, 10))
        sent = server.requests[RequestCode.CONSUMER_SEND_MSG_BACK]
        store = Store()
        async with consumer_of(server, handle, broadcast=store, retry=Retry(delays=(0.1,))) as consumer:
            settled = await consumer.wait_settled(12)
            await consumer.wait_idle()
            assert consumer.stats().retried == 2
        assert sorted(attempts) == sorted([(b"0", 1), (b"0", 2), (b"0", 3), *((body, 1) for body in numbers(1, 10))])
        assert {body for body, _ in attempts[:10]} == set(numbers(0, 10))
        assert [each.outcome for each in settled if each.message.body == b"0"] == [Outcome.RETRIED] * 2 + [Outcome.DONE]
        assert store.positions[Q0] == 10
        assert server.requests[RequestCode.CONSUMER_SEND_MSG_BACK] == sent == 0
        assert server.messages("%RETRY%g") == []


async def test_message_is_given_up_after_its_last_attempt(caplog: pytest.LogCaptureFixture) -> None:
    attempts = 0

    async def handle(message: MessageExt) -> None:
        nonlocal attempts
        attempts += 1
        raise ValueError("never")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"1")
        store = Store()
        async with consumer_of(server, handle, broadcast=store, retry=Retry(limit=2, delays=(0.01,))) as consumer:
            await consumer.wait_settled(3)
            await consumer.wait_idle()
            assert (consumer.stats().dead_lettered, consumer.stats().failed, attempts) == (1, 3, 3)
        assert store.positions[Q0] == 1
        assert server.dead_letters("g") == []
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert error.startswith("given up, since broadcast has no dead letters: message ")
    assert "attempt 3 of 3" in error
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "handled again in 0.01 s: message" in warnings[0]


@pytest.mark.parametrize("error", [DeadLetter("no use"), KeyError("fatal")])
async def test_dead_letter_is_given_up_at_once(error: Exception) -> None:
    async def handle(message: MessageExt) -> None:
        raise error

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"1")
        async with consumer_of(server, handle, dead_letter_on=(KeyError,)) as consumer:
            (settled,) = await consumer.wait_settled(1)
            assert settled.outcome is Outcome.DEAD_LETTERED
            assert consumer.position(Q0) == 1


async def test_stop_does_not_wait_for_the_next_attempt() -> None:
    async def handle(message: MessageExt) -> None:
        if message.body == b"1":
            raise RetryLater(60)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, *numbers(0, 4))
        store = Store()
        async with consumer_of(server, handle, broadcast=store) as consumer:
            await consumer.wait_settled(4)
            assert consumer.position(Q0) == 1
            assert consumer.stats().buffered == 1
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 0.01
        assert store.positions[Q0] == 1  # the next start repeats it, and what was settled behind it


async def test_paused_topic_waits_with_its_attempts() -> None:
    attempts = 0

    async def handle(message: MessageExt) -> None:
        nonlocal attempts
        attempts += 1
        raise ValueError("not now")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"1")
        async with consumer_of(server, handle, retry=Retry(delays=(0.2,))) as consumer:
            await until(lambda: attempts == 1)
            consumer.pause(Q0)
            await asyncio.sleep(0.5)
            assert attempts == 1
            consumer.resume(Q0)
            await until(lambda: attempts >= 2)


async def test_seek_drops_what_waits_for_an_attempt() -> None:
    attempts: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        attempts.append(message.body)
        if message.body == b"0":
            raise RetryLater(0.3)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, *numbers(0, 3))
        async with consumer_of(server, handle) as consumer:
            await until(lambda: len(attempts) == 3)
            await consumer.seek(Q0, "latest")
            await asyncio.sleep(0.5)
            assert sorted(attempts) == numbers(0, 3)
            assert (consumer.position(Q0), consumer.stats().buffered) == (3, 0)


async def test_batches_are_made_of_messages_of_several_queues() -> None:
    sizes: list[int] = []
    failed = False

    async def handle(batch: Batch) -> None:
        nonlocal failed
        sizes.append(len(batch))
        if not failed:
            failed = True
            raise ValueError("not now")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=4)
        await send(server.namesrv, *numbers(0, 20))
        options = {"batch_size": 8, "batch_wait": 0.3, "retry": Retry(delays=(0.05,))}
        async with consumer_of(server, handle, **options) as consumer:
            await until(lambda: sum(sizes) == 28)
            await consumer.wait_idle()
            assert max(sizes) == 8
            assert sum(consumer.position(queue) for queue in consumer.assignment) == 20


async def test_order_by_key_holds_only_its_key() -> None:
    handled: list[bytes] = []
    tried = 0

    async def handle(message: MessageExt) -> None:
        nonlocal tried
        if message.body == b"a0" and (tried := tried + 1) < 3:
            raise ValueError("not now")
        handled.append(message.body)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with Producer("senders", namesrv=server.namesrv) as producer:
            for body in (b"a0", b"a1", b"b0", b"a2", b"b1"):
                await producer.send(Message("T", body, sharding_key=body[:1].decode()))
        async with consumer_of(server, handle, order="key", retry=Retry(delays=(0.1,))):
            await until(lambda: len(handled) == 5)
        assert handled == [b"b0", b"b1", b"a0", b"a1", b"a2"]
