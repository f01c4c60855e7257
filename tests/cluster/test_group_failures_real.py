"""Brokers and name servers that fail under members of a group, briefly; longer: ``benchmarks/consumer_runs.py --what failures``."""

from __future__ import annotations

import pytest

from rmq_async.testing.cluster import RealCluster

from .group_failures import FAILURES, fails

SECONDS = {"killed": 1.0, "paused": 5.0, "moved": 1.0, "names-paused": 12.0, "names-killed": 1.0}
POLL = {"names-paused": 1.0, "names-killed": 0.5}


@pytest.mark.parametrize("what", FAILURES)
async def test_members_go_on_after_a_failure_that_health_names(two_brokers: RealCluster, what: str) -> None:
    found = await fails(two_brokers, what, SECONDS[what], poll=POLL.get(what, 30.0))
    print(found)
    assert found.kept
    assert found.named.keys() & FAILURES[what][1]
    assert found.others < 5.0
    assert found.sound < 30.0
