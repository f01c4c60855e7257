"""Connections cut inside pulls, commits, locks and give-backs of a group consumer, in the simulation: nothing is lost."""

from __future__ import annotations

import pytest

from rmq_async import Problem
from rmq_async.testing.simulation import Simulation

from ...support.frame_cuts import Place
from ...support.group_cuts import CUTS, WAYS, Cuts, bytes_of, cut_each, fields_of, named_while_cut

STEP = 7
"""The suite cuts at the beginning of each field and at every seventh byte, ``benchmarks/consumer_runs.py --what bytes`` at each."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", CUTS)
def test_group_consumer_cut_at_every_seventh_byte_and_field_loses_and_repeats_nothing(what: str, way: str) -> None:
    offset = (3 * [*CUTS].index(what) + WAYS.index(way)) % STEP

    def places(frame: bytes) -> list[Place]:
        return [*fields_of(frame), *bytes_of(frame)[offset :: STEP * (4 if what == "lock" else 1)]]

    async def main(s: Simulation) -> Cuts:
        return await cut_each(s.namesrv, "broker-a", what, way, places)

    found = Simulation(1, brokers=1, faults=None).run(main)
    print(found)
    assert found.kept
    assert found.cuts > 20


@pytest.mark.parametrize(
    ("what", "wanted"),
    [("pull", "queue_unreadable"), ("commit", "not_committed"), ("lock", "not_locked"), ("give-back", "not_taken_back")],
)
@pytest.mark.parametrize("at", [0, 60])
def test_health_names_requests_that_are_cut_again_and_again(what: str, wanted: str, at: int) -> None:
    async def main(s: Simulation) -> Problem:
        found = await named_while_cut(s.namesrv, "broker-a", what, wanted, lambda frame: at)
        assert isinstance(found, Problem)
        return found

    problem = Simulation(2, brokers=1, faults=None).run(main)
    print(problem)
    assert "connection lost" in problem.text
