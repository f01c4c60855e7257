"""Order by key and by queue: which calls run at a time, what a failed attempt holds, and when order is given up."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable
from math import nan
from time import monotonic
from typing import Any

import msgspec
import pytest

from rmq_async import Consumer, DeadLetter, Message, MessageExt, MessageQueue, Producer, Retry, RetryLater, current_delivery
from rmq_async.consumer.subscription import key_of
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode

from .support import create, until

Q0 = MessageQueue("T", "broker-a", 0)


class Ordered:
    """A handler that notes calls by key. ``overlaps``: calls that began while another one of their key ran."""

    def __init__(self, work: Callable[[MessageExt], Awaitable[object]] | None = None, *, by_queue: bool = False) -> None:
        self.work = work
        self.by_queue = by_queue
        self.begun: defaultdict[Hashable, list[int]] = defaultdict(list)
        self.done: defaultdict[Hashable, list[int]] = defaultdict(list)
        self.attempts: list[tuple[bytes, int]] = []
        self.running: Counter[Hashable] = Counter()
        self.most_at_a_time = 0
        self.overlaps = 0

    async def __call__(self, message: MessageExt) -> None:
        key: Hashable = message.queue.queue_id if self.by_queue else (message.queue.queue_id, message.sharding_key)
        self.running[key] += 1
        self.overlaps += self.running[key] > 1
        self.most_at_a_time = max(self.most_at_a_time, self.running.total())
        self.begun[key].append(message.queue_offset)
        self.attempts.append((message.body, current_delivery().attempt))
        try:
            if self.work is not None:
                await self.work(message)
            self.done[key].append(message.queue_offset)
        finally:
            self.running[key] -= 1

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.attempts]

    def check(self, handled: int) -> None:
        """Each message once, in the order of the offsets of its key, one call at a time."""
        assert sum(map(len, self.done.values())) == handled
        assert all(offsets == sorted(set(offsets)) for offsets in self.done.values())
        assert all(offsets == sorted(offsets) for offsets in self.begun.values())
        assert self.overlaps == 0


async def send_keyed(namesrv: str, *bodies: bytes, key: Callable[[bytes], str | None] = lambda body: None) -> None:
    async with Producer("senders", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message("T", body, sharding_key=key(body)), queue=Q0 if key(body) is None else None)


def ordered(namesrv: str, handler: Callable[[MessageExt], Any], name: str = "one", **options: Any) -> Consumer:
    of_consumer = {
        key: options.pop(key)
        for key in ("max_span", "concurrency", "stuck_after", "handover_timeout", "broadcast")
        if key in options
    }
    consumer = Consumer("g", namesrv=namesrv, instance_name=name, start_from="earliest", **of_consumer)
    consumer.subscribe("T", handler, **options)
    return consumer


@pytest.mark.virtual_time
async def test_order_by_key_runs_many_keys_at_a_time_and_each_in_order() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)

    async def work(message: MessageExt) -> None:
        await asyncio.sleep(chance.uniform(0, 0.01))
        if chance.random() < 0.1:
            raise ValueError("fails now and then")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        await send_keyed(server.namesrv, *[b"%d" % number for number in range(400)], key=lambda body: f"k{int(body) % 30}")
        seen = Ordered(work)
        async with ordered(server.namesrv, seen, order="key", concurrency=20, retry=Retry(delays=(0.01, 0.03))) as consumer:
            await consumer.wait_idle(timeout=20)
            stats = consumer.stats()
        seen.check(400)
        assert (stats.handled, stats.buffered, stats.running) == (400, 0, 0)
        assert stats.failed == stats.retried > 0
        assert 10 < seen.most_at_a_time <= 20
        assert sum(offset for queue, offset in server.progress("g").items() if queue.topic == "T") == 400


@pytest.mark.virtual_time
async def test_order_by_key_failed_attempt_holds_its_key_only() -> None:
    async def work(message: MessageExt) -> None:
        if message.body == b"a0" and current_delivery().attempt < 3:
            raise RetryLater(0.2)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"a0", b"a1", b"b0", b"b1", key=lambda body: body[:1].decode())
        seen = Ordered(work)
        began = monotonic()
        async with ordered(server.namesrv, seen, order="key") as consumer:
            await consumer.wait_idle()
        assert 0.4 <= monotonic() - began < 0.42
        assert seen.attempts == [(b"a0", 1), (b"b0", 1), (b"b1", 1), (b"a0", 2), (b"a0", 3), (b"a1", 1)]
        assert not server.retries("g")


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("error", "retry", "attempts"),
    [
        (ValueError("always"), Retry(limit=2, delays=(0.01,)), 3),
        (ValueError("always"), Retry(max_hold=1.2, delays=(0.7,)), 3),
        (RetryLater(3600), Retry(max_hold=0.2), 2),
        (DeadLetter("poison"), None, 1),
        (KeyError("poison"), None, 1),
    ],
    ids=["limit", "max_hold", "RetryLater beyond max_hold", "DeadLetter", "dead_letter_on"],
)
async def test_order_by_key_ends_with_a_dead_letter_and_goes_on(error: Exception, retry: Retry | None, attempts: int) -> None:
    async def work(message: MessageExt) -> None:
        if message.body == b"0":
            raise error

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"0", b"1", b"2", key=lambda body: "k")
        seen = Ordered(work)
        async with ordered(server.namesrv, seen, order="key", retry=retry, dead_letter_on=(KeyError,)) as consumer:
            await consumer.wait_idle()
            assert consumer.stats().dead_lettered == 1
        assert seen.bodies == [b"0"] * attempts + [b"1", b"2"]
        assert [message.body for message in server.dead_letters("g")] == [b"0"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("key", [None, lambda message: ""], ids=["no function", "empty text"])
@pytest.mark.parametrize("broadcast", [False, True], ids=["group", "broadcast"])
async def test_order_by_key_messages_of_a_queue_without_a_key_share_one_line(
    key: Callable[[MessageExt], Hashable] | None, *, broadcast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed one is repeated in place and holds those behind it; messages with keys go on beside them."""

    async def work(message: MessageExt) -> None:
        await asyncio.sleep(0.002)
        if message.body == b"-0" and current_delivery().attempt < 3:
            raise RetryLater(0.1)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        bodies = [b"%s%d" % (kind, number) for number in range(5) for kind in (b"-", b"a", b"b")]
        await send_keyed(server.namesrv, *bodies, key=lambda body: None if body[:1] == b"-" else body[:1].decode())
        seen = Ordered(work)
        with caplog.at_level(logging.WARNING, "rmq_async"):
            async with ordered(server.namesrv, seen, order="key", key=key, broadcast=broadcast) as consumer:
                await consumer.wait_idle()
                health = consumer.health()
                assert consumer.stats().dead_lettered == 0
        seen.check(15)
        assert seen.begun[0, None][:3] == [0, 0, 0]
        assert seen.bodies.index(b"b4") < seen.bodies.index(b"-1")
        assert not server.retries("g")
        assert [problem.code for problem in health.problems] == ["key_missing"]
        assert health.ready
        assert health.problems[0].queue == Q0
        assert "topic T have no key" in health.problems[0].text
        (warning,) = [record.getMessage() for record in caplog.records if record.name == "rmq_async.consumer.handling.lines"]
        assert "Message(sharding_key=...)" in warning
        assert "function key=" in warning


async def test_order_by_key_none_of_the_function_says_that_a_message_has_no_order(caplog: pytest.LogCaptureFixture) -> None:
    together = asyncio.Event()
    running = 0

    async def handler(message: MessageExt) -> None:
        nonlocal running
        running += 1
        if running == 3:
            together.set()
        async with asyncio.timeout(60):
            await together.wait()
        if message.body == b"0":
            raise ValueError("always")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"0", b"1", b"2")
        retry = Retry(limit=0)
        with caplog.at_level(logging.WARNING, "rmq_async.consumer.handling.lines"):
            async with ordered(server.namesrv, handler, order="key", key=lambda message: None, retry=retry) as consumer:
                await consumer.wait_idle()
                assert consumer.health().problems == ()
        assert [message.body for message in server.dead_letters("g")] == [b"0"]  # by the broker
        assert not [record for record in caplog.records if record.name == "rmq_async.consumer.handling.lines"]


async def test_key_of_an_empty_text_is_no_key() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"0")
        (message,) = server.messages("T")
    empty = msgspec.structs.replace(message, properties={**message.properties, "__SHARDINGKEY": ""})
    given = ordered("127.0.0.1:1", Ordered(), order="key", key=lambda message: message.body).subscriptions[0]
    bare = ordered("127.0.0.1:1", Ordered(), order="key").subscriptions[0]
    assert key_of(given, empty) == b"0"
    assert key_of(bare, empty) == key_of(bare, message) == ""


def test_key_missing_ends_ten_minutes_after_the_last_such_message() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with ordered(s.namesrv, Ordered(), order="key") as consumer:
            for _ in range(2):
                await send_keyed(s.namesrv, b"0")
                await consumer.wait_idle()
                await asyncio.sleep(590)
                assert [problem.code for problem in consumer.health().problems] == ["key_missing"]
            await asyncio.sleep(20)
            assert consumer.health().problems == ()

    Simulation(1, faults=None).run(main)


@pytest.mark.virtual_time
async def test_health_names_messages_without_a_key_that_are_held() -> None:
    async def fail(message: MessageExt) -> None:
        raise RetryLater(100)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"0", b"1")
        async with ordered(server.namesrv, fail, order="key", stuck_after=0.05) as consumer:
            await until(lambda: len(consumer.health().problems) == 2)
            held = next(problem for problem in consumer.health().problems if problem.code == "key_held")
            assert held.text.startswith(f"the messages without a key of {Q0} have been held")
            assert "1 messages wait behind it" in held.text


async def test_order_by_key_function_orders_messages_without_a_sharding_key() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, *[b"%d" % number for number in range(40)])
        running: Counter[int] = Counter()
        seen: defaultdict[int, list[int]] = defaultdict(list)

        async def handler(message: MessageExt) -> None:
            key = int(message.body) % 4
            running[key] += 1
            assert running[key] == 1
            await asyncio.sleep(0.002)
            seen[key].append(message.queue_offset)
            running[key] -= 1

        async with ordered(server.namesrv, handler, order="key", key=lambda message: int(message.body) % 4) as consumer:
            await consumer.wait_idle()
            assert consumer.stats().failed == 0
        assert {key: offsets == sorted(offsets) for key, offsets in seen.items()} == dict.fromkeys(range(4), True)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("key", "text"),
    [
        (lambda message: 1 // 0, "ZeroDivisionError"),
        (lambda message: [message.body], "key of subscription T returned a value of type list, which cannot be hashed"),
        (lambda message: asyncio.sleep(0), "key of subscription T returned <coroutine object sleep"),
        (lambda message: (body for body in [message.body]), "key of subscription T returned <generator object"),
        (lambda message: nan, "key of subscription T returned nan, which is not equal to any other key"),
    ],
    ids=["raises", "cannot be hashed", "coroutine", "generator", "NaN"],
)
async def test_order_by_key_error_of_the_function_fails_the_message(
    key: Callable[[MessageExt], Hashable], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler is not called: the place of the message among the others is not known. Those go on."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"bad")
        await send_keyed(server.namesrv, b"good", key=lambda body: "k")
        seen = Ordered()
        consumer = ordered(server.namesrv, seen, order="key", key=key, dead_letter_on=(ZeroDivisionError, TypeError))
        with caplog.at_level(logging.ERROR, "rmq_async"):
            async with consumer:
                await until(lambda: server.dead_letters("g"))
                await consumer.wait_idle()
        assert seen.bodies == [b"good"]
        assert text in caplog.text


@pytest.mark.virtual_time
async def test_order_by_queue_runs_one_call_of_a_queue_at_a_time() -> None:
    fails = iter([True, True, False])

    async def work(message: MessageExt) -> None:
        await asyncio.sleep(0.002)
        if message.queue.queue_id == 0 and message.queue_offset == 3 and next(fails):
            raise ValueError("twice")

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=3)
        await send_keyed(server.namesrv, *[b"%d" % number for number in range(60)], key=lambda body: f"k{body.decode()}")
        seen = Ordered(work, by_queue=True)
        async with ordered(server.namesrv, seen, order="queue", retry=Retry(delays=(0.05,))) as consumer:
            await consumer.wait_idle()
        seen.check(60)
        assert seen.most_at_a_time == 3
        assert [attempt for body, attempt in seen.attempts if attempt > 1] == [2, 3]


@pytest.mark.virtual_time
async def test_health_names_a_key_and_a_queue_that_are_held() -> None:
    for order, what in (("key", "key 'k' of"), ("queue", "queue ")):
        async with EmbeddedRocketMQ() as server:
            await create(server.namesrv, queues=1)
            await send_keyed(server.namesrv, b"0", b"1", b"2", key=lambda body: "k")

            async def fail(message: MessageExt) -> None:
                raise RetryLater(100)

            async with ordered(server.namesrv, fail, order=order, stuck_after=0.05) as consumer:
                await until(lambda: consumer.health().problems)
                (problem,) = consumer.health().problems
                assert problem.code == "key_held"
                assert problem.text.startswith(what)
                assert "attempt 2 is due in" in problem.text
                assert "2 messages wait behind it" in problem.text
                assert problem.queue == Q0
                assert consumer.lag().oldest_age is not None
                began = monotonic()
            assert monotonic() - began < 0.01  # the stop does not wait for what is due later
            assert server.progress("g")[Q0] == 0


@pytest.mark.virtual_time
async def test_stop_leaves_ordered_messages_uncommitted_and_gives_none_back() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"a0", b"a1", b"b0", b"b1", b"b2", key=lambda body: body[:1].decode())

        async def hang(message: MessageExt) -> None:
            if message.body == b"a0":
                await asyncio.Event().wait()

        seen = Ordered(hang)
        async with ordered(server.namesrv, seen, order="key", handover_timeout=0.2) as consumer:
            await until(lambda: len(seen.done[0, "b"]) == 3)
            assert consumer.position(Q0) == 0
        assert server.progress("g")[Q0] == 0
        assert not server.retries("g")
        again = Ordered()
        async with ordered(server.namesrv, again, order="key") as consumer:
            await consumer.wait_idle()
        assert sorted(again.bodies) == [b"a0", b"a1", b"b0", b"b1", b"b2"]
        again.check(5)


@pytest.mark.virtual_time
async def test_drain_ends_what_waits_below_settled_messages() -> None:
    """The next owner starts where this one stopped, though a key was behind the others."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"a0", b"a1", b"a2", b"b0", b"b1", b"b2", key=lambda body: body[:1].decode())

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(0.2 if message.body[:1] == b"a" else 0.0)

        seen = Ordered(work)
        async with ordered(server.namesrv, seen, order="key") as consumer:
            await until(lambda: len(seen.done[0, "b"]) == 3)
            assert consumer.position(Q0) == 0
        seen.check(6)
        assert server.progress("g")[Q0] == 6


async def test_seek_of_an_ordered_queue_drops_what_is_held() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send_keyed(server.namesrv, b"0", b"1", b"2", key=lambda body: "k")
        fails = True

        async def work(message: MessageExt) -> None:
            if fails:
                raise RetryLater(100)

        seen = Ordered(work)
        async with ordered(server.namesrv, seen, order="key") as consumer:
            await until(lambda: seen.bodies == [b"0"])
            fails = False
            await consumer.seek(Q0, 1)
            await consumer.wait_idle()
            assert seen.bodies == [b"0", b"1", b"2"]
            await consumer.seek(Q0, "earliest")
            await consumer.wait_idle()
        assert seen.attempts[3:] == [(b"0", 1), (b"1", 1), (b"2", 1)]


@pytest.mark.virtual_time
async def test_pause_of_an_ordered_queue_keeps_what_failed_and_drops_the_rest() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        bodies = [b"a0", *[b"%s%d" % (key, number) for number in range(1, 6) for key in (b"a", b"b")]]
        await send_keyed(server.namesrv, *bodies, key=lambda body: body[:1].decode())

        async def work(message: MessageExt) -> None:
            if message.body == b"a0" and current_delivery().attempt == 1:
                raise RetryLater(0.3)

        seen = Ordered(work)
        async with ordered(server.namesrv, seen, order="key") as consumer:
            await until(lambda: len(seen.done[0, "b"]) == 5)
            consumer.pause(Q0)
            assert consumer.stats().buffered == 1
            await asyncio.sleep(0.5)
            assert [attempt for body, attempt in seen.attempts if body == b"a0"] == [1]
            consumer.resume(Q0)
            await consumer.wait_idle()
        assert [attempt for body, attempt in seen.attempts if body == b"a0"] == [1, 2]
        assert len(seen.attempts) == len(bodies) + 1
        seen.check(len(bodies))


@pytest.mark.virtual_time
async def test_held_key_that_fills_the_buffer_leaves_room_to_other_queues() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        async with Producer("senders", namesrv=server.namesrv) as producer:
            for number in range(200):
                await producer.send(Message("T", b"held%d" % number, sharding_key="held"), queue=Q0)
                await producer.send(Message("T", b"%d" % number, sharding_key=f"k{number}"), queue=Q0._replace(queue_id=1))
        free = asyncio.Event()

        async def work(message: MessageExt) -> None:
            if not free.is_set() and message.sharding_key == "held":
                raise RetryLater(0.1)

        seen = Ordered(work)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", buffered_limit=20, pull_size=8)
        consumer.subscribe("T", seen, order="key", retry=Retry(limit=1000))
        async with consumer:
            await until(lambda: len({key for key in seen.done if key[0] == 1}) == 200)  # type: ignore[index]
            assert consumer.stats().buffered <= 20 + 8
            free.set()
            await consumer.wait_idle(timeout=20)
        seen.check(400)


async def test_ordered_call_in_a_thread_keeps_its_lock_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # Real time: virtual time has no threads. The second member asks for the locks ten times a second.
    monkeypatch.setattr("rmq_async.consumer.queues.pull_session.FIRST_ASSIGNMENT", 0.2)
    monkeypatch.setattr("rmq_async.consumer.group.rebalance.SPACING", 0.1)
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        loop, go_on = asyncio.get_running_loop(), asyncio.Event()
        running: list[tuple[str, int]] = []

        def in_thread(name: str) -> Callable[[MessageExt], None]:
            def handler(message: MessageExt) -> None:
                running.append((name, message.queue.queue_id))
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

            return handler

        await send_keyed(server.namesrv, *[b"%d" % number for number in range(2)], key=lambda body: body.decode())
        await send_keyed(server.namesrv, *[b"%d" % number for number in range(2)], key=lambda body: body.decode())
        async with ordered(server.namesrv, in_thread("one"), order="queue", handover_timeout=0.1) as one:
            await until(lambda: len(running) == 2)
            share = one.assignment
            async with ordered(server.namesrv, in_thread("two"), "two", order="queue", handover_timeout=0.1):
                await until(lambda: one.assignment < share)
                asked = server.requests[RequestCode.LOCK_BATCH_MQ]
                await until(lambda: server.requests[RequestCode.LOCK_BATCH_MQ] > asked + 3)
                assert sorted(running) == [("one", 0), ("one", 1)]
                go_on.set()
                await until(lambda: "two" in {name for name, _ in running})


def test_order_holds_while_members_come_go_and_crash() -> None:
    """In simulation: ten changes of the members, a crash among them, and failing attempts."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        chance = random.Random(11)
        sent = 0

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(chance.uniform(0, 0.4))
            if chance.random() < 0.05:
                raise ValueError("fails now and then")

        seen = Ordered(work)

        async def produce() -> None:
            nonlocal sent
            async with Producer("p", namesrv=s.namesrv) as producer:
                while s.now < 110:
                    await producer.send(Message("T", b"%d" % sent, sharding_key=f"k{sent % 7}"))
                    sent += 1
                    await asyncio.sleep(0.05)

        crashes = s.machine("crashes")

        async def serve() -> None:
            async with ordered(s.namesrv, seen, "crashes", order="key"):
                await asyncio.Event().wait()

        async with ordered(s.namesrv, seen, "stays", order="key"):
            producing = asyncio.create_task(produce())
            crashes.run(serve)
            for number in range(4):
                async with ordered(s.namesrv, seen, f"comes {number}", order="key"):
                    await asyncio.sleep(7)
            crashes.crash()
            seen.running.clear()  # its calls ended with it
            await producing
            await until(lambda: len({body for body, _ in seen.attempts}) == sent, 200)
            await asyncio.sleep(5)
        done = {offset for offsets in seen.done.values() for offset in offsets}
        print(f"sent {sent}, begun {len(seen.attempts)}, overlaps {seen.overlaps}, {len(done)} offsets")
        assert len({body for body, _ in seen.attempts}) == sent
        assert seen.overlaps == 0
        after_failures = {key: _backwards(offsets) for key, offsets in seen.begun.items()}
        assert sum(after_failures.values()) <= len(seen.begun)  # once for each key: what the crashed member had not committed

    Simulation(3, faults=None).run(main)


def _backwards(offsets: list[int]) -> int:
    """How often an offset followed a higher one."""
    return sum(after < before for before, after in itertools.pairwise(offsets))
