"""The fault scenarios of tests/testing/simulation/clusters on real 5.5.0 brokers: their outcome is that of the simulation."""

from __future__ import annotations

import pytest

from rmq_async import run
from rmq_async.testing.cluster import RealCluster

from ..testing.simulation.clusters.real import RealWorld
from ..testing.simulation.clusters.scenarios import SCENARIOS
from ..testing.simulation.clusters.simulated import play_simulated
from ..testing.simulation.clusters.world import Outcome

TRANSACTIONS = "transaction_without_sender"


def check(cluster: RealCluster, name: str) -> None:
    scenario = SCENARIOS[name]
    found: list[Outcome] = []

    async def main() -> None:
        found.append(await scenario.play(RealWorld(cluster)))

    run(main())
    assert found == [play_simulated(scenario.play, seed=1)]
    assert found == [scenario.outcome]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != TRANSACTIONS])
def test_a_fault_has_the_outcome_of_the_simulation(two_brokers: RealCluster, name: str) -> None:
    check(two_brokers, name)
