"""Cancels the delivery of a delayed message (RECALL_MESSAGE, 370) with the recall handle from its send result."""

from __future__ import annotations

from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import InvalidMessageError, RemoteProtocolError
from rmq_protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader, from_ext, request_of
from rmq_protocol.namespace import is_dlq_topic, is_retry_topic
from rmq_protocol.recall import decode_recall_handle
from rmq_protocol.validation import check_topic

from .. import machine
from ..broker_answers import broker_error
from ..errors import BrokerError, BrokerNotFoundError, NoPermissionError
from .core import ProducerCore

_NAMES: Final = -1
"""Java's error code for topics and handles that the client refuses without sending a request."""


async def recall(sender: ProducerCore, topic: str, recall_handle: str) -> str:
    """Cancel the delivery of a delayed message and return its unique id; see ``Producer.recall``.

    The request goes to the broker that the handle names. If the master of this broker is unknown, it goes to another broker of the
    topic.
    """
    deadline = machine.monotonic() + sender.timeout
    check_topic(topic)
    if is_retry_topic(topic) or is_dlq_topic(topic):
        raise InvalidMessageError(
            f"messages of topic {topic} cannot be recalled, because it is a retry or dead letter topic; pass the topic "
            "to which the message was sent",
            code=_NAMES,
        )
    wire_topic = sender.instance.names.wire(topic)
    try:
        handle = decode_recall_handle(recall_handle)
    except RemoteProtocolError as error:
        raise InvalidMessageError(str(error), code=_NAMES) from None
    if handle.topic != wire_topic:
        raise InvalidMessageError(
            f"the recall handle belongs to topic {handle.topic[:200]!r}, not to {topic}; pass the handle's topic", code=_NAMES
        )
    header = RecallMessageRequestHeader(
        producerGroup=sender.producer_group, topic=wire_topic, recallHandle=recall_handle, bname=handle.broker_name
    )
    command = request_of(header)
    epoch = await sender.credits.take(1, 0, deadline)
    try:
        response, broker, address = await sender.unless_stopped(_ask(sender, handle.broker_name, wire_topic, command, deadline))
    finally:
        sender.credits.give_back(epoch, 1, 0)
    if sender.tracer is not None:
        region = (response.ext_fields or {}).get("MSG_REGION")
        recalled = response.code == ResponseCode.SUCCESS
        sender.tracer.recall(topic, handle.message_id, success=recalled, region=region)
    if response.code != ResponseCode.SUCCESS:
        raise _refusal(response, broker, address)
    try:
        return from_ext(RecallMessageResponseHeader, response.ext_fields).msgId
    except RemoteProtocolError as error:
        error.broker, error.address = broker, address
        raise


def _refusal(response: RemotingCommand, broker: str, address: str) -> BrokerError:
    """Return the error for the broker's response.

    If recalls are disabled on the broker or unknown to it, the text names the setting that enables them.
    """
    error = broker_error(response.code, response.remark, request="RECALL_MESSAGE", broker=broker, address=address)
    if type(error) is NoPermissionError:  # not a subclass, which concerns the permissions of a user
        error.args = (f"{error}; a broker recalls messages only with recallMessageEnable=true in its configuration",)
    elif error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        error.args = (f"{error}; brokers recall messages from 5.3.2 on, with recallMessageEnable=true in their configuration",)
    return error


async def _ask(
    sender: ProducerCore, broker: str, topic: str, command: RemotingCommand, deadline: float
) -> tuple[RemotingCommand, str, str]:
    instance = sender.instance
    try:
        response, address = await instance.ask_broker(broker, topic, command, max(deadline - machine.monotonic(), 0.0))
    except BrokerNotFoundError:
        route = await instance.routes.get(topic, max(deadline - machine.monotonic(), 0.0))
        others = [name for name in sorted(route.addresses) if name != broker and route.master_address(name) is not None]
        if not others:
            raise
        broker = others[0]
        response, address = await instance.ask_broker(broker, topic, command, max(deadline - machine.monotonic(), 0.0))
    return response, broker, address
