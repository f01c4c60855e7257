"""A queue that this member holds: its state, the offset of its next pull, its messages in calls, and the record of its settled
offsets.
"""

# Offsets are entered in rising order and settled in any order. Withdrawn offsets are entered again. The watermark is the lowest
# offset that is not settled. It is the value to commit: a member that starts there skips no unsettled message, and repeats no
# settled message below it. ``Progress`` does no I/O and reads no clock.

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
    """The offsets of one queue that were pulled ("entered"). Each of them is "open" until it is settled.

    Args:
        start: The first offset to enter.

    Attributes:
        next: The offset after the last offset that was entered or passed.
    """

    __slots__ = ("_away", "_line", "_open", "next")

    def __init__(self, start: int) -> None:
        self.next = start
        self._line: deque[int] = deque()
        """Entered offsets from the lowest open one upwards, including settled offsets in between."""
        self._open: set[int] = set()
        self._away: set[int] = set()
        """Open offsets that were withdrawn although higher offsets were not. They are to be entered again."""

    @property
    def watermark(self) -> int:
        """The lowest offset that is not settled."""
        return self._line[0] if self._line else self.next

    @property
    def open(self) -> int:
        """Number of offsets that were entered and are not settled, including the withdrawn offsets in ``_away``."""
        return len(self._open)

    def enter(self, offset: int) -> bool:
        """Add the offset of a message. Return False, and add nothing, for an offset below ``next`` that was not withdrawn."""
        return self.enter_all([offset])[0]

    def enter_all(self, offsets: list[int]) -> list[bool]:
        """Add the offsets of messages; return the result of ``enter`` for each offset."""
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
        """Count the offsets below ``offset`` that were not entered, or were withdrawn, as settled, because this member gets no
        message there.
        """
        self.next = max(self.next, offset)
        if self._away:
            for gone in [each for each in self._away if each < offset]:
                self._away.discard(gone)
                self.settle(gone)

    def go_back(self, offset: int) -> None:
        """Forget the offsets from ``offset`` on, settled or not, so that they can be entered again. They may now belong to other
        messages.
        """
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
        """Settle offsets. Offsets that are not open are ignored."""
        line, still_open = self._line, self._open
        still_open.difference_update(offsets)
        while line and line[0] not in still_open:
            line.popleft()

    def is_open(self, offset: int) -> bool:
        return offset in self._open

    def settled_above(self, offset: int) -> bool:
        """Return whether an offset above both ``offset`` and the watermark is settled."""
        return any(each > offset and each not in self._open for each in self._line)

    @property
    def highest_settled(self) -> int:
        """The highest settled offset above the watermark; -1 if there is none."""
        return next((each for each in reversed(self._line) if each not in self._open), -1)

    def withdraw(self, offsets: Collection[int]) -> int:
        """Withdraw one or more open offsets, so that they can be entered again. Return the lowest of them.

        Higher offsets that are not withdrawn keep their state, and entering them again has no effect.

        Raises:
            ValueError: For an offset that is not open.
        """
        if not self._open.issuperset(offsets):
            raise ValueError(
                f"offsets {sorted(set(offsets) - self._open)} are not open, because they were not entered or are settled"
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
"""The weight that a running mean keeps when 0, 1, 2 ... messages are added. The values are products, because the results of pow()
differ between C libraries."""


class QueueState(Enum):
    """The state of a queue that is held.

    Attributes:
        TAKEN: The queue is held, but not pulled until ``on_assigned`` has ended.
        RUNNING: The queue is held and pulled.
        DRAINING: The queue is being given up: it is not pulled, and its running calls have time to end.
        RELEASED: The queue has been given up.
        STOPPED: The queue is held, but not pulled, because of ``out_of_range="stop"`` or ``above_end="stop"``.
        LOST: The lock of the queue was lost, so another member may already read the queue.
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

    A check of the queue asks its broker whether it still has the messages that were read (``reading.Looks``).

    Args:
        queue: The queue with names on the wire.
        shown: The queue with the user's names.
        subscription: The subscription of the topic; None for the retry topic, whose messages belong to all subscriptions.
        start: The offset of the first pull.

    Attributes:
        cursor: The offset of the next pull.
        committed: The offset that the broker last returned or confirmed; None if it is not known yet.
        end: The end of the queue according to the last response; None if it is not known yet.
        mean_size: The running mean of the sizes of bodies in bytes; None before the first message.
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
        """``begun`` is the offset at which reading began, or began again after a move."""
        self.progress = Progress(start)
        self.low_end: int | None = None
        """The lowest end of the queue that was observed below the cursor. None if there is none, or the queue was checked or moved
        since."""
        self.repeated_to = 0
        """The offset up to which messages in calls may be pulled again, because the queue was moved back."""
        self.connection: Connection | None = None
        """The connection to the broker at the last pull, or at the check before the first pull."""
        self.looked_at = False
        """Whether a check over ``connection`` has found the messages that were read before. The queue is not pulled until then."""
        self.looking = asyncio.Lock()
        """A lock that is held during a check of the queue, because the check may move the queue."""
        self.answered_at = 0.0
        """Monotonic time of the last response to a pull, or of the check before the first pull."""
        self.committed: int | None = None
        self.confirmed_by: Connection | None = None
        """The connection over which the broker returned or confirmed ``committed``; None if it is not known."""
        self.committing = asyncio.Lock()
        """A lock that is held while a commit is in flight."""
        self.end: int | None = None
        self.mean_size: float | None = None
        self.running: dict[Waiting, Call] = {}
        """Messages of this queue whose calls run or are being settled."""
        self.returning: set[Returning] = set()
        """Messages that are being given back."""
        self.state = QueueState.RUNNING
        self.announced = True
        """Whether callbacks may be called with the queue. If ``on_assigned`` is set, False until it is called with the queue."""
        self.error: BaseException | None = None
        """The error of the last pull; None if it succeeded."""
        self.pulled_at = self.settled_at = machine.monotonic()
        self.paused = False
        """Whether this queue itself is paused. A pause of its topic, or of everything, does not count."""
        self.ends = False
        """Whether the time for the drain is over. After that, no message is handled again, and no call of an ordered queue
        begins."""
        self.squeezed = False
        """Whether messages were dropped because the buffer was full. The next pull then waits until no message of the queue is
        ready for a handler call."""
        self.wakes_below = 0
        """``changed`` is set when fewer messages than this number are ready for a handler call, because the next pull waits for
        that. 0 if no pull waits for it."""
        self.changed = asyncio.Event()
        """An event that is set when waiting pulls or drains of the queue may continue, for example at the end of a call."""

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
        """Whether this member keeps the queue: its state is RUNNING or STOPPED."""
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
        """Whether this member itself repeats failed messages of the queue, because of an order or in broadcast. False for the retry
        topic.
        """
        return self.subscription is not None and has_lines(self.subscription)

    @property
    def is_filtered(self) -> bool:
        """Whether brokers filter the messages of the queue, so pulls may leave out messages."""
        subscription = self.subscription
        return subscription is not None and (subscription.sql is not None or subscription.tags != "*")

    @property
    def lag(self) -> int | None:
        """Number of offsets from the watermark to the end of the queue; None before the first response to a pull."""
        return None if self.end is None else max(self.end - self.progress.watermark, 0)

    @property
    def highest(self) -> int | None:
        """The highest offset that this member may have committed, or that the broker has returned; None if there is none."""
        return None if self.committed is None else max(self.committed, self.repeated_to)

    @property
    def unread(self) -> int | None:
        """The watermark, if the queue was moved back after a loss of messages and the watermark is still below the offset that
        pulls had reached before. None otherwise.
        """
        return self.progress.watermark if self.progress.watermark < self.repeated_to else None

    # -- the state

    def take(self) -> None:
        """Hold the queue without reading it until ``on_assigned`` has been called with it."""
        self.state, self.announced = QueueState.TAKEN, False

    def announce(self) -> None:
        self.announced = True

    def read(self) -> None:
        """Let pulls begin, or begin again after ``stop``."""
        self.state = QueueState.RUNNING

    def stop(self) -> None:
        """End pulls after the current pull. The queue stays held."""
        self.state = QueueState.STOPPED

    def drain(self) -> None:
        self.state = QueueState.DRAINING

    def end_calls(self) -> None:
        """End the drain. After that, no message is handled again, and no call of an ordered queue begins."""
        self.ends = True

    def lose(self) -> None:
        self.state = QueueState.LOST

    def release(self) -> bool:
        """Give up the queue. Return False if it had been lost before."""
        lost, self.state = self.state is QueueState.LOST, QueueState.RELEASED
        return not lost

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    # -- pulls and their responses

    def connect(self, connection: Connection | None) -> None:
        """Note the connection over which the queue is checked and pulled."""
        self.connection = connection

    def doubt(self) -> None:
        """Require a check before the next pull."""
        self.looked_at = False

    def trust(self) -> None:
        """Allow pulls, after a check has found the messages that were read before."""
        self.looked_at = True

    def begin_pull(self) -> None:
        self.pulled_at = machine.monotonic()

    def note_answer(self) -> None:
        self.answered_at = machine.monotonic()

    def fail(self, error: BaseException) -> None:
        """Note the error of a pull or a pop."""
        self.error = error

    def recover(self) -> None:
        self.error = None

    def wake_below(self, ready: int) -> None:
        """Request that ``changed`` is set when fewer than ``ready`` messages are ready for a handler call. 0 ends the request."""
        self.wakes_below = ready

    def note_end(self, end: int) -> None:
        """Note an observed end of the queue if it is below the cursor."""
        if end < self.cursor:
            self.low_end = end if self.low_end is None else min(self.low_end, end)

    def forget_low_end(self) -> None:
        self.low_end = None

    def see_end(self, end: int | None) -> None:
        """Note the end of the queue; None if it is no longer known."""
        self.end = end

    def pass_to(self, offset: int, end: int | None) -> None:
        """Continue to pull at ``offset``. Offsets below it that have no message count as settled.

        Args:
            end: The end of the queue.
        """
        self.progress.pass_to(offset)
        self.cursor, self.end = offset, end

    def withdraw(self, offsets: Sequence[int], *, squeezed: bool) -> None:
        """Make the next pulls read dropped messages again.

        Args:
            offsets: The offsets of the dropped messages.
            squeezed: Whether ``squeezed`` stays set if it is set.
        """
        self.cursor = min(self.cursor, self.progress.withdraw(offsets))
        self.squeezed = self.squeezed and squeezed

    def squeeze(self, waits: bool) -> None:
        """Make the next pull wait until no message of the queue is ready for a handler call.

        Args:
            waits: Whether a message of the queue waits now. If none does, the next pull does not wait.
        """
        self.squeezed = waits

    # -- outcomes and commits

    def note_outcome(self, *, is_ready: bool) -> None:
        """Note that messages have their outcomes.

        Args:
            is_ready: Whether other messages of the queue are ready for a handler call.
        """
        if not is_ready:
            self.squeezed = False
        self.settled_at = machine.monotonic()
        self.changed.set()

    def confirm(self, offset: int, connection: Connection | None) -> None:
        """Note the offset that a broker has returned or confirmed, and the connection over which it did so; None if that is not
        known.
        """
        self.committed, self.confirmed_by = offset, connection

    # -- moves

    def restart(self, offset: int) -> None:
        """Move the queue to ``offset`` with a new ``Progress``. Running calls no longer affect the queue."""
        self.begun = self.cursor = offset
        self.low_end = self.end = None
        self.looked_at = False
        self.repeated_to = 0
        self.progress = Progress(offset)
        self.running.clear()
        self.returning.clear()
        self.squeezed = False

    def go_back(self, offset: int) -> None:
        """Move the queue back to ``offset``, below offsets that were read. The caller has dropped the waiting messages above it.

        Messages in calls, or being given back, are compared with the messages that are pulled again (``without_known``).
        """
        self.repeated_to = max(self.repeated_to, self.progress.next)
        self.progress.go_back(offset)
        self.cursor = min(self.cursor, offset)
        self.begun = min(self.begun, offset)
        self.looked_at = False
        self.low_end = self.end = None

    def without_known(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Return the pulled ``messages``, except messages that are in calls or being given back.

        If a different message is in a call, or being given back, at the offset of a pulled message, its outcome no longer affects
        the queue.
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
        # The last eight messages have nearly two thirds of the weight.
        mean, latest = self.mean_size, sum(sizes) / len(sizes)
        kept = _KEPT[min(len(sizes), len(_KEPT) - 1)]
        self.mean_size = latest if mean is None else mean + (latest - mean) * (1 - kept)


class Waiting(Struct, eq=False):
    """A message of a held queue between its pull and its outcome. It waits for a call, or is in a call.

    Attributes:
        attempt: Number of the attempt, counted from 1.
        since: Monotonic time since which the message has been waiting for a full batch; ``-inf`` if it no longer waits. It is set
            only if the subscription waits for full batches.
        key: The key of the message's line (``Line``); None if it has no line.
        held_since: Monotonic time of the first failure after which the message was repeated in place; None before that.
        due: Monotonic time at which the next attempt begins; 0 for at once.
        error: The error of the user's ``key`` function, with which the call fails; None if there is none.
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
