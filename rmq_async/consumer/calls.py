"""Handler calls: a task for each, a deadline, a thread for a plain function, and the outcome of the message.

A call occupies its slot until the outcome is with the broker, so that a broker that takes nothing back slows the consumer down
instead of filling its memory.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final, Protocol

from rmq_protocol.message import MessageExt

from .. import machine
from .._text import printable
from ..errors import HandlerTimeoutError
from .config import Retry
from .deadlines import CallDeadlines
from .decision import Decision, decide
from .delivery import CURRENT, Delivery, cut_off
from .held_queue import HeldQueue
from .outcome import DeadLetter, Outcome, RetryLater
from .subscription import Handler, Subscription

__all__ = ["HandlerCalls", "Settle"]

logger = logging.getLogger(__name__)

TRACEBACK_EVERY: Final = 10.0
"""Seconds between two tracebacks of one handler in the log."""


class Settle(Protocol):
    """Carries a decision out; returns what came of it."""

    def __call__(self, held: HeldQueue, delivery: Delivery, decision: Decision, /) -> Coroutine[Any, Any, Outcome]: ...


class HandlerCalls:
    """``retry``: of subscriptions without their own. ``settle``: gives messages back. ``ended``: called at the end of each call.

    ``context``: that handlers run in a copy of.
    """

    def __init__(
        self,
        retry: Retry,
        concurrency: int,
        settle: Settle,
        ended: Callable[[HeldQueue, Delivery, BaseException | None], None],
        context: Context,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._retry = retry
        self.concurrency = concurrency
        self._settle = settle
        self._ended = ended
        self._context = context
        self._deadlines = CallDeadlines(self._expire)
        self._threads: ThreadPoolExecutor | None = None
        self.ending: Callable[[], bool] = _never
        """Whether the event loop ends, which cancels all tasks."""
        self._reported: dict[Subscription, float] = {}
        """When the last traceback of each subscription's handler was logged."""
        self.running: dict[Delivery, HeldQueue] = {}
        self.failed = 0
        """Calls that raised."""

    def begin(self, held: HeldQueue, subscription: Subscription, message: MessageExt) -> None:
        """Starts the task of one call."""
        delivery = Delivery(subscription, message)
        held.running[delivery] = message.queue_offset
        self.running[delivery] = held
        self._deadlines.add(delivery)
        name = f"rmq_async {subscription.topic} {message.msg_id}"
        delivery.task = self._loop.create_task(self._run(held, delivery), name=name, context=self._context.copy())

    async def call_once(self, subscription: Subscription, message: MessageExt) -> BaseException | None:
        """Calls a handler outside of the slots; returns its error, None where it returned. Its outcome changes nothing."""
        delivery = Delivery(subscription, message)
        delivery.cut = True  # the task is not the call's own, and cancelled by others
        delivery.task = asyncio.current_task()
        token = CURRENT.set(delivery)
        try:
            return await self._call(delivery)
        finally:
            delivery.state = "finished"
            delivery.task = None
            CURRENT.reset(token)

    def is_own_task(self, task: asyncio.Task[Any] | None) -> bool:
        """Returns whether ``task`` is that of a call."""
        return any(delivery.task is task for delivery in self.running)

    async def cut_off(self, timeout: float) -> None:
        """Cancels all calls, and waits until they have ended, up to ``timeout`` seconds; threads run on, and are named."""
        current = asyncio.current_task()
        left = {delivery: delivery.task for delivery in self.running if delivery.task is not current}
        names = Counter(each.subscription.name for each in left if each.state == "running" and not each.subscription.is_async)
        for name, count in names.items():
            logger.warning(
                "%d calls of handler %s run on in threads after the stop; the process cannot exit before they return",
                count,
                name,
            )
        for delivery in left:
            cut_off(delivery)
        tasks = [task for task in left.values() if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    def close(self) -> None:
        """Called when no call runs, or none is waited for any more."""
        self._deadlines.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _run(self, held: HeldQueue, delivery: Delivery) -> None:
        CURRENT.set(delivery)
        error: BaseException | None = None
        try:
            error = await self._call(delivery)
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                await self._go_on(delivery)
            delivery.state = "settling"
            self._deadlines.remove()
            decision = self._decide(error, delivery)
            delivery.outcome = await self._carry_out(held, delivery, decision)
        except asyncio.CancelledError:
            if delivery.state == "running":
                self._deadlines.remove()
            delivery.outcome = Outcome.ABANDONED
        finally:
            delivery.state = "finished"
            self.running.pop(delivery, None)
            held.running.pop(delivery, None)
            self._ended(held, delivery, error)
            delivery.task = None
            del error

    async def _carry_out(self, held: HeldQueue, delivery: Delivery, decision: Decision) -> Outcome:
        while True:
            try:
                return await self._settle(held, delivery, decision)
            except asyncio.CancelledError:
                await self._go_on(delivery)

    async def _go_on(self, delivery: Delivery) -> None:
        """Takes the cancellation of a call back that came from the user's code, else its message would stay unsettled until the
        queue is given up. Raises CancelledError for one of the consumer, and where the event loop ends."""
        task = delivery.task
        assert task is not None
        if not delivery.cut and not self.ending():
            while task.uncancel():
                pass
            with suppress(asyncio.CancelledError):  # of a handler that did not await after it had cancelled its task
                await asyncio.sleep(0)
        if delivery.cut or self.ending():
            raise asyncio.CancelledError

    async def _call(self, delivery: Delivery) -> BaseException | None:
        """Returns the error of the handler, None where it returned. Raises CancelledError where the call is cancelled."""
        subscription, message = delivery.subscription, delivery.messages[0]
        task = delivery.task
        assert task is not None
        try:
            if subscription.is_async:
                await subscription.handler(message)  # type: ignore[misc]
            else:
                result = await self._call_in_thread(delivery)
                if inspect.isawaitable(result):
                    await result
        except asyncio.CancelledError as cancelled:
            if delivery.timed_out:
                task.uncancel()
            if task.cancelling():
                await self._go_on(delivery)
            return _timeout(delivery) if delivery.timed_out else cancelled
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the outcome of the message
            return error
        if delivery.timed_out:
            task.uncancel()
            if not subscription.is_async:  # a thread cannot be cancelled
                return _timeout(delivery)
        return None

    async def _call_in_thread(self, delivery: Delivery) -> object:
        """Calls a plain function. Its message is not given back before it returns, so only the consumer ends the wait for it."""
        handler, message = delivery.subscription.handler, delivery.messages[0]
        future = self._loop.run_in_executor(self._executor(), copy_context().run, _call_plain, handler, message)
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

    def _executor(self) -> Executor:
        if machine.executor is not None:
            return machine.executor
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="rmq_async handler")
        return self._threads

    def _expire(self, delivery: Delivery) -> None:
        delivery.timed_out = True
        if delivery.subscription.is_async:
            if delivery.task is not None:
                delivery.task.cancel("the handler timed out")
            return
        logger.warning(
            "handler %s runs longer than its timeout of %.3g s for message %s; a thread cannot be cancelled, the message is "
            "delivered again when it ends",
            delivery.subscription.name,
            _time_allowed(delivery),
            delivery.messages[0].msg_id,
        )

    def _decide(self, error: BaseException | None, delivery: Delivery) -> Decision:
        subscription = delivery.subscription
        retry = subscription.retry if subscription.retry is not None else self._retry
        try:
            decision = decide(error, subscription, retry, delivery.attempt)
        except Exception:
            logger.exception("the delays of subscription %s failed; the broker's delay is used", subscription.topic)
            decision = Decision(Outcome.RETRIED, max_times=retry.limit)
        if error is not None:
            self.failed += 1
            self._log(error, delivery, decision)
        return decision

    def _log(self, error: BaseException, delivery: Delivery, decision: Decision) -> None:
        subscription, message = delivery.subscription, delivery.messages[0]
        where = f"message {message.msg_id} of {subscription.topic} ({message.queue}, offset {message.queue_offset})"
        if decision.cut:
            logger.warning("%s: its delay is longer than 2 h, the longest one; it is delivered again after 2 h", where)
        if decision.outcome is Outcome.DEAD_LETTERED:
            reason = decision.reason or _error_text(error)
            logger.error("dead-lettered: %s, attempt %d, by handler %s: %s", where, delivery.attempt, subscription.name, reason)
            return
        quiet = isinstance(error, RetryLater | DeadLetter)
        now = machine.monotonic()
        with_traceback = not quiet and now - self._reported.get(subscription, -TRACEBACK_EVERY) >= TRACEBACK_EVERY
        if with_traceback:
            self._reported[subscription] = now
        logger.warning(
            "attempt %d failed, the message is delivered again: %s, handler %s: %s",
            delivery.attempt,
            where,
            subscription.name,
            _error_text(error),
            exc_info=error if with_traceback else None,
        )


def _never() -> bool:
    """The event loop does not end."""
    return False


def _call_plain(handler: Handler, message: MessageExt) -> object:
    """Calls a plain function in its thread. What no future takes becomes a RuntimeError, as a StopIteration does in coroutines."""
    try:
        return handler(message)
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error


def _error_text(error: BaseException) -> str:
    try:
        return printable(repr(error), 500)
    except Exception:  # noqa: BLE001 - a method of the user
        return f"{type(error).__name__}, whose repr() fails"


def _timeout(delivery: Delivery) -> HandlerTimeoutError:
    return HandlerTimeoutError(f"handler {delivery.subscription.name} did not end within {_time_allowed(delivery):.6g} s")


def _time_allowed(delivery: Delivery) -> float:
    """Returns the seconds from the beginning of a call to its deadline, which may have moved."""
    return 0.0 if delivery.deadline is None else delivery.deadline - delivery.began
