"""Functions of users that hold the event loop, and plain ones that may."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rmq_async import Message, MessageExt, MessageQueue, Producer
from rmq_async.client import loop_monitor
from rmq_async.consumer import blocking
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Seen, create, member, send, until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of half a second are named."""
    monkeypatch.setattr(loop_monitor, "INTERVAL", 0.1)
    monkeypatch.setattr(blocking, "POLL", 0.02)
    monkeypatch.setattr(blocking, "THRESHOLD", 0.2)
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "rmq_async loop watch"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rmq_async.consumer.blocking"]


def inner() -> None:
    time.sleep(0.8)


async def blocks(message: MessageExt) -> None:
    await asyncio.sleep(0.01)
    if message.body == b"block":
        inner()


@pytest.mark.usefixtures("quick")
async def test_handler_that_blocks_the_loop_is_named_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        healths: list[Any] = []

        def look() -> None:  # from another thread, as a probe does
            time.sleep(0.7)
            healths.append(consumer.health())

        async with member("g", server.namesrv, "one", blocks) as consumer:
            async with Producer("p", namesrv=server.namesrv) as producer:
                for body in (b"1", b"block", b"2"):
                    await producer.send(Message("T", body))
                thread = threading.Thread(target=look)
                thread.start()
                await consumer.wait_settled(3)
                thread.join()
            texts = [problem.text for problem in consumer.health().problems if problem.code == "handler_blocks"]
        (text,) = warnings(caplog)
        assert text.startswith("handler tests.consumer.group.test_blocking.blocks has blocked the event loop for 0.")
        assert "at test_blocking.py:" in text
        assert " in inner: heartbeats, locks and commits wait for it" in text
        assert len(texts) == 1
        assert texts[0].startswith("handler tests.consumer.group.test_blocking.blocks blocked the event loop for 0.")
        assert "handler_blocks" in [problem.code for problem in healths[0].problems]


@pytest.mark.usefixtures("quick")
async def test_callback_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)

        def load(queues: frozenset[MessageQueue]) -> None:
            inner()

        async with member("g", server.namesrv, "one", Seen(), on_assigned=load):
            pass
        (text,) = warnings(caplog)
        assert text.startswith("on_assigned ")
        assert "load has blocked the event loop" in text


@pytest.mark.wall_clock  # a thread that starts slowly holds the loop, too
@pytest.mark.usefixtures("quick")
async def test_nothing_is_named_that_lets_go_of_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a plain function that sleeps in its thread, nor many handlers that keep the loop busy, nor other tasks."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)

        def plain(message: MessageExt) -> None:
            time.sleep(0.8)

        async def busy(message: MessageExt) -> None:
            for _ in range(20):
                time.sleep(0.01)
                await asyncio.sleep(0)

        async with member("g", server.namesrv, "one", plain) as one, member("h", server.namesrv, "two", busy) as two:
            await send(server.namesrv, *[b"%d" % number for number in range(5)])
            await asyncio.gather(one.wait_settled(5), two.wait_settled(5))
            inner()  # the test's own task
            await asyncio.sleep(0.1)
        assert not warnings(caplog)


@pytest.mark.usefixtures("quick")
async def test_function_is_named_once_in_a_while_and_all_consumers_share_a_thread(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        caplog.set_level(logging.WARNING)
        async with member("g", server.namesrv, "one", blocks) as consumer, member("h", server.namesrv, "two", Seen()) as other:
            assert len([thread for thread in threading.enumerate() if thread.name == "rmq_async loop watch"]) == 1
            await send(server.namesrv, b"block")
            await consumer.wait_settled(1)
            await send(server.namesrv, b"block")
            await consumer.wait_settled(1)
            assert not [problem for problem in other.health().problems if problem.code == "handler_blocks"]
            await until(lambda: warnings(caplog))
        assert len(warnings(caplog)) == 1
