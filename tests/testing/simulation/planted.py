"""Planted bugs: patches that each put one defect into a copy of the library, and the search for seeds that find it.

A patch begins with its own description: ``What``, ``Scenario``, ``Seeds`` (as many as are run) and ``Found by``. By hand, all of
them, or those that are named::

    python tests/testing/simulation/planted.py [--seeds N] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[3]
PATCHES: Final = Path(__file__).parent / "planted"
PACKAGES: Final = ("rmq_async", "protocol/rmq_protocol", "tests/simulation")

SEARCH: Final = """
import json, sys, time
import rmq_async
from tests.simulation import run_seed
scenario, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
began, outcome = time.process_time(), None
for seed in range(first, first + count):
    outcome = run_seed(scenario, seed)
    if outcome.violation:
        break
print(json.dumps({"seed": seed, "tried": seed - first + 1, "violation": outcome.violation, "cpu": time.process_time() - began,
                  "library": rmq_async.__file__}))
"""


class Plant(NamedTuple):
    """``seeds``: how many seeds of the scenario, from 1 on, are run to find it. ``found_by``: the checker, or "freeze"."""

    name: str
    what: str
    scenario: str
    seeds: int
    found_by: str


class Search(NamedTuple):
    """``found_by``: empty where no seed failed, and "error: ..." where an exception of the library ended the run by itself."""

    seed: int
    tried: int
    found_by: str
    violation: str
    cpu: float


def plants() -> list[Plant]:
    return [described(path) for path in sorted(PATCHES.glob("*.patch"))]


def described(path: Path) -> Plant:
    head = path.read_text().partition("diff --git")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    return Plant(path.stem, fields["What"], fields["Scenario"], int(fields["Seeds"]), fields["Found by"])


def apply(name: str, tree: Path, *, check: bool = False) -> None:
    """Applies a patch in ``tree``. Raises AssertionError with git's words where it does not apply."""
    command = ["git", "apply", "-C1", *(["--check"] if check else []), str(PATCHES / f"{name}.patch")]
    # A tree inside a repository would have git look for the paths from the top of that repository.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name}.patch does not apply: {done.stderr}"


@contextmanager
def planted(name: str) -> Iterator[Path]:
    """Returns the folder of a copy of the library with a patch applied; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="rmq_async_planted_") as folder:
        tree = Path(folder)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
        apply(name, tree)
        yield tree


def search(plant: Plant, *, first: int = 1, seeds: int | None = None, timeout: float | None = None) -> Search:
    """Runs seeds of the plant's scenario in a process of their own until one has a violation."""
    with planted(plant.name) as tree:
        environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'protocol'}", "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", SEARCH, plant.scenario, str(first), str(plant.seeds if seeds is None else seeds)]
        try:
            done = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return Search(0, 0, f"error: no end within {timeout:g} s", "", 0.0)
        assert done.returncode == 0, f"the search for {plant.name} failed: {done.stderr[-2000:]}"
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert Path(found["library"]).is_relative_to(tree.resolve()), f"another library was run: {found['library']}"
    return Search(found["seed"], found["tried"], kind(found["violation"]), found["violation"], found["cpu"])


def kind(violation: str) -> str:
    """Returns the name of the checker whose line is the first one, or "freeze"."""
    if not violation:
        return ""
    first, *lines = violation.splitlines()
    if "a callback ran for more than" in first or "at one virtual time" in first:
        return "freeze"
    if first.startswith("SimulationError") and first.endswith("violations"):
        names = [line.partition(":")[0] for line in lines if ":" in line and not line.startswith(("unhandled", "seed"))]
        if names:
            return names[0]
    return f"error: {first[:120]}"


def main() -> int:
    """Searches for all plants, or for those named; prints one line of the table for each, and returns the number not found."""
    parser = argparse.ArgumentParser(description="Searches for planted bugs.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=None, help="seeds of each, instead of the number in its patch")
    parser.add_argument("--timeout", type=float, default=600.0, help="real seconds of one search")
    options = parser.parse_args()
    missed = 0
    for plant in plants():
        if options.names and plant.name not in options.names:
            continue
        result = search(plant, seeds=options.seeds, timeout=options.timeout)
        found = bool(result.found_by) and not result.found_by.startswith("error")
        missed += not found
        said = f"seed {result.seed}, {result.found_by}" if result.found_by else f"NOT FOUND in {result.tried} seeds"
        print(f"| {plant.name} | {plant.scenario} | {said} | {result.cpu:.1f} s |", flush=True)
        if result.violation:
            print("   ", "\n    ".join(result.violation.splitlines()[:3])[:400], file=sys.stderr, flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
