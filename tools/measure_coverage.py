"""Measures which lines and branches the tests reach, and compares with the floors: ``python tools/measure_coverage.py``.

It runs the tests that need neither a cluster nor Spark, without the files of ``UNMEASURED``, in the environment that it is called
in (``tox -e coverage``). Tracing multiplies Python's processor time by 2.5: all unit tests took 1,270 s of it.
Ends with code 1 if a package is below its floor, with pytest's code if a test fails.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import coverage

ROOT: Final = Path(__file__).resolve().parents[1]
FLOORS: Final = {"rmq_protocol": 97.8, "rmq_async": 91.8}
"""Percent of lines and branches together: what was measured, less one. Raise a floor when the figure has risen."""
ELSEWHERE: Final = (
    *("cluster", "spark", "stress", "embedded/test_java.py", "testing/simulation/test_hashes.py"),
    *("testing/simulation/test_planted.py", "testing/simulation/test_scenarios.py"),
    *("test_compare.py", "test_docs.py", "test_docs_site.py", "test_examples.py", "test_release.py", "test_tutorial.py"),
)
"""They need a cluster or Spark, or run programs, pages and seeds as a whole."""
UNMEASURED: Final = (
    *("cli/outbox/test_database.py", "cli/test_demo_faults.py", "cli/test_flood.py", "cli/test_spark.py"),
    *("client/test_unique_ids.py", "consumer/group/test_cuts.py", "consumer/group/test_members.py"),
    *("consumer/group/test_takeover.py", "embedded/test_thousand_clients.py", "outbox/test_alembic.py"),
    *("outbox/test_order.py", "outbox/test_stuck.py", "outbox/test_table.py", "plugin/test_plugin.py"),
    *("producer/test_calls.py", "producer/test_cancel.py", "producer/test_cold_burst.py", "producer/test_cost.py"),
    *("producer/test_cuts.py", "producer/test_departed.py", "producer/test_failures.py", "producer/test_fast_path.py"),
    *("producer/test_forgetting.py", "producer/test_limits.py", "producer/test_moved_broker.py"),
    *("producer/test_moved_client.py", "producer/test_oneway.py", "producer/test_order.py", "producer/test_pile.py"),
    *("protocol/test_bodies.py", "protocol/test_headers.py", "protocol/test_heartbeat.py", "protocol/test_hostile_bytes.py"),
    *("protocol/test_small_formats.py", "protocol/test_stored_limits.py", "test_options.py", "test_public_names.py"),
    *("testing/simulation/test_chance.py", "testing/simulation/test_clusters_simulated.py"),
    *("testing/simulation/test_network_swarm.py", "testing/simulation/test_simulation.py", "transport/test_deadlines.py"),
    *("transport/test_requests.py", "transport/test_unread.py", "transport/test_waiting.py"),
)
"""Each takes more than 2 s of the processor when traced, and reaches little that no other one reaches."""


def run_tests(arguments: list[str]) -> int:
    """Runs the tests under coverage and combines the data of their processes; returns pytest's exit code."""
    left_out = [f"--ignore=tests/{name}" for name in (*ELSEWHERE, *UNMEASURED)]
    for name in (*ELSEWHERE, *UNMEASURED):
        if not (ROOT / "tests" / name).exists():
            sys.exit(f"there is no tests/{name}; correct {Path(__file__).name}")
    command = [sys.executable, "-m", "coverage"]
    subprocess.run([*command, "erase"], check=True)
    tests = [*command, "run", "-m", "pytest", "-q", "-n", "8", *left_out, "--ignore-glob=tests/test_benchmark*", *arguments]
    code = subprocess.run(tests, cwd=ROOT, check=False).returncode
    subprocess.run([*command, "combine", "--quiet"], check=True)
    return code


def below_floor() -> list[str]:
    """Prints the figure of each package; returns those that are below their floors."""
    data = coverage.Coverage(data_file=os.environ.get("COVERAGE_FILE", ".coverage"))
    data.load()
    found = []
    for package, floor in FLOORS.items():
        text = io.StringIO()
        reached = data.report(include=[f"*/site-packages/{package}/*"], sort="cover", skip_covered=True, file=text)
        print(text.getvalue())
        print(f"{package}: {reached:.1f} %, floor {floor:.1f} %\n")
        if reached < floor:
            found.append(f"{package} {reached:.1f} %")
    return found


def main() -> int:
    code = run_tests(sys.argv[1:])
    below = below_floor()
    if below:
        print(f"below the floor: {', '.join(below)}; add tests, or lower the floor and say why", file=sys.stderr)
    return code or bool(below)


if __name__ == "__main__":
    sys.exit(main())
