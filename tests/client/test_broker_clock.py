"""The clock of a broker, as its answers show it."""

from __future__ import annotations

import random

import pytest

from rmq_async.client.broker_clock import BrokerClock, broker_time_in

AHEAD = 1_795_367_583_753
"""The broker's time, in ms, when this process's clock is 0."""


def test_clock_without_an_answer() -> None:
    clock = BrokerClock()
    assert (clock.is_known, clock.broker_ms(5.0)) == (False, None)
    clock.note(0, 1.0, 2.0)  # an answer that does not say it
    assert not clock.is_known
    assert clock.ends(AHEAD, 5000, 1.0, 2.0) == 7.0  # no later than this


def test_clock_is_read_from_the_fastest_answer() -> None:
    clock = BrokerClock()
    clock.note(AHEAD + 1000, 0.5, 1.4)
    clock.note(AHEAD + 2000, 1.9, 2.001)
    clock.note(AHEAD + 3000, 2.0, 3.7)
    assert clock.broker_ms(10.0) == AHEAD + 9999
    assert abs(clock.ends(AHEAD + 3000, 5000, 2.0, 3.7) - 8.001) < 1e-6


def test_lease_of_a_held_pop_begins_when_it_was_woken() -> None:
    clock = BrokerClock()
    clock.note(AHEAD + 100, 0.0, 0.1)
    clock.note(AHEAD + 4000, 0.2, 4.001)
    assert abs(clock.ends(AHEAD + 4000, 60_000, 0.2, 4.001) - 64.0) < 0.01


def test_clock_that_is_set_back_is_read_anew() -> None:
    clock = BrokerClock()
    clock.note(AHEAD + 1000, 0.99, 1.0)
    clock.note(AHEAD + 2000 - 3_600_000, 1.99, 2.0)
    assert clock.broker_ms(3.0) == AHEAD + 3000 - 3_600_000
    assert 6.99 <= clock.ends(AHEAD + 2000 - 3_600_000, 5000, 1.99, 2.0) <= 7.0


def test_clock_that_is_set_ahead_is_read_anew() -> None:
    clock = BrokerClock()
    clock.note(AHEAD + 1000, 0.99, 1.0)
    clock.note(AHEAD + 2000 + 3_600_000, 1.99, 2.0)
    assert clock.broker_ms(3.0) == AHEAD + 3000 + 3_600_000


def test_clock_that_drifts_is_followed() -> None:
    clock = BrokerClock()
    for second in range(600):  # it loses a millisecond each second
        clock.note(AHEAD + second * 999, second - 0.001, second + 0.001)
    now = clock.broker_ms(600.0)
    assert now is not None
    assert 0 <= now - (AHEAD + 600 * 999) <= 130


def test_lease_never_ends_outside_of_what_is_sure() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    clock, now = BrokerClock(), 100.0
    for _ in range(2000):
        sent = now = now + chance.random()
        popped = now + chance.random()
        arrived = now = popped + chance.random()
        ahead = AHEAD + chance.choice([0, 0, 0, 5000, -5000])
        said = ahead + round(popped * 1000)
        clock.note(said, sent, arrived)
        assert sent + 5 <= clock.ends(said, 5000, sent, arrived) <= arrived + 5


@pytest.mark.parametrize(
    ("runtime", "seconds"),
    [
        ("[ 0 days, 0 hours, 0 minutes, 0 seconds ]", 0),
        ("[ 2 days, 3 hours, 4 minutes, 5 seconds ]", ((2 * 24 + 3) * 60 + 4) * 60 + 5),
        ("[ 1,234 days, 0 hours, 0 minutes, 1 seconds ]", 1234 * 86_400 + 1),
    ],
)
def test_time_of_a_broker_from_its_runtime_information(runtime: str, seconds: int) -> None:
    assert broker_time_in({"bootTimestamp": "1795367583753", "runtime": runtime}) == 1_795_367_583_753 + 1000 * seconds + 500


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"bootTimestamp": "1795367583753"},
        {"runtime": "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"},
        {"bootTimestamp": "1795367583753", "runtime": "long"},
        {"bootTimestamp": "-1", "runtime": "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"},
    ],
)
def test_runtime_information_without_a_time(facts: dict[str, str]) -> None:
    assert broker_time_in(facts) is None
