"""Pulls the held queues into the buffer, with one pull per queue in flight, and keeps the budget of messages and bytes that all
queues of a consumer share.
"""

# A queue reserves space before a pull and ends the reservation after the response. Each message of the response takes space until
# it is settled or dropped. Waiting queues get space in the order of their requests. A pull of a queue that was read to its end
# reserves nothing and requests one message, so it is not delayed if messages of other queues fill the buffer. When space is
# short, a pull requests about its queue's share, because a larger pull might never fit while handlers are blocked.

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from ... import machine
from ..._backoff import Backoff
from ..._ordered import OrderedSet
from ..._text import printable
from ...client import ClientInstance, end_in
from ...errors import (
    ConnectError,
    ConnectionLostError,
    CorruptMessageError,
    FlowControlError,
    FrameTooLargeError,
    NoPermissionError,
    QueueNotExistError,
    RequestTimeoutError,
    RocketMQError,
    SubscriptionGroupNotExistError,
    SystemBusyError,
    TopicNotFoundError,
)
from ...reading import UNWATCHED, Calls, PendingPull, PullRequest, pull_once, start_pull
from ...results import PullResult, PullStatus
from ..held_queue import HeldQueue, QueueState

logger = logging.getLogger(__name__)

LARGE_PULL: Final = 4 * 1024 * 1024
"""Bytes that a pull reserves, unless space is short, before the size of the queue's messages is known."""
SUSPEND: Final = 15.0
"""Seconds for which a broker may hold a pull. It checks held pulls every 5 s (``PullRequestHoldService``), so a response may take
20 s."""
PULL_TIMEOUT: Final = 30.0
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0
LONGEST_REST: Final = 1.0
"""Maximum seconds between pulls from a broker that responds at once although it has no new messages."""
HELD_FOR: Final = 1.0
"""Minimum seconds from a pull to its response for the broker to count as having held the pull."""
BUSY_PAUSE: Final = 1.0
REFUSED_PAUSE: Final = 30.0
"""Seconds between pulls that a broker will refuse until an operator acts."""
REPORT_EVERY: Final = 30.0
REPORTED_TOGETHER: Final = 10.0
"""Seconds for which other failed pulls from a broker are not logged after a log message that it does not respond. The queues of a
broker fail one after the other, because their pauses are random."""
IDLE_ANSWERS: Final = 10
"""Number of consecutive responses without progress after which the next pull waits."""


class Budget:
    """The messages and bytes that a consumer may hold.

    Attributes:
        messages: Number of messages that are buffered or being handled, without reservations.
        size: Bytes of these messages.
        full: Called when a queue must wait for space.
    """

    __slots__ = ("_max_messages", "_max_size", "_reserved", "_reserved_size", "_waiting", "full", "messages", "size")

    def __init__(self, max_messages: int, max_size: int) -> None:
        self._max_messages = max_messages
        self._max_size = max_size
        self._reserved = self._reserved_size = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self.messages = 0
        self.size = 0
        self.full: Callable[[], None] = _nothing

    @property
    def waiting(self) -> int:
        """Number of queues that wait for space."""
        return len(self._waiting)

    def reserve_now(self, messages: int, size: int) -> bool:
        """Reserve space for a pull if there is enough and no queue waits. Return whether space was reserved."""
        if self._waiting or not self._fits(messages, size):
            return False
        self._reserve(messages, size)
        return True

    def share(self, messages: int, mean_size: float | None, queues: int) -> tuple[int, int]:
        """Return the number of messages that a queue may pull when space is short, and the bytes to reserve for them.

        Args:
            messages: Maximum number of messages; the result is at least one.
            mean_size: Mean size of the queue's messages in bytes; None before the first message.
            queues: Number of queues that share the space.
        """
        size = self._max_size // queues
        messages = max(min(messages, self._max_messages // queues), 1)
        if mean_size is None:
            return messages, max(min(LARGE_PULL, self._max_size // 4), size, 1)
        messages = max(min(messages, int(size / max(mean_size, 1.0))), 1)
        return messages, max(round(mean_size * messages), 1)

    async def reserve(self, messages: int, size: int) -> None:
        """Reserve space for a pull. Wait for the space if necessary, behind queues that already wait.

        An empty buffer has space for any pull.
        """
        if self.reserve_now(messages, size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((messages, size, future))
        self.full()
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(messages, size)
            else:
                self._wake()  # queues behind this one may need less
            raise

    def release(self, messages: int, size: int) -> None:
        """End a reservation."""
        self._reserved -= messages
        self._reserved_size -= size
        self._wake()

    def take(self, messages: int, size: int) -> None:
        """Take space for messages that have arrived."""
        self.messages += messages
        self.size += size

    def give(self, messages: int, size: int) -> None:
        """Give back the space of messages that were settled or dropped."""
        self.messages -= messages
        self.size -= size
        if self._waiting:
            self._wake()

    def _reserve(self, messages: int, size: int) -> None:
        self._reserved += messages
        self._reserved_size += size

    def _wake(self) -> None:
        waiting = self._waiting
        while waiting and (waiting[0][2].done() or self._fits(*waiting[0][:2])):
            messages, size, future = waiting.popleft()
            if not future.done():
                self._reserve(messages, size)
                future.set_result(None)

    def _fits(self, messages: int, size: int) -> bool:
        taken, taken_size = self.messages + self._reserved, self.size + self._reserved_size
        if not taken and not taken_size:
            return True
        return taken + messages <= self._max_messages and taken_size + size <= self._max_size


def _nothing() -> None:
    """Do nothing. It is the default of ``Budget.full``."""


class PullLimits:
    """The limits of pulls.

    Args:
        size: Maximum number of messages in one pull.
        span: Maximum distance in offsets from a queue's watermark to its next pull.
        queues: Returns the number of queues that share the space.
        ahead: Number of ready messages at which a queue is not pulled.
        ready: Returns the number of ready messages (``Lines.ready``) of a queue.
        may_pull: Returns False if there is another reason not to pull a queue. The queue's ``changed`` is set when the result may
            have become True.
    """

    # More messages than ``ahead`` would not be handled sooner, and would drop out of the CPU caches before they are handled.
    __slots__ = ("ahead", "may_pull", "queues", "ready", "size", "span")

    def __init__(
        self,
        size: int,
        span: int,
        queues: Callable[[], int],
        ahead: int,
        ready: Callable[[HeldQueue], int],
        may_pull: Callable[[HeldQueue], bool],
    ) -> None:
        self.size = size
        self.span = span
        self.queues = queues
        self.ahead = ahead
        self.ready = ready
        self.may_pull = may_pull


class Answers(Protocol):
    """The receiver of responses, which also checks whether the store of a queue was replaced.

    ``look`` is awaited before a pull of a queue that is not ``looked_at`` or was not pulled for a while. ``doubt`` is called if a
    response may have come from another store. ``accept`` is called with each response; it returns False, and takes nothing, if the
    queue may have other messages than before. ``move`` is awaited after such a response and after OFFSET_ILLEGAL, to find the next
    offset. ``connection`` returns the open connection to a queue's broker.
    """

    def connection(self, held: HeldQueue) -> object: ...
    async def look(self, held: HeldQueue) -> None: ...
    def doubt(self, held: HeldQueue) -> None: ...
    def accept(self, held: HeldQueue, result: PullResult) -> bool: ...
    async def move(self, held: HeldQueue, result: PullResult) -> None: ...


class Pulling:
    """The pulls of one member.

    Args:
        group: Name of the group on the wire.
        intake: Receives the responses.
        lost_route: Called when a queue seems to have been removed from its topic.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        limits: PullLimits,
        budget: Budget,
        intake: Answers,
        lost_route: Callable[[HeldQueue], None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._limits = limits
        self._budget = budget
        self._intake = intake
        self._lost_route = lost_route
        self._calls: Calls = OrderedSet()
        self._reported: dict[str, float] = {}
        """By broker name: the monotonic time of the last log message that the broker does not respond."""

    async def run(self, held: HeldQueue) -> None:
        """Pull until the queue leaves the state RUNNING or the call is cancelled."""
        pauses, rests = Backoff(FIRST_PAUSE, LONGEST_PAUSE), Backoff(FIRST_PAUSE, LONGEST_REST)
        idle, reported = 0, 0.0
        while held.state is QueueState.RUNNING:
            room = await self._room(held)
            messages, reserved = await self._reserve(held, room)
            offset = held.cursor
            held.begin_pull()
            try:
                await self._pull(held, messages)
            except RocketMQError as error:
                now = machine.monotonic()
                if now - reported > REPORT_EVERY:
                    reported = now
                    self._report(held, error, now)
                held.fail(error)
                if isinstance(error, FrameTooLargeError) and (end := end_in(error)) is not None:
                    held.see_end(max(end, offset))
                if not isinstance(error, SystemBusyError | FlowControlError | FrameTooLargeError | CorruptMessageError):
                    self._intake.doubt(held)
                pause = self._pause(held, error, pauses)
            else:
                if held.error is not None:
                    held.recover()
                    pauses.reset()
                reported = pause = 0.0
                if held.cursor != offset or machine.monotonic() - held.pulled_at >= HELD_FOR:
                    if idle:
                        idle = 0
                        rests.reset()
                else:  # the broker does not hold pulls
                    idle += 1
                    pause = rests.next() if idle >= IDLE_ANSWERS else 0.0
            finally:
                if reserved:
                    self._budget.release(messages, reserved)
            if pause:
                await asyncio.sleep(pause)

    def _report(self, held: HeldQueue, error: RocketMQError, now: float) -> None:
        """Log that pulls fail. For a broker that does not respond, do so at most once in REPORTED_TOGETHER seconds."""
        what, broker = f"pulls of {held.shown}", held.shown.broker_name
        if isinstance(error, ConnectError | ConnectionLostError | RequestTimeoutError):
            self._reported = {each: at for each, at in self._reported.items() if now - at < REPORTED_TOGETHER}
            if broker in self._reported:
                return
            self._reported[broker] = now
            what = f"pulls from {printable(broker, 80)}, such as pulls of {held.shown},"
        logger.warning("%s fail and are repeated: %s", what, printable(error, 500))

    async def _pull(self, held: HeldQueue, messages: int) -> None:
        """Check the queue if a check is due. Then pull once and take the response, unless the check has moved or stopped the
        queue.
        """
        offset = held.cursor
        if held.pulled_at - held.answered_at > UNWATCHED:
            self._intake.doubt(held)
        if not held.looked_at:
            await self._intake.look(held)
            if held.cursor != offset or not held.looked_at:
                return
        request = self._request(held, messages)
        pending = start_pull(self._instance, request)
        if (self._intake.connection(held) if pending is None else pending.connection) is not held.connection:
            self._intake.doubt(held)  # the store behind another connection may be another one
            if pending is not None:
                pending.forget()
            return
        # The response is not assigned to a variable, which would keep its bodies in memory until the next response.
        await self._take(held, offset, await pull_once(self._instance, request, self._calls, pending), pending)

    async def _take(self, held: HeldQueue, offset: int, result: PullResult, pending: PendingPull | None) -> None:
        """Take the result of a pull, unless the queue was moved during the pull.

        Args:
            offset: The offset of the pull.
            pending: The request that ``start_pull`` sent over the open connection; None if it could not send one.
        """
        if held.cursor != offset:  # the queue was moved, and the next pull begins at another offset
            return
        sure = pending is not None and pending.connection.requests.is_open
        if not sure and self._intake.connection(held) is not held.connection:
            self._intake.doubt(held)
        held.note_answer()
        if result.corrupt:
            held.see_end(max(result.max_offset, offset))
            result = _readable(result, held)
        if result.status is PullStatus.OFFSET_ILLEGAL or not self._intake.accept(held, result):
            await self._intake.move(held, result)

    async def _room(self, held: HeldQueue) -> int:
        """Wait until the queue may be pulled, and return the number of messages that ``span`` allows.

        The queue may be pulled if ``span`` allows another message, fewer than ``ahead`` messages are ready, the queue is not
        ``squeezed``, and ``may_pull`` allows it.
        """
        while True:
            room = self._limits.span - held.span
            wakes_below = self._limits.ahead if self._limits.ready(held) >= self._limits.ahead else 0
            if wakes_below != held.wakes_below:
                held.wake_below(wakes_below)
            if room > 0 and not held.squeezed and not wakes_below and self._limits.may_pull(held):
                return room
            held.changed.clear()
            await held.changed.wait()

    async def _reserve(self, held: HeldQueue, room: int) -> tuple[int, int]:
        """Reserve space for the next pull.

        Return the number of messages to request, and the reserved bytes, which are 0 if nothing is reserved.
        """
        if held.is_caught_up:
            return 1, 0
        mean = held.mean_size
        messages = min(self._limits.size, room)
        size = LARGE_PULL if mean is None else max(round(mean * messages), 1)
        if not self._budget.reserve_now(messages, size):
            messages, size = self._budget.share(messages, mean, max(self._limits.queues(), 1))
            await self._budget.reserve(messages, size)
        return messages, size

    def _request(self, held: HeldQueue, messages: int) -> PullRequest:
        tags, sql = ("*", None) if held.subscription is None else (held.subscription.tags, held.subscription.sql)
        suspend, timeout = 0.0, self._instance.config.request_timeout
        if held.is_caught_up:  # other pulls have reserved space, so the broker must not hold them
            suspend, timeout = SUSPEND, PULL_TIMEOUT
        return PullRequest(self._group, held.queue, held.cursor, messages, tags, suspend, timeout, sql)

    def _pause(self, held: HeldQueue, error: RocketMQError, pauses: Backoff) -> float:
        """Return the seconds until the next pull after ``error``.

        If the topic or queue is unknown, also request the route and call ``lost_route``.
        """
        if isinstance(error, TopicNotFoundError | QueueNotExistError):
            self._instance.routes.refresh_soon(held.queue.topic)
            self._lost_route(held)
            return BUSY_PAUSE
        if isinstance(error, NoPermissionError | SubscriptionGroupNotExistError | FrameTooLargeError | CorruptMessageError):
            return REFUSED_PAUSE
        if isinstance(error, SystemBusyError | FlowControlError):
            return max(pauses.next(), BUSY_PAUSE * machine.random.uniform(0.5, 1.0))
        return pauses.next()


def _readable(result: PullResult, held: HeldQueue) -> PullResult:
    """Return the part of a result before the first message that is not damaged but that this client cannot read.

    Such a message is not skipped, because it would be lost.

    Raises:
        CorruptMessageError: If there is nothing before the message.
    """
    blocked = next((each for each in result.corrupt if each.intact and each.queue_offset is not None), None)
    if blocked is None:
        return result
    at = blocked.queue_offset
    assert at is not None
    if at <= held.cursor:
        text = f"the message at offset {at} is not damaged, but this client cannot read it, so it reads no further: {blocked}"
        raise CorruptMessageError(text, msg_id=blocked.msg_id, queue_offset=at, intact=True, broker=blocked.broker)
    return replace(
        result,
        messages=tuple([each for each in result.messages if each.queue_offset < at]),
        corrupt=tuple([each for each in result.corrupt if each.queue_offset is None or each.queue_offset < at]),
        lost=tuple([range(each.start, min(each.stop, at)) for each in result.lost if each.start < at]),
        next_offset=at,
    )
