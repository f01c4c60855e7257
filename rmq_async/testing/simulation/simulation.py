"""Simulates a cluster, its clients and the network between them in one thread, under virtual time. A seed determines the whole
run.
"""

from __future__ import annotations

import asyncio
import hashlib
import string
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from ... import machine as library
from ...embedded import BrokerSettings, PopSettings
from ...producer import Producer
from .checkers import Stored, copies, disorder, late, lost, misplaced, renamed, surprises, undone, unfinished
from .effects import beginnings
from .errors import SimulationError
from .faults import Faults, Injector
from .history import Call, Event, History, Recording
from .loop import SimulatedLoop
from .machines import USUAL_DRIFT, Machine, check_awaitable, check_callable
from .network import Host, Link, SimulatedNetwork
from .running import run_task
from .scheduler import Scheduler
from .servers import NAME_SERVER_PORT, BrokerMachine, NameServerMachine
from .standard_library import StandardLibrary
from .trace import Trace

MAX_BROKERS: Final = 26
MAX_NAME_SERVERS: Final = 8
STEP: Final = 0.01
"""Virtual seconds between two checks of the brokers' registrations."""
SWARM: Final = Faults.swarm()
TAKES: Final = "run() takes a coroutine function of one argument"
MAIN: Final = "main"
"""Name of the machine on which the function given to ``run`` runs."""

T = TypeVar("T")
_KEPT: Final = ("monotonic", "time", "random", "entropy", "process_id", "executor", "instance_name", "address")


class Record(NamedTuple):
    """The data of a run that checkers use.

    Attributes:
        calls: All calls of producers.
        stored: The messages on the brokers' disks.
        excused: Unique ids of messages that brokers lost or deleted.
        ends: Times at which processes ended, by machine.
        stopped: Times between which processes were paused, by machine.
        faults: Times between which each fault was active.
    """

    calls: Sequence[Call]
    stored: Sequence[Stored]
    excused: Collection[str]
    ends: Mapping[str, Sequence[float]]
    stopped: Mapping[str, Sequence[tuple[float, float]]]
    faults: Sequence[tuple[float, float]]


class Simulation:
    """A simulated cluster with 1-26 ``brokers`` ("broker-a", ...) and 1-8 ``name_servers`` ("namesrv-0", ...).

    Args:
        seed: The seed, which determines everything that is drawn.
        faults: The faults of the cluster. The default is ``Faults.swarm()``. None means no faults.
        trace: Whether to print each frame.

    Raises:
        SimulationError: For a number that is not an int or is out of range, and for ``faults`` that are neither Faults nor
            None.
    """

    def __init__(
        self, seed: int, *, brokers: int = 2, name_servers: int = 1, faults: Faults | None = SWARM, trace: bool = False
    ) -> None:
        for name, number, most in (("brokers", brokers, MAX_BROKERS), ("name_servers", name_servers, MAX_NAME_SERVERS)):
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
                raise SimulationError(f"{name} must be an int from 1 to {most}, not {number!r}")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise SimulationError(f"seed must be an int, not {seed!r}")
        if faults is not None and not isinstance(faults, Faults):
            raise SimulationError(f"faults must be an object such as Faults.swarm(), or None, not {faults!r}")
        self.seed = seed
        self.scheduler = Scheduler()
        self._numbers = brokers, name_servers
        self._faults = drawn_faults(seed, Faults.none() if faults is None else faults)
        self._trace = Trace(print_frames=trace)
        self.network = SimulatedNetwork(self.scheduler, self.generator, self._trace.add)
        self._history = History(lambda: self.now, self.monotonic, lambda: self._current.name, self.calling)
        self._calm_from: float | None = None
        self._machines: dict[str, Machine] = {}
        self._loops: list[SimulatedLoop] = []
        self._failure: tuple[Machine, BaseException] | None = None
        self._ran = self._running = False
        self._number = 0
        self._violations: list[str] = []
        self._current: Machine
        self._injector: Injector | None = None
        self._ended = False
        self.brokers: tuple[BrokerMachine, ...] = ()
        self.name_servers: tuple[NameServerMachine, ...] = ()

    @property
    def namesrv(self) -> str:
        """The addresses of all name servers, in the form that clients take as ``namesrv``."""
        return ";".join(f"namesrv-{number}:{NAME_SERVER_PORT}" for number in range(self._numbers[1]))

    @property
    def now(self) -> float:
        """Seconds since the beginning of the simulation."""
        return self.scheduler.now / 1e9

    @property
    def trace_hash(self) -> str:
        """Hexadecimal digest of the times, streams, codes, header fields and bodies of all delivered frames. Equal runs have
        equal digests.
        """
        return self._trace.digest()

    @property
    def faults(self) -> Faults:
        """The faults that this seed has drawn."""
        return self._faults

    @property
    def faults_met(self) -> Mapping[str, int]:
        """Number of faults that had an effect, by kind."""
        return MappingProxyType({} if self._injector is None else dict(self._injector.met))

    @property
    def faults_unmet(self) -> Sequence[str]:
        """Kinds of faults that were drawn for this run and never had an effect."""
        return [] if self._injector is None else list(self._injector.unmet())

    @property
    def history(self) -> Sequence[Event]:
        """All calls of producers, and the events of machines, in the order of their times."""
        return self._history.events()

    @property
    def links(self) -> Sequence[Link]:
        """The links that were used to send segments or that ``link`` has returned, in the order of their first use."""
        return self.network.links

    @property
    def clients(self) -> Sequence[Machine]:
        """The client machines, except the machine on which the function given to ``run`` runs."""
        return [each for each in self._machines.values() if type(each) is Machine and each.name != MAIN]

    @property
    def operations(self) -> int:
        """The number of calls in the history."""
        return len(self._history.calls)

    def run(self, main: Callable[[Simulation], Awaitable[T]]) -> T:
        """Run ``main(simulation)`` on a separate machine until it ends. Return its result or raise its error.

        Raises:
            SimulationError: If the run cannot continue, or if the code of another machine raises an error; the message names
                the seed. Also for a second call, for a call inside an event loop, and for an object that is not a function or
                does not return an awaitable.
        """
        if self._ran:
            raise SimulationError("run() was called before; make a new Simulation for another run")
        if asyncio._get_running_loop() is not None:
            raise SimulationError("run() was called inside a running event loop; call it from a plain function")
        check_callable(main, TAKES)
        self._ran = self._running = True
        before = {name: getattr(library, name) for name in _KEPT}
        try:
            with StandardLibrary(self), Recording(self._history):
                return self._run(main)
        finally:
            self._history.open = False
            self._running = False
            for name, value in before.items():
                setattr(library, name, value)

    def machine(self, name: str) -> Machine:
        """Return the machine with a name: a broker, a name server or a client machine. A client machine is created when it is
        first requested.

        Raises:
            SimulationError: Outside ``run``, and for a name that is not a str, is empty, is "localhost", or is the name of an
                unknown server.
        """
        if not self._running:
            raise SimulationError(f"machine({name!r}) was called outside of run(); call it in the function given to run()")
        if not isinstance(name, str):
            raise SimulationError(f"the name of a machine must be a str, not {name!r}")
        found = self._machines.get(name)
        if found is not None:
            return found
        if not name or name == "localhost" or name.startswith(("broker-", "namesrv-")):
            raise SimulationError(f"there is no machine {name!r}; there are {', '.join(self._machines)}; choose another name")
        return self._add(Machine(name, self, self.network.host(name)))

    def link(self, a: str, b: str) -> Link:
        """Return the link between two machines.

        Raises:
            SimulationError: For a machine that does not exist. Before ``run``, no machines exist.
        """
        for name in (a, b):
            if not isinstance(name, str) or name not in self._machines:
                raise SimulationError(f"there is no machine {name!r}; there are {', '.join(self._machines) or 'none yet'}")
        return self.network.link(a, b)

    def check(self) -> None:
        """Raise SimulationError if violations were found during the run or by the checkers at its end. The message lists at
        most 20 violations.

        Also raise it before the end of the run, and after a run that failed, because nothing was checked in these cases.
        """
        if not self._ran or self._running:
            raise SimulationError("check() was called before the end of run(); call it afterwards")
        if not self._ended:
            raise SimulationError(f"seed {self.seed}: the run failed before its end, so nothing was checked; see its error")
        if self._violations:
            listed = "\n".join(self._violations[:20])
            raise SimulationError(f"seed {self.seed}: {len(self._violations)} violations\n{listed}")

    def number(self) -> int:
        """Return a number that no other call of this simulation has returned."""
        self._number += 1
        return self._number

    def violation(self, text: str) -> None:
        """Add a violation that a check of the user has found. ``check`` reports it together with the other violations."""
        self._violations.append(f"{text} ({self._current.name}, {self.now:.6f} s)")

    async def calm(self, seconds: float) -> None:
        """End all drawn faults permanently at the first call. Wait until ``seconds`` have passed since the first call."""
        if self._calm_from is None:
            if self._injector is not None:
                self._injector.close()
            self._calm_from = self.now
        await asyncio.sleep(max(0.0, self._calm_from + seconds - self.now))

    def rest(self) -> None:
        """End all drawn faults, and begin no new ones until ``go_on`` is called."""
        if self._injector is not None:
            self._injector.rest()

    def go_on(self) -> None:
        """Permit new faults again after ``rest``."""
        if self._injector is not None:
            self._injector.go_on()

    # -- as machines and faults use it

    def connecting(self, machine: Machine, address: str) -> None:
        """Do nothing. A subclass may count the connection attempts that machines begin."""

    def calling(self, producer: Producer, call: Call) -> None:
        """Do nothing. A subclass may observe a producer that begins a call."""

    def generator(self, name: str) -> Random:
        """Return a new random generator that is seeded with the seed of the run and ``name``."""
        return seeded_generator(self.seed, name)

    def usual_drift(self, name: str) -> float:
        """Return the usual drift of a machine's clock. It is 0 for the main machine, whose clock runs at the simulation's
        speed.
        """
        return 0.0 if name == MAIN else self.generator(f"clock of {name}").uniform(-USUAL_DRIFT, USUAL_DRIFT)

    def entered(self, machine: Machine) -> None:
        current = self._current
        if current is not machine:
            current.leave()
            self._current = machine
        machine.enter()

    def record(self, machine: str, what: str, **details: object) -> None:
        self._history.record(machine, what, **details)

    def failed(self, machine: Machine, error: BaseException) -> None:
        if self._failure is None:
            self._failure = (machine, error)

    def bury(self, machine: Machine, loop: SimulatedLoop, ended: Callable[[], None]) -> None:
        self.entered(machine)
        self._history.open = False
        ended()
        loop.bury()
        self._history.open = True
        self.scheduler.left()
        if machine.name == MAIN:
            self.failed(
                machine, SimulationError("its process was ended, and with it the function of run(); end only other machines")
            )

    def loop_made(self, loop: SimulatedLoop) -> None:
        loop.set_exception_handler(self.unhandled)
        self._loops = [each for each in self._loops if not each.dead]
        self._loops.append(loop)

    def monotonic(self) -> float:
        return self._current.monotonic()

    def time(self) -> float:
        return self._current.time()

    @property
    def random(self) -> Random:
        return self._current.random

    @property
    def entropy(self) -> Random:
        return self._current.entropy

    # -- inside

    def new_broker(self, name: str, host: Host, name_servers: Sequence[str]) -> BrokerMachine:
        """Return a broker that joins the cluster. A subclass may return a broker of its own class."""
        return BrokerMachine(name, self, host, name_servers)

    def _add(self, machine: Machine) -> Machine:
        self._machines[machine.name] = machine
        return machine

    def _run(self, main: Callable[[Simulation], Awaitable[T]]) -> T:
        network = self.network
        library.monotonic, library.time = self.monotonic, self.time
        first = self._current = Machine(MAIN, self, network.host(MAIN))
        self._add(first)
        brokers, name_servers = self._numbers
        self.name_servers = tuple(
            NameServerMachine(f"namesrv-{index}", self, network.host(f"namesrv-{index}")) for index in range(name_servers)
        )
        names = [each.name for each in self.name_servers]
        self.brokers = tuple(
            self.new_broker(f"broker-{letter}", network.host(f"broker-{letter}"), names)
            for letter in string.ascii_lowercase[:brokers]
        )
        for server in (*self.name_servers, *self.brokers):
            self._add(server)
        pops = drawn_pop_settings(self.seed)
        for broker in self.brokers:
            broker.settings = BrokerSettings(pops=pops)
        self._injector = injector = Injector(self.scheduler, self._faults, beginnings(self), self.generator)
        task = first.loop.create_task(self._main(main, injector), name=MAIN)
        try:
            result = run_task(
                self.scheduler,
                task,
                lambda: self._loops,
                seed=self.seed,
                failed=lambda: self._failure is not None,
                afterwards=self._check_history,
            )
        except Exception as error:
            error.add_note(f"seed {self.seed}, {self.now:.6f} virtual seconds")
            raise
        finally:
            self._running = False
            for each in self._machines.values():
                each.shut()
        if self._failure is not None:
            machine, cause = self._failure
            raise SimulationError(f"seed {self.seed}: {machine.name} failed at {self.now:.6f} s: {cause!r}") from cause
        return result  # type: ignore[return-value]

    async def _main(self, main: Callable[[Simulation], Awaitable[T]], injector: Injector) -> T:
        while any(len(broker.registered) < len(self.name_servers) for broker in self.brokers):  # noqa: ASYNC110 - at the start
            await asyncio.sleep(STEP)
        injector.start()
        returned = main(self)
        check_awaitable(returned, TAKES)
        result = await returned
        injector.close()
        return result

    def _check_history(self) -> None:
        """Run the checkers outside a callback, because they may take longer for a long history than a callback is allowed to
        take.
        """
        assert self._injector is not None
        self._violations += self.violations(
            Record(
                self._history.calls,
                [message for broker in self.brokers for message in broker.stored()],
                {unique_id for broker in self.brokers for unique_id in (*broker.lost, *broker.deleted)},
                {machine.name: machine.ends for machine in self._machines.values()},
                {machine.name: machine.stopped(self.now) for machine in self._machines.values()},
                self._injector.spans(),
            )
        )
        self._ended = True

    def violations(self, record: Record) -> list[str]:
        """Return a line for each violation that the checkers find. A subclass may add further violations."""
        calls, stored, excused, ends, stopped, _ = record
        reused = [broker.name for broker in self.brokers if broker.lost]
        return [
            *lost(calls, stored, excused),
            *copies(calls, stored, self._history.checks, restarts=any(broker.ends or broker.lost for broker in self.brokers)),
            *surprises(calls, stored),
            *renamed(calls, stored),
            *undone(calls, stored, reused),
            *misplaced(calls, stored, reused),
            *disorder(calls, stored),
            *late(calls, stopped),
            *unfinished(calls, ends, self.now),
        ]

    def unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Add a violation for an error that no code of a loop has handled."""
        what = f"{context.get('message')}: {context.get('exception')!r}"
        self._violations.append(f"unhandled: {self._current.name} at {self.now:.6f} s: {what}")


def seeded_generator(seed: int, name: str) -> Random:
    """Return a new random generator. Its numbers are the same for the same seed and name."""
    return Random(hashlib.sha256(f"{seed} {name}".encode()).digest())


def drawn_faults(seed: int, faults: Faults) -> Faults:
    """Return the faults that a simulation of ``seed`` draws from ``faults``."""
    return faults.draw(seeded_generator(seed, "faults"))


def drawn_pop_settings(seed: int) -> PopSettings:
    """Return the store of popped messages and the names of retry topics that the brokers of a simulation of ``seed`` use."""
    chance = seeded_generator(seed, "pop settings")
    return PopSettings("kv" if chance.random() < 0.3 else "log", chance.random() < 0.3)
