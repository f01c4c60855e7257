"""The writable queues of one topic, with addresses and header templates. They are made again when the route changes.

Header templates (pre-encoded parts of frames) are made lazily: the template for single sends at the first use of a queue, and the
templates for one-way sends and batches when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain, cycle, islice
from typing import Any, Final, Protocol, cast

from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, MAX_FRAME_SIZE, RETRY_TOPIC_PREFIX, Perm
from rmq_protocol.errors import shown
from rmq_protocol.java_types import string_hash
from rmq_protocol.lite import consistent_hash
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.namespace import with_namespace, without_namespace
from rmq_protocol.route import NO_BROKER
from rmq_protocol.send_codec import SendTemplate
from rmq_protocol.signed_send_codec import SignedSendTemplate

from ... import machine
from ..._text import printable
from ...client import TopicRoute, malformed_addresses, vip_address
from ...config import ClientConfig
from ...errors import BrokerNotFoundError
from ...transport import Receiver

SHARDS_KEPT: Final = 4096
"""Maximum number of lite topics of one topic whose queue is remembered."""


class MessageGatherer(Protocol):
    """Gathers messages of one topic into batches. ``TopicGathering`` implements this."""

    def add_plain(self, receiver: Receiver, message: Any, size: int, deadline: float, *, plain: bool = True) -> None:
        """Add a message whose deadline results from the producer's ``timeout``.

        Args:
            plain: Whether the message has only a topic and a body. Other messages are already encoded.
        """

    def add(self, receiver: Receiver, message: Message, size: int, deadline: float) -> None:
        """Add a message with any deadline."""

    def left(self) -> None:
        """Record that a caller no longer waits, because its future is done."""


class HeaderSettings:
    """The header fields that all sends of one producer share, and the conversion of topic names.

    Args:
        smart: Whether headers have the short form (V2).

    Attributes:
        general: Whether requests are built as commands, without templates.
        outside: Topics outside the namespace, in addition to system topics, which are recognized by their names.
    """

    __slots__ = (
        "create_topic_key", "credentials", "default_topic_queues", "general", "group", "id_length", "max_frame_size",
        "namespace", "outside", "serialize_type", "smart", "unit_mode", "vip",
    )  # fmt: skip

    def __init__(
        self,
        group: str,
        client: ClientConfig,
        id_length: int,
        *,
        create_topic_key: str = AUTO_CREATE_TOPIC_KEY,
        default_topic_queues: int = 4,
        smart: bool = True,
    ) -> None:
        self.namespace = client.namespace or ""
        self.outside: set[str] = set()
        self.group = with_namespace(self.namespace, group)
        self.create_topic_key = create_topic_key
        self.default_topic_queues = default_topic_queues
        self.serialize_type = client.header_type
        self.id_length = id_length
        self.unit_mode = client.unit_mode
        self.vip = client.vip_channel
        self.max_frame_size = max(client.max_frame_size, MAX_FRAME_SIZE)
        self.credentials = client.credentials
        self.smart = smart
        self.general = not self.smart

    def wire_topic(self, topic: str) -> str:
        """Return the topic's name on the wire, with the namespace."""
        return with_namespace(self.namespace, topic) if self.namespace and topic not in self.outside else topic

    def shown_topic(self, topic: str) -> str:
        """Return the topic's name in the API, without the namespace."""
        return without_namespace(topic, self.namespace) if self.namespace else topic

    def send_address(self, address: str) -> str:
        """Return the address to which sends for the broker at ``address`` go. With ``vip_channel``, it is the broker's VIP port."""
        return vip_address(address) if self.vip else address

    def template(self, queue: MessageQueue, broker: str, *, batch: bool = False, oneway: bool = False) -> SendTemplate:
        """Return a new header template for one queue and one kind of send. With credentials, the template signs its frames."""
        header: dict[str, Any] = {
            "group": self.group,
            "topic": self.wire_topic(queue.topic),
            "queue_id": queue.queue_id,
            "broker_name": broker,
            "default_topic": self.create_topic_key,
            "default_topic_queues": self.default_topic_queues,
            "batch": batch,
            "oneway": oneway,
            "serialize_type": self.serialize_type,
            "id_length": self.id_length,
            "unit_mode": self.unit_mode,
        }
        return SendTemplate(**header) if self.credentials is None else SignedSendTemplate(self.credentials, **header)


class Target:
    """A queue to send to, with the address of its broker and its header templates.

    Args:
        broker: The broker that holds the queue. The queue of a static topic itself names a logical broker.
        address: The ``send_address`` of the broker in the route.

    Attributes:
        general: Whether requests to the queue are built as commands, without a template.
        single: The header template for single sends.
        batch: The header template for batches.
        oneway: The header template for one-way sends.
    """

    __slots__ = ("_batch", "_oneway", "_settings", "address", "broker", "general", "queue", "queue_id", "single")

    def __init__(self, queue: MessageQueue, broker: str, address: str, settings: HeaderSettings) -> None:
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


class TopicQueues:
    """The writable queues of one topic's route, under the topic's name in the API.

    The target of a queue is made when the queue is first used, because a topic may have hundreds of queues and few messages.
    ``next()`` returns the next target, round robin from a random start. ``LatencyRotation`` and ``FailureRotation`` replace it.

    Args:
        without: Queues that the route names but their brokers do not have. They are left out, but not from the ``keyed`` of a topic
            with an order conf or a static topic.

    Attributes:
        queues: The queues of brokers with a master.
        keyed: The queues among which keys and selectors choose. These are ``queues``. With an order conf and for a static topic,
            they are all queues in the route, so that no key moves to another queue while a broker is down.
        several: Whether a retry may go to another broker.
        addresses: The address of each broker's master, by broker name.
        by_queue: The targets that were made so far, by queue.
        gathering: Gathers messages for ``next()`` into batches. None without batching.

    Raises:
        BrokerNotFoundError: If no writable queue has a master's address.
    """

    __slots__ = (
        "_holders",
        "_in_turn",
        "_members",
        "_settings",
        "_shards",
        "addresses",
        "brokers",
        "by_queue",
        "gathering",
        "keyed",
        "next",
        "queues",
        "route",
        "several",
        "without",
    )

    def __init__(
        self,
        route: TopicRoute,
        settings: HeaderSettings,
        topic: str | None = None,
        without: frozenset[MessageQueue] = frozenset(),
    ) -> None:
        topic = settings.shown_topic(topic or route.topic)
        self.route = route
        self.without = without
        self._settings = settings
        self._holders, queues = route.holders, route.publish_queues
        if topic != route.topic:
            queues = tuple([queue._replace(topic=topic) for queue in queues])
            self._holders = {queue._replace(topic=topic): broker for queue, broker in route.holders.items()}
        listed = queues
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
        self.keyed = listed if route.is_fixed else self.queues
        self.brokers = frozenset(self.addresses)
        self.several = len(self.brokers) > 1
        self.by_queue: dict[MessageQueue, Target] = {}
        self._members: dict[MessageQueue, MessageQueue] = {}
        start = machine.random.randrange(len(self.queues))
        turns = chain(islice(self.queues, start, None), islice(self.queues, start))
        self._in_turn: Callable[[], Target] = cycle(map(self._target, turns)).__next__
        self.gathering: MessageGatherer | None = None
        self.next = self._in_turn
        self._shards: dict[str | int, TopicQueues] = {}
        # The entries of single queues: by lite topic, and by the index of the queue.

    def take_turns(self) -> None:
        """Restore the plain round robin as ``next``."""
        self.next = self._in_turn
        self.several = len(self.brokers) > 1

    def shard(self, lite_topic: str) -> TopicQueues:
        """Return an entry with only the queue of a lite topic, which is the queue that official senders and brokers choose."""
        found = self._shards.get(lite_topic)
        if found is None:
            index = consistent_hash(string_hash(lite_topic), len(self.queues))
            found = self._shards.get(index)
            if found is None:
                chosen = self.queues[index]
                others = frozenset(queue for queue in self.queues if queue != chosen)
                found = TopicQueues(self.route, self._settings, chosen.topic, self.without | others)
            if len(self._shards) >= SHARDS_KEPT:
                self._shards.clear()
            self._shards[lite_topic] = self._shards[index] = found
        return found

    def next_of(self, brokers: Collection[str]) -> Target:
        """Return the next queue on one of ``brokers``.

        Raises:
            BrokerNotFoundError: If none of ``brokers`` has a queue of this topic.
        """
        if brokers is self.brokers:
            return self._in_turn()
        for _ in self.queues:
            target = self._in_turn()
            if target.broker in brokers:
                return target
        topic, names = self.queues[0].topic, sorted(brokers)
        raise BrokerNotFoundError(f"topic {topic}: none of {names} still has a writable queue; send again")

    def queues_of(self, brokers: Collection[str], queues: tuple[MessageQueue, ...] | None = None) -> tuple[MessageQueue, ...]:
        """Return those of ``queues`` that ``brokers`` hold. The default for ``queues`` is all queues of the topic."""
        holders, queues = self._holders, self.queues if queues is None else queues
        return tuple([queue for queue in queues if holders.get(queue, queue.broker_name) in brokers])

    def holder(self, queue: MessageQueue) -> str:
        """Return the name of the broker that holds a queue. The queue of a static topic itself names a logical broker."""
        return self._holders.get(queue, queue.broker_name)

    def is_away(self, queue: MessageQueue) -> bool:
        """Return whether the queue belongs to the topic's fixed list of queues (order conf, static topic), but its broker has no
        address.
        """
        return self.route.is_fixed and not self.knows(queue) and queue in self.keyed and self.holder(queue) != NO_BROKER

    def knows(self, queue: MessageQueue) -> bool:
        """Return whether ``target`` would find an address for the queue."""
        return (
            queue in self.by_queue or self._own(queue) is not None or self.route.master_address(queue.broker_name) is not None
        )

    def reachable(self, queue: MessageQueue) -> Target | None:
        """Return the target of a queue. Return None if the route has no address of its broker's master."""
        return self.target(queue) if self.knows(queue) else None

    def target(self, queue: MessageQueue) -> Target:
        """Return the target of a queue that the caller chose, even if the route does not list the queue.

        Raises:
            BrokerNotFoundError: If the route has no address of the master of the queue's broker.
        """
        if self._settings.namespace:
            queue = queue._replace(topic=self._settings.shown_topic(queue.topic))
        if (found := self.by_queue.get(queue)) is not None:
            return found
        if (own := self._own(queue)) is not None:
            return self._target(own)
        address = self.route.master_address(queue.broker_name)
        if address is None:
            known, holder = ", ".join(sorted(self.brokers)), self.holder(queue)
            held = "" if holder == queue.broker_name else f", which holds queue {queue.queue_id} of {queue.broker_name},"
            raise BrokerNotFoundError(
                f"broker {shown(holder)}{held} has no master's address in the route of topic {queue.topic}; start its master, "
                f"or choose a queue on another broker: {known}",
                broker=holder,
            )
        return Target(queue, queue.broker_name, self._settings.send_address(address), self._settings)

    def _own(self, queue: MessageQueue) -> MessageQueue | None:
        """Return the topic's own queue that equals ``queue``, or None.

        The topic's own queue is used because the queue id of ``queue`` may be a bool, which is encoded differently.
        """
        if not self._members:
            self._members = {each: each for each in self.keyed if self.route.master_address(self.holder(each)) is not None}
        return self._members.get(queue)

    def _target(self, queue: MessageQueue) -> Target:
        """Return the target of one of the topic's queues. Create it if it does not exist."""
        target = self.by_queue.get(queue)
        if target is None:
            broker = self.holder(queue)
            address = self.addresses.get(broker) or self._settings.send_address(cast(str, self.route.master_address(broker)))
            target = self.by_queue[queue] = Target(queue, broker, address, self._settings)
        return target


def is_writable(route: TopicRoute) -> bool:
    """Return whether the route has a broker with write permission, reachable or not."""
    return any(data.perm & Perm.WRITE for data in route.data.queue_datas)


def _nowhere(topic: str, route: TopicRoute) -> str:
    text = f"topic {topic} has no writable queue on a broker with a master's address"
    if wrong := malformed_addresses(route.data):
        return f"{text}; no client can connect to {wrong}; correct brokerIP1 and listenPort of the broker"
    closed = sorted({data.broker_name for data in route.data.queue_datas if not data.perm & Perm.WRITE})
    if not closed:
        return f"{text}; start the master of one of its brokers, or give the topic write queues"
    return f"{text}; no write permission on {printable(', '.join(closed))}: allow writes there, or start another master"
