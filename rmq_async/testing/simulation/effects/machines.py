"""Faults of any machine: its process, its clock, its address."""

from __future__ import annotations

from random import Random
from typing import Final

from ..faults import Effect
from ..machines import Machine
from ..servers import BrokerMachine, ServerMachine
from .effect import Cluster, Done, once

__all__ = ["clock_drift", "clock_jump", "clock_rate", "crash", "move_client", "move_server", "pause", "power_loss", "slow"]

LARGEST_JUMP: Final = 60.0
"""Seconds."""
LARGEST_DRIFT: Final = 0.2
"""Seconds that a clock gains or loses in each second."""
LARGEST_RATE: Final = 0.02
"""Seconds that a monotonic clock gains or loses in each second, as in virtual machines whose time source is wrong."""
TURNS: Final = (0.0002, 0.0006, 0.002)
"""Seconds that one iteration of a slow loop takes, at most: from the usual latency of a link to several times as much."""


def crash(chance: Random, machine: ServerMachine) -> Effect:
    had = machine.traffic
    machine.crash()
    return Done(machine.restart, lambda: had > 0)


def power_loss(chance: Random, machine: BrokerMachine) -> Effect:
    had = machine.traffic
    machine.power_loss()
    return Done(machine.restart, lambda: had > 0)


def pause(chance: Random, machine: Machine) -> Effect:
    machine.pause()
    held = False

    def end() -> None:
        nonlocal held
        held = machine.running and bool(machine.loop.held)
        machine.resume()

    return Done(end, lambda: held)


def slow(chance: Random, machine: Machine) -> Effect:
    """Slows a machine: each iteration of the event loop takes some time, during which data may arrive."""
    loop = machine.loop
    before = loop.turns
    machine.slow(chance.choice(TURNS))

    def end() -> None:
        if machine.running:
            machine.slow(0.0)

    return Done(end, lambda: loop.turns > before)


def clock_jump(chance: Random, machine: Machine) -> Effect:
    """Makes the wall clock jump, and back at the end."""
    machine.skew(chance.uniform(-LARGEST_JUMP, LARGEST_JUMP))
    return Done(lambda: machine.skew(0.0), lambda: machine.running)


def clock_drift(chance: Random, machine: Machine) -> Effect:
    """Makes the wall clock run too fast or too slowly; it is set right at the end."""
    machine.drift(chance.uniform(-LARGEST_DRIFT, LARGEST_DRIFT))
    return Done(lambda: machine.skew(0.0), lambda: machine.running)


def clock_rate(chance: Random, machine: Machine) -> Effect:
    """Makes the monotonic clock, and with it all timeouts, run too fast or too slowly."""
    machine.drift_monotonic(chance.uniform(-LARGEST_RATE, LARGEST_RATE))
    return Done(lambda: machine.drift_monotonic(None), lambda: machine.running)


def move_server(cluster: Cluster, machine: ServerMachine) -> Effect:
    """Moves a server: it ends and starts again with another address."""
    had = machine.traffic
    machine.crash()

    def end() -> None:
        machine.move(cluster.free_address())
        machine.restart()

    return Done(end, lambda: had > 0)


def move_client(cluster: Cluster, machine: Machine) -> Effect:
    """Moves a client: its address changes while it runs, and its connections become silent for both sides."""
    streams = machine.streams
    machine.move(cluster.free_address())
    return once(streams > 0)
