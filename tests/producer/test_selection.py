"""``select_best`` and those that build on it, over lists of queues that change; faults by a producer's own table."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

import pytest

from rmq_async import FaultTable, Message, MessageQueue, errors, select_best, select_by_machine_room
from rmq_async.producer.routing.fault_table import LatencyTable
from rmq_async.producer.routing.queue_selection import Overdue, QueueSelection
from rmq_async.producer.routing.selectors import QUEUES_KEPT, TOPICS_KEPT, RoundRobin, picking

from .support import seeded, topic_queues_of

MESSAGE = Message("T", b"x")


def queues(count: int, brokers: str = "abc", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker in brokers for number in range(count)]


def chi_square(counts: Counter[MessageQueue], expected_on: Sequence[MessageQueue]) -> float:
    assert set(counts) == set(expected_on)
    each = counts.total() / len(expected_on)
    return sum((counts[queue] - each) ** 2 / each for queue in expected_on)


def avoiding(broker: str) -> Callable[[Sequence[MessageQueue]], MessageQueue]:
    """What ``select_best`` is while a producer asks that leaves the broker alone."""
    faults = LatencyTable(FaultTable.V5)
    faults.update(broker, 1.0, isolated=True, reachable=False, now=monotonic())
    return partial(QueueSelection(select_best, faults).pick, topic_queues_of(["a:4", "b:4", "c:4"]))


def test_queues_take_turns_in_their_order() -> None:
    some, turns = queues(4), RoundRobin()
    chosen = [turns.next(some) for _ in range(24)]
    start = some.index(chosen[0])
    assert chosen == [some[(start + step) % 12] for step in range(24)]


def test_turns_begin_anywhere() -> None:
    some = queues(4)
    assert {RoundRobin().next(some) for _ in range(500)} == set(some)


def test_turns_are_even_where_two_lists_are_offered_alternately() -> None:
    """A counter would give both the same queue each time."""
    even, odd, turns = queues(2, "a"), queues(2, "b"), RoundRobin()
    counts = Counter(turns.next(even if number % 2 else odd) for number in range(40))
    assert set(counts.values()) == {10}


def test_turns_are_even_over_lists_at_random() -> None:
    chance, some, turns = seeded(), queues(4), RoundRobin()
    counts = Counter(turns.next(chance.sample(some, 6)) for _ in range(6000))
    assert chi_square(counts, some) < 3  # eleven degrees of freedom: chance alone stays below that in 1 run of 100


def test_each_topic_has_its_own_turns_and_memory_is_bounded() -> None:
    turns = RoundRobin()
    for number in range(TOPICS_KEPT + 50):
        turns.next(queues(2, "a", f"topic{number}"))
    assert len(turns) == TOPICS_KEPT
    many = queues(2 * QUEUES_KEPT + 100, "a")
    chance = random.Random(7)
    for _ in range(QUEUES_KEPT + 300):
        turns.next(chance.sample(many, 4))
    assert len(turns._topics["T"].used) <= QUEUES_KEPT + 4  # noqa: SLF001


def test_select_best_outside_of_a_producer_takes_turns() -> None:
    some = queues(4)
    counts = Counter(select_best(some, MESSAGE) for _ in range(120))
    assert chi_square(counts, some) == 0
    with pytest.raises(errors.SelectorError, match="no queues"):
        select_best([], MESSAGE)


def test_select_best_passes_over_brokers_that_the_asking_producer_leaves_alone() -> None:
    some = queues(4)
    with picking(avoiding("b")):
        counts = Counter(select_best(some, MESSAGE) for _ in range(120))
        only = Counter(select_best(queues(4, "b"), MESSAGE) for _ in range(8))
    assert chi_square(counts, queues(4, "ac")) == 0
    assert chi_square(only, queues(4, "b")) == 0  # no other is offered
    assert {queue.broker_name for queue in [select_best(some, MESSAGE) for _ in range(12)]} == {"a", "b", "c"}


async def test_what_select_best_knows_follows_a_coroutine_and_stays_out_of_others() -> None:
    seen: list[str] = []

    async def choose() -> None:
        await asyncio.sleep(0)
        seen.append(select_best(queues(1, "ab"), MESSAGE).broker_name)

    async def outside() -> set[str]:
        await asyncio.sleep(0)
        return {select_best(queues(1, "ab"), MESSAGE).broker_name for _ in range(2)}

    other = asyncio.ensure_future(outside())
    with picking(avoiding("a")):
        await choose()
        await choose()
    assert seen == ["b", "b"]
    assert await other == {"a", "b"}


ROOMS = {"a": "north", "b": "south", "c": "north"}


def test_a_machine_room_is_kept_to_and_its_queues_take_turns() -> None:
    select = select_by_machine_room(ROOMS)
    counts = Counter(select(queues(4), MESSAGE, "north") for _ in range(80))
    assert chi_square(counts, queues(4, "ac")) == 0
    assert select(queues(1), MESSAGE, "south") == MessageQueue("T", "b", 0)
    with picking(avoiding("a")):
        counts = Counter(select(queues(4), MESSAGE, "north") for _ in range(80))
    assert chi_square(counts, queues(4, "c")) == 0


def test_the_rooms_are_those_of_the_moment_the_selector_was_made() -> None:
    rooms = dict(ROOMS)
    select = select_by_machine_room(rooms)
    rooms.clear()
    assert select(queues(1), MESSAGE, "south") == MessageQueue("T", "b", 0)


@pytest.mark.parametrize("key", ["west", None, 3, "", ("north",)])
def test_a_room_without_queues_is_an_error_that_names_the_rooms(key: Any) -> None:
    with pytest.raises(errors.SelectorError, match=r"machine room .*: a in north, b in south, c in north"):
        select_by_machine_room(ROOMS)(queues(2), MESSAGE, key)
    with pytest.raises(errors.SelectorError, match="d in no room"):
        select_by_machine_room(ROOMS)(queues(2, "d"), MESSAGE, None)


@pytest.mark.parametrize("rooms", [None, "north", [("a", "north")], {1: "north"}])
def test_what_is_no_mapping_of_rooms_is_refused(rooms: Any) -> None:
    with pytest.raises(errors.ConfigError, match="mapping of broker names to rooms"):
        select_by_machine_room(rooms)


class Table:
    """Stands for a connection, of which ``Overdue`` asks one thing only."""

    def __init__(self) -> None:
        self.oldest = self.newest = 0
        self.requests = self

    def oldest_of(self, owner: object, since: int = 0) -> tuple[int, int]:
        return self.oldest, self.newest


class Pool:
    def __init__(self) -> None:
        self.open: dict[str, Table] = {"a:1": Table()}
        self.under_way: set[str] = set()

    def get(self, address: str) -> Table | None:
        return self.open.get(address)

    def connecting(self, address: str) -> bool:
        return address in self.under_way


def watched(pool: Any) -> Overdue:
    return Overdue(pool, object(), 0.5)


def test_an_attempt_is_late_when_an_opaque_of_that_long_ago_is_unanswered() -> None:
    pool = Pool()
    table, overdue = pool.open["a:1"], watched(pool)
    lates = []
    for step in range(100):  # 20 ms each; one send a step, and from step 50 on none is answered
        table.newest = step + 1
        table.oldest = 0 if step < 50 else 51
        lates.append(overdue.late("a:1", step / 50))
    assert lates.index(True) in (75, 76, 77, 78)
    assert all(lates[78:])
    table.oldest = 95
    assert not overdue.late("a:1", 2.0)
    assert overdue.late("a:1", 2.5)


def test_samples_are_bounded_and_belong_to_one_connection() -> None:
    pool = Pool()
    overdue = watched(pool)
    for step in range(10_000):
        pool.open["a:1"].newest = step
        overdue.late("a:1", step / 10_000)
    assert len(overdue._known["a:1"].samples) < 24  # noqa: SLF001
    pool.open["a:1"] = Table()
    pool.open["a:1"].oldest = 5
    assert not overdue.late("a:1", 1.0)  # low opaques, but of a new connection
    pool.open.clear()
    assert not overdue.late("a:1", 1.1)
    assert not overdue._known  # noqa: SLF001


def test_a_connect_under_way_counts_as_an_attempt() -> None:
    pool = Pool()
    overdue = watched(pool)
    assert not overdue.waits("a:1")
    pool.open["a:1"].oldest = 7
    assert overdue.waits("a:1")
    pool.open.clear()
    assert not overdue.waits("a:1")
    pool.under_way.add("a:1")
    assert overdue.waits("a:1")
