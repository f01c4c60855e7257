"""Consumers that are read by hand: what is given, settled, sought. Their stops and handovers: test_by_hand_handover.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from rmq_async import (
    ClientStateError,
    Consumer,
    HandlerTimeoutError,
    MessageQueue,
    Outcome,
    QueueLostError,
    Retry,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation

from .support import create, reader, send, taken, until

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue("T", "broker-a", 0)


async def test_asking_for_the_next_message_settles_the_last_one() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv) as consumer:
            await send(server.namesrv, b"0", b"1", b"2")
            seen: list[bytes] = []
            async for message in consumer:
                seen.append(message.body)
                assert consumer.position(Q0) == len(seen) - 1
                assert consumer.stats().running == 1
                if len(seen) == 3:
                    break
            assert consumer.position(Q0) == 2
            assert consumer.stats().handled == 2
            assert (consumer.stats().running, consumer.stats().buffered) == (0, 1)
        assert server.progress("g")[Q0] == 2
        async with reader(server.namesrv) as consumer:
            assert await taken(consumer, 1) == [b"2"]
        assert server.progress("g")[Q0] == 3


async def test_message_that_goes_back_comes_before_those_of_other_queues_and_topics() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=3)
        await create(server.namesrv, "U", queues=3)
        async with Consumer("g", namesrv=server.namesrv, topics=["T", "U"]) as consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(6)])
            await send(server.namesrv, *[b"%d" % number for number in range(6)], topic="U")
            await until(lambda: consumer.stats().buffered == 12)
            for size in (1, 3, 1, 4, 2):
                async with contextlib.aclosing(consumer.batches(size)) as batches:
                    given = await anext(batches)
                again = await consumer.receive(size)
                assert list(again) == list(given)
                assert consumer.done(*again)


@pytest.mark.parametrize("how", ["break", "raise", "aclose", "collected", "return"])
async def test_message_of_an_iterator_that_has_ended_goes_back_to_the_front(how: str) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv) as consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(5)])
            await until(lambda: consumer.stats().buffered == 5)

            async def leave() -> None:
                async for message in consumer:
                    assert message.body == b"0"
                    if how == "raise":
                        raise ValueError("in the body")
                    if how == "return":
                        return
                    break

            if how in ("break", "return"):
                await leave()
            elif how == "raise":
                with pytest.raises(ValueError, match="in the body"):
                    await leave()
            else:
                iterator = aiter(consumer)
                assert (await anext(iterator)).body == b"0"
                if how == "aclose":
                    await iterator.aclose()
                    with pytest.raises(StopAsyncIteration):
                        await anext(iterator)
                else:
                    del iterator
            assert consumer.stats().running == 0
            assert await taken(consumer, 5) == [b"%d" % number for number in range(5)]
            assert consumer.position(Q0) == 5
            assert (await consumer.wait_settled(5))[0].outcome is Outcome.DONE


async def test_several_iterators_share_the_messages() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        async with reader(server.namesrv) as consumer:
            seen: Counter[bytes] = Counter()
            by_task: Counter[str] = Counter()

            async def read(name: str) -> None:
                async for message in consumer:
                    seen[message.body] += 1
                    by_task[name] += 1
                    await asyncio.sleep(0.001)

            tasks = [asyncio.create_task(read(name)) for name in ("a", "b", "c")]
            await send(server.namesrv, *[b"%d" % number for number in range(60)])
            await consumer.wait_settled(60)
            await consumer.wait_idle()
            assert len(seen) == 60
            assert set(seen.values()) == {1}
            assert len(by_task) == 3
        await asyncio.gather(*tasks)  # each iteration ends at the stop


async def test_step_that_is_cancelled_has_taken_nothing() -> None:
    """Whenever it is cancelled; the iterator goes on."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv) as consumer:
            iterator, bodies = aiter(consumer), [b"%d" % number for number in range(40)]
            seen: list[bytes] = []
            for number, body in enumerate(bodies):
                step = asyncio.ensure_future(anext(iterator))
                sending = asyncio.create_task(send(server.namesrv, body))
                for _ in range(number * 4):
                    await asyncio.sleep(0)
                step.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    seen.append((await step).body)
                await sending
            while len(seen) < len(bodies):
                seen.append((await asyncio.wait_for(anext(iterator), 5)).body)
            await iterator.aclose()
            assert seen == bodies


async def test_receive_settles_nothing_and_is_safe_to_cancel() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv) as consumer:
            assert len(await consumer.receive(timeout=0)) == 0
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.receive(), 0.02)
            await send(server.namesrv, *[b"%d" % number for number in range(5)])
            await until(lambda: consumer.stats().buffered == 5)
            batch = await consumer.receive(3)
            rest = await consumer.receive(timeout=1.0)
            assert [message.body for message in [*batch, *rest]] == [b"0", b"1", b"2", b"3", b"4"]
            assert consumer.position(Q0) == 0
            with pytest.raises(ClientStateError, match="cannot be marked; settle them with done"):
                batch.mark_retry(batch[0])
            assert consumer.done(*rest)
            assert consumer.position(Q0) == 0
            assert consumer.done(batch[1], batch[0])
            assert consumer.position(Q0) == 2
            assert not consumer.done(*batch)  # two of them for the second time
            assert consumer.position(Q0) == 5
            assert not consumer.done(*batch)
            await consumer.commit()
            assert await consumer.committed(Q0) == 5
            assert consumer.stats().buffered == 0


def test_retry_and_dead_letter_of_messages_in_hand() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with reader(s.namesrv, retry=Retry(limit=2)) as consumer:
            await send(s.namesrv, b"0", b"1", b"2")
            first: list[tuple[bytes, int]] = []
            async for message in consumer:
                first.append((message.body, message.reconsume_times))
                if message.body == b"0":
                    assert await consumer.retry(message, 1.0)
                    assert not consumer.done(message)
                elif message.body == b"1" and not message.reconsume_times:
                    assert await consumer.dead_letter(message, "an account that does not exist")
                    assert not await consumer.retry(message)
                if message.reconsume_times == 2:
                    break
            assert first == [(b"0", 0), (b"1", 0), (b"2", 0), (b"0", 1), (b"0", 2)]
            stats = consumer.stats()
            assert (stats.retried, stats.dead_lettered, stats.handled, stats.failed) == (2, 2, 1, 4)
            assert consumer.position(Q0) == 3

    Simulation(1, brokers=1, faults=None).run(main)


async def test_batches_by_hand_settle_but_for_their_marks() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        async with reader(server.namesrv) as consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(6)])
            async with contextlib.aclosing(consumer.batches(4, wait=5.0)) as batches:
                first = await anext(batches)
                assert len(first) == 4
                first.mark_dead_letter(first[1], "no such account")
                second = await asyncio.wait_for(anext(batches), 10)
                assert len(second) == 2
                assert len(server.dead_letters("g")) == 1
                with pytest.raises(ClientStateError, match="no longer in hand"):
                    first.mark_retry(first[0])
                assert consumer.done(second[0])
            assert consumer.stats().handled == 4  # the second of that batch went back with the iterator
            assert await taken(consumer, 1) == [second[1].body]
            assert sum(consumer.position(queue) for queue in consumer.assignment if queue.topic == "T") == 6


@pytest.mark.parametrize("gone", ["to another step", "into a pause"])
def test_batch_waits_anew_where_the_message_that_it_waited_with_is_gone(gone: str) -> None:
    """Neither does the step look again and again, nor does the next batch come without its wait."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with reader(s.namesrv) as consumer, contextlib.aclosing(consumer.batches(2, wait=1.0)) as batches:
            step = asyncio.ensure_future(anext(batches))
            await send(s.namesrv, b"0")
            await until(lambda: consumer.stats().buffered == 1)
            if gone == "to another step":
                assert consumer.done(*await consumer.receive(1))
            else:
                consumer.pause("T")
            await asyncio.sleep(5)
            assert not step.done()
            began = s.now
            consumer.resume()
            await send(s.namesrv, b"1")
            assert len(await step) == (1 if gone == "to another step" else 2)
            assert gone == "into a pause" or s.now - began >= 1.0

    Simulation(1, brokers=1, faults=None).run(main)


def test_message_that_is_in_hand_for_too_long_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        consumer = reader(s.namesrv, retry=Retry(delays=(1,)), stuck_after=3.0)
        consumer.subscriptions[0].timeout = 5.0
        async with consumer:
            await send(s.namesrv, b"0")
            iterator = aiter(consumer)
            message = await anext(iterator)
            await asyncio.sleep(4.0)
            oldest = consumer.health().oldest_unfinished
            assert oldest is not None
            assert oldest.messages == (message,)
            assert [problem.code for problem in consumer.health().problems] == ["handler_stuck"]
            assert "in hand for 4 s" in consumer.health().problems[0].text
            assert consumer.health().live
            await asyncio.sleep(1.5)
            assert not consumer.done(message)
            again = await anext(iterator)
            assert (again.body, again.reconsume_times) == (b"0", 1)
            assert consumer.done(again)
            await iterator.aclose()
            settled = await consumer.wait_settled(2)
            assert [each.outcome for each in settled] == [Outcome.RETRIED, Outcome.DONE]
            assert isinstance(settled[0].error, HandlerTimeoutError)
            assert consumer.health().oldest_unfinished is None

    Simulation(1, brokers=1, faults=None).run(main)
    assert "was in hand for 5" in caplog.text


async def test_pause_and_resume_by_hand() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv) as consumer:
            await send(server.namesrv, b"0", b"1")
            await until(lambda: consumer.stats().buffered == 2)
            iterator = aiter(consumer)
            message = await anext(iterator)
            consumer.pause("T")
            assert len(await consumer.receive(timeout=0.05)) == 0
            assert consumer.done(message)
            consumer.resume("T")
            assert (await asyncio.wait_for(anext(iterator), 5)).body == b"1"
            await iterator.aclose()


async def test_seek_in_the_body_gives_the_message_in_hand_up() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv) as consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(4)])
            await until(lambda: consumer.stats().buffered == 4)
            seen: list[bytes] = []
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 3:
                    async with asyncio.timeout(2):
                        await consumer.seek(Q0, 1)
                    assert not consumer.done(message)
                if len(seen) == 6:
                    break
            assert seen == [b"0", b"1", b"2", b"1", b"2", b"3"]
            assert consumer.position(Q0) == 3
            with pytest.raises(QueueLostError):
                await consumer.seek(Q0._replace(queue_id=7), 0)


async def test_lag_counts_messages_in_hand() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv) as consumer:
            await send(server.namesrv, b"0", b"1")
            await until(lambda: consumer.stats().buffered == 2)
            batch = await consumer.receive()
            assert consumer.lag().messages == 2
            assert consumer.lag().oldest_age is not None
            consumer.done(*batch)
            assert consumer.lag().messages == 0
