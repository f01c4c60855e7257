"""One pull: the request, its answer and what it means.

PULL_MESSAGE (11) with the subscription in the request, as ``DefaultMQPullConsumerImpl`` sends it: the broker needs to know nothing
of the group beforehand, and every version serves it. Where the broker's connection is open and no hook needs the command, the
request is written from a template and an answer with messages read into one Struct (``AskedPull``); everything else takes the
general way of all requests. An answer is held against its request: as many messages as there are offsets from the one asked for to
the one to go on at, and the first is the one asked for, is what nearly all answers are; only another one is looked at closely.
Bodies are decoded on the loop up to 64 KiB (half a millisecond) and in a thread beyond, where CRC and
decompression run without the interpreter's lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from time import monotonic
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import LMQ_PREFIX, RequestCode, ResponseCode
from rmq_protocol.continuity import first_queue_offset, missing_offsets
from rmq_protocol.errors import CorruptMessageError, LocalProtocolError, RemoteProtocolError
from rmq_protocol.headers import PullMessageResponseHeader, from_ext, to_ext
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pull_codec import PullReply, PullTemplate, pull_header
from rmq_protocol.stored import DecodedMessages, decode_pull

from ..broker_answers import broker_error
from ..client import ClientInstance
from ..errors import RequestTimeoutError, RocketMQError
from ..results import PullResult, PullStatus
from ..transport import Connection

__all__ = ["AskedPull", "PulledBody", "pull_body", "pull_once", "small_result", "start_pull"]

DECODE_IN_THREAD: Final = 64 * 1024
"""Bytes of a body from which on it is decoded outside the loop's thread."""

_STATUS: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCH,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}
Answer = PullReply | RemotingCommand
Calls = set[asyncio.Future[Any]]
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


class AskedPull:
    """A pull that was written from a template. ``future``: of a PullReply, or of a RemotingCommand for any other answer."""

    __slots__ = ("connection", "deadline", "future", "opaque", "since")

    def __init__(
        self, connection: Connection, opaque: int, future: asyncio.Future[Answer], since: float, deadline: float
    ) -> None:
        self.connection = connection
        self.opaque = opaque
        self.future = future
        self.since = since
        self.deadline = deadline

    def forget(self) -> None:
        """Gives the answer up."""
        self.connection.forget(self.opaque)
        self.future.cancel()


def start_pull(
    instance: ClientInstance,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    max_messages: int,
    tags: str,
    suspend: float,
    timeout: float,
) -> AskedPull | None:
    """Asks by template where that is possible, else does nothing."""
    connection = instance.plain_connection(instance.routes.broker_of(queue))
    if connection is None or not connection.is_open:
        return None
    template = _template(group, *queue, tags, round(suspend * 1000))
    if template is None:
        return None
    since = monotonic()
    deadline = since + timeout
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    return AskedPull(
        connection, connection.start_pull(template, offset, max_messages, future, deadline), future, since, deadline
    )


@lru_cache(maxsize=1024)
def _template(group: str, topic: str, broker_name: str, queue_id: int, tags: str, suspend_ms: int) -> PullTemplate | None:
    """None where the general way has to make the header, or to say why there is none."""
    try:
        template = PullTemplate(group, topic, queue_id, broker_name, tags, suspend_ms)
    except (LocalProtocolError, UnicodeEncodeError, TypeError):
        return None
    return template if template.usable else None


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
    calls: Calls,
    asked: AskedPull | None = None,
) -> PullResult:
    """One request and its messages. ``asked``: the request, where it is under way already. The rest as in ``pull_body``."""
    since = asked.since if asked is not None else monotonic()
    answer = await pull_body(
        instance,
        group,
        queue,
        offset,
        max_messages=max_messages,
        tags=tags,
        suspend=suspend,
        timeout=timeout,
        calls=calls,
        asked=asked,
    )
    until = since + timeout + (instance.config.request_timeout if suspend else 0.0)
    if asked is not None:  # its answer may have waited for the caller
        until = max(until, monotonic() + instance.config.request_timeout)
    decoded = _NOTHING
    if answer.status is PullStatus.FOUND:
        decode = _decoder(instance, answer.body, queue, tags, answer.offset_delta)
        if len(answer.body) < DECODE_IN_THREAD:
            decoded = decode()
        else:
            decoded = await _decoded(instance, decode, until, calls, queue, answer)
    result = _result(instance, queue, offset, tags, answer, decoded)
    if result.lost:
        static = answer.offset_delta is not None
        left = max(until - monotonic(), 0.0)
        lost = await instance.gaps.losses(instance, queue, result.lost, static=static, timeout=left, calls=calls)
        result = replace(result, lost=lost)
    return result


async def _decoded(
    instance: ClientInstance,
    decode: Callable[[], DecodedMessages],
    deadline: float,
    calls: Calls,
    queue: MessageQueue,
    answer: PulledBody,
) -> DecodedMessages:
    """In a thread. Raises RequestTimeoutError at ``deadline``."""
    try:
        return await instance.threads.run(decode, deadline, calls)
    except TimeoutError:
        text = f"{len(answer.body)} bytes of messages of queue {queue.queue_id} of topic {queue.topic} were not decoded in time"
        raise RequestTimeoutError(text, broker=queue.broker_name, address=answer.address) from None


def small_result(instance: ClientInstance, queue: MessageQueue, offset: int, tags: str, asked: AskedPull) -> PullResult | None:
    """What ``pull_once`` would give for an answer that brought messages, without waiting; None for any other."""
    future = asked.future
    if future.cancelled() or future.exception() is not None:
        return None
    reply = future.result()
    if not isinstance(reply, PullReply) or len(reply.body) >= DECODE_IN_THREAD:
        return None
    answer = _found(reply, asked.connection.address)
    decoded = _decoder(instance, answer.body, queue, tags, answer.offset_delta)()
    result = _result(instance, queue, offset, tags, answer, decoded)
    if not result.lost:
        return result
    return replace(result, lost=()) if instance.gaps.is_compacted(instance.routes.broker_of(queue), queue.topic) else None


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
    calls: Calls,
    asked: AskedPull | None = None,
) -> PulledBody:
    """One request. ``suspend``: seconds the broker may hold it while it has nothing; ``timeout``: seconds for all of it.

    Raises BrokerError for an answer that is no pull result, and what finding and asking the broker raises.
    """
    if asked is None:
        asked = start_pull(
            instance, group, queue, offset, max_messages=max_messages, tags=tags, suspend=suspend, timeout=timeout
        )
    response: RemotingCommand | None = None
    sent_away: RemotingCommand | None = None
    if asked is not None:
        reply = await _answer_to(asked, instance, queue, calls)
        if isinstance(reply, PullReply):
            return _found(reply, asked.connection.address)
        if reply.code == ResponseCode.GO_AWAY:
            timeout, sent_away = max(asked.deadline - monotonic(), 0.0), reply
        else:
            response, address = reply, asked.connection.address
    if response is None:
        header = pull_header(
            group, queue.topic, queue.queue_id, queue.broker_name, tags, round(suspend * 1000), offset, max_messages
        )
        deadline = monotonic() + timeout
        holder = await instance.holder_of(queue, timeout)
        response, address = await instance.ask_broker(
            holder,
            queue.topic,
            RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields={**to_ext(header)}),
            max(deadline - monotonic(), 0.0),
            any_replica=True,
            long_poll=suspend > 0,
            calls=calls,
            sent_away=sent_away,
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


async def _answer_to(asked: AskedPull, instance: ClientInstance, queue: MessageQueue, calls: Calls) -> Answer:
    future = asked.future
    calls.add(future)
    try:
        return await future
    except BaseException as error:
        asked.connection.forget(asked.opaque)
        if isinstance(error, RocketMQError):
            instance.explain(error, instance.routes.broker_of(queue), queue.topic)
        raise
    finally:
        calls.discard(future)


def _found(reply: PullReply, address: str) -> PulledBody:
    fields = reply.extFields
    return PulledBody(
        PullStatus.FOUND,
        reply.body,
        fields.nextBeginOffset,
        fields.minOffset,
        fields.maxOffset,
        fields.offsetDelta,
        address,
    )


def _result(
    instance: ClientInstance, queue: MessageQueue, offset: int, tags: str, answer: PulledBody, decoded: DecodedMessages
) -> PullResult:
    """``lost`` is what is missing, by right or not."""
    for corrupt in decoded.corrupt:
        corrupt.broker, corrupt.address = queue.broker_name, answer.address
    messages = decoded.messages
    after = answer.next_offset if decoded.resume_at is None else decoded.resume_at
    if messages and len(messages) == after - offset and messages[0].queue_offset == offset:
        held = _Held(messages, decoded.corrupt, after)
    else:
        held = _compared(queue, offset, tags, answer, decoded)
    if answer.status is PullStatus.FOUND and held.after <= offset:
        raise RemoteProtocolError(
            f"a pull of {instance.names.shown_queue(queue)} at offset {offset} says to go on at {answer.next_offset}",
            broker=queue.broker_name,
            address=answer.address,
        )
    return PullResult(
        status=answer.status,
        messages=instance.names.shown_messages(held.messages),
        next_offset=held.after,
        min_offset=answer.min_offset,
        max_offset=answer.max_offset,
        corrupt=held.corrupt,
        lost=held.missing,
    )


class _Held(NamedTuple):
    """What an answer holds of what was asked for. ``after``: where to go on. ``missing``: what lies before that and is wanted."""

    messages: tuple[MessageExt, ...]
    corrupt: tuple[CorruptMessageError, ...]
    after: int
    missing: tuple[range, ...] = ()


def _compared(queue: MessageQueue, offset: int, tags: str, answer: PulledBody, decoded: DecodedMessages) -> _Held:
    """A closer look at an answer.

    A batch that was stored as one record comes whole, with messages before ``offset``. No answer leads beyond the end of the queue.
    Where the message asked for is deleted and something else is in its place, what comes with that may be cut up: the next pull
    has it again. Messages of a light queue are numbered by another queue.
    """
    after = answer.next_offset if decoded.resume_at is None else decoded.resume_at
    if queue.topic.startswith(LMQ_PREFIX):
        return _Held(decoded.messages, decoded.corrupt, after)
    if answer.status is PullStatus.OFFSET_ILLEGAL:
        return _Held((), (), after, missing_offsets(offset, min(after, answer.min_offset), ()) if tags == "*" else ())
    if answer.body and first_queue_offset(answer.body, queue, offset, answer.offset_delta) is None:
        return _Held((), (), offset + 1, (range(offset, offset + 1),) if tags == "*" else ())
    after = max(after, offset)  # only an offset that the queue does not hold leads back
    messages = tuple([message for message in decoded.messages if offset <= message.queue_offset < after])
    if decoded.resume_at is None:
        after = min(after, max(answer.max_offset, messages[-1].queue_offset + 1 if messages else offset))
    if tags != "*":
        return _Held(messages, decoded.corrupt, after)
    found = [message.queue_offset for message in messages]
    return _Held(messages, decoded.corrupt, after, missing_offsets(offset, after, found, decoded.corrupt))


def _decoder(
    instance: ClientInstance, body: bytes, queue: MessageQueue, tags: str, offset_delta: int | None
) -> Callable[[], DecodedMessages]:
    return partial(
        decode_pull,
        body,
        queue,
        tags=tags,
        offset_delta=offset_delta,
        max_decompressed_size=instance.config.max_decompressed_size,
        allow_partial=True,
        only_queue=True,
    )
