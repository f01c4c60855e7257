"""Calls that wait for unreachable brokers: shared connection attempts, and a gradual release of the calls.

65,535 calls may wait for a broker that restarts. They make no connection attempts of their own: one task per address tries to
connect, as often as the pool allows. It refreshes the routes of the waiting topics after each failure, and while an attempt takes
long, because the broker may come back at another address. When the connection is made, the calls are released first come, first
served, as fast as the window of the connection (``transport.send_window``) takes them. The calls that still wait may use another
broker instead.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextvars import Context
from typing import Final

from ... import machine
from ..._ordered import OrderedSet
from ...errors import ClientStateError, ConnectError, RequestTimeoutError, RocketMQError
from ...transport import Connection, ConnectionPool, report
from .call_errors import not_reached, reached_late

ASK_AFTER: Final = 0.5
"""Seconds between two refreshes of the routes during a connection attempt. The broker may have moved."""
SPACING: Final = 0.05
"""Minimum seconds from the start of a connection attempt to the next attempt."""
TICK: Final = 0.005
"""Seconds between two steps of the gradual release of calls."""
FEWEST: Final = 16
MOST: Final = 256
"""Maximum number of calls that are released in one step, because each call takes some time of the loop. At least FEWEST are
released even if other sends use up the window, so that waiting calls get a share of it."""


class Waiting:
    """A call that waits for a connection or a new route.

    Args:
        topic: The topic's name on the wire.
        wake: Called when the wait is over.

    Attributes:
        over: Whether the wait is over.
        addresses: For each address, the number of connection attempts that had failed there before this call joined.
    """

    __slots__ = ("addresses", "over", "topic", "wake")

    def __init__(self, topic: str, wake: Callable[[], None]) -> None:
        self.topic = topic
        self.addresses: dict[str, int] = {}
        self.wake = wake
        self.over = False

    def end(self) -> None:
        """End the wait and wake the call."""
        self.over = True
        self.wake()


class _Address:
    """The calls that wait for one address, and the task that connects to it.

    Attributes:
        topics: Number of waiting calls per topic.
        failed: Number of connection attempts that failed while calls waited.
        reason: Text of the last failure.
    """

    __slots__ = ("calls", "failed", "reason", "task", "topics")

    def __init__(self) -> None:
        self.calls: dict[Waiting, None] = {}
        self.topics: Counter[str] = Counter()
        self.failed = 0
        self.reason = ""
        self.task: asyncio.Task[None] | None = None

    def remove(self, waiting: Waiting) -> None:
        if waiting in self.calls:
            del self.calls[waiting]
            self.topics[waiting.topic] -= 1
            if not self.topics[waiting.topic]:
                del self.topics[waiting.topic]


class Recovery:
    """The waiting calls of one producer, by the address for which they wait.

    Args:
        ask: Starts a refresh of a topic's route without waiting for it.
    """

    def __init__(self, pool: ConnectionPool, ask: Callable[[str], None]) -> None:
        self._pool = pool
        self._ask = ask
        self._addresses: dict[str, _Address] = {}
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Recovery of {sorted(self._addresses)}, {len(self)} calls wait>"

    def __len__(self) -> int:
        """Return the number of waiting calls. A call that waits for several addresses counts once for each address."""
        return sum(len(address.calls) for address in self._addresses.values())

    def join(self, topic: str, addresses: Collection[str], wake: Callable[[], None]) -> Waiting:
        """Register a call that waits for a connection to any of ``addresses`` or for a new route of ``topic``.

        The caller must call ``leave`` afterwards.

        Args:
            topic: The topic's name on the wire.
            wake: Called when the wait is over.
        """
        waiting = Waiting(topic, wake)
        for address in addresses:
            those = self._addresses.get(address)
            if those is None:
                those = self._addresses[address] = _Address()
                if not self._closed:
                    self._start(address, those)
            waiting.addresses[address] = those.failed
            those.calls[waiting] = None
            those.topics[topic] += 1
        return waiting

    def leave(self, waiting: Waiting) -> None:
        """Remove a call that no longer waits. If no other call waits for an address, cancel the task that connects to it."""
        for address in waiting.addresses:
            those = self._addresses.get(address)
            if those is None:
                continue
            those.remove(waiting)
            if not those.calls:
                del self._addresses[address]  # before the cancel: a call that joins from now on gets a new task
                task, those.task = those.task, None  # breaks a cycle: its CancelledError has frames that refer to ``those``
                if task is not None:
                    task.cancel()

    def most_failed(self, waiting: Waiting) -> tuple[str, int, str]:
        """Return the address with the most failures since the call joined, their number, and the text of the last failure."""
        found = [
            (those.failed - before, address, those.reason)
            for address, before in waiting.addresses.items()
            if (those := self._addresses.get(address)) is not None
        ]
        count, address, reason = max(found, default=(0, next(iter(waiting.addresses), ""), ""))
        return address, count, reason

    def too_late(self, waiting: Waiting, seconds: float) -> ConnectError:
        """Return the error of a wait that lasted until the deadline.

        Either there was no connection, or there was one but the call was not released yet.
        """
        for address in waiting.addresses:
            if self._pool.get(address) is not None:
                return reached_late(address, seconds)
        return not_reached(*self.most_failed(waiting), seconds)

    def route_changed(self, topic: str) -> None:
        """End the waits of all calls to ``topic`` (its name on the wire), because its new route may name other brokers."""
        for those in self._addresses.values():
            if topic in those.topics:
                for waiting in [each for each in those.calls if each.topic == topic and not each.over]:
                    waiting.end()

    async def close(self) -> None:
        """Cancel the connection tasks and wait until they have ended. The calls must have ended before."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- inside

    def _start(self, address: str, those: _Address) -> None:
        # An empty context, because the task works for all callers and not only for the caller that starts it.
        loop = asyncio.get_running_loop()
        those.task = loop.create_task(self._run(address, those), name=f"rmq_async recovery of {address}", context=Context())
        self._tasks.add(those.task)
        those.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            report(f"{task.get_name()} failed", error)

    async def _run(self, address: str, those: _Address) -> None:
        while True:
            began = machine.monotonic()
            try:
                connection = await self._pool.connect(address, ASK_AFTER)
            except ClientStateError:
                return
            except RequestTimeoutError:  # the attempt continues
                self._ask_for(those)
                continue
            except Exception as error:  # noqa: BLE001 - all calls of the address depend on this task
                those.failed += 1
                those.reason = str(error)
                self._ask_for(those)
                if not isinstance(error, RocketMQError):
                    report(f"connecting to {address} failed; another attempt follows", error)
            else:
                await self._let_go(connection, those)
            await asyncio.sleep(max(0.0, began + SPACING - machine.monotonic()))

    def _ask_for(self, those: _Address) -> None:
        for topic in those.topics:
            self._ask(topic)

    async def _let_go(self, connection: Connection, those: _Address) -> None:
        """Release the waiting calls step by step. Return when no call is left or the connection has closed."""
        requests, waiting = connection.requests, list(reversed(those.calls))
        while connection.is_open:
            # Release twice the window, because the window grows only while sends wait for it.
            free = max(FEWEST, min(MOST, 2 * requests.limit - requests.unanswered))
            while free > 0 and waiting:
                each = waiting.pop()
                if not each.over and each in those.calls:
                    each.end()
                    free -= 1
            if not waiting and not (waiting := [each for each in reversed(those.calls) if not each.over]):
                return
            await asyncio.sleep(TICK)
