"""Calls that wait for brokers that cannot be connected to: they share the attempts to connect, and go on bit by bit.

A broker that is restarted may have 65,535 calls waiting for it. None of them has a timer or an attempt of its own meanwhile:
one task for each address tries to connect, as often as the pool allows, and asks for the routes of those who wait, since the
broker may come back elsewhere. Once there is a connection, the calls go in the order in which they came, few at first and twice
as many each time the broker has kept up: one that has just started is slow, and refuses what waits too long.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextvars import Context
from time import monotonic
from typing import Final

from ..errors import ClientStateError, RocketMQError
from ..transport import Connection, ConnectionPool

__all__ = ["Recovery", "Waiting"]

CONNECT_FOR: Final = 60.0
"""Seconds for one attempt to connect; the pool's own limits are shorter."""
SPACING: Final = 0.05
"""Seconds between two attempts to connect that fail at once."""
FIRST_GO: Final = 16
TICK: Final = 0.005


class Waiting:
    """One call that waits. ``wake``: called when it may look again. ``over``: that has happened."""

    __slots__ = ("addresses", "over", "topic", "wake")

    def __init__(self, topic: str, wake: Callable[[], None]) -> None:
        self.topic = topic
        self.addresses: dict[str, int] = {}
        """And how many attempts to connect had failed there before."""
        self.wake = wake
        self.over = False

    def end(self) -> None:
        self.over = True
        self.wake()


class _Address:
    """Those who wait for one address."""

    __slots__ = ("calls", "failed", "reason", "task", "topics")

    def __init__(self) -> None:
        self.calls: dict[Waiting, None] = {}
        self.topics: Counter[str] = Counter()
        self.failed = 0
        """Attempts to connect, while anybody waited."""
        self.reason = ""
        """Of the newest failure."""
        self.task: asyncio.Task[None] | None = None

    def remove(self, waiting: Waiting) -> None:
        if waiting in self.calls:
            del self.calls[waiting]
            self.topics[waiting.topic] -= 1
            if not self.topics[waiting.topic]:
                del self.topics[waiting.topic]


class Recovery:
    """Of one producer. ``ask``: begins to ask for the route of a topic; ``most``: requests that one broker may have under way."""

    def __init__(self, pool: ConnectionPool, ask: Callable[[str], None], most: int) -> None:
        self._pool = pool
        self._ask = ask
        self._most = most
        self._addresses: dict[str, _Address] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Recovery of {sorted(self._addresses)}, {len(self)} calls wait>"

    def __len__(self) -> int:
        """Calls that wait, one for several addresses counted at each."""
        return sum(len(address.calls) for address in self._addresses.values())

    def join(self, topic: str, addresses: Collection[str], wake: Callable[[], None]) -> Waiting:
        """Waits for any of ``addresses``, or a change of the route of ``topic`` (as servers know it). It must ``leave``."""
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
        for address in waiting.addresses:
            those = self._addresses.get(address)
            if those is None:
                continue
            those.remove(waiting)
            if not those.calls:
                del self._addresses[address]  # first: a call that comes now needs a task that goes on
                task, those.task = those.task, None  # it keeps the error that cancels it, whose frames lead to here
                if task is not None:
                    task.cancel()

    def most_failed(self, waiting: Waiting) -> tuple[str, int, str]:
        """An address that one waits for, how many attempts to connect to it have failed meanwhile, and why the newest one did."""
        found = [
            (those.failed - before, address, those.reason)
            for address, before in waiting.addresses.items()
            if (those := self._addresses.get(address)) is not None
        ]
        count, address, reason = max(found, default=(0, next(iter(waiting.addresses), ""), ""))
        return address, count, reason

    def route_changed(self, topic: str) -> None:
        """Those who wait with ``topic`` may have other brokers to go to."""
        for those in self._addresses.values():
            if topic in those.topics:
                for waiting in [each for each in those.calls if each.topic == topic and not each.over]:
                    waiting.end()

    async def close(self) -> None:
        """Ends the tasks; the calls have been ended before."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- inside

    def _start(self, address: str, those: _Address) -> None:
        # In no caller's context: what it does is done for all of them.
        loop = asyncio.get_running_loop()
        those.task = loop.create_task(self._run(address, those), name=f"rmq_async recovery of {address}", context=Context())
        self._tasks.add(those.task)
        those.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _report(f"{task.get_name()} failed", error)

    async def _run(self, address: str, those: _Address) -> None:
        while True:
            began = monotonic()
            try:
                connection = await self._pool.connect(address, CONNECT_FOR)
            except ClientStateError:
                return
            except Exception as error:  # noqa: BLE001 - of any kind: those who wait, and those who come, have no other task
                those.failed += 1
                those.reason = str(error)
                for topic in those.topics:
                    self._ask(topic)
                if not isinstance(error, RocketMQError):
                    _report(f"connecting to {address} failed, it is tried again", error)
            else:
                await self._let_go(connection, those)
            await asyncio.sleep(max(0.0, began + SPACING - monotonic()))

    async def _let_go(self, connection: Connection, those: _Address) -> None:
        most, waiting = FIRST_GO, list(reversed(those.calls))
        before, stored_at, share = 0, connection.stored_at, 0
        while connection.is_open:
            under_way = connection.sends_under_way
            free = most - under_way
            if free <= 0:  # others send as well: where the broker keeps up with them, those who wait get their share
                keeps_up = connection.stored_at > stored_at and under_way <= before
                free = share = min(max(1, 2 * share), FIRST_GO) if keeps_up else 0
            before, stored_at = under_way, connection.stored_at
            while free > 0 and waiting:
                each = waiting.pop()
                if not each.over and each in those.calls:
                    each.end()
                    free -= 1
            if not waiting and not (waiting := [each for each in reversed(those.calls) if not each.over]):
                return
            await asyncio.sleep(TICK)
            if connection.sends_under_way <= most // 2:
                most = min(2 * most, self._most)


def _report(what: str, error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})
