"""The embedded name server: routes (105) and the cluster (106), read from the brokers' own tables when asked.

Brokers of one process have no need to register; so a topic's route is there as soon as the topic is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmq_protocol.cluster import ClusterInfo, encode_cluster_info
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import MASTER_ID, RequestCode, ResponseCode
from rmq_protocol.headers import GetRouteInfoRequestHeader, from_ext
from rmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route

from .broker import Broker
from .faults import FailureScript
from .server import Connection
from .service import BaseService, Refused
from .state import CLUSTER
from .topics import FAQ

__all__ = ["NAME", "NameServer"]

NAME: Final = "namesrv"
_STANDARD_JSON_FROM: Final = 401
"""``MQVersion.V4_9_4``: younger clients get standard JSON without asking for it."""


class NameServer(BaseService):
    named_failures_only = True

    def __init__(self, brokers: Sequence[Broker], failures: FailureScript) -> None:
        super().__init__(NAME, failures)
        self._brokers = brokers
        self.handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
        }

    def _route(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = from_ext(GetRouteInfoRequestHeader, command.ext_fields, lenient=True)
        queues: list[QueueData] = []
        brokers: list[BrokerData] = []
        for broker in self._brokers:
            topic = broker.state.topics.get(header.topic)
            if topic is not None and broker.listener.running:
                config = topic.config
                queues.append(
                    QueueData(broker.name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)
                )
                brokers.append(_broker_data(broker, connection))
        if not queues:
            topic_name: str | None = header.topic
            shown = "null" if topic_name is None else topic_name[:160]
            remark = f"No topic route info in name server for the topic: {shown}\n{FAQ}"
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
        standard = command.version >= _STANDARD_JSON_FROM or bool(header.acceptStandardJsonOnly)
        route = TopicRouteData(tuple(queues), tuple(brokers))
        return make_response(command, ResponseCode.SUCCESS, body=encode_route(route, standard=standard))

    def _cluster(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        running = [broker for broker in self._brokers if broker.listener.running]
        info = ClusterInfo(
            {broker.name: _broker_data(broker, connection) for broker in running},
            {CLUSTER: tuple(broker.name for broker in running)},
        )
        return make_response(command, ResponseCode.SUCCESS, body=encode_cluster_info(info, standard=False))


def _broker_data(broker: Broker, connection: Connection) -> BrokerData:
    return BrokerData(broker.name, {MASTER_ID: broker.listener.address(connection)}, CLUSTER)
