"""The subscriptions of clients to lite topics (``LiteSubscriptionRegistryImpl``).

A subscription belongs to a client id, a group and a light queue. Subscriptions are in memory. A client that sends no changes
loses its subscriptions after ``TIMEOUT``. Clients of the official kind send their complete set every 30 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rmq_protocol.bodies import SubscriptionGroupConfig
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import NotifyUnsubscribeLiteRequestHeader
from rmq_protocol.lite import OffsetOption, OffsetType, split_lmq_name

from .calls import ClientCalls
from .clock import Clock
from .lite_topics import LiteTopics, is_exclusive, is_set
from .ordered_pops import OrderedQueue, OrderedQueues
from .rounds import Rounds
from .server import Connection
from .service import Refused, fields_of
from .state import BrokerState
from .tables import drop

CHECK_INTERVAL: Final = 120_000
"""Milliseconds between two rounds in which subscriptions end (``liteSubscriptionCheckInterval``)."""
TIMEOUT: Final = 180_000
"""Milliseconds after the last change of a client after which its subscriptions end (``liteSubscriptionCheckTimeoutMills``)."""
MAX_CLIENTS: Final = 200_000
MOST_PER_LIMIT: Final = 4
"""A complete set is not checked against the limit of subscriptions, but may not exceed this multiple of it."""
_FIRST: Final = OffsetOption(OffsetType.POLICY, 1)


class Subscriber(NamedTuple):
    client_id: str
    group: str


class LiteSubscription:
    """The subscriptions of one client, with the group and the topic of its first request.

    Attributes:
        names: The names of the light queues.
        changed_ms: Time of the last change.
    """

    __slots__ = ("_clock", "changed_ms", "group", "names", "topic")

    def __init__(self, group: str, topic: str, clock: Clock) -> None:
        self.group = group
        self.topic = topic
        self.names: dict[str, None] = {}
        self._clock = clock
        self.changed_ms = clock.now_ms()

    def add(self, name: str) -> None:
        self.changed_ms = self._clock.now_ms()
        self.names[name] = None

    def remove(self, name: str) -> bool:
        """Remove a name. Return whether the client was subscribed to it."""
        self.changed_ms = self._clock.now_ms()
        if name not in self.names:
            return False
        del self.names[name]
        return True


class LiteSubscriptions:
    """The subscriptions of a broker's clients.

    Args:
        ordered: The queues that were popped. A reset of an offset unblocks its queue.
        limit: Number of subscriptions from which on a partial subscription is refused.

    Attributes:
        count: Number of subscriptions.
        added: Called with the subscriber and the light queue of each new subscription.
        client_removed: Called with a client whose subscriptions have all ended, and with its group.
    """

    def __init__(
        self, state: BrokerState, topics: LiteTopics, ordered: OrderedQueues, calls: ClientCalls, clock: Clock, limit: int
    ) -> None:
        self._state = state
        self._topics = topics
        self._ordered = ordered
        self._calls = calls
        self._clock = clock
        self._limit = limit
        self.count = 0
        self.added: Callable[[Subscriber, str], object] = lambda subscriber, name: None
        self.client_removed: Callable[[str, str], object] = lambda client_id, group: None
        self._clients: dict[str, LiteSubscription] = {}
        self._subscribers: dict[str, dict[Subscriber, None]] = {}
        """Subscribers by light queue."""
        self._connections: dict[str, Connection] = {}
        """The connection of each client's last subscription, to which notices are sent."""
        self._clients_of: dict[Connection, dict[str, None]] = {}
        self.find = self._clients.get
        self._rounds = Rounds(clock, CHECK_INTERVAL, self._expire)

    def start(self) -> None:
        self._rounds.start(self._clock.now_ms() + CHECK_INTERVAL)

    def stop(self) -> None:
        self._rounds.stop()

    def clear(self) -> None:
        """End all subscriptions, as the end of the process does."""
        self.count = 0
        for table in (self._clients, self._subscribers, self._connections, self._clients_of):
            table.clear()

    def subscribers(self, name: str, group: str | None = None) -> list[Subscriber]:
        """Return the subscribers of a light queue, of all groups or of one."""
        return [each for each in self._subscribers.get(name, ()) if group in (None, each.group)]

    def clients_of(self, group: str) -> list[str]:
        return [client_id for client_id, each in self._clients.items() if each.group == group]

    def connected(self, client_id: str, connection: Connection) -> None:
        """Remember the connection of a client for notices."""
        old = self._connections.get(client_id)
        if old is not None:
            drop(self._clients_of, old, client_id)
        if not connection.closed:
            self._connections[client_id] = connection
            self._clients_of.setdefault(connection, {})[client_id] = None

    def disconnected(self, connection: Connection) -> None:
        for client_id in self._clients_of.pop(connection, ()):
            del self._connections[client_id]

    def add(
        self, client_id: str, config: SubscriptionGroupConfig, topic: str, names: Iterable[str], option: OffsetOption | None
    ) -> None:
        """Subscribe a client to light queues of this broker, and set the group's offsets there (PARTIAL_ADD).

        In an exclusive group, the subscriptions of all members of the group to the same queue end, with a notice. This includes
        an earlier subscription of the client itself.

        Raises:
            Refused: With code 2018 if the broker has the maximum number of subscriptions.
        """
        if self.count >= self._limit:
            raise self._quota()
        group = config.group_name
        own = self._entry(client_id, group, topic)
        for name in names:
            if not self._topics.is_active(topic, name):
                continue
            own.add(name)
            if is_exclusive(config):
                self._exclude(config, name)
            self._reset(name, group, option)
            self._enter(Subscriber(client_id, own.group), name)

    def remove(self, client_id: str, group: str, topic: str, names: Iterable[str]) -> None:
        """End subscriptions of a client (PARTIAL_REMOVE)."""
        config = self._state.groups.find(group)
        option = _FIRST if config is not None and is_set(config, "lite.sub.reset.offset.unsubscribe") else None
        own = self._entry(client_id, group, topic)
        for name in names:
            own.remove(name)
            self._leave(Subscriber(client_id, own.group), name, option)

    def replace(self, client_id: str, group: str, topic: str, names: Iterable[str]) -> None:
        """Replace the subscriptions of a client (COMPLETE_ADD). Exclusive groups are not treated differently.

        Raises:
            Refused: With code 2018 if the broker would have too many subscriptions.
        """
        new = dict.fromkeys(name for name in names if self._topics.is_active(topic, name))
        own = self._entry(client_id, group, topic)
        if self.count + len(new) > MOST_PER_LIMIT * self._limit:
            raise self._quota()
        subscriber = Subscriber(client_id, own.group)
        for name in [each for each in own.names if each not in new]:
            own.remove(name)
            self._leave(subscriber, name)
        for name in new:
            own.add(name)
            self._enter(subscriber, name)

    def remove_client(self, client_id: str) -> None:
        """End all subscriptions of a client (COMPLETE_REMOVE)."""
        connection = self._connections.pop(client_id, None)
        if connection is not None:
            drop(self._clients_of, connection, client_id)
        own = self._clients.pop(client_id, None)
        if own is not None:
            for name in own.names:
                self._leave(Subscriber(client_id, own.group), name)
            self.client_removed(client_id, own.group)

    def forget(self, name: str) -> None:
        """End the subscriptions to a light queue that was deleted, without notices."""
        for client_id, _ in self._subscribers.pop(name, ()):
            self.count -= 1
            own = self._clients.get(client_id)
            if own is not None:
                own.remove(name)

    def _entry(self, client_id: str, group: str, topic: str) -> LiteSubscription:
        own = self._clients.get(client_id)
        if own is None:
            if len(self._clients) >= MAX_CLIENTS:
                remark = f"this broker has {MAX_CLIENTS} clients with lite topics, the maximum; stop some"
                raise Refused(ResponseCode.SYSTEM_ERROR, remark)
            own = self._clients[client_id] = LiteSubscription(group, topic, self._clock)
            self._rounds.need()
        return own

    def _enter(self, subscriber: Subscriber, name: str) -> None:
        subscribers = self._subscribers.setdefault(name, {})
        if subscriber not in subscribers:
            subscribers[subscriber] = None
            self.count += 1
            self.added(subscriber, name)

    def _leave(self, subscriber: Subscriber, name: str, option: OffsetOption | None = None) -> None:
        """End a subscription. Set the group's offset if there was a subscription."""
        if subscriber in self._subscribers.get(name, ()):
            drop(self._subscribers, name, subscriber)
            self.count -= 1
            self._reset(name, subscriber.group, option)

    def _exclude(self, config: SubscriptionGroupConfig, name: str) -> None:
        """End all subscriptions of an exclusive group to a light queue, and notify the clients."""
        option = _FIRST if is_set(config, "lite.sub.reset.offset.exclusive") else None
        for subscriber in self.subscribers(name, config.group_name):
            old = self._clients.get(subscriber.client_id)
            if old is not None:
                old.remove(name)
                if not old.names:
                    del self._clients[subscriber.client_id]
            self._notify(subscriber, name)
            self._leave(subscriber, name, option)

    def _notify(self, subscriber: Subscriber, name: str) -> None:
        connection, parts = self._connections.get(subscriber.client_id), split_lmq_name(name)
        if connection is None or parts is None:
            return
        header = NotifyUnsubscribeLiteRequestHeader(
            liteTopic=parts[1], consumerGroup=subscriber.group, clientId=subscriber.client_id
        )
        self._calls.oneway(connection, RequestCode.NOTIFY_UNSUBSCRIBE_LITE, fields_of(header))

    def _reset(self, name: str, group: str, option: OffsetOption | None) -> None:
        """Set the group's offset in a light queue. Do nothing if it does not change."""
        if option is None:
            return
        current = self._state.offsets.find(group, name, 0)
        target = self._target(name, option, current)
        if target is None or target == current:
            return
        if target >= 0:
            self._state.offsets.reset(group, name, 0, target)
        self._ordered.clear(OrderedQueue(group, name, 0))

    def _target(self, name: str, option: OffsetOption, current: int) -> int | None:
        match option.type:
            case OffsetType.POLICY:
                return {1: 0, 2: self._topics.queues.max_offset(name)}.get(option.value)
            case OffsetType.OFFSET:
                return option.value
            case OffsetType.TAIL_N if current >= 0:
                return max(0, current - option.value)
        return None

    def _expire(self) -> bool:
        oldest = self._clock.now_ms() - TIMEOUT
        for client_id in [client_id for client_id, own in self._clients.items() if own.changed_ms < oldest]:
            self.remove_client(client_id)
        return bool(self._clients)

    def _quota(self) -> Refused:
        remark = f"org.apache.rocketmq.broker.lite.LiteQuotaException: lite subscription quota exceeded {self._limit}"
        return Refused(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, remark)
