"""Pops that wait for messages (``PopLongPollingService``).

Pops wait by topic, group and requested queue. Queue -1 means any queue. In each group, a message that arrives wakes one pop for
any queue and one pop for the message's queue. These pops read again. If one of them leaves messages, the next pop is woken.
Other pops keep waiting. A pop that is still held ``EARLY_MS`` before its deadline reads one last time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from rmq_protocol.command import RemotingCommand

from .clock import Clock, PendingCall, SystemClock, Timer
from .filters import Filter
from .server import Connection
from .service import Reply
from .tables import drop

ANY_QUEUE: Final = -1
MAX_HELD_PER_KEY: Final = 1024
"""Number of held pops of one topic, group and queue above which no further pops are held (``popPollingSize``)."""
MAX_HELD: Final = 100_000
"""Maximum number of held pops of all topics, groups and queues together (``maxPopPollingSize``)."""
MAX_WAIT_MS: Final = 3_600_000
EARLY_MS: Final = 50
"""Milliseconds before its deadline at which the broker responds to a held pop."""


class PopKey(NamedTuple):
    topic: str
    group: str
    queue_id: int


class Pop:
    """A POP_MESSAGE or NOTIFICATION request. ``invisible_time`` and ``poll_time`` are in ms.

    Attributes:
        count: Maximum number of messages.
        deadline: Epoch ms until which the request may be held. 0 if it may not be held.
    """

    __slots__ = (
        "attempt", "command", "connection", "count", "deadline", "filter", "from_oldest", "invisible_time", "key", "notified",
        "ordered", "poll_time", "timers",
    )  # fmt: skip

    def __init__(self, connection: Connection, command: RemotingCommand, key: PopKey) -> None:
        self.connection = connection
        self.command = command
        self.key = key
        self.count = self.invisible_time = self.poll_time = self.deadline = 0
        self.filter = Filter()
        self.from_oldest = self.ordered = False
        self.notified = False
        """Whether the request is a NOTIFICATION, which takes no messages."""
        self.attempt: str | None = None
        self.timers: list[Timer] = []


class HeldPops:
    """The pops that wait for messages.

    Args:
        reply: Writes a response.

    Attributes:
        serve: The function that serves a pop. Its second argument is True if the pop may not be held any longer. It returns the
            response, or None if the pop stays held.
    """

    def __init__(self, clock: Clock, reply: Reply) -> None:
        self._clock = clock
        self._reply = reply
        self.serve: Callable[[Pop, bool], RemotingCommand | None] = lambda pop, last: None
        self.topics: dict[str, dict[str, int]] = {}
        """Number of waiting pops by topic and group."""
        self._count = 0
        self._by_key: dict[PopKey, dict[Pop, None]] = {}
        """The held pops by key, in the order of arrival."""
        self._by_connection: dict[Connection, dict[Pop, None]] = {}
        self._arrived: dict[tuple[str, int], int] = {}
        self._woken: dict[PopKey, int] = {}
        self._waking = PendingCall(self._wake)

    def __len__(self) -> int:
        return self._count

    def number_of(self, key: PopKey) -> int:
        return len(self._by_key.get(key, ()))

    def has_room(self, key: PopKey) -> bool:
        """Return whether one more pop with this key can be held."""
        return self._count < MAX_HELD and self.number_of(key) <= MAX_HELD_PER_KEY

    def hold(self, pop: Pop) -> None:
        """Hold a pop until ``EARLY_MS`` before its deadline at the latest, and for at most one hour.

        Drop the pop if its connection is closed.
        """
        if pop.connection.closed:
            return
        self._enter(pop)
        wait = min(max(pop.deadline - EARLY_MS - self._clock.now_ms(), 0), MAX_WAIT_MS)
        if not isinstance(self._clock, SystemClock):
            pop.timers.append(self._clock.call_at(pop.deadline - EARLY_MS, lambda: self._expired(pop)))
            wait = min(wait, max(pop.poll_time - EARLY_MS, 0))  # a clock other than the event loop's may stand still
        pop.timers.append(asyncio.get_running_loop().call_later(wait / 1000, self._expired, pop))

    def arrived(self, topic: str, queue_id: int) -> None:
        """Wake pops when a message has arrived in a queue of a topic for which pops wait (``topics``)."""
        self._arrived[topic, queue_id] = self._arrived.get((topic, queue_id), 0) + 1
        self._waking.soon()

    def notify(self, key: PopKey, count: int = 1) -> None:
        """Make the pop with this key that has waited longest read again. If it gets its response, continue with the next pop,
        up to ``count`` pops.
        """
        if key in self._by_key:
            self._woken[key] = self._woken.get(key, 0) + count
            self._waking.soon()

    def disconnected(self, connection: Connection) -> None:
        for pop in list(self._by_connection.get(connection, ())):
            self._leave(pop)

    def resumed(self, connection: Connection) -> None:
        """For each pop of a connection that accepts responses again, wake one pop with the same key."""
        # messages may have arrived in the meantime
        for pop in self._by_connection.get(connection, ()):
            self.notify(pop.key)

    def close(self) -> None:
        """Drop all held pops without sending responses."""
        for connection in list(self._by_connection):
            self.disconnected(connection)
        self._waking.cancel()
        self._arrived.clear()
        self._woken.clear()

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, {}
        woken, self._woken = self._woken, {}
        for (topic, queue_id), count in arrived.items():
            for group in list(self.topics.get(topic, ())):
                for asked in (ANY_QUEUE, queue_id):
                    self._look(PopKey(topic, group, asked), count)
        for key, count in woken.items():
            self._look(key, count)

    def _look(self, key: PopKey, count: int) -> None:
        for pop in list(self._by_key.get(key, ())):
            if count <= 0:
                return
            if pop.connection.congested or pop not in self._by_key.get(key, ()):
                continue
            response = self.serve(pop, False)
            if response is None:
                return
            count -= 1
            self._leave(pop)
            self._reply(pop.connection, pop.command, response)

    def _expired(self, pop: Pop) -> None:
        if pop not in self._by_key.get(pop.key, ()):
            return
        self._leave(pop)
        if not pop.connection.congested:
            response = self.serve(pop, True)
            if response is not None:
                self._reply(pop.connection, pop.command, response)

    def _enter(self, pop: Pop) -> None:
        self._count += 1
        self._by_key.setdefault(pop.key, {})[pop] = None
        self._by_connection.setdefault(pop.connection, {})[pop] = None
        groups = self.topics.setdefault(pop.key.topic, {})
        groups[pop.key.group] = groups.get(pop.key.group, 0) + 1

    def _leave(self, pop: Pop) -> None:
        for timer in pop.timers:
            timer.cancel()
        pop.timers.clear()
        key = pop.key
        drop(self._by_key, key, pop)
        drop(self._by_connection, pop.connection, pop)
        groups = self.topics[key.topic]
        groups[key.group] -= 1
        if not groups[key.group]:
            del groups[key.group]
        if not groups:
            del self.topics[key.topic]
        self._count -= 1
