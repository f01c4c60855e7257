"""Handler calls whose tasks are cancelled, whose deadlines move, and whose threads run on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rmq_async import Consumer, HandlerTimeoutError, MessageExt, MessageQueue, Outcome, Retry, current_delivery
from rmq_async.consumer.delivery import CURRENT
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode, ResponseCode

from ...support.waiting import spin
from .support import Seen, create, member, send, until

pytestmark = pytest.mark.interpreters

Q0 = MessageQueue("T", "broker-a", 0)


@pytest.mark.parametrize("how", ["awaits", "raises", "returns"])
def test_handler_that_cancels_its_own_task_is_as_one_that_raises(how: str) -> None:
    """Nothing of the consumer has cancelled it, so the message is neither lost nor kept from the watermark."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)

        async def handler(message: MessageExt) -> None:
            task = asyncio.current_task()
            if task is not None and not message.reconsume_times:
                task.cancel()
                if how == "raises":
                    raise ValueError("as well")
                if how == "awaits":
                    await asyncio.sleep(1)

        consumer = member("g", s.namesrv, "one", handler, retry=Retry(delays=(1,)))
        async with consumer:
            await send(s.namesrv, b"x")
            settled = await consumer.wait_settled(1 if how == "returns" else 2, timeout=20.0)
            assert consumer.position(Q0) == 1
        expected = [Outcome.DONE] if how == "returns" else [Outcome.RETRIED, Outcome.DONE]
        assert [each.outcome for each in settled] == expected
        assert isinstance(
            settled[0].error, {"awaits": asyncio.CancelledError, "raises": ValueError, "returns": type(None)}[how]
        )

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.virtual_time
async def test_handler_cancelled_by_code_of_its_own_while_its_message_is_given_back() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        tasks: list[asyncio.Task[None]] = []

        async def handler(message: MessageExt) -> None:
            task = CURRENT.get().task
            assert task is not None
            tasks.append(task)
            if not message.reconsume_times:
                server.delay(0.2)
                raise ValueError("again")

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler)
        async with consumer:
            await send(server.namesrv, b"x")
            await until(lambda: tasks)
            await asyncio.sleep(0.05)
            tasks[0].cancel()
            (settled,) = await consumer.wait_settled(1)
            server.delay(0)
            assert settled.outcome is Outcome.RETRIED
            assert consumer.position(Q0) == 1


async def test_plain_handler_whose_task_is_cancelled_by_code_of_its_own() -> None:
    """The thread runs on, so the message is not delivered again before it ends."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        loop = asyncio.get_running_loop()
        running: list[bytes] = []
        release = threading.Event()

        def handler(message: MessageExt) -> None:
            task = CURRENT.get().task
            assert task is not None
            loop.call_soon_threadsafe(task.cancel)
            running.append(message.body)
            release.wait(60)

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler)
        async with consumer:
            await send(server.namesrv, b"x")
            await until(lambda: running)
            await spin(20)
            assert consumer.stats().running == 1
            release.set()
            (settled,) = await consumer.wait_settled(1)
        assert (settled.outcome, running) == (Outcome.DONE, [b"x"])


@pytest.mark.parametrize("timeout", [None, 900.0])
def test_extend_to_an_earlier_deadline(timeout: float | None) -> None:
    """It holds also where the subscription has no timeout."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        ended: list[float] = []

        async def handler(message: MessageExt) -> None:
            if message.reconsume_times:
                return
            current_delivery().extend(600.0)
            current_delivery().extend(5.0)
            began = s.now
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append(s.now - began)
                await asyncio.sleep(100)  # beyond the earlier deadlines, which are over

        consumer = Consumer("g", namesrv=s.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler, timeout=timeout)
        async with consumer:
            await send(s.namesrv, b"x")
            first, second = await consumer.wait_settled(2, timeout=300.0)
        assert ended == [pytest.approx(5.0, abs=0.1)]
        assert isinstance(first.error, HandlerTimeoutError)
        assert second.outcome is Outcome.DONE

    Simulation(1, brokers=1, faults=None).run(main)


def test_calls_time_out_each_at_its_deadline() -> None:
    """One timer looks after all of them: also after those that begin later with shorter timeouts, or nearly at the same time."""

    async def main(s: Simulation) -> None:
        ended: dict[str, list[float]] = {"T": [], "U": []}

        async def handler(message: MessageExt) -> None:
            if message.reconsume_times:
                return
            began = s.now
            try:
                await asyncio.sleep(1000)
            finally:
                ended[message.topic].append(s.now - began)

        consumer = Consumer("g", namesrv=s.namesrv, retry=Retry(delays=(1,)))
        for topic, timeout in (("T", 20.0), ("U", 3.0)):
            await create(s.namesrv, topic, queues=1)
            consumer.subscribe(topic, handler, timeout=timeout)
        async with consumer:
            await send(s.namesrv, b"first", topic="T")
            await asyncio.sleep(1.0)
            for _ in range(3):
                await send(s.namesrv, b"shorter", topic="U")
                await asyncio.sleep(0.001)
            await asyncio.sleep(5.0)
            assert ended == {"T": [], "U": [pytest.approx(3.0, abs=0.006)] * 3}
            await asyncio.sleep(15.0)
        assert ended["T"] == [pytest.approx(20.0, abs=0.006)]

    Simulation(1, brokers=1, faults=None).run(main)


async def test_extend_in_a_thread(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ(delay_levels=[0.01]) as server:
        await create(server.namesrv, queues=1)

        release = threading.Event()

        def handler(message: MessageExt) -> None:
            if not message.reconsume_times:
                current_delivery().extend(0.01)
                release.wait(60)

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler, timeout=None)
        async with consumer:
            await send(server.namesrv, b"x")
            await until(lambda: "has run for longer than its timeout" in caplog.text)
            release.set()
            first, second = await consumer.wait_settled(2, timeout=60.0)
        assert isinstance(first.error, HandlerTimeoutError)
        assert second.outcome is Outcome.DONE


async def test_thread_that_outlives_the_stop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """No thread can be ended, and the interpreter waits for it at its exit."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        began, release = threading.Event(), threading.Event()

        def never_returns(message: MessageExt) -> None:
            began.set()
            release.wait(60)

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", never_returns)
        try:
            await consumer.start()
            await send(server.namesrv, b"x")
            await until(began.is_set)
            await consumer.stop(timeout=0)
            (record,) = [each for each in caplog.records if "cannot exit" in each.getMessage()]
            assert "never_returns" in record.getMessage()
        finally:
            release.set()


@pytest.mark.virtual_time
async def test_loop_that_ends_under_a_consumer_gives_nothing_back() -> None:
    """``asyncio.run`` cancels all tasks at its end; handlers are then as in a crash."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        seen = Seen(lambda message: asyncio.sleep(100))
        others = asyncio.all_tasks()
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", seen)
        await consumer.start()
        await send(server.namesrv, b"x")
        await until(lambda: consumer.stats().running)
        for task in asyncio.all_tasks() - others:
            if task.get_name().startswith("rmq_async"):
                task.cancel()
        await asyncio.sleep(0.1)
        assert consumer.stats().running == 0
        assert server.retries("g") == []
        await consumer.stop(timeout=1)


async def test_thread_within_its_extended_time_is_no_reason_for_a_restart() -> None:
    """One beyond twice its timeout is."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        extends = True
        began, release = threading.Event(), threading.Event()

        def handler(message: MessageExt) -> None:
            if extends:
                current_delivery().extend(600.0)
            began.set()
            release.wait(60)

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler, timeout=0.01)
        try:
            async with consumer:
                await send(server.namesrv, b"x")
                await until(began.is_set)
                await asyncio.sleep(0.03)
                assert consumer.health().live
                extends = False
                began.clear()
                await send(server.namesrv, b"y")
                await until(began.is_set)
                await until(lambda: not consumer.health().live, 2.0)
                release.set()
        finally:
            release.set()


@pytest.mark.virtual_time
async def test_call_has_ended_when_its_thread_has_although_no_broker_takes_its_message_back() -> None:
    """Neither ``live`` nor ``handler_stuck`` is about a message that waits for a broker."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        server.refuse_give_backs(ResponseCode.SYSTEM_BUSY)

        def handler(message: MessageExt) -> None:
            raise ValueError("fails")

        consumer = Consumer("g", namesrv=server.namesrv, stuck_after=0.2)
        consumer.subscribe("T", handler, timeout=0.1)
        async with consumer:
            await send(server.namesrv, b"x")
            await until(lambda: server.requests[RequestCode.CONSUMER_SEND_MSG_BACK] > 0)
            await asyncio.sleep(0.3)
            health, stats = consumer.health(), consumer.stats()
            assert health.live
            assert health.oldest_unfinished is None
            assert [(problem.code, problem.broker) for problem in health.problems] == [("not_taken_back", "broker-a")]
            assert (stats.running, stats.buffered) == (0, 1)
            server.refuse_give_backs(None)
            assert (await consumer.wait_settled(1, timeout=10.0))[0].outcome is Outcome.RETRIED
