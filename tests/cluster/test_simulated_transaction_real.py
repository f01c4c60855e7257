"""The scenario of tests/testing/simulation/clusters with a transaction, on the shared broker that asks about half messages."""

from __future__ import annotations

from rmq_async.testing.cluster import RealCluster

from .test_simulation_real import TRANSACTIONS, check


def test_a_transaction_of_a_killed_process_ends_as_in_the_simulation(feature_cluster: RealCluster) -> None:
    """On the cluster that asks about half messages after 2 s."""
    check(feature_cluster, TRANSACTIONS)
