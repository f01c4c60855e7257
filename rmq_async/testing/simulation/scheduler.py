"""Virtual time. The scheduler runs the calls of all event loops and of the network, in an order that depends only on how the
calls were scheduled.

Time is a whole number of nanoseconds. It stands still while calls are ready and jumps to the next timer when no call is ready.
Timers with the same time run in the order in which they were set. As in asyncio, an iteration runs the calls that are ready at
its beginning.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

from .errors import DeadEnd, Frozen
from .watchdog import Watchdog

MAX_STANDING: Final = 100_000
"""Number of iterations at one virtual time after which the run ends."""
COLLECT_EVERY: Final = 50_000
"""Number of iterations between two runs of the garbage collector. Automatic collection would happen at different times in
different runs."""
MIN_COMPACTED: Final = 256
"""Number of cancelled timers above which the heap is compacted (compaction is O(n))."""


class Runner(Protocol):
    """An owner of calls, such as an event loop."""

    suspended: bool
    """Whether the runner's calls are kept until ``resume``."""
    dead: bool
    """Whether the runner's calls are dropped."""
    held: deque[Call]

    def clock(self, at: int) -> float:
        """Return the monotonic time, in seconds, at a simulation time in nanoseconds."""

    def enter(self) -> None:
        """Make the runner the current one. This method is called before the runner's calls."""

    def failed(self, call: Call, error: BaseException) -> None:
        """Handle an exception that a call raised."""


class Call:
    """A scheduled call, which is the result of ``loop.call_soon`` and ``loop.call_at``.

    Args:
        runner: The owner of the call. None for calls of the network and of machines.
    """

    __slots__ = ("_scheduler", "args", "at", "callback", "context", "runner", "waits")

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner | None,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
    ) -> None:
        self._scheduler = scheduler
        self.runner = runner
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.at = -1
        """Time of the timer in nanoseconds. -1 for a call that is not a timer."""
        self.waits = False
        """Whether the call is in the heap of timers."""

    def cancel(self) -> None:
        """Drop the call, unless it has run."""
        if self.callback is not None:
            self.callback, self.args = None, ()
            if self.waits:
                self._scheduler.forget(self)

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        """Return the time of a timer on the clock of its loop, in seconds."""
        return self.at / 1e9 if self.runner is None else self.runner.clock(self.at)

    def __repr__(self) -> str:
        return f"<Call {self.callback!r}>"


class Scheduler:
    """Orders and runs all calls of a simulation.

    Attributes:
        now: Nanoseconds since the beginning of the simulation.
    """

    def __init__(self) -> None:
        self.now = 0
        self.iterations = 0
        self.calls = 0
        """Number of calls of event loops that have run."""
        self._ready: deque[Call] = deque()
        self._timers: list[tuple[int, int, Call]] = []
        self._set = 0
        self._cancelled = 0
        self._moved = 0
        """The last iteration in which the virtual time advanced."""
        self._entered: Runner | None = None
        self._plain = Context()

    def call_soon(
        self, runner: Runner | None, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None = None
    ) -> Call:
        """Schedule a call for the next iteration."""
        call = Call(self, runner, callback, args, copy_context() if context is None else context)
        self._ready.append(call)
        return call

    def call_at(
        self,
        at: int,
        runner: Runner | None,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None = None,
    ) -> Call:
        """Schedule a call for a time in nanoseconds, or for the next iteration if that time has come."""
        call = Call(self, runner, callback, args, copy_context() if context is None else context)
        call.at = at
        if at <= self.now:
            self._ready.append(call)
        else:
            call.waits = True
            self._set += 1
            heappush(self._timers, (at, self._set, call))
        return call

    def after(self, delay: int, callback: Callable[..., object], *args: Any) -> Call:
        """Schedule a call outside any loop (an event of the network or of a machine) ``delay`` nanoseconds from now."""
        return self.call_at(self.now + delay, None, callback, args, self._plain)

    def left(self) -> None:
        """Make the scheduler enter the next runner again, because code of another runner has run outside that runner's calls."""
        self._entered = None

    def forget(self, call: Call) -> None:
        """Count a cancelled timer. Drop all cancelled timers if there are many of them and they are more than half of all
        timers.
        """
        self._cancelled += 1
        if self._cancelled > MIN_COMPACTED and 2 * self._cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapify(self._timers)
            self._cancelled = 0

    def retime(self, runner: Runner, at: Callable[[int], int]) -> None:
        """Move each timer of the runner from its time ``t`` (nanoseconds) to ``at(t)``, or to now if that is in the past."""
        timers = []
        for entry in self._timers:
            call = entry[2]
            if call.runner is runner:
                call.at = max(self.now, at(call.at))
            timers.append((call.at, entry[1], call))
        heapify(timers)
        self._timers = timers

    def block(self, nanoseconds: int) -> None:
        """Advance the time during a call, as code that blocks its loop does. The timers that become due in the meantime are
        ready next.
        """
        until = self.now + nanoseconds
        while self._timers and self._timers[0][0] <= until and self._next_timers():
            pass
        self.now = until

    def resume(self, runner: Runner) -> None:
        """Make the held calls of the runner ready."""
        runner.suspended = False
        held, runner.held = runner.held, deque()
        self._ready.extend(held)

    def run(self, over: Callable[[], bool], watchdog: Watchdog) -> None:
        """Run calls until ``over()`` is true.

        Raises:
            DeadEnd: After ``MAX_STANDING`` iterations at one virtual time, and if no call is left to run.
            Frozen: After a callback that the watchdog has stopped. It is raised here again, because a task may have hidden it.
        """
        self._entered = None
        while not over():
            self.iterations += 1
            if not self.iterations % COLLECT_EVERY:
                gc.collect()
            if watchdog.stack:
                raise Frozen
            if not self._ready:
                watchdog.moves = self.iterations
                if not self._next_timers():
                    raise DeadEnd("no call is ready and no timer is set, so nothing can wake the tasks that wait")
            if self.iterations - self._moved > MAX_STANDING:
                raise DeadEnd(f"{MAX_STANDING:,} iterations ran at one virtual time; the next call is {self._ready[0]!r}")
            ready = self._ready
            for _ in range(len(ready)):  # the hot path of all simulations: the body avoids every unnecessary call
                call = ready.popleft()
                callback, runner = call.callback, call.runner
                if callback is None:
                    continue
                if runner is None:
                    call.callback = None
                    callback(*call.args)
                elif runner.suspended and not runner.dead:
                    runner.held.append(call)
                elif not runner.dead:
                    if runner is not self._entered:
                        self._entered = runner
                        runner.enter()
                    self.calls += 1
                    watchdog.beats = self.calls
                    try:
                        call.context.run(callback, *call.args)
                    except Exception as error:  # noqa: BLE001 - as asyncio's loops do
                        runner.failed(call, error)

    def _next_timers(self) -> bool:
        """Move the time to the time of the earliest timer. All timers with this time become ready.

        Returns:
            False if no timer is set.
        """
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heappop(timers)
            self._cancelled -= 1
        if not timers:
            return False
        self.now = now = timers[0][0]
        self._moved = self.iterations
        while timers and timers[0][0] == now:
            call = heappop(timers)[2]
            if call.callback is None:
                self._cancelled -= 1
            else:
                call.waits = False
                self._ready.append(call)
        return True


def nanoseconds(seconds: float) -> int:
    """Return ``seconds`` in nanoseconds, rounded up to a whole number."""
    whole = -int(-seconds * 1e9 // 1)
    return whole if whole / 1e9 >= seconds else whole + 1


class MonotonicClock:
    """The monotonic clock of a machine.

    Args:
        booted: Time of the clock at the beginning of the simulation, in seconds.
        drift: Seconds that the clock gains in each second.
    """

    def __init__(self, scheduler: Scheduler, *, booted: float = 0.0, drift: float = 0.0) -> None:
        self._scheduler = scheduler
        self._base = booted
        self._since = 0
        self._pace = (1.0 + drift) / 1e9
        """Seconds that the clock advances per nanosecond of the simulation."""

    def time(self) -> float:
        """Return the time of the clock in seconds."""
        return self._base + (self._scheduler.now - self._since) * self._pace

    def seconds(self, at: int) -> float:
        """Return the time of the clock, in seconds, at a simulation time in nanoseconds."""
        return self._base + (at - self._since) * self._pace

    def at(self, seconds: float) -> int:
        """Return the simulation time, in nanoseconds, from which on the clock shows at least ``seconds``."""
        at = self._since + int((seconds - self._base) / self._pace)
        return at if self._base + (at - self._since) * self._pace >= seconds else at + 1

    def set_drift(self, drift: float) -> float:
        """Change the speed of the clock from now on. The time of the clock does not jump.

        Return the factor by which the waits until later times of the clock grow. It is 2.0 if the clock runs half as fast as
        before.
        """
        before = self._pace
        self._base, self._since = self.time(), self._scheduler.now
        self._pace = (1.0 + drift) / 1e9
        return before / self._pace
