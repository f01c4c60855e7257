"""Checks whether a broker has a master now.

A message that a master lacks was deleted; one that a replica lacks may still exist.
"""

from __future__ import annotations

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import MASTER_ID, RequestCode, ResponseCode
from rmq_protocol.headers import GetRouteInfoRequestHeader, to_ext
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import decode_route

from ..errors import RocketMQError
from .instance import ClientInstance

__all__ = ["has_master", "is_masterless", "known_master"]


def known_master(instance: ClientInstance, queue: MessageQueue) -> bool | None:
    """Return whether the broker that holds ``queue`` has a master, as far as the routes in use show that.

    None where they do not: the topic's route may name a replica as the master, or the topic has no route here and the broker's
    address is that of another topic's route.
    """
    routes = instance.routes
    broker_name = routes.broker_of(queue)
    if routes.address_of(broker_name) is None:
        return False
    route = routes.cached(queue.topic)
    if route is None:
        return None
    acting = [data for data in route.data.broker_datas if data.enable_acting_master and data.broker_name == broker_name]
    return None if acting else True


async def is_masterless(instance: ClientInstance, broker_name: str, topic: str, timeout: float) -> bool:
    """Return whether all name servers say, within ``timeout`` seconds, that a broker has replicas for ``topic`` and no master.

    One name server is no witness: it may have been restarted, or be separated from the master as this client is. One that does
    not answer may know a master.
    """
    header = GetRouteInfoRequestHeader(topic=topic, acceptStandardJsonOnly=True)
    command = RemotingCommand(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={**to_ext(header)})
    try:
        answers = await instance.name_servers.each(command, timeout)
        return all(_lists_only_replicas(answer, broker_name) for answer in answers.values())
    except RocketMQError:
        return False


def _lists_only_replicas(answer: RemotingCommand, broker_name: str) -> bool:
    """Return whether a route lists a broker without a master.

    Raises:
        RemoteProtocolError: For a route that cannot be read.
    """
    if answer.code != ResponseCode.SUCCESS or not answer.body:
        return False
    found = [data.broker_addrs for data in decode_route(answer.body).broker_datas if data.broker_name == broker_name]
    return bool(found) and all(addresses and MASTER_ID not in addresses for addresses in found)


async def has_master(instance: ClientInstance, queue: MessageQueue) -> bool:
    """Return whether the broker that holds ``queue`` has a master.

    With ``enableSlaveActingMaster`` a name server names a replica in the master's place. The cluster's broker list keeps the real
    broker ids, so it is requested where ``known_master`` returns None. Raises as ``NameServers.cluster_info`` does.
    """
    known = known_master(instance, queue)
    if known is not None:
        return known
    info = await instance.name_servers.cluster_info(instance.config.request_timeout)
    data = info.broker_addr_table.get(instance.routes.broker_of(queue))
    return data is not None and MASTER_ID in data.broker_addrs
