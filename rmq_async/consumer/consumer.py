"""The group consumer: subscriptions, start and stop, control, reading by hand, and reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import copy_context
from datetime import datetime
from math import inf
from types import TracebackType
from typing import Any, Final, Literal, TypeVar, Unpack

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt, MessageQueue

from .. import machine
from ..client import ClientInstance, LifeState, check_queue, known_queue
from ..config import ClientConfig, check_int, check_seconds, split_options
from ..errors import ClientStateError, ConfigError
from ..options import lists_options
from .by_hand import BatchIterator, ByHand, MessageIterator
from .config import ConsumerConfig, ConsumerOptions, Retry
from .group import Doubts
from .member import GroupMember
from .outcome import Batch, DeadLetter, Marks, RetryLater
from .pop import PopSession
from .queues import PullSession
from .reports import Lag
from .session import MemberSession
from .subscription import MAX_BATCH, Handler, Subscription, by_hand, set_retries_here

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

MOST_SUBSCRIPTIONS: Final = 1000
NOTHING: Final = "receive() returned an empty batch, which has no message to mark; test the batch first"


@lists_options(ConsumerConfig, ClientConfig)
class Consumer(GroupMember):
    """A member of a consumer group. The members of a group share the messages of their topics; with ``broadcast``, each member
    handles all messages.

        consumer = Consumer("billing", namesrv="127.0.0.1:9876")

        @consumer.handler("OrderTopic", tags="paid")
        async def bill(message: MessageExt) -> None:
            ...

        rmq_async.run(consumer.run())

    When a handler returns, its message is done. If it raises, the message is delivered again after a delay, or dead-lettered
    after the last attempt (``retry``). A handler can raise RetryLater or DeadLetter to choose the outcome. Handlers of one
    consumer run concurrently and in no order, even for messages of one queue, unless their subscription has ``order="key"``
    or ``order="queue"``.

    All members of a group must subscribe to the same topics with the same tags or conditions.

    Methods that need a running consumer raise ClientStateError if it does not run, ForkedError in a forked child, and
    WrongLoopError on another event loop.

    Args:
        group: Name of the group.
        topics: A topic, a sequence of topics, or a mapping of topics to tags. These topics are read by hand (``async for message
            in consumer``), without handlers.
        namesrv: Addresses of the name servers, "host:port;host:port" or a sequence of "host:port". The default is the
            environment variable NAMESRV_ADDR.
        client: Settings that all kinds of clients have.
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
        super().__init__(
            group, "consumer", *split_options(type(self).__name__, ConsumerConfig, namesrv, client, config, options)
        )
        self._subscriptions: dict[str, Subscription] = {}
        """The subscriptions, by the topic's name on the wire."""
        for subscription in _subscriptions_of(topics):
            self._add(subscription)
        if self._subscriptions and self.config.trace:
            trace = shown(self.config.trace)
            raise ConfigError(f"trace={trace} records handler calls, but topics= are read by hand; leave out trace or topics=")
        if self._subscriptions and self.config.broadcast is not False:
            raise ConfigError("broadcast requires handlers, but topics= are read by hand; leave out broadcast or topics=")
        if self._subscriptions and self.config.mode == "pop":
            raise ConfigError("mode='pop' requires handlers, but topics= are read by hand; leave out mode or topics=")
        self._doubts = Doubts()

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
        """Subscribe ``handler`` to a topic. This is possible before ``start()`` and after ``stop()``.

        Args:
            topic: Name of the topic.
            handler: A coroutine function, which runs as a task, or a plain function, which runs in a thread.
            tags: "*" or "a || b".
            sql: An SQL92 condition over message properties, in place of tags, such as "a > 5 AND region = 'eu'". It requires
                brokers with ``enablePropertyFilter=true``, which ``start()`` checks.
            concurrency: Maximum number of concurrent calls of this handler (1 to 65,536); the limit of the consumer also applies.
            timeout: Maximum seconds for one call. After that, the call is cancelled and the message is delivered again. A thread
                cannot be cancelled; its message is delivered again when the thread ends. None for no limit.
            retry: The retry settings; None for the settings of the consumer.
            dead_letter_on: Exception classes. A message whose handler raises one of them is dead-lettered at once.
            batch_size: Maximum number of messages in a batch (1 to 65,536, and at most ``buffered_limit``). The handler then
                takes a Batch of messages from any queues of the topic, or from one queue with ``order="queue"``. With None, the
                handler takes a single message. It must be None with ``order="key"``.
            batch_wait: Maximum seconds for which a message waits for its batch to fill. With 0, a batch takes the messages that
                have arrived.
            rate: Maximum number of messages per second that this member starts to handle, on average. A burst has at most the
                messages of 0.1 s, and at least one. ``concurrency``, ``rate`` and ``timeout`` of the returned Subscription may be
                set while the consumer runs.
            order: "key" handles the messages of one queue that have the same key one after the other, in the order of their
                offsets; messages without a key count as messages with one common key. "queue" handles all messages of a queue one
                after the other. None keeps no order. A failed attempt is repeated in place: its key or queue waits for it, up to
                ``retry.max_hold``. Except in broadcast, ordered queues are locked under the group's name, as orderly Java members
                lock them.
            key: For ``order="key"``, a plain function that is called for each pulled message without a sharding key (the ``key``
                argument of a send does not write a sharding key) and returns the key of the message. It returns "" for a message
                without a key, and None for a message that needs no order. If it raises, the message fails. The first message
                without a key is logged, and ``health()`` reports the problem ``key_missing``.

        Raises:
            ClientStateError: If the consumer is neither new nor stopped.
            ConfigError: For an invalid value, options that exclude each other, ``order`` with ``mode="pop"``, a second
                subscription to a topic, more than 1,000 subscriptions, and for a consumer with ``topics``.
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
                f"batch_size={batch_size} is above buffered_limit={self.config.buffered_limit}, the maximum number of unsettled "
                "messages; lower batch_size or raise buffered_limit"
            )
        if order is not None and self.config.mode == "pop":
            raise ConfigError(
                f"order={shown(order)} requires mode='pull', because brokers give popped messages to any member, in no order; "
                "leave out order or mode"
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
            raise ConfigError(f"topic {topic} is already subscribed to, {how}; subscribe to it once")
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise ConfigError(
                f"topic {topic} exceeds the {MOST_SUBSCRIPTIONS} subscriptions that a consumer may have; use a second consumer"
            )
        subscription.group = self.group
        subscription.namespace = self.client_config.namespace or self.client_config.namespace_v2 or ""
        self._subscriptions[wire] = subscription

    def handler(self, topic: str, **options: Any) -> Callable[[F], F]:
        """Return a decorator that subscribes a function to ``topic`` and returns the function unchanged.

        Decorators may be stacked to subscribe one function to several topics. The decorator raises the errors of ``subscribe``,
        and TypeError for an unknown option.

        Args:
            **options: The options of ``subscribe``.
        """

        def decorate(function: F) -> F:
            self.subscribe(topic, function, **options)
            return function

        return decorate

    # -- life cycle

    async def start(self) -> None:
        """Join the group, and wait until the member reads the queues of its first share. With ``mode="pop"``, wait until each
        broker has responded to a pop.

        The wait takes at most 3 s, because other members may still hold queues. If none does, but brokers do not respond, it takes
        up to 10 s more. If the consumer already runs, do nothing.

        A group without committed offsets for a topic, or a broadcast member without positions, starts at ``start_from``. Messages
        that are sent after this call has returned are delivered. After an error, the consumer holds no connection and no task.

        Raises:
            ConfigError: If there is no subscription, or this client already has a consumer of the group; for an ``sql``
                condition that a broker cannot read (``code`` 23) or does not filter by (``code`` 1); with ``mode="pop"``, for a
                broker that does not support pop; in broadcast, if ``load`` does not return positions of its topic.
            SubscriptionConflictError: With ``on_conflict="raise"``, if members of the group have different subscriptions, or
                another process responds for this client id.
            NameServerError: If no name server is configured, or none responds.
            SubscriptionGroupNotExistError: If the brokers do not have the group and may not create it.
            RocketMQError: If a request for ``sql`` conditions or offsets fails. In broadcast, errors of ``load`` also propagate.
            ClientStateError: During a stop, and if ``stop()`` ends the start.
            ForkedError, WrongLoopError: If the consumer runs in the parent process or on another loop.
        """
        if not self._subscriptions:
            raise ConfigError(
                f"{self._label} has no subscription: subscribe() a handler first, or give topics= to read by hand"
            )
        await super().start()

    async def _open(self, instance: ClientInstance) -> None:
        given = instance, self._wire_group, dict(self._subscriptions), self.config, self._label, copy_context()
        session: MemberSession = PullSession(*given, self._doubts) if self.config.mode == "pull" else PopSession(*given)
        self._session = session  # handlers may run, and stop the consumer, before the start has ended
        try:
            await session.open(self._starting)
        except BaseException:
            self._session = self._stopping = None
            raise

    # -- watching

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member holds now, including paused queues. Empty with ``mode="pop"``."""
        session = self._session
        return frozenset() if session is None else session.assignment_shown

    def lag(self) -> Lag:
        """Return the numbers of messages of this member's share that are not settled.

        Before a start and after a stop, all numbers are 0, the age is None and there are no queues. The method makes no request
        and may be called from any thread.
        """
        session = self._session
        return Lag(0, 0, None, {}) if session is None else session.lag()

    # -- control

    def pause(self, *topics_or_queues: str | MessageQueue) -> None:
        """Pause topics or queues: start no more handler calls for them, and do not pull them. Without arguments, pause everything.

        The queues stay with this member, and running calls continue. Pulled messages whose call has not begun are dropped, and
        pulled again after ``resume()``; failed messages that wait for another attempt in place are kept. A paused topic stays
        paused for queues that this member takes later, and for messages of the topic that are delivered again. A paused queue
        stays paused until it leaves this member. ``stop()`` ends all pauses.

        With ``mode="pop"``, only topics can be paused. Popped messages whose call has not begun go back to their broker at once.

        Raises:
            ConfigError: For a topic without a subscription, for a value that is not a queue, and with ``mode="pop"`` for a queue.
            QueueLostError: For a queue that this member does not read.
            ClientStateError: If the consumer does not run.
        """
        self._running_session().pause(topics_or_queues)

    def resume(self, *topics_or_queues: str | MessageQueue) -> None:
        """End the pauses of the given queues, and of the given topics with all their queues. Without arguments, end all pauses.

        Raises:
            ClientStateError: If the consumer does not run, for a queue whose topic is paused, and for a single topic or queue
                after ``pause()`` without arguments. With ``mode="pop"``, single topics may be resumed after such a pause. The
                other errors of ``pause`` are also raised.
        """
        self._running_session().resume(topics_or_queues)

    async def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | datetime) -> None:
        """Move a queue to another offset, and commit that offset.

        The call waits at most 10 s for running handler calls of the queue; after that, calls of an ordered queue are cancelled.
        Then it drops the buffered messages of the queue. After a move back, messages are delivered again; after a move forward,
        the messages in between are skipped. A commit without a response is repeated every ``commit_interval``. When reading by
        hand, messages of the queue that the calling task has in hand are not settled.

        Args:
            to: An offset, "earliest" for the first message of the queue, "latest" for its end, or an aware datetime for the first
                message stored at that time or later.

        Raises:
            QueueLostError: For a queue that this member does not read, or that it gives up or loses during the call.
            ConfigError: For a value that is not a queue, for a position that is invalid or outside the queue, and with
                ``mode="pop"``.
            ClientStateError: If the consumer does not run, and in a handler, because the call would wait for that handler.
            RocketMQError: If a request for offsets fails.
        """
        await self._running_session().seek(queue, to)

    # -- positions

    def position(self, queue: MessageQueue) -> int:
        """Return the lowest offset of a queue that is not settled. The next commit writes this offset.

        Raises:
            QueueLostError: For a queue that this member neither reads nor is giving up.
            ConfigError: For a value that is not a queue, and with ``mode="pop"``.
            ClientStateError: If the consumer does not run.
        """
        check_queue(queue)
        return self._running_session().position(queue)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker keeps for the group; in broadcast, the offset that was last loaded or saved.

        Return None if there is no such offset. With ``mode="pop"``, the offset moves when messages are popped, not when they are
        settled.

        Raises:
            TopicNotFoundError: If the name servers do not know the topic.
            BrokerNotFoundError: If the topic is not on the queue's broker.
            ConfigError: If the topic has no queue of that id on the broker, and for a value that is not a queue.
            InvalidMessageError: For an invalid topic name.
            ClientStateError: If the consumer does not run.
            RocketMQError: If a request fails.
        """
        session = self._running_session()
        return await session.committed(await known_queue(session.instance, queue))

    async def commit(self) -> None:
        """Commit the positions that have changed; return when the brokers have responded.

        In broadcast, save the positions. With ``mode="pop"``, send the pending acknowledgements. Return when brokers have responded
        to the acknowledgements of all messages handled before the call, or the member has given up these acknowledgements because a
        broker refuses them or the leases have ended.

        If a request fails, the other requests are still made, and the error of the first failure is raised. With ``mode="pop"``,
        requests are repeated, and only an error that made this member give up acknowledgements is raised. In broadcast, the errors
        of ``save`` are raised.

        Raises:
            ClientStateError: If the consumer does not run; with ``mode="pop"``, if a stop ends before the brokers have responded.
            ConfigError: In broadcast, if ``save`` is not a coroutine function.
            TimeoutError: In broadcast, if ``save`` takes more than 30 s.
        """
        await self._running_session().commit()

    # -- reading by hand

    def __aiter__(self) -> AsyncGenerator[MessageExt, None]:
        """Return an iterator over the messages of this member's share, for a Consumer with ``topics``.

        Asking for the next message settles the previous one. Code that starts a task per message inside ``async for`` therefore
        loses messages; use a handler for that. Leaving the loop, also by an exception, does not settle the message in hand: it
        returns to the buffer when the iterator is closed or garbage-collected, and is handed out again. A message that is not
        settled within its subscription's ``timeout`` (900 s) is given back to be delivered again. Several tasks may iterate
        concurrently, each with its own iterator; each message goes to one of them. An iteration ends when the consumer stops.

        The first ``anext()`` raises ClientStateError if the consumer does not run or has handlers. Each ``anext()`` raises
        ForkedError in a forked child, WrongLoopError on another event loop, and RuntimeError while another task waits for a message
        of the same iterator.
        """
        return MessageIterator(self._room)

    def batches(self, max_messages: int = 32, *, wait: float = 0.0) -> AsyncGenerator[Batch, None]:
        """Return an iterator over batches. Each batch has messages of one topic.

        Asking for the next batch settles the messages of the previous one, except messages with marks, which are given back or
        dead-lettered. Otherwise, the iterator behaves like the iterator of ``__aiter__``.

        Args:
            max_messages: Maximum number of messages in a batch (1 to 65,536).
            wait: Maximum seconds for which a message waits for its batch to fill. With 0, a batch takes the messages that have
                arrived.

        Raises:
            ConfigError: For a ``max_messages`` or ``wait`` out of range.
        """
        check_int("max_messages", max_messages, 1, MAX_BATCH)
        check_seconds("wait", wait, zero=True)
        return BatchIterator(self._room, max_messages, wait)

    async def receive(self, max_messages: int = 32, *, timeout: float | None = None) -> Batch:
        """Return up to ``max_messages`` messages of one topic as soon as there is at least one. Settle nothing.

        Messages stay in hand until ``done``, ``retry`` or ``dead_letter`` settles them. If none does within the ``timeout`` of
        their subscription, they are delivered again. A cancelled call takes no messages.

        Args:
            max_messages: Maximum number of messages (1 to 65,536).
            timeout: Seconds after which an empty batch is returned; None for no limit.

        Raises:
            ClientStateError: If the consumer does not run, stops during the call, or has handlers.
            ForkedError: In a forked child.
            WrongLoopError: On another event loop.
            ConfigError: For a ``max_messages`` or ``timeout`` out of range.
        """
        check_int("max_messages", max_messages, 1, MAX_BATCH)
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        room = self._room()
        hand = await room.ask(max_messages, until=inf if timeout is None else machine.monotonic() + timeout, iterated=False)
        if hand is not None:
            return hand.batch
        if room.closing:
            raise ClientStateError(f"{self._label} is stopping; start it again to receive more messages")
        return Batch((), Marks(NOTHING))

    def done(self, *messages: MessageExt) -> bool:
        """Settle messages in hand. They are not delivered again, unless this member ends before the next commit.

        Returns:
            True if all messages were in hand. False after a stop, and if one of the messages is no longer in hand, for example
            because it was already settled or given back, was in hand for too long, or its queue has moved to another member. The
            other messages are settled nevertheless.

        Raises:
            TypeError: For an object that is not a message.
            ClientStateError: Before a start, and for a consumer with handlers.
            ForkedError: In a forked child.
            WrongLoopError: On another event loop.
        """
        room = self._room_of(*messages)
        return False if room is None else room.done(messages)

    async def retry(self, message: MessageExt, delay: float | None = None) -> bool:
        """Give a message in hand back, to be delivered again after a delay. This uses up an attempt.

        A cancelled call still gives the message back.

        Args:
            delay: Seconds, with the meaning that RetryLater documents; None for the delay of the attempt.

        Returns:
            True if a broker has accepted the message, or if this member will hand it out again itself because no broker accepts
            it. False in the cases in which ``done`` returns False, and if no broker has accepted the message within 3 s; the
            message then continues to wait for a broker, as long as this member holds the queue.

        Raises:
            ConfigError: For a delay out of range. The errors of ``done`` are also raised.
        """
        if delay is not None:
            check_seconds("delay", delay, zero=True)
        room = self._room_of(message)
        return False if room is None else await room.give_back(message, RetryLater(delay))

    async def dead_letter(self, message: MessageExt, reason: str = "") -> bool:
        """Put a message in hand into the group's dead-letter topic. The result and the errors are those of ``retry``.

        Args:
            reason: The reason, which is logged.
        """
        room = self._room_of(message)
        return False if room is None else await room.give_back(message, DeadLetter(reason))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None and self._session.by_hand is not None:
            self._session.by_hand.let_go(asyncio.current_task())  # the block has ended and will not settle its messages in hand
        await super().__aexit__(kind, error, trace)

    def _room(self) -> ByHand:
        """Return the ByHand of the session.

        Raises:
            ClientStateError: If the consumer does not run or has handlers.
            ForkedError: In a forked child.
            WrongLoopError: On another event loop.
        """
        room = self._running_session().by_hand
        if room is None:
            raise ClientStateError(f"{self._label} has handlers; make a Consumer with topics= to read by hand")
        room.check()
        return room

    def _room_of(self, *messages: MessageExt) -> ByHand | None:
        """Return the ByHand of the session. Return None after a stop, because no message is in hand then.

        Raises:
            TypeError: For an object that is not a message. The errors of ``_room`` are also raised.
        """
        for message in messages:
            if not isinstance(message, MessageExt):
                raise TypeError(
                    f"expected a MessageExt, not {type(message).__name__}; pass messages one by one, and a batch as done(*batch)"
                )
        return None if self._session is None and self._state is LifeState.STOPPED else self._room()


def _subscriptions_of(topics: object) -> list[Subscription]:
    """Return subscriptions by hand for ``topics``.

    Raises:
        ConfigError: If ``topics`` is neither a topic, nor several different topics, nor a mapping of topics to tags, and for an
            invalid topic or tags.
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
            raise ConfigError(f"topics={shown(topics)} contains a topic twice; name each topic once")
    else:
        raise _wrong_topics(topics)
    return [Subscription(topic, by_hand, tags=tags) for topic, tags in tags_of.items()]


def _wrong_topics(topics: object) -> ConfigError:
    return ConfigError(f"topics must be a topic, a list of topics, or a mapping of topics to tags, not {shown(topics)}")
