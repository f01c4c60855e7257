"""FIFO lines: calls that choose their queue wait in the line of their topic until earlier calls have credits and a queue.

A call that cannot proceed at once joins the line of its topic, and leaves it when its queue is chosen and batching keeps its order.
The first call of a line does not wait. When a call leaves, the next one is found in amortized O(1); abandoned places are skipped.

A call for a queue whose broker is not in the route waits for that broker in a separate line of the queue, so that calls for other
queues can proceed. Later calls for that queue join its line even if the broker has come back, which keeps their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final

from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import wait_until
from ...errors import BackpressureError, RocketMQError

LINES_KEPT: Final = 1024
"""Empty lines are removed when there are this many lines, or twice as many as remained at the last removal if that is more."""
LEFT_KEPT: Final = 64
"""A line is compacted, in O(n), when more of its places are abandoned than this number plus half of all its places."""


class Lines:
    """The lines (FIFO queues of waiting calls) of one producer, by topic."""

    __slots__ = ("_most", "by_topic")

    def __init__(self) -> None:
        self.by_topic: dict[str, Line] = {}
        self._most = LINES_KEPT

    def line(self, topic: str) -> Line:
        """Return the line of a topic. Create the line if it does not exist."""
        line = self.by_topic.get(topic)
        if line is None:
            if len(self.by_topic) >= self._most:
                self.by_topic = {each: line for each, line in self.by_topic.items() if line.busy}
                self._most = max(LINES_KEPT, 2 * len(self.by_topic))
            line = self.by_topic[topic] = Line()
        return line

    def fail(self, error: Callable[[], RocketMQError]) -> None:
        """End the waits in all lines: each waiting call raises a new ``error()``."""
        for line in self.by_topic.values():
            line.fail(error)


class Line:
    """The line (FIFO queue of waiting calls) of one topic.

    Attributes:
        places: The places in the line, one for each call. The call of the first place does not wait; some of the others may be
            abandoned.
        aside: The lines of queues in which calls wait for a broker, by broker name and queue id.
        busy: True if a call must join the line, because this line or a line in ``aside`` has places.
    """

    __slots__ = ("_left", "aside", "busy", "places")
    behind: ClassVar = "to the same topic"

    def __init__(self) -> None:
        self.places: deque[Place] = deque()
        self.aside: dict[tuple[str, int], QueueLine] = {}
        self.busy = False
        self._left = 0  # number of abandoned entries in ``places``

    def join(self) -> Place:
        """Add a place at the end of the line."""
        place = Place(self)
        self.places.append(place)
        self.busy = True
        return place

    def queue_line(self, queue: MessageQueue) -> QueueLine:
        """Return the line of a queue of the topic. Create the line if it does not exist."""
        key = queue.broker_name, queue.queue_id
        line = self.aside.get(key)
        if line is None:
            line = self.aside[key] = QueueLine(self, key)
        return line

    def fail(self, error: Callable[[], RocketMQError]) -> None:
        """End the waits in this line and in the lines in ``aside``: each waiting call raises a new ``error()``."""
        for place in self.places:
            if place.waits is not None and not place.waits.done():
                place.waits.set_exception(error())
        for line in self.aside.values():
            line.fail(error)

    def is_first(self, place: Place) -> bool:
        """Return whether ``place`` is the first one in the line, so that its call need not wait."""
        return self.places[0] is place

    def advance(self) -> None:
        """Handle that a call has left its place. If it was the first place, wake the next call that has not left."""
        places = self.places
        self._left += 1
        while places and places[0].left:
            places.popleft()
            self._left -= 1
        if self._left > LEFT_KEPT + len(places) // 2:
            self.places = places = deque(place for place in places if not place.left)
            self._left = 0
        if places and (waits := places[0].waits) is not None and not waits.done():
            waits.set_result(None)
        self.settle()

    def settle(self) -> None:
        """Update ``busy`` after a place was left."""
        self.busy = bool(self.places or self.aside)


class QueueLine(Line):
    """The line of one queue. It is removed from ``aside`` when its last call leaves it."""

    __slots__ = ("_key", "_topic")
    behind = "to the same queue"

    def __init__(self, topic: Line, key: tuple[str, int]) -> None:
        super().__init__()
        self._topic = topic
        self._key = key

    def settle(self) -> None:
        if not self.places:
            del self._topic.aside[self._key]
            self._topic.settle()


class Place:
    """The place of one call in a line.

    Attributes:
        left: True if the call has left the line.
        waits: The future that the call awaits until its place is the first one; None if the call is not waiting.
    """

    __slots__ = ("_line", "left", "waits")

    def __init__(self, line: Line) -> None:
        self._line = line
        self.left = False
        self.waits: asyncio.Future[None] | None = None

    async def turn(self, deadline: float) -> None:
        """Wait until all earlier calls have left the line.

        Raises:
            BackpressureError: If earlier calls are still in the line at ``deadline`` (``time.monotonic``).
            RocketMQError: The error of ``Lines.fail``, if that is called.
        """
        if self._line.is_first(self):
            return
        started = machine.monotonic()
        self.waits = waits = asyncio.get_running_loop().create_future()
        try:
            if not await wait_until(waits, deadline):
                seconds = machine.monotonic() - started
                raise BackpressureError(
                    f"the call waited {seconds:.3g} s, until its timeout, behind earlier ordered sends {self._line.behind}; "
                    "use a longer timeout"
                )
            waits.result()
        finally:
            if not waits.cancel() and not waits.cancelled():
                waits.exception()  # marks it as retrieved, so that asyncio logs no error if the call was cancelled
            self.waits = None
            del waits  # breaks a cycle: an error in the future refers to this frame

    def step_aside(self, queue: MessageQueue) -> Place:
        """Leave the topic's line and return a place at the end of the line of ``queue``."""
        place = self._line.queue_line(queue).join()
        self.leave()
        return place

    def must_step_aside(self, queue: MessageQueue) -> bool:
        """Return whether earlier calls wait in the line of ``queue``."""
        return (queue.broker_name, queue.queue_id) in self._line.aside

    def is_first(self) -> bool:
        """Return whether all earlier calls have left the line."""
        return self._line.is_first(self)

    def leave(self) -> None:
        """Leave the line, and wake the next call if this place is the first one. A second call does nothing."""
        if not self.left:
            self.left = True
            self._line.advance()
