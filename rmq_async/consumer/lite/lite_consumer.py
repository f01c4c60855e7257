"""The consumer of lite topics: subscriptions while it runs, a handler or streams, start and stop, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import replace
from itertools import count
from typing import Final, Unpack

from rmq_protocol.lite import check_lite_topic
from rmq_protocol.message import MessageExt

from ...client import ClientInstance
from ...config import ClientConfig, split_options
from ...errors import ClientStateError, ConfigError
from ...options import lists_options
from ..member import GroupMember
from ..outcome import PutBack
from ..subscription import Handler, Subscription
from .config import LiteConsumerConfig, LiteConsumerOptions, consumer_config
from .lite_session import LiteSession
from .lite_subscriptions import LiteStart, checked_start
from .stream import LiteStream, StreamQueue

_numbers: Final = count()
MOST_STREAMS: Final = 65_536
"""Maximum number of messages in the hands of streams, one for each open stream."""


@lists_options(LiteConsumerConfig, ClientConfig)
class LiteConsumer(GroupMember):
    """A consumer of single lite topics of one parent topic (RocketMQ 5.5 and later), which may change while it runs.

        consumer = LiteConsumer("gateways", "ChatTopic", namesrv="127.0.0.1:9876")
        async with consumer, consumer.stream("session-17") as stream:
            async for message in stream:
                ...

    The group is bound to the topic (attribute ``lite.bind.topic``). Each lite topic is one queue, and its messages are handled one
    after the other. If several clients of a group subscribe to a lite topic, they share its messages; in an exclusive group
    (``lite.sub.model=Exclusive``), the newest one gets them. Each LiteConsumer has a client id and connections of its own.

    Args:
        group: Name of the group.
        topic: Name of the parent topic, of the type LITE.
        handler: A coroutine function, which runs as a task, or a plain function, which runs in a thread. Without it, use
            ``stream``.
        namesrv: Addresses of the name servers, "host:port;host:port" or a sequence of "host:port". The default is the
            environment variable NAMESRV_ADDR.
        client: Settings that all kinds of clients have.
        config: Settings of the consumer.
        **options: Any field of LiteConsumerConfig or ClientConfig.

    Raises:
        InvalidGroupError: For an invalid group name.
        ConfigError: For an invalid value.
        TypeError: For an unknown option, and for a handler that does not take one message.
    """

    _session: LiteSession | None

    def __init__(
        self,
        group: str,
        topic: str,
        *,
        handler: Handler | None = None,
        namesrv: str | Sequence[str] | None = None,
        client: ClientConfig | None = None,
        config: LiteConsumerConfig | None = None,
        **options: Unpack[LiteConsumerOptions],
    ) -> None:
        client_config, self.lite_config = split_options(
            type(self).__name__, LiteConsumerConfig, namesrv, client, config, options
        )
        client_config = replace(client_config, instance_name=f"{client_config.instance_name}-lite{next(_numbers)}")
        settings = consumer_config(self.lite_config)
        if handler is None:
            settings = replace(settings, concurrency=MOST_STREAMS)
        super().__init__(group, "lite consumer", client_config, settings)
        self._streams: dict[str, StreamQueue] = {}
        self._has_handler = handler is not None
        subscription = Subscription(
            topic,
            self._offer if handler is None else handler,
            order="key",
            key=_lite_topic_of,
            timeout=self.lite_config.timeout if handler is not None else None,
        )
        subscription.group = self.group
        subscription.namespace = self.client_config.namespace or self.client_config.namespace_v2 or ""
        self.topic = subscription.topic
        self._subscription = subscription

    # -- lite topics

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics to which this consumer is subscribed. Empty while it does not run."""
        session = self._session
        return frozenset() if session is None else frozenset(session.lite.names)

    async def subscribe(self, *lite_topics: str, start: LiteStart = "last") -> None:
        """Subscribe to lite topics, which need not exist yet. Return when the brokers have responded.

        A broker that does not respond gets the subscriptions later. Subscribe again to move the group to ``start``.

        Args:
            start: The position at which the group begins: "last" for its offset (a new group begins with the first message),
                "earliest", "latest", an offset, an aware datetime, or ``Tail(n)`` for the newest n messages.

        Raises:
            ConfigError: Without a handler, and for an invalid start.
            InvalidMessageError: For an invalid name.
            LiteSubscriptionQuotaError: If a broker has its maximum number of subscriptions. None of the new ones is kept.
            ClientStateError: If the consumer does not run.
        """
        if not self._has_handler:
            raise ConfigError(f"{self._label} has no handler; give it one, or use stream()")
        await self._lite_session().subscribe(lite_topics, start)

    async def unsubscribe(self, *lite_topics: str) -> None:
        """Unsubscribe from lite topics. Messages that wait for a call are given back; running calls end normally.

        Raises:
            ConfigError: Without a handler.
            ClientStateError: If the consumer does not run.
        """
        if not self._has_handler:
            raise ConfigError(f"{self._label} has no handler; close its streams")
        await self._lite_session().unsubscribe(lite_topics)

    def stream(self, lite_topic: str, *, start: LiteStart = "last") -> LiteStream:
        """Return a stream of one lite topic, for ``async with`` and ``async for``.

        Args:
            start: As in ``subscribe``.

        Raises:
            ConfigError: With a handler, for an open stream of this lite topic, and for an invalid start.
            InvalidMessageError: For an invalid name.
        """
        if self._has_handler:
            raise ConfigError(f"{self._label} has a handler, which gets all messages; use subscribe()")
        check_lite_topic(self._names.wire(self.topic), lite_topic)
        if lite_topic in self._streams:
            raise ConfigError(f"{self._label} already has an open stream of lite topic {lite_topic}; close it first")
        return LiteStream(StreamQueue(lite_topic, checked_start(start)), self._enter, self._leave)

    async def _enter(self, stream: StreamQueue) -> None:
        session, name = self._lite_session(), stream.lite_topic
        if name in self._streams:
            raise ConfigError(f"{self._label} already has an open stream of lite topic {name}; close it first")
        self._streams[name] = stream
        try:
            await session.subscribe([name], stream.start)
        except BaseException:
            self._streams.pop(name, None)
            session.lite.withdraw([name])
            session.drop(name)
            raise

    async def _leave(self, stream: StreamQueue) -> None:
        if self._streams.get(stream.lite_topic) is stream:
            del self._streams[stream.lite_topic]
            if self._session is not None:
                await self._session.unsubscribe([stream.lite_topic])

    async def _offer(self, message: MessageExt) -> None:
        stream = self._streams.get(message.lite_topic or "")
        if stream is None:
            raise PutBack
        await stream.offer(message)

    def _lost(self, lite_topic: str) -> None:
        stream = self._streams.pop(lite_topic, None)
        if stream is not None:
            stream.lose()

    # -- start and stop

    async def _open(self, instance: ClientInstance) -> None:
        topic = self._names.wire(self.topic)
        session = LiteSession(
            instance, self._wire_group, {topic: self._subscription}, self.config, self._label, copy_context(), self._lost
        )
        self._session = session
        try:
            await session.open(self._starting)
        except BaseException:
            self._session = self._stopping = None
            raise

    async def _close(self, instance: ClientInstance, deadline: float) -> None:
        for stream in [*self._streams.values()]:
            stream.end(ClientStateError(f"{self._label} is stopping"))
        self._streams.clear()
        await super()._close(instance, deadline)

    def _lite_session(self) -> LiteSession:
        session = self._running_session()
        assert isinstance(session, LiteSession)
        return session


def _lite_topic_of(message: MessageExt) -> str | None:
    return message.lite_topic
