"""Scenarios in the simulation: servers and clients are machines, and what lies between them are links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from rmq_async.testing._probe import broker_addresses
from rmq_async.testing.simulation import Simulation

from .world import Network, Outcome, Process, Program, World, until

__all__ = ["play_simulated"]

CLIENT = "main"


class SimulatedProcess(Process):
    def __init__(self, simulation: Simulation, program: Program, arguments: tuple[str, ...]) -> None:
        self._machine = simulation.machine(f"process-{simulation.number()}")
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        heard, loop = self._lines.put_nowait, asyncio.get_running_loop()

        async def main() -> None:
            await program(lambda line: loop.call_soon(heard, line), *arguments)

        self._machine.run(main)

    async def line(self) -> str:
        async with asyncio.timeout(30):
            return await self._lines.get()

    async def kill(self) -> None:
        self._machine.crash()
        await asyncio.sleep(0)


class SimulatedNetwork(Network):
    def __init__(self, simulation: Simulation) -> None:
        self.namesrv = simulation.namesrv
        self._simulation = simulation

    def lose_answers(self, broker: str) -> None:
        self._simulation.link(CLIENT, broker).cut(one_way=broker)

    def silence(self, broker: str) -> None:
        self._simulation.link(CLIENT, broker).cut()

    def reset(self, broker: str) -> None:
        self._simulation.link(CLIENT, broker).drop()

    def heal(self, broker: str) -> None:
        self._simulation.link(CLIENT, broker).heal()


class SimulatedWorld(World):
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.namesrv = simulation.namesrv
        self.name_servers = simulation.namesrv.split(";")

    async def kill(self, name: str) -> None:
        self._simulation.machine(name).crash()
        await asyncio.sleep(0)

    async def start(self, name: str) -> None:
        self._simulation.machine(name).restart()
        await asyncio.sleep(0)
        await until(self._routed, f"{name} is in the routes", step=0.5)

    async def pause(self, name: str) -> None:
        self._simulation.machine(name).pause()
        await asyncio.sleep(0)

    async def resume(self, name: str) -> None:
        self._simulation.machine(name).resume()
        await asyncio.sleep(0)

    @asynccontextmanager
    async def network(self) -> AsyncIterator[Network]:
        yield SimulatedNetwork(self._simulation)

    @asynccontextmanager
    async def process(self, program: Program, *arguments: str) -> AsyncIterator[Process]:
        process = SimulatedProcess(self._simulation, program, arguments)
        try:
            yield process
        finally:
            await process.kill()

    async def _routed(self) -> bool:
        running = {each.name for each in self._simulation.brokers if each.running}
        servers = zip(self._simulation.name_servers, self.name_servers, strict=True)
        known = [await broker_addresses(address) for server, address in servers if server.running]
        return all(running <= each.keys() for each in known)


def play_simulated(scenario: Callable[[World], Awaitable[Outcome]], seed: int) -> Outcome:
    """The outcome in a simulation of this seed, whose checkers find nothing."""
    simulation = Simulation(seed, brokers=2, name_servers=2, faults=None)
    outcome = simulation.run(lambda simulation: scenario(SimulatedWorld(simulation)))
    simulation.check()
    return outcome
