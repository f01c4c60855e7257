"""Runs pytest, and the tests that failed once more alone: ``python tools/second_run.py [pytest's arguments]``.

Tests that run side by side on two cores take time from each other, and a limit that one of them keeps by a factor of ten may be
exceeded then. A test that fails again while nothing else runs has failed. One that passes is printed with its first failure: it
is a finding all the same, of the test or of what it tests. There is no second run after more than ``MOST`` failures, after
failures of random tests, which would draw other data (``tests/conftest.py`` refuses them), and after an exit code other than 1.
Ends with pytest's code of the first run, or with 0 if all tests of the second run pass. The last line has the counts of both.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MOST: Final = 25
"""Failures after which a second run would take long and prove little."""
FLAG: Final = "RMQ_SECOND_RUN"
"""Environment variable of the second run."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CLOSING: Final = re.compile(r"^=*\s*(\d+ (?:passed|failed|skipped|error|rerun|deselected|xfailed).*) in ([0-9.]+)s")


def run_with_second(command: Sequence[str], arguments: Sequence[str], cwd: Path = ROOT) -> int:
    """Runs ``command``, which ends in pytest, with ``arguments``, and what failed again; returns the exit code."""
    with tempfile.TemporaryDirectory() as cache:
        kept = ["-o", f"cache_dir={cache}"]
        code, first = _run([*command, *arguments, *kept], cwd)
        failed = _failed(Path(cache))
        if code != 1 or not 0 < len(failed) <= MOST:
            return code
        print(f"\n{len(failed)} failed; they run again, alone:", *failed, sep="\n  ", flush=True)
        again = [*command, *arguments, *kept, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"]
        second_code, second = _run(again, cwd, os.environ | {FLAG: "1"})
    if second_code == 0:
        print("\nfailed beside other tests and passed alone; look why:", *failed, sep="\n  ")
    print(closing_line(first, second))
    return code if second_code else 0


def closing_line(first: str, second: str) -> str:
    """Returns pytest's closing line of both runs together. Failures of the first are those that the second ran again."""
    counts, seconds = _counts(first)
    again, more = _counts(second)
    repeated = sum(again.get(each, 0) for each in ("passed", "failed", "error"))
    for name in ("failed", "error", "errors"):
        counts.pop(name, None)
    for name in ("failed", "error", "errors", "passed"):
        if again.get(name):
            counts[name] = counts.get(name, 0) + again[name]
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{shown}, {repeated} of them in a second run in {seconds + more:.2f}s"


def _counts(line: str) -> tuple[dict[str, int], float]:
    match = _CLOSING.match(line)
    if match is None:
        return {}, 0.0
    counts = {name: int(count) for count, name in re.findall(r"(\d+) ([a-z]+)", match[1])}
    return counts, float(match[2])


def _run(command: Sequence[str], cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs it and passes its output on; returns its exit code and pytest's closing line."""
    closing = ""
    with subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            plain = _COLOUR.sub("", line)
            if _CLOSING.match(plain):
                closing = plain.strip()
    return process.returncode, closing


def _failed(cache: Path) -> list[str]:
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


if __name__ == "__main__":
    sys.exit(run_with_second([sys.executable, "-m", "pytest"], sys.argv[1:]))
