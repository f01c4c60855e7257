"""The members of a consumer group, as one broker lists them (GET_CONSUMER_LIST_BY_GROUP, 38)."""

from __future__ import annotations

from rmq_protocol.bodies import GetConsumerListByGroupResponseBody
from rmq_protocol.constants import ResponseCode
from rmq_protocol.headers import GetConsumerListByGroupRequestHeader, request_of
from rmq_protocol.json_body import decode_body

from ..broker_answers import broker_error
from .instance import ClientInstance


async def group_members(instance: ClientInstance, group: str, broker_name: str, topic: str) -> tuple[str, ...]:
    """Return the client ids of the group's members, in no particular order.

    The tuple has one entry for each connection, so a client is listed twice if the broker has not closed an old connection of that
    client. It is empty if the group has no members (the broker then responds with code 1, see ``has_no_members``). Only a master is
    asked, because members send no heartbeats to replicas.

    Args:
        topic: A topic whose route names the broker.

    Raises:
        BrokerError: If the broker refuses the request.
        RemoteProtocolError: If the body of the response cannot be read.
        RocketMQError: Other errors of ``ClientInstance.ask_broker``.
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
    """Return whether a response to GET_CONSUMER_LIST_BY_GROUP says that the group has no members."""
    return code == ResponseCode.SYSTEM_ERROR and "no consumer for this group" in (remark or "")
