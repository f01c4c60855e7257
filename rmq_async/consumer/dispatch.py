"""Which message is handled next: slots for handler calls, shared fairly between subscriptions and their queues.

A subscription's turn takes the first message of one of its queues; where its calls take batches, up to ``batch_size`` messages,
first of one queue, then of the next ones. Inside a queue the calls begin in the order of the offsets; which of them end first is
open. One timer wakes all subscriptions that wait for full batches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextvars import Context
from math import inf

from rmq_protocol.message import MessageExt

from .. import machine
from .held_queue import HeldQueue, Waiting
from .subscription import Subscription

__all__ = ["Dispatcher"]

Begin = Callable[[Subscription, tuple[Waiting, ...]], None]


class _Line:
    """Messages of one subscription that wait for a slot, by queue. ``running``: calls of its handler. ``wait``: seconds for which
    a batch waits until it is full."""

    __slots__ = ("queues", "running", "size", "wait")

    def __init__(self, subscription: Subscription) -> None:
        self.queues: OrderedDict[HeldQueue, deque[Waiting]] = OrderedDict()
        self.running = 0
        self.size = subscription.batch_size or 1
        self.wait = subscription.batch_wait

    def add(self, held: HeldQueue, item: Waiting) -> None:
        if self.wait:
            item.since = machine.monotonic()
        self.queues.setdefault(held, deque()).append(item)

    def due(self) -> float:
        """Returns the monotonic time from which on a call may begin: 0 for at once."""
        if not self.wait or sum(map(len, self.queues.values())) >= self.size:
            return 0.0
        return min(items[0].since for items in self.queues.values()) + self.wait

    def take(self, limit: int) -> tuple[Waiting, ...]:
        """Removes and returns up to ``limit`` messages. The queue of the last one has its next turn after the others."""
        held, items = next(iter(self.queues.items()))
        if limit == 1:
            taken = [items.popleft()]
        else:
            taken = []
            while len(items) <= limit - len(taken):
                taken += items
                del self.queues[held]
                if not self.queues:
                    return tuple(taken)
                held, items = next(iter(self.queues.items()))
            taken += [items.popleft() for _ in range(limit - len(taken))]
        if items:
            self.queues.move_to_end(held)
        else:
            del self.queues[held]
        return tuple(taken)


class Dispatcher:
    """``concurrency``: calls at a time. ``begin``: starts one call; ``ended`` is to be called after it."""

    def __init__(self, subscriptions: Iterable[Subscription], concurrency: int, begin: Begin) -> None:
        self._lines = OrderedDict((subscription, _Line(subscription)) for subscription in subscriptions)
        self._concurrency = concurrency
        self._begin = begin
        self.paused: Callable[[Subscription], bool] = _never
        """Whether messages of a subscription wait, those of the retry topic included."""
        self.running = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf
        """When the timer is due."""

    @property
    def buffered(self) -> int:
        """Number of messages that wait for a slot."""
        return sum(len(items) for line in self._lines.values() for items in line.queues.values())

    def waits(self, held: HeldQueue) -> bool:
        """Returns whether messages of a queue wait."""
        return any(held in line.queues for line in self._lines.values())

    def buffered_of(self, held: HeldQueue) -> list[MessageExt]:
        """Returns the messages of a queue that wait, by offset."""
        found = [item.message for line in self._lines.values() for item in line.queues.get(held, ())]
        return sorted(found, key=lambda message: message.queue_offset)

    def oldest(self) -> list[int]:
        """Returns the store times, in ms since the epoch, of the first waiting message of each queue."""
        return [
            items[0].message.store_time_ms for line in [*self._lines.values()] for items in [*line.queues.values()] if items
        ]

    def add(self, held: HeldQueue, subscription: Subscription, message: MessageExt) -> None:
        """Adds a message; ``pump`` starts it."""
        self._lines[subscription].add(held, Waiting(held, message))

    def again(self, subscription: Subscription, item: Waiting) -> None:
        """Puts a message back whose call was cut off, in the order of the offsets."""
        items = self._lines[subscription].queues.setdefault(item.held, deque())
        offset, place = item.message.queue_offset, 0
        while place < len(items) and items[place].message.queue_offset < offset:
            place += 1
        items.insert(place, item)

    def drop(self, held: HeldQueue, above: int) -> list[MessageExt]:
        """Removes the messages of a queue with an offset above ``above`` that have not begun, and returns them."""
        dropped: list[MessageExt] = []
        for line in self._lines.values():
            waiting = line.queues.get(held)
            if waiting is None:
                continue
            while waiting and waiting[-1].message.queue_offset > above:
                dropped.append(waiting.pop().message)
            if not waiting:
                del line.queues[held]
        return dropped

    def pump(self) -> None:
        """Starts calls while there are slots and messages for them."""
        while self.running < self._concurrency:
            now, next_at = 0.0, inf
            for subscription, line in self._lines.items():
                if (
                    not line.queues
                    or line.running >= (subscription.concurrency or self._concurrency)
                    or self.paused(subscription)
                ):
                    continue
                due = line.due()
                if due and not now:
                    now = machine.monotonic()
                if due <= now:
                    break
                next_at = min(next_at, due)
            else:
                self._wake_at(next_at)
                return
            self._lines.move_to_end(subscription)
            line.running += 1
            self.running += 1
            self._begin(subscription, line.take(line.size))

    def hasten(self, held: HeldQueue | None = None) -> None:
        """Begins calls with the messages of a queue, or of all queues, that wait until their batch is full."""
        for line in self._lines.values():
            if line.wait:
                for each in line.queues if held is None else [held] if held in line.queues else []:
                    line.queues[each][0].since = -inf
        self.pump()

    def close(self) -> None:
        """Ends the timer."""
        self._wake_at(inf)

    def _wake_at(self, at: float) -> None:
        if at == self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at, self._timer = at, None
        if at < inf:
            self._timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._wake, context=Context())

    def _wake(self) -> None:
        self._at, self._timer = inf, None
        self.pump()

    def ended(self, subscription: Subscription, taken: tuple[Waiting, ...]) -> None:
        """Takes the slot of a call back, and starts the next one. ``taken``: the messages of the call."""
        self._lines[subscription].running -= 1
        self.running -= 1
        self.pump()


def _never(_: Subscription) -> bool:
    """No subscription is paused."""
    return False
