"""The embedded name server.

The name server serves requests for routes (code 105), for the cluster (106) and for topics (206, 216, 224, 304) from its
directory of brokers. It also serves requests for key-value settings (100-102, 219).

With ``LiveBrokers``, the directory of an ``EmbeddedRocketMQ``, brokers need not register. A topic has a route as long as a
running broker has the topic, and a deletion at the name server alone has no effect. With ``Registrations``, a name server knows
only registered brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rmq_protocol import headers
from rmq_protocol.bodies import KVTable, TopicList, encode_body
from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import ORDER_TOPIC_CONFIG, RequestCode, ResponseCode
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route

from .broker import Broker
from .directory import BrokerDirectory, Holder
from .faults import FailureScript
from .server import Connection
from .service import BaseService, Refused, header_of
from .topics import CLUSTER, FAQ


class LiveBrokers:
    """The directory of the brokers of one process.

    It lists each broker while the broker listens, with the address at which the requesting client can reach it.
    """

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self._brokers = brokers

    def holders(self, topic: str, connection: Connection | None = None) -> list[Holder]:
        return [
            Holder(broker.name, broker.listener.address(connection), found.config, broker.broker_id)
            for broker in self._running()
            if (found := broker.state.topics.get(topic)) is not None
        ]

    def brokers(self, connection: Connection) -> dict[str, dict[int, str]]:
        return {broker.name: {broker.broker_id: broker.listener.address(connection)} for broker in self._running()}

    def topics(self) -> dict[str, None]:
        return dict.fromkeys(topic.config.topic_name for broker in self._running() for topic in broker.state.topics)

    def forget(self, topic: str) -> None:
        """Do nothing, because a broker that has the topic would register it again."""

    def expire(self) -> None:
        """Do nothing, because no entry expires."""

    def _running(self) -> list[Broker]:
        return [broker for broker in self._brokers if broker.listener.running]


NAME: Final = "namesrv"
MAX_SETTINGS: Final = 10_000
MAX_SETTINGS_SIZE: Final = 8 * 1024 * 1024
"""Maximum number of characters of all namespaces, keys and values together."""
_STANDARD_JSON_FROM: Final = 401
"""``MQVersion.V4_9_4``. Clients of this version or a later one get standard JSON without requesting it."""


class NameServer(BaseService):
    """A name server that routes clients to the brokers in its directory.

    After a crash, create a new object with a new directory and the settings of the old object. The docstring of ``Broker`` shows
    how to use a name server without an ``EmbeddedRocketMQ``.

    Args:
        directory: The brokers that the name server knows.
        failures: The script of requests that fail. The default is a new script.
        name: The name in log records.
        order_conf: Whether routes contain the order of queues that ``create_topic(order=True)`` writes
            (``orderMessageEnable``).
        settings: The key-value settings, by namespace and key, which a real name server keeps in a file. The default is no
            settings.
    """

    named_failures_only = True

    def __init__(
        self,
        directory: BrokerDirectory,
        failures: FailureScript | None = None,
        *,
        name: str = NAME,
        order_conf: bool = False,
        settings: dict[str, dict[str, str]] | None = None,
    ) -> None:
        super().__init__(name, failures)
        self._directory = directory
        self.handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.PUT_KV_CONFIG: self._put_setting,
            RequestCode.GET_KV_CONFIG: self._get_setting,
            RequestCode.DELETE_KV_CONFIG: self._delete_setting,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._settings_of,
        }
        self._order_conf = order_conf
        self._settings = {} if settings is None else settings
        self._count = sum([1 + len(table) for table in self._settings.values()])
        """Number of namespaces and keys."""
        self._size = sum([len(each) + sum(map(_length, table, table.values())) for each, table in self._settings.items()])

    def _route(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = headers.from_ext(headers.GetRouteInfoRequestHeader, command.ext_fields, lenient=True)
        queues: list[QueueData] = []
        brokers: list[BrokerData] = []
        for name, address, config, broker_id in self._directory.holders(header.topic, connection):
            queues.append(QueueData(name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag))
            brokers.append(BrokerData(name, {broker_id: address}, CLUSTER))
        if not queues:
            topic_name: str | None = header.topic
            shown = "null" if topic_name is None else topic_name[:160]
            remark = f"No topic route info in name server for the topic: {shown}\n{FAQ}"
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
        standard = command.version >= _STANDARD_JSON_FROM or bool(header.acceptStandardJsonOnly)
        order = self._settings.get(ORDER_TOPIC_CONFIG, {}).get(header.topic) if self._order_conf else None
        route = TopicRouteData(tuple(queues), tuple(brokers), order)
        return make_response(command, ResponseCode.SUCCESS, body=encode_route(route, standard=standard))

    def _topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return _topic_list(command, self._directory.topics())

    def _topics_by_cluster(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the topics of a cluster. Return no topics for an unknown cluster."""
        header = headers.from_ext(headers.GetTopicsByClusterRequestHeader, command.ext_fields, lenient=True)
        return _topic_list(command, self._directory.topics() if header.cluster == CLUSTER else ())

    def _system_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        brokers = self._directory.brokers(connection)
        addresses = [address for each in brokers.values() for address in each.values()]
        return _topic_list(command, [CLUSTER, *brokers], next(iter(addresses), None))

    def _delete_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._directory.forget(header_of(headers.DeleteTopicFromNamesrvRequestHeader, command).topic)
        return make_response(command, ResponseCode.SUCCESS)

    def tick(self) -> None:
        self._directory.expire()

    def _put_setting(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = headers.from_ext(headers.PutKVConfigRequestHeader, command.ext_fields, lenient=True)
        namespace: str | None = header.namespace
        key: str | None = header.key
        value: str | None = header.value
        if namespace is None or key is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        self._change_setting(namespace, key, value or "")
        return make_response(command, ResponseCode.SUCCESS)

    def _change_setting(self, namespace: str, key: str, value: str | None) -> None:
        """Store a setting. A ``value`` of None deletes the setting.

        Empty namespaces stay, as in a real name server, and still count.

        Raises:
            Refused: With code 1 if the setting would exceed ``MAX_SETTINGS_SIZE``.
        """
        table = self._settings.get(namespace, {})
        old = table.get(key)
        new = namespace not in self._settings
        count = self._count + (value is not None) - (old is not None) + new
        size = self._size + _length(key, value) - _length(key, old) + (len(namespace) if new else 0)
        if value is not None and (count > MAX_SETTINGS or size > MAX_SETTINGS_SIZE):
            remark = (
                f"no room for the setting: at most {MAX_SETTINGS} namespaces and keys, of {MAX_SETTINGS_SIZE} characters with "
                "their values, are kept; delete some keys first"
            )
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        if value is not None:
            self._settings.setdefault(namespace, table)[key] = value
        elif old is not None:
            del table[key]
        else:
            return
        self._count, self._size = count, size

    def _get_setting(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.GetKVConfigRequestHeader, command)
        value = self._settings.get(header.namespace, {}).get(header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            raise Refused(ResponseCode.QUERY_NOT_FOUND, remark, {})
        return make_response(command, ResponseCode.SUCCESS, None, {"value": value})

    def _delete_setting(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.DeleteKVConfigRequestHeader, command)
        self._change_setting(header.namespace, header.key, None)
        return make_response(command, ResponseCode.SUCCESS)

    def _settings_of(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        namespace = header_of(headers.GetKVListByNamespaceRequestHeader, command).namespace
        table = self._settings.get(namespace)
        if table is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(KVTable(table)))

    def _cluster(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        brokers = self._directory.brokers(connection)
        info = ClusterInfo(
            {name: BrokerData(name, addresses, CLUSTER) for name, addresses in brokers.items()},
            {CLUSTER: tuple(brokers)},
        )
        return make_response(command, ResponseCode.SUCCESS, body=encode_cluster_info(info, standard=False))


def _length(key: str, value: str | None) -> int:
    return 0 if value is None else len(key) + len(value)


def _topic_list(command: RemotingCommand, names: Iterable[str], address: str | None = None) -> RemotingCommand:
    return make_response(command, ResponseCode.SUCCESS, body=encode_body(TopicList(tuple(names), address)))
