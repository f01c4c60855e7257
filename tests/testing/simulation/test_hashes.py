"""One seed gives the same run everywhere: on each interpreter that is found, and with each order of its hash tables.

After a change of what clients or servers send, or when they send it, ``python -m tests.testing.simulation.test_hashes`` writes the
hashes anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rmq_async.testing.simulation import POP_KINDS

from ...simulation import run_seed

ROOT = Path(__file__).parents[3]
HASHES = Path(__file__).with_name("hashes.json")
HASHED = {"mixed": 3, "groups": 2, "broadcast": 4, "pop": 4}
"""Seeds from 1 on whose hashes are kept, by scenario."""
MET = {"mixed": 24, "groups": 12, "broadcast": 20, "pop": 25}
"""Kinds of faults that these seeds meet at least."""

PRINT_HASH = """
import sys
sys.path.append(sys.argv[1])  # behind the installed library
from tests.simulation import run_seed
print(run_seed(sys.argv[2], int(sys.argv[3])).trace_hash)
"""


def name_of(scenario: str, seed: int) -> str:
    return str(seed) if scenario == "mixed" else f"{scenario} {seed}"


@pytest.mark.parametrize("scenario", HASHED)
def test_seed_gives_the_run_that_its_hash_was_kept_of(scenario: str) -> None:
    """The order of this process's hash tables is drawn anew in each run of the tests."""
    hashes = json.loads(HASHES.read_text())
    met: Counter[str] = Counter()
    for seed in range(1, HASHED[scenario] + 1):
        outcome = run_seed(scenario, seed)
        assert not outcome.violation, f"python -m tests.simulation --scenario {scenario} --seed {seed}"
        assert outcome.seconds >= 300
        assert outcome.operations >= 90
        assert outcome.trace_hash == hashes[name_of(scenario, seed)], seed
        met.update(outcome.met)
    assert len(met) >= MET[scenario]
    if scenario == "pop":
        assert len(set(met) & set(POP_KINDS)) >= 2


@pytest.mark.parametrize(("hash_seed", "scenario", "seed"), [("0", "mixed", 2), ("4711", "groups", 2)])
def test_hash_is_that_of_each_order_of_hash_tables(hash_seed: str, scenario: str, seed: int) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", PRINT_HASH, str(ROOT), scenario, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    assert printed.stdout.strip() == json.loads(HASHES.read_text())[name_of(scenario, seed)]


if __name__ == "__main__":
    found = {
        name_of(scenario, seed): run_seed(scenario, seed).trace_hash
        for scenario, count in HASHED.items()
        for seed in range(1, count + 1)
    }
    HASHES.write_text(json.dumps(found, indent=1) + "\n")
