"""Runs the command of ``--exec`` for one message: the body is its input, its exit code the outcome."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Final

import msgspec

from rmq_async import Delivery, MessageExt

__all__ = ["CANNOT_RUN", "DEAD_LETTER", "Commands", "facts_of"]

DEAD_LETTER: Final = 65
"""EX_DATAERR of sysexits.h: the input is wrong, so another attempt would fail too."""
CANNOT_RUN: Final = frozenset({126, 127})
"""Exit codes with which a shell says that it cannot run the command, or has not found it."""
STDERR: Final = 2
LAST_WORDS: Final = 1.0
"""Seconds from SIGTERM to SIGKILL for a command that is to end."""


class Commands:
    """Runs the command for messages, and ends what still runs.

    Args:
        stdout_to_stderr: True sends the command's standard output to stderr, since ours is for JSON objects only.
    """

    def __init__(self, command: str, *, stdout_to_stderr: bool) -> None:
        self._command = command
        self._stdout = STDERR if stdout_to_stderr else None
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(self, message: MessageExt, delivery: Delivery) -> int:
        """Run the command by the shell, in a process group of its own, and return its exit code; 128 + N after signal N.

        When this call is cancelled it ends the command, as ``end`` does.

        Raises:
            OSError: Where no process can be started.
        """
        # In a task of its own: a cancelled start may have made a process without an owner.
        starting = asyncio.ensure_future(self._start(message, delivery))
        try:
            process = await asyncio.shield(starting)
            await process.wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(starting))
            raise
        self._running.discard(process)
        assert process.returncode is not None
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    async def _start(self, message: MessageExt, delivery: Delivery) -> asyncio.subprocess.Process:
        with _file_of(message.body) as body:
            process = await asyncio.create_subprocess_shell(
                self._command,
                stdin=body,
                stdout=self._stdout,
                env={**os.environ, **facts_of(message, delivery)},
                start_new_session=True,  # Ctrl-C on the terminal lets it end its message
            )
        self._running.add(process)
        return process

    async def _abandon(self, starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
        try:
            process = await starting
        except OSError:
            return
        await _end(process)
        self._running.discard(process)

    async def end(self) -> None:
        """End all running commands: sends SIGTERM to their process groups, and SIGKILL to those whose shell still runs 1 s
        later.
        """
        await asyncio.gather(*map(_end, self._running))


def facts_of(message: MessageExt, delivery: Delivery) -> Mapping[str, str]:
    """Return the environment variables that describe the message.

    A field without a value is an empty text, and U+FFFD replaces NUL, which the environment cannot hold.
    """
    facts = {
        "RMQ_TOPIC": message.topic,
        "RMQ_GROUP": delivery.group,
        "RMQ_BROKER": message.queue.broker_name,
        "RMQ_QUEUE_ID": str(message.queue.queue_id),
        "RMQ_QUEUE_OFFSET": str(message.queue_offset),
        "RMQ_MSG_ID": message.msg_id,
        "RMQ_TAGS": message.tags or "",
        "RMQ_KEYS": " ".join(message.keys),
        "RMQ_SHARDING_KEY": message.sharding_key or "",
        "RMQ_PROPERTIES": msgspec.json.encode(message.user_properties).decode(),
        "RMQ_ATTEMPT": str(delivery.attempt),
        "RMQ_BORN_TIME_MS": str(message.born_time_ms),
        "RMQ_STORE_TIME_MS": str(message.store_time_ms),
    }
    return {name: text.replace("\0", "\N{REPLACEMENT CHARACTER}") for name, text in facts.items()}


def _file_of(body: bytes) -> IO[bytes]:
    """Return a file with the body, in memory or in the temporary directory.

    Unlike a pipe it needs no task to write it, and a command need not read it.
    """
    in_memory = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("message"), "w+b") if in_memory else tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
    try:
        file.write(body)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), LAST_WORDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
