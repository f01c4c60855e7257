"""Calls of handlers that do not wait share tasks; all that a task gives to its call holds for each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from rmq_async import (
    Consumer,
    Delivery,
    HandlerTimeoutError,
    Message,
    MessageExt,
    MessageQueue,
    Outcome,
    Producer,
    Retry,
    current_delivery,
)
from rmq_async.consumer.delivery import CURRENT, Call
from rmq_async.consumer.handling.steps import MOST_CALLS, Pace
from rmq_async.embedded import EmbeddedRocketMQ

from .support import create, send, until

MARK: ContextVar[bytes] = ContextVar("mark", default=b"")


async def handle_all(count: int, handler: Callable[[MessageExt], Any], *, queues: int = 2, **options: Any) -> Consumer:
    """Handles ``count`` messages that are there before the consumer starts; returns the consumer, which has stopped."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=queues)
        async with Producer("senders", namesrv=server.namesrv) as producer:
            for number in range(queues):
                batch = [Message("T", b"%d" % each) for each in range(number, count, queues)]
                await producer.send_batch(batch, queue=MessageQueue("T", "broker-a", number))
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", **options)
        consumer.subscribe("T", handler)
        async with consumer:
            await consumer.wait_settled(count)
            await until(lambda: consumer.stats().running == 0)
            assert sum(consumer.lag().by_queue.values()) == 0
        return consumer


async def test_calls_that_do_not_wait_share_tasks_and_nothing_else() -> None:
    tasks: set[asyncio.Task[Any]] = set()
    deliveries: list[Delivery] = []
    calls: list[Call] = []

    async def handler(message: MessageExt) -> None:
        assert MARK.get() == b""
        MARK.set(message.body)
        delivery = current_delivery()
        assert delivery.messages == (message,)
        assert (delivery.state, delivery.outcome) == ("running", None)
        task = asyncio.current_task()
        assert task is not None
        assert CURRENT.get().task is task
        calls.append(CURRENT.get())
        tasks.add(task)
        deliveries.append(delivery)

    await handle_all(300, handler)
    assert len(deliveries) == 300
    assert len(tasks) < 100  # 64 begin before the first one has ended
    assert {(each.state, each.outcome, each.task) for each in calls} == {("finished", Outcome.DONE, None)}
    assert all(each.elapsed is not None and 0 <= each.elapsed < 60 for each in deliveries)


@pytest.mark.virtual_time
async def test_calls_that_wait_have_a_task_and_a_context_each() -> None:
    """Every third message waits: its steps see its own context, so do tasks that it starts, and its task makes no other call
    afterwards."""
    waited: dict[asyncio.Task[Any], bytes] = {}
    children: list[bytes] = []

    async def child() -> None:
        children.append(MARK.get())
        assert current_delivery().messages[0].body == MARK.get()

    async def handler(message: MessageExt) -> None:
        MARK.set(message.body)
        task = asyncio.current_task()
        assert task is not None
        assert task not in waited
        if int(message.body) % 3:
            return
        waited[task] = message.body
        for _ in range(3):
            await asyncio.sleep(0)
            assert MARK.get() == message.body
            assert current_delivery().messages == (message,)
            assert asyncio.current_task() is task
        await asyncio.create_task(child())

    await handle_all(240, handler)
    assert sorted(map(int, waited.values())) == [*range(0, 240, 3)]
    assert sorted(children) == sorted(waited.values())


@pytest.mark.virtual_time
async def test_handlers_that_begin_to_wait_have_all_slots_at_once() -> None:
    running = most = handled = 0

    async def handler(message: MessageExt) -> None:
        nonlocal running, most, handled
        handled += 1
        if handled < 400:
            return
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    await handle_all(800, handler, concurrency=48)
    assert most == 48


@pytest.mark.virtual_time
async def test_time_limits_hold_after_a_first_step_of_a_shared_task() -> None:
    """Those of ``asyncio`` inside the handler, and the subscription's own."""
    inner: list[bytes] = []
    limits = [1.0, 0.05]

    async def handler(message: MessageExt) -> None:
        if not message.body.startswith(b"slow") or message.reconsume_times:
            return
        if message.body == b"slow":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await asyncio.sleep(5)
            inner.append(message.body)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.sleep(5), 0.02)
            inner.append(message.body)
            return
        await asyncio.sleep(5)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(limit=1, delays=(1,)))
        subscription = consumer.subscribe("T", handler, timeout=limits[0])
        async with consumer:
            await send(server.namesrv, *[b"quick"] * 10, b"slow")
            assert {each.outcome for each in await consumer.wait_settled(11)} == {Outcome.DONE}
            subscription.timeout = limits[1]
            await send(server.namesrv, *[b"quick"] * 10, b"slower")
            settled = await consumer.wait_settled(11)
            assert [type(each.error) for each in settled if each.message.body == b"slower"] == [HandlerTimeoutError]
    assert inner == [b"slow", b"slow"]


@pytest.mark.parametrize("waits", [False, True])
async def test_error_of_a_shared_task_is_that_of_its_message(waits: bool) -> None:
    async def handler(message: MessageExt) -> None:
        if message.body == b"17":
            if waits:
                await asyncio.sleep(0)
            raise StopAsyncIteration("no more")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(limit=0))
        consumer.subscribe("T", handler)
        async with consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(40)])
            settled = await consumer.wait_settled(40)
        failed = [each for each in settled if each.outcome is not Outcome.DONE]
        assert [(each.message.body, each.outcome, type(each.error)) for each in failed] == [
            (b"17", Outcome.DEAD_LETTERED, StopAsyncIteration)
        ]


async def test_handler_that_blocks_shortly_lets_the_loop_go_on() -> None:
    """Each call takes 2 ms of the loop, and none waits: other tasks run after some of them, not after all."""
    made = most = 0

    async def ticks() -> None:
        nonlocal made, most
        while True:
            await asyncio.sleep(0)
            most, made = max(most, made), 0

    async def handler(message: MessageExt) -> None:
        nonlocal made
        made += 1
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass

    ticking = asyncio.create_task(ticks())
    await handle_all(50, handler, concurrency=1)
    ticking.cancel()
    assert 0 < most <= 8  # of MOST_CALLS that one task may make


async def test_call_that_is_cut_off_before_its_first_step_gives_its_slot_back() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        handled: list[bytes] = []

        async def handler(message: MessageExt) -> None:
            handled.append(message.body)
            await asyncio.sleep(0.01)

        consumer = Consumer("g", namesrv=server.namesrv, concurrency=1)
        consumer.subscribe("T", handler)
        async with consumer:
            session: Any = vars(consumer)["_session"]
            dispatcher, begin, cut = vars(session.dispatcher), session.calls.begin, 0

            def begin_and_cut(*given: Any) -> None:
                nonlocal cut
                begin(*given)
                if cut < 2:
                    cut += 1
                    [*session.calls.running][-1].cut_off()

            dispatcher["_begin"] = begin_and_cut
            await send(server.namesrv, b"1", b"2")
            await consumer.wait_settled(2)
            assert (cut, sorted(handled)) == (2, [b"1", b"2"])
            assert not session.calls.running


@pytest.mark.virtual_time
@pytest.mark.parametrize("order", [None, "key"])
async def test_call_whose_time_is_over_before_its_first_step_is_not_begun(order: Any) -> None:
    """A loop that was blocked looks at deadlines before the task of the call runs."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        handled: list[bytes] = []

        async def handler(message: MessageExt) -> None:
            handled.append(message.body)

        def key(message: MessageExt) -> bytes:
            return message.body

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(limit=0))
        consumer.subscribe("T", handler, timeout=0.05, order=order, key=key if order else None)
        async with consumer:
            session: Any = vars(consumer)["_session"]
            begin = vars(session.dispatcher)["_begin"]

            def begin_and_block(*given: Any) -> None:
                begin(*given)
                if given[1][0].message.body == b"late":
                    time.sleep(0.06)
                    deadlines = vars(session.calls)["_deadlines"]
                    vars(type(deadlines))["_due"](deadlines)

            vars(session.dispatcher)["_begin"] = begin_and_block
            await send(server.namesrv, b"late", b"1")
            await consumer.wait_settled(2)
            assert handled == [b"1"]
            assert [each.body for each in server.dead_letters("g")] == [b"late"]
            assert not session.calls.running


async def test_call_with_a_broken_key_that_is_cut_off_leaves_no_coroutine() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)

        def key(message: MessageExt) -> str:
            raise ValueError("no key")

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(limit=0))
        consumer.subscribe("T", lambda message: asyncio.sleep(0), order="key", key=key)
        async with consumer:
            session: Any = vars(consumer)["_session"]
            begin, cut = vars(session.dispatcher)["_begin"], 0

            def begin_and_cut(*given: Any) -> None:
                nonlocal cut
                begin(*given)
                if not cut:
                    cut += 1
                    [*session.calls.running][-1].cut_off()

            vars(session.dispatcher)["_begin"] = begin_and_cut
            await send(server.namesrv, b"1")
            await consumer.wait_settled(1)
            assert cut == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("waits", [False, True])
async def test_task_that_others_cancel_before_its_first_step_keeps_no_slot(waits: bool) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        handled: list[bytes] = []
        cancelled: list[asyncio.Task[None]] = []

        async def handler(message: MessageExt) -> None:
            if waits:
                await asyncio.sleep(0.01)
            handled.append(message.body)

        consumer = Consumer("g", namesrv=server.namesrv, concurrency=2)
        consumer.subscribe("T", handler)
        async with consumer:
            session: Any = vars(consumer)["_session"]
            begin = session.calls.begin

            def begin_and_cancel(subscription: Any, taken: Any) -> None:
                before = asyncio.all_tasks()
                begin(subscription, taken)
                (task,) = asyncio.all_tasks() - before
                pace = vars(session.calls)["_paces"].get(subscription)
                if len(cancelled) < 3 and (waits or pace.length > 1):
                    task.cancel()
                    cancelled.append(task)

            vars(session.dispatcher)["_begin"] = begin_and_cancel
            for number in range(40):
                await send(server.namesrv, b"%d" % number)
            await consumer.wait_settled(40)
            assert all(task.cancelled() for task in cancelled)
            assert len(cancelled) == 3
            assert sorted(handled) == sorted(b"%d" % number for number in range(40))
            await until(lambda: not session.calls.running)


def test_pace_grows_until_a_call_waits() -> None:
    pace = Pace()
    assert pace.begins_run()
    lengths = []
    for _ in range(10):
        pace.none_waited()
        assert pace.begins_run()
        lengths.append(pace.length)
    assert lengths == [2, 4, 8, 16, 32, 64, 128, MOST_CALLS, MOST_CALLS, MOST_CALLS]
    pace.one_waited()
    assert [pace.begins_run() for _ in range(32)].count(True) == 2
