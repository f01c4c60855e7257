"""The child processes of a cluster. They are in one process group, and each of them is controlled by its pid.

The module uses ``subprocess.Popen`` and polling, because asyncio's subprocesses belong to one event loop, while a cluster of a
test session outlives the loops of its tests. Coroutines that wait for the end of a process poll every 20 ms.
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

_POLL = 0.02


class ServerProcess:
    """One JVM. The constructor starts it.

    Args:
        log: The file for the standard output and standard error of the process.
    """

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
        """The exit code. None while the process exists, paused or not. If a signal ended the process, it is the negative signal
        number.
        """
        return self._popen.poll()

    async def terminate(self, timeout: float) -> bool:
        """Send SIGTERM and wait for the end. Return False if the process still runs after ``timeout`` seconds."""
        self._popen.terminate()
        self.resume()  # a stopped process handles SIGTERM only after SIGCONT
        return await self._ended(time.monotonic() + timeout)

    async def kill(self) -> None:
        self._popen.kill()
        await self._ended(time.monotonic() + 30)

    def pause(self) -> None:
        """Send SIGSTOP. Return when the process has stopped, or at once without /proc.

        Raises:
            ClusterError: If the process has not stopped after 1 s.
        """
        self._popen.send_signal(signal.SIGSTOP)
        self.paused = True
        deadline = time.monotonic() + 1.0
        while (state := self.stat_field(3)) not in ("T", "") and time.monotonic() < deadline:
            time.sleep(0.001)
        if state not in ("T", ""):
            raise ClusterError(
                f"process {self.pid} did not stop within 1 s of SIGSTOP (state {state}); pause it again, or kill it"
            )

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)
        self.paused = False

    def reap(self) -> None:
        """Wait for the end of a process that was killed, but for at most 30 s."""
        self._popen.wait(30)

    async def _ended(self, deadline: float) -> bool:
        while self.exit_code is None:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL)
        return True

    def stat_field(self, number: int) -> str:
        """Return field ``number`` (at least 3, numbered as in proc(5)) of /proc/PID/stat. Return an empty string without /proc."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ""
        return text.rpartition(")")[2].split()[number - 3]


class Group:
    """The process group of one cluster, led by its guard (see ``_guard``), which deletes ``directory`` if this process ends without
    killing the group.
    """

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
        """Send SIGKILL to the group. The guard is reaped only afterwards, so that the id of the group cannot have been reused."""
        os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait(30)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
