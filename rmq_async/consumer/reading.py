"""Reading queues from one offset to another, as one stream of messages.

Each queue has at most one pull under way and one answer waiting, so messages of a queue keep their order and the memory held
is bounded: while the caller works on one answer the next one of that queue is fetched. A bounded read has at most eight pulls
under way whatever the number of queues; one that follows for ever has a long poll on every queue. Pulls belong to the reader and
end with it, be it by the last message, an error, ``aclose``, a ``break`` (when the iterator goes away) or the consumer's stop.

A pull is a future: its answer is decoded when the caller comes to it, and the next pull of the queue is on its way before the
caller has the first message. Only what is not simply messages (nothing there yet, trouble, a large body, a connection to be made)
gets a task, which goes on from that answer.

Trouble on the way is waited out where waiting can help (a broker restarts): for ever when following, else for 10 seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic
from typing import Any, Final, NamedTuple, TypedDict

from rmq_protocol.errors import CorruptMessageError, RemoteProtocolError
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pull_codec import PullReply

from ..client import ClientInstance, TopicRoute
from ..client.text import printable
from ..errors import (
    BrokerError,
    BrokerNotFoundError,
    ClientStateError,
    NameServerError,
    NoPermissionError,
    OffsetRangeError,
    RocketMQError,
    TopicNotFoundError,
)
from ..results import PullResult, PullStatus
from .pulling import AskedPull, Calls, pull_once, small_result, start_pull

__all__ = ["Cursor", "Reader"]

logger = logging.getLogger(__name__)

PULLS_AHEAD: Final = 8
PULL_SIZE: Final = 32
FOLLOW_SUSPEND: Final = 15.0
"""Seconds a broker may hold a pull of a read that follows."""
TAIL_SUSPEND: Final = 1.0
BROKER_LATE: Final = 5.0
"""Seconds by which a broker may be late with "nothing new": it looks at held pulls every 5 s."""
PATIENCE: Final = 10.0
AHEAD_PATIENCE: Final = 1.0
"""Seconds to wait at an offset that the broker says is above its highest: a stored message is readable a moment later."""
FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0
REPORT_EVERY: Final = 30.0


class Cursor:
    """Where one queue is read. ``end``: exclusive; None follows. ``at_first``: jump to the first offset there is when this is gone.

    ``wait_for_end``: wait for messages until ``end`` is reached, else only for those that are on their way.
    """

    __slots__ = ("at_first", "end", "offset", "queue", "wait_for_end")

    def __init__(
        self, queue: MessageQueue, offset: int, end: int | None, *, at_first: bool = False, wait_for_end: bool = False
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.end = end
        self.at_first = at_first
        self.wait_for_end = wait_for_end

    @property
    def finished(self) -> bool:
        return self.end is not None and self.offset >= self.end


class _Terms(TypedDict):
    max_messages: int
    tags: str
    suspend: float
    timeout: float


class _Batch(NamedTuple):
    messages: tuple[MessageExt, ...]
    corrupt: tuple[CorruptMessageError, ...]


class Reader:
    """One run of ``PullConsumer.read``. ``opening``: makes the cursors, called at the first step.

    ``follow``: for ever. ``topic``: its new queues are followed too; None where only given ones are wanted.
    ``running``: the readers between their first step and their end.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        tags: str,
        opening: Callable[[], Awaitable[list[Cursor]]],
        *,
        follow: bool,
        topic: str | None,
        calls: Calls,
        running: set[Reader],
    ) -> None:
        self._instance = instance
        self._group = group
        self._tags = tags
        self._opening = opening
        self._follow = follow
        self._topic = topic if follow else None
        self._calls = calls
        self._running = running
        self._known: set[MessageQueue] = set()
        self._held: set[str] = set()
        self._idle: deque[Cursor] = deque()
        self._pulling: dict[asyncio.Task[_Batch | None], Cursor] = {}
        self._asked: dict[asyncio.Future[Any], tuple[Cursor, AskedPull]] = {}
        self._ready: deque[tuple[Cursor, asyncio.Task[_Batch | None] | AskedPull]] = deque()
        self._news: asyncio.Future[None] | None = None
        self._stopped: RocketMQError | None = None

    async def messages(self) -> AsyncGenerator[MessageExt, None]:
        """The messages, once."""
        self._running.add(self)
        try:
            await self._open()
            while True:
                self._start_pulls()
                if not self._ready:
                    if not self._pulling and not self._asked and not self._follow:
                        return
                    await self._wait_for_news()
                    continue
                cursor, done = self._ready.popleft()
                batch = self._decoded(cursor, done) if isinstance(done, AskedPull) else done.result()
                if batch is None:
                    continue
                if not cursor.finished:
                    self._idle.append(cursor)
                    self._start_pulls()
                for message in batch.messages:
                    yield message
                    if self._stopped is not None:
                        raise self._stopped
                if batch.corrupt:
                    raise batch.corrupt[0]
        finally:
            self._running.discard(self)
            await self._close()

    def stop(self) -> list[asyncio.Task[_Batch | None]]:
        """Ends the pulls and returns their tasks; the next step of the iteration raises ClientStateError."""
        self._stopped = ClientStateError("the consumer was stopped")
        for task in self._pulling:
            task.cancel()
        self._forget_asked()
        self._wake()
        return list(self._pulling)

    # -- inside

    async def _open(self) -> None:
        cursors = await self._opening()
        if self._stopped is not None:
            raise self._stopped
        self._idle.extend(cursor for cursor in cursors if not cursor.finished)
        self._known.update(cursor.queue for cursor in cursors)
        self._hold({cursor.queue.topic for cursor in cursors}.union(() if self._topic is None else (self._topic,)))
        if self._topic is not None:
            route = self._instance.routes.cached(self._topic)
            if route is not None:
                self._known.update(route.subscribe_queues)
            self._instance.routes.on_change.append(self._route_changed)

    def _hold(self, topics: set[str]) -> None:
        """Keeps the routes of what is read, however long the caller takes between two steps."""
        self._held = topics
        for topic in topics:
            self._instance.routes.use.hold(topic)

    def _start_pulls(self) -> None:
        while self._idle and (self._follow or len(self._pulling) + len(self._asked) + len(self._ready) < PULLS_AHEAD):
            cursor = self._idle.popleft()
            asked = self._ask(cursor)
            if asked is None:
                self._start_fetching(cursor, None)
                continue
            self._asked[asked.future] = (cursor, asked)
            self._calls.add(asked.future)
            asked.future.add_done_callback(self._answered)

    def _ask(self, cursor: Cursor) -> AskedPull | None:
        try:
            return start_pull(self._instance, self._group, cursor.queue, cursor.offset, **self._terms(cursor))
        except RocketMQError:
            return None  # the task meets it again, and knows what to do

    def _answered(self, future: asyncio.Future[Any]) -> None:
        self._calls.discard(future)
        cursor, asked = self._asked.pop(future, (None, None))
        if cursor is None or asked is None:
            if not future.cancelled():
                future.exception()  # nobody wants to know any more
            return
        if future.exception() is None and isinstance(future.result(), PullReply):
            self._ready.append((cursor, asked))
            self._wake()
        else:
            self._start_fetching(cursor, asked)

    def _decoded(self, cursor: Cursor, asked: AskedPull) -> _Batch | None:
        """What the answer brought. None where there is more to it: then a task goes on from there."""
        after = cursor.offset
        try:
            result = small_result(self._instance, cursor.queue, self._tags, asked)
            batch = self._take(cursor, result) if result is not None else None
        except RocketMQError:
            batch = None
        if batch is not None and (batch.messages or batch.corrupt):
            return batch
        self._start_fetching(cursor, asked if cursor.offset == after else None)
        return None

    def _start_fetching(self, cursor: Cursor, asked: AskedPull | None) -> None:
        task = asyncio.get_running_loop().create_task(
            self._fetch(cursor, asked),
            name=f"rmq_async pull {cursor.queue.topic} {cursor.queue.broker_name} {cursor.queue.queue_id}",
        )
        self._pulling[task] = cursor
        task.add_done_callback(self._fetched)

    def _forget_asked(self) -> None:
        asked, self._asked = self._asked, {}
        for future, (_, each) in asked.items():
            self._calls.discard(future)
            each.forget()

    def _fetched(self, task: asyncio.Task[_Batch | None]) -> None:
        cursor = self._pulling.pop(task, None)
        if task.cancelled():
            return
        if cursor is not None and self._stopped is None:
            self._ready.append((cursor, task))
            self._wake()
        else:
            task.exception()  # nobody wants to know any more

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _wait_for_news(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None
        if self._stopped is not None:
            raise self._stopped

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic != self._topic or self._stopped is not None:
            return
        for queue in route.subscribe_queues:
            if queue not in self._known:
                self._known.add(queue)
                logger.info("topic %s has a new queue, read from its first message: %s", route.topic, queue)
                self._idle.append(Cursor(queue, 0, None, at_first=True))
        self._start_pulls()

    async def _close(self) -> None:
        while self._held:
            self._instance.routes.use.release(self._held.pop())
        callbacks = self._instance.routes.on_change
        if self._route_changed in callbacks:
            callbacks.remove(self._route_changed)
        tasks = list(self._pulling)
        self._pulling.clear()
        self._idle.clear()
        for _, done in self._ready:
            if not isinstance(done, AskedPull):
                done.exception()
        self._ready.clear()
        self._forget_asked()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _fetch(self, cursor: Cursor, asked: AskedPull | None) -> _Batch | None:
        """Pulls until there is something to deliver; None when the cursor has come to its end. ``asked``: the first pull."""
        trouble = _Trouble(self._follow)
        since = monotonic() if asked is None else asked.since
        while not cursor.finished:
            begun = monotonic() if asked is None else asked.since
            pull = self._pull(cursor, asked)
            asked = None
            try:
                result = await pull
                batch = self._take(cursor, result)
            except RocketMQError as error:
                if self._follow and isinstance(error, BrokerError) and self._is_gone(cursor.queue):
                    logger.info("queue %s is no longer in its topic's route: %s", cursor.queue, printable(error))
                    self._known.discard(cursor.queue)
                    return None
                await asyncio.sleep(trouble.rest(error))
                continue
            trouble.over()
            if batch is not None:
                if batch.messages or batch.corrupt:
                    return batch
                since = monotonic()
                continue
            waited = monotonic() - since
            if result.status is PullStatus.OFFSET_ILLEGAL:
                if waited > AHEAD_PATIENCE:
                    raise _range_error(self._instance.names.shown_queue(cursor.queue), cursor, result)
                await asyncio.sleep(FIRST_REST)
            elif cursor.end is not None and not cursor.wait_for_end and waited > self._instance.config.request_timeout:
                logger.warning(
                    "%s ends at %d, %d was expected; nothing came for %.1f s", cursor.queue, cursor.offset, cursor.end, waited
                )
                cursor.end = cursor.offset
            elif result.status is PullStatus.NO_MATCH:
                await asyncio.sleep(FIRST_REST)
            elif monotonic() - begun < FIRST_REST:  # the broker does not hold pulls
                await asyncio.sleep(trouble.longer())
        return None

    async def _pull(self, cursor: Cursor, asked: AskedPull | None) -> PullResult:
        terms = self._terms(cursor)
        return await pull_once(
            self._instance, self._group, cursor.queue, cursor.offset, **terms, calls=self._calls, asked=asked
        )

    def _terms(self, cursor: Cursor) -> _Terms:
        suspend = TAIL_SUSPEND if cursor.end is not None and not cursor.wait_for_end else FOLLOW_SUSPEND
        return {
            "max_messages": PULL_SIZE if cursor.end is None else min(PULL_SIZE, cursor.end - cursor.offset),
            "tags": self._tags,
            "suspend": suspend,
            "timeout": suspend + BROKER_LATE + self._instance.config.request_timeout,
        }

    def _take(self, cursor: Cursor, result: PullResult) -> _Batch | None:
        """Moves the cursor on; what there is to deliver (perhaps nothing), or None when it did not move."""
        offset = cursor.offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            if offset >= result.min_offset:
                return None
            if not cursor.at_first:
                raise _range_error(self._instance.names.shown_queue(cursor.queue), cursor, result)
            cursor.offset = result.min_offset
            return _Batch((), ())
        if result.status is PullStatus.NO_NEW:
            if result.next_offset <= offset:
                return None
            cursor.offset = result.next_offset
            return _Batch((), ())
        messages = _within(result.messages, offset, cursor.end)
        after = max(result.next_offset, messages[-1].queue_offset + 1 if messages else 0)
        if after <= offset:
            if result.status is PullStatus.FOUND:
                queue = self._instance.names.shown_queue(cursor.queue)
                raise RemoteProtocolError(
                    f"a pull of {queue} at offset {offset} says to go on at {result.next_offset}",
                    broker=cursor.queue.broker_name,
                )
            return None
        cursor.offset = after
        return _Batch(messages, result.corrupt)

    def _is_gone(self, queue: MessageQueue) -> bool:
        route = self._instance.routes.cached(queue.topic)
        return route is not None and queue not in route.subscribe_queues


class _Trouble:
    """How long to wait it out."""

    __slots__ = ("_follow", "_reported", "_rest", "_since")

    def __init__(self, follow: bool) -> None:
        self._follow = follow
        self._rest = 0.0
        self._since = 0.0
        self._reported = 0.0

    def rest(self, error: RocketMQError) -> float:
        """Seconds until the next try; raises ``error`` where another one is pointless or there were enough."""
        now = monotonic()
        self._since = self._since or now
        if not _may_pass(error) or (not self._follow and now - self._since > PATIENCE):
            raise error
        if now - self._reported > REPORT_EVERY:
            self._reported = now
            logger.warning("reading goes on when this is over: %s", printable(error, 1000))
        return self.longer()

    def over(self) -> None:
        self._since = 0.0

    def longer(self) -> float:
        """Seconds to rest, more each time."""
        self._rest = min(LAST_REST, self._rest * 2 or FIRST_REST)
        return self._rest


def _may_pass(error: RocketMQError) -> bool:
    """Whether the same pull may succeed later: the broker or the way to it is in trouble, not the request."""
    if isinstance(error, NoPermissionError | TopicNotFoundError):
        return False
    return error.retriable or isinstance(error, NameServerError | BrokerNotFoundError)


def _within(messages: tuple[MessageExt, ...], offset: int, end: int | None) -> tuple[MessageExt, ...]:
    """Without those outside [offset, end): a batch that was stored as one record is delivered whole."""
    if not messages:
        return messages
    if messages[0].queue_offset >= offset and (end is None or messages[-1].queue_offset < end):
        return messages
    return tuple(m for m in messages if m.queue_offset >= offset and (end is None or m.queue_offset < end))


def _range_error(queue: MessageQueue, cursor: Cursor, result: PullResult) -> OffsetRangeError:
    return OffsetRangeError(
        f"offset {cursor.offset} of {queue} is outside {result.min_offset}..{result.max_offset}",
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        request="PULL_MESSAGE",
        broker=cursor.queue.broker_name,
    )
