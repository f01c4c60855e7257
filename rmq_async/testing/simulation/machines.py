"""Simulated machines. Each machine runs one process at a time, with its own event loop, clocks and random sources."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from math import inf, isfinite
from random import Random
from typing import Any, Final, Protocol

from ... import machine as library
from .errors import SimulationError
from .loop import SimulatedLoop, settle
from .network import Host
from .scheduler import MonotonicClock, Scheduler, nanoseconds

EPOCH: Final = 1_750_000_000.0
"""Seconds since the epoch at which each simulation begins."""
USUAL_DRIFT: Final = 200e-6
"""Maximum number of seconds that a monotonic clock gains or loses in each second, as quartz crystals do without correction."""
LARGEST_DRIFT: Final = 0.5
LONGEST_UPTIME: Final = 1_000_000.0
"""Maximum uptime of a machine, in seconds, when the simulation begins."""
FIRST_PROCESS_ID: Final = 1000

Factory = Callable[[], Awaitable[Any]]


class World(Protocol):
    """The state that the machines of a simulation share."""

    scheduler: Scheduler

    def generator(self, name: str) -> Random:
        """Return a new random generator that is seeded with the seed of the run and ``name``."""

    def usual_drift(self, name: str) -> float:
        """Return the seconds that the monotonic clock of a machine gains in each second if no fault affects it."""

    def entered(self, machine: Machine) -> None:
        """Make a machine the current one: the machine whose code is running."""

    def connecting(self, machine: Machine, address: str) -> None:
        """Count a connection attempt that begins."""

    def record(self, machine: str, what: str, **details: object) -> None:
        """Add an event to the history."""

    def failed(self, machine: Machine, error: BaseException) -> None:
        """End the run, because the code of a machine has raised an exception."""

    def bury(self, machine: Machine, loop: SimulatedLoop, ended: Callable[[], None]) -> None:
        """End the coroutines of a closed process and call ``ended``. Both see the clocks of the machine."""

    def loop_made(self, loop: SimulatedLoop) -> None:
        """Store the loop of a new process, and drop the loops of processes that have ended."""


class LoopExecutor(Executor):
    """Runs the library's jobs on the loop, each after a drawn delay."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.reason: str | None = None
        """The error message with which threads are refused. None while threads are granted."""
        self.refusals = 0

    @property
    def refused(self) -> str | None:
        self.refusals += self.reason is not None
        return self.reason

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        job: Future[Any] = Future()
        self._loop.call_later(self._loop.job_delay(), self._run, job, lambda: fn(*args, **options))
        return job

    def _run(self, job: Future[Any], work: Callable[[], Any]) -> None:
        if job.set_running_or_notify_cancel():
            settle(job, work)


class Machine:
    """One machine: its process, its clocks, and its faults.

    ``crash``, ``power_loss``, ``restart``, ``pause``, ``resume`` and ``move`` take effect after the running callback, at the
    same virtual time. ``skew``, ``drift``, ``drift_monotonic``, ``slow`` and ``refuse_threads`` take effect immediately.
    """

    def __init__(self, name: str, world: World, host: Host) -> None:
        self.name = name
        self.random = world.generator(f"random of {name}")
        self.entropy = world.generator(f"entropy of {name}")
        self.paused = False
        self._world = world
        self._host = host
        self._chance = world.generator(f"machine {name}")
        self._usual_drift = world.usual_drift(name)
        self._clock = MonotonicClock(world.scheduler, booted=self._chance.random() * LONGEST_UPTIME, drift=self._usual_drift)
        self.monotonic = self._clock.time
        """A function that returns the seconds of a clock that is never set. The machine's timers run by this clock."""
        self._skew = 0.0
        self._drift = 0.0
        self._drifts_since = 0.0
        self._instance_name = ""
        self._processes = 0
        self._factories: list[tuple[Factory, asyncio.Future[Any] | None]] = []
        self._loop: SimulatedLoop | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Strong references to the tasks of the current process. The event loop has only weak references."""
        self._executor: LoopExecutor | None = None
        self._pauses: list[list[float]] = []
        self.ends: list[float] = []
        """Times at which a process has ended."""
        self._start()

    def __repr__(self) -> str:
        return f"<Machine {self.name}>"

    @property
    def address(self) -> str:
        """The current IPv4 address."""
        return self._host.address

    @property
    def running(self) -> bool:
        """Whether a process exists. A paused process exists."""
        return self._loop is not None

    @property
    def loop(self) -> SimulatedLoop:
        """The event loop of the process.

        Raises:
            SimulationError: While no process runs.
        """
        if self._loop is None:
            raise SimulationError(f"{self.name} has no running process; call its restart() first, during the simulation")
        return self._loop

    # -- clocks

    def time(self) -> float:
        """Return the seconds since the epoch that this machine's clock shows."""
        now = self._now()
        return EPOCH + self._skew + now + self._drift * (now - self._drifts_since)

    def process_id(self) -> int:
        return FIRST_PROCESS_ID + self._processes

    def skew(self, seconds: float) -> None:
        """Set the machine's wall clock ahead of the simulation time, or behind it if the number is negative. End a drift.

        Raises:
            SimulationError: For anything but a finite number.
        """
        self._check_clock("skewed by a finite number of seconds", seconds)
        self._world.record(self.name, "skew", seconds=seconds)
        self._skew, self._drift = seconds, 0.0

    def drift(self, rate: float) -> None:
        """Make the machine's wall clock gain ``rate`` seconds in each second (or lose them, if negative) until the next
        ``skew``.

        Raises:
            SimulationError: For anything but a finite number.
        """
        self._check_clock("made to drift by a finite number", rate)
        self._world.record(self.name, "drift", rate=rate)
        now = self._now()
        self._skew += self._drift * (now - self._drifts_since)
        self._drift, self._drifts_since = rate, now

    def drift_monotonic(self, rate: float | None) -> None:
        """Make the machine's monotonic clock, by which its timers run, gain ``rate`` seconds in each second (or lose them, if
        negative).

        None restores the usual drift, -200 to 200 µs, which each machine draws.

        Raises:
            SimulationError: For anything but a number from -0.5 to 0.5, or None.
        """
        drift = self._usual_drift if rate is None else rate
        self._check_clock("made to drift by a finite number", drift)
        if abs(drift) > LARGEST_DRIFT:
            raise SimulationError(
                f"the monotonic clock of {self.name} must gain or lose at most {LARGEST_DRIFT} s in each second, not {drift!r}"
            )
        self._world.record(self.name, "drift_monotonic", rate=rate)
        if self._loop is None:
            self._clock.set_drift(drift)
        else:
            self._loop.set_drift(drift)

    def _check_clock(self, what: str, number: float) -> None:
        if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
            raise SimulationError(f"the clock of {self.name} must be {what}, not {number!r}")

    # -- processes

    def run(self, factory: Factory) -> asyncio.Future[Any]:
        """Start a coroutine function on the machine. Start it again after each restart, until it has returned once.

        An exception that the coroutine raises ends the run: ``Simulation.run`` raises SimulationError with it as the cause.

        Returns:
            A future of the caller's loop. It gets the result of the coroutine that returned.

        Raises:
            SimulationError: For an object that is not a function, and outside of the simulation.
        """
        check_callable(factory, f"run() of {self.name} takes a coroutine function")
        if asyncio._get_running_loop() is None:
            raise SimulationError(
                f"run() of {self.name} was called outside of the simulation; call it in the function given to Simulation.run()"
            )
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add(factory, result)
        return result

    def serve(self, factory: Factory) -> None:
        """Start a coroutine function of a server on the machine. Start it again after each restart."""
        self._add(factory, None)

    def _add(self, factory: Factory, result: asyncio.Future[Any] | None) -> None:
        self._factories.append((factory, result))
        if self._loop is not None:
            self._begin(factory, result)

    def crash(self) -> None:
        """End the process. The kernel closes the connections, and the data on disk stay."""
        self._soon(self._crash)

    def power_loss(self) -> None:
        """End the process and the kernel. Peers get no segments, and data that were not flushed to the disk are lost."""
        self._soon(self._power_loss)

    def restart(self) -> None:
        """Start the process again. If a process is running, end it first, as ``crash`` does."""
        self._soon(self._restart)

    def pause(self) -> None:
        """Stop the process as SIGSTOP does. Its code does not run, and its connections stay."""
        self._soon(self._pause)

    def resume(self) -> None:
        """Continue a paused process. Timers that became due during the pause run at once."""
        self._soon(self._resume)

    def slow(self, seconds: float) -> None:
        """Make each iteration of the event loop take up to ``seconds``, during which data may arrive. 0 ends the slowdown.

        A process that starts later is not slow.

        Raises:
            SimulationError: For anything but a finite number of at least 0, and while no process runs.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < inf:
            raise SimulationError(f"{self.name} must be slowed by a finite, non-negative number of seconds, not {seconds!r}")
        self._world.record(self.name, "slow", seconds=seconds)
        self.loop.longest_turn = nanoseconds(seconds)

    def refuse_threads(self, refused: bool = True) -> None:
        """Refuse threads for plain handlers and the library's jobs, as a machine that has reached its limit of processes does.
        False grants threads again. A process that starts later has threads.

        Raises:
            SimulationError: While no process runs.
        """
        self._world.record(self.name, "refuse_threads", refused=refused)
        self.loop  # noqa: B018 - raises while no process runs
        assert self._executor is not None
        self._executor.reason = "can't start new thread" if refused else None

    @property
    def refused_threads(self) -> int:
        """Number of threads that were refused to the current process. 0 while no process runs."""
        return 0 if self._executor is None else self._executor.refusals

    def move(self, address: str) -> None:
        """Give the machine another IPv4 address. Its name resolves to the new address from now on. Segments of connections at
        the old address are lost.

        Raises:
            SimulationError: For an address that is malformed, local or taken.
        """
        self._soon(self._move, self._host.check_move(address))

    # -- as the loop and the simulation use it

    def enter(self) -> None:
        """Give the library the clocks, random sources and names of this machine. This method is called before code of the
        machine runs.
        """
        library.random, library.entropy = self.random, self.entropy
        library.process_id, library.address = self.process_id, self.address
        library.instance_name = self._instance_name
        library.executor = self._executor

    def leave(self) -> None:
        """Store the instance name that the process has drawn."""
        self._instance_name = library.instance_name

    def stopped(self, now: float) -> list[tuple[float, float]]:
        """Return the times between which processes were paused, in seconds of the simulation."""
        return [(began, ended) for began, ended in ([*pause, now][:2] for pause in self._pauses)]

    def shut(self) -> None:
        """Close the resources that a running process has outside its loop.

        This method is called when the run is over and all loops are closed.
        """
        if self._loop is not None:
            self._loop = None
            self.process_ended()

    @property
    def streams(self) -> int:
        """Number of streams that the machine's kernel keeps, including streams of former processes."""
        return len(self._host.ends)

    def _now(self) -> float:
        return self._world.scheduler.now / 1e9

    def _soon(self, change: Callable[..., None], *args: Any) -> None:
        self._world.scheduler.after(0, change, *args)

    def _start(self) -> None:
        self._processes += 1
        self._instance_name = ""
        name = self.name if self._processes == 1 else f"{self.name} process {self._processes}"
        self._loop = loop = SimulatedLoop(  # type: ignore[abstract]  # Refused has the rest
            self._world.scheduler,
            name,
            chance=self._chance,
            clock=self._clock,
            network=self._host,
            entered=lambda: self._world.entered(self),
            connecting=lambda host, port: self._world.connecting(self, f"{host}:{port}"),
        )
        self._executor = LoopExecutor(loop)
        self._world.loop_made(loop)
        for factory, result in self._factories:
            if result is None or not result.done():
                self._begin(factory, result)

    def _begin(self, factory: Factory, result: asyncio.Future[Any] | None) -> None:
        task = self.loop.create_task(
            _awaited(factory, f"run() of {self.name} takes a coroutine function"),
            name=f"{self.name} {getattr(factory, '__name__', 'main')}",
        )
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._ended(task, result))

    def _ended(self, task: asyncio.Task[Any], result: asyncio.Future[Any] | None) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            self._world.failed(
                self, SimulationError(f"{task.get_name()} was cancelled; to end it, return from it, or crash() its machine")
            )
        elif (error := task.exception()) is not None:
            self._world.failed(self, error)
        elif result is not None:
            result.get_loop().call_soon(_set_result, result, task.result())

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        self._tasks.clear()
        if self.paused:
            self.paused = False
            self._pauses[-1].append(self._now())
        if loop is not None:
            self.ends.append(self._now())
            loop.close()
            self._world.bury(self, loop, self.process_ended)

    def _crash(self) -> None:
        if self._loop is not None:
            self._world.record(self.name, "crash")
            self._end()
            self._host.crash()

    def _power_loss(self) -> None:
        if self._loop is not None:
            self._world.record(self.name, "power_loss")
            self._end()
            self._host.power_off()
            self.power_lost()

    def process_ended(self) -> None:
        """Close the resources that an ended process had outside its loop. This machine has none."""

    def power_lost(self) -> None:
        """Remove the data that a power loss destroys. This machine has no disk, so it loses no data."""

    def _restart(self) -> None:
        self._crash()
        self._world.record(self.name, "restart")
        self._host.power_on()
        self._start()

    def _pause(self) -> None:
        if self._loop is not None and not self.paused:
            self._world.record(self.name, "pause")
            self.paused = self._loop.suspended = True
            self._pauses.append([self._now()])
            self._host.pause()

    def _resume(self) -> None:
        if self._loop is not None and self.paused:
            self._world.record(self.name, "resume")
            self.paused = False
            self._pauses[-1].append(self._now())
            self._host.resume()
            self._world.scheduler.resume(self._loop)

    def _move(self, address: str) -> None:
        self._world.record(self.name, "move", address=address)
        self._host.move(address)


def check_callable(function: object, text: str) -> None:
    """Raise SimulationError with ``text`` for an object that is not a function. A coroutine object is closed, so that no
    warning follows.
    """
    if callable(function):
        return
    if inspect.iscoroutine(function):
        function.close()
        raise SimulationError(f"{text}, not a coroutine: leave out its parentheses")
    raise SimulationError(f"{text}, not {function!r}")


def check_awaitable(returned: object, text: str) -> None:
    """Raise SimulationError with ``text`` for an object that cannot be awaited."""
    if not inspect.isawaitable(returned):
        raise SimulationError(f"{text}, not a function that returns {returned!r}; define it with async def")


async def _awaited(factory: Factory, text: str) -> Any:
    returned = factory()
    check_awaitable(returned, text)
    return await returned


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
