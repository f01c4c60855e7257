"""Calls the user's functions for assigned, revoked, released and lost queues: ``on_assigned``, ``on_revoked``, ``on_released`` and
``on_lost``.
"""

# The functions are called in the order of the events. The next call begins when the previous call has ended or was cancelled.
# Consecutive waiting events of one kind are joined into one call. Each call runs in a separate task, in a copy of the context (of
# ``contextvars``) in which the consumer was started. A call that exceeds its time is cancelled, and the handover continues even
# if the call ignores the cancellation.

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from math import inf
from typing import Any, Final, Literal

from rmq_protocol.message import MessageQueue

from ... import machine
from ..._functions import handler_name
from ..config import AssignmentCallback

logger = logging.getLogger(__name__)

EventKind = Literal["on_assigned", "on_revoked", "on_released", "on_lost"]
GRACE: Final = 1.0
"""Maximum seconds to wait for the end of a cancelled call."""
LEAST: Final = 0.05
"""Minimum seconds for a call, even if less time is left."""


class Event:
    """One call of a function, for the queues of one event or of consecutive events of the same kind.

    Attributes:
        until: Monotonic time at which the call is cancelled at the latest.
        over: An event that is set when the call has ended, is no longer waited for, or will not be made.
    """

    __slots__ = ("kind", "over", "queues", "until")

    def __init__(self, kind: EventKind) -> None:
        self.kind = kind
        self.queues: set[MessageQueue] = set()
        self.until = inf
        self.over = asyncio.Event()


class AssignmentCallbacks:
    """Calls the user's functions for queues that this member takes, gives up or loses.

    Args:
        functions: The function, or None, by kind.
        seconds: Maximum seconds for one call.
        context: Each call runs in a copy of this context.
        spawn: Starts a task that is cancelled at the end of the consumer.
        limit: Returns the monotonic time by which a call of a kind must have ended.
    """

    def __init__(
        self,
        functions: Mapping[EventKind, AssignmentCallback | None],
        seconds: float,
        context: Context,
        spawn: Callable[[str, Coroutine[Any, Any, None]], object],
        limit: Callable[[EventKind], float],
    ) -> None:
        self._functions = {kind: function for kind, function in functions.items() if function is not None}
        self._seconds = seconds
        self._context = context
        self._spawn = spawn
        self._limit = limit
        self._waiting: deque[Event] = deque()
        self._running: asyncio.Task[None] | None = None
        self._name = ""
        """The kind and name of the function that runs or ran last."""
        self._changed = asyncio.Event()
        """An event that is set at the end of a call, and when ``limit`` may have become earlier."""
        self.idle = asyncio.Event()
        """An event that is set while no call runs or waits."""
        self.idle.set()

    def __contains__(self, kind: object) -> bool:
        return kind in self._functions

    def add(self, kind: EventKind, queues: Iterable[MessageQueue], until: float = inf) -> Event | None:
        """Schedule a call of the user's function after the earlier calls.

        If the last waiting call has the same kind, add the queues to that call instead.

        Args:
            queues: Queues with the user's names.
            until: Monotonic time at which the call is cancelled, even if it has not reached its maximum time.

        Returns:
            The event of the call; None if there is no function of this kind, or no queue.
        """
        found = frozenset(queues)
        if kind not in self._functions or not found:
            return None
        if not self._waiting or self._waiting[-1].kind != kind:
            self._waiting.append(Event(kind))
        event = self._waiting[-1]
        event.queues |= found
        event.until = min(event.until, until)
        if self.idle.is_set():
            self.idle.clear()
            self._spawn("calls of on_assigned and the like", self._run())
        return event

    def is_own_task(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` runs a callback."""
        return task is not None and task is self._running

    def name_of(self, task: asyncio.Task[Any]) -> str | None:
        """Return the name of the function that ``task`` calls, or None. May be called from any thread."""
        return self._name if task is self._running else None

    def look_at_limit(self) -> None:
        """Read ``limit`` again and adapt the deadlines."""
        self._changed.set()

    async def _run(self) -> None:
        try:
            while self._waiting:
                event = self._waiting.popleft()
                try:
                    await self._call(event)
                finally:
                    event.over.set()
        finally:
            for event in self._waiting:
                event.over.set()
            self._waiting.clear()
            self.idle.set()

    async def _call(self, event: Event) -> None:
        function, kind = self._functions[event.kind], event.kind
        work = _called(kind, function, frozenset(event.queues))
        began = machine.monotonic()
        self._name = f"{kind} {handler_name(function)}"
        self._running = task = asyncio.get_running_loop().create_task(
            work, name=f"rmq_async {kind}", context=self._context.copy()
        )
        task.add_done_callback(lambda _: self._changed.set(), context=Context())
        try:
            await self._ended(task, event, began)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=GRACE)
                state = "" if task.done() else ", and continues"
                took = machine.monotonic() - began
                text = (
                    "%s was cancelled after %.1f s%s; the handover continues; let the function return sooner, or raise "
                    "handover_timeout, or during a stop, stop_timeout"
                )
                logger.warning(text, self._name, took, state)
            self._running = None

    async def _ended(self, task: asyncio.Task[None], event: Event, began: float) -> None:
        """Wait until a call has ended or its time is up."""
        while not task.done():
            until = min(began + self._seconds, event.until, self._limit(event.kind))
            left = max(until, began + LEAST) - machine.monotonic()
            if left <= 0:
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()


async def _called(kind: EventKind, function: AssignmentCallback, queues: frozenset[MessageQueue]) -> None:
    """Call the user's function, and log its errors."""
    try:
        result: object = function(queues)
        if inspect.isawaitable(result):
            await result
    except Exception:
        shown = ", ".join(str(queue) for queue in sorted(queues)[:10])
        more = f" and {len(queues) - 10} more" if len(queues) > 10 else ""
        logger.exception("%s %s raised for %s%s; the handover continues", kind, handler_name(function), shown, more)
