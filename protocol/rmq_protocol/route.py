"""Routes: the brokers that hold the queues of a topic (``TopicRouteData``, response body of GET_ROUTEINFO_BY_TOPIC).

A route comes from a name server, which may be old, wrong or hostile. ``decode_route`` accepts every form that servers are known
to write, and limits the size of the route. The functions that turn a route into queues are pure. They follow
``MQClientInstance.topicRouteData2TopicPublishInfo`` and ``...SubscribeInfo``, including two special cases: if the route has an
``orderTopicConf``, permissions and missing masters are ignored; static topics have a pseudo broker. Unlike Java, ``publish_queues``
leaves out brokers whose master address is malformed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from .constants import LOGICAL_QUEUE_MOCK_BROKER_PREFIX, MASTER_ID, Perm
from .errors import RemoteProtocolError
from .java_types import Int, Long, utf16
from .json_body import decode_body, encode_body
from .message import MessageQueue

MAX_ROUTE_QUEUES: Final = 65_536
"""Maximum number of queues that a route may have on all brokers together. The largest topics have a few thousand."""

NO_BROKER: Final = "__syslo__none__"
"""The broker name for a queue of a static topic that no broker has (``MixAll.LOGICAL_QUEUE_MOCK_BROKER_NAME_NOT_EXIST``)."""

_GLOBAL_SCOPE: Final = "__global__"
_digits = re.compile(r"[+-]?[0-9]{1,10}").fullmatch


class QueueData(msgspec.Struct, frozen=True, rename="camel"):
    """The queues of a topic on one broker. A negative number of queues means no queues.

    Attributes:
        perm: Bits of ``Perm``.
    """

    broker_name: str
    read_queue_nums: Int = 0
    write_queue_nums: Int = 0
    perm: Int = 0
    topic_sys_flag: Int = 0


class BrokerData(msgspec.Struct, frozen=True, rename="camel"):
    """A broker: the replicas that share one name.

    Attributes:
        broker_addrs: Broker id -> ``host:port``. The id of the master is 0.
    """

    broker_name: str
    broker_addrs: dict[Long, str] = {}
    cluster: str | None = None
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicQueueMapping(msgspec.Struct, frozen=True, rename="camel"):
    """The queues of a static topic that one broker has (``TopicQueueMappingInfo``).

    Attributes:
        curr_id_map: Global queue id -> local queue id.
        bname: Name of the broker.
    """

    topic: str | None = None
    scope: str | None = _GLOBAL_SCOPE
    total_queues: Int = 0
    bname: str = ""
    epoch: Long = 0
    dirty: bool = False
    curr_id_map: dict[Int, Int] = {}


class TopicRouteData(msgspec.Struct, frozen=True, rename="camel"):
    """The route of a topic.

    Attributes:
        order_topic_conf: Number of queues by broker, such as ``broker-a:4;broker-b:4``. None unless the topic is ordered.
    """

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None
    filter_server_table: dict[str, tuple[str, ...]] = {}
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None


def decode_route(body: bytes) -> TopicRouteData:
    """Return the route in a response body, which is standard JSON or has keys without quotes.

    Raises:
        RemoteProtocolError: If the body is not a route or exceeds MAX_JSON_BODY_SIZE (4 MiB), or if the route has more than
            ``MAX_ROUTE_QUEUES`` read queues or write queues.
    """
    route = decode_body(TopicRouteData, body)
    _count(sum(max(data.read_queue_nums, 0) for data in route.queue_datas), "read queues")
    _count(sum(max(data.write_queue_nums, 0) for data in route.queue_datas), "write queues")
    return route


def encode_route(route: TopicRouteData, *, standard: bool = True) -> bytes:
    """Return the JSON of a route.

    Args:
        route: The route to encode.
        standard: False writes broker ids without quotes, as name servers do for clients of a version below 401 (4.9.4).

    Raises:
        LocalProtocolError: If a string has no UTF-8 form.
    """
    return encode_body(route, standard=standard)


def publish_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the queues to send to, in the order of a round robin.

    The queues are sorted by broker name, then by queue id. Queues without write permission and queues on brokers without a master
    are left out. This does not apply in two cases. If the route has an ``order_topic_conf``, all queues that it names are
    returned, in its order. All queues of a static topic are returned, in the order of their ids.

    Raises:
        RemoteProtocolError: If the ``order_topic_conf`` cannot be read, or if it or a static topic has more than
            ``MAX_ROUTE_QUEUES`` queues.
    """
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    if route.order_topic_conf is None and route.topic_queue_mapping_by_broker:
        queues = static_topic_endpoints(topic, route)
        return tuple(sorted(queues, key=lambda queue: (queue.queue_id, utf16(queue.broker_name))))
    masters = master_addresses(route)
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: utf16(data.broker_name))
        if data.perm & Perm.WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    )


def subscribe_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the queues to read from, without duplicates, sorted by broker name and queue id.

    Queues without read permission are left out, unless the topic is static. It does not matter whether the broker has a master.

    Raises:
        RemoteProtocolError: If a static topic has more than ``MAX_ROUTE_QUEUES`` queues.
    """
    queues: set[MessageQueue]
    if route.topic_queue_mapping_by_broker:
        queues = set(static_topic_endpoints(topic, route))
    else:
        queues = {
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & Perm.READ
            for queue_id in range(data.read_queue_nums)
        }
    return tuple(sorted(queues, key=lambda queue: (utf16(queue.broker_name), queue.queue_id)))


def static_topic_endpoints(topic: str, route: TopicRouteData) -> dict[MessageQueue, str]:
    """Return a dict from each queue of a static topic to the name of the broker that has the queue now, or to ``NO_BROKER``.

    The broker in the keys is the pseudo broker of the queue's scope.

    Raises:
        RemoteProtocolError: If the topic has more than ``MAX_ROUTE_QUEUES`` queues.
    """
    scopes: dict[str, list[TopicQueueMapping]] = {}
    by_broker = route.topic_queue_mapping_by_broker or {}
    for mapping in (by_broker[name] for name in sorted(by_broker, key=utf16)):  # for equal epochs, the last name counts
        if mapping.scope is not None:
            scopes.setdefault(mapping.scope, []).append(mapping)
    endpoints: dict[MessageQueue, str] = {}
    for scope, mappings in scopes.items():
        holder: dict[int, TopicQueueMapping] = {}
        for mapping in sorted(mappings, key=lambda mapping: -mapping.epoch):
            for queue_id in mapping.curr_id_map:
                if queue_id not in holder or holder[queue_id].epoch <= mapping.epoch:
                    holder[queue_id] = mapping
        total = max(mapping.total_queues for mapping in mappings)
        _count(len(endpoints) + total, "static queues")
        pseudo_broker = _pseudo_broker(scope)
        for queue_id in range(total):
            found = holder.get(queue_id)
            endpoints[MessageQueue(topic, pseudo_broker, queue_id)] = found.bname if found else NO_BROKER
    return endpoints


def broker_address(route: TopicRouteData, broker_name: str, broker_id: int) -> str | None:
    """Return the address of one replica of a broker. Return None if the route has no valid address for it."""
    for data in route.broker_datas:
        if data.broker_name == broker_name:
            address = data.broker_addrs.get(broker_id)
            return address if address is not None and is_address(address) else None
    return None


def master_address(route: TopicRouteData, broker_name: str) -> str | None:
    return broker_address(route, broker_name, MASTER_ID)


def master_addresses(route: TopicRouteData) -> dict[str, str]:
    """Return the address of every master with a valid address, by broker name.

    Brokers without queues of the topic are included, because a producer also sends heartbeats to them.
    """
    addresses: dict[str, str | None] = {}
    for data in route.broker_datas:
        addresses.setdefault(data.broker_name, data.broker_addrs.get(MASTER_ID))  # the first address of a name counts
    return {name: address for name, address in addresses.items() if address is not None and is_address(address)}


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``[v6]:port`` or ``v6:port``, which is split at the last colon.

    Raises:
        RemoteProtocolError: If ``address`` has another form or its port is not in 1..65535.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not 0 < len(host) <= 255 or not host.isprintable() or " " in host or "/" in host:
        raise RemoteProtocolError(f"address {address[:80]!r} has no valid host; the form is host:port")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise RemoteProtocolError(f"address {address[:80]!r} has no port in 1..65535; the form is host:port")
    return host, int(port)


@lru_cache(maxsize=1024)
def is_address(text: str) -> bool:
    """Return whether ``split_address`` accepts the text.

    Results are cached, because the routes of all topics have the same few addresses.
    """
    try:
        split_address(text)
    except RemoteProtocolError:
        return False
    return True


def route_fingerprint(route: TopicRouteData) -> bytes:
    """Return bytes that are equal for two routes if the routes have the same queues and brokers, in any order, and the same other
    members. ``filter_server_table`` is ignored, although Java's ``topicRouteDataChanged`` compares it.
    """
    plain = msgspec.to_builtins(route, str_keys=True)
    del plain["filterServerTable"]
    for name in ("queueDatas", "brokerDatas"):
        plain[name] = sorted(plain[name], key=_text)
    return _text(plain)


def _text(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _ordered_queues(topic: str, conf: str) -> tuple[MessageQueue, ...]:
    """Return the queues of a string such as ``broker-b:2;broker-a:3``.

    Empty items are errors, except at the end, where Java's ``split`` drops them.
    """
    queues: list[MessageQueue] = []
    for item in conf.rstrip(";").split(";") if conf.strip(";") else ():
        name, *rest = item.split(":")
        if not rest or not _digits(rest[0]):
            raise RemoteProtocolError(f"orderTopicConf {conf[:80]!r}: {item[:40]!r} is not broker:count")
        count = int(rest[0])
        _count(len(queues) + count, "queues of orderTopicConf")
        queues.extend(MessageQueue(topic, name, queue_id) for queue_id in range(count))
    return tuple(queues)


def _count(count: int, what: str) -> None:
    if count > MAX_ROUTE_QUEUES:
        raise RemoteProtocolError(f"route: {count} {what} are above the limit of {MAX_ROUTE_QUEUES}")


def _pseudo_broker(scope: str) -> str:
    return LOGICAL_QUEUE_MOCK_BROKER_PREFIX + (scope[2:] if scope == _GLOBAL_SCOPE else scope)
