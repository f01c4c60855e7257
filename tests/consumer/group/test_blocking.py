"""Functions of users that hold the event loop, and plain ones that may."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rmq_async import Consumer, MessageExt, MessageQueue, machine
from rmq_async.client import loop_monitor
from rmq_async.consumer.handling import loop_watch
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Seen, create, member, send

heard: list[str] = []
"""Warnings of functions that block."""


class Ears(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        heard.append(record.getMessage())


pytestmark = pytest.mark.interpreters


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of a fifth of a second are named."""
    monkeypatch.setattr(loop_monitor, "INTERVAL", 0.1)
    monkeypatch.setattr(loop_watch, "POLL", 0.02)
    monkeypatch.setattr(loop_watch, "THRESHOLD", 0.2)
    ears = Ears()
    loop_watch.logger.addHandler(ears)
    yield
    loop_watch.logger.removeHandler(ears)
    heard.clear()
    assert not [thread for thread in threading.enumerate() if thread.name == "rmq_async loop watch"]


def inner(named: Callable[[], object] = heard.copy) -> None:
    """Blocks until it is named. Real time: a thread looks each 20 ms for what blocks, and virtual time has no threads."""
    deadline = time.monotonic() + 60
    while not named():
        assert time.monotonic() < deadline, "what blocks was not named"
        time.sleep(0.01)


async def blocks(message: MessageExt) -> None:
    await asyncio.sleep(0.01)
    if message.body == b"block":
        inner()


def codes(consumer: Consumer) -> list[str]:
    return [problem.code for problem in consumer.health().problems]


@pytest.mark.usefixtures("quick")
async def test_handler_that_blocks_the_loop_is_named_with_its_place() -> None:
    healths: list[str] = []

    async def blocks_and_looks(message: MessageExt) -> None:
        await blocks(message)
        if message.body == b"block":
            probe = threading.Thread(target=lambda: healths.extend(codes(consumer)))  # from another thread, as a probe does
            probe.start()
            probe.join()

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        async with member("g", server.namesrv, "one", blocks_and_looks) as consumer:
            await send(server.namesrv, b"1", b"block", b"2")
            await consumer.wait_settled(3)
            (block,) = [problem.text for problem in consumer.health().problems if problem.code == "handler_blocks"]
    name = re.escape(f"handler {blocks_and_looks.__module__}.{blocks_and_looks.__qualname__}")
    (text,) = heard
    where = r", at test_blocking.py:\d+ in inner: heartbeats, locks and commits wait for it"
    assert re.match(rf"{name} has blocked the event loop for \d+\.\d s{where}", text)
    assert re.match(rf"{name} blocked the event loop for \d+\.\d s", block)
    assert "handler_blocks" in healths


@pytest.mark.usefixtures("quick")
async def test_callback_that_blocks_the_loop_is_named() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)

        def load(queues: frozenset[MessageQueue]) -> None:
            inner()

        async with member("g", server.namesrv, "one", Seen(), on_assigned=load):
            pass
    (text,) = heard
    assert text.startswith("on_assigned ")
    assert "load has blocked the event loop" in text


@pytest.mark.virtual_time
@pytest.mark.parametrize("poll", [0.25, 1.8])
async def test_nothing_is_named_that_lets_go_of_the_loop(poll: float, caplog: pytest.LogCaptureFixture) -> None:
    """Neither tasks that hold the loop for 0.9 s in each step, nor a callback that belongs to none; also where looks are late."""
    loop = asyncio.get_running_loop()
    monitor, watch = loop_monitor.LoopMonitor(loop), loop_watch.LoopWatch(loop)
    watch.finders[lambda task: "handler busy"] = monitor.late
    held, next_look = None, loop.time() + poll

    def work(seconds: float) -> None:
        nonlocal held, next_look
        for _ in range(int(seconds / 0.05)):
            time.sleep(0.05)
            if loop.time() >= next_look - 0.01:
                held = watch.look(held)
                next_look += poll

    async def busy() -> None:
        for _ in range(20):
            work(0.9)
            await asyncio.sleep(0)

    await busy()
    await asyncio.gather(busy(), busy())
    loop.call_soon(work, 4.0)
    await asyncio.sleep(5)
    assert not caplog.records
    work(8.0)
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("handler busy has blocked the event loop for ")
    monitor.stop()


async def blocks_again(message: MessageExt) -> None:
    """Until a block of its own is found."""
    (watch,) = loop_watch.LoopWatch.running.values()
    began = machine.monotonic()
    inner(lambda: [block for find in watch.finders if (block := watch.newest(find)) and block.at > began])


@pytest.mark.usefixtures("quick")
async def test_function_is_named_once_in_a_while_and_all_consumers_share_a_thread() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        async with (
            member("g", server.namesrv, "one", blocks_again) as consumer,
            member("h", server.namesrv, "two", Seen()) as other,
        ):
            assert len([thread for thread in threading.enumerate() if thread.name == "rmq_async loop watch"]) == 1
            (watch,) = loop_watch.LoopWatch.running.values()
            task = asyncio.current_task()
            assert task is not None
            assert [find(task) for find in watch.finders] == [None, None]  # of the test, no consumer's
            for _ in range(2):
                await send(server.namesrv, b"block")
                await consumer.wait_settled(1)
            assert "handler_blocks" not in codes(other)
    assert len(heard) == 1
