"""A server process that is killed or stopped: what its client sees, with a process of the system and on the simulated network."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import pytest

from . import counting
from .networks import PORT, Hosts, Recorder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Process(Protocol):
    """A process that serves ``Counting``. ``place``: its address and port."""

    place: tuple[str, int]

    def kill(self) -> None: ...
    def stop(self) -> None: ...
    def go_on(self) -> None: ...


class RealProcess:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.place = ("127.0.0.1", port)
        self._process = process

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def real_process() -> AsyncIterator[RealProcess]:
    process = await asyncio.create_subprocess_exec(sys.executable, counting.__file__, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield RealProcess(process, int(await process.stdout.readline()))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class SimulatedProcess:
    def __init__(self, hosts: Hosts) -> None:
        self.place = ("server", PORT)
        self._hosts = hosts

    def kill(self) -> None:
        self._hosts.loops["server"].close()
        self._hosts["server"].crash()

    def stop(self) -> None:
        self._hosts.pause("server")

    def go_on(self) -> None:
        self._hosts.resume("server")


Outcome = tuple[list[str], str]


async def greeted(process: Process) -> Recorder:
    near = Recorder()
    await asyncio.get_running_loop().create_connection(lambda: near, *process.place)
    async with asyncio.timeout(10):
        await near.size(len(counting.GREETING))
    return near


async def outcome(near: Recorder) -> Outcome:
    async with asyncio.timeout(10):
        await near.lost()
    return near.events, type(near.error).__name__


async def killed(process: Process) -> Outcome:
    near = await greeted(process)
    process.kill()
    found = await outcome(near)
    async with asyncio.timeout(10):
        with pytest.raises(ConnectionRefusedError):
            while True:  # a process of the system closes its streams and its listener one by one, and resets what waits there
                with suppress(ConnectionResetError):
                    await asyncio.get_running_loop().create_connection(asyncio.Protocol, *process.place)
                await asyncio.sleep(0.02)
    return found


async def killed_with_unread_bytes(process: Process) -> Outcome:
    near = await greeted(process)
    near.transport.write(b"p")
    await asyncio.sleep(0.2)
    near.transport.write(b"never read")
    await asyncio.sleep(0.2)
    process.kill()
    return await outcome(near)


async def stopped(process: Process) -> Outcome:
    near = await greeted(process)
    process.stop()
    near.transport.write(bytes(counting.ENOUGH))
    other = Recorder()
    await asyncio.get_running_loop().create_connection(lambda: other, *process.place)
    await asyncio.sleep(0.3)
    assert near.events == ["made", "paused"]
    assert other.events == ["made"]
    assert other.received == b"", "the kernel has connected, the process has not accepted"
    process.go_on()
    async with asyncio.timeout(10):
        await other.size(len(counting.GREETING))
        await near.size(len(counting.GREETING + counting.ALL))
    for each in (near, other):
        each.transport.close()
    return await outcome(near)


async def killed_while_stopped(process: Process) -> Outcome:
    near = await greeted(process)
    process.stop()
    near.transport.write(b"never read")
    await asyncio.sleep(0.2)
    process.kill()
    return await outcome(near)


async def simulated(scenario: Callable[[Process], Awaitable[Outcome]], seed: int) -> Outcome:
    hosts = Hosts(seed=seed)

    async def main() -> Outcome:
        await hosts.listen(counting.Counting)
        return await scenario(SimulatedProcess(hosts))

    return await asyncio.to_thread(hosts.run, main)


async def real(scenario: Callable[[Process], Awaitable[Any]]) -> Outcome:
    async with real_process() as process:
        return await scenario(process)


@pytest.mark.parametrize("scenario", [killed_with_unread_bytes, stopped, killed_while_stopped])
async def test_a_client_sees_what_it_sees_of_a_real_process(scenario: Callable[[Process], Awaitable[Outcome]]) -> None:
    assert await simulated(scenario, 1) == await real(scenario)


async def test_a_client_sees_of_a_crash_what_it_sees_of_a_kill_or_a_reset() -> None:
    found = [await simulated(killed, seed) for seed in range(10)]
    assert await real(killed) in found
    assert (["made", "lost"], "ConnectionResetError") in found, "as after the crash of the system under the process"
