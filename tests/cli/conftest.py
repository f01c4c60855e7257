"""A server that outlives the loops of the commands, and a short way to run these in the test's own process.

A command makes its loop itself: these tests wait in real time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq_async.cli.app import run_command
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Ended, Rmq, in_a_thread


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRocketMQ]:
    """Two brokers, on a loop and in a thread of their own."""
    with in_a_thread(EmbeddedRocketMQ(brokers=2)) as embedded:
        yield embedded


@pytest.fixture
def rmq_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Rmq:
    """Runs a command in this process, which takes a tenth of the time of one of its own."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = run_command(arguments)
        output = capsys.readouterr()
        return Ended(code, output.out, output.err)

    return run


@pytest.fixture
def unhurried(server: EmbeddedRocketMQ) -> Iterator[None]:
    """The brokers of ``server`` answer after 10 ms: a benchmark that must last takes little of the processor."""
    server.delay(0.01)
    yield
    server.delay(0.0)


@pytest.fixture
def rmq_here(server: EmbeddedRocketMQ, rmq_alone: Rmq, monkeypatch: pytest.MonkeyPatch) -> Rmq:
    """Runs a command in this process, on ``server``."""
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv)
    return rmq_alone
