"""Fault scenarios of clients and brokers in the simulation; the same on real brokers: tests/cluster/test_simulation_real.py."""

from __future__ import annotations

import pytest

from .clusters.scenarios import SCENARIOS
from .clusters.simulated import play_simulated


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_has_its_outcome_with_every_seed(name: str) -> None:
    play, outcome = SCENARIOS[name]
    for seed in range(3):
        assert play_simulated(play, seed) == outcome, f"seed {seed}"
