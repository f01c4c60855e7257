"""The tool that runs failed tests once more, alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import refuse_random

TOOL = Path(__file__).parents[2] / "tools" / "second_run.py"
sys.path.insert(0, str(TOOL.parent))
try:
    from second_run import MOST, closing_line
finally:
    sys.path.remove(str(TOOL.parent))

ONCE = """
import os

def test_steady():
    pass

def test_disturbed():
    assert "RMQ_SECOND_RUN" in os.environ
"""


def run(place: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (place / "test_them.py").write_text(source)
    program = f"import sys; sys.path.insert(0, {str(TOOL.parent)!r}); import pathlib, second_run; "
    program += "sys.exit(second_run.run_with_second([sys.executable, '-m', 'pytest'], sys.argv[1:], pathlib.Path.cwd()))"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)


def test_second_run_of_a_test_that_passes_alone_ends_with_0_and_names_it(tmp_path: Path) -> None:
    ended = run(tmp_path, ONCE, "-n", "2")
    assert ended.returncode == 0, ended.stdout
    *_, place, closing = ended.stdout.splitlines()
    assert place == "  test_them.py::test_disturbed"
    assert closing.startswith("2 passed, 1 of them in a second run in ")
    assert "1 failed, 1 passed in" in ended.stdout


def test_second_run_of_a_test_that_fails_again_ends_with_1(tmp_path: Path) -> None:
    ended = run(tmp_path, ONCE + "\ndef test_wrong():\n    assert 1 == 2\n")
    assert ended.returncode == 1, ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("2 passed, 1 failed, 2 of them in a second run in ")
    assert "passed alone" not in ended.stdout


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("".join(f"def test_{n}(): assert 0\n" for n in range(MOST + 1)), 1),
        ("import missing_module\n", 2),
        ("def test_right():\n    pass\n", 0),
    ],
    ids=["many", "no collection", "nothing failed"],
)
def test_second_run_is_left_out(tmp_path: Path, source: str, code: int) -> None:
    ended = run(tmp_path, source, "-q")
    assert ended.returncode == code, ended.stdout
    assert "again, alone" not in ended.stdout


def test_second_run_of_random_tests_is_refused() -> None:
    class Item:
        nodeid = "tests/test_x.py::test_y"

    refuse_random([])
    with pytest.raises(pytest.UsageError, match=r"random data: tests/test_x.py::test_y"):
        refuse_random([Item()])  # type: ignore[list-item]


def test_closing_line_has_the_counts_of_both() -> None:
    first = "===== 2 failed, 8999 passed, 2 skipped, 1 error, 3 rerun in 950.25s (0:15:50) ====="
    assert closing_line(first, "3 passed in 20.50s") == "9002 passed, 2 skipped, 3 rerun, 3 of them in a second run in 970.75s"
    assert closing_line(first, "==== 1 failed, 2 passed in 1.00s ====") == (
        "9001 passed, 2 skipped, 3 rerun, 1 failed, 3 of them in a second run in 951.25s"
    )
