"""The group consumer: subscriptions, start and stop, control, reading by hand, and reports."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime
from math import inf
from types import TracebackType
from typing import Any, Final, Literal, TypeVar, Unpack

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt, MessageQueue

from .. import machine
from ..client import ClientInstance, LifeCycle, LifeState, Names, check_queue, known_queue
from ..config import ClientConfig, check_group, check_int, check_seconds
from ..errors import ClientStateError, ConfigError
from ..health import Problem, ProblemCode
from ..options import lists_options
from ..timeouts import checked_timeout, stop_budget
from ..transport import generation
from .by_hand import BatchIterator, ByHand, MessageIterator
from .config import ConsumerConfig, ConsumerOptions, Retry, split_options
from .group import Doubts
from .handling import Settled
from .outcome import Batch, DeadLetter, Marks, RetryLater
from .pop import PopSession
from .queues import PullSession
from .reports import ConsumerHealth, ConsumerStats, Lag
from .session import MemberSession
from .subscription import MAX_BATCH, Handler, Subscription, by_hand, set_retries_here

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

MOST_SUBSCRIPTIONS: Final = 1000
NOTHING: Final = "receive() returned an empty batch, which has no message to mark; test the batch first"


@lists_options(ConsumerConfig, ClientConfig)
class Consumer(LifeCycle):
    """A member of the group ``group``, whose members share the messages of the topics that they subscribe to (each of them
    handles all messages with ``broadcast``).

        consumer = Consumer("billing", namesrv="127.0.0.1:9876")

        @consumer.handler("OrderTopic", tags="paid")
        async def bill(message: MessageExt) -> None:
            ...

        rmq_async.run(consumer.run())

    A handler that returns is done with its message; if it raises, the message is delivered again, after a delay, or
    dead-lettered after the last attempt (``retry``). It raises RetryLater or DeadLetter to choose the outcome. Handlers of one
    consumer run at the same time, in no order even for messages of one queue, unless their subscription has ``order="key"`` or
    ``order="queue"``.

    All members of a group must subscribe to the same topics with the same tags or conditions.

    Methods that need a running consumer raise ClientStateError unless it runs, ForkedError in a forked child, and
    WrongLoopError on another event loop.

    Args:
        topics: A topic, topics, or a mapping of topics to tags, to be read by hand (``async for message in consumer``) instead
            of by handlers.
        namesrv: "host:port;host:port" or a sequence; default: the environment variable NAMESRV_ADDR.
        client: Settings that all clients have.
        config: Settings of the consumer.
        **options: Any field of ConsumerConfig or ClientConfig.

    Raises:
        InvalidGroupError: For an invalid group name.
        ConfigError: For an invalid value, for settings that exclude each other, and for ``topics`` with ``trace``,
            ``broadcast`` or ``mode="pop"``.
        TypeError: For an unknown option and for a config of another type.
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
        client_config, consumer_config = split_options(type(self).__name__, namesrv, client, config, options)
        check_group(group)
        self.group = str.__str__(group)
        self.config = consumer_config
        super().__init__(client_config, label=f"consumer {self.group}", stop_timeout=consumer_config.stop_timeout)
        self._names = Names(client_config.namespace)
        self._wire_group = self._names.wire(self.group)
        check_group(self._wire_group)
        self._subscriptions: dict[str, Subscription] = {}
        """The subscriptions by topic on the wire."""
        self._session: MemberSession | None = None
        for subscription in _subscriptions_of(topics):
            self._add(subscription)
        if self._subscriptions and self.config.trace:
            trace = shown(self.config.trace)
            raise ConfigError(
                f"trace={trace} records calls of handlers, and topics= are read by hand; leave out trace or topics="
            )
        if self._subscriptions and self.config.broadcast is not False:
            raise ConfigError("broadcast needs handlers, and topics= are read by hand; leave out broadcast or topics=")
        if self._subscriptions and self.config.mode == "pop":
            raise ConfigError("mode='pop' needs handlers, and topics= are read by hand; leave out mode or topics=")
        self._last_stats = ConsumerStats()
        self._doubts = Doubts()
        self._stopping: asyncio.Task[None] | None = None
        """A stop that a handler, a callback or the body of an iteration has begun."""
        self._over: asyncio.Event | None = None
        """The event for which ``run`` waits, and which ``stop`` sets; None outside of ``run``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self._state.value}>"

    # -- subscriptions

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The subscriptions, in the order in which they were made."""
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
        """Subscribe ``handler`` to a topic; allowed before ``start()`` and after a stop.

        Args:
            handler: A coroutine function, which runs as a task, or a plain function, which runs in a thread.
            tags: "*" or "a || b".
            sql: An SQL92 condition over the messages' properties instead, such as "a > 5 AND region = 'eu'". Brokers filter by
                it if they have ``enablePropertyFilter=true``; ``start()`` checks that.
            concurrency: Maximum number of calls of this handler at a time (1 to 65,536), within that of the consumer.
            timeout: Seconds for one call, after which it is cancelled and the message delivered again; None for no limit. A
                thread cannot be cancelled: its message is delivered again when it ends.
            retry: None for the consumer's.
            dead_letter_on: Exception classes, after which the message is dead-lettered at once.
            batch_size: The handler takes a Batch of up to ``batch_size`` messages (1 to 65,536, and to
                ``buffered_limit``), of any
                queues of the topic, or of one queue with ``order="queue"``; None: it takes one message. With ``order="key"`` it
                must be None.
            batch_wait: Maximum seconds for which a message waits until its batch is full; 0 takes the messages that have
                arrived.
            rate: Maximum messages per second whose calls begin in this member, on average; the messages of 0.1 s may begin at
                once. ``concurrency``, ``rate`` and ``timeout`` of the returned Subscription may be set while the consumer runs.
            order: "key" handles messages with the same key in one queue one after the other, in the order of their offsets, and
                so the messages of a queue without a key; "queue" all messages of a queue; None keeps no order. The key is the
                sharding key (``key`` of a send writes none), else what ``key`` returns, a plain function that is called for
                each pulled message without a sharding key: "" for no key, None for a message that needs no order. A message for
                which it raises fails. The first message without a key is logged, and ``health()`` has the problem
                ``key_missing``. A failed attempt is repeated in place: its key or queue waits, up to ``retry.max_hold``. Unless
                in broadcast, ordered queues are locked under the group's name, as Java's orderly members lock them.

        Raises:
            ClientStateError: Unless the consumer is new or stopped.
            ConfigError: For an invalid value, options that exclude each other, ``order`` with ``mode="pop"``, a second
                subscription of a topic, more than 1,000 subscriptions, and beside ``topics``.
            TypeError: For a ``handler`` or ``key`` that does not take one positional argument or is a class of callable
                objects, and for a ``timeout`` that is not a number.
            ValueError: For a ``timeout`` that is not above 0.
        """
        if self._state not in (LifeState.NEW, LifeState.STOPPED):
            raise ClientStateError(f"{self._label} is {self._state.value}: subscribe before start() or after stop()")
        if any(subscription.is_by_hand for subscription in self._subscriptions.values()):
            raise ConfigError(f"{self._label} reads topics by hand: topics= and handlers exclude each other; leave one out")
        if isinstance(batch_size, int) and batch_size > self.config.buffered_limit:
            raise ConfigError(
                f"batch_size={batch_size} is above buffered_limit={self.config.buffered_limit}, the maximum of messages "
                "that are pulled and not settled; lower batch_size or raise buffered_limit"
            )
        if order is not None and self.config.mode == "pop":
            raise ConfigError(
                f"order={shown(order)} needs mode='pull': brokers give popped messages to any member, in no order; leave order or "
                "mode out"
            )
        subscription = Subscription(
            topic,
            handler,
            tags=tags,
            sql=sql,
            order=order,
            key=key,
            concurrency=concurrency,
            timeout=timeout,
            retry=retry,
            dead_letter_on=dead_letter_on,
            batch_size=batch_size,
            batch_wait=batch_wait,
            rate=rate,
        )
        self._add(subscription)
        return subscription

    def _add(self, subscription: Subscription) -> None:
        set_retries_here(subscription, self.config.broadcast is not False)
        topic, wire = subscription.topic, self._names.wire(subscription.topic)
        if wire in self._subscriptions:
            other = self._subscriptions[wire]
            how = other.name if other.is_by_hand else f"by handler {other.name}"
            raise ConfigError(f"topic {topic} is subscribed to already, {how}; leave one out")
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise ConfigError(
                f"topic {topic} exceeds the {MOST_SUBSCRIPTIONS} subscriptions that a consumer may have; use a second consumer"
            )
        subscription.group = self.group
        subscription.namespace = self.client_config.namespace or self.client_config.namespace_v2 or ""
        self._subscriptions[wire] = subscription

    def handler(self, topic: str, **options: Any) -> Callable[[F], F]:
        """Return a decorator that subscribes a function to ``topic``, and returns the function unchanged.

        Args:
            **options: The options of ``subscribe``. Decorators may be stacked to subscribe one function to several topics. The
                decorator raises as ``subscribe`` does, and TypeError for an unknown option.
        """

        def decorate(function: F) -> F:
            self.subscribe(topic, function, **options)
            return function

        return decorate

    # -- life cycle

    async def start(self) -> None:
        """Join the group, and wait until the queues of the first share are read, or with ``mode="pop"`` until each broker has
        answered a pop. It waits for at most 3 s, because other members may still hold queues; where none does, and brokers give
        no answer, for up to 10 s more.

        A group without committed offsets for a topic, in broadcast a member without positions, starts at ``start_from``;
        messages that are sent after this has returned are delivered. Do nothing when already running.

        After an error the consumer holds no connection and no task.

        Raises:
            ConfigError: Without a subscription, when the group is in use by this client already, for an ``sql`` condition that
                a broker cannot read (``code`` 23) or does not filter by (``code`` 1), with ``mode="pop"`` for a broker that
                cannot be popped, and in broadcast if ``load`` returns no positions of its topic.
            SubscriptionConflictError: With ``on_conflict="raise"`` when members of the group have different subscriptions, or
                another process answers for this client id.
            NameServerError: When no name server is configured, or none answers.
            SubscriptionGroupNotExistError: When the brokers do not have the group and may not create it.
            RocketMQError: The errors of the requests for ``sql`` conditions and offsets; in broadcast also errors of ``load``.
            ClientStateError: During a stop, and if ``stop()`` ends the start.
            ForkedError, WrongLoopError: If it runs in the parent process or on another loop.
        """
        if not self._subscriptions:
            raise ConfigError(
                f"{self._label} has no subscription: subscribe() a handler first, or give topics= to read by hand"
            )
        await super().start()

    async def stop(self, timeout: float | None = None) -> None:
        """Leave the group, wait for running handlers, commit, and release the queues.

        In reading by hand, messages in hand are waited for as running handlers are, except messages that the calling task has
        from ``receive()``: it cannot settle them while it waits.

        Args:
            timeout: Seconds, default ``stop_timeout``. Handlers that still run are cancelled after ``handover_timeout``, and at
                the latest 1 s before the end of ``timeout``. The last commits and unlocks have 1 s even if ``timeout`` is less.
                A plain function cannot be cancelled: its thread runs on, and keeps the process from exiting until it returns.
                Called by a handler or a callback, or in the body of an iteration, it begins the stop and returns at once, but
                only if it is awaited there: a handler that awaits it through another task (``asyncio.wait_for`` before Python
                3.12, ``gather``) waits for itself, until ``handover_timeout`` cancels it. Does nothing when not started or
                stopped already.

        Raises:
            TypeError: For a ``timeout`` that is not a number.
            ValueError: For a ``timeout`` below 0 or NaN.
            ForkedError: In a forked child.
            WrongLoopError: On another event loop.
        """
        stop_budget(timeout, self._stop_timeout)  # raises for a wrong value, before the stop begins
        session = self._session
        if self._over is not None:
            self._over.set()
        if session is not None and session.is_own_task(asyncio.current_task()):
            if self._stopping is None:
                session.quiesce()
                self._stopping = asyncio.get_running_loop().create_task(self.stop(timeout), name=f"rmq_async stop {self.group}")
            return
        if session is not None and session.by_hand is not None:
            session.by_hand.let_go(asyncio.current_task(), received=True)
        await super().stop(timeout)

    async def run(self, *, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Start, run until one of ``signals`` comes or ``stop()`` is called, and stop.

        A signal during the stop cancels the running handlers at once.

        Outside of the main thread, and on Windows, it handles no signal. Raises as ``start()`` does, and ClientStateError while
        another task is in ``run()``.
        """
        if self._over is not None:
            raise ClientStateError(f"{self._label} is in run() already: await that call, or stop() it first")
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
                    logger.warning("%s: a signal during the stop cancels the running handlers", self._label)
                    self._session.abort()
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
        given = instance, self._wire_group, dict(self._subscriptions), self.config, self._label, copy_context()
        session: MemberSession = PullSession(*given, self._doubts) if self.config.mode == "pull" else PopSession(*given)
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
            self._last_stats = session.stats()
            self._session = None
            self._stopping = None

    # -- watching

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member holds now, paused ones included; none with ``mode="pop"``."""
        session = self._session
        return frozenset() if session is None else session.assignment_shown

    def lag(self) -> Lag:
        """Return the numbers of messages of this member's share that are not settled.

        Before a start and after a stop zeros, with no age and no queues. It makes no request and may be called from any thread.
        """
        session = self._session
        return Lag(0, 0, None, {}) if session is None else session.lag()

    def stats(self) -> ConsumerStats:
        """Return the numbers since ``start()``: zeros before the first start, after a stop the last numbers of the run.

        It makes no request and may be called from any thread.
        """
        session = self._session
        return self._last_stats if session is None else session.stats()

    def health(self) -> ConsumerHealth:
        """Return the consumer's condition. It makes no request, never raises and may be called from any thread."""
        state, session = self._state, self._session
        if state in (LifeState.RUNNING, LifeState.STOPPING) and self._generation != generation():
            text = f"{self._label} was started before os.fork(); create and start a new one in the child process"
            return ConsumerHealth(False, False, (Problem(ProblemCode.FORKED, text),), None, None)
        if session is None or state is not LifeState.RUNNING:
            problem = self._idle_problem(state) or Problem(ProblemCode.STARTING, f"{self._label} is {state.value}")
            return ConsumerHealth(True, False, (problem,), None, None)
        return session.health()

    # -- control

    def pause(self, *topics_or_queues: str | MessageQueue) -> None:
        """Pause topics or queues, or all if none are given: begin no more calls for them, and do not pull them.

        They stay with this member.

        Running calls continue. Messages that were pulled and have no call are dropped, and pulled again after ``resume()``;
        failed ones that wait for another attempt in place are kept. A topic stays paused for queues that this member takes
        later, and for its messages that are delivered again; a queue stays paused until it leaves this member. A stop ends all
        pauses.

        With ``mode="pop"`` only topics can be paused; messages that were popped and have no call go back to their broker at
        once.

        Raises:
            ConfigError: For a topic that is not subscribed to, for a value that is not a queue, and with ``mode="pop"`` for a
                queue.
            QueueLostError: For a queue that this member does not read.
            ClientStateError: Unless running.
        """
        self._running_session().pause(topics_or_queues)

    def resume(self, *topics_or_queues: str | MessageQueue) -> None:
        """End the pauses of the given topics, with all their queues, and of the given queues; all pauses if none are given.

        Raises as ``pause`` does, and ClientStateError for a queue whose topic is paused as a whole, and for a topic or queue
        after a pause of all; with ``mode="pop"`` single topics may be resumed after a pause of all.
        """
        self._running_session().resume(topics_or_queues)

    async def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | datetime) -> None:
        """Move a queue to another offset: wait for its running calls (10 s at most; then calls of an ordered queue are
        cancelled), drop its buffer, and commit.

        Raises the errors of the requests for offsets, too.

        Args:
            to: An offset, the first or the end of the queue, or the first message stored at an aware datetime or later.
                Messages between the offsets are delivered again, or not at all. A commit that is not answered is repeated each
                ``commit_interval``. Messages of the queue that the calling task has in hand (reading by hand) are left
                unsettled.

        Raises:
            QueueLostError: For a queue that this member does not read, or gives up or loses during the call.
            ConfigError: For a value that is not a queue, an invalid position or one outside of the queue, and with
                ``mode="pop"``.
            ClientStateError: Unless running, and in a handler, for which the call would have to wait.
        """
        await self._running_session().seek(queue, to)

    # -- positions

    def position(self, queue: MessageQueue) -> int:
        """Return the lowest offset of a queue that is not settled: the next commit writes it.

        Raises:
            QueueLostError: For a queue that this member neither reads nor gives up at the moment.
            ConfigError: For a value that is not a queue, and with ``mode="pop"``.
            ClientStateError: Unless running.
        """
        check_queue(queue)
        return self._running_session().position(queue)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker keeps for the group, in broadcast the offset that was loaded or saved last; None
        without one.

        With ``mode="pop"`` it moves when messages are popped, not when they are settled.

        Raises the errors of the requests, too.

        Raises:
            TopicNotFoundError: If the name servers do not know the topic.
            BrokerNotFoundError: If the topic is not on the queue's broker.
            ConfigError: If it has no queue of that id there, and for a value that is not a queue.
            InvalidMessageError: For an invalid topic name.
            ClientStateError: Unless running.
        """
        session = self._running_session()
        return await session.committed(await known_queue(session.instance, queue))

    async def commit(self) -> None:
        """Commit the queues whose position has moved; return when the brokers have answered.

        In broadcast it saves the positions. With ``mode="pop"`` it sends the gathered acknowledgements, and returns when the
        acknowledgements of messages handled before the call are answered, or given up after the end of their leases.

        Raise the error of the first request that failed; the other requests are still made. With ``mode="pop"``, where requests
        are repeated, it raises an error that made this member give up acknowledgements; in broadcast the errors of ``save``,
        ConfigError if that is not a coroutine function, and TimeoutError after 30 s.

        Raises:
            ClientStateError: Unless running, and with ``mode="pop"`` if a stop ends before the brokers have answered.
        """
        await self._running_session().commit()

    # -- tests

    async def wait_settled(self, n: int, *, timeout: float = 5.0) -> tuple[Settled, ...]:
        """Return the next ``n`` attempts of messages that have their outcome, abandoned ones left out: since ``start()``, or
        after the messages that an earlier call of this method returned.

        It is meant for tests: while no call of it waits, at most 1,000 messages are kept, and no further ones once their bodies
        have 1 MiB; later ones are left out.

        Args:
            timeout: Maximum seconds of the wait.

        Raises:
            TimeoutError: After ``timeout`` seconds.
            ClientStateError: Unless running.
            ConfigError: For another ``n`` than a whole number from 0 to 2^31.
            TypeError: For a ``timeout`` that is not a number.
            ValueError: For a ``timeout`` that is not above 0.
        """
        check_int("n", n, 0, 1 << 31)
        return await self._running_session().settled.wait(n, checked_timeout(timeout))

    async def wait_idle(self, *, timeout: float = 5.0) -> None:
        """Wait until all messages that this member's queues hold at this moment are settled, and no call runs.

        For tests; it does not wait for messages whose next attempt a broker delays.

        With ``mode="pop"`` it waits until all messages of the topics were popped, by any member, and this one holds none.

        Raises the errors of the requests for offsets, too.

        Args:
            timeout: Maximum seconds of the wait.

        Raises:
            TimeoutError: After ``timeout`` seconds.
            ClientStateError: Unless running.
            TypeError: For a ``timeout`` that is not a number.
            ValueError: For a ``timeout`` that is not above 0.
        """
        session = self._running_session()
        async with asyncio.timeout(checked_timeout(timeout)):
            await session.until_idle()

    def _running_session(self) -> MemberSession:
        """Return the session, also during a start and a stop, when callbacks and handlers run.

        Raises:
            ClientStateError: Without a session.
            ForkedError: In a forked child.
            WrongLoopError: On another event loop.
        """
        session = self._session
        if session is None or self._state not in (LifeState.STARTING, LifeState.STOPPING):
            self._running_instance()
            assert session is not None
        session.instance.check_usable()
        return session

    # -- reading by hand

    def __aiter__(self) -> AsyncGenerator[MessageExt, None]:
        """Return an iterator over the messages of this member's share, for a Consumer with ``topics``.

        Code that starts a task per message inside of ``async for`` loses messages, because asking for the next message settles
        the last one: use a handler for that. Leaving the loop, also by an exception, does not settle the message in hand: it
        goes back into the buffer when the iterator is closed or collected, and is handed out again. A message not settled
        within its subscription's ``timeout`` (900 s) is given back, to be delivered again. Several tasks may iterate at the
        same time, each with an iterator of its own; each message goes to one of them. An iteration ends when the consumer
        stops.

        The first step raises ClientStateError unless the consumer runs, and where it has handlers. Any step raises ForkedError
        in a forked child, WrongLoopError on another event loop, and RuntimeError while another task waits for a step of the
        same iterator.
        """
        return MessageIterator(self._room)

    def batches(self, max_messages: int = 32, *, wait: float = 0.0) -> AsyncGenerator[Batch, None]:
        """Return an iterator over batches of one topic each.

        Asking for the next batch settles the messages of the last one, except messages with marks, which are given back or
        dead-lettered.

        Args:
            wait: Maximum seconds for which the first message waits until there are ``max_messages`` (1 to 65,536); 0 for the
                messages that are there. Otherwise as ``__aiter__``.

        Raises:
            ConfigError: For a size or a time out of range.
        """
        check_int("max_messages", max_messages, 1, MAX_BATCH)
        check_seconds("wait", wait, zero=True)
        return BatchIterator(self._room, max_messages, wait)

    async def receive(self, max_messages: int = 32, *, timeout: float | None = None) -> Batch:
        """Return up to ``max_messages`` (1 to 65,536) messages of one topic, as soon as there is one; settle nothing.

        Args:
            timeout: Seconds after which an empty batch is returned; None for no limit. A call that is cancelled has taken
                nothing. Messages stay in hand until ``done``, ``retry`` or ``dead_letter`` settles them, or for their
                subscription's ``timeout``, after which they are delivered again.

        Raises:
            ClientStateError: Where the consumer stops, also during the call, or does not run, and where it has handlers.
            ForkedError, WrongLoopError: As a step of ``__aiter__`` does.
            ConfigError: For a size or a time out of range.
        """
        check_int("max_messages", max_messages, 1, MAX_BATCH)
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        room = self._room()
        hand = await room.ask(max_messages, until=inf if timeout is None else machine.monotonic() + timeout, iterated=False)
        if hand is not None:
            return hand.batch
        if room.closing:
            raise ClientStateError(f"{self._label} stops; start it again to read on")
        return Batch((), Marks(NOTHING))

    def done(self, *messages: MessageExt) -> bool:
        """Settle messages in hand: they are not delivered again, unless this member ends before the next commit.

        Return False where one of them is not in hand: it was settled or given back already, was in hand for too long, or its
        queue has gone to another member, for example; the others are settled.

        Returns:
            False after a stop, too.

        Raises:
            TypeError: For an object that is not a message.
            ClientStateError: Before a start, and for a consumer with handlers.
            ForkedError, WrongLoopError: As a step of ``__aiter__`` does.
        """
        room = self._room_of(*messages)
        return False if room is None else room.done(messages)

    async def retry(self, message: MessageExt, delay: float | None = None) -> bool:
        """Give a message in hand back, to be delivered again after ``delay`` seconds, as RetryLater says.

        It uses up an attempt.

        Return False as ``done`` does, and when no broker has taken it within 3 s: it goes on waiting for one, as long as the
        queue is this member's. A call that is cancelled gives the message back all the same. Raises as ``done`` does, too.

        Args:
            delay: None for the delay of the attempt.

        Returns:
            True when a broker has taken it, or this member will hand it out again itself because none does.

        Raises:
            ConfigError: For a delay out of range.
        """
        if delay is not None:
            check_seconds("delay", delay, zero=True)
        room = self._room_of(message)
        return False if room is None else await room.give_back(message, RetryLater(delay))

    async def dead_letter(self, message: MessageExt, reason: str = "") -> bool:
        """Put a message in hand into the group's dead-letter topic.

        Args:
            reason: Text for the log. The other arguments are those of ``retry``.
        """
        room = self._room_of(message)
        return False if room is None else await room.give_back(message, DeadLetter(reason))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None and self._session.by_hand is not None:
            self._session.by_hand.let_go(asyncio.current_task())  # the block is over: nothing settles what it had in hand
        await super().__aexit__(kind, error, trace)

    def _room(self) -> ByHand:
        """Return the ByHand of the session.

        Raises:
            ClientStateError: Unless running, and for a consumer with handlers.
            ForkedError: In a forked child.
            WrongLoopError: On another event loop.
        """
        room = self._running_session().by_hand
        if room is None:
            raise ClientStateError(f"{self._label} has handlers; make a Consumer with topics= to read by hand")
        room.check()
        return room

    def _room_of(self, *messages: MessageExt) -> ByHand | None:
        """Return the ByHand of the session; None after a stop, when no message is in hand.

        Raises:
            TypeError: For an object that is not a message, and as ``_room``.
        """
        for message in messages:
            if not isinstance(message, MessageExt):
                raise TypeError(
                    f"expected a MessageExt, not {type(message).__name__}; pass single messages, those of a batch as done(*batch)"
                )
        return None if self._session is None and self._state is LifeState.STOPPED else self._room()


def _subscriptions_of(topics: object) -> list[Subscription]:
    """Return subscriptions without handlers.

    Raises:
        ConfigError: Unless ``topics`` is a topic, several different topics, or a mapping of topics to tags, and for an invalid
            topic or tags.
    """
    if isinstance(topics, str):
        tags_of: Mapping[str, str] = {topics: "*"}
    elif isinstance(topics, Mapping):
        tags_of = topics
    elif isinstance(topics, Iterable) and not isinstance(topics, bytes):
        listed = list(topics)
        if not all(isinstance(topic, str) for topic in listed):
            raise _wrong_topics(topics)
        tags_of = dict.fromkeys(listed, "*")
        if len(tags_of) < len(listed):
            raise ConfigError(f"topics={shown(topics)} has a topic twice; name each once")
    else:
        raise _wrong_topics(topics)
    return [Subscription(topic, by_hand, tags=tags) for topic, tags in tags_of.items()]


def _wrong_topics(topics: object) -> ConfigError:
    return ConfigError(f"topics must be a topic, a list of topics, or a mapping of topics to tags, not {shown(topics)}")


def _handles(loop: asyncio.AbstractEventLoop, number: signal.Signals, function: Callable[[], object]) -> bool:
    """Make the loop call ``function`` for a signal; return False where it cannot, outside of the main thread and on Windows."""
    try:
        loop.add_signal_handler(number, function)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        logger.debug("%s is not handled: %s", number.name, error)
        return False
    return True
