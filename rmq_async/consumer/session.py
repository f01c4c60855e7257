"""The base class of member sessions, the registrations of a consumer at its client instance and event loop, and the responses to
tools.

A session is one run of a member from start to stop; ``Consumer`` delegates to it. Members that pull and members that pop have
different session classes. Operations that popping members do not support raise ConfigError. Responses to tools (running info,
positions, resets, consumption of one message) have the form of the responses of Java's push consumer, which mqadmin and the
dashboards read.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from rmq_protocol import bodies
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.forwarding import original_topic
from rmq_protocol.heartbeat import ConsumerData, ConsumeType
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.stored import decode_messages

from .. import machine
from .._asyncio import StopScope
from .._text import printable
from ..client import BrokerClocks, ClientInstance, GroupListener, TopicRoute, brokers_of, loop_problem, name_server_problem
from ..errors import ConfigError, ProtocolError
from ..health import Problem
from ..hooks import request_hooks
from ..transport import not_supported
from .by_hand import ByHand
from .config import ConsumerConfig
from .delivery import Delivery
from .group import ClosedQueues, Conflicts
from .handling import Block, CallHooks, ConsumeTracer, Dispatcher, Find, GiveBacks, HandlerCalls, LoopWatch, SettledLog
from .outcome import DeadLetter, RetryLater
from .reports import (
    ConsumerHealth,
    ConsumerStats,
    Lag,
    block_problems,
    conflict_problems,
    hangs,
    restart_problems,
    stuck_problems,
)
from .subscription import Subscription, on_change
from .supervisor import Supervisor

logger = logging.getLogger(__name__)

ANSWER_WITHIN: Final = 9.0
"""Maximum seconds for the handler of a message that a tool sends. The broker waits 10 s for the response
(``Broker2Client.callClient``)."""


class Attached:
    """The registrations of one consumer at its client instance and its event loop: the listener for requests of brokers, the routes
    in use, the hooks, the tracer, and the watch for functions that block the loop.

    Args:
        group: Name of the group on the wire.
        topics: Names of the topics on the wire.
        blocking: Returns the name of the user's function that a task calls.
        route_changed: Called with each route that has changed.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ConsumerConfig,
        topics: Sequence[str],
        blocking: Find,
        route_changed: Callable[[TopicRoute], None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._topics = topics
        self._blocking = blocking
        self._route_changed = route_changed
        self._watch: LoopWatch | None = None
        self.closed = ClosedQueues(instance, topics, group)
        self.tracer = ConsumeTracer(instance, group, config.trace) if config.trace else None
        self.request_hooks = request_hooks(config.hooks)
        self.call_hooks = CallHooks(config.hooks if self.tracer is None else (*config.hooks, self.tracer)) or None

    @property
    def blocked(self) -> Block | None:
        """The last function of the user that blocked the event loop, or None. May be read from any thread."""
        return None if self._watch is None else self._watch.newest(self._blocking)

    def begin(self, listener: GroupListener) -> None:
        """Register the consumer.

        Raises:
            ConfigError: If the client already has a consumer of the group. Nothing is registered then.
        """
        instance = self._instance
        instance.group_requests.add(self._group, listener)
        self._watch = LoopWatch.join(self._blocking, instance.loop_monitor.late)
        for hook in self.request_hooks:
            instance.pool.hooks.add(hook)
        for topic in self._topics:
            instance.routes.use.hold(topic)
        instance.routes.on_change += [self._route_changed, self.closed.route_changed]

    def hurry(self) -> None:
        """Send the buffered traces now, without waiting for more traces."""
        if self.tracer is not None:
            self.tracer.hurry()

    def hear_no_more(self) -> None:
        """Remove the listeners for requests of brokers and changes of routes."""
        self._instance.group_requests.remove(self._group)
        callbacks = self._instance.routes.on_change
        for each in (self._route_changed, self.closed.route_changed):
            if each in callbacks:
                callbacks.remove(each)

    async def end_traces(self, end: float) -> None:
        """Send the buffered traces, until ``end`` (monotonic) at the latest. Drop the traces that were not sent by then."""
        if self.tracer is not None:
            try:
                await self.tracer.flush(end)
            finally:
                self.tracer.end()
            await self.tracer.ended()

    def end(self, subscriptions: Iterable[Subscription]) -> None:
        """Remove the registrations that ``hear_no_more`` does not remove: the routes in use, the hooks and the watch.

        Args:
            subscriptions: The subscriptions of the consumer, from which the functions of ``on_change`` are removed.
        """
        for topic in self._topics:
            self._instance.routes.use.release(topic)
        if self._watch is not None:
            self._watch.leave(self._blocking)
        for hook in self.request_hooks:
            self._instance.pool.hooks.remove(hook)
        for subscription in subscriptions:
            on_change(subscription, None)


class MemberRequests:
    """Responds to the requests of tools for a member that holds no queues.

    Args:
        data: Returns the member's part of the heartbeat.
        subscriptions: Subscriptions by topic on the wire.
    """

    def __init__(
        self,
        instance: ClientInstance,
        data: Callable[[], ConsumerData],
        subscriptions: Mapping[str, Subscription],
        calls: HandlerCalls | ByHand,
    ) -> None:
        self._instance = instance
        self._data = data
        self._subscriptions = subscriptions
        self._calls = calls
        self._started_ms = round(machine.time() * 1000)
        self._direct = asyncio.Lock()
        """A lock that is held while a handler runs with a message of a tool, so that one such call runs at a time."""

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Return the response to a request of a tool.

        Return an awaitable of the response to CONSUME_MESSAGE_DIRECTLY (309). Return None for a valid
        RESET_CONSUMER_CLIENT_OFFSET (220), because brokers expect no response to it.
        """
        try:
            if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                return _answer(command, bodies.encode_body(self._running_info(), standard=False))
            if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return _answer(command, bodies.encode_body(self._status(command), standard=False))
            if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._reset(bodies.decode_reset_offsets(command.body))
                return None
            if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return self._consume(command)
        except ProtocolError as error:
            return make_response(command, ResponseCode.SYSTEM_ERROR, printable(error, 300))
        return not_supported(command)

    # -- 307, 221

    def _running_info(self) -> bodies.ConsumerRunningInfo:
        config = self._instance.config
        properties = {
            "PROP_CONSUME_TYPE": str(ConsumeType.CONSUME_PASSIVELY),
            "PROP_CONSUMEORDERLY": "true" if any(each.order for each in self._subscriptions.values()) else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CLIENT_VERSION": "V5_5_0",
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in config.namesrv or ()),
            "PROP_THREADPOOL_CORE_SIZE": str(self._calls.concurrency),
            "messageModel": self._data().message_model,
            "consumeFromWhere": self._data().consume_from_where,
        }
        topics = dict.fromkeys(each.topic for each in self._data().subscription_data_set)
        return bodies.ConsumerRunningInfo(
            properties=properties,
            subscription_set=self._data().subscription_data_set,
            mq_table=self._queues(),
            status_table={topic: bodies.ConsumeStatus() for topic in topics},
        )

    def _queues(self) -> dict[MessageQueue, bodies.ProcessQueueInfo]:
        """Return the state of the queues that this member holds, in the form for tools."""
        return {}

    def _status(self, command: RemotingCommand) -> bodies.GetConsumerStatusBody:
        return bodies.GetConsumerStatusBody()

    # -- 220

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: a member that pops holds no queue, and the broker itself moves the offsets."""

    # -- 309

    async def _consume(self, command: RemotingCommand) -> RemotingCommand:
        """Call the handler with the message in the request, and return the response. Nothing is settled."""
        found = decode_messages(command.body)
        if len(found.messages) != 1:
            text = f"the request must hold exactly one valid message, not {len(found.messages)}; send one message"
            return make_response(command, ResponseCode.SYSTEM_ERROR, text)
        message = self._instance.names.shown_messages(found.messages)[0]
        topic = self._instance.names.wire(original_topic(message.topic, message.properties))
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            text = f"this consumer has no subscription to topic {printable(topic)!r}; send the request to a member that has one"
            return make_response(command, ResponseCode.SYSTEM_ERROR, text)
        message = msgspec.structs.replace(message, topic=subscription.topic)
        since = machine.monotonic()
        async with self._direct:
            result, remark = await self._call(subscription, message)
        spent = round((machine.monotonic() - since) * 1000)
        logger.info("message %s was handled at the request of a tool: %s", message.msg_id, result)
        answer = bodies.ConsumeMessageDirectlyResult(consume_result=result, remark=remark, spent_time_mills=spent)
        return _answer(command, bodies.encode_body(answer, standard=False))

    async def _call(self, subscription: Subscription, message: MessageExt) -> tuple[str, str | None]:
        """Call the handler once. Return the outcome as a name of Java's ``CMResult``, and the error as a string or None."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                error = await self._calls.call_once(subscription, message)
        except TimeoutError:
            return "CR_THROW_EXCEPTION", f"the handler did not end within {ANSWER_WITHIN:g} s"
        if error is None:
            return "CR_SUCCESS", None
        word = "CR_LATER" if isinstance(error, RetryLater | DeadLetter) else "CR_THROW_EXCEPTION"
        return word, printable(repr(error), 500)


def _answer(command: RemotingCommand, body: bytes) -> RemotingCommand:
    return msgspec.structs.replace(make_response(command, ResponseCode.SUCCESS, None), body=body)


class MemberSession(ABC):
    """One member of a group, from its start to its stop.

    Args:
        group: Name of the group on the wire.
        subscriptions: Subscriptions by topic on the wire.
        label: The subject of error messages.
    """

    by_hand: ByHand | None = None
    """The messages in hand, for a consumer that reads by hand; None for a consumer with handlers."""
    attached: Attached
    calls: HandlerCalls | ByHand
    conflicts: Conflicts
    dispatcher: Dispatcher
    give_backs: GiveBacks

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        label: str,
    ) -> None:
        self.instance = instance
        self.group = group
        self.config = config
        self.subscriptions = subscriptions
        self.label = label
        self.settled = SettledLog()
        self.supervisor = Supervisor()

    # -- life

    @abstractmethod
    async def open(self, starting: StopScope) -> None:
        """Join the group, and wait for the first share or, with pop, the first responses. After an error, no task and no
        registration is left.
        """

    @abstractmethod
    def quiesce(self) -> None:
        """Begin to stop: request no more messages, and drop or give back messages that wait for a call."""

    @abstractmethod
    async def close(self, deadline: float) -> None:
        """Leave the group, drain, commit, and end all tasks, by ``deadline`` (monotonic) or at most a second later."""

    @abstractmethod
    def abort(self) -> None:
        """End the wait of ``close`` for running handlers, also if ``close`` is called later."""

    @abstractmethod
    def members_changed(self) -> None:
        """Handle NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    @abstractmethod
    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Return the response to a request of a tool for this member, an awaitable of it, or None for no response."""

    # -- control

    @abstractmethod
    def pause(self, given: Sequence[str | MessageQueue]) -> None:
        """Pause topics and queues, given with the user's names. Pause everything if none are given."""

    @abstractmethod
    def resume(self, given: Sequence[str | MessageQueue]) -> None:
        """End the pauses of topics and queues. End all pauses if none are given."""

    @abstractmethod
    async def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | datetime) -> None:
        """Move a queue to another offset."""

    @abstractmethod
    def position(self, queue: MessageQueue) -> int:
        """Return the lowest offset of a queue that is not settled."""

    @abstractmethod
    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that is kept for the group. Return None if there is none.

        Args:
            queue: The queue, with names on the wire.
        """

    @abstractmethod
    async def commit(self) -> None:
        """Commit, acknowledge or save what is settled, as ``Consumer.commit`` does. Raise its errors."""

    @abstractmethod
    async def until_idle(self) -> None:
        """Wait as ``Consumer.wait_idle`` does, without a timeout. The errors of the requests propagate."""

    def wire_topics(self, given: Iterable[object]) -> list[str]:
        """Return the names on the wire of the topics among ``given``.

        Raises:
            ConfigError: For a topic without a subscription.
        """
        names = self.instance.names
        topics = [names.wire(each) for each in given if isinstance(each, str)]
        for topic in topics:
            if topic not in self.subscriptions:
                shown_topic = printable(names.shown(topic))
                raise ConfigError(
                    f"{self.label} has no subscription to topic {shown_topic!r}; name a topic that it subscribes to"
                )
        return topics

    # -- functions of the user

    def is_own_task(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` runs a handler call or a callback, or has messages of an iterator in hand."""
        return self.calls.is_own_task(task)

    def blocking(self, task: asyncio.Task[Any]) -> str | None:
        """Return the name of the user's function that ``task`` calls, or None. May be called from any thread."""
        return self.calls.name_of(task)

    # -- reports, which make no request and may be called from any thread

    @property
    @abstractmethod
    def assignment_shown(self) -> frozenset[MessageQueue]:
        """The queues that the member holds, with the user's names."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the member does its work: it has its first share, is not stopping, and can call its handlers."""

    @property
    @abstractmethod
    def progress_at(self) -> float | None:
        """The monotonic time of the last progress, such as an outcome; None if the member has nothing to handle."""

    @abstractmethod
    def lag(self) -> Lag:
        """Return the numbers of messages that are not settled."""

    @abstractmethod
    def stats(self) -> ConsumerStats:
        """Return the counters since the start."""

    @abstractmethod
    def problems(self) -> list[Problem]:
        """Return the problems that are specific to this kind of member."""

    def health(self) -> ConsumerHealth:
        """Return the member's condition."""
        instance, now, running = self.instance, machine.monotonic(), list(self.calls.running)
        blocked = loop_problem(instance)
        _, silence = name_server_problem(instance)
        _, troubles = brokers_of(instance)
        oldest = min(running, key=lambda delivery: delivery.began, default=None)
        problems = [problem for problem in (blocked, silence, *troubles) if problem is not None]
        problems += self.problems()
        problems += conflict_problems(self.conflicts)
        problems += restart_problems(self.supervisor)
        problems += stuck_problems(oldest, self.config.stuck_after)
        problems += block_problems(self.attached.blocked)
        progress = self.progress_at
        return ConsumerHealth(
            live=blocked is None and not any(hangs(delivery) for delivery in running),
            ready=blocked is None and self.is_ready,
            problems=tuple(problems),
            last_progress_age=None if progress is None else max(now - progress, 0.0),
            oldest_unfinished=None if oldest is None else Delivery(oldest),
        )

    def oldest_age(self, clocks: BrokerClocks) -> float | None:
        """Return the age of the oldest message that the member has. Return None if it has none."""
        held = [message for delivery in list(self.calls.running) for message in delivery.messages]
        held += [*self.dispatcher.oldest(), *self.give_backs.messages()]
        return max((clocks.age(each.queue.broker_name, each.store_time_ms) for each in held), default=None)
