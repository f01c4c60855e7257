"""Lets the modules of this directory import the helpers beside them, and prints what became of the golden vectors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("vectors")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    import vectors

    if not vectors.TALLIES:
        return
    terminalreporter.section("golden vectors")
    for name, tally in vectors.TALLIES.items():
        terminalreporter.line(f"{name}: {tally}")
