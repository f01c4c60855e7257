"""The common part of all kinds of faults: the cluster, the choice of a target, and the end of a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol, TypeVar

from ..faults import Begin, Effect
from ..machines import Machine
from ..network import SimulatedNetwork
from ..servers import BrokerMachine, NameServerMachine

ALL_SHARE: Final = 0.2
"""Share of the faults of ``on_some`` that affect all machines at once."""

M = TypeVar("M", bound=Machine)
T = TypeVar("T")


class Cluster(Protocol):
    """The parts of a cluster that faults can affect."""

    brokers: tuple[BrokerMachine, ...]
    name_servers: tuple[NameServerMachine, ...]
    network: SimulatedNetwork

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning of the simulation."""

    @property
    def clients(self) -> Sequence[Machine]:
        """The client machines, except the main one. They may be down."""

    def record(self, machine: str, what: str, **details: object) -> None:
        """Add an event to the history."""


def once(met: bool) -> Effect:
    """Return a fault that ends as soon as it has begun."""
    return Effect(lambda: None, lambda: met)


def on(machines: Callable[[], Sequence[M]], strike: Callable[[Random, M], Effect | None], *, paused: bool = True) -> Begin:
    """Return a function that begins a fault on one running machine of ``machines``.

    Args:
        paused: Whether the machine may be paused.
    """

    def begin(chance: Random, duration: float) -> Effect | None:
        machine = drawn(chance, [each for each in machines() if each.running and (paused or not each.paused)])
        return None if machine is None else strike(chance, machine)

    return begin


def on_some(machines: Callable[[], Sequence[M]], strike: Callable[[Random, M], Effect | None]) -> Begin:
    """Return a function that begins a fault on one running machine of ``machines``, or the same fault on all running machines."""

    def begin(chance: Random, duration: float) -> Effect | None:
        together, seed = chance.random() < ALL_SHARE, chance.getrandbits(64)
        struck = [each for each in machines() if each.running]
        if struck and not together:
            struck = [chance.choice(struck)]
        effects = [effect for each in struck if (effect := strike(Random(seed), each)) is not None]

        def end() -> None:
            for effect in effects:
                effect.end()

        return Effect(end, lambda: any(effect.met() for effect in effects)) if effects else None

    return begin


def drawn(chance: Random, targets: Sequence[T]) -> T | None:
    """Draw one of ``targets``. Return None if there are no targets."""
    return chance.choice(targets) if targets else None
