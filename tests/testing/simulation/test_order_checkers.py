"""What the checkers of order find, and what they leave alone."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from rmq_async import MessageQueue

from ...simulation.group_checkers import repeated
from ...simulation.group_log import Delivery, GroupLog, Life
from ...simulation.order_checkers import NO_ORDER, disordered, overlapping
from ...simulation.troubles import Troubles

QUEUE = MessageQueue("T", "broker-a", 0)
QUIET = Troubles((), {}, {})
FAULT = Troubles([(0.0, 100.0)], {}, {})


def log(*deliveries: Delivery, order: Literal["key", "queue"] | None = "key") -> GroupLog:
    members = [Life(f"member-{number}", 0.0) for number in range(2)]
    found = GroupLog(lambda: 0.0, lambda: (), ("T",), lives=members, deliveries=list(deliveries), order=order, attempts=2)
    for number, each in enumerate(deliveries):
        each.call = number if each.call < 0 else each.call
    return found


def call(
    offset: int, began: float, took: float | None = 1.0, *, key: str = "a", life: int = 0, how: Any = "done", number: int = -1
) -> Delivery:
    ended = None if took is None else began + took
    return Delivery(QUEUE, offset, f"id-{offset}", life, began, ended, how if ended is not None else "", key, number)


def test_overlapping_calls_of_a_key_are_found() -> None:
    assert overlapping(log(call(0, 1.0), call(1, 1.5)), QUIET) == [
        f"overlapping: offset 1 of {QUEUE} with key a began at 1.500000 s, while offset 0 ran on the same member"
    ]
    assert overlapping(log(call(0, 1.0, None), call(1, 50.0)), QUIET)
    assert overlapping(log(call(0, 1.0, 9.0), call(1, 2.0, 1.0), call(2, 5.0)), QUIET)[1:]
    assert overlapping(log(call(0, 1.0), call(1, 1.0)), FAULT)  # in one member never


def test_overlapping_leaves_alone_other_keys_and_calls_that_follow() -> None:
    assert not overlapping(log(call(0, 1.0), call(1, 2.0)), QUIET)
    assert not overlapping(log(call(0, 1.0), call(1, 1.5, key="b")), QUIET)
    assert not overlapping(log(call(0, 1.0, key=NO_ORDER), call(1, 1.5, key=NO_ORDER)), QUIET)
    assert not overlapping(log(call(0, 1.0), call(1, 1.5), order=None), QUIET)
    assert not overlapping(log(call(0, 1.0, number=0), call(1, 1.0, number=0)), QUIET)  # a batch


def test_overlapping_calls_without_a_key_are_found() -> None:
    assert overlapping(log(call(0, 1.0, key=""), call(1, 1.5, key="")), QUIET)
    assert not overlapping(log(call(0, 1.0, key=""), call(1, 1.5, key="b")), QUIET)


def test_overlapping_by_queue_looks_at_all_keys() -> None:
    assert overlapping(log(call(0, 1.0), call(1, 1.5, key="b"), order="queue"), QUIET)
    assert overlapping(log(call(0, 1.0, key=""), call(1, 1.5, key=""), order="queue"), QUIET)


def test_overlapping_of_two_members_counts_without_faults_only() -> None:
    calls = log(call(0, 1.0), call(1, 1.5, life=1))
    assert overlapping(calls, QUIET)
    assert not overlapping(calls, FAULT)
    assert not overlapping(log(call(0, 1.0, None), call(1, 5.0, life=1)), Troubles((), {"member-0": [4.0]}, {}))


def test_disordered_calls_of_a_key_are_found() -> None:
    assert disordered(log(call(1, 1.0), call(0, 3.0)), QUIET) == [
        f"disordered: member-0 began offset 0 of {QUEUE} with key a at 3.000000 s after offset 1"
    ]
    (found,) = disordered(log(call(0, 1.0, how="failed"), call(1, 3.0)), QUIET)
    assert found.endswith("which is to be handled again")
    assert disordered(log(call(0, 1.0, how="cancelled"), call(1, 3.0)), QUIET)


@pytest.mark.parametrize(
    "calls",
    [
        [call(0, 1.0), call(1, 3.0)],
        [call(1, 1.0), call(0, 3.0, key="b")],
        [call(1, 1.0), call(0, 3.0, life=1)],
        [call(0, 1.0, how="failed"), call(0, 3.0), call(1, 5.0)],
        [call(0, 1.0, how="failed"), call(0, 3.0, how="failed"), call(1, 5.0)],  # its attempts are used up
        [call(0, 1.0, how="dead"), call(1, 3.0)],
        [call(1, 1.0, how="failed", number=0), call(2, 1.0, how="failed", number=0), call(1, 3.0), call(2, 5.0)],  # a batch
        [
            call(1, 0.1, 0.1),
            call(2, 1.0),
            call(0, 1.5, key="b", how="cancelled"),
            call(1, 4.0),
        ],  # repeated behind one that is open
    ],
    ids=["in order", "another key", "another member", "again", "used up", "dead", "batch", "repeated"],
)
def test_disordered_leaves_alone(calls: list[Delivery]) -> None:
    assert not disordered(log(*calls), QUIET)


def test_repeated_in_place_or_behind_an_open_message_is_no_violation() -> None:
    assert not repeated(log(call(0, 1.0, how="failed"), call(0, 3.0)), QUIET)
    assert not repeated(log(call(0, 1.0, key="b", how="cancelled"), call(1, 1.0), call(1, 5.0, life=1)), QUIET)
    assert repeated(log(call(0, 1.0, key="b"), call(1, 1.0), call(1, 5.0, life=1)), QUIET)
    assert repeated(log(call(0, 1.0, how="failed"), call(0, 3.0), order=None), QUIET)
