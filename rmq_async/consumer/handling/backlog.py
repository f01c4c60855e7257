"""The backlog of one subscription: the messages that wait for its handler, by queue. It chooses the messages of the next call, and
keeps to the subscription's rate. It does no I/O and reads no clock.

A call takes the next message of one queue. With batches, a call takes up to ``batch_size`` messages, first from one queue and then
from the following queues; in an ordered subscription, all messages of a batch come from one queue.
"""

# A bucket fills with ``rate`` tokens per second. It holds the tokens of BURST seconds, and at least one token. Each message of a
# call takes one token. A call may begin when there is one token, even if it takes more; the next call then waits longer. A
# subscription without a token waits for the tokens of PACE seconds, and at least for one, so a high rate does not need a timer
# for each message.

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Final

from ..held_queue import HeldQueue, Waiting
from ..subscription import Subscription, has_lines
from .lines import Lines

BURST: Final = 0.1
PACE: Final = 0.01
_ONE: Final = 1.0 - 1e-6
"""One token, minus a margin for the rounding errors of sums of floats."""


class Bucket:
    """A token bucket.

    Args:
        rate: Tokens per second.
        now: The current monotonic time; the bucket is full then.
    """

    __slots__ = ("_at", "_until", "rate", "tokens")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.tokens = self.capacity
        self._at = self._until = now

    @property
    def capacity(self) -> float:
        return max(1.0, self.rate * BURST)

    def due(self, rate: float, now: float) -> float:
        """Return the monotonic time at which a call may begin, ``now`` or later. Until that time, the result stays the same unless
        the rate changes.

        Args:
            rate: Tokens per second from now on.
        """
        if now < self._until and rate == self.rate:
            return self._until
        self.tokens += max(now - self._at, 0.0) * self.rate
        self._at, self.rate = now, rate
        self.tokens = min(self.tokens, self.capacity)
        if self.tokens >= _ONE:
            self._until = now
        else:
            wanted = min(max(1.0, rate * PACE), self.capacity)
            self._until = now + (wanted - self.tokens) / rate
        return self._until

    def take(self, count: int) -> None:
        """Take the tokens of a call with ``count`` messages."""
        self.tokens -= count


class Backlog:
    """The messages of a subscription that wait for a call.

    Attributes:
        lines: The waiting messages of each queue.
        turns: Queues with ready messages (``Lines.ready``), in the order of their turns.
        running: Number of running calls of the handler.
        size: Maximum number of messages in a call.
        wait: Maximum seconds for which a message waits for its batch to fill.
    """

    __slots__ = (
        "_bucket", "has_lines", "is_held", "is_ordered", "is_timed", "lines", "most", "rate", "running", "size", "turns",
        "wait",
    )  # fmt: skip

    def __init__(self, subscription: Subscription) -> None:
        self.lines: dict[HeldQueue, Lines] = {}
        self.turns: OrderedDict[HeldQueue, Lines] = OrderedDict()
        self.running = 0
        self.most = subscription.concurrency or inf
        """Maximum number of calls, as of the last call of ``Dispatcher.settings_changed``."""
        self.is_held = False
        """Whether no further call begins, because a running call takes the messages (``Dispatcher.hold``)."""
        self.is_ordered = subscription.order is not None
        self.has_lines = has_lines(subscription)
        self.size = subscription.batch_size or 1
        self.wait = subscription.batch_wait
        self.rate = subscription.rate
        """Messages per second, as of the last call of ``Dispatcher.settings_changed``."""
        self.is_timed = self.size > 1 or self.rate is not None
        """Whether ``due`` decides when a call begins, because there is a rate, or batches that may wait until they are full."""
        self._bucket: Bucket | None = None
        """The token bucket of ``rate``; None without a rate, and before the first call of ``due``."""

    def lines_of(self, held: HeldQueue) -> Lines:
        """Return the lines of a queue; create them if they do not exist."""
        lines = self.lines.get(held)
        if lines is None:
            lines = self.lines[held] = Lines()
        return lines

    def check(self, held: HeldQueue, lines: Lines) -> None:
        """Give a queue a turn, or take its turn away, after a change of its lines or a pause of the queue itself."""
        if not lines.ready or held.paused:
            self.turns.pop(held, None)
        elif held not in self.turns:
            self.turns[held] = lines

    def due(self, now: float) -> float:
        """Return the monotonic time from which a call may begin; a time up to ``now`` means at once.

        At least one queue must have a turn. In an ordered subscription, the queue that is due first gets the next turn.
        """
        due = self._full_at()
        return due if self.rate is None else max(due, self._allowed_at(self.rate, now))

    def _full_at(self) -> float:
        """Return the monotonic time until which a call waits for a full batch."""
        if not self.wait:
            return 0.0
        if self.is_ordered:
            due = {held: self._due_of(lines) for held, lines in self.turns.items()}
            first = min(due, key=due.__getitem__)
            self.turns.move_to_end(first, last=False)
            return due[first]
        if self.ready >= self.size:
            return 0.0
        return min(lines.ready[0].since for lines in self.turns.values()) + self.wait

    @property
    def ready(self) -> int:
        """Number of ready messages in the queues that have a turn."""
        return sum(len(lines.ready) for lines in self.turns.values())

    def set_rate(self, rate: float | None) -> None:
        self.rate = rate
        self.is_timed = self.size > 1 or rate is not None
        if rate is None:
            self._bucket = None

    def _allowed_at(self, rate: float, now: float) -> float:
        """Return the monotonic time from which the rate allows a call."""
        if self._bucket is None:
            self._bucket = Bucket(rate, now)
        return self._bucket.due(rate, now)

    def take(self, now: float, size: int = 0) -> tuple[Waiting, ...]:
        """Remove and return the messages of the next call.

        The queue of the last message has its next turn after the other queues.

        Args:
            now: The current monotonic time. Messages behind the first one in its line stay if they are not due.
            size: Maximum number of messages; 0 for the ``batch_size`` of the subscription.
        """
        size = size or self.size
        held, lines = next(iter(self.turns.items()))
        taken = [lines.ready.popleft()]
        if size > 1:
            if taken[0].key is None or not self.is_ordered:
                taken += lines.take_ready(size - 1)
            else:
                taken += lines.take_behind(taken[0], size - 1, now)
            while len(taken) < size and len(self.turns) > 1 and not self.is_ordered:
                del self.turns[held]
                held, lines = next(iter(self.turns.items()))
                taken += lines.take_ready(size - len(taken))
        if lines.ready:
            self.turns.move_to_end(held)
        else:
            del self.turns[held]
        for item in taken:
            if len(self.lines[item.held].ready) < item.held.wakes_below:
                item.held.changed.set()
        if self._bucket is not None:
            self._bucket.take(len(taken))
        return tuple(taken)

    def hasten(self, held: HeldQueue | None = None) -> None:
        """End the wait of one queue, or of all queues, for a full batch."""
        if self.wait:
            for lines in self.turns.values() if held is None else [self.turns[held]] if held in self.turns else []:
                lines.ready[0].since = -inf

    def forget(self, held: HeldQueue) -> None:
        self.lines.pop(held, None)
        self.turns.pop(held, None)

    def _due_of(self, lines: Lines) -> float:
        first = lines.ready[0]
        if first.held_since is not None or len(lines) >= self.size:
            return 0.0
        return first.since + self.wait
