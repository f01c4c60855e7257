"""Reads queues from one offset to another, as one stream of messages."""

# Each queue has at most one pull in flight and one waiting response, so messages of a queue keep their order and memory is
# bounded. While the caller works on one response, the next response of that queue is fetched. A read with an end has at most
# eight pulls in flight for any number of queues; a read without an end has a long poll on every queue. Pulls belong to the reader
# and end with it: at the last message, an error, ``aclose``, a ``break`` (when the iterator is garbage-collected), or the
# consumer's stop.
#
# A pull is a future. Its response is decoded when the caller reaches it, after the next pull of the queue was sent. Only a pull
# that needs more steps (no messages yet, an error, a large body, a connection) gets a task, which continues from that response.
#
# After temporary errors (for example, a broker restarts), pulls are repeated: without a limit in a read without an end, otherwise
# for 10 seconds.

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from rmq_protocol.continuity import ranges_text
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pull_codec import PullReply

from .. import machine
from .._ordered import OrderedSet
from .._text import printable
from ..client import ClientInstance, TopicRoute
from ..errors import BrokerError, ClientStateError, OffsetRangeError, RocketMQError, TopicNotFoundError
from ..results import PullResult, PullStatus
from ..tracebacks import own_copy
from .backoff import FIRST_REST, ReadBackoff, has_left
from .cursor import Cursor, is_doubtful, until, within
from .pull import Calls, PendingPull, PullRequest, pull_once, small_result, start_pull
from .read_marks import UNWATCHED
from .skipped_offsets import SkippedOffsets, deleted_among
from .watch import AHEAD_PATIENCE, Latecomers, Watch, believe, find_start, range_error

logger = logging.getLogger(__name__)

PULLS_AHEAD: Final = 8
PULL_SIZE: Final = 32
FOLLOW_SUSPEND: Final = 15.0
"""Seconds for which a broker may hold a pull of a read without an end, or up to given offsets."""
TAIL_SUSPEND: Final = 1.0
BROKER_LATE: Final = 5.0
"""Seconds by which a broker may be late with a response without messages, because it checks held pulls every 5 s."""
PATIENCE: Final = 10.0
MOST_GONE: Final = 1024
"""Maximum number of queues that have disappeared from the route and whose positions are kept."""


class ReadScope(NamedTuple):
    """The settings of a read, which follow from the arguments of ``PullConsumer.read``.

    Attributes:
        follow: Whether the read has no end.
        topic: The topic whose new queues are also read; None for no new queues.
        named: Whether the caller listed queues. Other queues that the topic has at the start are then ignored.
        start: The ``start`` argument of ``read``.
    """

    tags: str
    follow: bool
    topic: str | None
    named: bool
    start: object


class _Batch(msgspec.Struct, frozen=True):
    """The messages of one response.

    Attributes:
        error: The error that ends the read after the messages; None if there is none.
    """

    messages: tuple[MessageExt, ...] = ()
    error: RocketMQError | None = None


class Reader:
    """One read: one iteration of ``PullConsumer.read``.

    Args:
        opening: Returns the cursors. It is called at the first step of the iteration.
        calls: Receives the futures of pulls, which end when the consumer stops.
        running: The consumer's readers between their first step and their end.
        watch: A new Watch for this read.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        scope: ReadScope,
        opening: Callable[[], Awaitable[list[Cursor]]],
        calls: Calls,
        running: OrderedSet[Reader],
        watch: Watch,
    ) -> None:
        self._instance = instance
        self._group = group
        self._scope = scope
        self._opening = opening
        self._calls = calls
        self._running = running
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._known: set[MessageQueue] = set()
        self._gone: dict[MessageQueue, Cursor] = {}
        """Cursors of queues that have disappeared from the route. They are used again if the queues return."""
        self._held: OrderedSet[str] = OrderedSet()
        self._idle: deque[Cursor] = deque()
        self._pulling: dict[asyncio.Task[_Batch | None], Cursor] = {}
        self._pending: dict[asyncio.Future[Any], tuple[Cursor, PendingPull]] = {}
        self._ready: deque[tuple[Cursor, asyncio.Task[_Batch | None] | PendingPull]] = deque()
        self._news: asyncio.Future[None] | None = None
        self._stopped: RocketMQError | None = None

    async def messages(self) -> AsyncGenerator[MessageExt, None]:
        """Iterate over the messages, once."""
        done: asyncio.Task[_Batch | None] | PendingPull | None
        message: MessageExt | None
        self._running.add(self)
        try:
            await self._open()
            while True:
                if asyncio.get_running_loop() is not self._loop:
                    self._instance.check_usable()  # raises, because connections cannot be used after a fork or on another loop
                if self._idle:
                    self._start_pulls()
                if not self._ready:
                    if not self._pulling and not self._pending and not self._scope.follow:
                        return
                    batch = done = message = None  # which frees their bodies during the wait
                    await self._wait_for_news()
                    continue
                cursor, done = self._ready.popleft()
                batch = self._decoded(cursor, done) if isinstance(done, PendingPull) else done.result()
                if batch is None:
                    continue
                if not cursor.finished:
                    self._idle.append(cursor)
                    self._start_pulls()
                for message in batch.messages:
                    yield message
                    if self._stopped is not None:
                        raise own_copy(self._stopped)
                if batch.error is not None:
                    raise own_copy(batch.error)  # a copy, because the traceback of the raised error references this frame
        finally:
            await self._close()

    def stop(self) -> list[asyncio.Task[_Batch | None]]:
        """End the pulls and return their tasks. The next step of the iteration raises ClientStateError."""
        self._stopped = ClientStateError("the consumer was stopped during read(); start it and read again")
        for task in self._pulling:
            task.cancel()
        self._forget_pending()
        self._wake()
        return list(self._pulling)

    async def _open(self) -> None:
        self._latecomers = Latecomers(self._scope.start, self._scope.tags != "*")
        cursors = await self._opening()
        if self._stopped is not None:
            raise own_copy(self._stopped)
        self._idle.extend(cursor for cursor in cursors if not cursor.finished)
        self._known.update(cursor.queue for cursor in cursors)
        topic = self._scope.topic
        self._hold([*(cursor.queue.topic for cursor in cursors), *(() if topic is None else (topic,))])
        if topic is not None:
            route = self._instance.routes.cached(topic)
            self._latecomers.opened(self._known, route)
            if route is not None and self._scope.named:
                self._known.update(route.subscribe_queues)
            elif route is not None:
                self._route_changed(route)  # queues may have been added since the cursors were made
            self._instance.routes.on_change.append(self._route_changed)

    def _hold(self, topics: Iterable[str]) -> None:
        """Keep the routes of the topics in use until the read ends, even if the caller pauses for a long time."""
        self._held.update(dict.fromkeys(topics))
        for topic in self._held:
            self._instance.routes.use.hold(topic)

    def _start_pulls(self) -> None:
        while self._idle and (self._scope.follow or len(self._pulling) + len(self._pending) + len(self._ready) < PULLS_AHEAD):
            cursor = self._idle.popleft()
            pending = self._start_pull(cursor)
            if pending is None:
                self._start_fetching(cursor, None)
                continue
            self._pending[pending.future] = (cursor, pending)
            self._calls[pending.future] = None  # ``add``, inlined because the call would slow small pulls down
            pending.future.add_done_callback(self._answered)

    def _start_pull(self, cursor: Cursor) -> PendingPull | None:
        if cursor.doubtful or cursor.unmarked or (cursor.skipped is not None and cursor.check_due):
            return None
        try:
            pending = start_pull(self._instance, self._request(cursor))
        except RocketMQError:
            return None  # the task meets the error again and handles it
        if pending is not None:
            if pending.since - cursor.answered_at > UNWATCHED:
                cursor.doubt()
            if pending.connection is not cursor.connection:
                cursor.pulls_by(pending.connection)
        return pending

    def _answered(self, future: asyncio.Future[Any]) -> None:
        self._calls.pop(future, None)
        cursor, pending = self._pending.pop(future, (None, None))
        if cursor is None or pending is None:
            if not future.cancelled():
                future.exception()  # an exception that is never retrieved is reported by the loop
            return
        cursor.answered_at = machine.monotonic()
        if future.exception() is None and isinstance(future.result(), PullReply):
            self._ready.append((cursor, pending))
            self._wake()
        else:
            self._start_fetching(cursor, pending)

    def _decoded(self, cursor: Cursor, pending: PendingPull) -> _Batch | None:
        """Return the messages of a response. Return None if the response needs more than decoding, for which a task was started."""
        after = cursor.offset
        if cursor.doubtful or cursor.unmarked:
            self._start_fetching(cursor, pending)
            return None
        try:
            result = small_result(self._instance, pending)
            batch = None if result is None else self._take(cursor, result)  # never a loss, which only a task can confirm
        except RocketMQError:
            batch = None
        if batch is not None and (batch.messages or batch.error is not None):
            return batch
        self._start_fetching(cursor, pending if cursor.offset == after else None)
        return None

    def _start_fetching(self, cursor: Cursor, pending: PendingPull | None) -> None:
        task = asyncio.get_running_loop().create_task(
            self._fetch(cursor, pending),
            name=f"rmq_async pull {cursor.queue.topic} {cursor.queue.broker_name} {cursor.queue.queue_id}",
        )
        self._pulling[task] = cursor
        task.add_done_callback(self._fetched)

    def _forget_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for future, (_, each) in pending.items():
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
            task.exception()  # an exception that is never retrieved is reported by the loop

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _wait_for_news(self) -> None:
        if self._stopped is not None:
            raise own_copy(self._stopped)
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None
        if self._stopped is not None:
            raise own_copy(self._stopped)

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic != self._scope.topic or self._stopped is not None:
            return
        for queue in route.subscribe_queues:
            if queue not in self._known:
                self._known.add(queue)
                cursor = self._gone.pop(queue, None) or self._latecomers.cursor(queue)
                logger.info("topic %s has a new queue: %s", route.topic, queue)
                self._idle.append(cursor)
        self._start_pulls()

    async def _close(self) -> None:
        if not self._instance.is_here():
            return  # the consumer's stop ends the pulls, on the loop that they belong to
        self._running.discard(self)
        while self._held:
            self._instance.routes.use.release(self._held.popitem()[0])
        callbacks = self._instance.routes.on_change
        if self._route_changed in callbacks:
            callbacks.remove(self._route_changed)
        tasks = list(self._pulling)
        self._pulling.clear()
        self._idle.clear()
        for _, done in self._ready:
            if not isinstance(done, PendingPull):
                done.exception()
        self._ready.clear()
        self._forget_pending()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _fetch(self, cursor: Cursor, pending: PendingPull | None) -> _Batch | None:
        """Pull until there are messages or an error to deliver.

        Return None if the cursor reaches its end or the queue disappears from the route.

        Args:
            pending: The first pull, if it was already sent; otherwise None.
        """
        backoff = ReadBackoff(None if self._scope.follow else PATIENCE)
        moved_at = pulled_at = machine.monotonic() if pending is None else pending.since
        while not cursor.finished:
            try:
                await find_start(self._instance, cursor, self._watch)
                if self._is_check_due(cursor, pending):
                    error = await self._check(cursor)
                    if error is not None:
                        return _Batch(error=error)
                    continue
                if pending is None:
                    pulled_at = machine.monotonic()
                pull, pending = self._pull(cursor, pending), None
                result = await pull
                batch = self._take(cursor, result)
            except RocketMQError as error:
                pending = None
                cursor.doubt()
                if await self._has_left(cursor, error):
                    return None
                await asyncio.sleep(backoff.rest(error))
                continue
            backoff.over()
            if batch is None:
                now = machine.monotonic()
                rest = self._rest(cursor, result, now - moved_at)
                if rest is None:
                    rest = backoff.longer() if now - pulled_at < FIRST_REST else 0.0  # this broker does not hold pulls
                await asyncio.sleep(rest)
            elif batch.messages or batch.error is not None:
                return batch
            else:
                moved_at = machine.monotonic()
        return None

    async def _pull(self, cursor: Cursor, pending: PendingPull | None) -> PullResult:
        """Return the result of a pull at the offset of the cursor. Use ``pending`` if it was already sent from there.

        The errors of the pull propagate, and the error of ``believe`` for a doubtful result.
        """
        if pending is not None and pending.request.offset != cursor.offset:  # the cursor has moved back since
            pending = None
        request = self._request(cursor) if pending is None else pending.request
        result = await pull_once(self._instance, request, self._calls, pending)
        if pending is None:
            cursor.answered_at = machine.monotonic()
            cursor.pulls_by(self._connection(cursor))
        if is_doubtful(cursor, result):
            await believe(self._instance, cursor)
        return result

    async def _has_left(self, cursor: Cursor, error: RocketMQError) -> bool:
        """Return whether the queue of a read without an end has disappeared from its route. If so, keep its cursor if the topic
        still exists.
        """
        if not (self._scope.follow and isinstance(error, BrokerError) and await has_left(self._instance, cursor.queue, error)):
            return False
        logger.info("queue %s is no longer in its topic's route: %s", cursor.queue, printable(error))
        self._known.discard(cursor.queue)
        if not isinstance(error, TopicNotFoundError):  # a topic that is created again has new offsets
            self._gone[cursor.queue] = cursor
            if len(self._gone) > MOST_GONE:
                del self._gone[next(iter(self._gone))]
        return True

    def _rest(self, cursor: Cursor, result: PullResult, quiet: float) -> float | None:
        """Return the seconds to wait after a pull that did not move the cursor. Return None if the broker may have held the pull.

        Args:
            quiet: Seconds since the cursor moved. After more than ``request_timeout`` seconds, a read up to "latest" or a
                datetime ends at its current offset.

        Raises:
            OffsetRangeError: For an offset that stays above the queue's end.
        """
        if cursor.doubtful:
            return 0.0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            cursor.doubt()
            if cursor.is_ahead_for() > AHEAD_PATIENCE:
                raise range_error(self._instance, cursor, result)
            return FIRST_REST
        cursor.ahead_since = None
        if cursor.end is not None and not cursor.wait_for_end and quiet > self._instance.config.request_timeout:
            text = "the read of %s ends at offset %d instead of %d, because the broker has sent no more messages for %.1f s"
            logger.warning(text, cursor.queue, cursor.offset, cursor.end, quiet)
            cursor.end = cursor.offset
            return 0.0
        return FIRST_REST if result.status is PullStatus.NO_MATCH else None

    def _request(self, cursor: Cursor) -> PullRequest:
        end = cursor.end
        suspend = TAIL_SUSPEND if end is not None and not cursor.wait_for_end else FOLLOW_SUSPEND
        count = PULL_SIZE if end is None else min(PULL_SIZE, end - cursor.offset)
        timeout = suspend + BROKER_LATE + self._instance.config.request_timeout
        return PullRequest(self._group, cursor.queue, cursor.offset, count, self._scope.tags, suspend, timeout)

    def _take(self, cursor: Cursor, result: PullResult) -> _Batch | None:
        """Move the cursor according to a result. The error of ``_jump`` propagates.

        Return the messages, if any. Return None if the cursor did not move, for example because the queue ends below an earlier
        end.
        """
        offset, after = cursor.offset, result.next_offset
        if result.max_offset < cursor.high:
            cursor.doubt()
        cursor.high = result.max_offset
        if cursor.doubtful or (after <= offset and result.status is not PullStatus.OFFSET_ILLEGAL):
            return None
        if result.status is PullStatus.OFFSET_ILLEGAL:
            return self._jump(cursor, result) if offset < result.min_offset else None
        lost = until(result.lost, cursor.end) if result.lost else ()
        cursor.offset, cursor.begun = after, True
        messages = within(result.messages, offset, cursor.end)
        if messages:
            self._watch.marks.read(cursor.queue, messages)
            cursor.ahead_since = None
        if cursor.is_filtered:
            self._skip(cursor, offset, result.messages[0].queue_offset if result.messages else after)
        if lost or result.corrupt:
            return self._with_error(cursor, result, messages, lost)
        return _Batch(messages)

    def _with_error(
        self, cursor: Cursor, result: PullResult, messages: tuple[MessageExt, ...], lost: tuple[range, ...]
    ) -> _Batch:
        """Return the messages and the error of a result. If a loss ends the read, return only the messages before the loss."""
        loss = self._loss(cursor, lost, result.min_offset, result.max_offset) if lost else None
        if loss is not None:
            return _Batch(tuple([message for message in messages if message.queue_offset < lost[0].start]), loss)
        return _Batch(messages, result.corrupt[0] if result.corrupt else None)

    def _skip(self, cursor: Cursor, offset: int, first: int) -> None:
        """Note the offsets from ``offset`` up to ``first`` that a filter has skipped."""
        if cursor.skipped is None:
            cursor.skipped = SkippedOffsets()
        cursor.skipped.add(offset, first if cursor.end is None else min(first, cursor.end))
        cursor.unmarked = self._watch.is_far(cursor)

    def _jump(self, cursor: Cursor, result: PullResult) -> _Batch:
        """Move a cursor with ``at_first`` to the first message. Raise OffsetRangeError for other cursors."""
        lost = until((range(cursor.offset, result.min_offset),), cursor.end)
        if not cursor.at_first:
            raise range_error(self._instance, cursor, result, lost)
        if cursor.begun:
            self._loss(cursor, lost, result.min_offset, result.max_offset)
        cursor.offset = result.min_offset
        if not cursor.begun:
            cursor.first = cursor.offset
        return _Batch()

    def _loss(self, cursor: Cursor, lost: tuple[range, ...], low: int, high: int) -> OffsetRangeError | None:
        """Return the error for lost messages. For a cursor with ``at_first``, log the loss and return None."""
        queue = self._instance.names.shown_queue(cursor.queue)
        if sum(map(len, lost[:2])) == 1:
            text = f"offset {lost[0].start} of {queue} was deleted before it was read"
        else:
            text = f"offsets {ranges_text(lost)} of {queue} were deleted before they were read"
        if cursor.at_first:
            logger.warning("%s; the read continues at the first message that exists", text)
            return None
        return OffsetRangeError(
            f'{text}; with start="earliest", a read continues at the first message that exists',
            min_offset=low,
            max_offset=high,
            lost=lost,
            request="PULL_MESSAGE",
            broker=cursor.queue.broker_name,
        )

    def _is_check_due(self, cursor: Cursor, pending: PendingPull | None) -> bool:
        if pending is None:
            cursor.pulls_by(self._connection(cursor))
            if machine.monotonic() - cursor.answered_at > UNWATCHED:
                cursor.doubt()
        return cursor.doubtful or cursor.unmarked or cursor.check_due

    def _connection(self, cursor: Cursor) -> object:
        return self._instance.open_connection(self._instance.routes.broker_of(cursor.queue))

    async def _check(self, cursor: Cursor) -> OffsetRangeError | None:
        """Check whether the queue still has its messages, and check skipped offsets if that is due. Return the error for a loss."""
        error = None
        if cursor.doubtful or cursor.unmarked:
            error = await self._watch.look(cursor)
            cursor.answered_at = machine.monotonic()
            if cursor.connection is None:  # the check has opened the connection
                cursor.connection = self._connection(cursor)
        skipped = cursor.skipped
        if error is not None or skipped is None or not cursor.check_due:
            return error
        timeout = self._instance.config.request_timeout
        lost, high = await deleted_among(
            self._instance, self._group, cursor.queue, skipped.ranges, timeout=timeout, calls=self._calls
        )
        if lost and not cursor.at_first:
            await believe(self._instance, cursor)
        skipped.clear()
        return self._loss(cursor, lost, lost[-1].stop, high) if lost else None
