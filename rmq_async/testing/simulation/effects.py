"""The kinds of faults: how each begins and ends, and how one sees that it was met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol, TypeVar

from rmq_protocol.constants import RequestCode, ResponseCode

from .faults import Begin, Effect
from .machines import Machine
from .network import Link
from .servers import BrokerMachine, NameServerMachine, ServerMachine

__all__ = ["Cluster", "Done", "beginnings"]

M = TypeVar("M", bound=Machine)

REQUESTS: Final = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE)
ERRORS: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)


class Cluster(Protocol):
    """What faults can strike."""

    brokers: tuple[BrokerMachine, ...]
    name_servers: tuple[NameServerMachine, ...]

    @property
    def clients(self) -> Sequence[Machine]:
        """Client machines that run, the main one excepted."""

    def link(self, a: str, b: str) -> Link:
        """Returns the link between two machines."""

    @property
    def names(self) -> Sequence[str]:
        """Names of all machines."""


class Done(Effect):
    """A fault with a function that ends it and one that says whether it was met."""

    def __init__(self, end: Callable[[], object], met: Callable[[], bool]) -> None:
        self._end = end
        self._met = met

    def end(self) -> None:
        self._end()

    def met(self) -> bool:
        return self._met()


def beginnings(cluster: Cluster) -> dict[str, Begin]:
    """Returns the function that begins a fault, by kind."""
    strikes = Strikes(cluster)
    return {
        "broker-busy": strikes.busy,
        "broker-crash": lambda chance, _: strikes.crash(chance, cluster.brokers),
        "broker-delay": strikes.delay,
        "broker-disorder": strikes.disorder,
        "broker-error": strikes.error,
        "broker-jitter": strikes.jitter,
        "broker-overload": strikes.overload,
        "broker-pause": lambda chance, _: strikes.pause(chance, cluster.brokers),
        "broker-power-loss": strikes.power_loss,
        "broker-slices": strikes.slices,
        "client-pause": lambda chance, _: strikes.pause(chance, cluster.clients),
        "clock-jump": strikes.clock_jump,
        "link-cut": strikes.cut,
        "link-half-cut": strikes.half_cut,
        "link-hang": strikes.hang,
        "link-reset": strikes.reset,
        "link-slow": strikes.slow,
        "name-server-crash": lambda chance, _: strikes.crash(chance, cluster.name_servers),
        "name-server-pause": lambda chance, _: strikes.pause(chance, cluster.name_servers),
    }


class Strikes:
    """Draws targets and strikes them. Each method returns None where there is no target."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def crash(self, chance: Random, machines: Sequence[ServerMachine]) -> Effect | None:
        machine = _drawn(chance, [each for each in machines if each.running and not each.paused])
        if machine is None:
            return None
        had = machine.traffic
        machine.crash()
        return Done(machine.restart, lambda: had > 0)

    def power_loss(self, chance: Random, duration: float) -> Effect | None:
        machine = _drawn(chance, [each for each in self._cluster.brokers if each.running and not each.paused])
        if machine is None:
            return None
        had = machine.traffic
        machine.power_loss()
        return Done(machine.restart, lambda: had > 0)

    def pause(self, chance: Random, machines: Sequence[Machine]) -> Effect | None:
        machine = _drawn(chance, [each for each in machines if each.running and not each.paused])
        if machine is None:
            return None
        machine.pause()
        held = False

        def end() -> None:
            nonlocal held
            held = machine.running and bool(machine.loop.held)
            machine.resume()

        return Done(end, lambda: held)

    def clock_jump(self, chance: Random, duration: float) -> Effect | None:
        machine = _drawn(chance, [*self._cluster.clients, *self._cluster.brokers])
        if machine is None:
            return None
        machine.skew(chance.uniform(-60.0, 60.0))
        return Done(lambda: machine.skew(0.0), lambda: machine.running)

    def cut(self, chance: Random, duration: float) -> Effect | None:
        link, _ = self._link(chance)
        before = link.held + link.unconnected
        link.cut()
        return Done(link.heal, lambda: link.held + link.unconnected > before)

    def half_cut(self, chance: Random, duration: float) -> Effect | None:
        link, ends = self._link(chance)
        before = link.held + link.unconnected
        link.cut(one_way=chance.choice(ends))
        return Done(link.heal, lambda: link.held + link.unconnected > before)

    def hang(self, chance: Random, duration: float) -> Effect | None:
        link, _ = self._link(chance)
        before = link.unconnected
        link.drop()
        link.hang()
        return Done(lambda: link.hang(False), lambda: link.unconnected > before)

    def reset(self, chance: Random, duration: float) -> Effect | None:
        link, _ = self._link(chance)
        streams = link.drop()
        return Done(lambda: None, lambda: streams > 0)

    def slow(self, chance: Random, duration: float) -> Effect | None:
        link, _ = self._link(chance)
        before = link.carried
        link.slow(chance.choice((0.02, 0.2, 1.0, 4.0)))
        return Done(lambda: link.slow(0.0), lambda: link.carried > before)

    def busy(self, chance: Random, duration: float) -> Effect | None:
        return self._answers(chance, ResponseCode.SYSTEM_BUSY)

    def error(self, chance: Random, duration: float) -> Effect | None:
        return self._answers(chance, chance.choice(ERRORS))

    def delay(self, chance: Random, duration: float) -> Effect | None:
        machine = _drawn(chance, [each for each in self._cluster.brokers if each.running])
        if machine is None:
            return None
        before, broker = machine.requests, machine.broker
        broker.listener.gate.set_delay(chance.choice((0.05, 0.5, 2.0)))
        return Done(lambda: broker.listener.gate.set_delay(0.0), lambda: machine.requests != before)

    def disorder(self, chance: Random, duration: float) -> Effect | None:
        machine = _drawn(chance, [each for each in self._cluster.brokers if each.running])
        if machine is None:
            return None
        before, broker = machine.requests, machine.broker
        broker.listener.shuffle(Random(chance.getrandbits(64)))
        return Done(lambda: broker.listener.shuffle(None), lambda: machine.requests != before)

    def jitter(self, chance: Random, duration: float) -> Effect | None:
        """Answers overtake each other."""
        machine = _drawn(chance, [each for each in self._cluster.brokers if each.running])
        if machine is None:
            return None
        before, gate = machine.requests, machine.broker.listener.gate
        gate.set_delay(0.0, chance.choice((0.01, 0.1, 1.0)), Random(chance.getrandbits(64)))
        return Done(lambda: gate.set_delay(0.0), lambda: machine.requests != before)

    def slices(self, chance: Random, duration: float) -> Effect | None:
        """Answers come in parts."""
        machine = _drawn(chance, [each for each in self._cluster.brokers if each.running])
        if machine is None:
            return None
        before, gate = machine.requests, machine.broker.listener.gate
        gate.slices = Random(chance.getrandbits(64))

        def end() -> None:
            gate.slices = None

        return Done(end, lambda: machine.requests != before)

    def overload(self, chance: Random, duration: float) -> Effect | None:
        """Sends beyond a rate are refused as busy."""
        machine = _drawn(chance, [each for each in self._cluster.brokers if each.running])
        if machine is None:
            return None
        broker = machine.broker
        broker.throttle(chance.choice((0.5, 4.0, 20.0)))
        refused = 0

        def end() -> None:
            nonlocal refused
            refused = broker.refused_sends
            broker.throttle(None)

        return Done(end, lambda: refused > 0)

    def _answers(self, chance: Random, code: int) -> Effect | None:
        """The next requests of a kind are refused."""
        machine = _drawn(chance, [each for each in self._cluster.brokers if each.running])
        if machine is None:
            return None
        request, failures = chance.choice(REQUESTS), machine.broker.failures
        asked = chance.randint(1, 20)
        failures.add(code, asked, request)
        left = asked

        def end() -> None:
            nonlocal left
            left = failures.left(request)
            failures.add(code, 0, request)

        return Done(end, lambda: left < asked)

    def _link(self, chance: Random) -> tuple[Link, tuple[str, str]]:
        servers = [each.name for each in (*self._cluster.brokers, *self._cluster.name_servers)]
        server = chance.choice(servers)
        other = chance.choice([name for name in self._cluster.names if name != server])
        return self._cluster.link(server, other), (server, other)


def _drawn(chance: Random, machines: Sequence[M]) -> M | None:
    return chance.choice(machines) if machines else None
