"""Finds queues that have left the routes of their topics, and may hold messages that no member reads."""

# The routes look the same when name servers have forgotten a broker, when the broker is down, and when an operator has taken
# queues away. So brokers that can be reached are asked for the number of unread messages, and a queue is reported for NAMED_FOR
# seconds at most.

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import for_each
from ..._backoff import Backoff
from ...client import ClientInstance, max_offset
from ...errors import QueueNotExistError, RocketMQError, TopicNotFoundError
from .start_position import start_offset

__all__ = ["Missing", "MissingQueues"]

NAMED_FOR: Final = 3600.0
"""Seconds for which a queue is reported as missing, at most."""
MOST_NAMED: Final = 1024
SOUGHT_FOR: Final = 120.0
"""Seconds for which the routes of missing queues are asked for often: a broker that restarts is usually back by then."""
FIRST_PAUSE: Final = 0.05
COUNT_EVERY: Final = 20.0
"""Seconds between two looks at the offsets of missing queues; fewer at first, because a member commits the last offset of a
queue a moment after it has seen that the queue is gone."""
LONGEST_REQUEST: Final = 1.0


class Missing(NamedTuple):
    """Queues of one topic and broker that left the route at the same time. ``age``: seconds since that time. ``unread``: number
    of their messages that the group has not read; None if it is not known."""

    queues: tuple[MessageQueue, ...]
    age: float
    unread: int | None


class MissingQueues:
    """The queues that the routes have named since the start of this member, and do not name now, up to MOST_NAMED. ``group``:
    its name on the wire."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self.start: Callable[[MessageQueue], Awaitable[tuple[int, int | None]]] = partial(start_offset, instance, group)
        """Returns the offset of a queue's next message to read, and the committed offset, None without one."""
        self._known: dict[str, frozenset[MessageQueue]] = {}
        self._since: dict[MessageQueue, float] = {}
        self._unread: dict[MessageQueue, int] = {}
        self._wake = asyncio.Event()
        self.left: Callable[[Iterable[MessageQueue]], object] = _nothing
        """A function that is called with the queues, perhaps none, that have left their topic's route since the last look."""

    def look(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Compares the queues that a topic's route names now with those of the last look."""
        now, present = machine.monotonic(), frozenset(queues)
        for queue, since in [*self._since.items()]:
            if queue in present or now - since >= NAMED_FOR:
                del self._since[queue]
                self._unread.pop(queue, None)
        gone = sorted(self._known.get(topic, frozenset()) - present)
        self.left(gone)
        for queue in gone:
            if len(self._since) < MOST_NAMED:
                self._since[queue] = now
                self._wake.set()
        self._known[topic] = present

    async def run(self) -> None:
        """Counts unread messages while queues are missing; never returns."""
        while True:
            await self._wake.wait()
            pauses = Backoff(FIRST_PAUSE, COUNT_EVERY)
            while self._since:
                if self._wake.is_set():
                    self._wake.clear()
                    pauses = Backoff(FIRST_PAUSE, COUNT_EVERY)
                await for_each(sorted(self._since), self._count)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pauses.next()):
                        await self._wake.wait()
            self._wake.clear()

    def topics(self) -> tuple[str, ...]:
        """Returns the topics of queues that have been missing for at most SOUGHT_FOR seconds."""
        since = machine.monotonic() - SOUGHT_FOR
        return tuple(dict.fromkeys(queue.topic for queue, at in self._since.items() if at >= since))

    def found(self) -> list[Missing]:
        """Returns the missing queues, without those that have no message to read. It may be called from any thread."""
        now, unread = machine.monotonic(), self._unread.copy()
        groups: defaultdict[tuple[str, str, float, bool], list[MessageQueue]] = defaultdict(list)
        for queue, since in list(self._since.items()):
            if unread.get(queue) != 0:
                groups[queue.topic, queue.broker_name, since, queue in unread].append(queue)
        return [
            Missing(tuple(queues), now - since, sum(unread[queue] for queue in queues) if counted else None)
            for (_, _, since, counted), queues in groups.items()
        ]

    async def _count(self, queue: MessageQueue) -> None:
        instance = self._instance
        timeout = min(instance.config.request_timeout, LONGEST_REQUEST)
        try:
            end = await max_offset(instance, queue, any_replica=False, timeout=timeout)
            next_offset, _ = await self.start(queue)
            unread = max(end - next_offset, 0)
        except (TopicNotFoundError, QueueNotExistError):
            unread = 0
        except RocketMQError:
            self._unread.pop(queue, None)
            return
        if queue in self._since:
            self._unread[queue] = unread


def _nothing(_: object) -> None:
    """Does nothing: the default of ``MissingQueues.left``."""
