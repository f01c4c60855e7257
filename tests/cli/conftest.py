"""A server that outlives the loops of the commands, and a short way to run these in the test's own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from rmq_async.cli.app import run_command
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Ended, Rmq


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRocketMQ]:
    """Two brokers, on a loop and in a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="embedded")
    thread.start()
    embedded = EmbeddedRocketMQ(brokers=2)
    asyncio.run_coroutine_threadsafe(embedded.start(), loop).result(60)
    try:
        yield embedded
    finally:
        asyncio.run_coroutine_threadsafe(embedded.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@pytest.fixture
def rmq_here(server: EmbeddedRocketMQ, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Rmq:
    """Runs a command in this process, on ``server``."""
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = run_command(arguments)
        output = capsys.readouterr()
        return Ended(code, output.out, output.err)

    return run
