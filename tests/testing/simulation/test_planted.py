"""Planted bugs are found: each patch of ``planted/`` still applies, and some are searched for here. The others run by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import planted

TABLE = planted.PATCHES / "README.md"
SEARCHED = (
    "answers-in-order",
    "callback-ends-the-batch",
    "confirmed-offset-believed",
    "refused-lock-believed",
    "refused-queue-kept",
    "rollback-commits",
    "skipped-offsets-believed",
    "takeover-one-behind",
)


@pytest.mark.parametrize("plant", planted.plants(), ids=lambda plant: plant.name)
def test_patch_applies_to_the_tree(plant: planted.Plant) -> None:
    planted.apply(plant.name, planted.ROOT, check=True)


def test_table_lists_every_patch() -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.read_text().splitlines() if line.startswith("| ")
    ]
    listed = {row[0]: (row[1], row[2], row[3], row[4]) for row in rows[1:]}
    assert listed == {each.name: (each.what, each.scenario, str(each.seeds), each.found_by) for each in planted.plants()}


def test_thirty_plants_are_subtle_and_found() -> None:
    """As the page has it: those of groups, failovers, broadcast members, members that pop and fixed lists of queues, and the eight
    that it names, do not count."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.read_text().splitlines() if line.startswith("| ")
    ]
    at_once = TABLE.read_text().partition("found at once:")[2].partition(".\n")[0]
    counted = [
        row
        for row in rows[1:]
        if row[2] not in ("groups", "arranged", "failovers", "broadcast", "kept", "pop") and row[0] not in at_once
    ]
    firsts = [int(row[5]) for row in counted]
    assert len(counted) == 30
    assert sum(first <= 10 for first in firsts) <= 8
    assert max(firsts) <= 2000
    mends = {re.match(r"Defect (\d+)|Point (\d+)", row[1]) for row in counted}
    assert {each[0] for each in mends if each} == {
        "Defect 1", "Defect 2", "Defect 3", "Defect 4", "Defect 6", "Defect 7", "Point 13", "Point 14", "Point 18",
    }  # fmt: skip


@pytest.mark.parametrize("name", SEARCHED)
def test_planted_bug_is_found_by_its_checker(name: str) -> None:
    plant = planted.described(planted.PATCHES / f"{name}.patch")
    result = planted.search(plant, timeout=500.0)  # it takes seconds
    assert result.found_by == plant.found_by, f"{result.tried} seeds of {plant.scenario}, {result.violation}"


def test_patch_that_does_not_apply_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not apply"):
        planted.apply("attempts-not-counted", tmp_path)


def test_errors_of_the_library_are_no_finding() -> None:
    assert planted.kind("KeyError: 3\nseed 4, 12.0 virtual seconds").startswith("error")
    assert planted.kind("SimulationError: seed 1: plain failed at 2.0 s: KeyError(3)").startswith("error")
    assert planted.kind("SimulationError: seed 1: 2 violations\nlost: send() of plain") == "lost"
    assert planted.kind("SimulationError: seed 1: 1 violations\nunhandled: plain at 3.0 s: x: None").startswith("error")
    assert planted.kind("SimulationError: seed 1: a callback ran for more than 5 real seconds, at 3 s") == "freeze"
