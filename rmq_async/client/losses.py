"""Determines which messages of a queue were deleted: the missing offsets minus the gaps that are not losses."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import MASTER_ID, RequestCode, ResponseCode
from rmq_protocol.continuity import gaps_of_mapping, without_ranges
from rmq_protocol.errors import RemoteProtocolError, RocketMQError
from rmq_protocol.headers import GetRouteInfoRequestHeader, GetTopicConfigRequestHeader, request_of
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import decode_route
from rmq_protocol.topics import TopicConfigAndQueueMapping

from .._ordered import OrderedSet
from .._text import printable
from ..broker_answers import broker_error
from ..errors import AuthenticationError, NoPermissionError, PermissionDeniedError
from ..tracebacks import without_frames
from .gaps import is_compacted
from .instance import ClientInstance

# Checks whether a broker currently has a master.
#
# A message that is missing on a master was deleted; a message that is missing on a replica may still exist.


def known_master(instance: ClientInstance, queue: MessageQueue) -> bool | None:
    """Return whether the broker that holds ``queue`` has a master, according to the routes in use.

    Return None if the routes do not show it: the topic's route may name a replica as the master, or the topic has no route here and
    the broker's address comes from another topic's route.
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
    """Return whether all name servers report within ``timeout`` seconds that a broker has replicas for ``topic`` and no master.

    A single name server does not prove this: it may have been restarted, or be disconnected from the master as this client is. A
    name server that does not respond may know a master.
    """
    command = request_of(GetRouteInfoRequestHeader(topic=topic, acceptStandardJsonOnly=True))
    try:
        answers = await instance.name_servers.each(command, timeout)
        return all(_lists_only_replicas(answer, broker_name) for answer in answers.values())
    except RocketMQError:
        return False


def _lists_only_replicas(answer: RemotingCommand, broker_name: str) -> bool:
    """Return whether a route response lists the broker, but without a master.

    Raises:
        RemoteProtocolError: If the route cannot be read.
    """
    if answer.code != ResponseCode.SUCCESS or not answer.body:
        return False
    found = [data.broker_addrs for data in decode_route(answer.body).broker_datas if data.broker_name == broker_name]
    return bool(found) and all(addresses and MASTER_ID not in addresses for addresses in found)


async def has_master(instance: ClientInstance, queue: MessageQueue) -> bool:
    """Return whether the broker that holds ``queue`` has a master.

    With ``enableSlaveActingMaster``, routes of a name server contain a replica in place of the master. The cluster's broker list
    keeps the real broker ids, so this list is requested if ``known_master`` returns None.

    Raises:
        RocketMQError: The errors of ``NameServers.cluster_info``.
    """
    known = known_master(instance, queue)
    if known is not None:
        return known
    info = await instance.name_servers.cluster_info(instance.config.request_timeout)
    data = info.broker_addr_table.get(instance.routes.broker_of(queue))
    return data is not None and MASTER_ID in data.broker_addrs


logger = logging.getLogger("rmq_async.client.gaps")

_UNKNOWN_THERE: Final = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.TOPIC_NOT_EXIST})
"""The code of brokers before 5.0, which have neither compacted nor static topics, and the code for a deleted topic, which has no
settings."""
_NO_SETTINGS: Final = TopicConfigAndQueueMapping("")


async def lost_offsets(
    instance: ClientInstance,
    queue: MessageQueue,
    missing: tuple[range, ...],
    *,
    static: bool = False,
    timeout: float | None = None,
    calls: OrderedSet[asyncio.Future[RemotingCommand]] | None = None,
) -> tuple[range, ...]:
    """Return the offsets in ``missing`` whose messages were deleted.

    If the topic's settings cannot be read, or this user has no permission to read them, all missing offsets count as deleted.

    Args:
        missing: Offsets that the response to a pull without a filter left out.
        static: Whether the queue belongs to a static topic.
        timeout: Seconds for the request for the topic's settings. The default and the maximum is ``request_timeout``.
        calls: As for ``ConnectionPool.request``.

    Raises:
        BrokerError: If the broker refuses to return the settings for a reason other than permissions.
        RocketMQError: Other errors of ``ClientInstance.ask_broker``.
    """
    broker_name = instance.routes.broker_of(queue)
    config = None if static else instance.gaps.get(broker_name, queue.topic)
    if config is None:
        limit = instance.config.request_timeout
        budget = limit if timeout is None else min(timeout, limit)
        config = await _settings(instance, broker_name, queue.topic, budget, calls)
        instance.gaps.put(broker_name, queue.topic, config)
    if is_compacted(config):
        return ()
    detail = config.mapping_detail
    items = detail.hosted_queues.get(queue.queue_id, ()) if detail is not None else ()
    return without_ranges(missing, gaps_of_mapping(items))


async def _settings(
    instance: ClientInstance,
    broker_name: str,
    topic: str,
    timeout: float,
    calls: OrderedSet[asyncio.Future[RemotingCommand]] | None,
) -> TopicConfigAndQueueMapping:
    command = request_of(GetTopicConfigRequestHeader(topic=topic, lo=True))
    response, address = await instance.ask_broker(broker_name, topic, command, timeout, any_replica=True, calls=calls)
    if response.code in _UNKNOWN_THERE:
        return _NO_SETTINGS
    error: RocketMQError
    if response.code == ResponseCode.SUCCESS:
        try:
            return decode_body(TopicConfigAndQueueMapping, response.body)
        except RemoteProtocolError as unreadable:
            error = without_frames(unreadable)
    else:
        request = RequestCode.GET_TOPIC_CONFIG.name
        error = broker_error(response.code, response.remark, request=request, broker=broker_name, address=address)
        if not isinstance(error, AuthenticationError | NoPermissionError | PermissionDeniedError):
            raise error
    logger.warning(
        "missing offsets of topic %s count as lost messages, because broker %s does not show whether the topic is compacted: %s",
        instance.names.display_name(topic),
        address,
        printable(error),
    )
    return _NO_SETTINGS
