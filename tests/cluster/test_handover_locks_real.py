"""Locks under which members of a group hand queues over, on real brokers of both versions, without and with ACL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq_async.consumer.group.queue_locks import handover_group
from rmq_async.testing.cluster import DEFAULT_VERSION, OLD_VERSION, RealCluster

from .conftest import run, started
from .handover_facts import (
    GROUP,
    MEMBER,
    Members,
    becomes_of_a_retry,
    error_under,
    guarded_cluster,
    handovers,
    lost_in_a_restart,
    one_owner,
    outlives_its_connection,
    prepare,
    renewed,
)


@pytest.fixture(scope="module", params=[DEFAULT_VERSION, OLD_VERSION])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """With ACL: a member has the right to subscribe with its group and topic, and no other."""
    for cluster in started(guarded_cluster(request.param, tmp_path_factory.mktemp("handover") / "cluster")):
        run(prepare(cluster, MEMBER))
        yield cluster


async def test_locks_with_a_members_rights_have_one_owner(real: RealCluster) -> None:
    async with Members(real, MEMBER) as members:
        assert await one_owner(members) == {"granted": True, "refused": True, "ignored": True, "freed": True}
        assert await outlives_its_connection(members)
        assert await renewed(members, 1.0, 0.2)
        assert max(await handovers(members, 5)) < 1.0


async def test_only_the_name_of_the_retry_topic_needs_no_right_of_its_own(real: RealCluster) -> None:
    async with Members(real, MEMBER) as members:
        assert await error_under(members, handover_group(GROUP)) == ""
        error = await error_under(members, f"{GROUP}%HANDOVER")
        assert (f"Group:{GROUP}%HANDOVER" in error) is (real.version == DEFAULT_VERSION)


async def test_a_group_that_does_not_exist_has_locks(real: RealCluster) -> None:
    async with Members(real) as members:
        assert await one_owner(members) == {"granted": True, "refused": True, "ignored": True, "freed": True}


@pytest.mark.parametrize("how", ["send", "36"])
async def test_a_retry_is_no_dead_letter_while_a_handover_is_locked(real: RealCluster, how: str) -> None:
    assert await becomes_of_a_retry(real, handover_group(GROUP), how) == "retried"


async def test_a_send_to_the_retry_topic_is_a_dead_letter_while_the_group_itself_is_locked(real: RealCluster) -> None:
    expected = "dead letter" if real.version == DEFAULT_VERSION else "retried"
    assert await becomes_of_a_retry(real, GROUP, "send") == expected


async def test_a_broker_that_restarts_forgets_locks_and_their_owner_learns_of_it(real: RealCluster) -> None:
    async with Members(real, MEMBER) as members:
        assert await lost_in_a_restart(members)
