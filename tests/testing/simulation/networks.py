"""Machines on a simulated network, and a protocol that records what becomes of its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar, cast

from rmq_async.testing.simulation import Scheduler, SimulatedLoop, run_task
from rmq_async.testing.simulation.network import Host, Link, Observer, SimulatedNetwork

T = TypeVar("T")

PORT = 9876


class Recorder(asyncio.Protocol):
    """``events``: ("made",), ("eof",), ("paused",), ("resumed",), ("lost", error). ``keep_open``: at the end of what it reads."""

    def __init__(self, *, echo: bool = False, keep_open: bool = False) -> None:
        self.received = bytearray()
        self.sizes: list[int] = []
        self.times: list[float] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.lost_at = -1.0
        self._echo = echo
        self._keep_open = keep_open
        self._transport: asyncio.Transport | None = None
        self._changed = asyncio.Event()

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    async def until(self, met: Callable[[], bool]) -> None:
        while not met():
            self._changed.clear()
            await self._changed.wait()

    async def lost(self) -> Exception | None:
        await self.until(lambda: "lost" in self.events)
        return self.error

    async def size(self, size: int) -> bytes:
        await self.until(lambda: len(self.received) >= size)
        return bytes(self.received)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._add("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.sizes.append(len(data))
        self.times.append(asyncio.get_running_loop().time())
        self._changed.set()
        if self._echo:
            self.transport.write(data)

    def eof_received(self) -> bool:
        self._add("eof")
        return self._keep_open

    def pause_writing(self) -> None:
        self._add("paused")

    def resume_writing(self) -> None:
        self._add("resumed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.lost_at = asyncio.get_running_loop().time()
        self._add("lost")

    def _add(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()


class Hosts:
    """A network of machines with a process each, whose monotonic time is that of the simulation."""

    def __init__(self, *names: str, seed: int = 1, observe: Observer | None = None) -> None:
        self.seed = seed
        self.scheduler = Scheduler()
        self.network = SimulatedNetwork(self.scheduler, lambda name: Random(f"{seed} {name}"), observe)
        self.hosts = {name: self.network.host(name) for name in names or ("client", "server")}
        self.all_loops: list[SimulatedLoop] = []
        self.loops = {name: self.process(name) for name in self.hosts}

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    @property
    def link(self) -> Link:
        return self.network.link("client", "server")

    def process(self, name: str) -> SimulatedLoop:
        chance = Random(f"{self.seed} process {name}")
        loop = SimulatedLoop(self.scheduler, name, chance=chance, network=self.hosts[name])
        self.all_loops.append(loop)
        return loop

    def pause(self, name: str) -> None:
        self.loops[name].suspended = True
        self.hosts[name].pause()

    def resume(self, name: str) -> None:
        self.hosts[name].resume()
        self.scheduler.resume(self.loops[name])

    def run(self, main: Callable[[], Awaitable[T]], on: str = "client") -> T:
        async def first() -> T:
            return await main()

        task = self.loops[on].create_task(first(), name="main")
        return run_task(self.scheduler, task, lambda: self.all_loops, seed=self.seed)

    # -- as processes do it

    async def on(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Runs a coroutine function in the process of another machine and returns its result."""
        here: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def there() -> None:
            try:
                result = await make()
            except BaseException as error:  # noqa: BLE001 - passed on
                here.get_loop().call_soon(here.set_exception, error)
            else:
                here.get_loop().call_soon(here.set_result, result)

        task = self.loops[name].create_task(there())
        return await here if not task.done() else here.result()

    async def listen(self, factory: Callable[[], asyncio.BaseProtocol], port: int = PORT, *, on: str = "server") -> Any:
        return await self.on(on, lambda: self.loops[on].create_server(factory, None, port))

    async def connect(self, protocol: Recorder, host: str = "server", port: int = PORT) -> Recorder:
        await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)
        return protocol

    async def pair(self, near: Recorder | None = None, far: Recorder | None = None) -> tuple[Recorder, Recorder]:
        """Returns the protocols of both ends of a new stream of the client with the server."""
        made: list[Recorder] = []

        def factory() -> Recorder:
            made.append(far or Recorder())
            return made[-1]

        server = await self.listen(factory)
        first = await self.connect(near or Recorder())
        while not made or not made[0].events:
            await asyncio.sleep(0.001)
        server.close()
        return first, made[0]

    def left(self) -> int:
        """Number of ends of streams that the kernels keep."""
        return sum(len(host.ends) for host in self.hosts.values()) + sum(len(link.ends) for link in self.network.links)
