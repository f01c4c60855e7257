"""The messages that are being given back: brokers are asked to deliver them again later, or to dead-letter them. There is one
buffer for each broker that stores such messages.

If a broker accepts no messages, handler slots, pulls, and the messages of other brokers do not wait for it. A circuit breaker
limits the requests to a broker that refuses messages.
"""

# At most AT_ONCE messages are given back to a broker at a time. A message that no broker accepts is delayed: until it is tried
# again or, if this member may handle it again itself, until its next attempt is due. While a broker refuses messages, its circuit
# breaker limits how often it is tried. When the broker accepts a message again, the delayed messages are given back. The size of
# a buffer is bounded: while a buffer is full, the queues of its broker are not pulled.

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

from ... import machine
from ..._backoff import Backoff, pause_after
from ...health import Problem, ProblemCode
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..subscription import Subscription
from .decision import DELAYS, Decision, level_of

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds for which a broker is not tried after its first refusal (FIRST_PAUSE), and at most after further refusals
(LONGEST_PAUSE)."""
AT_ONCE: Final = 16
"""Maximum number of messages that are given back to one broker at a time."""
MOST_WAITING: Final = 1024
MOST_SIZE: Final = 32 * 1024 * 1024
"""Number of messages in a buffer (MOST_WAITING), and bytes of their bodies (MOST_SIZE), from which the queues of the broker are not
pulled."""
GOES_ON_BELOW: Final = 0.75
"""Fraction of both limits below which the queues are pulled again."""
ROUNDS: Final = 3
"""Number of failed attempts to give a message back, after which this member handles the message again itself."""
SHOWN_FOR: Final = 60.0
"""Seconds for which ``health()`` reports a refusal after the last message has left the buffer, unless the broker has accepted a
message meanwhile."""
Spawn = Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]]
Report = Callable[[Outcome], None]


class CircuitBreaker:
    """Limits the attempts at a broker that refuses messages. While the breaker is open, the broker is not tried.

    Attributes:
        error: Error of the last refusal; None after a success.
        failures: Number of refusals after which the broker was not tried for a while.
        open_until: Monotonic time until which the broker is not tried.
        refused_at: Monotonic time of the last refusal.
        since: Monotonic time of the first refusal.
    """

    __slots__ = ("_pauses", "error", "failures", "open_until", "refused_at", "since")

    def __init__(self) -> None:
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.open_until = 0.0
        self.failures = 0
        self.error: str | None = None
        self.refused_at = self.since = 0.0

    def refused(self, error: str, now: float, *, opens: bool) -> float | None:
        """Note a refusal.

        Args:
            error: The error of the request.
            now: The current monotonic time.
            opens: Whether the broker must not be tried for other messages either.

        Returns:
            The seconds for which the broker is not tried. None if the breaker does not open, or is already open.
        """
        if self.error is None:
            self.since = now
        self.error, self.refused_at = error, now
        if now < self.open_until or not opens:
            return None
        self.failures += 1
        pause = self._pauses.next()
        self.open_until = now + pause
        return pause

    def succeeded(self) -> None:
        if self.error is not None:
            self._pauses.reset()
            self.open_until, self.failures, self.error = 0.0, 0, None


def _nothing(*_: object) -> None:
    """Do nothing. It is the default of the callbacks."""


class GiveBack(msgspec.Struct, eq=False):
    """A message that is being given back.

    Attributes:
        topic: The name of the subscribed topic on the wire.
        cause: The error of the handler. For a message that no handler of this member has handled, the reason for the log.
        report: Called once with the outcome.
        item: The Waiting object with which this member can handle the message again; None if it cannot.
        subscription: The subscription of ``item``, or None.
        since: Monotonic time at which the give-back began.
        rounds: Number of failed attempts to give the message back.
        here_at: Monotonic time of the next attempt at this member; None if this member does not handle the message again.
        is_gone: Whether the broker no longer stores the message.
        is_last: Whether the message becomes a dead letter because its attempts are used up.
        illegal: The error with which brokers refuse the message because of its content; None if they do not.
        has_ended: Whether the give-back has ended.
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
    rounds: int = 0
    here_at: float | None = None
    is_gone: bool = False
    is_last: bool = False
    illegal: str | None = None
    has_ended: bool = False

    @property
    def has_offset(self) -> bool:
        """Whether the offset still belongs to this message: its queue was not moved, and has no other message there."""
        held = self.held
        return self in held.returning and held.progress.is_open(self.message.queue_offset)

    @property
    def is_recounted(self) -> bool:
        """Whether this member has made attempts that the broker's copy of the message does not count."""
        return self.item is not None and self.item.key is None and self.item.held_since is not None

    def level(self, now: float) -> int:
        """Return the delay level for the next attempt, 1 to 18."""
        if self.here_at is not None:
            return level_of(self.here_at - now)
        return self.decision.level or min(3 + self.message.reconsume_times, len(DELAYS))

    @property
    def may_stay(self) -> bool:
        """Whether this member may handle the message again itself: it is not a dead letter, and its queue stays with this member
        and still has the message.
        """
        return (
            self.item is not None
            and self.decision.outcome is Outcome.RETRIED
            and not (self.is_last or self.is_gone)
            and self.held.stays
            and self.has_offset
        )


class Requests(Protocol):
    """The requests that give messages back.

    Attributes:
        breakers: Circuit breakers by broker name.
        retried: Number of messages that get another attempt.
    """

    breakers: dict[str, CircuitBreaker]
    retried: int

    def broker_of(self, back: GiveBack) -> str:
        """Return the broker that stores the message."""

    def is_wanted(self, back: GiveBack) -> bool:
        """Return whether this member may still give the message back."""

    async def try_once(self, back: GiveBack) -> Outcome | None:
        """Try to give the message back. Return its outcome, or None if no broker has accepted it."""


class _Buffer:
    """The messages that are being given back to one broker.

    Attributes:
        ready: Messages that can be given back now.
        delayed: A heap of delayed messages by the monotonic time at which each is due.
        in_flight: Messages that are being given back, with their tasks.
        size: Bytes of the bodies.
    """

    __slots__ = ("at", "broker", "delayed", "in_flight", "ready", "size", "timer")

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.ready: deque[GiveBack] = deque()
        self.delayed: list[tuple[float, int, GiveBack]] = []
        self.in_flight: dict[GiveBack, asyncio.Task[None]] = {}
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None
        self.at = inf

    def __len__(self) -> int:
        return len(self.ready) + len(self.delayed) + len(self.in_flight)

    def __iter__(self) -> Iterator[GiveBack]:
        yield from [*self.ready]
        yield from [*self.in_flight]
        for _, _, back in [*self.delayed]:
            yield back


class GiveBacks:
    """The messages that one member gives back, in one buffer for each broker.

    Attributes:
        freed: Called with a message whose give-back begins; it no longer counts as buffered for handlers.
        again: Called with a message that this member handles again.
        ended: Called with a message that has left its buffer, and its outcome.
        has_room: Called with a broker whose queues may be pulled again.
        full: Brokers whose queues must not be pulled, because their buffers are full.
    """

    def __init__(self, requests: Requests, spawn: Spawn) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests = requests
        self._spawn = spawn
        self._buffers: dict[str, _Buffer] = {}
        self.full: set[str] = set()
        self._number = count()
        self._empty = asyncio.Event()
        self._empty.set()
        self.freed: Callable[[GiveBack], None] = _nothing
        self.again: Callable[[GiveBack], None] = _nothing
        self.ended: Callable[[GiveBack, Outcome], None] = _nothing
        self.has_room: Callable[[str], None] = _nothing

    def __len__(self) -> int:
        """Number of messages in all buffers. May be called from any thread."""
        return sum(len(buffer) for buffer in [*self._buffers.values()])

    @property
    def size(self) -> int:
        """Bytes of the bodies of all messages in the buffers."""
        return sum(buffer.size for buffer in [*self._buffers.values()])

    def messages(self) -> list[MessageExt]:
        """Return the messages in all buffers. May be called from any thread."""
        return [back.message for buffer in [*self._buffers.values()] for back in buffer]

    def problems(self) -> list[Problem]:
        """Return a problem for each broker that does not accept all messages. May be called from any thread."""
        found, now = list[Problem](), machine.monotonic()
        for broker, buffer in [*self._buffers.items()]:
            breaker, waiting = self._breaker(broker), len(buffer)
            texts: list[str] = []
            if breaker is not None and (waiting or now - breaker.refused_at < SHOWN_FOR):
                since = now - breaker.since
                texts.append(f"broker {broker} has accepted no message for {since:.0f} s, {waiting} wait: {breaker.error}")
            illegal = [back for back in buffer if back.illegal is not None]
            if illegal:
                one = illegal[0]
                texts.append(f"{len(illegal)} messages cannot be given back, for example {one.message.msg_id}: {one.illegal}")
            if broker in self.full:
                texts.append(f"{waiting} messages of broker {broker} wait, and its queues are paused")
            if texts:
                found.append(Problem(ProblemCode.NOT_TAKEN_BACK, "; ".join(texts), broker=broker))
        return found

    def add(self, back: GiveBack) -> None:
        """Begin to give a message back."""
        message = back.message
        self._enter(back)
        broker = self._requests.broker_of(back)
        buffer = self._buffers.get(broker)
        if buffer is None:
            buffer = self._buffers[broker] = _Buffer(broker)
        self._empty.clear()
        buffer.size += len(message.body)
        buffer.ready.append(back)
        if len(buffer) >= MOST_WAITING or buffer.size >= MOST_SIZE:
            if broker not in self.full:
                logger.warning("%d messages wait to be given back to broker %s; its queues are paused", len(buffer), broker)
            self.full.add(broker)
        self._fill(buffer)

    def end_now(self, back: GiveBack, outcome: Outcome) -> None:
        """End a message that is not given back to a broker, with its outcome."""
        self._enter(back)
        self._end(None, back, outcome)

    def withdraw_delayed(self, held: HeldQueue, until: float) -> None:
        """Abandon the messages of a queue whose next attempt at this member is due after ``until`` (monotonic)."""
        for buffer in self._buffers.values():
            late = [back for due, _, back in buffer.delayed if back.held is held and back.here_at is not None and due > until]
            self._remove(buffer, late)

    def abandon(self, held: HeldQueue | None = None) -> None:
        """Abandon all messages of a queue, or of all queues. They stay unsettled."""
        for buffer in self._buffers.values():
            self._remove(buffer, [back for back in buffer if held is None or back.held is held])

    async def until_empty(self) -> None:
        await self._empty.wait()

    def close(self) -> None:
        """Abandon all messages, and cancel the timers."""
        self.abandon()
        for buffer in self._buffers.values():
            self._set_timer(buffer, inf)

    # -- inside

    def _breaker(self, broker: str) -> CircuitBreaker | None:
        """Return the circuit breaker of a broker whose last response was a refusal. Return None for other brokers."""
        breaker = self._requests.breakers.get(broker)
        return None if breaker is None or breaker.error is None else breaker

    def _enter(self, back: GiveBack) -> None:
        held = back.held
        back.since = machine.monotonic()
        if back.item is None or held.running.pop(back.item, None) is not None:  # else the offset may belong to another message
            held.returning.add(back)
        self.freed(back)

    def _fill(self, buffer: _Buffer) -> None:
        while buffer.ready and len(buffer.in_flight) < AT_ONCE:
            back = buffer.ready.popleft()
            buffer.in_flight[back] = self._spawn(f"{back.message.msg_id} back", self._try(buffer, back))
        self._schedule(buffer)

    async def _try(self, buffer: _Buffer, back: GiveBack) -> None:
        outcome: Outcome | None = None
        try:
            outcome = await self._requests.try_once(back) if self._requests.is_wanted(back) else Outcome.ABANDONED
        except Exception:
            logger.exception("message %s could not be given back; it is tried again", back.message.msg_id)
        finally:
            buffer.in_flight.pop(back, None)
            if not back.has_ended:
                self._tried(buffer, back, outcome)

    def _tried(self, buffer: _Buffer, back: GiveBack, outcome: Outcome | None) -> None:
        if outcome is None and not self._requests.is_wanted(back):
            outcome = Outcome.ABANDONED
        if outcome is None:
            self._delay(buffer, back)
        else:
            self._end(buffer, back, outcome)
            if outcome is not Outcome.ABANDONED:
                self._retry_delayed(buffer)
        self._fill(buffer)

    def _delay(self, buffer: _Buffer, back: GiveBack) -> None:
        """Delay a message that no broker has accepted."""
        back.rounds += 1
        now, breaker = machine.monotonic(), self._breaker(buffer.broker)
        if back.may_stay and (back.here_at is not None or max(back.rounds, breaker.failures if breaker else 0) >= ROUNDS):
            if back.here_at is None:
                delay = back.decision.delay
                back.here_at = back.since + (DELAYS[back.level(now) - 1] if delay is None else delay)
                back.report(Outcome.RETRIED)
            due = back.here_at
        else:
            due = now + pause_after(back.rounds, FIRST_PAUSE, LONGEST_PAUSE, machine.random.random())
        heappush(buffer.delayed, (due, next(self._number), back))

    def _retry_delayed(self, buffer: _Buffer) -> None:
        """Give back the delayed messages if their broker accepts messages again. Exceptions are messages that are due at this
        member within a second, and messages that the broker refuses because of their content.
        """
        if not buffer.delayed or self._breaker(buffer.broker) is not None:
            return
        soon = machine.monotonic() + DELAYS[0]
        left: list[tuple[float, int, GiveBack]] = []
        for entry in buffer.delayed:
            due, _, back = entry
            if back.illegal is not None or (back.here_at is not None and due <= soon):
                left.append(entry)
            else:
                buffer.ready.append(back)
        buffer.delayed = left
        heapify(buffer.delayed)

    def _schedule(self, buffer: _Buffer) -> None:
        """Set the timer of a buffer, for the next message that is due or for the next attempt at a broker that refuses messages."""
        at = buffer.delayed[0][0] if buffer.delayed else inf
        breaker = self._breaker(buffer.broker)
        if buffer.delayed and breaker is not None and not (buffer.ready or buffer.in_flight):
            at = min(at, max(breaker.open_until, machine.monotonic() + FIRST_PAUSE))
        self._set_timer(buffer, at)

    def _set_timer(self, buffer: _Buffer, at: float) -> None:
        if at == buffer.at:
            return
        if buffer.timer is not None:
            buffer.timer.cancel()
        buffer.at, buffer.timer = at, None
        if at < inf:
            buffer.timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._on_timer, buffer, context=Context())

    def _on_timer(self, buffer: _Buffer) -> None:
        buffer.at, buffer.timer = inf, None
        now = machine.monotonic()
        while buffer.delayed and buffer.delayed[0][0] <= now:
            back = heappop(buffer.delayed)[2]
            if back.here_at is None or not back.may_stay:
                buffer.ready.append(back)
            else:
                self._repeat(buffer, back)
        breaker = self._breaker(buffer.broker)
        if breaker is not None and breaker.open_until <= now and buffer.delayed and not (buffer.ready or buffer.in_flight):
            latest = max(buffer.delayed)  # the message that would wait longest, so it gains most if the broker accepts it
            buffer.delayed.remove(latest)
            heapify(buffer.delayed)
            buffer.ready.append(latest[2])
        self._fill(buffer)

    def _repeat(self, buffer: _Buffer, back: GiveBack) -> None:
        """Let this member handle a message again."""
        item = back.item
        assert item is not None
        item.attempt += 1
        item.message = msgspec.structs.replace(item.message, reconsume_times=item.attempt - 1)
        if item.held_since is None:
            item.held_since = machine.monotonic()
        self._requests.retried += 1
        self._leave(buffer, back)
        self.again(back)

    def _remove(self, buffer: _Buffer, gone: list[GiveBack]) -> None:
        if not gone:
            return
        found = set(gone)
        buffer.ready = deque([back for back in buffer.ready if back not in found])
        buffer.delayed = [entry for entry in buffer.delayed if entry[2] not in found]
        heapify(buffer.delayed)
        for back in gone:
            if (task := buffer.in_flight.pop(back, None)) is not None:
                task.cancel()
            self._end(buffer, back, Outcome.ABANDONED)
        self._fill(buffer)

    def _end(self, buffer: _Buffer | None, back: GiveBack, outcome: Outcome) -> None:
        if outcome is not Outcome.ABANDONED and back.has_offset:
            back.held.progress.settle(back.message.queue_offset)
        self._leave(buffer, back)
        self.ended(back, outcome)
        if back.here_at is None:
            back.report(outcome)

    def _leave(self, buffer: _Buffer | None, back: GiveBack) -> None:
        """Note that a message has left its buffer.

        Args:
            buffer: The buffer; None for a message that was in no buffer.
        """
        held = back.held
        back.has_ended = True
        held.returning.discard(back)
        held.changed.set()
        if buffer is None:
            return
        buffer.size -= len(back.message.body)
        is_low = len(buffer) < GOES_ON_BELOW * MOST_WAITING and buffer.size < GOES_ON_BELOW * MOST_SIZE
        if is_low and buffer.broker in self.full:
            self.full.discard(buffer.broker)
            self.has_room(buffer.broker)
        if not any(self._buffers.values()):
            self._empty.set()
