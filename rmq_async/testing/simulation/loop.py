"""The event loop of one simulated process: asyncio's interface over virtual time and a simulated network.

Each simulated process has its own loop, as real processes do, so state per loop belongs to the process. Operations that would
leave the simulation (threads of users, sockets, subprocesses, signals, TLS) raise SimulationError.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from random import Random
from types import CoroutineType
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack, cast

from .errors import SimulationError
from .scheduler import Call, MonotonicClock, Scheduler

_REASONS: Final = {
    "sockets and files of the system are not simulated; use the streams of asyncio": (
        "add_reader remove_reader add_writer remove_writer sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall "
        "sock_sendto sock_connect sock_accept sock_sendfile connect_accepted_socket create_datagram_endpoint sendfile "
        "create_unix_connection create_unix_server connect_read_pipe connect_write_pipe getnameinfo"
    ),
    "TLS is not simulated; use plain connections": "start_tls",
    "a simulation has one process of the system; run code on a machine() instead": "subprocess_shell subprocess_exec",
    "signals of the system are not simulated; use crash() or pause() of the machine": (
        "add_signal_handler remove_signal_handler"
    ),
    "a simulation has one thread, and runs the jobs of all executors on its loop; leave this out": "set_default_executor",
    "Simulation.run() runs the loops of a simulation; await the coroutine instead": "run_forever run_until_complete",
    "Simulation.run() ends the loops of a simulation; return from the function that it runs": "stop",
}


def _refusal(name: str, reason: str) -> Callable[..., Any]:
    def refuse(self: object, *args: Any, **options: Any) -> Any:
        raise SimulationError(f"{name}(): {reason}")

    refuse.__name__ = name
    refuse.__doc__ = f"Raises SimulationError: {reason}."
    return refuse


class Refused:
    """Base class with the methods that a simulated loop refuses. It must precede ``asyncio.AbstractEventLoop`` among the bases."""


for _reason, _names in _REASONS.items():
    for _name in _names.split():
        setattr(Refused, _name, _refusal(_name, _reason))


logger = logging.getLogger("rmq_async.testing.simulation")

CLOSED_AT_MOST: Final = 1000
"""Maximum number of awaits in the last steps of a coroutine that is closed."""
LONGEST_JOB = 0.005
"""Maximum duration of a job in an executor, in seconds."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


class Network(Protocol):
    """The network, as seen by one process."""

    async def connect(
        self, loop: SimulatedLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Return the transport and the protocol of a new connection.

        Raises:
            OSError: If the connection attempt or the look-up of the host fails.
        """

    def listen(
        self, loop: SimulatedLoop, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> asyncio.AbstractServer:
        """Return a listening server.

        Raises:
            OSError: For a port that is taken and for an address that the machine does not have.
            OverflowError: For a port outside 0-65535.
        """

    async def resolve(self, loop: SimulatedLoop, host: str, port: int) -> list[tuple[Any, ...]]:
        """Resolve a name as ``getaddrinfo`` does. Raise socket.gaierror for an unknown name."""


class SimulatedLoop(Refused, asyncio.AbstractEventLoop):
    """The event loop of a simulated process.

    ``entered`` is called before calls of this loop run, if calls of another loop ran before. ``connecting`` is called when a
    connection attempt to a host and port begins.

    Args:
        name: Name of the process, for error messages.
        chance: The random generator for delays.
        clock: The clock of the machine, by which the loop's timers run.
        network: The network of the process. None for a loop without a network.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        *,
        chance: Random,
        clock: MonotonicClock | None = None,
        network: Network | None = None,
        entered: Callable[[], None] | None = None,
        connecting: Callable[[str, int], object] = lambda host, port: None,
    ) -> None:
        self.name = name
        self.suspended = False
        self.dead = False
        self.held: deque[Call] = deque()
        self.slow_callback_duration = 0.1
        self.jobs = 0
        """Number of ``run_in_executor`` jobs that have not run yet."""
        self.longest_turn = 0
        """Maximum duration of an iteration of the loop, in nanoseconds. Each iteration draws its own duration."""
        self.turns = 0
        """Number of iterations that took time."""
        self._scheduler = scheduler
        self._clock = MonotonicClock(scheduler) if clock is None else clock
        self._chance = chance
        self._network = network
        self._entered = entered
        self._connecting = connecting
        self._next_turn = 0
        self._turn_chance = Random(chance.getrandbits(64))
        self._tasks = 0
        self._thread = threading.get_ident()
        self._debug = False
        self._handler: ExceptionHandler | None = None
        self._factory: Any = None
        self._buried: set[asyncio.Task[Any]] = set()
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<SimulatedLoop of {self.name}>"

    # -- as a runner of the scheduler

    def enter(self) -> None:
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=self._finalize)
        if self._entered is not None:
            self._entered()

    def failed(self, call: Call, error: BaseException) -> None:
        self.call_exception_handler({"message": f"Exception in callback {call!r}", "exception": error})

    def clock(self, at: int) -> float:
        return self._clock.seconds(at)

    # -- time and calls

    def time(self) -> float:
        """Return the monotonic time of the process, in seconds."""
        return self._clock.time()

    def set_drift(self, drift: float) -> None:
        """Change the speed of the machine's clock.

        Existing timers fire when the clock reaches their times. The current iteration is not affected.
        """
        now, turn, stretch = self._scheduler.now, self._next_turn, self._clock.set_drift(drift)
        self._scheduler.retime(self, lambda at: at if at == turn else now + int((at - now) * stretch) + 1)

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        if self.longest_turn or self._next_turn:
            return self._scheduler.call_at(self._turn(), self, callback, args, context)  # type: ignore[return-value]
        return self._scheduler.call_soon(self, callback, args, context)  # type: ignore[return-value]  # it has all of a handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            name = threading.current_thread().name
            raise SimulationError(
                f"call_soon_threadsafe() from thread {name}: a simulation has one thread; call it from that one"
            )
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._scheduler.call_at(self._clock.at(when), self, callback, args, context)  # type: ignore[return-value]

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _turn(self) -> int:
        """Return the time of the next iteration, which runs all calls that were passed to ``call_soon`` before it, in order."""
        now = self._scheduler.now
        if self._next_turn <= now:
            self._next_turn = 0
            if self.longest_turn:
                self.turns += 1
                self._next_turn = now + int(self.longest_turn * self._turn_chance.random())
        return self._next_turn

    # -- tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: str | None = None, **options: Any
    ) -> asyncio.Task[T]:
        """Create a task.

        A task without a name is named after the process and a counter of the loop. Asyncio's own counter is shared with other
        simulations, so its names would differ between runs.
        """
        if self.dead:
            coro.close()  # its first step will never run
        self._tasks += 1
        name = f"{self.name} task {self._tasks}" if name is None else name
        if self._factory is not None:
            task: asyncio.Task[T] = self._factory(self, coro, **options)
            task.set_name(name)
            return task
        return asyncio.Task(cast("Coroutine[Any, Any, T]", coro), loop=self, name=name, **options)

    def set_task_factory(self, factory: Any) -> None:
        self._factory = factory

    def get_task_factory(self) -> Any:
        return self._factory

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Run ``func`` on the loop after a drawn delay. ``executor`` is ignored."""
        future: asyncio.Future[T] = self.create_future()
        self.jobs += 1
        self.call_later(self.job_delay(), self._job, future, func, args)
        return future

    def job_delay(self) -> float:
        """Draw the duration of a job in seconds."""
        return self._chance.random() * LONGEST_JOB

    def _job(self, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        self.jobs -= 1
        if not future.cancelled():
            settle(future, lambda: func(*args))

    # -- network

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        self._check_options("create_connection", options)
        if self._network is None:
            raise SimulationError(f"create_connection(): {self.name} has no network; make the SimulatedLoop with network=")
        if host is None or port is None:
            raise SimulationError(
                f"create_connection() needs host and port, not {host!r} and {port!r}; sockets of the system are not simulated"
            )
        self._connecting(host, port)
        return await self._network.connect(self, protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> asyncio.AbstractServer:
        self._check_options("create_server", options)
        if self._network is None:
            raise SimulationError(f"create_server(): {self.name} has no network; make the SimulatedLoop with network=")
        if host is not None and not isinstance(host, str):
            raise SimulationError(f"create_server() takes one host as a str, or None, not {host!r}; call it once for each host")
        return self._network.listen(self, protocol_factory, host, port or 0)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[tuple[Any, ...]]:
        if self._network is None:
            raise SimulationError(f"getaddrinfo(): {self.name} has no network; make the SimulatedLoop with network=")
        name = host.decode() if isinstance(host, bytes) else str(host)
        return await self._network.resolve(self, name, int(port or 0))

    def _check_options(self, call: str, options: dict[str, Any]) -> None:
        """Raise SimulationError for an option that is not simulated. Other options have no effect."""
        for name in ("ssl", "sock", "local_addr"):
            if options.get(name):
                raise SimulationError(f"{call}({name}=...) is not simulated; leave {name} out")

    # -- life

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def close(self) -> None:
        """End the process. None of its calls runs after that."""
        self.dead = True
        self.held.clear()

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    async def shutdown_asyncgens(self) -> None:
        generators = list(self._generators)
        self._generators.clear()
        for generator in generators:
            await generator.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing, because there is no executor."""

    def bury(self) -> None:
        """End the coroutines of a process that was closed. Calls that they schedule in their last steps do not run."""
        left = asyncio.all_tasks(self)
        while left:
            asyncio._set_running_loop(self)
            for task in sorted(left, key=lambda task: task.get_name()):
                _close(cast("CoroutineType[Any, Any, object]", task.get_coro()))
            self._buried |= left
            left = asyncio.all_tasks(self) - self._buried
        asyncio._set_running_loop(None)

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an asynchronous generator that was dropped before its end."""
        self._generators.discard(generator)
        if not self.dead:
            self.call_soon(lambda: self.create_task(generator.aclose()))

    # -- errors

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        self._handler = handler

    def get_exception_handler(self) -> ExceptionHandler | None:
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        logger.error("%s: %s", self.name, context.get("message"), exc_info=context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error to the handler. Errors of a process that has ended are dropped."""
        if self.dead:
            return
        if self._handler is None:
            self.default_exception_handler(context)
            return
        try:
            self._handler(self, context)
        except Exception:
            logger.exception("%s: the exception handler failed for %r; fix the handler", self.name, context.get("message"))


def settle(future: asyncio.Future[T] | concurrent.futures.Future[T], work: Callable[[], T]) -> None:
    """Do the work of a future. Set the result or the error of the future."""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - it belongs to the future
        future.set_exception(error)
    else:
        future.set_result(result)


def _close(coroutine: CoroutineType[Any, Any, object]) -> None:
    """End a coroutine of a closed process, even if it awaits in its last steps. Also end the coroutines that it awaits.

    The innermost coroutine is ended first. Otherwise, a coroutine that awaits in its last steps would not end.
    """
    for _ in range(CLOSED_AT_MOST):
        inner, awaited = coroutine, coroutine.cr_await
        while inspect.iscoroutine(awaited) and awaited.cr_frame is not None:
            inner, awaited = awaited, awaited.cr_await
        try:
            inner.close()
        except RuntimeError:
            continue  # it has awaited again
        except Exception:
            logger.debug("an error in the last steps of a process that is gone", exc_info=True)
        if inner is coroutine:
            return
