"""Whether a broker has a master now. What it does not hold is gone; what a replica does not hold may be there all the same."""

from __future__ import annotations

from rmq_protocol.cluster import ClusterInfo, decode_cluster_info
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import MASTER_ID, RequestCode, ResponseCode
from rmq_protocol.message import MessageQueue

from ..broker_answers import broker_error
from .instance import ClientInstance

__all__ = ["has_master", "known_master"]


def known_master(instance: ClientInstance, queue: MessageQueue) -> bool | None:
    """Whether the broker that holds ``queue`` has one by the route in use; None where the route may name a replica as one, and
    where there is none: the broker's address is then that of another topic's route."""
    routes = instance.routes
    broker_name = routes.broker_of(queue)
    if routes.address_of(broker_name) is None:
        return False
    route = routes.cached(queue.topic)
    if route is None:
        return None
    acting = [data for data in route.data.broker_datas if data.enable_acting_master and data.broker_name == broker_name]
    return None if acting else True


async def has_master(instance: ClientInstance, queue: MessageQueue) -> bool:
    """Whether the broker that holds ``queue`` has one.

    With ``enableSlaveActingMaster`` a name server names a replica in the master's place; the list of the cluster's brokers keeps
    their own numbers, so it is asked where the route says that this may be. Raises what asking a name server raises.
    """
    known = known_master(instance, queue)
    if known is not None:
        return known
    command = RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO)
    info, _ = await instance.name_servers.ask(command, instance.config.request_timeout, _read)
    data = info.broker_addr_table.get(instance.routes.broker_of(queue))
    return data is not None and MASTER_ID in data.broker_addrs


def _read(response: RemotingCommand, address: str) -> ClusterInfo:
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark, request="GET_BROKER_CLUSTER_INFO", address=address)
    return decode_cluster_info(response.body)
