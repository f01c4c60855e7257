"""A member of a consumer group: it shares the queues of topics with the other members, keeps offsets, and retries what fails."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime
from typing import Any, Final, Literal, TypeVar, Unpack

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt, MessageQueue

from .. import machine
from .._text import printable
from ..client import (
    ClientInstance,
    LifeCycle,
    LifeState,
    Names,
    check_queue,
    committed_offset,
    known_queue,
    max_offset,
)
from ..config import ClientConfig, check_group
from ..errors import ClientStateError, ConfigError, QueueLostError
from ..health import Problem, ProblemCode
from ..options import lists_options
from ..timeouts import checked_timeout
from ..transport import generation
from .assignment import Assignment
from .config import ConsumerConfig, ConsumerOptions, Retry, split_options
from .group import offset_at
from .held_queue import HeldQueue
from .session import Session
from .settled import Settled
from .subscription import Handler, Subscription
from .watching import ConsumerHealth, ConsumerStats, Lag, health_of, lag_of, stats_of

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

MOST_SUBSCRIPTIONS: Final = 1000
_NOT_RUNNING: Final[dict[LifeState, ProblemCode]] = {
    LifeState.NEW: "not_started",
    LifeState.STARTING: "starting",
    LifeState.STOPPING: "stopping",
    LifeState.STOPPED: "stopped",
}


@lists_options(ConsumerConfig, ClientConfig)
class Consumer(LifeCycle):
    """A member of the group ``group``. Its members share the queues of the topics that they subscribe to.

        consumer = Consumer("billing", namesrv="127.0.0.1:9876")

        @consumer.handler("OrderTopic", tags="paid")
        async def bill(message: MessageExt) -> None:
            ...

        rmq_async.run(consumer.run())

    A handler that returns is done with its message; one that raises gets it again, after a delay. RetryLater and DeadLetter, raised
    by a handler, say more. Handlers of one consumer run at the same time, messages of one queue in no order.

    All members of a group must subscribe to the same topics with the same tags or conditions. ``topics``: for reading without
    handlers, which is not supported yet. ``options``: any field of ConsumerConfig or ClientConfig.

    Raises InvalidGroupError for a bad group name, ConfigError for a value that cannot work, TypeError for an unknown option.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        client: ClientConfig | None = None,
        config: ConsumerConfig | None = None,
        topics: str | Sequence[str] | Mapping[str, str] = (),
        **options: Unpack[ConsumerOptions],
    ) -> None:
        check_group(group)
        self.group = str.__str__(group)
        client_config, self.config = split_options(type(self).__name__, namesrv, client, config, options)
        if topics:
            raise ConfigError(f"topics={shown(topics)} is not supported yet; subscribe with a handler")
        super().__init__(client_config, label=f"consumer {self.group}", stop_timeout=self.config.stop_timeout)
        self._names = Names(client_config.namespace)
        self._wire_group = self._names.wire(self.group)
        check_group(self._wire_group)
        self._subscriptions: dict[str, Subscription] = {}
        self._session: Session | None = None
        self._last_stats = ConsumerStats()
        self._stopping: asyncio.Task[None] | None = None
        """A stop that a handler has asked for."""
        self._over: asyncio.Event | None = None
        """Set by ``stop``, for ``run``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self._state.value}>"

    # -- subscriptions

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return tuple(self._subscriptions.values())

    def subscribe(
        self,
        topic: str,
        handler: Handler,
        *,
        tags: str = "*",
        sql: str | None = None,
        order: Literal["key", "queue"] | None = None,
        key: Callable[[MessageExt], Hashable] | None = None,
        batch_size: int | None = None,
        batch_wait: float = 0.0,
        concurrency: int | None = None,
        timeout: float | None = 900.0,
        retry: Retry | None = None,
        dead_letter_on: tuple[type[Exception], ...] = (),
        rate: float | None = None,
    ) -> Subscription:
        """Subscribes ``handler`` to a topic; allowed before ``start()``.

        ``handler``: a coroutine function, which runs as a task, or a plain function, which runs in a thread. ``tags``: "*" or
        "a || b". ``sql``: an SQL92 condition over the messages' properties, by which brokers with ``enablePropertyFilter=true``
        filter, such as "a > 5 AND region = 'eu'"; ``start()`` asks them. ``concurrency``: calls of this handler at a time, inside
        the consumer's. ``timeout``: seconds for one call, after which it is cancelled and the message delivered again; a thread
        cannot be cancelled. ``retry``: None for the consumer's. ``dead_letter_on``: exceptions after which the message is
        dead-lettered at once. ``batch_size``: the handler takes a Batch of up to so many messages, of any queues of the topic.
        ``batch_wait``: seconds for which a message waits until its batch is full; 0 for what is there. The other options are not
        supported yet.

        Raises ClientStateError when the consumer is started, ConfigError for a bad value and for a second subscription of a topic.
        """
        if self._state not in (LifeState.NEW, LifeState.STOPPED):
            raise ClientStateError(f"{self._label} is {self._state.value}: subscribe before start()")
        if isinstance(batch_size, int) and batch_size > self.config.buffered_limit:
            raise ConfigError(
                f"batch_size={batch_size} is above buffered_limit={self.config.buffered_limit}, which is pulled ahead"
            )
        later = {"order": order, "key": key, "rate": rate}
        subscription = Subscription(
            topic,
            handler,
            tags=tags,
            sql=sql,
            concurrency=concurrency,
            timeout=timeout,
            retry=retry,
            dead_letter_on=dead_letter_on,
            batch_size=batch_size,
            batch_wait=batch_wait,
            later=later,
        )
        wire = self._names.wire(subscription.topic)
        if wire in self._subscriptions:
            raise ConfigError(f"topic {topic} is subscribed to already, by handler {self._subscriptions[wire].name}")
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise ConfigError(f"a consumer has at most {MOST_SUBSCRIPTIONS} subscriptions")
        self._subscriptions[wire] = subscription
        return subscription

    def handler(self, topic: str, **options: Any) -> Callable[[F], F]:
        """Returns a decorator that subscribes a function to ``topic``, and returns the function unchanged.

        ``options``: those of ``subscribe``. Decorators may be stacked to subscribe one function to several topics.
        """

        def decorate(function: F) -> F:
            self.subscribe(topic, function, **options)
            return function

        return decorate

    # -- life cycle

    async def start(self) -> None:
        """Joins the group and waits until the first share of the queues is known, and read as far as other members permit (3 s).

        A group without committed offsets for a topic starts where ``start_from`` says; the position is stored at the brokers before
        this returns, so that what is sent afterwards is delivered.

        Raises ConfigError without a subscription, when the group is in use by this client already, and for an ``sql`` condition
        that a broker cannot read or does not filter by, with the broker's code (23, 1); NameServerError;
        SubscriptionGroupNotExistError when the brokers do not have the group and may not create it; and what the requests for
        offsets raise. Nothing is left behind then.
        """
        if not self._subscriptions:
            raise ConfigError(f"{self._label} has no subscription: subscribe() a handler first")
        await super().start()

    async def stop(self, timeout: float | None = None) -> None:
        """Leaves the group, waits for running handlers, commits, and releases the queues.

        ``timeout``: seconds, default ``stop_timeout``; running handlers get at most ``handover_timeout`` of it, and are cancelled
        1 s before its end. The last commits and unlocks have 1 s also where ``timeout`` is less. A plain function cannot be
        cancelled: its thread runs on, and keeps the process from exiting until it returns. Called by a handler or a callback it
        begins the stop and returns at once. Harmless when not started or stopped already.
        """
        session = self._session
        if self._over is not None:
            self._over.set()
        if session is not None and session.is_own_task(asyncio.current_task()):
            if self._stopping is None:
                self._stopping = asyncio.get_running_loop().create_task(self.stop(timeout), name=f"rmq_async stop {self.group}")
            return
        await super().stop(timeout)

    async def run(self, *, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Starts, runs until a signal comes or ``stop()`` is called, and stops. A second signal ends the running handlers at once.

        Outside of the main thread no signal is handled. Raises what ``start()`` raises.
        """
        loop = asyncio.get_running_loop()
        self._over = over = asyncio.Event()
        aborted = asyncio.Event()

        def received() -> None:
            (aborted if over.is_set() else over).set()

        handled = [each for each in signals if _handles(loop, each, received)]
        try:
            await self.start()
            await over.wait()
            stop = loop.create_task(self.stop(), name=f"rmq_async stop {self.group}")
            abort = loop.create_task(aborted.wait(), name=f"rmq_async abort {self.group}")
            try:
                await asyncio.wait([stop, abort], return_when=asyncio.FIRST_COMPLETED)
                if not stop.done() and self._session is not None:
                    logger.warning("%s: a second signal ends the running handlers", self._label)
                    self._session.assignment.abort()
                await stop
            finally:
                abort.cancel()
                with suppress(asyncio.CancelledError):
                    await abort
        finally:
            for each in handled:
                loop.remove_signal_handler(each)
            self._over = None
            await self.stop()

    async def _open(self, instance: ClientInstance) -> None:
        session = Session(instance, self._wire_group, dict(self._subscriptions), self.config, copy_context())
        self._session = session  # handlers may run, and stop the consumer, before the start has ended
        try:
            await session.open(self._starting)
        except BaseException:
            self._session = self._stopping = None
            raise

    async def _close(self, instance: ClientInstance, deadline: float) -> None:
        session = self._session
        assert session is not None
        try:
            await session.close(deadline)
        finally:
            self._last_stats = stats_of(session)
            self._session = None
            self._stopping = None

    # -- watching

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member reads now."""
        session = self._session
        return frozenset() if session is None else frozenset(each.shown for each in [*session.assignment.held.values()])

    def lag(self) -> Lag:
        """Returns the messages of this member's share that are not settled; from any thread, without a request."""
        session = self._session
        return Lag(0, 0, None, {}) if session is None else lag_of(session)

    def stats(self) -> ConsumerStats:
        """Returns numbers since ``start()``, after a stop those at its end; from any thread, without a request."""
        session = self._session
        return self._last_stats if session is None else stats_of(session)

    def health(self) -> ConsumerHealth:
        """Returns the consumer's condition; from any thread, without a request. It never raises."""
        state, session = self._state, self._session
        if state in (LifeState.RUNNING, LifeState.STOPPING) and self._generation != generation():
            text = f"{self._label} was started before os.fork(); create and start a new one in the child process"
            return ConsumerHealth(False, False, (Problem("forked", text),), None, None)
        if session is None or state is not LifeState.RUNNING:
            problem = Problem(_NOT_RUNNING.get(state, "starting"), f"{self._label} is {state.value}")
            return ConsumerHealth(True, False, (problem,), None, None)
        return health_of(session)

    # -- control

    def pause(self, *topics_or_queues: str | MessageQueue) -> None:
        """Begins no more calls for topics or queues, and pulls them no more; nothing given: for all. They stay this member's.

        Calls that run go on. What was pulled and has not begun is dropped, and pulled again after ``resume()``. A topic stays
        paused for queues that this member takes later, and for its messages that are delivered again; a queue until it goes to
        another member. A stop ends all pauses.

        Raises ConfigError for a topic that is not subscribed to, QueueLostError for a queue that this member does not read,
        ClientStateError unless running.
        """
        assignment, topics, queues = self._to_control(topics_or_queues)
        assignment.pauses.pause(topics, queues)
        assignment.pauses.all |= not topics_or_queues
        assignment.apply_pauses()

    def resume(self, *topics_or_queues: str | MessageQueue) -> None:
        """Ends pauses: of topics with all their queues, of queues, or, with nothing given, all.

        Raises as ``pause`` does, and ClientStateError for a part of what was paused as a whole.
        """
        assignment, topics, queues = self._to_control(topics_or_queues)
        pauses = assignment.pauses
        if not topics_or_queues:
            pauses.all, topics, queues = False, [*pauses.topics], [*assignment.held.values()]
        elif pauses.all:
            raise ClientStateError(f"{self._label} is paused as a whole: resume() it without arguments")
        for held in queues:
            if topics_or_queues and held.queue.topic in pauses.topics:
                raise ClientStateError(f"topic {held.shown.topic} is paused as a whole: resume the topic")
        queues += [held for held in assignment.held.values() if held.queue.topic in topics]
        pauses.resume(topics, queues)
        assignment.apply_pauses()

    async def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | datetime) -> None:
        """Goes on at another offset of a queue: waits for its running calls (at most 10 s), drops its buffer, and commits.

        ``to``: an offset, the first or the end of the queue, or the first message stored at an aware datetime or later. Messages
        between are delivered again, or not at all. A commit that is not answered is repeated each ``commit_interval``.

        Raises QueueLostError for a queue that this member does not read, also where it goes to another one meanwhile; ConfigError
        for an offset outside of the queue; ClientStateError unless running, and in a handler, which it would wait for; and the
        errors of the requests for offsets.
        """
        held, session = self._held(queue), self._running_session()
        if session.calls.is_own_task(asyncio.current_task()):
            raise ClientStateError("seek() waits for running handlers: call it from another task")
        offset = await offset_at(session.instance, held.queue, to)
        await session.assignment.reset(held, offset, "seek() was called")
        if not held.is_owned:
            raise QueueLostError(f"{queue} has gone to another member", broker=queue.broker_name)

    def _to_control(self, given: Sequence[str | MessageQueue]) -> tuple[Assignment, list[str], list[HeldQueue]]:
        """Sorts the arguments of ``pause`` and ``resume`` into topics on the wire and queues."""
        assignment = self._running_session().assignment
        topics = [self._names.wire(each) for each in given if isinstance(each, str)]
        for topic in topics:
            if topic not in self._subscriptions:
                raise ConfigError(f"{self._label} has no subscription of topic {printable(topic)}")
        return assignment, topics, [self._held(each) for each in given if not isinstance(each, str)]

    # -- positions

    def position(self, queue: MessageQueue) -> int:
        """Returns the lowest offset of a queue that is not settled: what the next commit writes.

        Raises QueueLostError for a queue that this member neither reads nor gives up at the moment, ClientStateError unless
        running.
        """
        wire = self._names.wire_queue(check_queue(queue))
        leaving = (each for each in self._running_session().assignment.leaving if each.queue == wire and each.is_owned)
        return (next(leaving, None) or self._held(queue)).progress.watermark

    async def committed(self, queue: MessageQueue) -> int | None:
        """Returns the offset that the broker keeps for the group; None without one. Raises as ``PullConsumer.committed`` does."""
        instance = self._running_session().instance
        return await committed_offset(instance, self._wire_group, await known_queue(instance, queue))

    async def commit(self) -> None:
        """Commits the queues whose position has moved; returns when the brokers have answered.

        Raises the error of the first request that failed; the others are made all the same. ClientStateError unless running.
        """
        session = self._running_session()
        await session.commits.now()

    def _held(self, queue: MessageQueue) -> HeldQueue:
        session = self._running_session()
        held = session.assignment.held.get(self._names.wire_queue(check_queue(queue)))
        if held is None:
            raise QueueLostError(f"{self._label} does not read {queue} now", broker=queue.broker_name)
        return held

    # -- tests

    async def wait_settled(self, n: int, *, timeout: float = 5.0) -> tuple[Settled, ...]:
        """Returns the next ``n`` handler calls that have ended since ``start()`` or since an earlier call returned. For tests: at
        most the newest 1,000 calls, with 1 MiB of bodies, are kept.

        Raises TimeoutError, ClientStateError unless running.
        """
        return await self._running_session().settled.wait(n, checked_timeout(timeout))

    async def wait_idle(self, *, timeout: float = 5.0) -> None:
        """Waits until all that this member's queues hold at this moment is settled. For tests; messages that wait for their next
        attempt at a broker are not waited for.

        Raises TimeoutError, ClientStateError unless running.
        """
        session = self._running_session()
        deadline = machine.monotonic() + checked_timeout(timeout)
        async with asyncio.timeout(timeout):
            ends = {each.queue: await max_offset(session.instance, each.queue) for each in [*session.assignment.held.values()]}
            for each in [*session.assignment.held.values()]:
                if each.cursor < ends.get(each.queue, 0):
                    await session.assignment.pull_again(each)
            while True:
                held = session.assignment.held
                left = [end for queue, end in ends.items() if queue in held and held[queue].progress.watermark < end]
                if not left and not session.dispatcher.running and session.is_assigned:
                    return
                await asyncio.sleep(min(0.01, max(deadline - machine.monotonic(), 0.001)))

    def _running_session(self) -> Session:
        """Returns the session. Raises ClientStateError before a start and after a stop; during one, callbacks and handlers run."""
        session = self._session
        if session is None or self._state not in (LifeState.STARTING, LifeState.STOPPING):
            self._running_instance()
            assert session is not None
        session.instance.check_usable()
        return session


def _handles(loop: asyncio.AbstractEventLoop, number: signal.Signals, function: Callable[[], object]) -> bool:
    """Returns whether the loop calls ``function`` for a signal: not outside of the main thread, nor on Windows."""
    try:
        loop.add_signal_handler(number, function)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        logger.debug("%s is not handled: %s", number.name, error)
        return False
    return True
