"""One name server or broker of a cluster, with its controls: start, stop, kill, pause."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ._errors import ClusterError, PortInUseError
from ._ports import listens
from ._process import ServerProcess

STOP_TIMEOUT: Final = 60.0
_LOGS: Final = ("output.log", "server.log")
_ERROR: Final = re.compile(r"\s*(Caused by: )?[\w.$]+(Exception|Error)\b")
_BIND_MARKS: Final = ("BindException", "Address already in use", "Failed to bind")


@dataclass(frozen=True)
class Launch:
    """Instructions to start a server, any number of times.

    ``prepare(keys)`` writes the server's files and starts its process. ``keys`` are the keys of the configuration that a move
    has changed. ``ready(server, deadline)`` waits until the server serves requests.
    """

    directory: Path
    prepare: Callable[[Mapping[str, str]], ServerProcess]
    ready: Callable[[Server, float], Awaitable[None]]


class Server:
    """A name server or broker.

    A server of an external cluster (NAMESRV_ADDR) has only a name, an address and a port: ``running`` and ``paused`` are False,
    and the other attributes and the controls raise ClusterError. ``pid``, ``rss_bytes``, ``cpu_seconds``, ``pause`` and
    ``resume`` also raise ClusterError while the server is not running. ``start``, ``stop`` and ``kill`` are coroutines;
    ``cpu_seconds``, ``pause`` and ``resume`` are plain calls.

    Args:
        name: The name of the broker, or ``namesrv-N``.
        address: The "host:port" at which clients reach the server.
    """

    def __init__(self, name: str, address: str, launch: Launch | None = None) -> None:
        self.name = name
        self.address = address
        self._launch = launch
        self._moved: Mapping[str, str] = {}
        self._process: ServerProcess | None = None

    def __repr__(self) -> str:
        state = "not ours" if self._launch is None else "paused" if self.paused else "up" if self.running else "down"
        return f"<Server {self.name} {self.address} {state}>"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def running(self) -> bool:
        """Whether the process exists. A paused process exists."""
        return self._process is not None and self._process.exit_code is None

    @property
    def paused(self) -> bool:
        return self.running and self._own().paused

    @property
    def pid(self) -> int:
        """The process id."""
        return self._own().pid

    @property
    def directory(self) -> Path:
        """The directory of the server's store, logs and configuration."""
        return self._launched().directory

    @property
    def rss_bytes(self) -> int:
        """Resident memory in bytes, read from /proc. 0 without /proc."""
        pages = self._own().stat_field(24)
        return int(pages or 0) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Return the user and system time of all threads so far, in seconds, read from /proc in steps of 10 ms. Return 0.0
        without /proc.
        """
        process = self._own()
        ticks = int(process.stat_field(14) or 0) + int(process.stat_field(15) or 0)
        return ticks / os.sysconf("SC_CLK_TCK")

    async def start(self, *, registered: bool = True, timeout: float = 60.0) -> None:
        """Start a server that is down, with its former port and store. Do nothing if the server is running.

        A broker is up when every running name server routes to it. A name server is up when it routes to every running broker;
        brokers are made to register at once. Paused servers do not count. With ``registered=False``, a server is up when its
        port is open, and brokers register at their usual times (10-30 s after a restart of a name server).

        Raises:
            ClusterError: If the server ends or is not up within ``timeout`` seconds; the message contains the end of the
                server's log. Also if the cluster was stopped.
        """
        launch = self._launched()
        if self.running:
            return
        deadline = time.monotonic() + timeout
        for attempt in range(3):
            self.spawn()
            try:
                await self.wait_port(deadline)
                break
            except PortInUseError:  # a connection of the former process may still hold the port
                if attempt == 2:
                    raise
                await asyncio.sleep(1.0)
        if registered:
            await launch.ready(self, deadline)

    def spawn(self) -> None:
        """Start the process without waiting until it serves requests."""
        self._process = self._launched().prepare(self._moved)

    def relocate(self, address: str, keys: Mapping[str, str]) -> None:
        """Change the address for later starts, with these keys of the configuration. See ``RealCluster.move``."""
        self.address = address
        self._moved = dict(keys)

    async def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Shut the server down with SIGTERM. Return when the server has ended. Do nothing if the server is not running.

        The server's connections close at once, except with the profile "go-away". A broker ends about 16 s later (5.5.0).

        Raises:
            ClusterError: If the server has not ended after ``timeout`` seconds. The shutdown then continues.
        """
        if not self.running and self._launched():
            return
        if not await self._own().terminate(timeout):
            raise ClusterError(f"{self.name} has not ended {timeout:g} s after SIGTERM; wait, or kill() it\n{self.log_tail()}")

    async def kill(self) -> None:
        """Send SIGKILL. Return when the process has ended, but after 30 s at the latest. Do nothing if the server is not
        running.
        """
        if self.running or not self._launched():
            await self._own().kill()

    def pause(self) -> None:
        """Stop the process with SIGSTOP until ``resume``. Connections stay open, but requests get no response.

        Raises:
            ClusterError: If the process still runs after 1 s.
        """
        self._own().pause()

    def resume(self) -> None:
        """Continue the process with SIGCONT. Do nothing if the process was not paused."""
        self._own().resume()

    async def wait_port(self, deadline: float) -> None:
        """Wait until the port is open.

        Raises:
            ClusterError: If the process ends, or at ``deadline`` (``time.monotonic()``).
        """
        while not (self.running and listens(self.pid, self.port)):
            self.check_alive()
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"{self.name}: port {self.port} did not open in time; give a longer timeout\n{self.log_tail()}"
                )
            await asyncio.sleep(0.05)

    def check_alive(self) -> None:
        """Raise ClusterError, with the end of the log, if the process has ended. Raise PortInUseError if the log reports that a
        port was in use.
        """
        code = self._process.exit_code if self._process is not None else None
        if code is None:
            return
        tail = self.log_tail()
        if any(mark in tail for mark in _BIND_MARKS):
            raise PortInUseError(
                f"{self.name} ended with exit code {code}, and its log says that its port {self.port} or a port next to it is in "
                f"use; end the process that has it, or start again\n{tail}"
            )
        raise ClusterError(f"{self.name} ended with exit code {code}; see the end of its log:\n{tail}")

    def log_tail(self, lines: int = 30) -> str:
        """Return the last ``lines`` lines of the server's output and of its log, each after up to five earlier errors."""
        files = [self._launched().directory / name for name in _LOGS]
        return "\n".join(_tail(file, lines) for file in files if file.exists() and file.stat().st_size)

    def _launched(self) -> Launch:
        if self._launch is None:
            raise ClusterError(f"{self.name} at {self.address} is external (NAMESRV_ADDR): control it where it was started")
        return self._launch

    def _own(self) -> ServerProcess:
        self._launched()
        if self._process is None or self._process.exit_code is not None:
            raise ClusterError(f"{self.name} is not running; start() it first")
        return self._process

    def _reap(self) -> None:
        if self._process is not None:
            self._process.reap()


def _tail(file: Path, lines: int) -> str:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 65_536))
        text = stream.read().decode(errors="replace").splitlines()
    errors = [line for line in text[:-lines] if _ERROR.match(line)][-5:]
    return "\n".join([f"--- {file.name}", *errors, *text[-lines:]])
