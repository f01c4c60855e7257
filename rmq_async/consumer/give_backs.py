"""The messages that go back to brokers, in a line for each broker that stores them: a handler's slot, the pulls and the messages
of other brokers do not wait for a broker that takes none back."""

# A line asks for AT_ONCE messages at a time. A message that no broker takes rests in its line: until it is tried again, or, if
# this member may repeat it, until its next attempt is due, which it makes here. When its broker takes messages back again, those
# that rest go back to it. The number of messages in a line is bounded: at the bound the queues of its broker are not pulled.

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final, Protocol

import msgspec

from rmq_protocol.message import MessageExt

from .. import machine
from .._backoff import Backoff, pause_after
from ..health import Problem, ProblemCode
from .decision import DELAYS, Decision, level_of
from .held_queue import HeldQueue, Waiting
from .outcome import Outcome
from .progress import Progress
from .subscription import Subscription

__all__ = ["Door", "GiveBacks", "GivenBack", "Report", "WireWork"]

logger = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""Messages of one broker that are given back at a time."""
MOST_WAITING: Final = 1024
MOST_SIZE: Final = 32 * 1024 * 1024
"""Messages in a line, and bytes of their bodies, from which on the queues of its broker are not pulled."""
GOES_ON_BELOW: Final = 0.75
"""Share of both from which on they are pulled again."""
ROUNDS: Final = 3
"""Attempts to give a message back after which this member handles it again itself."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
SHOWN_FOR: Final = 60.0
"""Seconds for which ``health()`` reports a refusal when no message waits any more, unless its broker has taken one back."""

Spawn = Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]]
Report = Callable[[Outcome], None]


def _nothing(*_: object) -> None:
    """Does nothing: the default of the callbacks."""


class GivenBack(msgspec.Struct, eq=False):
    """A message on its way back. ``topic``: the subscribed one, on the wire. ``cause``: the error of its handler; for a message
    without a call that ended here, why it goes back. ``report``: called once with its outcome. ``item``, ``subscription``: None
    for a message that this member cannot handle again.

    ``since``: monotonic time at which it was given back. ``rounds``: attempts to give it back that have failed. ``here_at``:
    monotonic time of its next attempt at this member; None while that is not decided. ``is_gone``: whether its broker does not
    store it any more. ``is_last``: whether it is to be a dead letter because its attempts are used up.
    """

    held: HeldQueue
    topic: str
    message: MessageExt
    decision: Decision
    cause: BaseException | str
    report: Report = _nothing
    item: Waiting | None = None
    subscription: Subscription | None = None
    since: float = 0.0
    progress: Progress | None = None
    rounds: int = 0
    here_at: float | None = None
    is_gone: bool = False
    is_last: bool = False
    has_ended: bool = False

    @property
    def is_recounted(self) -> bool:
        """Whether this member has made attempts that its broker's record does not count."""
        return self.item is not None and self.item.key is None and self.item.held_since is not None

    def level(self, now: float) -> int:
        """Returns the delay level for its next attempt, 1 to 18."""
        if self.here_at is not None:
            return level_of(self.here_at - now)
        return self.decision.level or min(3 + self.message.reconsume_times, len(DELAYS))

    @property
    def may_stay(self) -> bool:
        """Whether this member may handle it again itself: it is no dead letter, and its queue stays here and was not moved."""
        return (
            self.item is not None
            and self.decision.outcome is Outcome.RETRIED
            and not (self.is_last or self.is_gone)
            and self.held.stays
            and self.held.progress is self.progress
        )


class Door:
    """Whether a broker takes messages back, by its last answer. ``error``: that of the last refusal; None after a success.
    ``refused_at``: monotonic time of that."""

    __slots__ = ("_pauses", "closed_until", "error", "failures", "refused_at", "since")

    def __init__(self) -> None:
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.closed_until = 0.0
        """Monotonic time until which it is not asked."""
        self.failures = 0
        self.error: str | None = None
        self.refused_at = self.since = 0.0

    def refused(self, error: str, now: float, *, closes: bool) -> float | None:
        """Notes a refusal. Returns the seconds for which the broker is not asked; None if that is not so, or known already.
        ``closes``: whether other messages are not to be sent to it either."""
        if self.error is None:
            self.since = now
        self.error, self.refused_at = error, now
        if now < self.closed_until or not closes:
            return None
        self.failures += 1
        pause = self._pauses.next()
        self.closed_until = now + pause
        return pause

    def accepted(self) -> None:
        if self.error is not None:
            self._pauses.reset()
            self.closed_until, self.failures, self.error = 0.0, 0, None


class WireWork(Protocol):
    """The part that asks brokers."""

    doors: dict[str, Door]
    retried: int

    def broker_of(self, back: GivenBack) -> str:
        """Returns the broker whose line takes the message."""

    def is_wanted(self, back: GivenBack) -> bool:
        """Returns whether the message is still this member's to give back."""

    async def try_once(self, back: GivenBack) -> Outcome | None:
        """Gives the message back; returns None if no broker has taken it."""


class _Line:
    """The messages of one broker. ``resting``: a heap by the monotonic time at which each goes on."""

    __slots__ = ("at", "broker", "is_full", "ready", "resting", "size", "timer", "under_way")

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.ready: deque[GivenBack] = deque()
        self.resting: list[tuple[float, int, GivenBack]] = []
        self.under_way: dict[GivenBack, asyncio.Task[None]] = {}
        self.size = 0
        self.is_full = False
        self.timer: asyncio.TimerHandle | None = None
        self.at = inf

    def __len__(self) -> int:
        return len(self.ready) + len(self.resting) + len(self.under_way)

    def __iter__(self) -> Iterator[GivenBack]:
        yield from [*self.ready]
        yield from [*self.under_way]
        for _, _, back in [*self.resting]:
            yield back


class GiveBacks:
    """The lines of one member.

    ``freed``: called with a message that enters a line: it is no longer buffered. ``again``: called with one that is to be
    handled again here. ``ended``: called with one that has left its line, and its outcome. ``has_room``: called with a broker
    whose queues may be pulled again.
    """

    def __init__(self, work: WireWork, spawn: Spawn) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._spawn = spawn
        self._lines: dict[str, _Line] = {}
        self._number = count()
        self._empty = asyncio.Event()
        self._empty.set()
        self.freed: Callable[[GivenBack], None] = _nothing
        self.again: Callable[[GivenBack], None] = _nothing
        self.ended: Callable[[GivenBack, Outcome], None] = _nothing
        self.has_room: Callable[[str], None] = _nothing

    def __len__(self) -> int:
        """Number of messages in all lines; from any thread."""
        return sum(len(line) for line in [*self._lines.values()])

    @property
    def size(self) -> int:
        """Bytes of their bodies."""
        return sum(line.size for line in [*self._lines.values()])

    def is_full(self, broker: str) -> bool:
        """Returns whether the queues of a broker are not to be pulled, because its line is full."""
        line = self._lines.get(broker)
        return line is not None and line.is_full

    def oldest(self) -> list[MessageExt]:
        """Returns all messages, the oldest one among them; from any thread."""
        return [back.message for line in [*self._lines.values()] for back in line]

    def problems(self) -> list[Problem]:
        """Returns a problem for each broker that takes no messages back; from any thread."""
        found, now = list[Problem](), machine.monotonic()
        for broker, door in [*self._work.doors.items()]:
            line, error = self._lines.get(broker), door.error
            waiting = 0 if line is None else len(line)
            counts = len(self) > 0 if line is None else waiting > 0 or now - door.refused_at < SHOWN_FOR
            if error is None or not counts:
                continue
            text = f"broker {broker} has taken no message back for {now - door.since:.0f} s, {waiting} wait: {error}"
            if line is not None and line.is_full:
                text = f"{text}; these are so many that its queues are paused"
            found.append(Problem(ProblemCode.NOT_TAKEN_BACK, text, broker=broker))
        return found

    def add(self, back: GivenBack) -> None:
        """Begins to give a message back."""
        message = back.message
        self._enter(back)
        broker = self._work.broker_of(back)
        line = self._lines.get(broker)
        if line is None:
            line = self._lines[broker] = _Line(broker)
        self._empty.clear()
        line.size += len(message.body)
        line.ready.append(back)
        if len(line) >= MOST_WAITING or line.size >= MOST_SIZE:
            if not line.is_full:
                logger.warning("%d messages wait to be given back to broker %s: its queues are paused", len(line), broker)
            line.is_full = True
        self._pump(line)

    def end_now(self, back: GivenBack, outcome: Outcome) -> None:
        """Ends a message that no broker needs to take."""
        self._enter(back)
        self._end(None, back, outcome)

    def withdraw_resting(self, held: HeldQueue, until: float) -> None:
        """Abandons the messages of a queue whose next attempt here is due after ``until`` (monotonic)."""
        for line in self._lines.values():
            late = [back for due, _, back in line.resting if back.held is held and back.here_at is not None and due > until]
            self._remove(line, late)

    def abandon(self, held: HeldQueue | None = None) -> None:
        """Abandons all messages of a queue, or of all queues: they stay unsettled."""
        for line in self._lines.values():
            self._remove(line, [back for back in line if held is None or back.held is held])

    async def until_empty(self) -> None:
        await self._empty.wait()

    def close(self) -> None:
        """Abandons all messages, and cancels the timers."""
        self.abandon()
        for line in self._lines.values():
            self._wake_at(line, inf)

    # -- inside

    def _enter(self, back: GivenBack) -> None:
        held = back.held
        back.since, back.progress = machine.monotonic(), held.progress
        if back.item is None or held.running.pop(back.item, None) is not None:
            held.returning.add(back.message.queue_offset)
        else:  # the queue was moved, and the offset is another message's
            back.progress = None
        self.freed(back)

    def _pump(self, line: _Line) -> None:
        while line.ready and len(line.under_way) < AT_ONCE:
            back = line.ready.popleft()
            line.under_way[back] = self._spawn(f"{back.message.msg_id} back", self._try(line, back))
        self._look_at(line)

    async def _try(self, line: _Line, back: GivenBack) -> None:
        outcome: Outcome | None = None
        try:
            outcome = await self._work.try_once(back) if self._work.is_wanted(back) else Outcome.ABANDONED
        except Exception:
            logger.exception("message %s was not given back; it is tried again", back.message.msg_id)
        finally:
            line.under_way.pop(back, None)
            if not back.has_ended:
                self._tried(line, back, outcome)

    def _tried(self, line: _Line, back: GivenBack, outcome: Outcome | None) -> None:
        if outcome is None and not self._work.is_wanted(back):
            outcome = Outcome.ABANDONED
        if outcome is None:
            self._rest(line, back)
        else:
            self._end(line, back, outcome)
            if outcome is not Outcome.ABANDONED:
                self._call_up(line)
        self._pump(line)

    def _rest(self, line: _Line, back: GivenBack) -> None:
        """Lets a message rest that no broker has taken."""
        back.rounds += 1
        now, door = machine.monotonic(), self._work.doors.get(line.broker)
        if back.may_stay and (back.here_at is not None or max(back.rounds, door.failures if door else 0) >= ROUNDS):
            if back.here_at is None:
                delay = back.decision.delay
                back.here_at = back.since + (DELAYS[back.level(now) - 1] if delay is None else delay)
                back.report(Outcome.RETRIED)
            due = back.here_at
        else:
            due = now + pause_after(back.rounds, FIRST_PAUSE, LONGEST_PAUSE, machine.random.random())
        heappush(line.resting, (due, next(self._number), back))

    def _call_up(self, line: _Line) -> None:
        """Gives the messages back that rest until an attempt here, if their broker takes messages back again."""
        door = self._work.doors.get(line.broker)
        if door is None or door.error is not None or not line.resting:
            return
        stay = machine.monotonic() + DELAYS[0]
        line.ready.extend([back for due, _, back in line.resting if back.here_at is None or due > stay])
        line.resting = [entry for entry in line.resting if entry[2].here_at is not None and entry[0] <= stay]
        heapify(line.resting)

    def _look_at(self, line: _Line) -> None:
        """Sets the timer of a line: for the next message that goes on, and for the next question to a broker that refuses."""
        at = line.resting[0][0] if line.resting else inf
        door = self._work.doors.get(line.broker)
        if line.resting and door is not None and door.error is not None and not (line.ready or line.under_way):
            at = min(at, max(door.closed_until, machine.monotonic() + FIRST_PAUSE))
        self._wake_at(line, at)

    def _wake_at(self, line: _Line, at: float) -> None:
        if at == line.at:
            return
        if line.timer is not None:
            line.timer.cancel()
        line.at, line.timer = at, None
        if at < inf:
            line.timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._wake, line, context=Context())

    def _wake(self, line: _Line) -> None:
        line.at, line.timer = inf, None
        now = machine.monotonic()
        while line.resting and line.resting[0][0] <= now:
            back = heappop(line.resting)[2]
            if back.here_at is None or not back.may_stay:
                line.ready.append(back)
            else:
                self._repeat(line, back)
        door = self._work.doors.get(line.broker)
        asks = door is not None and door.error is not None and door.closed_until <= now
        if asks and line.resting and not (line.ready or line.under_way):
            latest = max(line.resting)  # the one that gains most if its broker takes it
            line.resting.remove(latest)
            heapify(line.resting)
            line.ready.append(latest[2])
        self._pump(line)

    def _repeat(self, line: _Line, back: GivenBack) -> None:
        """Has a message handled again at this member."""
        item = back.item
        assert item is not None
        item.attempt += 1
        item.message = msgspec.structs.replace(item.message, reconsume_times=item.attempt - 1)
        if item.held_since is None:
            item.held_since = machine.monotonic()
        self._work.retried += 1
        self._leave(line, back)
        self.again(back)

    def _remove(self, line: _Line, gone: list[GivenBack]) -> None:
        if not gone:
            return
        found = set(gone)
        line.ready = deque([back for back in line.ready if back not in found])
        line.resting = [entry for entry in line.resting if entry[2] not in found]
        heapify(line.resting)
        for back in gone:
            if (task := line.under_way.pop(back, None)) is not None:
                task.cancel()
            self._end(line, back, Outcome.ABANDONED)
        self._pump(line)

    def _end(self, line: _Line | None, back: GivenBack, outcome: Outcome) -> None:
        offset = back.message.queue_offset
        if outcome is not Outcome.ABANDONED and back.progress is not None and offset in back.held.returning:
            back.progress.settle(offset)
        self._leave(line, back)
        self.ended(back, outcome)
        if back.here_at is None:
            back.report(outcome)

    def _leave(self, line: _Line | None, back: GivenBack) -> None:
        """Notes that a message has left its line; None for one that was in none."""
        held = back.held
        back.has_ended = True
        if held.progress is back.progress:
            held.returning.discard(back.message.queue_offset)
        held.changed.set()
        if line is None:
            return
        line.size -= len(back.message.body)
        if line.is_full and len(line) < GOES_ON_BELOW * MOST_WAITING and line.size < GOES_ON_BELOW * MOST_SIZE:
            line.is_full = False
            self.has_room(line.broker)
        if not any(self._lines.values()):
            self._empty.set()
