"""Members of a group come, leave and are killed under load on a real broker: what became of each message. In full:
``benchmarks/consumer_handover.py``."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rmq_async.testing.cluster import RealCluster

from .conftest import OLD_IS_DEEP
from .group_members import Group, ends_of_members, rebalances

SEED = 7


@OLD_IS_DEEP
async def test_members_that_join_and_stop_repeat_nothing(each_cluster: RealCluster, tmp_path: Path) -> None:
    async with Group(each_cluster, tmp_path / "files", 120.0, 0.2) as group:
        count = await rebalances(group, 4, 2.0, SEED, members=3)
    print(f"seed {SEED}: {count}")
    assert count.handled == count.sent > 0
    assert count.exactly_once
    assert not count.begun_again


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
async def test_a_member_that_ends_loses_nothing(cluster: RealCluster, tmp_path: Path, number: signal.Signals) -> None:
    options = {"handover_timeout": 1.5, "commit_interval": 0.2}
    async with Group(cluster, tmp_path / "files", 50.0, 1.0, options=options) as group:
        count, ended = await ends_of_members(group, number, 2, SEED, 0.2)
    print(f"seed {SEED}: {count}, {ended}")
    assert count.handled == count.sent > 0
    assert not count.lost
    assert all(each.replayed <= each.bound for each in ended)
    if number is signal.SIGTERM:
        assert count.exactly_once
        assert [each.code for each in ended] == [0, 0]
