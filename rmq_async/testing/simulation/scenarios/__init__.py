"""Scenarios of the library: their services, clusters and durations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ..faults import GROUP_KINDS, KINDS, LASTING, POP_KINDS
from .arranged_groups import ARRANGED_GROUPS
from .broadcasts import BROADCASTS
from .failovers import FAILOVERS
from .groups import GROUPS
from .hardships import HARDSHIPS
from .losses import LOSSES
from .popping_groups import POPPING_GROUPS
from .services import CALM, Cluster
from .twins import TWINS
from .workloads import WORKLOADS

__all__ = ["SCENARIOS", "Scenario"]


PATIENCE: Final = 120.0
"""Virtual seconds after the end of a scenario within which its services end."""


SERVICES: Final = MappingProxyType(
    {**WORKLOADS, **HARDSHIPS, **GROUPS, **ARRANGED_GROUPS, **FAILOVERS, **LOSSES, **BROADCASTS, **POPPING_GROUPS, **TWINS}
)
"""The services by name, which is also that of the machine."""
HARMLESS: Final = frozenset({"broker-disorder", "broker-slices", "clock-jump", "clock-rate"})
"""Kinds of faults by which no call fails."""


class Machine(Protocol):
    """A client machine."""

    def run(self, factory: Callable[[], Awaitable[None]]) -> asyncio.Future[None]: ...


class Simulated(Cluster, Protocol):
    """A simulation that runs."""

    @property
    def storms(self) -> Sequence[str]: ...

    def machine(self, name: str) -> Machine: ...


class Scenario(NamedTuple):
    """A scenario of the library.

    ``about``: one line of description. ``workloads``: names of services, each on a machine of its own. ``duration``: virtual
    seconds. ``kinds``: the kinds of faults of which each seed draws some.
    """

    about: str
    workloads: tuple[str, ...]
    duration: float = 300.0
    brokers: int = 2
    name_servers: int = 1
    kinds: frozenset[str] = frozenset(KINDS)

    async def play(self, simulation: Simulated) -> None:
        """Runs the services on their machines until their time is over; adds violations for those that do not end, and for floods
        of connects."""
        until = simulation.now + self.duration
        services = {simulation.machine(name).run(_started(name, simulation, until)): name for name in self.workloads}
        await asyncio.wait(services, timeout=self.duration, return_when=asyncio.FIRST_EXCEPTION)
        await simulation.calm(0.0)
        ended, running = await asyncio.wait(services, timeout=CALM + PATIENCE, return_when=asyncio.FIRST_EXCEPTION)
        for service in ended:
            service.result()
        for service in running:
            simulation.violation(f"unended: {services[service]} runs {CALM + PATIENCE:g} s after its end")
        for storm in simulation.storms:
            simulation.violation(storm)


def _started(name: str, simulation: Simulated, until: float) -> Callable[[], Awaitable[None]]:
    async def service() -> None:
        await SERVICES[name](simulation, until)
        if left := sorted(task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()):
            simulation.violation(f"tasks: {name} has ended, and {', '.join(left)} run")

    service.__name__ = "service"
    return service


MIXED: Final = tuple(
    name for name in WORKLOADS if name not in ("bursts", "callbacks", "kept", "resized", "returning", "streams")
)
"""Services of the mixed scenario: they send few messages, to topics whose queues stay, and only the cluster fails."""

SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        "mixed": Scenario("all services at once, two name servers", MIXED, name_servers=2),
        **{
            name: Scenario(
                (workload.__doc__ or "").partition("\n")[0],
                (name,),
                kinds=frozenset((*KINDS, *GROUP_KINDS) if name in ("arranged", "groups") else KINDS),
            )
            for name, workload in SERVICES.items()
            if name not in ("requests", "replies", "reading", "returning", "beside", "broadcast", "pop", "failovers", "losses")
        },
        "fresh": Scenario((WORKLOADS["fresh"].__doc__ or "").partition("\n")[0], ("fresh",), name_servers=2),
        "failovers": Scenario(
            "stops a group after each failover of its broker", ("failovers",), brokers=1, kinds=HARMLESS | {"client-slow"}
        ),
        "losses": Scenario(
            "runs a group whose broker loses messages", ("losses",), brokers=1, kinds=HARMLESS | {"client-slow"}
        ),
        "requests": Scenario("sends requests to a service that replies", ("requests", "replies")),
        "broadcast": Scenario("members that each handle all messages of a topic", ("plain", "broadcast")),
        "reading": Scenario("reads a topic while it is written", ("plain", "reading")),
        "beside": Scenario("sends beside a broker that fails, to one that does not", ("beside",), kinds=HARMLESS),
        "pop": Scenario((SERVICES["pop"].__doc__ or ""), ("pop",), kinds=frozenset((*KINDS, *POP_KINDS, *LASTING))),
        "returning": Scenario("reads a topic whose queues come and go", ("resized", "returning")),
    }
)
"""The scenarios by name."""
