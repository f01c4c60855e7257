"""Search of an offset by time on brokers before 5.1.1, whose answers are inexact.

Such a broker answers with the message stored *nearest* to the time, before or after it, and with any one of several stored in the
same millisecond. Its answer is only a hint: from there an exponential and then a binary search reads the store times of messages.
It mostly takes two or three pulls of one message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import PullSysFlag, RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader, from_ext, to_ext
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import decode_messages

from ..broker_answers import broker_error
from .instance import ClientInstance

__all__ = ["EXACT_FROM", "TOOLS_GROUP", "first_at_or_after", "store_time_ms"]

EXACT_FROM: Final = 435
"""``MQVersion.V5_1_1``: the first version that finds the first message at or after a time, and knows boundaries."""

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group that every broker has for tools (``MixAll.TOOLS_CONSUMER_GROUP``)."""


_DELETED: Final = frozenset({ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED})
"""Answers for a deleted message; the second one also for one that never existed."""


async def first_at_or_after(low: int, high: int, hint: int, late: Callable[[int], Awaitable[bool]]) -> int:
    """Return the first offset in ``low``..``high`` for which ``late(offset)`` holds; ``high`` counts as late without a call.

    ``late`` is monotonic: it holds above any offset for which it holds.

    Args:
        hint: The first offset to try.
    """
    step = 1
    probe = min(max(hint, low), high - 1)
    if low >= high:
        return high
    if await late(probe):
        high = probe
        while low < high:
            probe = max(low, high - step)
            if not await late(probe):
                low = probe + 1
                break
            high, step = probe, step * 2
    else:
        low = probe + 1
        while low < high:
            probe = min(high - 1, low + step - 1)
            if await late(probe):
                high = probe
                break
            low, step = probe + 1, step * 2
    while low < high:
        probe = (low + high) // 2
        if await late(probe):
            high = probe
        else:
            low = probe + 1
    return high


async def store_time_ms(
    instance: ClientInstance, queue: MessageQueue, offset: int, timeout: float, *, any_replica: bool = True
) -> int:
    """Return the store time of the message at ``offset``, epoch ms.

    -1 if the message is deleted, also while the broker has not yet corrected the queue's minimum, and if the answer has another
    message.

    Raises BrokerError and the errors of a request, RemoteProtocolError for a record that cannot be read.

    Args:
        timeout: seconds.
    """
    header = PullMessageRequestHeader(
        consumerGroup=TOOLS_GROUP,
        topic=queue.topic,
        queueId=queue.queue_id,
        queueOffset=offset,
        maxMsgNums=1,
        sysFlag=PullSysFlag.SUBSCRIPTION,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription="*",
        subVersion=0,
        expressionType="TAG",
        bname=queue.broker_name,
    )
    command = RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields={**to_ext(header)})
    response, address = await instance.ask_broker(
        instance.routes.broker_of(queue), queue.topic, command, timeout, any_replica=any_replica
    )
    if response.code in _DELETED:
        low = from_ext(PullMessageResponseHeader, response.ext_fields).minOffset
        if offset < low or response.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return -1
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark, request="PULL_MESSAGE", broker=queue.broker_name, address=address)
    delta = from_ext(PullMessageResponseHeader, response.ext_fields).offsetDelta
    messages = decode_messages(response.body, check_crc=False).messages
    if not messages:
        text = f"the record at offset {offset} of {queue} cannot be read, so its time is not known"
        raise RemoteProtocolError(text, broker=queue.broker_name, address=address)
    found = messages[0]
    own = found.topic == queue.topic and (delta is not None or found.queue.queue_id == queue.queue_id)
    return found.store_time_ms if own and found.queue_offset + (delta or 0) == offset else -1
