"""Strategies that share queues, beside those of Java's client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_async import (
    MessageQueue,
    allocate_by_circle,
    allocate_by_hash,
    allocate_by_room,
    allocate_evenly,
    allocate_near_rooms,
    errors,
)
from rmq_async.consumer import Allocate
from rmq_async.consumer.group.rebalance import share_of


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name[:2]


def room_of_client(client_id: str) -> str:
    return {"hz-1": "hz", "hz-2": "hz", "sh-1": "sh"}.get(client_id, client_id[:2])


STRATEGIES: dict[str, Allocate] = {
    "AVG": allocate_evenly,
    "AVG_BY_CIRCLE": allocate_by_circle,
    "CONSISTENT_HASH": allocate_by_hash,
    "MACHINE_ROOM": allocate_by_room({"hz", "sh"}),
    "NEARBY-AVG": allocate_near_rooms(room_of_queue, room_of_client),
    "NEARBY-HASH": allocate_near_rooms(room_of_queue, room_of_client, allocate_by_hash),
}
CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "allocations.json").read_text())


def queues_of(brokers: list[str], size: int) -> list[MessageQueue]:
    return sorted(MessageQueue("T", broker, number) for broker in brokers for number in range(size))


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_as_java(name: str) -> None:
    cases = [case for case in CASES if case["strategy"] == name]
    assert len(cases) == 60
    for case in cases:
        queues = queues_of(case["brokers"], case["size"])
        for member, places in case["shares"].items():
            assert [queues.index(queue) for queue in STRATEGIES[name](member, queues, case["members"])] == places, (
                case,
                member,
            )


@pytest.mark.parametrize("name", STRATEGIES)
@given(size=st.integers(0, 12), members=st.lists(st.sampled_from(["hz-1", "hz-2", "sh-1", "xy", "é"]), min_size=1, max_size=7))
def test_shares_of_all_members_are_all_queues(name: str, size: int, members: list[str]) -> None:
    """Each queue has one owner, also where a member is listed more than once."""
    queues = queues_of(["hz@a", "sh@b"], size)
    shares = [share_of(member, queues, sorted(members), STRATEGIES[name]) for member in sorted(set(members))]
    assert sorted(queue for share in shares for queue in share) == queues


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_of_a_stranger(name: str) -> None:
    assert tuple(STRATEGIES[name]("hz-3", queues_of(["hz@a"], 4), ["hz-1", "sh-1"])) == ()


def test_near_rooms_of_a_member_without_a_room() -> None:
    allocate = allocate_near_rooms(room_of_queue, lambda client_id: "")
    with pytest.raises(ValueError, match="the room of 'c1' is ''; room_of_queue and room_of_client must return a name"):
        allocate("c1", queues_of(["hz@a"], 1), ["c1"])


@pytest.mark.parametrize("rooms", ["hz", [], [1], 3])
def test_rooms_that_are_no_names(rooms: Any) -> None:
    with pytest.raises(errors.ConfigError, match="rooms must be a list, tuple or set of one or more names"):
        allocate_by_room(rooms)


def test_near_rooms_without_a_function() -> None:
    room: Any = "hz"
    with pytest.raises(errors.ConfigError, match="room_of_client must be a plain function"):
        allocate_near_rooms(room_of_queue, room)
