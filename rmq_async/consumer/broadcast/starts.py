"""The offsets at which a broadcast member begins to read queues."""

# A stored position, or the one that this member had when the queue left the route, is used if there is one. A topic without any
# stored position begins at ``start_from``. Queues that are added later, and queues without a position in a topic where others
# have one, are new: they begin at their first message. A broker that the route did not name at the start may be new, or it was
# unreachable and has old messages, as has one that did not answer at the start. Its queues begin with the first message stored
# after the member's start (less CLOCKS_DIFFER) for "latest", and at the time of ``start_from`` if that is a datetime.

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import partial

from rmq_protocol.message import MessageQueue

from ... import machine
from ..._text import printable
from ...client import ClientInstance, max_offset, min_offset, search_offset
from ...errors import TopicNotFoundError
from ..group import StartFrom, from_brokers, warn_of_silent
from ..place import CLOCKS_DIFFER
from .saved_positions import SavedPositions

__all__ = ["Starts"]

logger = logging.getLogger(__name__)


class Starts:
    """The offsets at which a broadcast member begins. ``positions``: the member's positions, to which ``prepare`` adds."""

    def __init__(self, instance: ClientInstance, positions: SavedPositions, start_from: StartFrom) -> None:
        self._instance = instance
        self._positions = positions
        self._start_from = start_from
        self._brokers: dict[str, frozenset[str]] = {}
        """The brokers that the routes of the topics named at the start, and that answered, by topic."""
        self._since = datetime.fromtimestamp(machine.time() - CLOCKS_DIFFER, UTC)

    async def prepare(self, topic: str) -> None:
        """Loads the stored positions of a topic; if there are none, finds positions for the queues that the topic has now.
        ``topic``: its name on the wire. A topic without a route is logged. Raises the other errors of the requests, and as
        ``SavedPositions.load`` does."""
        instance, start = self._instance, self._start_from
        stored = await self._positions.load(topic)
        try:
            route = await instance.routes.get(topic, instance.config.request_timeout)
        except TopicNotFoundError as error:
            logger.warning("a subscribed topic has no route yet and is read as soon as it has one: %s", printable(error, 300))
            return
        self._brokers[topic] = frozenset([*route.addresses, *(queue.broker_name for queue in route.subscribe_queues)])
        if stored:
            return
        if isinstance(start, datetime):
            ask = partial(search_offset, instance, when=start, any_replica=False)
        else:
            ask = partial(max_offset if start == "latest" else min_offset, instance, any_replica=False)
        found, silent = await from_brokers(route.subscribe_queues, ask)
        if silent:
            warn_of_silent(instance, topic, silent)
            self._brokers[topic] = self._brokers[topic].difference(silent)
        self._positions.known.update(found)

    async def offset(self, queue: MessageQueue) -> tuple[int, int | None]:
        """Returns the offset at which the reading of a queue begins, and its known position, None without one. Raises the
        errors of the request."""
        known = self._positions.known.get(queue)
        if known is not None:
            return known, known
        start = self._start_from
        if start != "earliest" and queue.broker_name not in self._brokers.get(queue.topic, ()):
            since = start if isinstance(start, datetime) else self._since
            return await search_offset(self._instance, queue, since, any_replica=False), None
        return await min_offset(self._instance, queue, any_replica=False), None
