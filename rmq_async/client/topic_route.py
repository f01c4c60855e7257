"""The route of one topic, with its queues and addresses.

A client may know thousands of topics, nearly always on the same brokers. Therefore routes share equal parts: the brokers with their
addresses, and the queues if the same queues are written and read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rmq_protocol.constants import MASTER_ID, Perm
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import BrokerData, TopicRouteData, is_address, publish_queues, static_topic_endpoints, subscribe_queues

from .._text import printable

MAX_LISTS: Final = 64
"""Maximum number of broker lists that are kept so that routes can share them; the topics of a cluster have few different lists."""
MAX_BROKERS: Final = 1024
"""Maximum number of brokers in all these lists together, unless a single list has more."""

MAX_COUNTS: Final = 500
"""Maximum number of characters of a list of brokers in a log or error message."""

_READ_AND_WRITE: Final = Perm.READ | Perm.WRITE


@dataclass(frozen=True, eq=False, slots=True)
class TopicRoute:
    """The route of a topic, with queues and addresses derived from it.

    Attributes:
        addresses: The "host:port" by broker id, for each broker name, without malformed addresses.
        version: A number that grows with each change of any route of the client.
        provisional: True if the topic does not exist, and the first send will create it on these brokers.
        holders: For a static topic, whose queues name a logical broker, the name of the broker that currently holds each queue.
            Empty for other topics.
    """

    topic: str
    data: TopicRouteData
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    version: int
    provisional: bool = False
    holders: Mapping[MessageQueue, str] = field(default_factory=dict)

    @property
    def is_fixed(self) -> bool:
        """Whether ``publish_queues`` stays the same while brokers are down, because an order conf or a static topic fixes the
        queues.
        """
        conf = self.data.order_topic_conf
        return bool(self.holders if conf is None else conf)  # an empty order conf hides a static topic from senders

    @property
    def reachable_queues(self) -> tuple[MessageQueue, ...]:
        """The write queues on brokers whose master has an address in the route."""
        return tuple([queue for queue in self.publish_queues if self.master_address(self.broker_of(queue)) is not None])

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker that holds a queue of this topic."""
        return self.holders.get(queue, queue.broker_name)

    def master_address(self, broker_name: str) -> str | None:
        """Return the "host:port" of a broker's master. Return None if the route does not contain it."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)


_Addresses = Mapping[str, Mapping[int, str]]


class BrokerLists:
    """The broker lists of recent routes, each with its usable addresses, so that routes can share them."""

    def __init__(self) -> None:
        self._lists: dict[frozenset[str], tuple[tuple[BrokerData, ...], _Addresses]] = {}
        self._brokers = 0

    def shared(self, brokers: tuple[BrokerData, ...]) -> tuple[tuple[BrokerData, ...], _Addresses]:
        """Return a list that is equal to ``brokers``, from an earlier route if possible, and the usable addresses in the list."""
        names = frozenset([item.broker_name for item in brokers])
        known = self._lists.get(names)
        if known is None or known[0] != brokers:
            self._brokers += len(brokers) - (len(known[0]) if known is not None else 0)
            if len(self._lists) >= MAX_LISTS or self._brokers > MAX_BROKERS:
                self._lists.clear()
                self._brokers = len(brokers)
            known = self._lists[names] = (brokers, _addresses(brokers))
        return known


def topic_route(topic: str, data: TopicRouteData, lists: BrokerLists) -> TopicRoute:
    """Return the TopicRoute that ``data`` describes.

    Raises:
        RemoteProtocolError: If the queues cannot be read or are too many.
    """
    brokers, addresses = lists.shared(data.broker_datas)
    if brokers is not data.broker_datas:
        data = msgspec.structs.replace(data, broker_datas=brokers)
    published = publish_queues(topic, data)
    read = published if _same_queues(data, addresses) else subscribe_queues(topic, data)
    holders = static_topic_endpoints(topic, data) if data.topic_queue_mapping_by_broker else {}
    return TopicRoute(topic, data, published, read, addresses, 0, holders=holders)


def queue_counts(route: TopicRoute) -> str:
    """Return the number of queues on each broker for a log record, such as "broker-a 4, broker-b 0 to write, 4 to read"."""
    written = Counter(route.broker_of(queue) for queue in route.publish_queues)
    read = Counter(route.broker_of(queue) for queue in route.subscribe_queues)
    texts = []
    for name in sorted(written.keys() | read.keys()):
        same = written[name] == read[name]
        texts.append(f"{name} {written[name]}" if same else f"{name} {written[name]} to write, {read[name]} to read")
    return printable(", ".join(texts) or "no queues", MAX_COUNTS)


def malformed_addresses(data: TopicRouteData) -> str:
    """Return the broker and the address for each address of a route to which no client can connect. Return "" if there is none."""
    wrong = [
        f"{item.broker_name} at {address!r}"
        for item in data.broker_datas
        for address in item.broker_addrs.values()
        if not is_address(address)
    ]
    return printable(", ".join(wrong), MAX_COUNTS)


def _addresses(brokers: tuple[BrokerData, ...]) -> _Addresses:
    """Return the usable addresses by broker name and broker id. If several brokers have the same name, the first one is used."""
    first = {item.broker_name: item for item in reversed(brokers)}
    found: dict[str, dict[int, str]] = {}
    for item in brokers:
        usable = {number: address for number, address in first[item.broker_name].broker_addrs.items() if is_address(address)}
        if usable:
            found[item.broker_name] = usable
    return found


def _same_queues(data: TopicRouteData, addresses: _Addresses) -> bool:
    """Return True only if the write queues and the read queues are certainly equal, in the same order."""
    if data.order_topic_conf or data.topic_queue_mapping_by_broker:
        return False
    names = {item.broker_name for item in data.queue_datas}
    return len(names) == len(data.queue_datas) and all(
        item.perm & _READ_AND_WRITE == _READ_AND_WRITE
        and item.read_queue_nums == item.write_queue_nums
        and MASTER_ID in addresses.get(item.broker_name, ())
        for item in data.queue_datas
    )


# The VIP port of a broker, two below its regular port (``MixAll.brokerVIPChannel``).
#
# The VIP port accepts sends, queries and heartbeats, but no pulls (``BrokerController.registerProcessor``).

_BELOW: Final = 2


def vip_address(address: str) -> str:
    """Return the VIP address of the broker at ``address``. Return ``address`` itself if its port is 1 or 2."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - _BELOW}" if int(port) > _BELOW else address


def first_port(address: str) -> str:
    """Return the regular address of the broker whose VIP address is ``address``."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + _BELOW}"
