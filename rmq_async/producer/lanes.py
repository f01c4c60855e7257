"""Per topic, everything a send needs ready: queues in turn, header templates, addresses. Rebuilt when the route changes.

The hot path asks for one thing, ``next()``: an iterator over the queues (30 ns). Header templates (4 us and 1 KiB each) are made
when a queue is first used: single sends' with its target, those of one-way sends and batches at the first one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING

from rmq_protocol.constants import MAX_FRAME_SIZE, RETRY_TOPIC_PREFIX, Perm
from rmq_protocol.message import MessageQueue
from rmq_protocol.namespace import with_namespace, without_namespace
from rmq_protocol.send_codec import SendTemplate

from ..client.route_table import TopicRoute
from ..client.text import printable
from ..client.vip import vip_address
from ..config import ClientConfig
from ..errors import BrokerNotFoundError
from .config import ProducerConfig

if TYPE_CHECKING:
    from .batching.gathering import InTurn

__all__ = ["Lane", "LaneSettings", "Target", "is_writable"]


class LaneSettings:
    """What every header of one producer says. ``smart``: headers have their short form; ``general``: no template will do."""

    __slots__ = (
        "create_topic_key", "default_topic_queues", "general", "group", "id_length", "max_frame_size", "namespace", "outside",
        "serialize_type", "smart", "unit_mode", "vip",
    )  # fmt: skip

    def __init__(self, group: str, config: ProducerConfig, client: ClientConfig, id_length: int) -> None:
        self.namespace = client.namespace or ""
        self.outside: set[str] = set()
        """Topics that are in no namespace, beside those whose name shows that they are the system's."""
        self.group = with_namespace(self.namespace, group)
        self.create_topic_key = config.create_topic_key
        self.default_topic_queues = config.default_topic_queues
        self.serialize_type = client.header_type
        self.id_length = id_length
        self.unit_mode = client.unit_mode
        self.vip = client.vip_channel
        self.max_frame_size = max(client.max_frame_size, MAX_FRAME_SIZE)
        self.smart = config.send_smart_msg
        self.general = not self.smart

    def wire_topic(self, topic: str) -> str:
        """The topic as servers know it."""
        return with_namespace(self.namespace, topic) if self.namespace and topic not in self.outside else topic

    def shown_topic(self, topic: str) -> str:
        """The topic as users know it."""
        return without_namespace(topic, self.namespace) if self.namespace else topic

    def send_address(self, address: str) -> str:
        """Where messages for the broker at ``address`` go."""
        return vip_address(address) if self.vip else address

    def template(self, queue: MessageQueue, broker: str, *, batch: bool = False, oneway: bool = False) -> SendTemplate:
        return SendTemplate(
            group=self.group,
            topic=self.wire_topic(queue.topic),
            queue_id=queue.queue_id,
            broker_name=broker,
            default_topic=self.create_topic_key,
            default_topic_queues=self.default_topic_queues,
            batch=batch,
            oneway=oneway,
            serialize_type=self.serialize_type,
            id_length=self.id_length,
            unit_mode=self.unit_mode,
        )


class Target:
    """One queue to send to, at the address where its broker's master took messages when the lane was built.

    ``broker``: the one that holds the queue; a static topic's queue names a pseudo broker. ``general``: its requests are built in
    the general form.
    """

    __slots__ = ("_batch", "_oneway", "_settings", "address", "broker", "general", "queue", "queue_id", "single")

    def __init__(self, queue: MessageQueue, broker: str, address: str, settings: LaneSettings) -> None:
        self.queue = queue
        self.broker = broker
        self.queue_id = queue.queue_id
        self.address = address
        self._settings = settings
        self.general = settings.general or queue.topic.startswith(RETRY_TOPIC_PREFIX)
        self.single = settings.template(queue, broker)
        self._batch: SendTemplate | None = None
        self._oneway: SendTemplate | None = None

    @property
    def batch(self) -> SendTemplate:
        if self._batch is None:
            self._batch = self._settings.template(self.queue, self.broker, batch=True)
        return self._batch

    @property
    def oneway(self) -> SendTemplate:
        if self._oneway is None:
            self._oneway = self._settings.template(self.queue, self.broker, oneway=True)
        return self._oneway


class Lane:
    """The writable queues of one topic's route, under the name that users know the topic by.

    A queue's target is made when its turn comes for the first time, since a topic may have hundreds of queues and one message.
    Raises BrokerNotFoundError when no queue has a master's address.
    """

    __slots__ = (
        "_holders",
        "_in_turn",
        "_members",
        "_settings",
        "addresses",
        "brokers",
        "by_queue",
        "gathering",
        "next",
        "queues",
        "route",
        "several",
        "without",
    )

    def __init__(
        self,
        route: TopicRoute,
        settings: LaneSettings,
        topic: str | None = None,
        without: frozenset[MessageQueue] = frozenset(),
    ) -> None:
        topic = settings.shown_topic(topic or route.topic)
        self.route = route
        self.without = without
        """Queues that the route names and their brokers do not have."""
        self._settings = settings
        self._holders, queues = route.holders, route.publish_queues
        if topic != route.topic:
            queues = tuple([queue._replace(topic=topic) for queue in queues])
            self._holders = {queue._replace(topic=topic): broker for queue, broker in route.holders.items()}
        if without:
            queues = tuple([queue for queue in queues if queue not in without])
        self.addresses: dict[str, str] = {}
        for broker in dict.fromkeys([self._holders.get(queue, queue.broker_name) for queue in queues]):
            if (address := route.master_address(broker)) is not None:
                self.addresses[broker] = settings.send_address(address)
        usable = self.queues_of(self.addresses, queues)
        if not usable:
            raise BrokerNotFoundError(_nowhere(topic, route))
        self.queues = queues if len(usable) == len(queues) else usable
        self.brokers = frozenset(self.addresses)
        self.several = len(self.brokers) > 1
        """Whether a first attempt leaves another broker to try."""
        self.by_queue: dict[MessageQueue, Target] = {}
        """The targets made so far."""
        self._members: frozenset[MessageQueue] | None = None
        start = random.randrange(len(self.queues))
        turns = chain(islice(self.queues, start, None), islice(self.queues, start))
        self._in_turn: Callable[[], Target] = cycle(map(self._target, turns)).__next__
        self.gathering: InTurn | None = None
        """Where messages for the queues in turn gather, if they do."""
        self.next = self._in_turn
        """The next queue, round robin from a random start; ``selection.Turning`` and ``Passing`` put themselves before it."""

    def take_turns(self) -> None:
        """The next queue is that of the plain round robin again."""
        self.next = self._in_turn
        self.several = len(self.brokers) > 1

    def next_of(self, brokers: Collection[str]) -> Target:
        """The next queue whose broker is one of ``brokers``, of which at least one belongs to this lane."""
        if brokers is self.brokers:
            return self._in_turn()
        for _ in self.queues:
            target = self._in_turn()
            if target.broker in brokers:
                return target
        raise BrokerNotFoundError(f"topic {self.queues[0].topic}: none of {sorted(brokers)} has a writable queue any more")

    def queues_of(self, brokers: Collection[str], queues: tuple[MessageQueue, ...] | None = None) -> tuple[MessageQueue, ...]:
        """The queues that ``brokers`` hold, of the lane's or of ``queues``."""
        holders, queues = self._holders, self.queues if queues is None else queues
        return tuple([queue for queue in queues if holders.get(queue, queue.broker_name) in brokers])

    def knows(self, queue: MessageQueue) -> bool:
        """Whether ``target`` knows an address for the queue."""
        return queue in self.by_queue or self._has(queue) or self.route.master_address(queue.broker_name) is not None

    def target(self, queue: MessageQueue) -> Target:
        """The target of a queue the caller chose. Raises BrokerNotFoundError when its broker has no master's address."""
        if self._settings.namespace:
            queue = queue._replace(topic=self._settings.shown_topic(queue.topic))
        if (found := self.by_queue.get(queue)) is not None or self._has(queue):
            return found or self._target(queue)
        address = self.route.master_address(queue.broker_name)
        if address is None:
            known = ", ".join(sorted(self.brokers))
            raise BrokerNotFoundError(
                f"{queue.broker_name} has no master's address in the route of topic {queue.topic}; known: {known}",
                broker=queue.broker_name,
            )
        return Target(queue, queue.broker_name, self._settings.send_address(address), self._settings)

    def _has(self, queue: MessageQueue) -> bool:
        if self._members is None:
            self._members = frozenset(self.queues)
        return queue in self._members

    def _target(self, queue: MessageQueue) -> Target:
        """The target of one of the lane's queues, made at its first use."""
        target = self.by_queue.get(queue)
        if target is None:
            broker = self._holders.get(queue, queue.broker_name)
            target = self.by_queue[queue] = Target(queue, broker, self.addresses[broker], self._settings)
        return target


def is_writable(route: TopicRoute) -> bool:
    """Whether any broker of the route lets clients write, be it reachable or not."""
    return any(data.perm & Perm.WRITE for data in route.data.queue_datas)


def _nowhere(topic: str, route: TopicRoute) -> str:
    text = f"topic {topic} has no writable queue on a broker with a master's address"
    closed = sorted({data.broker_name for data in route.data.queue_datas if not data.perm & Perm.WRITE})
    return f"{text}: {printable(', '.join(closed))} may not be written to" if closed else text
