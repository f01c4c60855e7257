"""The requests of a consumer of lite topics: pops, subscriptions, and questions about offsets."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

import msgspec

from rmq_protocol import headers
from rmq_protocol.bodies import decode_body, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import PropertyName, RequestCode, ResponseCode
from rmq_protocol.lite import LiteSubscription, LiteSubscriptions, LiteTopicDetails, lmq_name
from rmq_protocol.message import MessageExt
from rmq_protocol.pop import ExtraInfo

from ... import machine
from ...broker_answers import broker_error
from ...client import ClientInstance
from ..pop.pop_requests import ANSWER_WITHIN, Popped, Requests, Wanted

LITE_QUEUE: Final = 0
"""The queue id of acknowledgements and changes: a lite topic has one queue."""


class LiteRequests(Requests):
    """The requests of one consumer of lite topics.

    Args:
        topic: Name of the parent topic on the wire.
    """

    def __init__(self, instance: ClientInstance, group: str, topic: str) -> None:
        super().__init__(instance, group)
        self._topic = topic

    async def pop(self, wanted: Wanted) -> Popped:
        """Pop messages of the lite topics to which the client is subscribed at the broker.

        A message whose lite topic or offset cannot be read has no handle.

        Raises:
            BrokerError: If the broker refuses the pop.
            RemoteProtocolError: For an invalid response. The errors of a request also propagate.
        """
        header = headers.PopLiteMessageRequestHeader(
            clientId=self._instance.client_id,
            consumerGroup=self._group,
            topic=wanted.topic,
            maxMsgNum=wanted.messages,
            invisibleTime=wanted.invisible_ms,
            pollTime=wanted.poll_ms,
            bornTime=wanted.born_ms,
            attemptId=uuid.UUID(int=machine.random.getrandbits(128)).hex,
        )
        timeout = wanted.poll_ms / 1000 + ANSWER_WITHIN
        command = headers.request_of(header)
        response, address, sent = await self._ask(self.pool, wanted.broker, wanted.topic, command, timeout, long_poll=True)
        arrived = machine.monotonic()
        answer = headers.from_ext(headers.PopLiteMessageResponseHeader, response.ext_fields)
        if response.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
            return Popped((), (), (), (), False, 0, answer.popTime, 0, sent, arrived, response.remark or "")
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(
                response.code, response.remark, request="POP_LITE_MESSAGE", broker=wanted.broker, address=address
            )
        decoded = await self._decoded(wanted, response, address, arrived, answer.invisibleTime)
        messages = _counted(decoded.messages, answer.orderCountInfo)
        handles = [self._handle(message, answer, wanted.broker) for message in messages]
        return Popped(
            messages, handles, decoded.corrupt, (), decoded.resume_at is not None, 0, answer.popTime,
            min(answer.invisibleTime, wanted.invisible_ms), sent, arrived,
        )  # fmt: skip

    def _handle(self, message: MessageExt, answer: headers.PopLiteMessageResponseHeader, broker: str) -> ExtraInfo | None:
        lite_topic = message.lite_topic
        if lite_topic is None:
            return None
        offset = _offset_in(message, lmq_name(self._topic, lite_topic))
        if offset is None:
            return None
        return ExtraInfo(
            offset, answer.popTime, answer.invisibleTime, answer.reviveQid, "0", broker, LITE_QUEUE, offset, lite_topic
        )

    async def change_subscriptions(self, broker: str, *changes: LiteSubscription, timeout: float) -> None:
        """Send changes of the client's subscriptions to a broker.

        Raises:
            LiteSubscriptionQuotaError: If the broker has its maximum number of subscriptions (``maxLiteSubscriptionCount``).
            BrokerError: If the broker refuses. The errors of a request also propagate.
        """
        command = RemotingCommand(
            code=RequestCode.LITE_SUBSCRIPTION_CTL, body=encode_body(LiteSubscriptions(subscription_set=changes))
        )
        response, address = await self._instance.ask_broker(broker, self._topic, command, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, request="LITE_SUBSCRIPTION_CTL", broker=broker, address=address)

    async def details(self, broker: str, lite_topic: str, timeout: float) -> LiteTopicDetails:
        """Return what a broker knows of a lite topic. The errors of the request propagate."""
        command = headers.request_of(headers.GetLiteTopicInfoRequestHeader(parentTopic=self._topic, liteTopic=lite_topic))
        response, address = await self._instance.ask_broker(broker, self._topic, command, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, request="GET_LITE_TOPIC_INFO", broker=broker, address=address)
        return decode_body(LiteTopicDetails, response.body)

    async def offset_at(self, broker: str, lite_topic: str, time_ms: int, timeout: float) -> int:
        """Return the offset of the first message that was stored at ``time_ms`` or later. The errors of the request propagate."""
        header = headers.SearchOffsetRequestHeader(
            topic=self._topic, queueId=LITE_QUEUE, timestamp=time_ms, liteTopic=lite_topic
        )
        command = headers.request_of(header)
        response, address = await self._instance.ask_broker(broker, self._topic, command, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(
                response.code, response.remark, request="SEARCH_OFFSET_BY_TIMESTAMP", broker=broker, address=address
            )
        return headers.from_ext(headers.SearchOffsetResponseHeader, response.ext_fields).offset


def _counted(messages: Sequence[MessageExt], counts: str | None) -> list[MessageExt]:
    """Return the messages with the numbers of their earlier deliveries.

    Args:
        counts: The field orderCountInfo: for each message its number, or the retry flag, the queue with the offset, and the number.
    """
    parts = (counts or "").split(";")
    if len(parts) != len(messages):
        return [*messages]
    return [_with_count(message, part.rpartition(" ")[2]) for message, part in zip(messages, parts, strict=True)]


def _with_count(message: MessageExt, number: str) -> MessageExt:
    if number == "0" or not number.isdecimal() or len(number) > 9:
        return message
    return msgspec.structs.replace(message, reconsume_times=int(number))


def _offset_in(message: MessageExt, queue: str) -> int | None:
    """Return the offset of a message in a light queue. Return None if its properties do not contain it."""
    names = message.properties.get(PropertyName.INNER_MULTI_DISPATCH, "").split(",")
    offsets = message.properties.get(PropertyName.INNER_MULTI_QUEUE_OFFSET, "").split(",")
    if queue not in names or len(names) != len(offsets):
        return None
    offset = offsets[names.index(queue)]
    return int(offset) if offset.isascii() and offset.isdecimal() and len(offset) < 19 else None
