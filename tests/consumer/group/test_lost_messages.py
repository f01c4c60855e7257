"""Queues that lose messages and give their offsets out again, because a broker's store was replaced by an older one."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import ConfigError, Consumer, ConsumerConfig, MessageExt, MessageQueue, machine
from rmq_async.consumer.held_queue import HeldQueue, Progress
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.reading import illegal_offset
from rmq_async.reading.illegal_offset import Asked, Cause, find_move
from rmq_async.reading.looks import Looks, Place
from rmq_async.reading.looks import Seen as Look
from rmq_async.reading.read_marks import ReadMarks
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode

from .support import Seen, committed_at, create, member, reader, send, taken, until
from .test_broadcast import Store

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue("T", "broker-a", 0)
NO_INSTANCE: Any = None


def bodies(kind: str, count: int) -> list[bytes]:
    return [f"{kind} {number}".encode() for number in range(count)]


def handled(seen: Seen, kind: str) -> set[bytes]:
    return {body for body in seen.bodies if body.startswith(kind.encode())}


def lose(s: Simulation, count: int) -> None:
    """A replica that lacks the newest messages becomes the master."""
    s.brokers[0].truncate(count)
    s.brokers[0].broker.listener.drop_connections()


async def read_and_lose(s: Simulation) -> None:
    """A group has read 30 messages and has no member; then 10 of them are gone."""
    await create(s.namesrv, queues=1)
    await send(s.namesrv, *bodies("old", 30))
    async with member("g", s.namesrv, "one", seen := Seen(), start_from="earliest"):
        await until(lambda: len(seen.bodies) == 30)
    lose(s, 10)


def codes(consumer: Consumer) -> list[str]:
    return [problem.code for problem in consumer.health().problems]


@pytest.mark.parametrize("mode", ["reading", "reading slowly", "paused", "idle", "tags", "broadcast", "order", "batches"])
@pytest.mark.parametrize("new", [3, 15, 40])
def test_live_member_handles_all_messages_that_are_stored_after_a_loss(mode: str, new: int) -> None:
    """10 of 30 messages are gone; then fewer or more are stored than these, before the member looks or while it does."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        seen = Seen()
        options: dict[str, Any] = {"broadcast": True} if mode == "broadcast" else {}
        consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest", **options)
        if mode == "batches":

            @consumer.handler("T", batch_size=8, batch_wait=0.5)
            async def together(batch: Any) -> None:
                for message in batch:
                    await seen(message)
        else:
            rules: dict[str, Any] = {"tags": {"tags": "wanted"}, "order": {"order": "queue"}}.get(mode, {})
            consumer.subscribe("T", seen, **rules)
        tags = "wanted" if mode == "tags" else None
        await send(s.namesrv, *bodies("old", 12), tags=tags)
        if mode == "idle":  # the next member has not read one message
            await send(s.namesrv, *bodies("older", 18))
            async with member("g", s.namesrv, "first", first := Seen(), start_from="earliest"):
                await until(lambda: len(first.bodies) == 30)
        async with consumer:
            if mode != "idle":
                await until(lambda: len(seen.bodies) == 12)
                await send(s.namesrv, *bodies("older", 18), tags="unwanted" if mode == "tags" else None)
            await consumer.wait_idle()
            if mode == "paused":
                consumer.pause()
                await asyncio.sleep(1)
            lose(s, 10)
            for body in bodies("new", new):
                await send(s.namesrv, body, tags=tags)
                await asyncio.sleep(1.0 if mode == "reading slowly" else 0.0)
            consumer.resume()
            await until(lambda: len(handled(seen, "new")) == new, 60.0)
            await consumer.wait_idle()
            await consumer.commit()
            if mode != "broadcast":
                assert committed_at(s.brokers[0], "g", Q0) == 20 + new
            if mode != "tags":
                assert 9 <= consumer.stats().lost <= 10
                assert "messages_skipped" in codes(consumer)
                if new == 3:
                    await asyncio.sleep(601)
                    assert codes(consumer) == []

    Simulation(1, brokers=1, faults=None).run(main)


def test_member_that_starts_above_the_end_begins_at_the_lowest_end(caplog: pytest.LogCaptureFixture) -> None:
    """New messages come while it looks, until the queue has the group's offset again."""

    async def main(s: Simulation) -> None:
        await read_and_lose(s)
        async with member("g", s.namesrv, "two", seen := Seen()) as consumer:
            await send(s.namesrv, *bodies("early", 4))
            await asyncio.sleep(6)
            await send(s.namesrv, *bodies("later", 40))
            await until(lambda: len(seen.bodies) == 44, 30.0)
            assert consumer.stats().lost == 10
            assert codes(consumer) == ["messages_skipped"]

    with caplog.at_level(logging.ERROR, logger="rmq_async"):
        Simulation(1, brokers=1, faults=None).run(main)
    (line,) = [record.getMessage() for record in caplog.records if "continues at" in record.message]
    assert "continues at offset 20 instead of 30: it ends at 20, below the group's offset (about 10 messages)" in line
    assert "seek() to a datetime" in line


def test_last_commit_of_an_unread_queue_is_never_above_its_end() -> None:
    """The member stops while it looks at the queue, and a new master has no offset of the group."""

    async def main(s: Simulation) -> None:
        (broker,) = s.brokers
        await read_and_lose(s)
        async with member("g", s.namesrv, "two", Seen()) as consumer:
            await until(lambda: Q0 in consumer.assignment)
            await asyncio.sleep(1)
            broker.broker.lose_master()
            broker.broker.elect_master()
            await asyncio.sleep(1)
        assert committed_at(broker, "g", Q0) == 20

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("request_code", [RequestCode.LOCK_BATCH_MQ, RequestCode.PULL_MESSAGE])
@pytest.mark.parametrize("new", [3, 30])
def test_member_that_has_started_late_handles_what_is_sent_then(request_code: RequestCode, new: int) -> None:
    """Its first look at a queue that ends below the group's offset comes after more than 3 s, because answers are lost."""

    async def main(s: Simulation) -> None:
        (broker,) = s.brokers
        await read_and_lose(s)
        broker.broker.failures.lose(3, request_code)
        async with member("g", s.namesrv, "two", seen := Seen()) as consumer:
            await send(s.namesrv, *bodies("new", new))
            await until(lambda: len(handled(seen, "new")) == new, 30.0)
            assert consumer.stats().lost == 10

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("above_end", ["earliest", "stop"])
def test_above_end_earliest_and_stop(above_end: str, live: bool) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await send(s.namesrv, *bodies("old", 8))
        consumer = member("g", s.namesrv, "one", seen := Seen(), start_from="earliest", above_end=above_end)
        await consumer.start()
        await until(lambda: len(seen.bodies) == 8)
        if not live:
            await consumer.stop()
        lose(s, 3)
        if not live:
            consumer = member("g", s.namesrv, "one", seen := Seen(), above_end=above_end)
            await consumer.start()
        await send(s.namesrv, *bodies("new", 2))
        if above_end == "earliest":
            await until(lambda: len(handled(seen, "new")) == 2, 30.0)
            assert len(handled(seen, "old")) >= 5
            assert seen.bodies[b"old 0"] == 1 + live
            assert consumer.stats().lost == 3
        else:
            await until(lambda: codes(consumer) == ["queue_stopped"], 30.0)
            await consumer.seek(Q0, 5)
            await until(lambda: len(handled(seen, "new")) == 2)
            assert codes(consumer) == []
        await consumer.stop()

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("above_end", ["latest", None, True])
def test_above_end_is_checked(above_end: Any) -> None:
    with pytest.raises(ConfigError, match='above_end must be "end", "earliest" or "stop", not '):
        ConsumerConfig(above_end=above_end)
    with pytest.raises(ConfigError, match="above_end='stop' requires mode='pull'"):
        ConsumerConfig(above_end="stop", mode="pop")


async def test_broadcast_member_that_starts_above_the_end() -> None:
    store = Store({Q0: 5})
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, *bodies("old", 3))
        seen = Seen()
        async with member("g", server.namesrv, "one", seen, broadcast=store, handover_timeout=0.2) as consumer:
            await send(server.namesrv, *bodies("new", 4))
            await until(lambda: len(seen.bodies) == 4)
            assert consumer.stats().lost == 2
        assert store.positions == {Q0: 7}


@pytest.mark.parametrize("how", ["at once", "paused", "broadcast", "round"])
@pytest.mark.parametrize("new", [5, 40])
def test_member_that_stops_right_after_a_loss_hands_on_what_is_there(how: str, new: int) -> None:
    """It has not pulled since, because it is paused or stops at once. The next member handles all that is stored since."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await send(s.namesrv, *bodies("old", 20))
        store = Store({})
        options: dict[str, Any] = {"start_from": "earliest", **({"broadcast": store} if how == "broadcast" else {})}
        consumer = member("g", s.namesrv, "one", seen := Seen(), **options)
        async with consumer:
            for number in range(10):
                await send(s.namesrv, b"older %d" % number)
            await until(lambda: len(seen.bodies) == 30)
            await consumer.commit()
            if how != "at once":
                consumer.pause()
                await asyncio.sleep(3)
            lose(s, 10)
            if how != "at once":
                await send(s.namesrv, *bodies("new", new))
            if how == "round":
                await asyncio.sleep(45)
                assert committed_at(s.brokers[0], "g", Q0) <= 20
        if how == "at once":
            await send(s.namesrv, *bodies("new", new))
        if how != "broadcast":
            assert committed_at(s.brokers[0], "g", Q0) <= 20
        async with member("g", s.namesrv, "two", later := Seen(), **options):
            await until(lambda: len(handled(seen, "new") | handled(later, "new")) == new, 60.0)

    Simulation(1, brokers=1, faults=None).run(main)


def test_message_in_a_call_is_not_handed_out_again() -> None:
    """The member goes back behind its last message that is surely there, and below one that it still handles."""

    async def main(s: Simulation) -> None:
        gate = asyncio.Event()

        async def work(message: MessageExt) -> None:
            if message.body in (b"old 4", b"old 9"):
                await gate.wait()

        await create(s.namesrv, queues=1)
        await send(s.namesrv, *bodies("old", 10))
        async with member("g", s.namesrv, "one", seen := Seen(work), start_from="earliest") as consumer:
            await until(lambda: len(seen.bodies) == 8)
            lose(s, 4)
            await send(s.namesrv, *bodies("new", 9))
            await until(lambda: len(handled(seen, "new")) == 9, 30.0)
            await asyncio.sleep(2)
            assert committed_at(s.brokers[0], "g", Q0) == 4, "a message in a call is open"
            assert sum(body == b"old 4" for body, _ in seen.attempts) == 1
            gate.set()
            await consumer.wait_idle()
            await consumer.commit()
            assert committed_at(s.brokers[0], "g", Q0) == 15

    Simulation(1, brokers=1, faults=None).run(main)


def test_member_that_reads_by_hand_loses_nothing() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await send(s.namesrv, *bodies("old", 10))
        async with reader(s.namesrv, start_from="earliest") as consumer:
            assert await taken(consumer, 10) == bodies("old", 10)
            lose(s, 4)
            await send(s.namesrv, *bodies("new", 9))
            found: list[bytes] = []
            async with asyncio.timeout(30):
                while not {*bodies("new", 9)} <= {*found}:
                    found += await taken(consumer, 1)

    Simulation(1, brokers=1, faults=None).run(main)


def test_end_below_one_seen_before_is_noticed_on_the_same_connection() -> None:
    """A proxy keeps its connection while the broker behind it has another store; a pull that fails is enough, too."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await send(s.namesrv, *bodies("old", 100))
        async with member("g", s.namesrv, "one", seen := Seen(), start_from="earliest", concurrency=1) as consumer:
            await until(lambda: len(seen.bodies) == 100)
            s.brokers[0].truncate(10)
            await asyncio.sleep(30)
            await send(s.namesrv, *bodies("new", 30))
            await until(lambda: len(handled(seen, "new")) == 30, 60.0)
            assert consumer.stats().lost == 10

    Simulation(1, brokers=1, faults=None).run(main)


def test_new_connection_to_a_broker_that_kept_all_repeats_nothing() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with member("g", s.namesrv, "one", seen := Seen(), start_from="earliest") as consumer:
            for number in range(40):
                await send(s.namesrv, b"%d" % number)
                if number % 7 == 0:
                    s.brokers[0].broker.listener.drop_connections()
            await until(lambda: len(seen.bodies) == 40)
            await asyncio.sleep(30)
            assert (seen.twice, consumer.stats().lost, codes(consumer)) == (0, 0, [])

    Simulation(1, brokers=1, faults=None).run(main)


def test_filtered_messages_are_not_repeated_after_a_new_connection() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest")
        consumer.subscribe("T", seen := Seen(), tags="wanted")
        async with consumer:
            for number in range(10):
                await send(s.namesrv, b"wanted %d" % number, tags="wanted")
                await send(s.namesrv, *bodies(f"other {number}", 5), tags="other")
                s.brokers[0].broker.listener.drop_connections()
            await until(lambda: len(seen.bodies) == 10)
            await asyncio.sleep(10)
            await consumer.wait_idle()
            assert seen.twice == 0

    Simulation(1, brokers=1, faults=None).run(main)


# -- the parts


class Scripted(Looks):
    """Answers in turn what the newest mark's offset has."""

    def __init__(self, answers: list[Look], found: int = 0) -> None:
        super().__init__(NO_INSTANCE, "g")
        self.answers = answers
        self.found = found

    async def at(self, queue: MessageQueue, mark: Place, reaches: int | None = None) -> Look:
        return self.answers.pop(0)

    async def goes_on_at(self, *_: object) -> int:
        return self.found

    async def first_new(self, *_: object) -> int:
        return self.found


def queue_ends_at(monkeypatch: pytest.MonkeyPatch, *ends: int, first: int = 0) -> None:
    looks = [*ends]

    async def low(*_: object, any_replica: bool) -> int:
        assert not any_replica
        return first

    async def high(*_: object, any_replica: bool) -> int:
        assert not any_replica
        return looks.pop(0)

    async def anew(*_: object) -> bool:
        return False

    monkeypatch.setattr(illegal_offset, "min_offset", low)
    monkeypatch.setattr(illegal_offset, "max_offset", high)
    monkeypatch.setattr(ReadMarks, "made_anew", anew)


def marked(*offsets: int) -> ReadMarks:
    marks = ReadMarks()
    for offset in offsets:
        marks.add(Q0, Place(offset, 1000 + offset, None, offset))
    return marks


async def test_broker_that_rebuilds_its_queues_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows a short end at first, and then what was read."""
    queue_ends_at(monkeypatch, 40, 80, 100)
    move = await find_move(Scripted([Look.GONE, Look.GONE, Look.SAME]), marked(50, 99), Asked(Q0, 100, 100, 40), 0.0)
    assert move.cause is Cause.OVER


async def test_another_message_at_the_last_offset_needs_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    queue_ends_at(monkeypatch, 130)
    move = await find_move(Scripted([Look.OTHER], 51), marked(50, 99), Asked(Q0, 100, 100, None), 100.0)
    assert (move.cause, move.offset) == (Cause.LOST_READ, 51)


@pytest.mark.parametrize(("old", "cause", "offset"), [(True, Cause.OVER, 100), (False, Cause.BEYOND_END, 90)])
async def test_queue_that_has_the_offset_of_a_new_member_again(
    monkeypatch: pytest.MonkeyPatch, old: bool, cause: Cause, offset: int
) -> None:
    """The message at its former end shows whether the queue was filled again, or had it all the time."""

    async def stored(*_: object, any_replica: bool) -> int:
        return 1000 if old else 2**43

    queue_ends_at(monkeypatch, 95, 120, 121)
    monkeypatch.setattr(illegal_offset, "store_time_ms", stored)
    looks: Any = Scripted([])
    looks.instance = SimpleNamespace(config=SimpleNamespace(request_timeout=1.0))
    move = await find_move(looks, ReadMarks(), Asked(Q0, 100, 100, 90), 0.0)
    assert (move.cause, move.offset) == (cause, offset)


@pytest.mark.parametrize(("marks", "seconds"), [((), 5.0), ((50, 99), 1.0)])
async def test_member_that_has_read_nothing_of_a_queue_waits_before_it_moves_it(
    monkeypatch: pytest.MonkeyPatch, marks: tuple[int, ...], seconds: float
) -> None:
    """The queue may be with it for a moment only, while a broker lists the members of the group one by one."""
    queue_ends_at(monkeypatch, 95, 95, 95)
    began = machine.monotonic()
    move = await find_move(Scripted([Look.GONE, Look.GONE, Look.GONE], 95), marked(*marks), Asked(Q0, 100, 100, None), 1.0)
    assert (move.offset, machine.monotonic() - began) == (95, pytest.approx(seconds))


async def test_place_behind_the_highest_mark_that_is_there() -> None:
    places = [Place(offset, 1000, None, offset) for offset in range(0, 160, 10)]

    class Truncated(Looks):
        async def at(self, queue: MessageQueue, mark: Place, reaches: int | None = None) -> Look:
            return Look.SAME if mark.offset < 93 else Look.OTHER

    assert await Truncated(NO_INSTANCE, "g").goes_on_at(Q0, places, None) == 91


def test_marks_lie_closer_together_near_the_newest() -> None:
    marks = ReadMarks()
    for offset in range(100_000):
        marks.read(Q0, [MessageExt("T", b"", queue=Q0, queue_offset=offset)])
    offsets = [mark.offset for mark in marks.of(Q0)]
    assert (offsets[0], offsets[-1], len(offsets) <= 48) == (0, 99_999, True)
    for lost in (1, 10, 100, 1000, 10_000):
        end = 100_000 - lost
        assert max(offset for offset in offsets if offset < end) >= end - 2 * lost - 2
    marks.cut(Q0, 5)
    assert [mark.offset for mark in marks.of(Q0)] == [0]
    marks.cut(Q0, 0)
    assert Q0 not in marks


def test_queue_that_has_gone_back_knows_where_to() -> None:
    held = HeldQueue(Q0, Q0, None, 10)
    assert (held.highest, held.unread) == (None, None)
    held.progress.enter_all([*range(10, 20)])
    held.progress.settle_all([*range(10, 18)])
    held.confirm(15, None)
    assert (held.highest, held.unread) == (15, None)
    held.go_back(12)
    assert (held.highest, held.unread) == (20, 12)
    held.progress.enter_all([*range(12, 20)])
    held.progress.settle_all([12, 13])
    assert held.unread == 14
    held.progress.settle_all([*range(14, 20)])
    assert (held.highest, held.unread) == (20, None)


def test_progress_goes_back_to_what_is_left() -> None:
    progress = Progress(10)
    progress.enter_all([*range(10, 20)])
    progress.settle_all([10, 11, 15, 18])
    progress.go_back(15)
    assert (progress.watermark, progress.next, progress.open) == (12, 15, 3)
    assert progress.enter_all([14, 15, 16]) == [False, True, True]
    progress.go_back(3)
    assert (progress.watermark, progress.next, progress.open) == (3, 3, 0)


def test_queue_goes_back_below_what_is_withdrawn() -> None:
    held = HeldQueue(Q0, Q0, None, 0)
    held.progress.enter_all([*range(10)])
    held.cursor = held.progress.withdraw([3, 4, 5])
    held.go_back(7)
    assert (held.cursor, held.repeated_to) == (3, 10)
    assert held.progress.enter_all([3, 4, 5, 6, 7]) == [True, True, True, False, True]
