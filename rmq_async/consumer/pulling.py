"""One pull: the request, its answer and what it means.

PULL_MESSAGE (11) with the subscription in the request, as ``DefaultMQPullConsumerImpl`` sends it: the broker needs to know nothing
of the group beforehand, and every version serves it. Bodies are decoded on the loop up to 64 KiB (1 ms) and in a thread beyond,
where CRC and decompression run without the interpreter's lock.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import PullSysFlag, RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader, from_ext, to_ext
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import DecodedMessages, decode_pull

from ..client import ClientInstance
from ..errors import broker_error
from ..results import PullResult, PullStatus

__all__ = ["PulledBody", "pull_body", "pull_once"]

DECODE_IN_THREAD: Final = 64 * 1024
"""Bytes of a body from which on it is decoded outside the loop's thread."""

_STATUS: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCH,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}
_NOTHING: Final = DecodedMessages((), ())


class PulledBody(NamedTuple):
    """One answer, with its records as they came. ``address``: who gave it."""

    status: PullStatus
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None
    address: str


async def pull_once(
    instance: ClientInstance,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    max_messages: int,
    tags: str,
    suspend: float,
    timeout: float,
    calls: set[asyncio.Future[RemotingCommand]],
) -> PullResult:
    """One request and its messages. The rest as in ``pull_body``."""
    answer = await pull_body(
        instance, group, queue, offset, max_messages=max_messages, tags=tags, suspend=suspend, timeout=timeout, calls=calls
    )
    decoded = _NOTHING
    if answer.status is PullStatus.FOUND:
        decoded = await _decode(instance, answer.body, queue, tags, answer.offset_delta)
        for corrupt in decoded.corrupt:
            corrupt.broker, corrupt.address = queue.broker_name, answer.address
    resume_at = decoded.resume_at
    return PullResult(
        status=answer.status,
        messages=instance.names.shown_messages(decoded.messages),
        next_offset=answer.next_offset if resume_at is None else resume_at,
        min_offset=answer.min_offset,
        max_offset=answer.max_offset,
        corrupt=decoded.corrupt,
    )


async def pull_body(
    instance: ClientInstance,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    max_messages: int,
    tags: str,
    suspend: float,
    timeout: float,
    calls: set[asyncio.Future[RemotingCommand]],
) -> PulledBody:
    """One request. ``suspend``: seconds the broker may hold it while it has nothing; ``timeout``: seconds for all of it.

    Raises BrokerError for an answer that is no pull result, and whatever finding and asking the broker raises.
    """
    flags = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if suspend > 0 else PullSysFlag(0))
    header = PullMessageRequestHeader(
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        queueOffset=offset,
        maxMsgNums=max_messages,
        sysFlag=flags,
        commitOffset=0,
        suspendTimeoutMillis=round(suspend * 1000),
        subscription=tags,
        subVersion=0,
        expressionType="TAG",
        bname=queue.broker_name,
    )
    command = RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields={**to_ext(header)})
    response, address = await instance.ask_broker(
        instance.routes.broker_of(queue),
        queue.topic,
        command,
        timeout,
        any_replica=True,
        long_poll=suspend > 0,
        calls=calls,
    )
    status = _STATUS.get(response.code)
    if status is None:
        raise broker_error(response.code, response.remark, request="PULL_MESSAGE", broker=queue.broker_name, address=address)
    try:
        answer = from_ext(PullMessageResponseHeader, response.ext_fields)
    except RemoteProtocolError as error:
        error.broker, error.address = queue.broker_name, address
        raise
    return PulledBody(
        status, response.body, answer.nextBeginOffset, answer.minOffset, answer.maxOffset, answer.offsetDelta, address
    )


async def _decode(
    instance: ClientInstance, body: bytes, queue: MessageQueue, tags: str, offset_delta: int | None
) -> DecodedMessages:
    decode = partial(
        decode_pull,
        body,
        queue,
        tags=tags,
        offset_delta=offset_delta,
        max_decompressed_size=instance.config.max_decompressed_size,
        allow_partial=True,
    )
    if len(body) < DECODE_IN_THREAD:
        return decode()
    return await asyncio.to_thread(decode)
