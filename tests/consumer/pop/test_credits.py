"""How many popped messages a subscription may hold."""

from __future__ import annotations

from rmq_async.consumer.pop.sources import AHEAD, MOST_AHEAD, Credits


def test_slow_handlers_get_no_more_than_their_slots() -> None:
    credits = Credits(4096, 1 << 26)
    assert credits.free(4, None) == 4
    credits.take([10] * 4)
    assert credits.free(4, None) == 0
    for second in range(1, 20):
        credits.give([10])
        credits.take([10])
        credits.measure(float(second))
        assert credits.wanted(4, None) == 5  # one in a second


def test_fast_handlers_get_the_work_of_a_moment() -> None:
    credits = Credits(4096, 1 << 26)
    for step in range(1, 21):
        credits.take([10] * 100)
        for _ in range(100):
            credits.give([10])
        credits.measure(step * 0.1)
    assert credits.wanted(4, None) in (4 + round(1000 * AHEAD), 5 + round(1000 * AHEAD))  # sums of floats


def test_rate_of_a_subscription_bounds_what_it_holds() -> None:
    credits = Credits(4096, 1 << 26)
    assert credits.free(64, 0.5) == 1
    credits.take([1] * 1000)
    for _ in range(1000):
        credits.give([1])
    credits.measure(1.0)
    assert credits.free(64, 10.0) == 12


def test_share_of_the_limits_is_not_passed() -> None:
    credits = Credits(100, 1000)
    credits.take([1] * 100_000)
    for _ in range(100_000):
        credits.give([1])
    credits.measure(0.05)
    assert credits.wanted(64, None) == 100
    assert 64 + MOST_AHEAD > 100


def test_large_bodies_take_more_room() -> None:
    credits = Credits(4096, 1000)
    credits.take([400])
    assert credits.free(64, None) == 1
    credits.reserved += 1
    assert credits.free(64, None) == 0
    credits.reserved -= 1
    credits.take([400])
    assert credits.free(64, None) == 0
    credits.give([400])
    credits.give([400])
    credits.take([5000])
    credits.give([5000])
    assert credits.free(64, None) == 1  # one is taken, however large the last ones were
