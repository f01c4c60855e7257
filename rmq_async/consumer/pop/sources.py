"""Pops one topic from one broker, with one pop that the broker may hold, and further pops while they return messages.

Credits limit the messages that a subscription may hold: the messages in calls, and the messages whose calls begin soon.
"""

# No other member gets a popped message while it waits here. So a subscription holds at most as many messages as it has slots,
# plus as many as its handlers take within AHEAD seconds at their recent rate. Sizes are known only when messages have arrived:
# if large messages follow small ones, the responses to the pops in flight may exceed the limit of bytes.

# A pop from a broker that has no messages left reserves no credits. It requests the broker's part of the free credits, and at least
# one message. So messages of such a broker arrive even if messages of other brokers use all slots, and a held pop does not keep
# credits from other brokers. A pop from a broker with messages left requests as many messages as there are credits; brokers get
# credits in the order of their requests. Such a broker responds at once. If it does not, its pop gives the credits back after a
# short time, because a broker that does not respond would otherwise keep them from other brokers.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from math import ceil, inf
from typing import Final

from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.pop_handles import MAX_POP_SIZE

from ... import machine
from ..._backoff import Backoff
from ..._text import printable
from ...client import ClientInstance, too_large_frame
from ...errors import (
    BrokerError,
    ConnectionLostError,
    FlowControlError,
    FrameTooLargeError,
    NoPermissionError,
    RequestCodeNotSupportedError,
    RocketMQError,
    SubscriptionGroupNotExistError,
    TopicNotFoundError,
)
from ...health import Problem, ProblemCode
from ..held_queue import HeldQueue
from ..subscription import Subscription
from .core import EARLY, PopCore
from .pop_requests import Popped

logger = logging.getLogger(__name__)

AHEAD: Final = 0.2
"""Seconds of work for which messages are popped ahead."""
MEASURED_FOR: Final = 0.05
"""Minimum seconds between two measurements of the rate."""
MOST_AHEAD: Final = 2048
POLL_TIME: Final = 5.0
"""Seconds for which a broker may hold a pop."""
BESIDE_POLL_TIME: Final = 0.2
"""Seconds for which a broker may hold one of the further pops. A pop that finds all queues locked by other pops then waits for its
turn."""
MOST_BESIDE: Final = 7
"""Maximum number of further pops in flight, in addition to the pop that may be held."""
GROW_AFTER: Final = 16
"""Number of full responses after which a pop requests one more message, if an earlier response was too large. The number is high
because each further response that is too large costs each of its messages an attempt."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0
LONGEST_EARLY_PAUSE: Final = 1.0
FULL_PAUSE: Final = 1.0
"""Seconds before the next pop from a broker that already holds too many pops or does not have the topic."""
BUSY_PAUSE: Final = 0.02
REFUSED_PAUSE: Final = 30.0
"""Seconds between pops that a broker will refuse until an operator acts."""
REPORT_EVERY: Final = 30.0
GATHER_TIME: Final = 0.05
"""Seconds for which a pop with few credits waits for more, because each pop costs the broker a record."""
BLOCKED_FOR: Final = 60.0
"""Seconds for which ``health()`` reports a message that cannot be read, after the time at which it should have been delivered
again."""
MOST_BLOCKED: Final = 16
RESERVED_FOR: Final = 0.5
"""Maximum seconds for which a pop without a response keeps its credits."""
PAUSED_FOR: Final = 1.0
"""Seconds after which a source that must not be popped is checked again, if nothing wakes it earlier."""


class Credits:
    """The credits of a subscription, each of which allows it to hold one popped message.

    Args:
        limit: Maximum number of messages that may be held.
        size_limit: Maximum bytes of bodies that may be held.

    Attributes:
        sources: Number of the sources that share the credits.
        taken: Number of messages that are held.
        size: Bytes of bodies that are held.
        reserved: Number of messages for which pops in flight have reserved credits.
    """

    __slots__ = ("_ended", "_measured_at", "_rate", "limit", "mean_size", "reserved", "size", "size_limit", "sources", "taken")

    def __init__(self, limit: int, size_limit: int) -> None:
        self.limit = limit
        self.size_limit = size_limit
        self.taken = self.size = self.reserved = self.sources = 0
        self.mean_size = 0.0
        """Running mean of the sizes of bodies in bytes; 0 before the first message."""
        self._ended = 0
        self._measured_at = 0.0
        self._rate = 0.0
        """The recent rate, in messages that ended per second."""

    def take(self, sizes: list[int]) -> None:
        """Count messages that have arrived."""
        self.taken += len(sizes)
        mean = self.mean_size
        for size in sizes:
            self.size += size
            mean = mean + (size - mean) / 8 if mean else float(size)
        self.mean_size = mean

    def give(self, sizes: list[int]) -> None:
        """Count messages that have ended."""
        self.taken -= len(sizes)
        self.size -= sum(sizes)
        self._ended += len(sizes)

    def measure(self, now: float) -> None:
        """Measure the rate at which messages end.

        Args:
            now: The current monotonic time.
        """
        passed = now - self._measured_at
        if passed >= MEASURED_FOR:
            rate = self._ended / passed
            self._rate = max(rate, (self._rate + rate) / 2)
            self._ended, self._measured_at = 0, now

    def wanted(self, slots: int, rate: float | None) -> int:
        """Return the number of messages that may be held.

        Args:
            slots: Maximum number of messages that handler calls may hold at a time.
            rate: The rate limit of the subscription in messages per second; None for no limit.
        """
        begun = self._rate if rate is None else min(self._rate, rate)
        ahead = min(ceil(begun * AHEAD), MOST_AHEAD)
        if rate is not None:
            slots = min(slots, max(ceil(rate), 1))  # at most the messages of one second
        return min(slots + ahead, self.limit)

    def free(self, slots: int, rate: float | None) -> int:
        """Return the number of messages that a pop may request now. Return 0 or less if it may request none."""
        free = self.wanted(slots, rate) - self.taken - self.reserved
        if self.mean_size and free > 0:
            room = (self.size_limit - self.size) / self.mean_size - self.reserved
            if room < free:
                free = int(room) if room >= 1 else int(not self.taken and not self.reserved)
        return free


class Source:
    """One topic at one broker, from which a member pops.

    Args:
        held: The buffer of its messages.
        topic: Name of the topic on the wire.
        slots: Returns the maximum number of messages of the subscription that handler calls may hold at a time.
        largest: Maximum number of messages in one pop.

    Attributes:
        size: The current maximum number of messages in one pop. It is lowered after responses that were too large.
    """

    def __init__(
        self,
        held: HeldQueue,
        topic: str,
        subscription: Subscription,
        credits: Credits,
        slots: Callable[[], int],
        largest: int = MAX_POP_SIZE,
    ) -> None:
        self.held = held
        self.topic = topic
        self.broker = held.queue.broker_name
        self.subscription = subscription
        self.credits = credits
        self.slots = slots
        self._largest = self.size = min(largest, MAX_POP_SIZE)
        self._full = 0
        """Number of responses with ``size`` messages since the last change of ``size``."""
        self.rest = 0
        """Number of remaining messages that the broker reported in its last response."""
        self.is_caught_up = True
        """Whether the broker had no message left according to its last response; True before the first response."""
        self.ends = False
        """Whether to make no further pops."""
        self.tried = asyncio.Event()
        """An event that is set after the first response or error."""
        self.has_answered = False
        self.wake = asyncio.Event()
        """An event that is set when the source ends, or when it may be popped again, for example after a pause."""
        self.under_way = 0
        self.popped_at = -inf
        """Monotonic time of the last pop that the broker may hold."""
        self.beside = 0
        """Number of further pops in flight, in addition to the pop that may be held."""
        self.most_beside = MOST_BESIDE
        self._blocked: dict[str, float] = {}

    def wanted(self) -> int:
        """Return the number of messages that the subscription may hold."""
        return self.credits.wanted(self.slots(), self.subscription.rate)

    def free(self) -> int:
        """Return the number of further messages that the subscription may hold. Return 0 or less if it may hold none."""
        return self.credits.free(self.slots(), self.subscription.rate)

    async def wait(self, seconds: float) -> None:
        """Wait for ``wake``, for up to ``seconds`` seconds. Return at once if the source ends."""
        self.wake.clear()
        if not self.ends:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.wake.wait()

    def block(self, popped: Popped) -> None:
        """Note and log the messages of a response that are not damaged but that this client cannot read."""
        comes_again = popped.arrived + popped.invisible_ms / 1000
        for error in popped.blocked:
            text = printable(error, 500)
            logger.warning("a message of %s is not handled here and is delivered again: %s", self.held.shown, text)
            self._blocked[text] = comes_again + BLOCKED_FOR
            if len(self._blocked) > MOST_BLOCKED:
                del self._blocked[next(iter(self._blocked))]

    def problems(self, now: float) -> list[Problem]:
        """Return problems for recent messages that cannot be read, and for the error of the last pop.

        May be called from any thread.

        Args:
            now: The current monotonic time.
        """
        texts = [text for text, until in self._blocked.copy().items() if now < until]
        if (error := self.held.error) is not None:
            texts.append(f"pops of topic {self.held.shown.topic} at broker {self.broker} fail: {printable(error, 300)}")
        return [Problem(ProblemCode.QUEUE_UNREADABLE, text, broker=self.broker, queue=self.held.shown) for text in texts]

    def shrink(self, messages: int) -> None:
        """Lower ``size`` after a response that was too large, to half of the requested number but at least 1.

        Args:
            messages: The number of messages that the pop requested.
        """
        self.size = min(self.size, max(messages // 2, 1))
        self._full = 0

    def grow(self, messages: int) -> None:
        """Count a response with ``messages`` messages. After GROW_AFTER responses with ``size`` messages, raise ``size`` by one."""
        if messages >= self.size < self._largest:
            self._full += 1
            if self._full >= GROW_AFTER:
                self.size += 1
                self._full = 0


class _Reservation:
    """The credits that one pop reserves until its response, for at most RESERVED_FOR seconds.

    Args:
        freed: Called when RESERVED_FOR seconds have passed.
    """

    __slots__ = ("_credits", "_messages", "_timer")

    def __init__(self, credits: Credits, messages: int, freed: Callable[[Credits], None]) -> None:
        self._credits = credits
        self._messages = messages
        credits.reserved += messages
        self._timer = asyncio.get_running_loop().call_later(RESERVED_FOR, self._over, freed) if messages else None

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._credits.reserved -= self._messages
        self._messages = 0

    def _over(self, freed: Callable[[Credits], None]) -> None:
        self.end()
        freed(self._credits)


class Popping:
    """The pops of one member.

    Args:
        accept: Called with each response that has records.
        may_pop: Returns whether a source may be popped: for example, it is not paused and the consumer is not stopping.
    """

    def __init__(
        self,
        instance: ClientInstance,
        core: PopCore,
        accept: Callable[[Source, Popped], None],
        may_pop: Callable[[Source], bool],
    ) -> None:
        self._instance = instance
        self._core = core
        self._accept = accept
        self._may_pop = may_pop
        self._waiting: dict[Credits, dict[Source, None]] = {}
        """Sources without credits, in the order in which they began to wait."""

    async def run(self, source: Source) -> None:
        """Pop until ``source.ends``."""
        pauses, early, reported = Backoff(FIRST_PAUSE, LONGEST_PAUSE), Backoff(FIRST_PAUSE, LONGEST_EARLY_PAUSE), -REPORT_EVERY
        held = source.held
        while not source.ends:
            messages = await self._credits(source)
            if not messages:
                return
            try:
                is_held = self._core.knows_clock(source.broker)
                popped = await self._pop(source, messages, POLL_TIME)
            except RocketMQError as error:
                held.fail(error)
                source.tried.set()
                pause = self._pause(source, error, pauses)
                now = machine.monotonic()
                if not source.ends and now - reported >= REPORT_EVERY and not isinstance(error, FlowControlError):
                    reported = now
                    logger.warning(
                        "pops of topic %s at broker %s fail; next attempt in %.2g s: %s",
                        held.shown.topic,
                        source.broker,
                        pause,
                        printable(error, 500),
                    )
                await source.wait(pause)
                continue
            source.tried.set()
            held.recover()
            pauses.reset()
            if popped.messages or popped.unread or popped.blocked:
                early.reset()
                self._pop_beside(source)
            elif is_held and popped.arrived - popped.sent < POLL_TIME - EARLY:
                logger.debug("broker %s responded to a pop early: %s", source.broker, printable(popped.refusal, 200))
                self._core.doubt_clock(source.broker)
                await source.wait(early.next())
            elif is_held:
                early.reset()
            elif not self._core.knows_clock(source.broker):
                await source.wait(early.next())

    def _may(self, source: Source) -> bool:
        """Return whether a pop may be sent: ``may_pop`` allows it, and the broker does not have too many pending
        acknowledgements.
        """
        return self._may_pop(source) and not self._core.acks.is_full(source.broker)

    def _pop_beside(self, source: Source) -> None:
        """Start further pops while the broker has messages left and there are credits for them."""
        while (
            not source.is_caught_up
            and not source.ends
            and source.beside < source.most_beside
            and source.free() >= source.size
            and self._may(source)
        ):
            source.beside += 1
            source.credits.reserved += source.size
            self._core.spawn(f"pop of {source.topic} at {source.broker}", self._beside(source, source.size))

    async def _beside(self, source: Source, size: int) -> None:
        """Send further pops, one after the other, as long as they return messages and credits are left.

        Args:
            size: The number of credits that are reserved for the first pop.
        """
        try:
            while True:
                source.credits.reserved -= size
                if source.ends or not self._may(source):
                    return
                popped = await self._pop(source, min(size, source.size), BESIDE_POLL_TIME)
                if not popped.messages:
                    return
                self._pop_beside(source)
                if source.is_caught_up or source.free() < source.size:
                    return
                size = source.size
                source.credits.reserved += size
        except RocketMQError as error:
            logger.debug("a further pop of %s at %s failed: %s", source.topic, source.broker, printable(error, 300))
        finally:
            source.beside -= 1

    def freed(self, credits: Credits) -> None:
        """Wake the sources that wait for credits, in the order in which they began to wait."""
        waiting = self._waiting.get(credits)
        if waiting:
            for source in [*waiting]:
                source.wake.set()

    async def _credits(self, source: Source) -> int:
        """Wait until the source may be popped. Return the number of messages to request, or 0 if the source ends.

        If there are few credits, wait GATHER_TIME for more.
        """
        credits, gathered = source.credits, False
        while not source.ends:
            if not self._may(source):
                await source.wait(PAUSED_FOR)
                continue
            credits.measure(machine.monotonic())
            free = source.free()
            if source.is_caught_up:
                return max(min(free // credits.sources, source.size), 1)
            if free >= min(source.size, max(source.wanted() // 4, 1)) or (free > 0 and gathered):
                return min(free, source.size)
            gathered = free > 0
            if gathered:
                await source.wait(GATHER_TIME)
                continue
            waiting = self._waiting.setdefault(credits, {})
            waiting[source] = None
            try:
                await source.wait(PAUSED_FOR)
            finally:
                del waiting[source]
        return 0

    async def _pop(self, source: Source, messages: int, poll: float) -> Popped:
        """Pop once, pass a response with records to ``accept``, and return it."""
        core, reservation = self._core, _Reservation(source.credits, 0 if source.is_caught_up else messages, self.freed)
        source.under_way += 1
        if poll and core.knows_clock(source.broker):
            source.popped_at = machine.monotonic()
        try:
            popped = await core.receive(source.topic, source.broker, source.subscription, messages, poll)
        except (ConnectionLostError, FrameTooLargeError) as error:
            cause = too_large_frame(error) or error.__cause__
            if isinstance(cause, RemoteProtocolError):  # a response above max_frame_size, perhaps the response to this pop
                self._shrink(source, messages, "max_frame_size")
            raise
        finally:
            reservation.end()
            source.under_way -= 1
        source.block(popped)
        if popped.is_partial:
            self._shrink(source, messages, "max_decompressed_size" if popped.messages else "max_frame_size")
        source.grow(len(popped.messages))
        source.has_answered = True
        source.rest = popped.rest
        if popped.messages or popped.corrupt or popped.is_partial or popped.blocked:
            source.is_caught_up = len(popped.messages) < messages and not popped.rest
            self._accept(source, popped)
        elif poll:
            source.is_caught_up = True
        return popped

    def _shrink(self, source: Source, messages: int, limit: str) -> None:
        source.shrink(messages)
        logger.info(
            "pops of topic %s at broker %s now request at most %d messages, because a response to a pop of %d was above %s",
            source.held.shown.topic,
            source.broker,
            source.size,
            messages,
            limit,
        )

    def _pause(self, source: Source, error: RocketMQError, pauses: Backoff) -> float:
        """Return the seconds until the next pop after ``error``.

        If the broker does not have the topic, also request its route.
        """
        if isinstance(error, TopicNotFoundError):
            self._instance.routes.refresh_soon(source.topic)
            return FULL_PAUSE
        if isinstance(error, BrokerError) and error.code == ResponseCode.POLLING_FULL:
            return FULL_PAUSE
        if isinstance(error, FlowControlError):
            return BUSY_PAUSE
        if isinstance(error, NoPermissionError | SubscriptionGroupNotExistError | RequestCodeNotSupportedError):
            return REFUSED_PAUSE
        return pauses.next()
