"""What the checkers of groups that pop find, and what they leave alone; and the faults of brokers that are popped from."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_async import MessageQueue
from rmq_async.embedded import BrokerDisk, BrokerSettings, DiskLog, PopSettings
from rmq_async.embedded.broker import Broker
from rmq_async.testing.simulation.checkers import Stored
from rmq_async.testing.simulation.simulation import drawn_pop_settings

from ...simulation.group_log import GROUP, Backlog, Delivery, GroupLog, Life, Sample, Unread
from ...simulation.pop_checkers import (
    awoken,
    changed_twice,
    early_deaths,
    halted,
    popped_again,
    undead,
    unfinished,
)
from ...simulation.troubles import Troubles
from ...simulation.watched import PopRequest

QUEUE = MessageQueue("T", "broker-a", 0)
QUIET = Troubles((), {}, {})
DEAD = "%DLQ%" + GROUP


def log(*deliveries: Delivery, **fields: Any) -> GroupLog:
    members = [Life(f"member-{number}", 0.0) for number in range(2)]
    found = GroupLog(lambda: 0.0, lambda: (), ("T",), lives=members, deliveries=list(deliveries), lease=10.0, attempts=4)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def delivery(began: float = 10.0, how: Any = "done", *, life: int = 0, took: float = 1.0) -> Delivery:
    return Delivery(QUEUE, 0, "id", life, began, began + took if how else None, how)


def request(what: Any, time: float, offset: int = 0) -> PopRequest:
    return PopRequest(time, "broker-a", what, GROUP, "T", 0, 0, 1000, offset)


def dead(unique_id: str = "id") -> Stored:
    return Stored("broker-a", DEAD, 0, 0, unique_id, "")


@pytest.mark.parametrize(
    ("first", "troubles", "found"),
    [
        (delivery(), QUIET, True),
        (delivery(how=""), QUIET, True),  # it is handled still
        (delivery(how="failed"), QUIET, False),
        (delivery(how="cancelled"), QUIET, False),
        (delivery(), Troubles([(25.0, 26.0)], {}, {}), False),
        (delivery(), Troubles([(0.0, 1.0)], {}, {}), False),  # its lease may have run out since
        (delivery(), Troubles([(60.0, 61.0)], {}, {}), True),
        (delivery(), Troubles((), {"member-0": [15.0]}, {}), False),
        (delivery(), Troubles((), {"member-0": [17.0]}, {}), True),  # it had the time to acknowledge
        (delivery(took=60.0), QUIET, True),  # its lease is renewed
    ],
)
def test_message_that_is_popped_again_needs_a_reason(first: Delivery, troubles: Troubles, found: bool) -> None:
    assert bool(popped_again(log(first, delivery(40.0, life=1)), troubles)) is found


@pytest.mark.parametrize(
    ("hows", "copies", "troubles", "found"),
    [
        (["dead"], 1, QUIET, False),
        (["failed"], 1, QUIET, True),
        (["failed"] * 4, 1, QUIET, False),
        (["failed"], 1, Troubles([(10.0, 11.0)], {}, {}), False),
        (["failed", ""], 1, QUIET, False),
        (["dead"], 2, QUIET, True),
    ],
)
def test_dead_letter_needs_its_attempts(hows: list[str], copies: int, troubles: Troubles, found: bool) -> None:
    deliveries = [delivery(10.0 + 5 * number, how) for number, how in enumerate(hows)]
    assert bool(early_deaths(log(*deliveries), [dead()] * copies, troubles)) is found


def test_message_that_was_given_up_is_a_dead_letter() -> None:
    given_up = log(delivery(how="dead"))
    assert len(undead(given_up, [], ())) == 1
    assert undead(given_up, [dead()], ()) == []
    assert undead(given_up, [], ("id",)) == []
    assert undead(log(delivery(how="dead"), delivery(20.0)), [], ()) == []


@pytest.mark.parametrize(("began", "found"), [(120.0, False), (131.0, True), (99.0, True)])
def test_queue_without_calls_after_the_cure_is_halted(began: float, found: bool) -> None:
    samples = [Sample(time, 0, True, ()) for time in (100.0, 130.0)]
    seen = log(
        delivery(began),
        backlogs=[Backlog(100.0, {}, resting=True)],
        unread=[Unread(100.0, {QUEUE: ["id"]}, [], [QUEUE])],
        samples=samples,
    )
    assert bool(halted(seen)) is found
    seen.samples.clear()
    assert halted(seen) == []


def test_handle_that_is_changed_twice_is_found() -> None:
    assert changed_twice([request("change", 1.0), request("change", 2.0, 1), request("ack", 3.0)]) == []
    assert len(changed_twice([request("change", 1.0), request("change", 2.0)])) == 1


def test_change_after_an_ack_is_found() -> None:
    requests = [request("ack", 1.0), request("change", 2.0)]
    assert len(awoken(requests, log(), QUIET)) == 1
    assert awoken(requests, log(), Troubles([(0.5, 0.6)], {}, {})) == []
    assert awoken(requests[::-1], log(), QUIET) == []


def test_what_is_left_after_the_last_stop_is_unfinished() -> None:
    assert unfinished(log(), ()) == []
    left = log(unread=[Unread(100.0, {QUEUE: ["id"]}, ["other"], [QUEUE])])
    assert len(unfinished(left, ())) == 2
    assert len(unfinished(left, ("id",))) == 1


def test_brokers_of_a_seed_keep_popped_messages_in_one_way() -> None:
    drawn = {drawn_pop_settings(seed) for seed in range(50)}
    assert drawn == {PopSettings(store, names) for store in ("log", "kv") for names in (False, True)}  # type: ignore[arg-type]
    disk = BrokerDisk("broker-a", DiskLog(1 << 20, lambda: 0))
    assert not Broker(disk).state.check_points.single
    assert Broker(disk, BrokerSettings(pops=PopSettings("kv"))).state.check_points.single
