"""Groups on real brokers: rolling restarts, failing messages, hung handlers, new groups, Java members, memory. In full:
``benchmarks/consumer_runs.py``."""

from __future__ import annotations

from pathlib import Path

from rmq_async.testing.cluster import RealCluster

from ..support.java.program import require_javac
from .conftest import OLD_IS_DEEP
from .group_calls import high
from .group_hung import hangs
from .group_member import DEAD, RAISES
from .group_members import Group
from .group_memory import idle_queue, memory
from .group_runs import mixed, poisoned, rolling_restart
from .group_starts import new_groups
from .java_members import java_members

SEED = 7


async def test_a_rolling_restart_repeats_nothing_and_pauses_no_queue_for_long(cluster: RealCluster, tmp_path: Path) -> None:
    async with Group(cluster, tmp_path / "files", 120.0, 0.3, queues=24) as group:
        count, pauses, longest_exit = await rolling_restart(group, 3, 1.5)
    beyond = high((pause.beyond for pause in pauses), 1.0)
    print(f"{count}, {len(pauses)} queues moved, at most {beyond} s beyond their handlers, exit within {longest_exit} s")
    assert count.handled == count.sent > 0
    assert count.exactly_once
    assert len(pauses) >= 24
    assert beyond < 3.0  # the promise is 1 s for 99 %, of a machine that does nothing else


async def test_failing_messages_become_dead_letters_and_delay_no_others(cluster: RealCluster, tmp_path: Path) -> None:
    async with Group(cluster, tmp_path / "files", 120.0, 0.02, retry=(2, (1.0, 1.0))) as group:
        count, poison = await poisoned(group, 2, 3.0, 30)
    print(count, poison)
    assert count.handled == count.sent - len(group.tagged) > 0
    assert count.exactly_once or count.dead_letters == len(group.tagged)
    assert not count.lost
    assert not count.repeated
    assert poison.attempts == {RAISES: {3: poison.tagged[RAISES]}, DEAD: {1: poison.tagged[DEAD]}}
    assert poison.dead == poison.tagged
    assert not poison.dead_twice
    assert not poison.good_dead
    assert poison.overlap <= 0.0
    assert all(poison.rates[tag] >= 0.95 * poison.offered[tag] for tag in (RAISES, DEAD))


async def test_a_hung_handler_holds_up_its_own_queue_alone(cluster: RealCluster) -> None:
    hung = await hangs(cluster, 400.0, 3.0, 50)
    print(hung)
    assert hung.others > 0.95
    assert hung.ahead == 49
    assert hung.named_after is not None
    assert 2.9 <= hung.cancelled_after < 4.0  # the timeout runs from before the handler's first step
    assert hung.again_after >= hung.cancelled_after + 0.9
    assert (hung.calls, hung.at_a_time) == (2, 1)
    assert (hung.lost, hung.repeated) == (0, 0)


async def test_new_groups_get_all_that_is_sent_after_their_start(each_cluster: RealCluster) -> None:
    found = await new_groups(each_cluster, 1, 15, 6, 50.0, SEED)
    print(f"seed {SEED}: {found}")
    assert found.groups == 15
    assert found.due > 0
    assert found.in_new_queues > 0
    assert (found.missed, found.twice) == (0, 0)


@OLD_IS_DEEP
async def test_java_members_share_a_group_with_ours(each_cluster: RealCluster, tmp_path: Path) -> None:
    require_javac()
    async with (
        Group(each_cluster, tmp_path / "files", 100.0, 0.1, queues=12) as group,
        java_members(each_cluster.namesrv, group.name, group.work) as java,
    ):
        count, shares = await mixed(group, java, 4, 0.5, SEED)
    print(f"seed {SEED}: {count}, {shares}")
    assert count.handled == count.sent > 0
    assert not count.lost
    assert not shares.differences
    assert min(shares.java, shares.python) > 0


async def test_a_member_keeps_its_memory_within_its_limits(cluster: RealCluster, tmp_path: Path) -> None:
    found = await memory(cluster, tmp_path, 32, 1 << 20, 8 << 20, (4.0, 2.0))
    print(found)
    assert found.handled > 0
    assert found.backlog <= found.limit + 32
    assert found.arriving <= found.limit + 32 + found.queues * found.body


async def test_an_idle_queue_is_served_beside_a_backlog(cluster: RealCluster, tmp_path: Path) -> None:
    options = {"start_from": "earliest"}
    async with Group(cluster, tmp_path / "files", 0.0, 0.2, options=options) as group:
        found = await idle_queue(group, 20_000, 15, 0.2)
    print(found)
    assert found.left > 10_000
    assert found.longest < 1.0
