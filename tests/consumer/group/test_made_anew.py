"""Topics that are deleted and made anew while members read them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import Admin, MessageExt, MessageQueue, machine
from rmq_async.reading import read_marks
from rmq_async.reading.looks import place_of
from rmq_async.reading.read_marks import REACH, ReadMarks
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode, ResponseCode

from .support import Seen, committed_at, create, member, send, until

pytestmark = pytest.mark.virtual_time

QUEUE = MessageQueue("T", "a", 0)
NO_INSTANCE: Any = None


async def make_anew(namesrv: str, *, pause: float = 0.0, queues: int = 1) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.delete_topic("T")
        await asyncio.sleep(pause)
        await admin.create_topic("T", queues=queues)


@pytest.mark.parametrize("pause", [0.0, 5.0, 100.0])
@pytest.mark.parametrize(("before", "after"), [(5, 3), (3, 9), (4, 4)])
def test_topic_made_anew_is_read_from_its_first_message(before: int, after: int, pause: float) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with member("g", s.namesrv, "one", seen := Seen(), start_from="earliest") as consumer:
            await send(s.namesrv, *(b"old %d" % number for number in range(before)))
            await until(lambda: len(seen.bodies) == before)
            await make_anew(s.namesrv, pause=pause)
            await send(s.namesrv, *(b"new %d" % number for number in range(after)))
            await until(lambda: len(seen.bodies) == before + after, 120.0)
            assert seen.twice == 0
            await consumer.commit()
            (broker,) = s.brokers
            assert committed_at(broker, "g", MessageQueue("T", "broker-a", 0)) == after

    Simulation(1, brokers=1, faults=None).run(main)


def test_topic_made_anew_on_one_of_two_brokers_is_read_from_its_first_message() -> None:
    """Its queues leave the route, and are given up meanwhile."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with member("g", s.namesrv, "one", seen := Seen(), start_from="earliest", route_poll_interval=5.0):
            await send(s.namesrv, *(b"old %d" % number for number in range(12)))
            await until(lambda: len(seen.bodies) == 12)
            first = s.brokers[0].broker.state.topics
            config = first.get("T").config  # type: ignore[union-attr]
            s.brokers[0].broker.state.log.drop(first.delete("T").queues())  # type: ignore[union-attr]
            await asyncio.sleep(30)
            first.put(config, "")
            await send(s.namesrv, *(b"new %d" % number for number in range(40)))
            await until(lambda: len(seen.bodies) == 52, 120.0)
            assert seen.twice == 0

    Simulation(2, brokers=2, faults=None).run(main)


def test_broker_that_does_not_know_a_topic_for_a_moment_repeats_nothing() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with member("g", s.namesrv, "one", seen := Seen(), start_from="earliest"):
            await send(s.namesrv, *(b"%d" % number for number in range(5)))
            await until(lambda: len(seen.bodies) == 5)
            s.brokers[0].broker.failures.add(ResponseCode.TOPIC_NOT_EXIST, 3, RequestCode.PULL_MESSAGE)
            await asyncio.sleep(60)
            await send(s.namesrv, b"5", b"6")
            await until(lambda: len(seen.bodies) == 7)
            await asyncio.sleep(60)
            assert seen.twice == 0

    Simulation(3, brokers=1, faults=None).run(main)


def test_queue_that_lost_its_newest_messages_is_read_from_its_end() -> None:
    """Its first message is an old one: it was not made anew."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with member("g", s.namesrv, "one", seen := Seen(), start_from="earliest", handover_timeout=2.0):
            await send(s.namesrv, *(b"%d" % number for number in range(5)))
            await until(lambda: len(seen.bodies) == 5)
            s.brokers[0].truncate(3)
            await asyncio.sleep(60)
            await send(s.namesrv, b"new")
            await until(lambda: seen.bodies[b"new"])
            assert seen.twice == 0

    Simulation(4, brokers=1, faults=None).run(main)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The first message of every queue: when it was stored, and its offset."""
    answers = SimpleNamespace(stored=0, offset=0)

    async def stored(*_: object) -> int:
        return answers.stored

    async def offset(*_: object, any_replica: bool) -> int:
        assert not any_replica
        return answers.offset

    monkeypatch.setattr(read_marks, "earliest_store_time_ms", stored)
    monkeypatch.setattr(read_marks, "min_offset", offset)
    return answers


def read(offset: int, stored: int) -> MessageExt:
    return MessageExt("T", b"", queue=QUEUE, queue_offset=offset, store_time_ms=stored)


@pytest.mark.parametrize(
    ("stored", "offset", "anew"),
    [
        (101, 0, True),
        (101, 7, True),
        (100, 7, False),  # the message that was read last
        (99, 0, False),
        (101, 8, False),  # those up to the mark are deleted
        (-1, 0, False),  # no message
    ],
)
async def test_made_anew_needs_a_first_message_that_is_younger(
    broker: SimpleNamespace, stored: int, offset: int, anew: bool
) -> None:
    marks = ReadMarks()
    marks.read(QUEUE, [read(6, 90), read(7, 100)])
    marks.read(QUEUE, [read(2, 50)])  # an operator has put the group back
    broker.stored, broker.offset = stored, offset
    assert await marks.made_anew(NO_INSTANCE, QUEUE) is anew


async def test_made_anew_is_not_known_of_a_queue_that_was_not_read(broker: SimpleNamespace) -> None:
    broker.stored = 10**12
    marks = ReadMarks()
    marks.doubt([QUEUE])
    assert not marks.doubted
    assert not await marks.made_anew(NO_INSTANCE, QUEUE)


def test_marks_are_bounded_with_their_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_marks, "MOST_KEPT", 3)
    marks, queues = ReadMarks(), [QUEUE._replace(queue_id=number) for number in range(5)]
    for queue in queues:
        marks.read(queue, [read(0, 1)])
        marks.doubt([queue])
    assert marks.doubted == set(queues[2:])


@pytest.mark.parametrize(("away", "start"), [(1.0, 5), (59.0, 5), (61.0, 12)])
def test_queue_that_was_away_for_a_moment_goes_on_where_it_has_gone_back(
    monkeypatch: pytest.MonkeyPatch, away: float, start: int
) -> None:
    """The member in between has begun at an offset from before the loss, and committed 12."""
    monkeypatch.setattr(machine, "monotonic", lambda: 1000.0)
    marks = ReadMarks()
    marks.read(QUEUE, [read(3, 100), read(4, 100)])
    marks.given_up(QUEUE, 8, 5)
    monkeypatch.setattr(machine, "monotonic", lambda: 1000.0 + away)
    assert marks.taken_over(QUEUE, 12, 12) == start
    assert (QUEUE in marks) is (start == 5)
    assert marks.taken_over(QUEUE, 12, 12) == 12


def test_marks_of_looks_are_bounded() -> None:
    """A filter that leaves all messages out: only looks add marks."""
    marks = ReadMarks()
    for number in range(1000):
        marks.add(QUEUE, place_of(read(number * REACH, number)))
        assert len(marks.of(QUEUE)) <= read_marks.MOST_OF_QUEUE
    assert (marks.of(QUEUE)[0].offset, marks.newest(QUEUE)) == (0, 999 * REACH)


async def test_mark_says_nothing_after_other_members_have_read_on(broker: SimpleNamespace) -> None:
    """They have begun anew already: simulated seed 100009 of groups. A lower offset may be one of before a crash of the broker."""
    broker.stored, broker.offset = 101, 0
    for committed, anew in ((8, True), (125, False), (3, True), (None, True)):
        marks = ReadMarks()
        marks.read(QUEUE, [read(7, 100)])
        marks.doubt([QUEUE])
        marks.given_up(QUEUE, 8, None)
        assert marks.taken_over(QUEUE, committed or 0, committed) == (committed or 0)
        assert (QUEUE in marks.doubted) is anew
        assert await marks.made_anew(NO_INSTANCE, QUEUE) is anew
