"""A second signal ends a command at once, also while nothing reads what it prints."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_async.cli.signals import signals_handled
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.waiting import until
from .outbox.support import Table, some
from .support import end, signals, start

pytestmark = pytest.mark.interpreters


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The end to write to of a pipe that is full and has no reader."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    try:
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


COMMANDS = {
    "top": ("top", "--json", "--interval", "0.2"),
    "bench": ("bench", "--topic", "Full", "--create", "--json", "--seconds", "600", "--in-flight", "1"),
    "bench by two": (
        "bench",
        "--topic",
        "Full",
        "--create",
        "--json",
        "--seconds",
        "600",
        "--in-flight",
        "1",
        "--processes",
        "2",
    ),
    "relay": ("outbox", "relay", "--json", "--every", "0.1"),
    "server": ("server", "--port", "0"),
}


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    ("name", "number", "code"),
    [
        pytest.param(name, *each.values, marks=each.marks)
        for place, name in enumerate(COMMANDS)
        for each in signals((signal.SIGINT, signal.SIGTERM)[place % 2])
    ],
)
async def test_a_second_signal_ends_a_command_whose_output_is_not_read(
    name: str, number: signal.Signals, code: int, server: EmbeddedRocketMQ, full_pipe: int, tmp_path: Path
) -> None:
    arguments = COMMANDS[name]
    if name == "relay":
        table = Table(f"sqlite+aiosqlite:///{tmp_path}/service.db")
        await table.add(*some(1))
        arguments += ("--database", table.url)
    if name != "server":
        arguments += ("--namesrv", server.namesrv)
    process = await start(*arguments, stdout=full_pipe)
    await until(lambda: "pipe" in Path(f"/proc/{process.pid}/wchan").read_text())
    for _ in range(2):
        process.send_signal(number)
        await asyncio.sleep(0.2)  # two signals at once are one
    ended = await end(process)
    assert ended.code == code
    assert "Traceback" not in ended.err


def test_signals_are_counted_and_their_handlers_restored() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    called: list[tuple[str, int]] = []
    with signals_handled(lambda number: called.append(("first", number)), lambda number: called.append(("again", number))):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            signal.raise_signal(number)
    assert called == [("first", 15), ("again", 2), ("again", 2)]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_outside_of_the_main_thread_no_signal_is_handled() -> None:
    def enter() -> object:
        with signals_handled(print):
            return signal.getsignal(signal.SIGTERM)

    assert await asyncio.to_thread(enter) == signal.getsignal(signal.SIGTERM)
