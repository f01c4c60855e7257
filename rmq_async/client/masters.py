"""Checks whether a broker has a master now. A message that a master lacks was deleted; one that a replica lacks may still exist."""

from __future__ import annotations

from rmq_protocol.constants import MASTER_ID
from rmq_protocol.message import MessageQueue

from .instance import ClientInstance

__all__ = ["has_master", "known_master"]


def known_master(instance: ClientInstance, queue: MessageQueue) -> bool | None:
    """Returns whether the broker that holds ``queue`` has a master, as far as the routes in use show that.

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


async def has_master(instance: ClientInstance, queue: MessageQueue) -> bool:
    """Returns whether the broker that holds ``queue`` has a master.

    With ``enableSlaveActingMaster`` a name server names a replica in the master's place. The cluster's broker list keeps the real
    broker ids, so it is requested where ``known_master`` returns None. Raises as ``NameServers.cluster_info`` does.
    """
    known = known_master(instance, queue)
    if known is not None:
        return known
    info = await instance.name_servers.cluster_info(instance.config.request_timeout)
    data = info.broker_addr_table.get(instance.routes.broker_of(queue))
    return data is not None and MASTER_ID in data.broker_addrs
