"""A queue that this member holds: the offset of its pulls, its buffered messages, and the record of its settled offsets."""

# Offsets are entered in rising order, and settled in any order. Withdrawn offsets are entered again. The watermark is the
# lowest offset that is not settled, which is what a group's committed offset means: a member that starts there repeats no
# settled message below it and skips none. No I/O, no clock.

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from enum import Enum
from itertools import accumulate, repeat
from operator import mul
from typing import Protocol

from msgspec import Struct

from rmq_protocol.message import MessageExt, MessageQueue

from .. import machine
from ..reading import is_at, place_of
from ..transport import Connection
from .delivery import Call
from .subscription import Subscription, has_lines


class Progress:
    """The progress in one queue.

    Args:
        start: The first offset that is to be entered.

    Attributes:
        next: The offset after the last one that is entered or passed.
    """

    __slots__ = ("_away", "_line", "_open", "next")

    def __init__(self, start: int) -> None:
        self.next = start
        self._line: deque[int] = deque()
        """Entered offsets from the lowest open one on, settled ones in between."""
        self._open: set[int] = set()
        self._away: set[int] = set()
        """Open offsets that were withdrawn below others that were not: they are to be entered again."""

    @property
    def watermark(self) -> int:
        """The lowest offset that is not settled."""
        return self._line[0] if self._line else self.next

    @property
    def open(self) -> int:
        """Number of offsets that were entered and are not settled, including withdrawn ones below others that are still entered."""
        return len(self._open)

    def enter(self, offset: int) -> bool:
        """Add the offset of a message; return False for one below ``next`` that was not withdrawn, which adds nothing."""
        return self.enter_all([offset])[0]

    def enter_all(self, offsets: list[int]) -> list[bool]:
        """Add the offsets of messages; return for each what ``enter`` returns."""
        line, still_open, following = self._line, self._open, self.next
        if offsets and offsets[0] >= following and offsets == [*range(offsets[0], offsets[0] + len(offsets))]:
            line.extend(offsets)
            still_open.update(offsets)
            self.next = offsets[-1] + 1
            return [True] * len(offsets)
        entered = []
        for offset in offsets:
            if offset >= following:
                line.append(offset)
                still_open.add(offset)
                following = offset + 1
                entered.append(True)
            elif offset in self._away:
                self._away.discard(offset)
                entered.append(True)
            else:
                entered.append(False)
        self.next = following
        return entered

    def pass_to(self, offset: int) -> None:
        """Mark all offsets below ``offset`` that are not entered, or were withdrawn, as without a message for this member."""
        self.next = max(self.next, offset)
        if self._away:
            for gone in [each for each in self._away if each < offset]:
                self._away.discard(gone)
                self.settle(gone)

    def go_back(self, offset: int) -> None:
        """Forget the offsets from ``offset`` on, settled or not: they may be other messages' now, and are entered anew."""
        line = self._line
        while line and line[-1] >= offset:
            gone = line.pop()
            self._open.discard(gone)
            self._away.discard(gone)
        self.next = min(self.next, offset)

    def settle(self, offset: int) -> bool:
        """Settle an offset; return whether it was open."""
        if offset not in self._open:
            return False
        line, still_open = self._line, self._open
        still_open.discard(offset)
        while line and line[0] not in still_open:
            line.popleft()
        return True

    def settle_all(self, offsets: list[int]) -> None:
        """Settle offsets; offsets that are not open change nothing."""
        line, still_open = self._line, self._open
        still_open.difference_update(offsets)
        while line and line[0] not in still_open:
            line.popleft()

    def is_open(self, offset: int) -> bool:
        return offset in self._open

    def settled_above(self, offset: int) -> bool:
        """Return whether a message above ``offset`` is settled that the watermark has not passed."""
        return any(each > offset and each not in self._open for each in self._line)

    @property
    def highest_settled(self) -> int:
        """The highest settled offset above the watermark; -1 if there is none."""
        return next((each for each in reversed(self._line) if each not in self._open), -1)

    def withdraw(self, offsets: Collection[int]) -> int:
        """Withdraw entered offsets, one or more, none of them settled; return the lowest, from which on they are entered again.

        Offsets above it that are not withdrawn stay as they are: entering them again changes nothing.

        Raises:
            ValueError: For an offset that is not open.
        """
        if not self._open.issuperset(offsets):
            raise ValueError(
                f"offsets {sorted(set(offsets) - self._open)} are not open: not entered, or settled; give open ones"
            )
        line, gone = self._line, set(offsets)
        lowest = min(gone)
        while line and line[-1] in gone:
            self.next = line.pop()
            gone.discard(self.next)
            self._open.discard(self.next)
            self._away.discard(self.next)
        self._away |= gone
        return lowest


_KEPT = tuple(accumulate(repeat(0.875, 64), mul, initial=1.0))
"""The share of a running mean that is left after 0, 1, 2 ... messages: products, since pow() differs between C libraries."""


class QueueState(Enum):
    """The state of a queue that is held.

    Attributes:
        TAKEN: Held, and not pulled before ``on_assigned`` has ended.
        DRAINING: Being given up, or held while the consumer stops.
        STOPPED: Held, and not pulled, because of ``out_of_range`` or ``above_end``.
        LOST: Another member may read it already.
    """

    TAKEN = "taken"
    RUNNING = "running"
    DRAINING = "draining"
    RELEASED = "released"
    STOPPED = "stopped"
    LOST = "lost"


class Returning(Protocol):
    """A message that is being given back."""

    message: MessageExt


class HeldQueue:
    """A queue that this member holds.

    Args:
        queue: The queue with names on the wire.
        subscription: None for the retry topic, whose messages are of all subscriptions.

    Attributes:
        cursor: Offset of the next pull.
        committed: The offset that the broker returned or confirmed last.
        end: The queue's end by the last answer.
        mean_size: Running mean of the bodies, in bytes. None stands for values that are not known yet.
    """

    __slots__ = (
        "announced", "answered_at", "begun", "changed", "committed", "committing", "confirmed_by", "connection", "cursor", "end",
        "ends", "error", "looked_at", "looking", "low_end", "mean_size", "paused", "progress", "pulled_at", "queue", "repeated_to",
        "returning", "running", "settled_at", "shown", "squeezed", "state", "subscription", "wakes_below",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, shown: MessageQueue, subscription: Subscription | None, start: int) -> None:
        self.queue = queue
        self.shown = shown
        self.subscription = subscription
        self.begun = self.cursor = start
        """``begun``: the offset at which the reading has begun, or begun again after a move."""
        self.progress = Progress(start)
        self.low_end: int | None = None
        """The lowest end below the cursor that was seen, until the queue was moved or has the offset."""
        self.repeated_to = 0
        """The offset up to which messages in calls may be pulled again, because the queue has gone back."""
        self.connection: Connection | None = None
        """The broker's connection at the last pull, or at the look before the first one."""
        self.looked_at = False
        """Whether the queue has had the messages that were read by this connection, so that it may be pulled."""
        self.looking = asyncio.Lock()
        """A lock that is held while a look at the queue is under way, which may move it."""
        self.answered_at = 0.0
        """Monotonic time of the last answer to a pull, or of the look before the first one."""
        self.committed: int | None = None
        self.confirmed_by: Connection | None = None
        """The connection over which the broker returned or confirmed ``committed``; None if that is not known."""
        self.committing = asyncio.Lock()
        """A lock that is held while a commit is under way."""
        self.end: int | None = None
        self.mean_size: float | None = None
        self.running: dict[Waiting, Call] = {}
        """Messages of this queue in calls that run, or that are being settled."""
        self.returning: set[Returning] = set()
        """Messages that are being given back."""
        self.state = QueueState.RUNNING
        self.announced = True
        """Whether callbacks may name it: False until ``on_assigned``, if that is set, is called with it."""
        self.error: BaseException | None = None
        """The error of the last pull; None if it succeeded."""
        self.pulled_at = self.settled_at = machine.monotonic()
        self.paused = False
        """Whether a pause of this queue itself is in effect, not one of its topic or of all."""
        self.ends = False
        """Whether the drain is over: of an ordered queue no call begins any more."""
        self.squeezed = False
        """Whether messages were dropped for lack of room: the next pull waits until no message that is left waits for a slot."""
        self.wakes_below = 0
        """Number of ready messages below which ``changed`` is set, because the next pull waits for that; 0 if it does not."""
        self.changed = asyncio.Event()
        """An event that is set when pulls or drains of the queue that wait may go on, as at the end of a call."""

    def __repr__(self) -> str:
        return f"<HeldQueue {self.shown} {self.state.value} at {self.progress.watermark}>"

    @property
    def is_owned(self) -> bool:
        """Whether this member has neither released nor lost the queue."""
        return self.state not in (QueueState.RELEASED, QueueState.LOST)

    @property
    def is_read(self) -> bool:
        return self.state is QueueState.RUNNING

    @property
    def stays(self) -> bool:
        """Whether this member reads the queue, or has stopped reading it, and is not giving it up."""
        return self.state in (QueueState.RUNNING, QueueState.STOPPED)

    @property
    def is_caught_up(self) -> bool:
        return self.end is not None and self.cursor >= self.end

    @property
    def span(self) -> int:
        """Number of offsets from the watermark to the next pull."""
        return self.cursor - self.progress.watermark

    @property
    def is_ordered(self) -> bool:
        """Whether its subscription has lines, in which this member itself repeats failed attempts; False for the retry
        topic.
        """
        return self.subscription is not None and has_lines(self.subscription)

    @property
    def is_filtered(self) -> bool:
        """Whether brokers leave messages out of its pulls."""
        subscription = self.subscription
        return subscription is not None and (subscription.sql is not None or subscription.tags != "*")

    @property
    def lag(self) -> int | None:
        """Number of offsets from the watermark to the end of the queue; None before the first answer to a pull."""
        return None if self.end is None else max(self.end - self.progress.watermark, 0)

    @property
    def highest(self) -> int | None:
        """The highest offset that brokers may have from this member, or have returned; None if there is none."""
        return None if self.committed is None else max(self.committed, self.repeated_to)

    @property
    def unread(self) -> int | None:
        """The offset to which the queue has gone back after a loss, or the watermark since; None once what was handled before is
        passed, or without a loss.
        """
        return self.progress.watermark if self.progress.watermark < self.repeated_to else None

    # -- the state

    def take(self) -> None:
        """Hold the queue without reading it, until ``on_assigned`` has been called with it."""
        self.state, self.announced = QueueState.TAKEN, False

    def announce(self) -> None:
        self.announced = True

    def read(self) -> None:
        """Let the pulls begin, or begin again after a stop of them."""
        self.state = QueueState.RUNNING

    def stop(self) -> None:
        """End the pulls after the present one; the queue stays held."""
        self.state = QueueState.STOPPED

    def drain(self) -> None:
        self.state = QueueState.DRAINING

    def end_calls(self) -> None:
        """End the drain: of an ordered queue no call begins any more."""
        self.ends = True

    def lose(self) -> None:
        self.state = QueueState.LOST

    def release(self) -> bool:
        """Give the queue up; return False if it was lost before."""
        lost, self.state = self.state is QueueState.LOST, QueueState.RELEASED
        return not lost

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    # -- pulls and their answers

    def connect(self, connection: Connection | None) -> None:
        """Note the connection by which the queue is looked at and pulled."""
        self.connection = connection

    def doubt(self) -> None:
        """Demand a look before the next pull."""
        self.looked_at = False

    def trust(self) -> None:
        """Allow pulls: a look has found the messages that were read."""
        self.looked_at = True

    def begin_pull(self) -> None:
        self.pulled_at = machine.monotonic()

    def note_answer(self) -> None:
        self.answered_at = machine.monotonic()

    def fail(self, error: BaseException) -> None:
        """Note the error of a pull, or of a pop."""
        self.error = error

    def recover(self) -> None:
        self.error = None

    def wake_below(self, ready: int) -> None:
        """Set ``changed`` when fewer than ``ready`` messages are ready; 0 for never."""
        self.wakes_below = ready

    def note_end(self, end: int) -> None:
        """Note an end that was seen, if it is below the cursor."""
        if end < self.cursor:
            self.low_end = end if self.low_end is None else min(self.low_end, end)

    def forget_low_end(self) -> None:
        self.low_end = None

    def see_end(self, end: int | None) -> None:
        """Note the end of the queue; None if it is not known any more."""
        self.end = end

    def pass_to(self, offset: int, end: int | None) -> None:
        """Pull from ``offset`` on; offsets below it that have no message count as settled.

        Args:
            end: The end of the queue.
        """
        self.progress.pass_to(offset)
        self.cursor, self.end = offset, end

    def withdraw(self, offsets: Sequence[int], *, squeezed: bool) -> None:
        """Pull dropped messages again.

        Args:
            squeezed: Whether the next pull still waits for room, if it did.
        """
        self.cursor = min(self.cursor, self.progress.withdraw(offsets))
        self.squeezed = self.squeezed and squeezed

    def squeeze(self, waits: bool) -> None:
        """Let the next pull wait until no message of the queue waits for a slot; ``waits``: whether one does."""
        self.squeezed = waits

    # -- outcomes and commits

    def note_outcome(self, *, is_ready: bool) -> None:
        """Note that messages have their outcomes.

        Args:
            is_ready: Whether others of the queue wait for a slot.
        """
        if not is_ready:
            self.squeezed = False
        self.settled_at = machine.monotonic()
        self.changed.set()

    def confirm(self, offset: int, connection: Connection | None) -> None:
        """Note the offset that a broker has returned or confirmed, and the connection by which it did, if that is known."""
        self.committed, self.confirmed_by = offset, connection

    # -- moves

    def restart(self, offset: int) -> None:
        """Move the queue to ``offset`` with a new progress. Running calls no longer count for it."""
        self.begun = self.cursor = offset
        self.low_end = self.end = None
        self.looked_at = False
        self.repeated_to = 0
        self.progress = Progress(offset)
        self.running.clear()
        self.returning.clear()
        self.squeezed = False

    def go_back(self, offset: int) -> None:
        """Move the queue below what was read, without messages that wait from ``offset`` on.

        Messages in calls, or being given back, are compared with the messages that are pulled again (``without_known``).
        """
        self.repeated_to = max(self.repeated_to, self.progress.next)
        self.progress.go_back(offset)
        self.cursor = min(self.cursor, offset)
        self.begun = min(self.begun, offset)
        self.looked_at = False
        self.low_end = self.end = None

    def without_known(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Return the ``messages``, just pulled, that are not in calls and not being given back already.

        What becomes of another message at the offset of one no longer counts for the queue.
        """
        running = {item.message.queue_offset: item for item in self.running}
        returning = {each.message.queue_offset: each for each in self.returning}
        fresh = []
        for message in messages:
            item, back = running.get(message.queue_offset), returning.get(message.queue_offset)
            if any(each is not None and is_at(message, place_of(each.message)) for each in (item, back)):
                continue
            if item is not None:
                del self.running[item]
            if back is not None:
                self.returning.discard(back)
            fresh.append(message)
        return fresh

    def count_sizes(self, sizes: Sequence[int]) -> None:
        """Add one or more body sizes, in bytes, to the running mean."""
        # The last eight have nearly two thirds of the weight.
        mean, latest = self.mean_size, sum(sizes) / len(sizes)
        kept = _KEPT[min(len(sizes), len(_KEPT) - 1)]
        self.mean_size = latest if mean is None else mean + (latest - mean) * (1 - kept)


class Waiting(Struct, eq=False):
    """A message of a held queue from its pull to its outcome: it waits for a call, or is in one.

    Attributes:
        attempt: Number of the attempt, counted from 1.
        since: Monotonic time from which on it waits for a full batch, ``-inf`` if it waits no more; set only if its
            subscription waits for full batches.
        key: Key of its line; None if it has no key.
        held_since: Monotonic time at which its first attempt failed that is repeated in place; None before.
        due: Monotonic time at which its next attempt begins, 0 for at once.
        error: Error of the user's ``key`` function; the call fails with it.
    """

    held: HeldQueue
    message: MessageExt
    attempt: int = 1
    key: Hashable | None = None
    held_since: float | None = None
    due: float = 0.0
    error: Exception | None = None
    since: float = 0.0

    def __repr__(self) -> str:
        return f"<Waiting {self.message.msg_id} of {self.held.shown}, attempt {self.attempt}>"
