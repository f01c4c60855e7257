"""Chooses the next message to handle. The slots for concurrent handler calls are shared fairly between subscriptions and their
queues.
"""

# In its turn, a subscription takes the next message of one of its queues, or a batch. In a queue without order, calls begin in
# the order of the offsets and may end in any order. In an ordered queue, lines decide (``lines``): one call runs at a time for
# each key, for the messages without a key, or for the whole queue, and a message that is to be handled again holds its line until
# it is due. One timer wakes all subscriptions that wait for full batches or for their rate; another timer wakes all lines.

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextvars import Context
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from rmq_protocol.message import MessageExt

from ... import machine
from ..held_queue import HeldQueue, Waiting
from ..subscription import NO_KEY, Subscription, key_of, retries_here
from .backlog import Backlog
from .lines import KeylessMessages, Line, Lines, Rests

Begin = Callable[[Subscription, tuple[Waiting, ...]], None]

WHOLE_QUEUE: Final = object()
"""The key of all messages of a queue whose subscription has ``order="queue"``."""


class Single:
    """The key of one message without an order in broadcast. Each such message has its own key, so no other message waits for it."""

    __slots__ = ()


class HeldLine(NamedTuple):
    """A key, or a whole queue if ``key`` is None, that waits for the next attempt of ``first``.

    Attributes:
        waiting: Number of messages of the key or queue that wait, including ``first``.
    """

    held: HeldQueue
    key: Hashable | None
    first: Waiting
    waiting: int


class Dispatcher:
    """Keeps the messages that wait for a handler call, and starts calls when concurrency, order, rate and pauses allow.

    Args:
        concurrency: Maximum number of concurrent calls.
        begin: Starts one handler call. The caller must call ``ended`` when that call ends.
    """

    def __init__(self, subscriptions: Iterable[Subscription], concurrency: int, begin: Begin) -> None:
        self._backlogs = OrderedDict((subscription, Backlog(subscription)) for subscription in subscriptions)
        self._concurrency = concurrency
        self._begin = begin
        self._rests = Rests(self._rested)
        self.keyless = KeylessMessages()
        self.paused: frozenset[Subscription] = frozenset()
        """Paused subscriptions. No call begins with their messages, including messages of the retry topic."""
        self.may_begin: Callable[[HeldQueue], bool] = _always
        """Returns whether calls of an ordered queue may begin. Call ``look_again`` when the result may have become True."""
        self.has_thread: Callable[[], bool] = _granted
        """Returns whether a plain function can be called. Call ``pump`` when the result may have become True."""
        self.running = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf
        """Monotonic time at which the timer is due; ``inf`` if there is no timer."""

    @property
    def buffered(self) -> int:
        """Number of messages that wait for a call."""
        return sum(len(lines) for backlog in self._backlogs.values() for lines in backlog.lines.values())

    def waits(self, held: HeldQueue) -> bool:
        """Return whether messages of a queue wait."""
        return any(len(lines) for lines in self._lines_of(held))

    def is_busy(self, held: HeldQueue) -> bool:
        """Return whether messages of a queue wait, or a message that has a line (``Line``) is in a call."""
        return any(self._lines_of(held))

    def ready_of(self, held: HeldQueue) -> int:
        """Return the number of ready messages (``Lines.ready``) of a queue."""
        return sum([len(lines.ready) for lines in self._lines_of(held)])

    def has_ready(self, held: HeldQueue) -> bool:
        """Return whether a queue has ready messages (``Lines.ready``)."""
        return any(lines.ready for lines in self._lines_of(held))

    def buffered_of(self, held: HeldQueue) -> list[MessageExt]:
        """Return the waiting messages of a queue, sorted by offset."""
        found = [item.message for lines in self._lines_of(held) for item in lines.waiting()]
        return sorted(found, key=lambda message: message.queue_offset)

    def oldest(self) -> list[MessageExt]:
        """Return the oldest waiting message of each queue; for a queue of the retry topic, the oldest message of each subscription.

        May be called from any thread.
        """
        each_queue = [lines.waiting() for backlog in [*self._backlogs.values()] for lines in [*backlog.lines.values()]]
        return [min([item.message for item in items], key=attrgetter("store_time_ms")) for items in each_queue if items]

    def held_lines(self) -> list[HeldLine]:
        """Return the keys and queues that wait for the next attempt of a message. May be called from any thread."""
        found: list[HeldLine] = []
        for subscription, backlog in [*self._backlogs.items()]:
            for held, lines in [*backlog.lines.items()]:
                for line in lines.resting():
                    items = [*line.items]
                    if items:
                        key = None if subscription.order == "queue" else line.key
                        found.append(HeldLine(held, key, items[0], len(items)))
        return found

    def add(self, held: HeldQueue, subscription: Subscription, messages: Iterable[MessageExt]) -> None:
        """Add messages, which must be in the order of their offsets. ``pump`` starts their calls."""
        self.add_items(held, subscription, [Waiting(held, each, each.reconsume_times + 1) for each in messages])

    def add_items(self, held: HeldQueue, subscription: Subscription, items: Sequence[Waiting]) -> None:
        """Add messages as ``add`` does, given as Waiting objects."""
        backlog = self._backlogs[subscription]
        lines = backlog.lines_of(held)
        if backlog.wait:
            since = machine.monotonic()
            for item in items:
                item.since = since
        if backlog.has_lines and held.subscription is not None:
            for item in items:
                lines.add(item, self._key_of(subscription, item))
        else:
            lines.add_unordered(items)
        backlog.check(held, lines)

    def again(self, subscription: Subscription, item: Waiting, due: float) -> None:
        """Put a message of a call back, and block its line (``Line``) until ``due``. The caller calls ``ended`` afterwards.

        A message without a line is ready again at once, in the order of the offsets.

        Args:
            due: Monotonic time of the next attempt; 0 for at once.
        """
        backlog = self._backlogs[subscription]
        lines = backlog.lines_of(item.held)
        item.due = due
        lines.put_back(item)
        backlog.check(item.held, lines)

    def drop(self, held: HeldQueue, above: int = -1, *, failed: bool = False) -> list[MessageExt]:
        """Remove and return the waiting messages of a queue with offsets above ``above``.

        Args:
            failed: Whether to drop messages that wait for another attempt, too. When they are pulled again, their attempts in
                place are no longer counted.
        """
        return [item.message for item in self.drop_items(held, above, failed=failed)]

    def drop_items(
        self, held: HeldQueue, above: int = -1, *, failed: bool = False, key: Hashable | None = None
    ) -> list[Waiting]:
        """Remove messages as ``drop`` does, all or the ones with one key; return their Waiting objects."""
        dropped: list[Waiting] = []
        for backlog in self._backlogs.values():
            if (lines := backlog.lines.get(held)) is not None:
                dropped += lines.drop(above, failed=failed, key=key)
                backlog.check(held, lines)
        return dropped

    def remove(self, held: HeldQueue, items: Collection[Waiting]) -> list[Waiting]:
        """Remove and return the ``items`` that wait for a call. They must be messages without lines."""
        removed: list[Waiting] = []
        for backlog in self._backlogs.values():
            if (lines := backlog.lines.get(held)) is not None:
                removed += lines.remove(items)
                backlog.check(held, lines)
        return removed

    def drop_resting(self, held: HeldQueue, until: float) -> list[MessageExt]:
        """Remove the lines of a queue that wait for an attempt due after ``until`` (monotonic), and return their messages."""
        return [
            item.message
            for lines in self._lines_of(held)
            for line in lines.resting()
            if line.rests_until is not None and line.rests_until > until
            for item in lines.drop_line(line)
        ]

    def forget(self, held: HeldQueue) -> None:
        """Remove a queue that has left this member. It must have no waiting messages."""
        for backlog in self._backlogs.values():
            backlog.forget(held)

    def close(self) -> None:
        """Cancel the timers."""
        self._wake_at(inf)
        self._rests.close()

    def look_again(self) -> None:
        """Start calls, including calls of ordered queues that were not allowed to begin before."""
        for backlog in self._backlogs.values():
            for held, lines in backlog.lines.items():
                backlog.check(held, lines)
        self.pump()

    def hasten(self, held: HeldQueue | None = None) -> None:
        """End the waits of a queue, or of all queues, for full batches, and start calls."""
        for backlog in self._backlogs.values():
            backlog.hasten(held)
        self.pump()

    def settings_changed(self) -> None:
        """Adapt to a new concurrency or rate of a subscription."""
        for subscription, backlog in self._backlogs.items():
            backlog.set_rate(subscription.rate)
            backlog.most = subscription.concurrency or inf
        self.pump()

    def pump(self) -> None:
        """Start calls until there is no free slot, or no message whose call may begin now."""
        while self.running < self._concurrency:
            now, next_at = 0.0, inf
            for subscription, backlog in self._backlogs.items():
                if (
                    not backlog.turns
                    or backlog.is_held
                    or backlog.running >= backlog.most
                    or subscription in self.paused
                    or (backlog.has_lines and not self._any_may_begin(backlog))
                ):
                    continue
                due = 0.0
                if backlog.is_timed:
                    now = now or machine.monotonic()
                    due = backlog.due(now)
                if due > now:
                    next_at = min(next_at, due)
                elif subscription.is_async or self.has_thread():
                    break
            else:
                if next_at != self._at:
                    self._wake_at(next_at)
                return
            self._backlogs.move_to_end(subscription)
            backlog.running += 1
            self.running += 1
            self._begin(subscription, backlog.take(now))

    def hold(self, subscription: Subscription) -> None:
        """Start no call of a subscription until ``let_go``. A running call takes the messages with ``next_of``."""
        self._backlogs[subscription].is_held = True

    def let_go(self, subscription: Subscription) -> None:
        """End ``hold``. After that, ``pump`` starts calls of the subscription again."""
        self._backlogs[subscription].is_held = False

    def next_of(self, subscription: Subscription) -> Waiting | None:
        """Remove and return the next message for the slot of a call that has ended.

        Return None if there is no message, if the subscription has fewer slots now, if the slot goes to another subscription, or if
        ``pump`` must decide, because of a rate or a pause.
        """
        backlog = self._backlogs[subscription]
        turns = backlog.turns
        if not turns or backlog.rate is not None or (self.paused and subscription in self.paused):
            return None
        if backlog.running > backlog.most:
            return None
        if self.running >= self._concurrency and self._another_waits(backlog):
            return None
        held, lines = next(iter(turns.items()))  # Backlog.take for one message, inlined to save a call for each message
        ready = lines.ready
        item = ready.popleft()
        if ready:
            turns.move_to_end(held)
        else:
            del turns[held]
        if len(ready) < held.wakes_below:
            held.changed.set()
        return item

    @property
    def has_turn(self) -> bool:
        """Whether a subscription that is not paused has ready messages."""
        return any(backlog.turns and subscription not in self.paused for subscription, backlog in self._backlogs.items())

    def take(self, limit: int, at_least: int = 1) -> tuple[Subscription, tuple[Waiting, ...]] | None:
        """Remove and return up to ``limit`` messages of the next subscription that is not paused and has ``at_least`` waiting
        messages. Return None if there is no such subscription. The messages take no slot.
        """
        for subscription, backlog in self._backlogs.items():
            if backlog.turns and subscription not in self.paused:
                if at_least > 1 and backlog.ready < at_least:
                    continue
                self._backlogs.move_to_end(subscription)
                return subscription, backlog.take(0.0, limit)
        return None

    def put_first(self, subscription: Subscription, held: HeldQueue) -> None:
        """Give a queue the next turn."""
        turns = self._backlogs[subscription].turns
        if held in turns:
            turns.move_to_end(held, last=False)
            self._backlogs.move_to_end(subscription, last=False)

    def is_stalled(self, held: HeldQueue) -> bool:
        """Return whether messages of a queue wait although no handler or reader will take them."""
        return False

    def ended(self, subscription: Subscription, taken: tuple[Waiting, ...], *, holds_lines: bool = False) -> None:
        """Free the slot of a call, release the lines of its messages, and start the next calls.

        Args:
            taken: The messages of the call.
            holds_lines: Whether the lines stay blocked until ``release``, because messages have no outcome yet.
        """
        backlog = self._backlogs[subscription]
        backlog.running -= 1
        self.running -= 1
        if backlog.has_lines and not holds_lines:
            self._go_on(backlog, taken)
        self.pump()

    def release(self, subscription: Subscription, taken: tuple[Waiting, ...]) -> None:
        """Release the lines of the messages of a call that ended with ``holds_lines``."""
        backlog = self._backlogs[subscription]
        if backlog.has_lines:
            self._go_on(backlog, taken)
            self.pump()

    # -- inside

    def _key_of(self, subscription: Subscription, item: Waiting) -> Hashable | None:
        """Return the key of a message's line. Return None if the message has no line.

        An error of the user's ``key`` becomes the error of the message's call. No other message waits for that message.
        """
        if subscription.order == "queue":
            return WHOLE_QUEUE
        key: Hashable | None = None
        try:
            key = key_of(subscription, item.message) if subscription.order == "key" else None
        except Exception as error:  # noqa: BLE001 - a function of the user
            item.error = error
        if key is NO_KEY:
            self.keyless.add(subscription, item.message)
        return Single() if key is None and retries_here(subscription) else key

    def _lines_of(self, held: HeldQueue) -> list[Lines]:
        return [lines for backlog in self._backlogs.values() if (lines := backlog.lines.get(held)) is not None]

    def _another_waits(self, backlog: Backlog) -> bool:
        return any(other.turns for other in self._backlogs.values() if other is not backlog)

    def _any_may_begin(self, backlog: Backlog) -> bool:
        """Return whether calls of at least one queue may begin.

        Remove the turns of queues before it whose calls may not begin; ``look_again`` restores their turns. If batches wait until
        they are full, check all queues, because the queue that is due first comes first.
        """
        while backlog.turns and not backlog.wait:
            held = next(iter(backlog.turns))
            if held.subscription is None or self.may_begin(held):
                return True
            del backlog.turns[held]
        for held in [*backlog.turns]:
            if held.subscription is not None and not self.may_begin(held):
                del backlog.turns[held]
        return bool(backlog.turns)

    def _go_on(self, backlog: Backlog, taken: tuple[Waiting, ...]) -> None:
        now = machine.monotonic()
        for held in dict.fromkeys([item.held for item in taken]):
            lines = backlog.lines.get(held)
            if lines is None:  # the queue has gone
                continue
            for line in lines.ended([item for item in taken if item.held is held], now):
                self._rests.add(backlog, held, line)
            backlog.check(held, lines)

    def _rested(self, backlog: Backlog, held: HeldQueue, line: Line) -> None:
        lines = backlog.lines.get(held)
        if lines is not None:
            lines.wake(line)
            backlog.check(held, lines)
            self.pump()

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at, self._timer = at, None
        if at < inf:
            self._timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._wake, context=Context())

    def _wake(self) -> None:
        self._at, self._timer = inf, None
        self.pump()


def _always(_: HeldQueue) -> bool:
    """Return True. It is the default of ``may_begin``."""
    return True


def _granted() -> bool:
    """Return True. It is the default of ``has_thread``."""
    return True
