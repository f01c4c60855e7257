"""Handlers that take several messages at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from rmq_async import (
    Batch,
    ClientStateError,
    ConfigError,
    Consumer,
    HandlerTimeoutError,
    MessageExt,
    MessageQueue,
    Outcome,
    Retry,
    current_delivery,
)
from rmq_async.consumer.handling import redelivery as outcomes
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation

from .support import Seen, create, member, send, until

Bodies = list[list[bytes]]
RETRIES = MessageQueue("%RETRY%g", "broker-a", 0)


def bodies(batch: Batch) -> list[bytes]:
    return [message.body for message in batch]


async def again(message: MessageExt) -> None:
    """A handler whose first attempt fails."""
    if not message.reconsume_times:
        raise ValueError("again")


class Batches:
    """A handler that keeps the bodies of its batches."""

    def __init__(self) -> None:
        self.seen: Bodies = []

    async def __call__(self, batch: Batch) -> None:
        self.seen.append(bodies(batch))


@pytest.mark.virtual_time
async def test_batch_crosses_queues_and_settles_each_message() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=4)
        seen = Batches()
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", seen, batch_size=8, batch_wait=30.0)
        async with consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(16)])
            settled = await consumer.wait_settled(16)
            await consumer.wait_idle()
            assert sum(consumer.position(queue) for queue in consumer.assignment) == 16
            assert consumer.stats().handled == 16
            assert consumer.stats().buffered == 0
        assert [len(each) for each in seen.seen] == [8, 8]
        assert sorted(body for each in seen.seen for body in each) == sorted(b"%d" % number for number in range(16))
        assert {each.outcome for each in settled} == {Outcome.DONE}
        assert sum(server.progress("g").values()) == 16


async def test_batch_of_what_is_there_without_a_wait() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        seen = Batches()
        release = asyncio.Event()

        async def handler(batch: Batch) -> None:
            await seen(batch)
            await release.wait()

        consumer = Consumer("g", namesrv=server.namesrv, concurrency=1)
        consumer.subscribe("T", handler, batch_size=3)
        async with consumer:
            await send(server.namesrv, b"0")
            await until(lambda: seen.seen)
            await send(server.namesrv, b"1", b"2", b"3", b"4")
            await until(lambda: consumer.stats().buffered == 5)
            assert consumer.stats().running == 1
            release.set()
            await consumer.wait_settled(5)
        assert seen.seen == [[b"0"], [b"1", b"2", b"3"], [b"4"]]


def test_batch_waits_for_messages_up_to_its_time() -> None:
    """From the first message on, not from the last one."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        times: list[tuple[float, int]] = []

        async def handler(batch: Batch) -> None:
            times.append((s.now, len(batch)))

        consumer = Consumer("g", namesrv=s.namesrv)
        consumer.subscribe("T", handler, batch_size=5, batch_wait=3.0)
        async with consumer:
            began = s.now
            for number in range(4):
                await send(s.namesrv, b"%d" % number)
                await asyncio.sleep(1.0)
            await consumer.wait_settled(4, timeout=10.0)
            assert times == [(pytest.approx(began + 3.0, abs=0.2), 3), (pytest.approx(began + 6.0, abs=0.2), 1)]
            began = s.now
            await send(s.namesrv, *[b"x"] * 5)
            await consumer.wait_settled(5, timeout=10.0)
            assert s.now - began < 0.05

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("raises", [False, True])
def test_marks_win_over_the_outcome_of_the_handler(raises: bool) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        attempts: dict[bytes, int] = {}
        seen: list[int] = []

        async def handler(batch: Batch) -> None:
            seen.append(current_delivery().attempt)
            for message in batch:
                attempts[message.body] = attempts.get(message.body, 0) + 1
            if batch[0].reconsume_times:
                return
            batch.mark_retry(batch[0], 1.0)
            batch.mark_dead_letter(batch[1])
            batch.mark_dead_letter(batch[2])
            batch.mark_dead_letter(batch[1], "an account that does not exist")
            batch.mark_retry(batch[2], 1.0)
            if raises:
                raise ValueError("of the others")

        consumer = Consumer("g", namesrv=s.namesrv, retry=Retry(delays=(1.0,)))
        consumer.subscribe("T", handler, batch_size=6, batch_wait=2.0)
        async with consumer:
            await send(s.namesrv, *[b"%d" % number for number in range(6)])
            first = await consumer.wait_settled(6, timeout=20.0)
            again = await consumer.wait_settled(5 if raises else 2, timeout=20.0)
            stats = consumer.stats()
            await consumer.wait_idle(timeout=20.0)
        outcomes = [each.outcome for each in first]
        rest = Outcome.RETRIED if raises else Outcome.DONE
        assert sorted(outcomes, key=lambda each: each.value) == sorted(
            [Outcome.RETRIED, Outcome.RETRIED, Outcome.DEAD_LETTERED, rest, rest, rest], key=lambda each: each.value
        )
        assert (stats.retried, stats.dead_lettered) == (5 if raises else 2, 1)
        assert {each.outcome for each in again} == {Outcome.DONE}
        assert sorted(attempts.values()) == ([1, 2, 2, 2, 2, 2] if raises else [1, 1, 1, 1, 2, 2])
        assert seen == [1, 2]  # what is delivered again comes in one batch, too

    Simulation(1, brokers=1, faults=None).run(main)


async def test_batch_that_fails_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)

        async def handler(batch: Batch) -> None:
            if not batch[0].reconsume_times:
                batch.mark_dead_letter(batch[0], "no such account")
                raise ValueError("the database is away")

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler, batch_size=6, batch_wait=60.0)
        async with consumer:
            await send(server.namesrv, *[b"secret %d" % number for number in range(6)])
            await consumer.wait_settled(6)
            lines = [record.getMessage() for record in caplog.records if record.name.startswith("rmq_async.consumer.")]
            assert len(lines) == 2
            assert "dead-lettered" in lines[0]
            assert "no such account" in lines[0]
            assert "5 messages are delivered again" in lines[1]
            assert "the database is away" in lines[1]
        assert "secret" not in caplog.text


async def test_marks_that_cannot_be() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        kept: list[Batch] = []

        async def handler(batch: Batch) -> None:
            kept.append(batch)
            with pytest.raises(ConfigError, match="delay must be at least 0 seconds"):
                batch.mark_retry(batch[0], -1.0)
            stranger: Any = b"x"
            with pytest.raises(ValueError, match="is not in this batch of 2 messages"):
                batch.mark_retry(stranger)
            assert list(reversed(batch)) == [batch[1], batch[0]]
            assert batch[0:1] == (batch[0],)
            assert repr(batch) == "<Batch of 2 messages, 0 of them marked>"

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler, batch_size=2, batch_wait=60.0)
        async with consumer:
            await send(server.namesrv, b"0", b"1")
            settled = await consumer.wait_settled(2)
            assert [each.error for each in settled] == [None, None]
            with pytest.raises(ClientStateError, match="has ended"):
                kept[0].mark_retry(kept[0][0])


def test_batch_that_exceeds_its_timeout_is_delivered_again() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)

        async def handler(batch: Batch) -> None:
            if not batch[0].reconsume_times:
                batch.mark_dead_letter(batch[0])
                await asyncio.sleep(100)

        consumer = Consumer("g", namesrv=s.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler, batch_size=3, batch_wait=1.0, timeout=5.0)
        async with consumer:
            await send(s.namesrv, b"0", b"1", b"2")
            first = await consumer.wait_settled(3, timeout=20.0)
            await consumer.wait_settled(2, timeout=20.0)
        assert sorted(each.outcome.value for each in first) == ["dead-lettered", "retried", "retried"]
        assert [type(each.error) for each in first if each.outcome is Outcome.RETRIED] == [HandlerTimeoutError] * 2

    Simulation(1, brokers=1, faults=None).run(main)


async def test_plain_function_takes_a_batch_in_a_thread() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        threads: list[threading.Thread] = []

        def handler(batch: Batch) -> None:
            threads.append(threading.current_thread())
            batch.mark_dead_letter(batch[1])

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler, batch_size=3, batch_wait=60.0)
        async with consumer:
            await send(server.namesrv, b"0", b"1", b"2")
            settled = await consumer.wait_settled(3)
        assert {each.message.body: each.outcome for each in settled} == {
            b"0": Outcome.DONE,
            b"1": Outcome.DEAD_LETTERED,
            b"2": Outcome.DONE,
        }
        assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize("how", ["stop", "seek", "handover"])
def test_wait_for_a_full_batch_delays_no_drain(how: str) -> None:
    """A message to deliver again waits for others, below one of another topic that is settled: it begins at once."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await create(s.namesrv, "U", queues=1)
        seen, others = Batches(), Seen(again)

        async def handler(batch: Batch) -> None:
            await seen(batch)
            if not batch[0].reconsume_times:
                batch.mark_retry(batch[0])

        def consumer_of(name: str) -> Consumer:
            consumer = Consumer("g", namesrv=s.namesrv, instance_name=name, retry=Retry(delays=(1,)))
            consumer.subscribe("T", handler, batch_size=2, batch_wait=100.0)
            consumer.subscribe("U", others)
            return consumer

        consumer = consumer_of("two")
        async with consumer:
            await send(s.namesrv, b"0", b"1")
            await consumer.wait_settled(2)
            await asyncio.sleep(0.2)
            await send(s.namesrv, b"u", topic="U")
            await until(lambda: others.bodies[b"u"], 20.0)
            assert consumer.stats().buffered == 1
            assert len(seen.seen) == 1
            began = s.now
            if how == "seek":
                await consumer.seek(RETRIES, "latest")
            if how == "handover":
                async with consumer_of("one"):  # takes the queue of the retry topic
                    await until(lambda: len(seen.seen) == 2, 5.0)
        assert s.now - began < 0.2
        assert seen.seen == [[b"0", b"1"], [b"0"]]

    Simulation(1, brokers=1, faults=None).run(main)


def test_batch_of_several_queues_that_is_cut_off_goes_on_with_those_that_stay() -> None:
    """At a handover the call is cancelled. Messages of queues that stay are handled again at once, as the same attempt."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=4)
        attempts: list[tuple[str, list[bytes], int]] = []
        done: Counter[bytes] = Counter()

        def consumer_of(name: str) -> Consumer:
            async def handler(batch: Batch) -> None:
                attempts.append((name, bodies(batch), current_delivery().attempt))
                if len(attempts) == 1:
                    await asyncio.sleep(100)
                done.update(bodies(batch))

            consumer = Consumer("g", namesrv=s.namesrv, instance_name=name, handover_timeout=3.0)
            consumer.subscribe("T", handler, batch_size=8, batch_wait=2.0)
            return consumer

        one, two = consumer_of("one"), consumer_of("two")
        async with one:
            await send(s.namesrv, *[b"%d" % number for number in range(8)])
            await until(lambda: attempts)
            assert len(attempts[0][1]) == 8
            async with two:
                await until(lambda: len(done) == 8, 20.0)
                await one.wait_idle(timeout=10.0)
                await two.wait_idle(timeout=10.0)
                assert len(one.assignment) == 3  # two of the topic, and that of the retry topic
            assert one.stats().buffered == 0
        assert set(done.values()) == {1}
        assert {attempt for _, _, attempt in attempts} == {1}
        assert {name for name, _, _ in attempts[1:]} == {"one", "two"}

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.virtual_time
async def test_batch_cut_off_while_messages_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of queues that stay are given back all the same; those of the others are left to their next owner."""
    async with EmbeddedRocketMQ(brokers=1) as server:
        await create(server.namesrv, queues=2)
        asked: list[bytes] = []
        send_back = outcomes.send_back
        release = asyncio.Event()

        async def slowly(instance: Any, group: str, topic: str, message: MessageExt, **options: Any) -> None:
            asked.append(message.body)
            if message.queue.queue_id == 1:
                await asyncio.sleep(100)
            await release.wait()
            await send_back(instance, group, topic, message, **options)

        monkeypatch.setattr(outcomes, "send_back", slowly)

        calls: Bodies = []

        async def fails(batch: Batch) -> None:
            calls.append(bodies(batch))
            raise ValueError("again")

        consumer = Consumer("g", namesrv=server.namesrv, instance_name="one", handover_timeout=0.5)
        consumer.subscribe("T", fails, batch_size=4, batch_wait=60.0)
        await consumer.start()
        await send(server.namesrv, b"0", b"1", b"2", b"3")
        await until(lambda: len(asked) == 4)
        two = member("g", server.namesrv, "two", Seen())
        await two.start()
        await two.wait_settled(2)
        assert {queue.queue_id for queue in two.assignment} == {1}
        release.set()
        settled = await consumer.wait_settled(2)
        assert {each.message.queue.queue_id for each in settled} == {0}
        assert {each.outcome for each in settled} == {Outcome.RETRIED}
        assert len(calls) == 1
        await consumer.stop()
        await two.stop()


@pytest.mark.parametrize("options", [
    {"batch_size": 0}, {"batch_size": 1.5}, {"batch_size": 70_000}, {"batch_wait": 1.0}, {"batch_size": 2, "batch_wait": -1.0},
    {"batch_size": 5000},
])  # fmt: skip
def test_batch_options_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="batch_"):
        Consumer("g", namesrv="127.0.0.1:1").subscribe("T", Batches(), **options)
