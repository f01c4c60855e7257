"""Running ``rmq`` as its users do: as a process of its own, every warning an error.

What starts a process waits for it in real time. Commands that need none run in the process of the test:
``rmq_alone``, ``rmq_here``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

import pytest

T = TypeVar("T")

START = [sys.executable, "-W", "error", "-m", "rmq_async.cli"]


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """Of ``--json``: each line is an object."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def modes(self) -> dict[str, dict[str, Any]]:
        return {record["mode"]: record for record in self.records if record["type"] == "mode"}

    @property
    def summary(self) -> dict[str, Any]:
        (found,) = [record for record in self.records if record["type"] == "summary"]
        return found


Rmq = Callable[..., Ended]


def environment() -> dict[str, str]:
    dropped = ("NAMESRV_ADDR", "PYTHONUNBUFFERED", "RMQ_TRACEBACK", "RMQ_OUTBOX_DATABASE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "COLUMNS": "100", "PYTHONSAFEPATH": "1"}


@contextmanager
def in_a_thread(entered: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enters it on a loop in a thread of its own, so that a command can run in this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="embedded")
    thread.start()
    try:
        value = asyncio.run_coroutine_threadsafe(entered.__aenter__(), loop).result(60)
        try:
            yield value
        finally:
            asyncio.run_coroutine_threadsafe(_leave(entered), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _leave(entered: AbstractAsyncContextManager[Any]) -> None:
    await entered.__aexit__(None, None, None)


def signals(first: signal.Signals) -> list[Any]:
    """Both signals with the exit codes they give: ``first``, and in the deep tier the other, since one handler takes both
    (``test_signals``)."""
    other = signal.SIGINT if first is signal.SIGTERM else signal.SIGTERM
    return [pytest.param(first, 128 + first), pytest.param(other, 128 + other, marks=pytest.mark.deep)]


async def start(*arguments: str, command: list[str] | None = None, **options: Any) -> asyncio.subprocess.Process:
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, "env": environment()}
    return await asyncio.create_subprocess_exec(*(command or START), *arguments, **(pipes | options))


async def end(process: asyncio.subprocess.Process, timeout: float = 60.0) -> Ended:
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout)
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return Ended(process.returncode, (out or b"").decode(), (err or b"").decode())


async def rmq(*arguments: str, command: list[str] | None = None, **options: Any) -> Ended:
    """Runs the command to its end. It never prints a traceback."""
    ended = await end(await start(*arguments, command=command, **options))
    assert "Traceback" not in ended.out + ended.err, ended.err
    return ended


CALLS_WITHOUT = """
import contextlib, io, json, sys
from rmq_async.cli.app import run_command

never, calls = json.loads(sys.argv[1])
for missing, arguments in calls:
    sys.modules[missing] = None
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run_command(arguments)
    del sys.modules[missing]
    assert never not in sys.modules, never
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


async def ended_without(never: str, *calls: tuple[str, tuple[str, ...]]) -> list[Ended]:
    """Runs commands, each where a package is not installed, in one process, in which the package ``never`` is not imported."""
    command = [sys.executable, "-W", "error", "-c", CALLS_WITHOUT, json.dumps([never, calls])]
    ended = await rmq(command=command)
    assert (ended.code, ended.err) == (0, "")
    return [Ended(*each) for each in map(json.loads, ended.out.splitlines())]


def one_line(text: str) -> str:
    """The only line there is."""
    (line,) = text.splitlines()
    return line


def members(group: int) -> list[int]:
    """Processes of a group that run."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, number = each.read_text().rpartition(")")[2].split()[:3]
            if int(number) == group and state != "Z":
                found.append(int(each.parent.name))
    return found


@contextmanager
def group_of(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process that leads a group, all of which is killed in the end."""
    with subprocess.Popen(command, env=environment(), start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def left_after_kill(process: subprocess.Popen[bytes], seconds: float) -> list[int]:
    """Kills the process that leads a group; returns which others of it run ``seconds`` later."""
    process.kill()
    process.wait(60)
    deadline = monotonic() + seconds
    while (left := members(process.pid)) and monotonic() < deadline:
        sleep(0.05)
    return left
