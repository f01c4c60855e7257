"""Which client gets the messages of a lite topic next (``LiteEventDispatcher``).

Each client has a set of events: names of light queues that its next pops read. A message, a free queue or a new subscription
dispatches its queue: in each group, one subscriber gets the event. If its set is full, a full dispatch of all its subscriptions
follows later. A client that does not pop loses its events to the other subscribers of its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .. import machine
from .clock import Clock
from .held_pops import HeldPops, PopKey
from .lite_subscriptions import LiteSubscriptions, Subscriber
from .lite_topics import LiteTopics
from .rounds import Rounds
from .state import BrokerState

CHECK_INTERVAL: Final = 10_000
"""Milliseconds between two rounds that look for clients that do not pop, and that carry out full dispatches
(``liteEventCheckInterval``)."""
FULL_DISPATCH_DELAY: Final = 10_000
"""Least number of milliseconds from an event that did not fit to the full dispatch (``liteEventFullDispatchDelayTime``)."""
MAX_EVENTS: Final = 100
"""Maximum number of events of a client if its group does not set it (``maxClientEventCount``)."""
INACTIVE: Final = 10_000
"""Milliseconds after the last pop after which a client with events is inactive."""
IDLE: Final = 35_000
"""Milliseconds after the last pop after which a client without events is inactive."""
ACTIVE: Final = 5_000
AVOIDED: Final = 10_000
"""Milliseconds for which an inactive client gets events only if no other client takes them."""
LOW_WATER_MARK: Final = 0.2
_MAX_INT: Final = 0x7FFFFFFF
_SOME: Final = 10
"""Number of events for which a full dispatch wakes a waiting pop once."""


def key_of(client_id: str) -> PopKey:
    """Return the key by which pops of lite topics wait: the client."""
    return PopKey(client_id, "", 0)


class ClientEvents:
    """The events of one client, oldest first.

    Args:
        capacity: Maximum number of events.

    Attributes:
        accessed_ms: Time of the last pop that took an event, or of the creation.
    """

    __slots__ = ("_capacity", "_events", "accessed_ms", "group")

    def __init__(self, group: str, capacity: int, now: int) -> None:
        self.group = group
        self._capacity = capacity
        self._events: dict[str, None] = {}
        self.accessed_ms = now

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_low(self) -> bool:
        return len(self._events) / self._capacity < LOW_WATER_MARK

    def offer(self, name: str) -> bool:
        """Add an event. Return False if the set is full, even if it has this event."""
        if len(self._events) >= self._capacity:
            return False
        self._events[name] = None
        return True

    def take(self, now: int) -> str:
        """Remove and return the oldest event."""
        self.accessed_ms = now
        name = next(iter(self._events))
        del self._events[name]
        return name

    def is_inactive(self, now: int) -> bool:
        silent = now - self.accessed_ms
        return silent > IDLE or (bool(self._events) and silent > INACTIVE)


class LiteEvents:
    """The events of a broker's clients.

    Args:
        held: The pops of lite topics that wait.
    """

    def __init__(
        self, state: BrokerState, topics: LiteTopics, subscriptions: LiteSubscriptions, held: HeldPops, clock: Clock
    ) -> None:
        self._state = state
        self._topics = topics
        self._subscriptions = subscriptions
        self._held = held
        self._clock = clock
        self._clients: dict[str, ClientEvents] = {}
        self._full: dict[str, tuple[int, str]] = {}
        """Time of the next full dispatch (epoch ms) and group, by client."""
        self._avoided: dict[str, int] = {}
        """Time until which a client is avoided, in epoch ms."""
        self._rounds = Rounds(clock, CHECK_INTERVAL, self._round)
        subscriptions.added = self._added
        subscriptions.client_removed = self._client_removed

    def __len__(self) -> int:
        """Return the number of clients with a set of events."""
        return len(self._clients)

    def start(self) -> None:
        self._rounds.start(self._clock.now_ms() + CHECK_INTERVAL)

    def stop(self) -> None:
        self._rounds.stop()

    def clear(self) -> None:
        """Forget all events, as the end of the process does."""
        for table in (self._clients, self._full, self._avoided):
            table.clear()

    def dispatch(self, name: str, group: str | None = None) -> None:
        """Give the event of a light queue to one subscriber of the group, or of each group."""
        self._dispatch(name, group)

    def take(self, client_id: str) -> Iterator[str]:
        """Take the events of a client one by one."""
        events = self._clients.get(client_id)
        while events:
            yield events.take(self._clock.now_ms())

    def accessed_ms(self, client_id: str) -> int:
        """Return the time at which a client took its last event. Return -1 for a client without a set of events."""
        events = self._clients.get(client_id)
        return -1 if events is None else events.accessed_ms

    def dispatch_group(self, group: str) -> None:
        """Make a full dispatch for each client of a group."""
        for client_id in self._subscriptions.clients_of(group):
            self.dispatch_client(client_id, group)

    def dispatch_client(self, client_id: str, group: str) -> None:
        """Make a full dispatch: give a client the events of all its subscriptions with unread messages. Put the full dispatch
        off if the client does not pop, has many events, or cannot take all.
        """
        own = self._subscriptions.find(client_id)
        if own is None or not own.names:
            return
        now, events = self._clock.now_ms(), self._events_of(client_id, group)
        if events.is_inactive(now):
            self._dispatch_later(client_id, group, machine.random.randrange(15_000))
            return
        active = now - events.accessed_ms < ACTIVE
        if not events.is_low:
            self._dispatch_later(client_id, group, 0 if active else machine.random.randrange(10_000))
            return
        count = 0
        for name in own.names:
            end = self._topics.queues.max_offset(name)
            if end <= 0 or self._state.offsets.find(group, name, 0) >= end:
                continue
            if not events.offer(name):
                self._dispatch_later(client_id, group, 0 if active else machine.random.randrange(15_000))
                break
            if count % _SOME == 0:
                self._held.notify(key_of(client_id))
            count += 1
        self._held.notify(key_of(client_id))

    def _dispatch(self, name: str, group: str | None, without: str | None = None) -> None:
        groups: dict[str, list[Subscriber]] = {}
        for subscriber in self._subscriptions.subscribers(name, group):
            groups.setdefault(subscriber.group, []).append(subscriber)
        for subscribers in groups.values():
            self._choose(name, subscribers, without)

    def _choose(self, name: str, subscribers: list[Subscriber], without: str | None) -> None:
        """Give an event to one subscriber of a group: to any that takes it, but to ``without`` and to avoided clients last."""
        now, first = self._clock.now_ms(), machine.random.randrange(len(subscribers)) if len(subscribers) > 1 else 0
        in_turn = subscribers[first:] + subscribers[:first]
        last = [each for each in in_turn if each.client_id == without or self._avoided.get(each.client_id, 0) > now]
        for subscriber in (*(each for each in in_turn if each not in last), *last):
            if self._offer(name, subscriber, now):
                self._held.notify(key_of(subscriber.client_id))
                return

    def _offer(self, name: str, subscriber: Subscriber, now: int) -> bool:
        """Give an event to a subscriber. If its set is full, plan a full dispatch and return False."""
        client_id, group = subscriber
        if self._events_of(client_id, group).offer(name):
            return True
        avoided = self._avoided.get(client_id, 0) > now
        self._dispatch_later(client_id, group, machine.random.randrange(15_000) if avoided else 0)
        return False

    def _events_of(self, client_id: str, group: str) -> ClientEvents:
        events = self._clients.get(client_id)
        if events is None:
            config = self._state.groups.find(group)
            asked = 0 if config is None else int(config.attributes.get("lite.sub.client.max.event.cnt", 0))
            capacity = asked if 0 < asked <= _MAX_INT else MAX_EVENTS
            events = self._clients[client_id] = ClientEvents(group, capacity, self._clock.now_ms())
            self._rounds.need()
        return events

    def _dispatch_later(self, client_id: str, group: str, more_ms: int) -> None:
        if client_id not in self._full:
            self._full[client_id] = (self._clock.now_ms() + FULL_DISPATCH_DELAY + more_ms, group)
            self._rounds.need()

    def _added(self, subscriber: Subscriber, name: str) -> None:
        if self._topics.queues.max_offset(name) > 0:
            self._dispatch(name, subscriber.group)

    def _client_removed(self, client_id: str, group: str) -> None:
        events = self._clients.pop(client_id, None)
        if events is not None:
            self._give_away(client_id, events)

    def _give_away(self, client_id: str, events: ClientEvents) -> None:
        """Dispatch the events of a client again, to other clients if possible."""
        now = self._clock.now_ms()
        while events:
            self._dispatch(events.take(now), events.group, client_id)

    def _round(self) -> bool:
        now = self._clock.now_ms()
        self._avoided = {client_id: until for client_id, until in self._avoided.items() if until > now}
        for client_id, events in list(self._clients.items()):
            if events.is_inactive(now) and self._clients.get(client_id) is events:
                del self._clients[client_id]
                self._avoided[client_id] = now + AVOIDED
                self._give_away(client_id, events)
        due = sorted((when, client_id) for client_id, (when, _) in self._full.items() if when <= now)
        for _, client_id in due:
            self.dispatch_client(client_id, self._full.pop(client_id)[1])
        return bool(self._clients or self._full)
