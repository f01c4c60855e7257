"""Runs most unit tests, which need neither a cluster nor Spark: ``python tools/unit_tests.py [--coverage] [pytest's arguments]``.

With ``--coverage`` it measures which lines and branches they reach, and compares with the floors. Without, runs of the
simulation belong to them, whose hashes are the same on each interpreter. The files of ``COSTLY`` are left out: all tests
took 1,270 s of the processor when traced, and the whole suite takes a quarter of an hour as it is.
Failed tests run once more, alone (``second_run``). Ends with pytest's code if one fails again, with 1 if a package is below its
floor.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))
from second_run import run_with_second

ROOT: Final = Path(__file__).resolve().parents[1]
FLOORS: Final = {"rmq_protocol": 97.8, "rmq_async": 91.8}
"""Percent of lines and branches together: what was measured, less one. Raise a floor when the figure has risen."""
HASHES: Final = "testing/simulation/test_hashes.py"
ELSEWHERE: Final = (
    *("cluster", "spark", "stress", "embedded/test_java.py", HASHES),
    *("testing/simulation/test_planted.py", "testing/simulation/test_scenarios.py"),
    *(
        "benchmarks",
        "project/test_docs.py",
        "project/test_docs_site.py",
        "project/test_examples.py",
        "project/test_release.py",
        "project/test_tutorial.py",
    ),
)
"""They need a cluster or Spark, or run programs, pages and seeds as a whole."""
COSTLY: Final = (
    *("cli/outbox/test_database.py", "cli/test_flood.py", "cli/test_spark.py"),
    *("client/test_unique_ids.py", "consumer/group/test_cuts.py", "consumer/group/test_members.py"),
    *("consumer/group/test_takeover.py", "embedded/test_thousand_clients.py", "outbox/test_alembic.py"),
    *("outbox/test_order.py", "outbox/test_stuck.py", "outbox/test_table.py", "plugin/test_plugin.py"),
    *("producer/test_calls.py", "producer/test_cancel.py", "producer/test_cold_burst.py", "producer/test_cost.py"),
    *("producer/test_cuts.py", "producer/test_departed.py", "producer/test_failures.py", "producer/test_fast_path.py"),
    *("producer/test_forgetting.py", "producer/test_limits.py", "producer/test_moved_broker.py"),
    *("producer/test_moved_client.py", "producer/test_oneway.py", "producer/test_order.py", "producer/test_pile.py"),
    *("protocol/test_bodies.py", "protocol/test_headers.py", "protocol/test_heartbeat.py", "protocol/test_hostile_bytes.py"),
    *(
        "protocol/test_small_formats.py",
        "protocol/test_stored_limits.py",
        "library/test_options.py",
        "project/test_public_names.py",
    ),
    *("testing/simulation/test_chance.py", "testing/simulation/test_clusters_simulated.py"),
    *("testing/simulation/test_network_swarm.py", "testing/simulation/test_simulation.py", "transport/test_deadlines.py"),
    *("transport/test_requests.py", "transport/test_unread.py", "transport/test_waiting.py"),
)
"""Each takes more than 2 s of the processor when traced, and reaches little that no other one reaches."""


def command_of(arguments: list[str], hashes: bool) -> list[str]:
    """Returns the arguments of Python for the tests, or for those that ``arguments`` name. ``hashes``: whether those of the
    simulation's hashes run, too."""
    if any((ROOT / argument.partition("::")[0]).exists() for argument in arguments):
        return ["-m", "pytest", "-q", "-n", "4", *arguments]
    left_out = [name for name in (*ELSEWHERE, *COSTLY) if not (hashes and name == HASHES)]
    for name in left_out:
        if not (ROOT / "tests" / name).exists():
            sys.exit(f"there is no tests/{name}; correct {Path(__file__).name}")
    ignored = [f"--ignore=tests/{name}" for name in left_out]
    return ["-m", "pytest", "-q", "-n", "4", *ignored, *arguments]


def run_traced(arguments: list[str]) -> int:
    """Runs the tests under coverage and combines the data of their processes; returns pytest's exit code."""
    command = [sys.executable, "-m", "coverage"]
    subprocess.run([*command, "erase"], check=True)
    code = run_with_second([*command, "run"], command_of(arguments, hashes=False))
    subprocess.run([*command, "combine", "--quiet"], check=True)
    return code


def below_floor() -> list[str]:
    """Prints the figure of each package; returns those that are below their floors."""
    import coverage

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
    arguments = [each for each in sys.argv[1:] if each != "--coverage"]
    if arguments == sys.argv[1:]:
        return run_with_second([sys.executable], command_of(arguments, hashes=True))
    code = run_traced(arguments)
    below = below_floor()
    if below:
        print(f"below the floor: {', '.join(below)}; add tests, or lower the floor and say why", file=sys.stderr)
    return code or bool(below)


if __name__ == "__main__":
    sys.exit(main())
