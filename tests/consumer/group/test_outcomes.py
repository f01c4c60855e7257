"""What happens to a message after its handler has returned or raised, on the embedded broker and in simulated time."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
from collections.abc import Callable

import pytest

from rmq_async import (
    Admin,
    Consumer,
    DeadLetter,
    HandlerTimeoutError,
    MessageExt,
    MessageQueue,
    Outcome,
    PullConsumer,
    Retry,
    RetryLater,
    current_delivery,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode

from .support import Seen, create, send, until


async def dead_letters(namesrv: str, group: str) -> list[bytes]:
    async with PullConsumer("readers", namesrv=namesrv) as reader:
        return [message.body async for message in reader.read(f"%DLQ%{group}")]


async def test_handler_that_returns_settles_its_message() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", seen)
        async with consumer:
            await send(server.namesrv, b"1", b"2")
            settled = await consumer.wait_settled(2)
            await consumer.wait_idle()
            queue = MessageQueue("T", "broker-a", 0)
            assert consumer.position(queue) == 2
            await consumer.commit()
            assert await consumer.committed(queue) == 2
        assert [(each.message.body, each.outcome, each.error) for each in settled] == [
            (b"1", Outcome.DONE, None),
            (b"2", Outcome.DONE, None),
        ]
        assert seen.attempts == [(b"1", 1), (b"2", 1)]


async def returns(result: object) -> object:
    await asyncio.sleep(0)
    return result


async def returns_at_once(result: object) -> object:
    return result


RETURNING: dict[str, Callable[[object], object]] = {
    "plain": lambda result: result,
    "plain that returns a coroutine": returns,
}


@pytest.mark.virtual_time
@pytest.mark.parametrize("result", [RetryLater(1), DeadLetter, DeadLetter("no")], ids=repr)
@pytest.mark.parametrize("way", ["at once", "later", "batch", *RETURNING])
async def test_handler_that_returns_what_it_should_raise_has_failed(way: str, result: object) -> None:
    async def handler(given: object) -> object:
        return await (returns_at_once if way == "at once" else returns)(result)

    def plain(given: object) -> object:
        return RETURNING[way](result)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv)
        chosen = plain if way in RETURNING else handler
        consumer.subscribe("T", chosen, batch_size=2 if way == "batch" else None)
        async with consumer:
            await send(server.namesrv, b"1")
            (settled,) = await consumer.wait_settled(1)
            assert settled.outcome is Outcome.RETRIED
            assert isinstance(settled.error, TypeError)
            assert re.search("returned .*, which has no effect; raise it instead", str(settled.error))


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("errors", "outcome", "kind"),
    [
        ([RetryLater(1)], Outcome.RETRIED, RetryLater),
        ([DeadLetter("no")], Outcome.DEAD_LETTERED, DeadLetter),
        ([UnicodeError("no")], Outcome.DEAD_LETTERED, UnicodeError),
        ([KeyError("no")], Outcome.RETRIED, ExceptionGroup),
        ([KeyError("no"), DeadLetter("no")], Outcome.RETRIED, ExceptionGroup),
    ],
)
@pytest.mark.parametrize("batch_size", [None, 2])
async def test_exception_of_one_task_of_a_group_chooses_the_outcome(
    errors: list[Exception], outcome: Outcome, kind: type[BaseException], batch_size: int | None
) -> None:
    async def step(error: Exception) -> None:
        raise error

    async def handler(given: object) -> None:
        async with asyncio.TaskGroup() as steps:
            for error in errors:
                steps.create_task(step(error))

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler, batch_size=batch_size, dead_letter_on=(ValueError,))
        async with consumer:
            await send(server.namesrv, b"1")
            (settled,) = await consumer.wait_settled(1)
        assert (settled.outcome, type(settled.error)) == (outcome, kind)


def test_handler_that_raises_gets_its_message_again_then_it_is_dead_lettered(caplog: pytest.LogCaptureFixture) -> None:
    """Three attempts for ``limit=2``, after 10 s and 30 s; the body is never logged."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        times: list[float] = []

        async def handler(message: MessageExt) -> None:
            assert message.topic == "T"
            assert current_delivery().attempt == len(times) + 1
            times.append(s.now)
            raise ValueError("no such account")

        consumer = Consumer("g", namesrv=s.namesrv, retry=Retry(limit=2, delays=(10, 30)))
        consumer.subscribe("T", handler)
        async with consumer:
            await send(s.namesrv, b"secret body")
            await asyncio.sleep(120)
            assert consumer.stats().retried == 2
            assert consumer.stats().dead_lettered == 1
        assert [round(later - earlier) for earlier, later in itertools.pairwise(times)] == [10, 30]
        assert await dead_letters(s.namesrv, "g") == [b"secret body"]

    Simulation(1, faults=None).run(main)
    failed = [record for record in caplog.records if "attempt" in record.message]
    assert [record.levelno for record in failed] == [logging.WARNING, logging.WARNING, logging.ERROR]
    assert failed[-1].getMessage().endswith(": attempt 3 of 3: ValueError('no such account')")
    assert "secret body" not in caplog.text


def test_exceptions_of_the_handler_that_say_more() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        times: dict[bytes, list[float]] = {}

        async def handler(message: MessageExt) -> None:
            seen = times.setdefault(message.body, [])
            seen.append(s.now)
            if message.body == b"dead":
                raise DeadLetter("no such account")
            if message.body == b"listed":
                raise FileNotFoundError
            if len(seen) == 1:
                raise RetryLater(50)

        consumer = Consumer("g", namesrv=s.namesrv)
        consumer.subscribe("T", handler, dead_letter_on=(OSError,))
        async with consumer:
            await send(s.namesrv, b"dead", b"listed", b"later")
            await asyncio.sleep(100)
        assert len(times[b"dead"]) == len(times[b"listed"]) == 1
        first, second = times[b"later"]
        assert round(second - first) == 60  # the level above 50 s
        assert sorted(await dead_letters(s.namesrv, "g")) == [b"dead", b"listed"]

    Simulation(2, faults=None).run(main)


def test_handler_that_exceeds_its_timeout_is_cancelled_and_gets_the_message_again() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        ended: list[str] = []

        async def handler(message: MessageExt) -> None:
            try:
                if not ended:
                    await asyncio.sleep(1000)
            except asyncio.CancelledError:
                ended.append(f"cancelled after {s.now - began:.0f} s")
                raise
            ended.append("returned")

        consumer = Consumer("g", namesrv=s.namesrv)
        consumer.subscribe("T", handler, timeout=20.0)
        async with consumer:
            await send(s.namesrv, b"x")
            began = s.now
            (first,) = await consumer.wait_settled(1, timeout=100.0)
            assert first.outcome is Outcome.RETRIED
            assert isinstance(first.error, HandlerTimeoutError)
            await consumer.wait_settled(1, timeout=100.0)
        assert ended == ["cancelled after 20 s", "returned"]

    Simulation(3, faults=None).run(main)


def test_extended_deadline_of_a_delivery() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)

        async def handler(message: MessageExt) -> None:
            for _ in range(5):
                await asyncio.sleep(8)
                current_delivery().extend(10)

        consumer = Consumer("g", namesrv=s.namesrv)
        consumer.subscribe("T", handler, timeout=10.0)
        async with consumer:
            await send(s.namesrv, b"x")
            (only,) = await consumer.wait_settled(1, timeout=100.0)
            assert only.outcome is Outcome.DONE
            assert round(only.elapsed) == 40

    Simulation(4, faults=None).run(main)


def test_current_delivery_outside_of_a_handler() -> None:
    with pytest.raises(LookupError, match=r"no handler runs in this context; call current_delivery\(\) in a handler"):
        current_delivery()


async def test_plain_function_runs_in_a_thread() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        threads: list[str] = []

        def handler(message: MessageExt) -> None:
            threads.append(threading.current_thread().name)
            assert current_delivery().messages == (message,)

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler)
        async with consumer:
            await send(server.namesrv, b"1", b"2", b"3")
            settled = await consumer.wait_settled(3)
        assert all(name.startswith("rmq_async handler") for name in threads)
        assert [each.outcome for each in settled] == [Outcome.DONE] * 3
        await until(lambda: not any(thread.name.startswith("rmq_async handler") for thread in threading.enumerate()))


async def test_handler_raises_cancelled_error_of_its_own() -> None:
    """Something that the handler has awaited was cancelled: that fails like any other exception."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)

        async def handler(message: MessageExt) -> None:
            raise asyncio.CancelledError

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(limit=0))
        consumer.subscribe("T", handler)
        async with consumer:
            await send(server.namesrv, b"x")
            (only,) = await consumer.wait_settled(1)
        assert only.outcome is Outcome.DEAD_LETTERED


@pytest.mark.virtual_time
async def test_last_retry_by_the_setting_of_the_group_is_a_dead_letter_that_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    """``Retry()`` leaves the limit to the broker, which says nothing when it keeps a message as a dead letter."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_group("g", retry_max_times=1)

        async def fails(message: MessageExt) -> None:
            raise ValueError("no such account")

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", fails)
        async with consumer:
            await send(server.namesrv, *[b"%d" % number for number in range(5)])
            settled = await consumer.wait_settled(10)
            assert consumer.stats().dead_lettered == consumer.stats().retried == 5
        assert [each.outcome for each in settled] == [Outcome.RETRIED] * 5 + [Outcome.DEAD_LETTERED] * 5
        assert len(server.dead_letters("g")) == 5
        assert server.requests[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] == 1
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 5
    assert all(each.startswith("dead-lettered: ") and each.endswith("ValueError('no such account')") for each in errors)


async def test_retry_where_the_setting_of_the_group_is_not_known_is_confirmed_as_a_retry() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)

        async def fails(message: MessageExt) -> None:
            raise ValueError("fails")

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", fails)
        async with consumer:
            server.fail_next(16, 100, request=RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)  # NO_PERMISSION
            await send(server.namesrv, b"1", b"2")
            settled = await consumer.wait_settled(2)
        assert [each.outcome for each in settled] == [Outcome.RETRIED] * 2
        assert server.requests[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] == 1


@pytest.mark.virtual_time
async def test_message_to_deliver_again_without_a_subscription(caplog: pytest.LogCaptureFixture) -> None:
    """A member that no longer subscribes to its topic gives it back, and says so."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        await create(server.namesrv, "Other")

        async def fails(message: MessageExt) -> None:
            raise RetryLater(1)

        first = Consumer("g", namesrv=server.namesrv)
        first.subscribe("T", fails)
        async with first:
            await send(server.namesrv, b"x")
            await first.wait_settled(1)
        second = Consumer("g", namesrv=server.namesrv)
        second.subscribe("Other", Seen())
        async with second:
            await until(lambda: second.stats().retried == 1)
            assert [problem.code for problem in second.health().problems] == ["no_handler"]
        assert "no handler here subscribes to the topic" in caplog.text


@pytest.mark.virtual_time
async def test_last_retry_without_a_subscription_is_a_dead_letter_that_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await create(server.namesrv, "Other")
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_group("g", retry_max_times=1)

        async def fails(message: MessageExt) -> None:
            raise RetryLater(1)

        first = Consumer("g", namesrv=server.namesrv)
        first.subscribe("T", fails)
        async with first:
            await send(server.namesrv, b"x")
            (only,) = await first.wait_settled(1)
        second = Consumer("g", namesrv=server.namesrv)
        second.subscribe("Other", Seen())
        async with second:
            await until(lambda: second.stats().dead_lettered == 1)
        assert len(server.dead_letters("g")) == 1
    (line,) = [text for record in caplog.records if (text := record.getMessage()).startswith("dead-lettered: ")]
    assert line.startswith(f"dead-lettered: message {only.message.msg_id} of T (")
    assert line.endswith("attempt 2: no handler here subscribes to its topic")


@pytest.mark.virtual_time
async def test_last_retry_that_the_stop_cuts_off_is_a_dead_letter_that_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    """A message behind it is settled, so that the next member would not read it."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_group("g", retry_max_times=0)

        async def hangs(message: MessageExt) -> None:
            if message.body == b"hangs":
                await asyncio.Event().wait()

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", stop_timeout=3.0)
        consumer.subscribe("T", hangs)
        async with consumer:
            await send(server.namesrv, b"hangs", b"good")
            await consumer.wait_settled(1)
        assert [message.body for message in server.dead_letters("g")] == [b"hangs"]
    (line,) = [text for record in caplog.records if (text := record.getMessage()).startswith("dead-lettered: ")]
    assert line.endswith("attempt 1: its queue left this member before a call of its handler ended")


async def test_message_that_is_no_longer_stored_is_dead_lettered(caplog: pytest.LogCaptureFixture) -> None:
    """Its broker cannot take it back by its commit log offset; a copy of it becomes a dead letter."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)

        async def handler(message: MessageExt) -> None:
            server.expire(message.queue, message.queue_offset + 1)
            raise ValueError("fails")

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", handler)
        async with consumer:
            await send(server.namesrv, b"x")
            (only,) = await consumer.wait_settled(1)
            assert only.outcome is Outcome.DEAD_LETTERED
        assert await dead_letters(server.namesrv, "g") == [b"x"]
    assert "is no longer stored, so a copy is dead-lettered" in caplog.text
