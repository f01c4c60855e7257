"""The messages that wait for the handler of one subscription, by queue, and the choice of messages for its next call,
at the subscription's rate. It does no I/O and reads no clock.

A call takes the next message of one queue. Where calls take batches, it takes up to ``batch_size`` messages, of one queue and then
of the next ones; in an ordered subscription they are of one queue.
"""

# A bucket fills with ``rate`` tokens a second, and holds those of BURST seconds, one at least; each message of a call takes
# one. A call may begin when there is one token, even if it takes more; the next call then waits longer. A subscription that
# finds no token waits for those of PACE seconds, one at least, so that a high rate does not need a timer for each message.

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
"""One token, less the rounding errors of sums of floats."""


class Bucket:
    """A token bucket.

    Args:
        rate: Tokens a second.
        now: Monotonic time, at which the bucket is full.
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
        """Return the time at which a call may begin: ``now`` or later; it does not change until then, unless the rate does.

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
        turns: Queues with messages that may begin, the next one first.
        running: Number of calls of the handler.
        size: Maximum number of messages of a call.
        wait: Maximum seconds for which a batch waits until it is full.
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
        """Whether no call begins, because one that has begun takes the messages (``Dispatcher.hold``)."""
        self.is_ordered = subscription.order is not None
        self.has_lines = has_lines(subscription)
        self.size = subscription.batch_size or 1
        self.wait = subscription.batch_wait
        self.rate = subscription.rate
        """Messages per second, as of the last call of ``Dispatcher.settings_changed``."""
        self.is_timed = self.size > 1 or self.rate is not None
        """Whether ``due`` decides when a call begins, because there is a rate or a batch may wait until it is full."""
        self._bucket: Bucket | None = None
        """The token bucket of ``rate``; None without a rate, and before the first call of ``due``."""

    def lines_of(self, held: HeldQueue) -> Lines:
        """Return the lines of a queue, new ones for a new queue."""
        lines = self.lines.get(held)
        if lines is None:
            lines = self.lines[held] = Lines()
        return lines

    def check(self, held: HeldQueue, lines: Lines) -> None:
        """Give a queue a turn, or take its turn away, after its lines have changed, or a pause of the queue itself."""
        if not lines.ready or held.paused:
            self.turns.pop(held, None)
        elif held not in self.turns:
            self.turns[held] = lines

    def due(self, now: float) -> float:
        """Return the monotonic time from which on a call may begin: up to ``now`` for at once.

        At least one queue must have a turn; in an ordered subscription, the queue that is due first becomes the next one.
        """
        due = self._full_at()
        return due if self.rate is None else max(due, self._allowed_at(self.rate, now))

    def _full_at(self) -> float:
        """Return the monotonic time up to which a call waits for a full batch."""
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
        """Number of messages that may begin."""
        return sum(len(lines.ready) for lines in self.turns.values())

    def set_rate(self, rate: float | None) -> None:
        self.rate = rate
        self.is_timed = self.size > 1 or rate is not None
        if rate is None:
            self._bucket = None

    def _allowed_at(self, rate: float, now: float) -> float:
        """Return the monotonic time from which on the rate allows a call."""
        if self._bucket is None:
            self._bucket = Bucket(rate, now)
        return self._bucket.due(rate, now)

    def take(self, now: float, size: int = 0) -> tuple[Waiting, ...]:
        """Remove and return the messages of the next call.

        The queue of the last message has its next turn after the others.

        Args:
            now: Monotonic time; messages of the line that are not due then stay.
            size: Maximum number; 0 for the ``batch_size`` of the subscription.
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
        """End the wait for a full batch, of one queue or of all."""
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
