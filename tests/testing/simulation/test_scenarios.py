"""The library's scenarios keep every promise under many seeds, besides those whose hashes are kept (``test_hashes``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from rmq_async.testing.simulation import KINDS, Faults
from rmq_async.testing.simulation.seeds import Outcome, minimised

from ...simulation import SCENARIOS, run_seed
from .test_hashes import HASHED

MIXED_SEEDS = (5, 10, 14, 15, 18, 20, 26, 32)
GROUP_SEEDS = (4, 6, 7, 10, 14)
"""Besides those of ``test_hashes``: seeds that meet every kind of fault together. The deep tier runs a thousand."""


def test_mixed_scenario_keeps_its_promises() -> None:
    met: Counter[str] = Counter()
    for seed in MIXED_SEEDS:
        outcome = run_seed("mixed", seed)
        assert not outcome.violation, f"python -m tests.simulation --scenario mixed --seed {seed}"
        assert outcome.seconds >= 300
        assert outcome.operations >= 200
        assert len(outcome.kinds) >= 3
        met.update(outcome.met)
    assert set(met) == set(KINDS)


def test_groups_keep_their_promises() -> None:
    met: Counter[str] = Counter()
    for seed in GROUP_SEEDS:
        outcome = run_seed("groups", seed)
        assert not outcome.violation, f"python -m tests.simulation --scenario groups --seed {seed}"
        assert outcome.seconds >= 300
        assert outcome.operations >= 100
        met.update(outcome.met)
    assert len(met) >= 28


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - HASHED.keys() - {"losses"}))
def test_scenario_keeps_its_promises(name: str) -> None:
    outcome = run_seed(name, 1)
    assert not outcome.violation, f"python -m tests.simulation --scenario {name} --seed 1"
    assert outcome.seconds >= 300


@pytest.mark.parametrize("seed", [4, 50])
def test_queue_that_is_elsewhere_for_a_moment_after_a_loss_loses_nothing_more(seed: int) -> None:
    """The other member knew only an offset of before the loss, and its commit took the group over new messages."""
    assert run_seed("losses", seed).violation == ""


def test_run_of_groups_waits_for_messages_that_were_given_back() -> None:
    """One was given back 8 s before the last member's stop, and was to come back after 10 s."""
    assert run_seed("groups", 200918).violation == ""


def test_run_of_groups_waits_for_queues_of_members_that_are_gone() -> None:
    """A broker listed one for 120 s, which left 24 s for the queues that it had owned."""
    assert run_seed("groups", 300021).violation == ""


def test_commit_that_hangs_while_the_broker_checks_again_makes_no_violation() -> None:
    """It hung on a cut link, and arrived just before the commit of the next check: no client can distinguish it from a lost one."""
    assert run_seed("mixed", 902795).violation == ""


def test_swarm_draws_another_subset_for_each_seed() -> None:
    drawn = [Faults.swarm(rate=4.0).draw(Random(seed)) for seed in range(100)]
    assert len({faults.kinds for faults in drawn}) > 90
    assert all(3 <= len(faults.kinds) <= len(KINDS) and 2.0 <= faults.rate <= 6.0 for faults in drawn)
    assert set().union(*(faults.kinds for faults in drawn)) == set(KINDS)


def test_fault_left_out_does_not_change_the_rate_of_the_others() -> None:
    faults = Faults(frozenset(["link-cut", "link-slow", "broker-crash"]), rate=9.0)
    left = faults.without("link-cut")
    assert left.kinds == {"link-slow", "broker-crash"}
    assert left.rate == pytest.approx(6.0)


def test_minimised_run_leaves_out_what_the_failure_does_not_need() -> None:
    def run(seed: int, *, without: Iterable[str] = (), trace: bool = False) -> Outcome:
        kinds = tuple(sorted({"broker-crash", "link-cut", "link-slow"} - set(without)))
        violation = "lost" if "link-cut" in kinds else ""
        return Outcome(seed, 1, 1.0, 0.0, kinds, {}, (), "", violation)

    outcome, left_out = minimised(run, run(7))
    assert outcome.kinds == ("link-cut",)
    assert left_out == ("broker-crash", "link-slow")
