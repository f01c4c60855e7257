"""For all tests: ``pytester``, with which the pytest plugin's own tests make projects to run; the look-out for secrets; and which
tests may run beside which.

A session in which any log record of the client, at any level, shows a secret that a test signs with fails at its end.

With pytest-xdist (``tox`` runs ``-n 2 --dist loadgroup``) there are two groups, so two processes: tests that start servers of Java
or measure, most of whose time is waiting, and all others.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from . import canaries

pytest_plugins = ["pytester"]

logging.setLoggerClass(canaries.CanaryLogger)

_tallies: dict[str, str] = {}
"""What became of the golden vectors in other processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        real = "cluster" in item.path.parts or item.path.name == "test_benchmarks.py"
        item.add_marker(pytest.mark.xdist_group("real servers" if real else "others"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["canaries"] = canaries.found
        vectors = sys.modules.get("vectors")
        told["tallies"] = {name: str(tally) for name, tally in vectors.TALLIES.items()} if vectors is not None else {}
    if canaries.found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended."""
    told = getattr(node, "workeroutput", {})
    canaries.found += told.get("canaries", [])
    _tallies.update(told.get("tallies", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tallies:
        terminalreporter.section("golden vectors")
    for name, tally in _tallies.items():
        terminalreporter.line(f"{name}: {tally}")
    for where in canaries.found:
        terminalreporter.write_line(f"A SECRET IN THE LOG: {where}", red=True)
