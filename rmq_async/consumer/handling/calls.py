"""Handler calls. A call has a task, a thread if the handler is a plain function, and a deadline. One timer checks the deadlines of
all running calls.
"""

# A call that waits has its own task. Calls that end in their first step may share a task, one after the other (``steps``), and
# their messages are settled together: no other code of the loop runs in between.
#
# A call occupies its slot until its handler has ended. Messages that go back to brokers wait in separate buffers
# (``give_backs``). The key or queue of an ordered message is held until the message has its outcome. A call with hooks keeps its
# task until then, because hooks see the outcome.

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from math import inf
from operator import itemgetter
from types import TracebackType
from typing import Any, Final

from rmq_protocol.message import MessageExt

from ... import machine
from ..._functions import handler_name
from ...errors import HandlerTimeoutError
from ...health import Problem
from ...tracebacks import drop_frames
from ..delivery import CURRENT, Call, call_of
from ..held_queue import Waiting
from ..outcome import Batch, Marks, Outcome, check_returned, outcome_in
from ..subscription import Handler, Subscription, has_lines, task_name
from .ack import Settling
from .dispatch import Dispatcher
from .hooks import CallHooks
from .steps import LONGEST_RUN, Pace, Row, cut_short, drive, failed, first_step, returned
from .threads import HandlerThreads

logger = logging.getLogger(__name__)

LEAST_PAUSE: Final = 0.005
"""Minimum seconds between two checks of the deadlines, because the cost of a check grows with the number of running calls."""
MARKED_LATE: Final = "the call of this batch has ended; mark its messages before the handler returns"


class CallDeadlines:
    """The deadlines of calls.

    Args:
        running: All running calls.
        expired: Called with each call whose deadline passes while its handler runs.
    """

    # The timer is set for the earliest deadline that a check has found or ``look_at`` was called with. A call that begins later
    # has an earlier deadline only if its timeout is shorter, so a call usually costs only a comparison.
    __slots__ = ("_expired", "_loop", "_running", "_timer", "moved", "next_look")

    def __init__(self, running: Iterable[Call], expired: Callable[[Call], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = running
        self._expired = expired
        self.next_look = inf
        """Monotonic time for which the timer is set; ``inf`` if there is no timer."""
        self._timer: asyncio.TimerHandle | None = None
        self.moved = self._moved
        """The function for ``Call.moved``, which is called when a deadline has moved. It may be called from any thread."""

    def look_at(self, deadline: float) -> None:
        """Check the calls at ``deadline`` at the latest."""
        if deadline < self.next_look:
            self._arm(deadline)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _moved(self, delivery: Call) -> None:
        self._loop.call_soon_threadsafe(self._look_again, delivery, context=Context())

    def _look_again(self, delivery: Call) -> None:
        if delivery.state == "running" and delivery.deadline is not None:
            self.look_at(delivery.deadline)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.next_look = at
        self._timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._due, context=Context())

    def _due(self) -> None:
        self._timer, self.next_look = None, inf
        now, next_at = machine.monotonic(), inf
        over: list[tuple[float, Call]] = []
        for delivery in self._running:
            deadline = delivery.deadline
            if deadline is None or delivery.state != "running" or delivery.timed_out:
                continue
            if deadline <= now:
                over.append((deadline, delivery))
            elif deadline < next_at:
                next_at = deadline
        for _, delivery in sorted(over, key=itemgetter(0)):
            self._expired(delivery)
        if next_at < inf:
            self._arm(max(next_at, now + LEAST_PAUSE))


class HandlerCalls:
    """Makes handler calls.

    Args:
        concurrency: Maximum number of threads for plain functions.
        settling: Decides about the messages of a call, and carries out the decisions.
        context: Each call runs in a copy of this context, except calls of ``call_once``.
    """

    def __init__(
        self,
        concurrency: int,
        settling: Settling,
        context: Context,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.concurrency = concurrency
        self._settling = settling
        self._context = context
        self.threads = HandlerThreads(concurrency, lambda: self.dispatcher.pump())
        self.ending: Callable[[], bool] = _never
        """Returns whether the event loop is ending, which cancels all tasks."""
        self.dispatcher: Dispatcher
        self._paces: dict[Subscription, Pace | None] = {}
        self._closing = False
        self.hooks: CallHooks | None = None
        """The hooks for calls; None if no hook defines a method for calls."""
        self.running: dict[Call, Collection[Waiting]] = {}
        """Calls whose handlers have not ended, and their messages."""
        self._reporting: dict[Call, None] = {}
        """Calls that wait for the outcomes of their messages before their hooks are called."""
        self._deadlines = CallDeadlines(self.running, self._expire)

    @property
    def problem(self) -> Problem | None:
        """The problem that no thread can be started for plain functions, or None. May be called from any thread."""
        return self.threads.problem

    @property
    def is_ready(self) -> bool:
        """Whether handlers can be called. False while a plain function waits and there is no thread at all."""
        return not self.threads.is_missing

    def begin(self, subscription: Subscription, taken: tuple[Waiting, ...]) -> None:
        """Start the task of one call with the messages ``taken``."""
        delivery = self._begun(subscription, taken, machine.monotonic())
        if not subscription.is_async:
            self.threads.take(delivery)
        pace = None if self.hooks is not None else self._pace_of(subscription)
        holds = False
        if pace is not None and pace.begins_run():
            if holds := pace.length > 1:
                self.dispatcher.hold(subscription)
            call = self._make_calls(delivery, taken[0], pace, holds=holds)
        else:
            call = self._run(delivery, taken)
        self._start(call, delivery, taken)

    def _start(self, call: Coroutine[Any, Any, None], delivery: Call, taken: tuple[Waiting, ...]) -> None:
        task = self._loop.create_task(call, name=task_name(delivery.subscription), context=self._context.copy())
        task.add_done_callback(partial(self._begin_again, delivery, taken))

    def _begin_again(self, delivery: Call, taken: tuple[Waiting, ...], _: object) -> None:
        """Start a new task for a call if other code has cancelled its task before the first step.

        Otherwise the call would keep its slot; if it holds back the other calls of its subscription (``hold``), none of them would
        begin.
        """
        if delivery.task is not None or delivery not in self.running or self.ending():
            return
        self.dispatcher.let_go(delivery.subscription)
        self._start(self._run(delivery, taken), delivery, taken)
        self.dispatcher.pump()

    def _begun(
        self, subscription: Subscription, taken: tuple[Waiting, ...], began: float, task: asyncio.Task[Any] | None = None
    ) -> Call:
        """Return a new Call that began at the monotonic time ``began``, and add it to the running calls.

        Args:
            task: The task that makes the call, if it already runs.
        """
        deadlines, timeout = self._deadlines, subscription.timeout
        deadline = None if timeout is None else began + timeout
        if subscription.batch_size is None:
            (item,) = taken
            delivery = Call(subscription, (item.message,), item.attempt, began, deadline, deadlines.moved, task)
            item.held.running[item] = delivery
        else:
            messages, attempt = tuple([item.message for item in taken]), max([item.attempt for item in taken])
            delivery = Call(subscription, messages, attempt, began, deadline, deadlines.moved, task, Marks())
            for item in taken:
                item.held.running[item] = delivery
        self.running[delivery] = taken
        if deadline is not None and deadline < deadlines.next_look:
            deadlines.look_at(deadline)
        return delivery

    def _pace_of(self, subscription: Subscription) -> Pace | None:
        """Return the pace of a handler whose calls may share a task. Return None for other handlers."""
        try:
            return self._paces[subscription]
        except KeyError:
            may_share = subscription.is_async and subscription.batch_size is None and not has_lines(subscription)
            pace = self._paces[subscription] = Pace() if may_share else None
            return pace

    async def call_once(self, subscription: Subscription, message: MessageExt) -> BaseException | None:
        """Call a handler for a tool, without taking a slot, and settle nothing. Return its error, or None."""
        marks = None if subscription.batch_size is None else Marks()
        delivery = call_of(subscription, (message,), message.reconsume_times + 1, marks)
        delivery.lend(asyncio.current_task())
        token = CURRENT.set(delivery)
        hooks, error = self.hooks, None
        if hooks is not None:
            hooks.begin(delivery)
        try:
            error = await self._call(delivery)
            return error
        finally:
            delivery.settle()
            delivery.finish()
            if hooks is not None:
                hooks.end(delivery, error, None if error is None else error.__traceback__)
            delivery.leave_task(finished=True)
            CURRENT.reset(token)

    def is_own_task(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` runs a call. Return False for a task of ``call_once``."""
        return any(delivery.task is task for delivery in self.running)

    def name_of(self, task: asyncio.Task[Any]) -> str | None:
        """Return the name of the handler that runs in ``task``. Return None if there is none, and in ``call_once``.

        May be called from any thread.
        """
        for delivery in list(self.running):
            if delivery.task is task and delivery.state == "running":
                return f"handler {delivery.subscription.name}"
        return None

    async def cut_off(self, timeout: float) -> None:
        """Cancel all calls except the call of the current task, and wait until they have ended, up to ``timeout`` seconds.

        Plain functions continue in their threads, and the log names them.
        """
        self._closing = True
        current = asyncio.current_task()
        calls = [*self.running, *self._reporting]
        left = [delivery for delivery in calls if delivery.task is None or delivery.task is not current]
        names = Counter(each.subscription.name for each in left if each.state == "running" and not each.subscription.is_async)
        for name, count in names.items():
            logger.warning(
                "%d calls of handler %s continue in threads after the stop; the process cannot exit before they return; add a "
                "timeout to their blocking calls",
                count,
                name,
            )
        for delivery in left:
            delivery.cut_off()
        tasks = [delivery.task for delivery in left if delivery.task is not None]
        await asyncio.sleep(0)  # after this, calls that had not made their first step have ended
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def close(self) -> None:
        """Cancel the timer and end the threads of handlers. Running functions continue until they return."""
        self._deadlines.close()
        self.threads.close()

    async def _make_calls(self, delivery: Call, item: Waiting, pace: Pace, *, holds: bool) -> None:
        """Make up to ``pace.length`` calls of one subscription. The series ends with the first call that waits, fails or is
        cancelled.

        Args:
            holds: Whether the dispatcher starts no other call of the subscription until this task releases it.
        """
        subscription = delivery.subscription
        row = Row(pace.length)
        self._make_first_steps(row, delivery, item)
        self._settling.done_all(row.settled, row.done, row.ends)
        if holds:
            self.dispatcher.let_go(subscription)
        if row.under_way is None:
            if len(row.done) == row.most:
                pace.none_waited()
            self.dispatcher.ended(subscription, ())
            return
        if row.has_waited:
            pace.one_waited()
        if holds:
            self.dispatcher.pump()
        call = self._run(*row.under_way, row.rest)
        del row
        await call

    def _make_first_steps(self, row: Row, delivery: Call, item: Waiting) -> None:
        """Make calls until one waits, fails or is cancelled. Begin no further call after LONGEST_RUN seconds."""
        handler, subscription = delivery.subscription.handler, delivery.subscription
        settled, done, ends = row.settled, row.done, row.ends
        task, clock, copy, next_of = asyncio.current_task(), machine.monotonic, self._context.copy, self.dispatcher.next_of
        until, running = clock() + LONGEST_RUN, self.running
        assert task is not None
        delivery.run_in(task)
        while not (delivery.cut or delivery.timed_out):
            context = copy()
            try:
                started = context.run(first_step, handler, delivery)
            except BaseException as error:  # noqa: BLE001 - treated like an error of a later step
                return row.stop(delivery, item, failed(error))
            if started is not None:
                row.has_waited = True
                return row.stop(delivery, item, drive(context, started))
            if task.cancelling():
                return row.stop(delivery, item, returned())
            now = clock()
            ends.append(now)
            del running[delivery]
            settled.append(item)
            done.append(delivery)
            following = next_of(subscription) if len(done) < row.most and now < until else None
            if following is None:
                return None
            item = following
            delivery = self._begun(subscription, (item,), now, task)
        return row.stop(delivery, item, cut_short(delivery))

    async def _run(
        self,
        delivery: Call,
        taken: tuple[Waiting, ...],
        begun: Awaitable[object] | None = None,
    ) -> None:
        """Run a call to its outcome.

        Args:
            begun: An awaitable that replaces the handler call, for example for a coroutine that has already made its first step.
        """
        delivery.run_in(asyncio.current_task())
        CURRENT.set(delivery)
        if begun is None and (delivery.cut or delivery.timed_out):
            begun = cut_short(delivery)
        hooks = self.hooks
        error: BaseException | None = None
        frames: TracebackType | None = None
        reported: asyncio.Future[None] | None = None
        if hooks is not None:
            hooks.begin(delivery)
        try:
            error = taken[0].error or await self._call(delivery, begun)
            if error is not None:
                frames = error.__traceback__
            if delivery.task.cancelling():  # type: ignore[union-attr]
                await self._go_on(delivery)
            marks = delivery.marks
            is_done = error is None and (marks is None or not marks.by_place)
            delivery.settle(Outcome.DONE if is_done else None)
            if marks is not None:
                marks.refused = MARKED_LATE
            if is_done:
                self._settling.done(delivery, taken)
            else:
                reported = self._settle(delivery, taken, error)
        except asyncio.CancelledError:
            self._leave(delivery)
        finally:
            self._ended(delivery, taken, holds_lines=reported is not None)
            if hooks is not None:
                if reported is None:
                    delivery.finish()
                await self._until_reported(delivery, reported)
                hooks.end(delivery, error, frames)
            if error is not None:
                drop_frames(error)  # ``wait_settled`` keeps the error and its causes
            delivery.leave_task(finished=reported is None)
            del error, frames, reported

    def _ended(self, delivery: Call, taken: tuple[Waiting, ...], *, holds_lines: bool) -> None:
        """End a call whose handler has ended, and free its slot.

        Args:
            holds_lines: Whether messages of the same keys or queues must wait, because messages of the call have no outcome yet.
        """
        self.running.pop(delivery, None)
        if not delivery.subscription.is_async:
            self.threads.ended(delivery)
        self.dispatcher.ended(delivery.subscription, taken, holds_lines=holds_lines)

    def _leave(self, delivery: Call) -> None:
        """End a cancelled call without outcomes: its messages are handled again or abandoned."""
        if delivery.state == "running":
            delivery.measure()
        self._settling.leave(delivery, self.running[delivery], closing=self._closing or self.ending())

    def _settle(self, delivery: Call, taken: tuple[Waiting, ...], error: BaseException | None) -> asyncio.Future[None] | None:
        """Decide about the messages of a call that has ended, and begin to give back the messages that are not done.

        Returns:
            A future that resolves when all messages have their outcomes. None if they already have them.
        """
        reported: asyncio.Future[None] = self._loop.create_future()
        ended = False

        def over(_: bool) -> None:
            delivery.finish()
            reported.set_result(None)
            if ended:
                self.dispatcher.release(delivery.subscription, taken)

        decided = self._settling.decide(delivery, taken, error)
        if self._settling.carry_out(delivery, decided, over):
            return None
        ended = True
        return reported

    async def _until_reported(self, delivery: Call, reported: asyncio.Future[None] | None) -> None:
        """Wait until the messages of a call have their outcomes, or the consumer ends.

        Args:
            reported: The future that ``_settle`` returned; None if the messages already have their outcomes.
        """
        if reported is None:
            return
        self._reporting[delivery] = None
        try:
            while not reported.done():
                try:
                    await asyncio.wait([reported])
                except asyncio.CancelledError:
                    await self._go_on(delivery)
        except asyncio.CancelledError:
            logger.debug("a call ended before all its messages had their outcomes")
        finally:
            del self._reporting[delivery]

    async def _go_on(self, delivery: Call) -> None:
        """Undo the cancellation of a call by the user's code.

        Raises:
            CancelledError: If the consumer cancelled the call, or the event loop is ending.
        """
        task = delivery.task
        assert task is not None
        # A cancelled call has no outcome: its message would stay unsettled until the queue is given up.
        if not delivery.cut and not self.ending():
            while task.uncancel():
                pass
            with suppress(asyncio.CancelledError):  # the handler cancelled its task and did not await afterwards
                await asyncio.sleep(0)
        if delivery.cut or self.ending():
            raise asyncio.CancelledError

    async def _call(self, delivery: Call, begun: Awaitable[object] | None = None) -> BaseException | None:
        """Call the handler. Return None for a success, or else the error of the handler or a HandlerTimeoutError.

        Raises:
            CancelledError: If the consumer cancels the call or the event loop is ending.
            SystemExit, KeyboardInterrupt: If the handler raises them.
        """
        subscription, marks = delivery.subscription, delivery.marks
        given = delivery.messages[0] if marks is None else Batch(delivery.messages, marks)
        task = delivery.task
        assert task is not None
        try:
            if begun is not None:
                result = await begun
            elif subscription.is_async:
                result = await subscription.handler(given)  # type: ignore[misc, arg-type]
            else:
                result = await self._call_in_thread(delivery, given)
                if inspect.isawaitable(result):
                    result = await result
            if result is not None:
                check_returned(subscription.handler, result)
        except asyncio.CancelledError as cancelled:
            if delivery.timed_out:
                task.uncancel()
            if task.cancelling():
                await self._go_on(delivery)
            return _timeout(delivery) if delivery.timed_out else cancelled
        except (
            SystemExit,
            KeyboardInterrupt,
        ):  # the loop is ending: no stop waits for the call, and no handler is called again
            self._settling.leave(delivery, self.running.get(delivery, ()), closing=True)
            raise
        except BaseException as error:  # noqa: BLE001 - the error decides the outcome of the message
            return outcome_in(error, subscription.dead_letter_on)
        if delivery.timed_out:
            task.uncancel()
            if not subscription.is_async:  # a thread cannot be cancelled
                return _timeout(delivery)
        return None

    async def _call_in_thread(self, delivery: Call, given: MessageExt | Batch) -> object:
        """Call a plain function, and wait until it returns, the consumer cancels the call, or the event loop ends."""
        handler = delivery.subscription.handler
        future: asyncio.Future[object]
        thread = self.threads.of(delivery)
        future = self._loop.run_in_executor(thread, copy_context().run, _call_plain, handler, given)  # type: ignore[arg-type]
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                try:
                    await self._go_on(delivery)
                except asyncio.CancelledError:
                    future.cancel()
                    raise
        return future.result()

    def _expire(self, delivery: Call) -> None:
        delivery.expire()
        if delivery.subscription.is_async:
            if delivery.task is not None:
                delivery.task.cancel("the handler timed out")
            return
        logger.warning(
            "handler %s has run for longer than its timeout of %.3g s on message %s; a thread cannot be cancelled, so the call "
            "counts as failed when it ends; set a longer timeout, or let the function return sooner",
            delivery.subscription.name,
            _time_allowed(delivery),
            delivery.messages[0].msg_id,
        )


def _never() -> bool:
    """Return False. It is the default of ``ending``."""
    return False


def _call_plain(handler: Handler, given: MessageExt | Batch) -> object:
    """Call a plain function in its thread.

    StopIteration and GeneratorExit become a RuntimeError, because futures and coroutines treat them specially.
    """
    try:
        return handler(given)  # type: ignore[arg-type]
    except (StopIteration, GeneratorExit) as error:
        raised = f"handler {handler_name(handler)} raised {type(error).__name__}"
        raise RuntimeError(f"{raised}, which cannot leave its thread; raise another exception") from error


def _timeout(delivery: Call) -> HandlerTimeoutError:
    return HandlerTimeoutError(
        f"handler {delivery.subscription.name} did not end within {_time_allowed(delivery):.6g} s; set a longer timeout for its "
        "subscription, or call current_delivery().extend()"
    )


def _time_allowed(delivery: Call) -> float:
    """Return the seconds from the beginning of a call to its deadline, including extensions. Return 0 if it has no deadline."""
    return 0.0 if delivery.deadline is None else delivery.deadline - delivery.began
