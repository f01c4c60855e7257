"""The test of the test: a history that is broken on purpose is caught, whichever way it is broken."""

from __future__ import annotations

import random

import pytest

from rmq_async import MessageQueue, RequestTimeoutError, SendError, SendResult, SendStatus
from rmq_async.errors import Attempt

from .history import Copy, History, faults, verdict, void

COUNT = 10_000
QUEUE = MessageQueue("t", "b", 0)


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


def honest(chance: random.Random) -> tuple[History, list[Copy]]:
    """10,000 sends: most at once, some after a retry, of which some are stored twice; some fail, and are stored all the same."""
    history, read = History(), list[Copy]()
    for number in range(COUNT):
        name, unique_id = str(number), f"id-{number}"
        attempts = chance.choices([1, 2, 3], [98, 1, 1])[0]
        stored = chance.randrange(1, attempts + 1)
        if attempts == 3 and chance.random() < 0.5:
            tries = [Attempt(QUEUE, "a", 0.1, RequestTimeoutError("late"), True)] * attempts
            history.gave_up(name, SendError("gone", tries), 3.0)
            stored -= 1
        else:
            history.succeeded(name, result(unique_id, attempts), 0.001)
        read += [Copy(name, unique_id)] * stored
    chance.shuffle(read)
    return history, read


def result(unique_id: str, attempts: int) -> SendResult:
    return SendResult(SendStatus.SEND_OK, unique_id, "offset-id", QUEUE, 0, attempts=attempts)


def acknowledged_once(history: History, chance: random.Random) -> str:
    """The name of a message that needed one request."""
    return chance.choice([name for name in history.acknowledged if history.requests[name] == 1])


def test_an_honest_history_has_no_fault(chance: random.Random) -> None:
    history, read = honest(chance)
    assert faults(history, read) == []
    counts = verdict(history, read)
    assert counts.attempted == COUNT
    assert counts.acknowledged == COUNT - len(history.failed)
    assert counts.read == len({copy.name for copy in read})
    assert counts.duplicated == len(read) - counts.read > 0
    assert counts.unacknowledged == len({copy.name for copy in read} & history.failed.keys()) > 0
    assert history.retried > 100
    assert history.slowest == 3.0


def test_one_acknowledged_message_of_10000_that_is_not_there_is_found(chance: random.Random) -> None:
    history, read = honest(chance)
    name = acknowledged_once(history, chance)
    read = [copy for copy in read if copy.name != name]
    assert faults(history, read) == [f"lost: {name} was acknowledged and is not there"]
    assert verdict(history, read).lost == (name,)
    assert faults(history, read, may_lose=True) == []


def test_a_second_copy_without_a_second_request_is_found(chance: random.Random) -> None:
    history, read = honest(chance)
    name = acknowledged_once(history, chance)
    read.insert(chance.randrange(COUNT), Copy(name, f"id-{name}"))
    assert faults(history, read, may_lose=True) == [f"duplicated: {name} was read 2 times after 1 requests"]


def test_a_message_that_was_not_sent_is_found(chance: random.Random) -> None:
    history, read = honest(chance)
    read.insert(chance.randrange(COUNT), Copy("never", "id-never"))
    assert faults(history, read, may_lose=True) == ["strange: never was read and never sent"]


def test_a_retry_under_another_id_is_found(chance: random.Random) -> None:
    history, read = honest(chance)
    name = chance.choice([name for name, requests in history.requests.items() if requests == 2])
    read = [*(copy for copy in read if copy.name != name), Copy(name, f"id-{name}"), Copy(name, "id-other")]
    (found,) = faults(history, read)
    assert found.startswith(f"ids: {name} was acknowledged as ['id-{name}']")


def test_a_failure_that_denies_what_is_stored_is_found(chance: random.Random) -> None:
    history, read = honest(chance)
    name = next(iter({copy.name for copy in read} & history.failed.keys()))
    history.failed[name] = RequestTimeoutError("late", maybe_stored=False)
    assert faults(history, read) == [f"denied: {name} is there, and its call said that it is not"]


def test_a_run_in_which_nothing_happened_is_void(chance: random.Random) -> None:
    quiet = History()
    quiet.succeeded("1", result("id-1", 1), 0.001)
    assert void(quiet, lost_connections=0)
    assert not void(quiet, lost_connections=1)
    quiet.succeeded("2", result("id-2", 2), 0.001)
    assert not void(quiet, lost_connections=0)
    assert not void(honest(chance)[0], lost_connections=0)
