"""The group consumer: subscriptions, start and stop, and reports; ``Reader`` and ``Control`` are its other parts."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, Literal, TypeVar, Unpack

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt, MessageQueue

from ..client import ClientInstance, LifeState
from ..config import ClientConfig
from ..errors import ClientStateError, ConfigError
from ..health import Problem, ProblemCode
from ..options import lists_options
from ..timeouts import stop_budget
from ..transport import generation
from .commits import Doubts
from .config import ConsumerConfig, ConsumerOptions, Retry, split_options
from .pop import PopSession
from .pull_session import PullSession
from .reader import Reader, subscriptions_of
from .reports import ConsumerHealth, ConsumerStats, Lag
from .session import MemberSession
from .subscription import Handler, Subscription

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

MOST_SUBSCRIPTIONS: Final = 1000


@lists_options(ConsumerConfig, ClientConfig)
class Consumer(Reader):
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

    All members of a group must subscribe to the same topics with the same tags or conditions. ``topics``: a topic,
    topics, or a mapping of topics to tags, to be read by hand (``async for message in consumer``) instead of by handlers.
    ``namesrv``: "host:port;host:port" or a sequence; default: the environment variable NAMESRV_ADDR. ``client``, ``config``:
    settings. ``options``: any field of ConsumerConfig or ClientConfig.

    Raises InvalidGroupError for an invalid group name; ConfigError for an invalid value, for settings that exclude each other,
    and for ``topics`` with ``trace``, ``broadcast`` or ``mode="pop"``; TypeError for an unknown option and for a config of
    another type. Methods that need a running consumer raise ClientStateError unless it runs, ForkedError in a forked child, and
    WrongLoopError on another event loop.
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
        super().__init__(group, client_config, consumer_config)
        for subscription in subscriptions_of(topics):
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
        """Subscribes ``handler`` to a topic; allowed before ``start()`` and after a stop.

        ``handler``: a coroutine function, which runs as a task, or a plain function, which runs in a thread. ``tags``: "*" or
        "a || b". ``sql``: an SQL92 condition over the messages' properties instead, such as "a > 5 AND region = 'eu'". Brokers
        filter by it if they have ``enablePropertyFilter=true``; ``start()`` checks that. ``concurrency``: maximum number of
        calls of this handler at a time (1 to 65,536), within that of the consumer. ``timeout``: seconds for one call, after
        which it is cancelled and the message delivered again; None for no limit. A thread cannot be cancelled: its message is
        delivered again when it ends. ``retry``: None for the consumer's. ``dead_letter_on``: exception classes, after which the
        message is dead-lettered at once. ``batch_size``: the handler takes a Batch of up to so many messages (1 to 65,536, and
        to ``buffered_limit``), of any queues of the topic, or of one queue with ``order="queue"``; None: it takes one message.
        With ``order="key"`` it must be None. ``batch_wait``: maximum seconds for which a message waits until its batch is full;
        0 takes the messages that have arrived. ``rate``: maximum messages per second whose calls begin in this member, on
        average; those of 0.1 s may begin at once. ``concurrency``, ``rate`` and ``timeout`` of the returned Subscription may be
        set while the consumer runs.

        ``order``: "key" handles messages with the same key in one queue one after the other, in the order of their offsets,
        and so the messages of a queue without a key; "queue" all messages of a queue; None keeps no order. The key is the
        sharding key (``key`` of a send writes none), else what ``key`` returns, a plain function that is called for each pulled
        message without a sharding key: "" for no key, None for a message that needs no order. A message for which it raises
        fails. The first message without a key is logged, and ``health()`` has the problem ``key_missing``. A failed attempt is
        repeated in place: its key or queue waits, up to ``retry.max_hold``. Unless in
        broadcast, ordered queues are locked under the group's name, as Java's orderly members lock them.

        Raises ClientStateError unless the consumer is new or stopped; ConfigError for an invalid value, options that exclude
        each other, ``order`` with ``mode="pop"``, a second subscription of a topic, more than 1,000 subscriptions, and beside
        ``topics``; TypeError for a ``handler`` or ``key`` that does not take one positional argument or is a class of
        callable objects, and for a ``timeout`` that is not a number; ValueError for a ``timeout`` that is not above 0.
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
        subscription.retries_here = self.config.broadcast is not False
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
        """Returns a decorator that subscribes a function to ``topic``, and returns the function unchanged.

        ``options``: those of ``subscribe``. Decorators may be stacked to subscribe one function to several topics. The
        decorator raises as ``subscribe`` does, and TypeError for an unknown option.
        """

        def decorate(function: F) -> F:
            self.subscribe(topic, function, **options)
            return function

        return decorate

    # -- life cycle

    async def start(self) -> None:
        """Joins the group, and waits until the queues of the first share are read, or with ``mode="pop"`` until each broker has
        answered a pop. It waits for at most 3 s, because other members may still hold queues; where none does, and brokers give
        no answer, for up to 10 s more.

        A group without committed offsets for a topic, in broadcast a member without positions, starts at ``start_from``;
        messages that are sent after this has returned are delivered. Does nothing when already running.

        Raises ConfigError without a subscription, when the group is in use by this client already, for an ``sql`` condition
        that a broker cannot read (``code`` 23) or does not filter by (``code`` 1), and with ``mode="pop"`` for a broker that
        cannot be popped; SubscriptionConflictError with ``on_conflict="raise"`` when members of the group have different
        subscriptions, or another process answers for this client id; NameServerError when no name server is configured, or none
        answers; SubscriptionGroupNotExistError when the brokers do not have the group and may not create it; the errors of the
        requests for ``sql`` conditions and offsets, and in broadcast those of ``load``, or ConfigError if it returns no
        positions of its topic; ClientStateError during a stop, and if ``stop()`` ends the start; ForkedError and WrongLoopError
        if it runs in the parent process or on another loop. After an error the consumer holds no connection and no task.
        """
        if not self._subscriptions:
            raise ConfigError(
                f"{self._label} has no subscription: subscribe() a handler first, or give topics= to read by hand"
            )
        await super().start()

    async def stop(self, timeout: float | None = None) -> None:
        """Leaves the group, waits for running handlers, commits, and releases the queues.

        ``timeout``: seconds, default ``stop_timeout``. Handlers that still run are cancelled after ``handover_timeout``, and at
        the latest 1 s before the end of ``timeout``. The last commits and unlocks have 1 s even if ``timeout`` is less. A plain
        function cannot be cancelled: its thread runs on, and keeps the process from exiting until it returns. Called by a
        handler or a callback, or in the body of an iteration, it begins the stop and returns at once, but only if it is awaited
        there: a handler that awaits it through another task (``asyncio.wait_for`` before Python 3.12, ``gather``) waits for
        itself, until ``handover_timeout`` cancels it. Does nothing when not started or stopped already.

        In reading by hand, messages in hand are waited for as running handlers are, except those that the calling task has
        from ``receive()``: it cannot settle them while it waits.

        Raises TypeError for a ``timeout`` that is not a number, ValueError for one below 0 or NaN, ForkedError in a forked child,
        WrongLoopError on another event loop.
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
        """Starts, runs until one of ``signals`` comes or ``stop()`` is called, and stops. A signal during the stop cancels
        the running handlers at once.

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
        """Returns the numbers of messages of this member's share that are not settled; before a start and after a stop zeros,
        with no age and no queues. It makes no request and may be called from any thread."""
        session = self._session
        return Lag(0, 0, None, {}) if session is None else session.lag()

    def stats(self) -> ConsumerStats:
        """Returns the numbers since ``start()``: zeros before the first start, after a stop those at its end. It makes no
        request and may be called from any thread."""
        session = self._session
        return self._last_stats if session is None else session.stats()

    def health(self) -> ConsumerHealth:
        """Returns the consumer's condition. It makes no request, never raises and may be called from any thread."""
        state, session = self._state, self._session
        if state in (LifeState.RUNNING, LifeState.STOPPING) and self._generation != generation():
            text = f"{self._label} was started before os.fork(); create and start a new one in the child process"
            return ConsumerHealth(False, False, (Problem(ProblemCode.FORKED, text),), None, None)
        if session is None or state is not LifeState.RUNNING:
            problem = self._idle_problem(state) or Problem(ProblemCode.STARTING, f"{self._label} is {state.value}")
            return ConsumerHealth(True, False, (problem,), None, None)
        return session.health()


def _handles(loop: asyncio.AbstractEventLoop, number: signal.Signals, function: Callable[[], object]) -> bool:
    """Makes the loop call ``function`` for a signal; returns False where it cannot, outside of the main thread and on
    Windows."""
    try:
        loop.add_signal_handler(number, function)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        logger.debug("%s is not handled: %s", number.name, error)
        return False
    return True
