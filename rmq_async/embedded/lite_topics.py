"""The lite topics of one broker: which exist, which broker is the shard of a name, and when a lite topic is deleted
(``LiteLifecycleManager``, ``LiteShardingImpl``).

A lite topic has no settings of its own. It begins with its first message. It is deleted when its topic's
``lite.topic.expiration`` has passed since its last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rmq_protocol.bodies import SubscriptionGroupConfig
from rmq_protocol.constants import MASTER_ID, Perm
from rmq_protocol.java_types import string_hash
from rmq_protocol.lite import LITE_PREFIX, SEPARATOR, consistent_hash, split_lmq_name

from .clock import Clock
from .lite_settings import LiteSettings
from .ordered_pops import OrderedQueue, OrderedQueues
from .rounds import Rounds
from .state import BrokerState
from .store import Queue
from .topics import Topic

FIRST_CHECK_STEP: Final = 20_000
"""Milliseconds between two looks whether the broker runs long enough to delete lite topics."""
CHECK_INTERVAL: Final = 120_000
"""Milliseconds between two rounds of deletions (``liteTtlCheckInterval``)."""
EMPTY_ROUNDS: Final = 5
"""Number of rounds that a light queue without messages stays."""
_WRITE: Final = int(Perm.WRITE)


class LiteTopics:
    """The lite topics of a broker.

    Args:
        ordered: The light queues that were popped.

    Attributes:
        deleted: Called with the name of the light queue of each lite topic that is deleted.
    """

    def __init__(self, state: BrokerState, ordered: OrderedQueues, clock: Clock, settings: LiteSettings) -> None:
        self._state = state
        self._ordered = ordered
        self._clock = clock
        self._min_ttl = round(1000 * settings.min_ttl)
        self.queues = state.topics.light
        self.queues.limit = settings.max_topics
        self.queues.enabled = settings.enabled
        self.deleted: Callable[[str], object] = lambda name: None
        self._empty: dict[str, int] = {}
        """Number of rounds that found a light queue without messages."""
        self._rounds = Rounds(clock, CHECK_INTERVAL, self._delete_expired)

    def start(self) -> None:
        steps = -(-self._min_ttl // FIRST_CHECK_STEP)
        self._rounds.start(self._clock.now_ms() + steps * FIRST_CHECK_STEP)
        if len(self.queues):
            self._rounds.need()

    def stop(self) -> None:
        self._rounds.stop()

    def stored(self) -> None:
        """Note that a lite topic has a new message."""
        self._rounds.need()

    def find(self, topic: str) -> Topic | None:
        """Return a topic of the type LITE. Return None for other topics."""
        found = self._state.topics.get(topic)
        return found if found is not None and found.is_lite else None

    def bound_topic(self, group: str) -> str | None:
        """Return the topic to which the group is bound. Return None for other groups."""
        config = self._state.groups.find(group)
        return None if config is None else lite_bind_topic(config)

    def groups_by_topic(self) -> dict[str, tuple[str, ...]]:
        """Return the groups that are bound to each topic."""
        found: dict[str, tuple[str, ...]] = {}
        for name, config in self._state.groups.all().items():
            topic = lite_bind_topic(config)
            if topic is not None:
                found[topic] = (*found.get(topic, ()), name)
        return found

    def is_active(self, topic: str, name: str) -> bool:
        """Return whether this broker accepts subscriptions to a light queue: it is the shard of the lite topic or has it."""
        return self.queues.max_offset(name) > 0 or self.is_own(topic, name)

    def is_own(self, topic: str, name: str) -> bool:
        """Return whether this broker is the shard of a light queue's lite topic.

        Senders choose the broker by a consistent hash over the write queues of all masters.
        """
        queues = [
            holder.broker_name
            for holder in sorted(self._state.holders(topic), key=lambda holder: holder.broker_name)
            if holder.broker_id == MASTER_ID and holder.config.perm & _WRITE
            for _ in range(holder.config.write_queue_nums)
        ]
        parts = split_lmq_name(name)
        if not queues or parts is None:
            return True
        return queues[consistent_hash(string_hash(parts[1]), len(queues))] == self._state.name

    def of_topic(self, topic: str) -> list[str]:
        """Return the names of the light queues of a topic."""
        start = f"{LITE_PREFIX}{topic}{SEPARATOR}"
        return [queue.topic for queue in self.queues if queue.topic.startswith(start)]

    def delete_topic(self, topic: Topic) -> None:
        """Delete the lite topics of a topic that was deleted."""
        if topic.is_lite:
            name = topic.config.topic_name
            groups = self.groups_by_topic().get(name, ())
            for light in self.of_topic(name):
                self._delete(light, groups)

    def _delete(self, name: str, groups: Iterable[str]) -> None:
        """Delete a light queue with the offsets of the groups that are bound to its topic."""
        queue = self.queues.delete(name)
        if queue is not None:
            self._state.log.drop_light(queue)
        for group in groups:
            self._state.offsets.forget(group, name)
            self._ordered.clear(OrderedQueue(group, name, 0))
        self._empty.pop(name, None)
        self.deleted(name)

    def _delete_expired(self) -> bool:
        gone = [queue.topic for queue in self.queues if self._is_expired(queue)]
        groups = self.groups_by_topic() if gone else {}
        for name in gone:
            parts = split_lmq_name(name)
            self._delete(name, groups.get(parts[0], ()) if parts else ())
        return len(self.queues) > 0

    def _is_expired(self, queue: Queue) -> bool:
        parts = split_lmq_name(queue.topic)
        if parts is None:
            return False
        if queue.max_offset == 0:
            rounds = self._empty[queue.topic] = self._empty.get(queue.topic, 0) + 1
            return rounds > EMPTY_ROUNDS
        self._empty.pop(queue.topic, None)
        newest = queue.stored_ms(queue.max_offset - 1)
        idle = self._clock.now_ms() - (-1 if newest is None else newest)
        topic = self._state.topics.get(parts[0])
        minutes = -1 if topic is None else topic.lite_expiration
        return idle >= self._min_ttl and 0 < minutes * 60_000 < idle


def lite_bind_topic(config: SubscriptionGroupConfig) -> str | None:
    """Return the topic to which a group is bound. Return None for other groups."""
    return config.attributes.get("lite.bind.topic")


def is_exclusive(config: SubscriptionGroupConfig) -> bool:
    return config.attributes.get("lite.sub.model") == "Exclusive"


def is_set(config: SubscriptionGroupConfig, attribute: str) -> bool:
    return config.attributes.get(attribute, "").lower() == "true"
