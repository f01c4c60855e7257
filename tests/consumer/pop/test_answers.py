"""Answers of brokers to consumers that pop: of another clock, early, lost, too large or corrupt, and those of old brokers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import (
    Admin,
    ConfigError,
    Hook,
    MessageExt,
    RequestTimeoutError,
    Retry,
    RetryLater,
    machine,
)
from rmq_async.consumer.group import conflicts
from rmq_async.consumer.pop import acks, core
from rmq_async.consumer.pop import pop_requests as requests
from rmq_async.consumer.pop import sources as popping_module
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock, pops
from rmq_async.embedded import acks as acks_module
from rmq_async.embedded.pops import PopReader
from rmq_protocol import headers
from rmq_protocol.constants import RequestCode, ResponseCode

from ..group.support import Seen, create, send, until
from .support import popping

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("years", [-1, 1])
async def test_clock_of_a_broker_does_not_matter(years: int) -> None:
    at = round(datetime.now(UTC).timestamp() * 1000) + years * 365 * 86_400_000
    async with EmbeddedRocketMQ(clock=ManualClock(start_ms=at)) as server:
        await create(server.namesrv)
        seen = Seen()
        async with popping(server, seen):
            for number in range(5):
                await send(server.namesrv, b"%d" % number)
            await until(lambda: len(seen.bodies) == 5)
            await asyncio.sleep(0.3)
        assert seen.twice == 0
        assert server.requests[RequestCode.POP_MESSAGE] < 30


async def test_answers_that_come_early_never_spin() -> None:
    class Counting(Hook):
        def __init__(self) -> None:
            self.pops = 0

        def before_request(self, address: str, command: Any) -> None:
            self.pops += command.code == RequestCode.POP_MESSAGE

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        hook, seen = Counting(), Seen()
        async with popping(server, seen, hooks=[hook]):
            server.empty_pops(1000)
            await send(server.namesrv, b"wakes")
            before = hook.pops
            await asyncio.sleep(1.5)
            assert hook.pops - before < 20
            server.empty_pops(0)
            await send(server.namesrv, b"found")
            await until(lambda: seen.bodies[b"found"], 5)


async def test_lost_answers_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unanswered(Hook):
        def __init__(self) -> None:
            self.codes = Counter[int]()

        def after_request(self, address: str, command: Any, response: Any, error: BaseException | None) -> None:
            self.codes[command.code] += isinstance(error, RequestTimeoutError)

    monkeypatch.setattr(requests, "ANSWER_WITHIN", 0.2)
    monkeypatch.setattr(acks, "ANSWER_WITHIN", 0.3)
    monkeypatch.setattr(core, "CHANGE_WITHIN", 0.3)
    monkeypatch.setattr(popping_module, "POLL_TIME", 0.4)

    async def work(message: MessageExt) -> None:
        if message.body == b"2" and not message.reconsume_times:
            raise RetryLater(0.05)

    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        seen, hook = Seen(work), Unanswered()
        async with popping(server, seen, invisible_time=1.0, hooks=[hook]) as consumer:
            server.lose_answers(1, request=RequestCode.POP_MESSAGE)
            server.lose_answers(1, request=RequestCode.BATCH_ACK_MESSAGE)
            server.lose_answers(1, request=RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
            await send(server.namesrv, b"1", b"2", b"3")
            await until(lambda: len(seen.bodies) == 3, 10)
            await consumer.commit()
        assert server.in_flight("g") == []
        lost = {RequestCode.POP_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
        assert {code for code, count in hook.codes.items() if count} == lost


async def test_answers_above_max_frame_size_are_made_smaller() -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        bodies = [machine.random.randbytes(20_000) for _ in range(24)]  # which compress to nothing smaller
        await send(server.namesrv, *bodies)
        seen = Seen()
        async with popping(server, seen, invisible_time=1.0, max_frame_size=100_000, retry=Retry(limit=6)):
            await until(lambda: len(seen.bodies) == 24, 20)
        assert server.dead_letters("g") == []
        assert server.in_flight("g") == []


async def test_bodies_above_max_decompressed_size_are_given_back_and_popped_by_fewer() -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        await send(server.namesrv, *(b"%d" % number + bytes(300_000) for number in range(12)))
        seen = Seen()
        async with popping(server, seen, max_decompressed_size=1_000_000):
            await until(lambda: len(seen.bodies) == 12)  # none waits for its lease of 60 s
        assert {attempt for _, attempt in seen.attempts} == {1}
        assert seen.twice == 0


async def test_corrupt_record_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As in pull mode; it would come again for ever otherwise, since nothing says how often it has come."""
    take = PopReader.take

    def damaged(self: PopReader, *arguments: Any) -> Any:
        taken = take(self, *arguments)
        taken.records = [record.replace(b"a sound body", b"a round body") for record in taken.records]
        return taken

    monkeypatch.setattr(PopReader, "take", damaged)
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv, queues=1)
        seen = Seen()
        async with popping(server, seen, invisible_time=1.0) as consumer:
            consumer.pause("T")
            await send(server.namesrv, b"1", b"a sound body", b"3")
            consumer.resume("T")
            await until(lambda: len(seen.bodies) == 2)
            await asyncio.sleep(1.3)  # its lease is over
            await consumer.commit()
            assert consumer.stats().commits == 3
            caplog.set_level(logging.INFO)
        assert server.in_flight("g") == []
        assert "1 records that could not be read" in caplog.text
        (error,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "cannot be read and is left out: " in error.getMessage()


def answer_pops_with(monkeypatch: pytest.MonkeyPatch, header: Callable[..., Any]) -> None:
    """The embedded broker makes the headers of its answers to pops so; clients read them as ever."""
    monkeypatch.setattr(pops, "headers", SimpleNamespace(**{**vars(headers), "PopMessageResponseHeader": header}))


@pytest.mark.parametrize("asked", ["pop", "renewal"])
async def test_invisible_time_in_an_answer_is_at_most_the_one_asked_for(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    answer = headers.PopMessageResponseHeader if asked == "pop" else headers.ChangeInvisibleTimeResponseHeader

    def wrong(**fields: Any) -> Any:
        return answer(**(fields | {"invisibleTime": 3_600_000}))

    if asked == "pop":
        answer_pops_with(monkeypatch, wrong)
    else:
        monkeypatch.setattr(acks_module, "ChangeInvisibleTimeResponseHeader", wrong)

    async def work(message: MessageExt) -> None:
        await asyncio.sleep(2.5)

    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        seen = Seen(work)
        async with popping(server, seen, invisible_time=1.0) as consumer:
            await send(server.namesrv, b"1")
            await consumer.wait_settled(1, timeout=10)
        assert len(seen.attempts) == 1
        assert server.requests[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] >= 2


async def test_messages_whose_time_is_over_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0, -1]

    def wrong(**fields: Any) -> Any:
        if fields.get("msgOffsetInfo") and times:
            fields["invisibleTime"] = times.pop()
        return headers.PopMessageResponseHeader(**fields)

    answer_pops_with(monkeypatch, wrong)
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        seen = Seen()
        async with popping(server, seen, invisible_time=1.0) as consumer:
            await send(server.namesrv, b"1")
            await until(lambda: consumer.health().problems)
            assert "invisibleTime -1; it must be above 0 ms" in consumer.health().problems[0].text
            await until(lambda: seen.bodies)
        assert seen.attempts == [(b"1", 3)]


async def test_limit_of_the_group_stays_while_a_broker_does_not_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(conflicts, "SPACING", 0.0)
    refused = asyncio.Event()

    async def work(message: MessageExt) -> None:
        await refused.wait()
        raise RuntimeError("always")

    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_group("g", retry_max_times=20)
        seen, code = Seen(work), RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        async with popping(server, seen, retry=Retry(delays=[0.01])):
            server.fail_next(1, 10_000, request=code)
            asked = server.requests[code]
            await send(server.namesrv, b"1")
            await until(lambda: server.requests[code] > asked + 2)
            refused.set()
            await until(lambda: server.dead_letters("g"))
        assert len(seen.attempts) == 21  # 17 are usual


async def test_limit_is_that_of_new_groups_where_no_broker_says_it() -> None:
    async def work(message: MessageExt) -> None:
        raise RuntimeError("always")

    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        server.fail_next(1, 10_000, request=RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
        seen = Seen(work)
        async with popping(server, seen, retry=Retry(delays=[0.01])):
            await send(server.namesrv, b"1")
            await until(lambda: server.dead_letters("g"))
        assert len(seen.attempts) == 17


async def test_old_broker_is_refused_by_its_version() -> None:
    async with EmbeddedRocketMQ(version="4.9.7") as server:
        await create(server.namesrv)
        consumer = popping(server, Seen())
        with pytest.raises(ConfigError, match=r"broker-a at .* is RocketMQ 4\.9\.7; mode='pop' requires 5\.3\.2 or later"):
            await consumer.start()


async def test_broker_of_a_new_version_that_refuses_the_request_for_modes_is_named_with_that() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        server.fail_next(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 10, request=RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        server.fail_next(ResponseCode.SYSTEM_ERROR, 10, request=RequestCode.GET_BROKER_RUNTIME_INFO)
        consumer = popping(server, Seen())
        with pytest.raises(
            ConfigError, match=r"refuses GET_ALL_MESSAGE_REQUEST_MODE, although it responds as 5\.5\.0; mode='pop'"
        ):
            await consumer.start()


async def test_old_broker_that_comes_later_is_an_error_and_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    """The topic is made while the member runs, at a broker that cannot be popped."""
    async with EmbeddedRocketMQ(version="4.9.7", auto_create_topics=False) as server:
        seen = Seen()
        async with popping(server, seen) as consumer:
            await create(server.namesrv)
            await send(server.namesrv, b"1")
            await until(lambda: "queue_unreadable" in [each.code for each in consumer.health().problems])
            (problem,) = [each for each in consumer.health().problems if each.code == "queue_unreadable"]
            assert (problem.broker, "is RocketMQ 4.9.7; mode='pop' requires 5.3.2" in problem.text) == ("broker-a", True)
            (error,) = [each for each in caplog.records if each.levelno == logging.ERROR]
            assert "is not popped: broker broker-a" in error.getMessage()
        assert not server.requests.keys() & {RequestCode.POP_MESSAGE, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
        assert seen.attempts == []


async def test_broker_without_an_answer_is_looked_at_again() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        server.lose_answers(1, request=RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        seen = Seen()
        async with popping(server, seen, request_timeout=0.5):
            await send(server.namesrv, b"1")
            await until(lambda: seen.bodies)
        assert server.requests[RequestCode.GET_ALL_MESSAGE_REQUEST_MODE] == 2


async def test_member_is_ready_when_each_broker_has_answered_a_pop() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv)
        server.fail_next(1, 40, request=RequestCode.POP_MESSAGE)
        async with popping(server, Seen()) as consumer:
            assert (consumer.health().ready, set(consumer.lag().by_queue.values())) == (False, {None})
            server.fail_next(1, 0, request=RequestCode.POP_MESSAGE)
            await until(lambda: consumer.health().ready)
            assert set(consumer.lag().by_queue.values()) == {0}
