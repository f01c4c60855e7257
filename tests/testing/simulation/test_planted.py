"""Planted bugs are found: each patch of ``planted/`` still applies, and some are searched for here. The others run by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import planted

TABLE = planted.PATCHES / "README.md"
SEARCHED = (
    "answers-in-order",
    "callback-ends-the-batch",
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


@pytest.mark.parametrize("name", SEARCHED)
def test_planted_bug_is_found_by_its_checker(name: str) -> None:
    plant = planted.described(planted.PATCHES / f"{name}.patch")
    result = planted.search(plant, timeout=120.0)
    assert result.found_by == plant.found_by, f"{result.tried} seeds of {plant.scenario}, {result.violation}"
    assert result.cpu < 8.0


def test_patch_that_does_not_apply_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not apply"):
        planted.apply("attempts-not-counted", tmp_path)


def test_errors_of_the_library_are_no_finding() -> None:
    assert planted.kind("KeyError: 3\nseed 4, 12.0 virtual seconds").startswith("error")
    assert planted.kind("SimulationError: seed 1: plain failed at 2.0 s: KeyError(3)").startswith("error")
    assert planted.kind("SimulationError: seed 1: 2 violations\nlost: send() of plain") == "lost"
    assert planted.kind("SimulationError: seed 1: 1 violations\nunhandled: plain at 3.0 s: x: None").startswith("error")
    assert planted.kind("SimulationError: seed 1: a callback ran for more than 5 real seconds, at 3 s") == "freeze"
