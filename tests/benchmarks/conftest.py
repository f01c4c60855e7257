"""Runs a program of ``benchmarks/`` in the test's own process; each has one test at least that runs it as its users do."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest

from ..support.benchmark_runs import BENCHMARKS

Ended = tuple[int, str, str]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Returns exit code, standard output and standard error; takes a tenth of the time of a process."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    def run(script: str, *arguments: str) -> Ended:
        capsys.readouterr()
        try:
            code = import_module(script.removesuffix(".py")).main([*arguments])
        except SystemExit as ended:
            code = ended.code
        found = capsys.readouterr()
        return code, found.out, found.err

    return run
