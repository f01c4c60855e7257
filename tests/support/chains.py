"""Tests that run in one process, one after the other, because they share servers of Java or a Spark session.

A new file of tests/cluster belongs to the shared servers, where it may ask for any cluster; the lists keep the chains equally long.
Files that ask for ``two_brokers`` stand in the second list, those with ``feature_cluster`` in neither: one chain starts each.
"""

from __future__ import annotations

from typing import Final

__all__ = ["REAL_SERVERS", "SPARK_CHAIN", "chain_of"]

REAL_SERVERS: Final = ("tests/cluster/", "tests/embedded/test_java.py", "tests/benchmarks/test_sends.py")
SPARK: Final = "tests/spark/"
SPARK_CHAIN: Final = "spark"
OWN_SERVERS: Final = (
    *(
        "cold_broker_real",
        "go_away_real",
        "handover_locks_real",
        "inbox_real",
        "java_real",
        "large_messages",
        "order_real",
        "outbox_real",
        "plugin_real",
        "production_messages",
    ),
    *("replaced_store_real", "replication_real", "restarts_real", "security_real"),
)
FAILING_SERVERS: Final = (
    *(
        "admin_real",
        "batching_real",
        "client_real",
        "command_line_real",
        "draining",
        "failover",
        "fault_counts",
        "give_backs_real",
        "group_failures_real",
        "health_real",
    ),
    *(
        "latency_fault_real",
        "launcher",
        "oneway",
        "order_conf_real",
        "routes",
        "sharing",
        "simulation_real",
        "static_topics",
        "stop",
        "stress_real",
    ),
)
_CHAINS: Final = {
    f"tests/cluster/test_{name}.py": chain
    for chain, names in (("own servers", OWN_SERVERS), ("failing servers", FAILING_SERVERS))
    for name in names
}


def chain_of(nodeid: str) -> str | None:
    """Returns the chain of a test; None for one that may run anywhere."""
    if nodeid.startswith(SPARK):
        return SPARK_CHAIN
    if not nodeid.startswith(REAL_SERVERS):
        return None
    file = nodeid.partition("::")[0]
    return _CHAINS.get(file, "shared servers" if file.startswith("tests/cluster/") else "own servers")
