"""Determines the offsets at which a reading without an end begins in queues that its topic did not have at the start."""

# A queue that is new on a broker which the route named at the start is read from its first message, because all its messages
# are newer, or for ``start="committed"`` from the group's offset, if it has one. A broker that the route did not name may be
# new, or it was unreachable and has old messages. Its queues begin as the reading did: with the first message there is
# (``start="earliest"``), at the group's offset as above (``start="committed"``), or with the first message stored at the
# datetime ``start`` or later; for any other ``start``, with the first message stored after the start of the reading. That time
# is of the client's clock and is compared with times of the broker's, so CLOCKS_DIFFER is subtracted.

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rmq_protocol.message import MessageQueue

from ... import machine
from ...client import ClientInstance, TopicRoute, search_offset
from ..place import CLOCKS_DIFFER
from .cursor import Cursor
from .watch import Watch

__all__ = ["Latecomers", "find_start"]


class Latecomers:
    """The queues that are added to a topic while it is read. ``start``: as for ``PullConsumer.read``. ``is_filtered``: as for
    ``Cursor``."""

    def __init__(self, start: object, is_filtered: bool) -> None:
        self._start = start
        self._is_filtered = is_filtered
        self._since = machine.time() - CLOCKS_DIFFER
        self._brokers: frozenset[str] = frozenset()

    def opened(self, queues: Iterable[MessageQueue], route: TopicRoute | None) -> None:
        """Notes the brokers of the queues that the reading begins with, and those that the route names at that moment."""
        known = {queue.broker_name for queue in queues}
        if route is not None:
            known.update(route.addresses, [queue.broker_name for queue in route.subscribe_queues])
        self._brokers = frozenset(known)

    def cursor(self, queue: MessageQueue) -> Cursor:
        """Returns the cursor of a queue that was added."""
        cursor = Cursor(queue, 0, None, at_first=True, is_filtered=self._is_filtered)
        if self._start == "committed":
            cursor.group = True
        elif self._start != "earliest" and queue.broker_name not in self._brokers:
            cursor.since = self._start if isinstance(self._start, datetime) else self._since
        cursor.unmarked = cursor.group or cursor.since is not None
        return cursor


async def find_start(instance: ClientInstance, cursor: Cursor, watch: Watch) -> None:
    """Moves a cursor to the group's offset (``Watch.committed``), if it is to begin there and there is one, or to the first
    message stored at its ``since`` or later. Raises the errors of the requests."""
    if cursor.group:
        committed = await watch.committed(cursor.queue)
        if committed is not None:
            cursor.begins_at(committed)
            cursor.at_first = False
        cursor.group = False
    if cursor.since is not None:
        cursor.begins_at(await search_offset(instance, cursor.queue, cursor.since, any_replica=False))
        cursor.since = None
