"""Errors of a server whose process ends: what happened, and what to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from rmq_async.testing import ClusterError
from rmq_async.testing._process import ServerProcess
from rmq_async.testing._server import Launch, Server


def server_that(directory: Path, program: str) -> Server:
    """Returns a server whose process runs a Python program."""

    def prepare(keys: Mapping[str, str]) -> ServerProcess:
        command = [sys.executable, "-I", "-S", "-c", program]
        return ServerProcess(command, directory=directory, environment={}, group=0, log=directory / "output.log")

    async def ready(server: Server, deadline: float) -> None: ...

    return Server("broker-a", "127.0.0.1:10911", Launch(directory, prepare, ready))


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            "java.net.BindException: Address already in use",
            "and its log says that its port 10911 or a port next to it is in use; end the",
        ),
        ("java.lang.Error: no memory", "with exit code 3; see the end of its log:\n"),
    ],
)
async def test_server_that_ends_says_why_and_what_to_do(tmp_path: Path, said: str, text: str) -> None:
    server = server_that(tmp_path, f"print({said!r}); raise SystemExit(3)")
    server.spawn()
    with pytest.raises(ClusterError, match=text) as raised:
        await server.wait_port(time.monotonic() + 30.0)
    assert str(raised.value).startswith("broker-a ended with exit code 3")
    assert str(raised.value).endswith(said)


async def test_server_that_does_not_listen_in_time_asks_for_more_time(tmp_path: Path) -> None:
    server = server_that(tmp_path, "import time; time.sleep(60)")
    server.spawn()
    try:
        with pytest.raises(ClusterError, match="broker-a: port 10911 did not open in time; give a longer timeout"):
            await server.wait_port(time.monotonic())
    finally:
        await server.kill()
