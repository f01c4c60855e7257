"""Faults of any machine that affect its process, its clock or its address."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from ..faults import Effect
from ..machines import Machine
from ..servers import BrokerMachine, NameServerMachine, ServerMachine
from .effect import Cluster, drawn, once

LARGEST_JUMP: Final = 60.0
"""Maximum jump of a clock in seconds."""
LARGEST_DRIFT: Final = 0.2
"""Maximum number of seconds that a wall clock gains or loses in each second."""
LARGEST_RATE: Final = 0.02
"""Maximum number of seconds that a monotonic clock gains or loses in each second, as in virtual machines whose time source is
wrong."""
TURNS: Final = (0.0002, 0.0006, 0.002)
"""Maximum numbers of seconds that one iteration of a slow loop takes. They range from the usual latency of a link to several
times that latency."""


def crash(chance: Random, machine: ServerMachine) -> Effect:
    had = machine.traffic
    machine.crash()
    return Effect(machine.restart, lambda: had > 0)


def power_loss(chance: Random, machine: BrokerMachine) -> Effect:
    had = machine.traffic
    machine.power_loss()
    return Effect(machine.restart, lambda: had > 0)


def pause(chance: Random, machine: Machine) -> Effect:
    machine.pause()
    held = False

    def end() -> None:
        nonlocal held
        held = machine.running and bool(machine.loop.held)
        machine.resume()

    return Effect(end, lambda: held)


def slow(chance: Random, machine: Machine) -> Effect:
    """Slow a machine down. Each iteration of the event loop takes some time, during which data may arrive."""
    loop = machine.loop
    before = loop.turns
    machine.slow(chance.choice(TURNS))

    def end() -> None:
        if machine.running:
            machine.slow(0.0)

    return Effect(end, lambda: loop.turns > before)


def no_threads(chance: Random, machine: Machine) -> Effect:
    """Make a machine refuse threads."""
    loop, before = machine.loop, machine.refused_threads
    machine.refuse_threads()

    def end() -> None:
        if machine.running and machine.loop is loop:  # a process that started later may use threads
            machine.refuse_threads(False)

    return Effect(end, lambda: machine.refused_threads > before)


def clock_jump(chance: Random, machine: Machine) -> Effect:
    """Make the wall clock jump, and jump back at the end of the fault."""
    machine.skew(chance.uniform(-LARGEST_JUMP, LARGEST_JUMP))
    return Effect(lambda: machine.skew(0.0), lambda: machine.running)


def clock_drift(chance: Random, machine: Machine) -> Effect:
    """Make the wall clock run too fast or too slowly. The clock is corrected at the end of the fault."""
    machine.drift(chance.uniform(-LARGEST_DRIFT, LARGEST_DRIFT))
    return Effect(lambda: machine.skew(0.0), lambda: machine.running)


def clock_rate(chance: Random, machine: Machine) -> Effect:
    """Make the monotonic clock, and therefore all timeouts, run too fast or too slowly."""
    machine.drift_monotonic(chance.uniform(-LARGEST_RATE, LARGEST_RATE))
    return Effect(lambda: machine.drift_monotonic(None), lambda: machine.running)


def move_server(cluster: Cluster, chance: Random, machine: ServerMachine) -> Effect:
    """Move a server to another address. The server ends and starts again there."""
    had = machine.traffic
    machine.crash()

    def end() -> None:
        machine.move(cluster.network.free_address())
        machine.restart()

    return Effect(end, lambda: had > 0)


def fail_over(cluster: Cluster, chance: Random, machine: BrokerMachine) -> Effect:
    """Replace a master with a replica that has all messages but not the offsets of groups.

    Until the replica is elected, it serves reads. In another variant, no broker serves requests until then, and the replica has
    another address.
    """
    had, reads = machine.traffic, chance.random() < 0.5
    cluster.record(machine.name, "lose master", replica=reads)
    if reads:
        machine.lose_master()
    else:
        machine.crash()

    def end() -> None:
        if not reads:
            machine.move(cluster.network.free_address())
            machine.restart()
        cluster.record(machine.name, "elect master")
        machine.elect_master()

    return Effect(end, lambda: had > 0)


def redirect(cluster: Cluster, chance: Random, machine: NameServerMachine) -> Effect | None:
    """Make the name of a name server resolve to another name server while both are running."""
    other = drawn(chance, [each for each in cluster.name_servers if each is not machine])
    return None if other is None else _lead(cluster, machine, [other.address])


def silent(cluster: Cluster, chance: Random, machine: NameServerMachine) -> Effect | None:
    """Make the name of a name server resolve to two addresses: first a server that accepts connections but does not respond,
    and then the name server itself.
    """
    other = drawn(chance, [each for each in cluster.name_servers if each is not machine and each.running and not each.paused])
    if other is None:
        return None
    other.pause()
    lead = _lead(cluster, machine, [other.address, machine.address])

    def end() -> None:
        lead.end()
        if other.running:
            other.resume()

    return Effect(end, lead.met)


def _lead(cluster: Cluster, machine: NameServerMachine, addresses: Sequence[str]) -> Effect:
    before = cluster.network.look_ups[machine.name]
    cluster.network.lead(machine.name, addresses)
    cluster.record(machine.name, "lead", addresses=list(addresses))

    def end() -> None:
        cluster.network.lead(machine.name, ())
        cluster.record(machine.name, "lead", addresses=[machine.address])

    return Effect(end, lambda: cluster.network.look_ups[machine.name] > before)


def move_client(cluster: Cluster, chance: Random, machine: Machine) -> Effect:
    """Move a client to another address while it runs. Segments of its connections are lost in both directions."""
    streams = machine.streams
    machine.move(cluster.network.free_address())
    return once(streams > 0)
