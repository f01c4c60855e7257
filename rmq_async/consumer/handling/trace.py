"""Message traces of consumption: records of a message before and after its handler call, in the format of the Java client.

The consumer sends them to a topic in which mqadmin and consoles find them by id and key. Handler calls do not wait for that. A
message whose property ``TRACE_ON`` is "false" is not traced, as in Java's ``ConsumeMessageTraceHookImpl``. Messages of the trace
topic are not traced either.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Final

from rmq_protocol.constants import PropertyName
from rmq_protocol.message import Message, MessageExt
from rmq_protocol.trace import TRACE_TOPIC, TraceBean, TraceContext, TraceType

from ... import machine
from ...client import ClientInstance, TraceRecords, send_trace
from ...errors import HandlerTimeoutError
from ..delivery import Delivery, mark_at
from ..outcome import DeadLetter, Outcome, RetryLater

logger = logging.getLogger("rmq_async.consumer.trace")

MOST_COST: Final = 0x7FFFFFFF
"""Maximum milliseconds of a call in a trace, because the field is a Java int."""


class ContextCode(IntEnum):
    """The result of a call, with the ordinals of Java's ``ConsumeReturnType``."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    NULL = 3
    FAILED = 4


class ConsumeTracer(TraceRecords):
    """A consumer's built-in hook that sends traces.

    Args:
        group: Name of the group on the wire. The records have the name without the namespace.
        trace: The setting ``trace``, which is not False.
    """

    def __init__(self, instance: ClientInstance, group: str, trace: bool | str) -> None:
        topic = trace if isinstance(trace, str) else TRACE_TOPIC
        super().__init__(topic, self._send_message, logger, "consumer")
        self._instance = instance
        self._group = instance.names.shown(group)
        self._wire_group = group

    def before_consume(self, delivery: Delivery) -> None:
        traced = [(place, message) for place, message in enumerate(delivery.messages) if _is_traced(message)]
        if not traced or delivery.topic == self.topic:
            return
        request_id = self._instance.unique_ids.next()
        delivery.values[self] = request_id, traced
        for _, message in traced:
            self.append(
                TraceContext(
                    trace_type=TraceType.SUB_BEFORE,
                    beans=(_bean(message),),
                    time_stamp=_now_ms(),
                    region_id=message.properties.get(PropertyName.MSG_REGION),
                    group_name=self._group,
                    request_id=request_id,
                )
            )

    def after_consume(self, delivery: Delivery) -> None:
        request_id, traced = delivery.values.pop(self, ("", ()))
        cost = min(round((delivery.elapsed or 0.0) * 1000) // len(delivery.messages), MOST_COST)
        for place, message in traced:
            code = _context_code(delivery, place)
            self.append(
                TraceContext(
                    trace_type=TraceType.SUB_AFTER,
                    beans=(_bean(message),),
                    time_stamp=_now_ms(),
                    group_name=self._group,
                    request_id=request_id,
                    cost_time=cost,
                    success=code is ContextCode.SUCCESS,
                    context_code=code,
                )
            )

    async def _send_message(self, message: Message, deadline: float) -> None:
        await send_trace(self._instance, self._wire_group, message, deadline)


def _is_traced(message: MessageExt) -> bool:
    return message.properties.get(PropertyName.TRACE_ON) != "false"


def _bean(message: MessageExt) -> TraceBean:
    return TraceBean(
        topic=message.topic,
        msg_id=message.msg_id,
        tags=message.tags,
        keys=" ".join(message.keys) or None,
        body_length=message.store_size,
        retry_times=message.reconsume_times,
    )


def _context_code(delivery: Delivery, place: int) -> ContextCode:
    """Return the result for the message at the index ``place``. A mark of a batch takes precedence over the error of the call."""
    mark = mark_at(delivery, place)
    error: BaseException | None = delivery.error if mark is None else mark
    if error is None:
        return ContextCode.EXCEPTION if delivery.outcome is Outcome.ABANDONED else ContextCode.SUCCESS
    if isinstance(error, HandlerTimeoutError):
        return ContextCode.TIME_OUT
    return ContextCode.FAILED if isinstance(error, RetryLater | DeadLetter) else ContextCode.EXCEPTION


def _now_ms() -> int:
    return round(machine.time() * 1000)
