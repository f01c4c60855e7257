"""Clocks of an embedded server, for store times, delays, timers, transaction checks and pops.

``SystemClock`` is the machine's clock. ``ManualClock`` stands still until a test moves it. It then makes the calls that become
due, in order, each at its own time. So a message delayed for two hours is delivered after one ``await clock.advance(7200)``.
Timeouts of the network (held pulls, idle connections) use the event loop's clock, because peers have their own clocks.

A component that waits for several points in time sets one ``Alarm`` to the earliest of them. There is no timer per message.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Final, Protocol

from .. import machine

MAX_WAIT: Final = 3600.0
"""Maximum number of seconds for which a timer of the event loop is set. When it expires, the machine's clock is read again,
because somebody may have changed its time."""
_TURNS: Final = 3
"""Number of iterations of the event loop that a call needs to take effect at peers: wake a held pull, respond to it, write the
response."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """The protocol of ``EmbeddedRocketMQ(clock=...)``."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""

    def call_at(self, when_ms: int, call: Callable[[], object]) -> Timer:
        """Call ``call`` once, in the running event loop, when the clock reaches ``when_ms`` (epoch ms), or soon if that time
        has passed. A clock may call earlier, as ``SystemClock`` does after an hour, so ``call`` must check ``now_ms()``.

        Returns:
            A timer. Its method ``cancel()`` prevents the call.
        """


class SystemClock:
    """The machine's clock, the default of ``EmbeddedRocketMQ``."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        return int(machine.time() * 1000)

    def call_at(self, when_ms: int, call: Callable[[], object]) -> Timer:
        """Call ``call`` as ``Clock.call_at`` does, but after one hour at the latest, even if ``when_ms`` is later. The
        machine's clock may be set in the meantime, so ``call`` must compare ``now_ms()`` with its time.
        """
        wait = min(max(when_ms - self.now_ms(), 0) / 1000, MAX_WAIT)
        return asyncio.get_running_loop().call_later(wait, call)


class PendingCall:
    """A call that the event loop makes once. While the call is pending, further requests for it have no effect."""

    __slots__ = ("_call", "_handle")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._handle: asyncio.Handle | None = None

    @property
    def pending(self) -> bool:
        return self._handle is not None

    def soon(self) -> None:
        """Request the call for the next iteration of the event loop."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._due)

    def at(self, when: float) -> None:
        """Request the call for the time ``when`` of the event loop's clock."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_at(when, self._due)

    def after(self, seconds: float) -> None:
        self.at(asyncio.get_running_loop().time() + seconds)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self) -> None:
        self._handle = None
        self._call()


class _Pending:
    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class ManualClock:
    """A clock that stands still until a test moves it.

    One clock can serve several servers in the same event loop.

    Args:
        start_ms: The initial time in milliseconds since the epoch. The default is the time of the machine's clock.
    """

    def __init__(self, start_ms: int | None = None) -> None:
        self._now = int(machine.time() * 1000) if start_ms is None else start_ms
        self._numbers = itertools.count()
        self._timers: list[tuple[int, int, _Pending]] = []
        self._due_soon = PendingCall(self._due_already)

    def now_ms(self) -> int:
        """Return the clock's time in milliseconds since the epoch."""
        return self._now

    def call_at(self, when_ms: int, call: Callable[[], object]) -> Timer:
        """Call ``call`` within the ``advance()`` that reaches ``when_ms`` (epoch ms), or soon if the clock has already reached
        that time.

        Returns:
            A timer. Its method ``cancel()`` prevents the call.
        """
        timer = _Pending(call)
        heapq.heappush(self._timers, (when_ms, next(self._numbers), timer))
        if when_ms <= self._now:
            self._due_soon.soon()
        return timer

    async def advance(self, seconds: float) -> None:
        """Move the clock by ``seconds``, to a whole millisecond.

        Return when all calls that became due have run and the event loop has run a few more iterations, so that the responses
        to held requests are sent.

        Raises:
            ValueError: For negative, infinite and NaN seconds.
        """
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds must be a finite, non-negative number, not {seconds}")
        end = self._now + round(seconds * 1000)
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                self._now = max(self._now, when)
                timer.call()
        self._now = end
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def _due_already(self) -> None:
        """Make the calls that were already due when they were requested.

        If one of these calls requests a further call, the further call waits for the next iteration of the event loop.
        """
        last = next(self._numbers)
        while self._timers and self._timers[0] < (self._now + 1, 0) and self._timers[0][1] < last:
            _, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                timer.call()
        if self._timers and self._timers[0][0] <= self._now:
            self._due_soon.soon()


class Alarm:
    """A timer that is set to the earliest of the requested times.

    Args:
        ring: The function that is called at that time. It requests the next time.
    """

    def __init__(self, clock: Clock, ring: Callable[[], object]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._when = 0
        self._on = False

    def start(self) -> None:
        """Enable the alarm. Before this call and after ``stop``, ``by`` has no effect."""
        self._on = True

    def by(self, when_ms: int) -> None:
        """Make the alarm ring at ``when_ms`` at the latest, if it is enabled."""
        if not self._on or (self._timer is not None and self._when <= when_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._when = when_ms
        self._timer = self._clock.call_at(when_ms, self._due)

    def stop(self) -> None:
        self._on = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        if self._clock.now_ms() < self._when:  # the clock was set back, or the wait was limited by MAX_WAIT
            self.by(self._when)
        else:
            self._ring()
