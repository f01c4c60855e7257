"""Reading queues from one offset to another, as one stream of messages.

Each queue has at most one pull under way and one answer waiting, so messages of a queue keep their order and the memory held
is bounded: while the caller works on one answer the next one of that queue is fetched. A bounded read has at most eight pulls
under way for any number of queues; one that follows for ever has a long poll on every queue. Pulls belong to the reader and
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

from rmq_protocol.continuity import ranges_text
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pull_codec import PullReply

from ..client import ClientInstance, TopicRoute
from ..client.masters import has_master
from ..client.text import printable
from ..errors import BrokerError, BrokerNotFoundError, ClientStateError, OffsetRangeError, RocketMQError, TopicNotFoundError
from ..results import PullResult, PullStatus
from .continuity import PassedOver, deleted_among
from .cursor import Cursor, until, within
from .pulling import AskedPull, Calls, pull_once, small_result, start_pull
from .trouble import FIRST_REST, Trouble

__all__ = ["Reader"]

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


class _Terms(TypedDict):
    max_messages: int
    tags: str
    suspend: float
    timeout: float


class _Batch(NamedTuple):
    """``error``: what the reading ends with after the messages."""

    messages: tuple[MessageExt, ...] = ()
    error: RocketMQError | None = None


class Reader:
    """One run of ``PullConsumer.read``. ``opening``: makes the cursors, called at the first step.

    ``follow``: for ever. ``topic``: its new queues are followed too; None where only given ones are wanted.
    ``named``: the cursors are those of named queues; others that the topic has already are left out.
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
        named: bool,
        calls: Calls,
        running: set[Reader],
    ) -> None:
        self._instance = instance
        self._group = group
        self._tags = tags
        self._opening = opening
        self._follow = follow
        self._topic = topic if follow else None
        self._named = named
        self._calls = calls
        self._running = running
        self._known: set[MessageQueue] = set()
        self._gone: dict[MessageQueue, Cursor] = {}
        """Where queues were read that left the route, for when they are back."""
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
                if batch.error is not None:
                    raise batch.error
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
            if route is not None and self._named:
                self._known.update(route.subscribe_queues)
            elif route is not None:
                self._route_changed(route)  # a queue may have come since the cursors were made
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
        if cursor.passed is not None and cursor.check_due:
            return None
        try:
            return start_pull(self._instance, self._group, cursor.queue, cursor.offset, **self._terms(cursor))
        except RocketMQError:
            return None  # the task meets it again, and knows what to do

    def _answered(self, future: asyncio.Future[Any]) -> None:
        self._calls.discard(future)
        cursor, asked = self._asked.pop(future, (None, None))
        if cursor is None or asked is None:
            if not future.cancelled():
                future.exception()  # read, or the loop would report it
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
            result = small_result(self._instance, cursor.queue, cursor.offset, self._tags, asked)
            batch = None if result is None else self._take(cursor, result)  # without a loss, which only a task finds out
        except RocketMQError:
            batch = None
        if batch is not None and (batch.messages or batch.error is not None):
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
            task.exception()  # read, or the loop would report it

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
                cursor = self._gone.pop(queue, None) or Cursor(queue, 0, None, at_first=True)
                logger.info("topic %s has a new queue, read from offset %d on: %s", route.topic, cursor.offset, queue)
                self._idle.append(cursor)
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
        trouble = Trouble(None if self._follow else PATIENCE)
        since = monotonic() if asked is None else asked.since
        while not cursor.finished:
            begun = monotonic() if asked is None else asked.since
            try:
                if cursor.check_due:
                    error = await self._check(cursor)
                    if error is not None:
                        return _Batch(error=error)
                    continue
                pull, asked = self._pull(cursor, asked), None
                result = await pull
                if _is_doubtful(cursor, result):
                    await self._believe(cursor)
                batch = self._take(cursor, result)
            except RocketMQError as error:
                if self._follow and isinstance(error, BrokerError) and self._is_gone(cursor.queue):
                    logger.info("queue %s is no longer in its topic's route: %s", cursor.queue, printable(error))
                    self._known.discard(cursor.queue)
                    if not isinstance(error, TopicNotFoundError):  # where the topic is made anew its offsets begin anew
                        self._gone[cursor.queue] = cursor
                    return None
                await asyncio.sleep(trouble.rest(error))
                continue
            trouble.over()
            if batch is not None:
                if batch.messages or batch.error is not None:
                    return batch
                since = monotonic()
                continue
            waited = monotonic() - since
            if result.status is PullStatus.OFFSET_ILLEGAL:
                if waited > AHEAD_PATIENCE:
                    raise self._range_error(cursor, result)
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
        offset, after = cursor.offset, result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            return self._jump(cursor, result) if offset < result.min_offset else None
        if after <= offset:
            return None
        lost = until(result.lost, cursor.end) if result.lost else ()
        cursor.offset, cursor.begun = after, True
        messages = within(result.messages, offset, cursor.end)
        if self._tags != "*":
            if cursor.passed is None:
                cursor.passed = PassedOver()
            first = result.messages[0].queue_offset if result.messages else after
            cursor.passed.add(offset, first if cursor.end is None else min(first, cursor.end))
        error: RocketMQError | None = result.corrupt[0] if result.corrupt else None
        if lost:
            loss = self._loss(cursor, lost, result.min_offset, result.max_offset)
            if loss is not None:
                return _Batch(tuple([message for message in messages if message.queue_offset < lost[0].start]), loss)
        return _Batch(messages, error)

    def _jump(self, cursor: Cursor, result: PullResult) -> _Batch:
        """To the first message there is, where that will do. Raises OffsetRangeError."""
        lost = until((range(cursor.offset, result.min_offset),), cursor.end)
        if not cursor.at_first:
            raise self._range_error(cursor, result, lost)
        if cursor.begun:
            self._loss(cursor, lost, result.min_offset, result.max_offset)
        cursor.offset = result.min_offset
        return _Batch()

    def _loss(self, cursor: Cursor, lost: tuple[range, ...], low: int, high: int) -> OffsetRangeError | None:
        """The error of a loss, or a line in the log where the reading goes on at the first message there is."""
        queue = self._instance.names.shown_queue(cursor.queue)
        if sum(map(len, lost[:2])) == 1:
            text = f"offset {lost[0].start} of {queue} was deleted before it was read"
        else:
            text = f"offsets {ranges_text(lost)} of {queue} were deleted before they were read"
        if cursor.at_first:
            logger.warning("%s; the reading goes on at the first message there is", text)
            return None
        return OffsetRangeError(
            f'{text}; start="earliest" goes on at the first message there is',
            min_offset=low,
            max_offset=high,
            lost=lost,
            request="PULL_MESSAGE",
            broker=cursor.queue.broker_name,
        )

    async def _check(self, cursor: Cursor) -> OffsetRangeError | None:
        """Whether what pulls with tags passed over was there."""
        passed = cursor.passed
        if passed is None:
            return None
        timeout = self._instance.config.request_timeout
        lost, high = await deleted_among(
            self._instance, self._group, cursor.queue, passed.ranges, timeout=timeout, calls=self._calls
        )
        if lost and not cursor.at_first:
            await self._believe(cursor)
        passed.clear()
        return self._loss(cursor, lost, lost[-1].stop, high) if lost else None

    async def _believe(self, cursor: Cursor) -> None:
        """A replica may be behind, or have deleted more than its master. Raises BrokerNotFoundError while there is no master."""
        if not await has_master(self._instance, cursor.queue):
            queue = self._instance.names.shown_queue(cursor.queue)
            raise BrokerNotFoundError(
                f"a replica of the broker does not hold offset {cursor.offset} of {queue}, and its master is away",
                broker=cursor.queue.broker_name,
            )

    def _range_error(self, cursor: Cursor, result: PullResult, lost: tuple[range, ...] = ()) -> OffsetRangeError:
        queue = self._instance.names.shown_queue(cursor.queue)
        return OffsetRangeError(
            f"offset {cursor.offset} of {queue} is outside {result.min_offset}..{result.max_offset}",
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            lost=lost,
            request="PULL_MESSAGE",
            broker=cursor.queue.broker_name,
        )

    def _is_gone(self, queue: MessageQueue) -> bool:
        route = self._instance.routes.cached(queue.topic)
        return route is not None and queue not in route.subscribe_queues


def _is_doubtful(cursor: Cursor, result: PullResult) -> bool:
    """Whether the answer ends the reading, or keeps it where it is, for what the broker does not hold."""
    if result.status is PullStatus.OFFSET_ILLEGAL:
        return not (cursor.at_first and cursor.offset < result.min_offset)
    if result.next_offset <= cursor.offset:
        return cursor.end is not None
    return bool(result.lost) and not cursor.at_first
