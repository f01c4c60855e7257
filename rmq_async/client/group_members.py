"""The members of a consumer group, as one broker lists them (GET_CONSUMER_LIST_BY_GROUP, 38)."""

from __future__ import annotations

from rmq_protocol.bodies import GetConsumerListByGroupResponseBody
from rmq_protocol.constants import ResponseCode
from rmq_protocol.headers import GetConsumerListByGroupRequestHeader, request_of
from rmq_protocol.json_body import decode_body

from ..broker_answers import broker_error
from .instance import ClientInstance


async def group_members(instance: ClientInstance, group: str, broker_name: str, topic: str) -> tuple[str, ...]:
    """Return the members' client ids in no order, one for each connection: a client with an old connection that the broker has
    not closed is listed twice. Empty for a group without members: brokers then answer with code 1 (``has_no_members``). Only a
    master is asked, because members send no heartbeats to replicas.

    Raises as ``ClientInstance.ask_broker`` does, too.

    Args:
        topic: A topic whose route names the broker.

    Raises:
        BrokerError: If the broker refuses the request.
        RemoteProtocolError: For a body that cannot be read.
    """
    command = request_of(GetConsumerListByGroupRequestHeader(consumerGroup=group))
    response, address = await instance.ask_broker(broker_name, topic, command, instance.config.request_timeout)
    if has_no_members(response.code, response.remark):
        return ()
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(
            response.code, response.remark, request="GET_CONSUMER_LIST_BY_GROUP", broker=broker_name, address=address
        )
    return decode_body(GetConsumerListByGroupResponseBody, response.body).consumer_id_list


def has_no_members(code: int | None, remark: str | None) -> bool:
    """Return whether an answer to GET_CONSUMER_LIST_BY_GROUP says that the group has no members."""
    return code == ResponseCode.SYSTEM_ERROR and "no consumer for this group" in (remark or "")
