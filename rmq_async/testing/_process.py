"""Child processes of a cluster: started into one process group, controlled each by its own pid.

``subprocess.Popen`` and polling, not asyncio's subprocesses: those belong to one event loop, while a cluster of a test session
outlives the loops of its tests. Waiting polls each 20 ms; nothing here is on a hot path.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ._errors import ClusterError

__all__ = ["Group", "ServerProcess"]

_POLL = 0.02


class ServerProcess:
    """One JVM. ``log``: where its standard output and error go."""

    def __init__(
        self, command: Sequence[str], *, directory: Path, environment: Mapping[str, str], group: int, log: Path
    ) -> None:
        self.paused = False
        with log.open("ab") as output:
            self._popen = subprocess.Popen(  # noqa: S603
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=group,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs (paused or not); minus the signal's number when a signal ended it."""
        return self._popen.poll()

    async def terminate(self, timeout: float) -> bool:
        """SIGTERM, then waits; False when it still runs after ``timeout`` seconds."""
        self._popen.terminate()
        self.resume()  # a stopped process takes SIGTERM only when it goes on
        return await self._ended(time.monotonic() + timeout)

    async def kill(self) -> None:
        self._popen.kill()
        await self._ended(time.monotonic() + 30)

    def pause(self) -> None:
        """SIGSTOP; on return the process has stopped (Linux: seen in /proc; it takes well under a millisecond)."""
        self._popen.send_signal(signal.SIGSTOP)
        self.paused = True
        deadline = time.monotonic() + 1.0
        while (state := self.stat_field(3)) not in ("T", "") and time.monotonic() < deadline:
            time.sleep(0.001)
        if state not in ("T", ""):
            raise ClusterError(f"process {self.pid} did not stop within 1 s of SIGSTOP (state {state})")

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)
        self.paused = False

    def reap(self) -> None:
        """Waits for a process that was killed."""
        self._popen.wait(30)

    async def _ended(self, deadline: float) -> bool:
        while self.exit_code is None:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL)
        return True

    def stat_field(self, number: int) -> str:
        """Field ``number`` (from 1, as proc(5) counts) of /proc/PID/stat from field 3 on; empty without /proc."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ""
        return text.rpartition(")")[2].split()[number - 3]


class Group:
    """The process group of one cluster, led by its guard (see ``_guard``). ``directory``: what the guard deletes."""

    def __init__(self, directory: Path | None) -> None:
        guard = Path(__file__).with_name("_guard.py")
        command = [sys.executable, "-I", "-S", str(guard), str(os.getpid())]
        if directory is not None:
            command.append(str(directory))
        self._guard = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0, cwd="/"
        )

    @property
    def id(self) -> int:
        return self._guard.pid

    def kill(self) -> None:
        """SIGKILL to every process of the group; the guard is not reaped before, so the number cannot belong to others."""
        os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait(30)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
