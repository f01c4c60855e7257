"""Pauses between attempts: doubled up to a limit, and shortened at random."""

from __future__ import annotations

import random

import pytest

from rmq_async import machine
from rmq_async._backoff import Backoff, pause_after


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.05), (2, 0.1), (3, 0.2), (5, 0.8), (6, 1.0), (7, 1.0), (10**9, 1.0)])
def test_pause_after_failures_doubles_up_to_the_limit(failures: int, seconds: float) -> None:
    assert pause_after(failures, 0.05, 1.0) == pytest.approx(seconds)
    assert pause_after(failures, 0.05, 1.0, luck=0.0) == pytest.approx(0.8 * seconds)


def test_pause_after_a_limit_below_the_first_is_the_limit() -> None:
    assert pause_after(1, 100.0, 15.0) == 15.0


def test_backoff_in_a_row_stays_within_the_spread_and_differs_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    monkeypatch.setattr(machine, "random", random.Random(seed))
    rows = []
    for _ in range(20):
        backoff = Backoff(0.05, 1.0)
        rows.append([backoff.next() for _ in range(8)])
    for row in rows:
        for number, pause in enumerate(row, 1):
            assert pause_after(number, 0.05, 1.0, luck=0.0) <= pause <= pause_after(number, 0.05, 1.0)
    assert len({row[0] for row in rows}) > 1, f"clients that failed together return together, seed {seed}"


def test_backoff_after_a_reset_begins_again() -> None:
    backoff = Backoff(0.05, 1.0)
    for _ in range(10):
        backoff.next()
    assert backoff.next() >= 0.8
    backoff.reset()
    assert backoff.next() <= 0.05
