"""Which message is handled next: slots for handler calls, shared fairly between subscriptions and their queues.

A subscription's turn takes the first message of one of its queues. Inside a queue the calls begin in the order of the offsets;
which of them end first is open.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from rmq_protocol.message import MessageExt

from .held_queue import HeldQueue, Waiting
from .subscription import Subscription

__all__ = ["Dispatcher"]

Begin = Callable[[Subscription, tuple[Waiting, ...]], None]


class _Line:
    """Messages of one subscription that wait for a slot, by queue. ``running``: calls of its handler."""

    __slots__ = ("queues", "running")

    def __init__(self) -> None:
        self.queues: OrderedDict[HeldQueue, deque[Waiting]] = OrderedDict()
        self.running = 0


class Dispatcher:
    """``concurrency``: calls at a time. ``begin``: starts one call; ``ended`` is to be called after it."""

    def __init__(self, subscriptions: Iterable[Subscription], concurrency: int, begin: Begin) -> None:
        self._lines = OrderedDict((subscription, _Line()) for subscription in subscriptions)
        self._concurrency = concurrency
        self._begin = begin
        self.paused: Callable[[Subscription], bool] = _never
        """Whether messages of a subscription wait, those of the retry topic included."""
        self.running = 0

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
        self._lines[subscription].queues.setdefault(held, deque()).append(Waiting(held, message))

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
            for subscription, line in self._lines.items():
                if (
                    line.queues
                    and line.running < (subscription.concurrency or self._concurrency)
                    and not self.paused(subscription)
                ):
                    break
            else:
                return
            self._lines.move_to_end(subscription)
            held, waiting = next(iter(line.queues.items()))
            item = waiting.popleft()
            if waiting:
                line.queues.move_to_end(held)
            else:
                del line.queues[held]
            line.running += 1
            self.running += 1
            self._begin(subscription, (item,))

    def ended(self, subscription: Subscription, taken: tuple[Waiting, ...]) -> None:
        """Takes the slot of a call back, and starts the next one. ``taken``: the messages of the call."""
        self._lines[subscription].running -= 1
        self.running -= 1
        self.pump()


def _never(_: Subscription) -> bool:
    """No subscription is paused."""
    return False
