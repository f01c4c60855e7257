"""Message traces: a record of each attempt is sent to a topic in which mqadmin and consoles find it by id and key.

A record is made when an attempt ends. It is sent over the producer's connections, but without its credits, send hooks and
selectors. Therefore no send waits for a trace, and a trace is not traced itself.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import Message, MessageExt
from rmq_protocol.trace import TRACE_TOPIC, MessageType, TraceBean, TraceContext, TraceType

from ... import machine
from ...client import TRACE_TIMEOUT, TraceRecords
from ...hooks import SendContext
from ...results import BatchSendResult, SendResult
from ..calls import Call, Dispatch, RetryLoop, is_retriable
from ..encoding import SEND_OK, Encoder, Outgoing, stored_message
from ..routing import Target, TopicQueues

logger = logging.getLogger("rmq_async.producer.trace")

REGION: Final = "DefaultRegion"
"""The region that is assumed for a broker that does not name its region."""
REGIONS_KEPT: Final = 1024
"""Maximum number of brokers whose regions are kept."""


class Tracer(TraceRecords):
    """The built-in hook of a producer that sends message traces."""

    def __init__(self, dispatch: Dispatch, encoder: Encoder, group: str, trace: bool | str) -> None:
        super().__init__(trace if isinstance(trace, str) else TRACE_TOPIC, self._send_message, logger, "producer")
        self._dispatch = dispatch
        self._encoder = encoder
        self._group = group
        # Broker -> region in its last response, or None if the broker turns tracing off.
        self._regions: dict[str, str | None] = {}

    # -- records

    def after_send(self, context: SendContext) -> None:
        """Append a record for each message of the attempt.

        Append no record for a queued one-way send (its outcome is unknown), for a message to the trace topic, or if the broker has
        turned tracing off.
        """
        result = context.result
        if (result is None and context.error is None) or context.queue.topic == self.topic:
            return
        region = self._region(context.broker, result)
        if region is None:
            return
        messages = context.message if isinstance(context.message, tuple) else (context.message,)
        offset_ids: Collection[str | None] = [None] * len(messages)
        if isinstance(result, BatchSendResult):
            offset_ids = result.offset_msg_ids
        elif result is not None:
            offset_ids = [result.offset_msg_id]
        kind = context.message_type if context.message_type is not MessageType.ORDER else MessageType.NORMAL  # as Java
        success = result is not None and result.status is SEND_OK
        for message, msg_id, offset_id in zip(messages, context.msg_ids, offset_ids, strict=True):
            bean = TraceBean(
                topic=message.topic,
                msg_id=msg_id,
                offset_msg_id=offset_id,
                tags=message.tags,
                keys=_keys(message),
                store_host=context.address,
                body_length=len(message.body),
                msg_type=kind,
            )
            self._append_attempt(bean, context.elapsed, region, context.group, success=success)

    def attempted(self, message: Message, msg_id: str, target: Target, result: SendResult | None, elapsed: float) -> None:
        """Do the work of ``after_send`` without a SendContext, for a normal message.

        Args:
            result: The result, or None if the attempt failed.
        """
        if target.queue.topic == self.topic or (region := self._region(target.broker, result)) is None:
            return
        bean = TraceBean(
            topic=message.topic,
            msg_id=msg_id,
            offset_msg_id=None if result is None else result.offset_msg_id,
            tags=message.tags,
            keys=_keys(message) if message.keys else None,
            store_host=target.address,
            body_length=len(message.body),
        )
        success = result is not None and result.status is SEND_OK
        self._append_attempt(bean, elapsed, region, self._group, success=success)

    def _append_attempt(self, bean: TraceBean, elapsed: float, region: str, group: str, *, success: bool) -> None:
        cost = round(elapsed * 1000)
        self.append(
            TraceContext(
                trace_type=TraceType.PUB,
                beans=(bean,),
                time_stamp=_now_ms() - cost,
                region_id=region,
                group_name=group,
                cost_time=cost,
                success=success,
            )
        )

    def end_transaction(
        self,
        message: Message | MessageExt,
        *,
        msg_id: str,
        address: str,
        transaction_id: str | None,
        state: str,
        from_check: bool = False,
        region: str | None = None,
    ) -> None:
        """Append a record of the request that ends a transaction.

        Args:
            state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.
            address: The address of the broker to which the request is sent.
        """
        bean = TraceBean(
            topic=message.topic,
            msg_id=msg_id,
            tags=message.tags,
            keys=_keys(message),
            store_host=address,
            msg_type=MessageType.TRANSACTION_COMMIT,
            transaction_id=transaction_id,
            transaction_state=state,
            from_transaction_check=from_check,
        )
        self._append(TraceType.END_TRANSACTION, bean, region, success=True)

    def recall(self, topic: str, msg_id: str | None, *, success: bool, region: str | None = None) -> None:
        """Append a record of a request to cancel the delivery of a delayed message.

        Args:
            success: Whether the broker confirmed the request.
        """
        self._append(TraceType.RECALL, TraceBean(topic=topic, msg_id=msg_id), region, success=success)

    def _append(self, kind: TraceType, bean: TraceBean, region: str | None, *, success: bool) -> None:
        self.append(
            TraceContext(
                trace_type=kind,
                beans=(bean,),
                time_stamp=_now_ms(),
                region_id=region or REGION,
                group_name=self._group,
                success=success,
            )
        )

    def _region(self, broker: str, result: SendResult | BatchSendResult | None) -> str | None:
        """Return the broker's region. Return None if the broker turns tracing off.

        For a failed attempt, return the last known region, or REGION if none is known.
        """
        if result is None:
            return self._regions.get(broker, REGION)
        if len(self._regions) >= REGIONS_KEPT and broker not in self._regions:
            self._regions.clear()
        region = self._regions[broker] = (result.region_id or REGION) if result.trace_on else None
        return region

    async def _send_message(self, message: Message, deadline: float) -> None:
        """Send one trace message. After a retriable error, send it once more, to another broker if the topic has one."""
        dispatch = self._dispatch
        outgoing = self._encoder.encode(message)
        topic_queues = await dispatch.router.topics.find(self.topic, deadline)
        first = topic_queues.next()
        try:
            await self._attempt(first, outgoing, topic_queues, min(deadline, machine.monotonic() + TRACE_TIMEOUT / 2))
        except RocketMQError as error:
            if dispatch.closed or not is_retriable(error, dispatch.config.retry_codes):
                raise
            second = topic_queues.next_of(topic_queues.brokers - {first.broker} or topic_queues.brokers)
            await self._attempt(second, outgoing, topic_queues, deadline)

    async def _attempt(self, target: Target, outgoing: Outgoing, topic_queues: TopicQueues, deadline: float) -> None:
        loop = RetryLoop(self._dispatch, Call(outgoing, stored_message, machine.monotonic(), deadline, 0), topic_queues)
        loop.begin_with(target)
        await loop.run()


def _keys(message: Message | MessageExt) -> str | None:
    """Return the message's keys in wire format, or None."""
    return " ".join(message.keys) or None


def _now_ms() -> int:
    return round(machine.time() * 1000)
