"""Scenarios of the library: their services, clusters and durations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from rmq_async.testing.simulation import SimulationError
from rmq_async.testing.simulation.faults import GROUP_KINDS, KINDS, LASTING, POP_KINDS, Faults
from rmq_async.testing.simulation.seeds import Outcome, outcome_of, seed_faults

from ..cluster import Cluster
from .arranged_groups import arranged
from .broadcasts import broadcast
from .failovers import failovers
from .groups import groups
from .hardships import beside, cancelled, closing, cold, deleting, stopping
from .losses import losses
from .popping_groups import pop
from .services import CALM, Workload
from .twins import twice
from .workloads import WORKLOADS

__all__ = ["SCENARIOS", "Scenario", "run_seed"]


PATIENCE: Final = 120.0
"""Virtual seconds after the end of a scenario within which its services end."""
RATE: Final = 8.0
"""Faults per virtual minute, on average over the seeds."""


SERVICES: Final[Mapping[str, Workload]] = MappingProxyType(
    {
        **WORKLOADS,
        "cancelled": cancelled,
        "stopping": stopping,
        "beside": beside,
        "closing": closing,
        "cold": cold,
        "deleting": deleting,
        "groups": groups,
        "arranged": arranged,
        "failovers": failovers,
        "losses": losses,
        "broadcast": broadcast,
        "pop": pop,
        "twice": twice,
    }
)
"""The services by name, which is also that of the machine."""
HARMLESS: Final = frozenset({"broker-disorder", "broker-slices", "clock-jump", "clock-rate"})
"""Kinds of faults by which no call fails."""


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

    async def play(self, simulation: Cluster) -> None:
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


def _started(name: str, simulation: Cluster, until: float) -> Callable[[], Awaitable[None]]:
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


def run_seed(scenario: str, seed: int, *, without: Iterable[str] = (), trace: bool = False) -> Outcome:
    """Run one seed of a scenario, as ``rmq_async.testing.simulation.seeds.run_seed`` does with a function.

    Raises:
        SimulationError: The scenario is unknown, or the seed is no int.
    """
    played = SCENARIOS.get(scenario)
    if played is None:
        raise SimulationError(f"there is no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
    faults = seed_faults(seed, Faults(played.kinds, rate=RATE, drawn=True), without)
    cluster = Cluster(seed, brokers=played.brokers, name_servers=played.name_servers, faults=faults, trace=trace)
    return outcome_of(cluster, played.play)
