"""For all tests: ``pytester``, with which the pytest plugin's own tests make projects to run; and the look-out for secrets.

A session in which any log record of the client, at any level, shows a secret that a test signs with fails at its end.
"""

from __future__ import annotations

import logging

import pytest

from . import canaries

pytest_plugins = ["pytester"]

logging.setLoggerClass(canaries.CanaryLogger)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if canaries.found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for where in canaries.found:
        terminalreporter.write_line(f"A SECRET IN THE LOG: {where}", red=True)
