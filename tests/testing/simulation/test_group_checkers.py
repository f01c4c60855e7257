"""What the checkers of consumer groups find, and what they leave alone."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import MessageQueue
from rmq_async.results import SendResult, SendStatus
from rmq_async.testing.simulation.checkers import Stored
from rmq_async.testing.simulation.history import Call

from ...simulation.group_checkers import (
    backwards,
    repeated,
    restarted,
    sick,
    stalled,
    together,
    uncalled,
    uncommitted,
    undelivered,
    unnamed,
)
from ...simulation.group_log import GROUP, Backlog, Delivery, GroupLog, Life, Sample
from ...simulation.loss_checkers import left_out
from ...simulation.troubles import Troubles
from ...simulation.watched import Commit, Loss

QUEUE = MessageQueue("T", "broker-a", 0)
QUIET = Troubles((), {}, {})


def log(*deliveries: Delivery, lives: int = 2, **fields: Any) -> GroupLog:
    members = [Life(f"member-{number}", 0.0) for number in range(lives)]
    found = GroupLog(lambda: 0.0, lambda: (), ("T",), lives=members, deliveries=list(deliveries))
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def delivery(offset: int = 0, began: float = 10.0, took: float | None = 1.0, *, life: int = 0, how: Any = "done") -> Delivery:
    ended = None if took is None else began + took
    return Delivery(QUEUE, offset, f"id-{offset}", life, began, ended, how if ended is not None else "")


def killed(at: float, member: str = "member-0") -> Troubles:
    return Troubles((), {member: [at]}, {})


def fault(began: float, ended: float) -> Troubles:
    return Troubles([(began, ended)], {}, {})


def commit(time: float, offset: int, before: int, client_id: str = "a", holder: str | None = "a") -> Commit:
    return Commit(time, GROUP, QUEUE, offset, before, client_id, holder)


def samples(*times: float, problems: tuple[tuple[str, str], ...] = (), ready: bool = True) -> list[Sample]:
    return [Sample(time, 0, ready, problems) for time in times]


@pytest.mark.parametrize(
    ("second", "troubles", "found"),
    [
        (delivery(began=20.0, life=1), QUIET, True),
        (delivery(began=20.0, life=1), fault(15.0, 16.0), False),
        (delivery(began=120.0, life=1), fault(150.0, 160.0), True),
        (delivery(began=20.0, life=1), killed(11.5), False),  # before its commit
        (delivery(began=20.0, life=1), killed(15.0), True),  # it had the time to commit
        (delivery(1, began=20.0, life=1), QUIET, False),  # another message
    ],
)
def test_repeated_message_needs_a_reason(second: Delivery, troubles: Troubles, found: bool) -> None:
    assert bool(repeated(log(delivery(), second), troubles)) is found


def test_repeated_message_behind_an_open_one_is_in_the_bound_of_a_kill() -> None:
    deliveries = [delivery(0, took=None), delivery(1), delivery(1, began=60.0, life=1)]
    assert repeated(log(*deliveries), killed(50.0)) == []
    assert len(repeated(log(*deliveries[1:]), killed(50.0))) == 1


def test_repeated_message_whose_first_call_was_cancelled_is_none() -> None:
    assert repeated(log(delivery(how="cancelled"), delivery(began=20.0, life=1)), QUIET) == []


@pytest.mark.parametrize(
    ("life", "troubles", "found"),
    [(0, QUIET, True), (0, fault(9.0, 11.0), True), (1, QUIET, True), (1, fault(9.0, 11.0), False), (1, killed(10.2), False)],
)
def test_together_is_never_allowed_in_one_member(life: int, troubles: Troubles, found: bool) -> None:
    assert bool(together(log(delivery(), delivery(began=10.5, life=life)), troubles)) is found


def test_backwards_is_found_for_the_owner_of_the_queue() -> None:
    commits = [commit(1.0, 5, 3), commit(2.0, 4, 5)]
    assert len(backwards(commits, fault(0.0, 3.0), ())) == 1
    assert backwards(commits, fault(0.0, 3.0), [QUEUE]) == []
    late = [*commits, commit(20.0, 6, 4)]
    assert len(backwards(late, fault(0.0, 3.0), (), {"b": [0.5]})) == 1
    assert backwards(late, fault(0.0, 3.0), (), {"a": [0.5]}) == []  # the commit may be one of the process before the start
    beside = [commit(1.0, 5, 3, "b"), commit(2.0, 4, 5)]
    assert backwards(beside, fault(0.0, 3.0), ()) == []
    assert len(backwards(beside, QUIET, ())) == 1


def test_stalled_queue_is_found_after_a_rest() -> None:
    resting = [Backlog(10.0, {QUEUE: (0, 2)}, True)]
    members = samples(10.0, 38.0)
    assert len(stalled(log(backlogs=resting, samples=members), QUIET)) == 1
    assert len(stalled(log(delivery(0, began=41.0), backlogs=resting, samples=members), QUIET)) == 1
    assert stalled(log(delivery(0, began=30.0), backlogs=resting, samples=members), QUIET) == []
    assert stalled(log(delivery(0, began=5.0), delivery(1, began=5.0), backlogs=resting, samples=members), QUIET) == []
    assert stalled(log(backlogs=resting, samples=samples(38.0)), QUIET) == []  # no member was there


@pytest.mark.parametrize(
    ("took", "span", "troubles", "found"),
    [(60.0, 1, QUIET, False), (60.0, 2, QUIET, True), (20.0, 1, QUIET, True), (None, 1, killed(9.0), True)],
)
def test_stalled_is_no_queue_whose_span_a_handler_fills(took: float | None, span: int, troubles: Troubles, found: bool) -> None:
    running = log(
        delivery(0, 8.0, took), backlogs=[Backlog(10.0, {QUEUE: (0, 2)}, True)], samples=samples(10.0, 38.0), max_span=span
    )
    assert bool(stalled(running, troubles)) is found


def test_unnamed_problem_is_found_while_a_queue_is_not_read() -> None:
    waiting = [Backlog(10.0, {QUEUE: (0, 2)})]
    assert len(unnamed(log(backlogs=waiting, samples=samples(10.0, 45.0)), QUIET)) == 1
    ill = sorted([*samples(10.0, 45.0), *samples(30.0, problems=(("queue_unreadable", "text"),))])
    assert unnamed(log(backlogs=waiting, samples=ill), QUIET) == []
    assert unnamed(log(backlogs=waiting, samples=samples(10.0, 45.0)), killed(12.0, "member-1")) == []
    assert unnamed(log(delivery(1, began=44.0), backlogs=waiting, samples=samples(10.0, 45.0)), QUIET) == []
    lost = [*waiting, Backlog(12.0, {}), Backlog(14.0, {QUEUE: (0, 1)}), Backlog(16.0, {QUEUE: (1, 2)})]
    handled = delivery(0, 9.0, 40.0)
    assert unnamed(log(handled, backlogs=waiting, samples=samples(10.0, 45.0), max_span=1), QUIET) == []
    assert len(unnamed(log(handled, backlogs=waiting, samples=samples(10.0, 45.0), max_span=2), QUIET)) == 1
    assert len(unnamed(log(backlogs=[*waiting, Backlog(12.0, {})], samples=samples(10.0, 45.0)), QUIET)) == 1
    assert unnamed(log(backlogs=lost, samples=samples(10.0, 45.0)), QUIET) == []


@pytest.mark.parametrize(
    ("shown_from", "member_from", "found"), [(-30.0, -30.0, True), (8.0, -30.0, False), (-30.0, 8.0, False)]
)
def test_unnamed_is_a_queue_taken_away_only_where_a_member_has_seen_it(
    shown_from: float, member_from: float, found: bool
) -> None:
    looks = [Backlog(time / 1, {QUEUE: (0, 2)} if time >= shown_from else {}) for time in range(-30, 11, 2)]
    looks += [Backlog(time / 1, {}, taken_away=[QUEUE]) for time in range(12, 50, 2)]
    sampled = samples(*(time / 1 for time in range(-30, 50, 2) if time >= member_from))
    assert bool(unnamed(log(backlogs=looks, samples=sampled), QUIET)) is found


@pytest.mark.parametrize(("listed", "found"), [(range(-30, 10), True), (range(2, 10), False), (range(0), False)])
def test_unnamed_is_a_queue_of_an_unlisted_broker_only_where_a_member_has_found_it(listed: range, found: bool) -> None:
    looks = [
        Backlog(time / 1, {QUEUE: (0, 2)}, unlisted=() if time in listed else [QUEUE.broker_name]) for time in range(-30, 50, 2)
    ]
    run = log(backlogs=looks, samples=samples(*(time / 1 for time in range(0, 50, 2))), lives=1)
    run.lives[0].began = -20.0
    assert bool(unnamed(run, QUIET)) is found


def test_uncommitted_end_is_found_after_the_stop_of_all_members() -> None:
    assert len(uncommitted(log(idle=Backlog(9.0, {QUEUE: (3, 4)})))) == 1
    assert uncommitted(log(idle=Backlog(9.0, {QUEUE: (4, 4)}))) == []


def went_back(*ends: float, at: float = 20.0, holds_until: float = 40.0, again: float = 99.0) -> GroupLog:
    """A member that reads the queue and says at ``at`` that it has gone back. ``ends``: times of commits; ``again``: the time from
    which on it holds the queue again."""
    text = (("messages_skipped", f"{QUEUE} continued at offset 5 instead of 9: it has lost messages that were read"),)
    looks = [
        Sample(float(time), 0, True, text if time >= at else (), [] if holds_until < time < again else [QUEUE])
        for time in range(0, 42, 2)
    ]
    found = log(samples=looks, now=lambda: 42.0)
    broker: Any = SimpleNamespace(commits=[commit(time, 5, 9) for time in ends])
    found.brokers = lambda: (broker,)
    return found


@pytest.mark.parametrize(
    ("group", "excused"),
    [
        (went_back(), []),  # it reads the queue to the end of the run
        (went_back(21.0, holds_until=30.0), []),  # what comes after it goes on from its commit
        (went_back(19.0, holds_until=30.0), ["id-7"]),  # it had not committed that yet
        (went_back(21.0, holds_until=12.0), ["id-7"]),  # it had not looked yet
        (went_back(holds_until=8.0), ["id-7"]),  # another member has taken the queue before
        (went_back(23.0, holds_until=20.0, again=28.0), []),  # another member had it for a moment
        (went_back(23.0, holds_until=14.0, again=28.0), ["id-7"]),  # it had not looked before that
    ],
)
def test_left_out_are_messages_that_no_member_was_bound_to_handle(group: GroupLog, excused: list[str]) -> None:
    stored = [Stored(QUEUE.broker_name, QUEUE.topic, 0, offset, f"id-{offset}", b"") for offset in (4, 7, 12)]
    assert left_out(group, stored, [Loss(11.0, QUEUE, 5, 8)]) == {*excused}
    assert left_out(group, stored, [Loss(11.0, QUEUE._replace(queue_id=1), 5, 8)]) == set()


def test_left_out_are_messages_of_a_member_that_came_between_two_losses() -> None:
    """It waits with a queue that ends below its offset, and cannot know how much the second loss has taken."""
    group, stored = went_back(), [Stored(QUEUE.broker_name, QUEUE.topic, 0, 7, "id-7", b"")]
    for sample in group.samples[:3]:
        sample.held.clear()
    assert left_out(group, stored, [Loss(5.0, QUEUE, 6, 8), Loss(11.0, QUEUE, 5, 8)]) == {"id-7"}
    assert left_out(group, stored, [Loss(-20.0, QUEUE, 6, 8), Loss(11.0, QUEUE, 5, 8)]) == set()


def test_repeats_of_a_queue_that_has_lost_messages_are_right() -> None:
    twice = log(delivery(), delivery(began=60.0))
    assert len(repeated(twice, QUIET)) == 1
    assert repeated(twice, QUIET, [Loss(30.0, QUEUE, 5, 8)]) == []


def test_sick_member_is_found_when_the_cluster_is_healthy_again() -> None:
    problem = (("not_committed", "text"),)
    assert len(sick(log(samples=samples(50.0, problems=problem), fine_from=40.0))) == 1
    assert len(sick(log(samples=samples(50.0, ready=False), fine_from=40.0))) == 1
    assert sick(log(samples=samples(50.0, problems=problem), fine_from=inf)) == []


@pytest.mark.parametrize(
    ("numbers", "broker", "taken_away", "found"),
    [
        ("0", "broker-a", [QUEUE], False),
        ("0, 1", "broker-a", [QUEUE], True),  # the other one is there
        ("0", "broker-b", [QUEUE], True),
        ("0", "broker-a", [], True),  # it is there again, or has no unread message
    ],
)
def test_sick_is_no_member_that_names_queues_taken_away(
    numbers: str, broker: str, taken_away: list[MessageQueue], found: bool
) -> None:
    text = f"queues {numbers} of topic T on {broker} left the topic's route 65 s ago, and no member reads their 1 messages"
    looks = [Backlog(40.0, {}, taken_away=[QUEUE]), Backlog(48.0, {}, taken_away=taken_away)]
    sampled = samples(50.0, problems=(("queue_missing", text),))
    assert bool(sick(log(samples=sampled, backlogs=looks, fine_from=40.0))) is found
    other = (("queue_missing", text), ("not_committed", "text"))
    assert len(sick(log(samples=samples(50.0, problems=other), backlogs=looks, fine_from=40.0))) == 1


def test_restarted_task_is_found_once() -> None:
    assert len(restarted(log(samples=samples(1.0, 3.0, problems=(("restarted", "commits failed"),))))) == 1


def test_undelivered_message_is_found_unless_it_is_a_dead_letter_or_was_lost() -> None:
    call: Call = SimpleNamespace(  # type: ignore[assignment]
        topic="T", ended=1.0, results=(SendResult(SendStatus.SEND_OK, "id-0", "offset id", QUEUE, 0),)
    )
    dead = Stored("broker-a", "%DLQ%" + GROUP, 0, 0, "id-0", b"")
    assert len(undelivered([call], log(), [], ())) == 1
    assert len(undelivered([call], log(delivery(how="failed")), [], ())) == 1
    assert undelivered([call], log(delivery()), [], ()) == []
    assert undelivered([call], log(), [dead], ()) == []
    assert undelivered([call], log(), [], {"id-0"}) == []


def test_dead_letter_without_a_call_is_found_unless_its_message_was_lost() -> None:
    dead = Stored("broker-a", "%DLQ%" + GROUP, 0, 0, "id-0", b"")
    assert len(uncalled(log(delivery(1)), [dead], ())) == 1
    assert uncalled(log(delivery(how="failed")), [dead], ()) == []
    assert uncalled(log(), [dead], {"id-0"}) == []


def test_message_in_hand_that_its_queue_did_not_wait_for_may_come_again_to_another_member() -> None:
    taken = delivery(took=3.0), delivery(began=12.5, life=1)
    early = delivery(took=3.0), delivery(began=11.5, life=1)
    same = delivery(began=100.0, took=3.0), delivery(began=102.5)
    for check in (repeated, together):
        assert not check(log(*taken, in_hand=2.0), QUIET)
        assert check(log(*taken), QUIET)
        assert check(log(*early, in_hand=2.0), QUIET)
        assert check(log(*same, in_hand=2.0), QUIET)


def test_message_in_hand_comes_again_to_its_member_only_where_the_members_have_changed() -> None:
    found = log(delivery(began=100.0, took=3.0), delivery(began=103.0), in_hand=2.0)
    assert repeated(found, QUIET)
    found.lives.append(Life("member-2", 90.0))
    assert not repeated(found, QUIET)
    assert repeated(log(delivery(began=10.0, took=1.0), delivery(began=11.0), in_hand=2.0), QUIET)


@pytest.mark.parametrize(("ended", "found"), [(13.0, False), (11.5, True)])
def test_repeated_is_no_ordered_message_behind_one_that_was_open_when_its_queue_moved(ended: float, found: bool) -> None:
    open_one = delivery(0, 10.0, None), delivery(0, 12.0, ended - 12.0, life=1) if ended > 12.0 else delivery(0, 11.0, 0.5)
    moved = log(*open_one, delivery(1), delivery(2, 12.0, life=1), delivery(1, 14.0, life=1), order="key")
    assert bool(repeated(moved, QUIET)) is found


@pytest.mark.parametrize(
    ("client_id", "age", "found"), [("a", 5.0, False), ("a", 15.0, True), ("b", 5.0, True), (None, 0.0, False)]
)
def test_lock_of_a_life_that_has_ended_is_seen_also_where_the_client_id_lives(
    client_id: str | None, age: float, found: bool
) -> None:
    class Broker:
        serves = True

        def members(self, group: str) -> tuple[str, ...]:
            return ("a",)

        def queues(self, topic: str) -> list[MessageQueue]:
            return [QUEUE] if topic == "T" else []

        def taken_away(self, topic: str) -> list[MessageQueue]:
            return []

        def lock_of(self, group: str, queue: MessageQueue) -> tuple[str, float] | None:
            return None if client_id is None else (client_id, age)

        def committed(self, group: str, queue: MessageQueue) -> int:
            return 0

        def bounds(self, queue: MessageQueue) -> tuple[int, int]:
            return 0, 0

    lives = [Life("member-0", 0.0), Life("member-0", 20.0, 85.0), Life("member-0", 90.0)]  # the first one was killed
    broker: Any = Broker()
    seen = GroupLog(lambda: 100.0, lambda: (broker,), ("T",), lives=lives, order="queue", client_ids={"member-0": "a"})
    assert list(seen.look().locked) == ([QUEUE] if found else [])
