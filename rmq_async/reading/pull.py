"""Makes one pull: sends the request, and computes the result from the request and its response."""

# PULL_MESSAGE (11) has the subscription in the request, as ``DefaultMQPullConsumerImpl`` sends it. The broker needs no earlier
# registration of the group, and every version supports it. If the broker's connection is open and no hook, signature or binary
# header needs the command, a template writes the request, and a response with messages is decoded into one Struct
# (``PullReply``). Everything else takes the general path of all requests. Each response is compared with its request. Nearly all
# responses have a message for each offset from the requested offset to ``nextBeginOffset``; only other responses are examined
# closely (``_compared``). Bodies below 64 KiB are decoded on the loop, which takes half a millisecond. Larger bodies are decoded
# in a thread, where CRC and decompression release the GIL.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import LMQ_PREFIX, ResponseCode
from rmq_protocol.continuity import first_queue_offset, missing_offsets
from rmq_protocol.errors import CorruptMessageError, LocalProtocolError, RemoteProtocolError
from rmq_protocol.headers import PullMessageResponseHeader, from_ext, request_of
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pull_codec import PullReply, PullTemplate, pull_header
from rmq_protocol.stored import DecodedMessages, decode_pull
from rmq_protocol.subscription import SQL92, TAG

from .. import machine
from .._ordered import OrderedSet
from ..broker_answers import broker_error
from ..client import ClientInstance, lost_offsets, next_offset_in, too_large_frame
from ..errors import FrameTooLargeError, RequestTimeoutError, RocketMQError
from ..results import PullResult, PullStatus
from ..transport import Connection

logger = logging.getLogger(__name__)

DECODE_IN_THREAD: Final = 64 * 1024
"""Minimum size in bytes of a body that is decoded in a thread."""

_STATUS: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCH,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}
Answer = PullReply | RemotingCommand
Calls = OrderedSet[asyncio.Future[Any]]
_NOTHING: Final = DecodedMessages((), ())


class PullRequest(msgspec.Struct, frozen=True, gc=False):
    """The parameters of one pull.

    Attributes:
        queue: The queue, with names on the wire.
        suspend: Seconds for which the broker may hold the pull while it has no message.
        timeout: Seconds for the request and its response.
        sql: The condition by which the broker filters, or None. With a condition, ``tags`` is "*".
    """

    group: str
    queue: MessageQueue
    offset: int
    max_messages: int
    tags: str
    suspend: float
    timeout: float
    sql: str | None = None

    @property
    def expression(self) -> tuple[str, str]:
        """The expression by which the broker filters, and its type."""
        return (self.tags, TAG) if self.sql is None else (self.sql, SQL92)

    @property
    def is_filtered(self) -> bool:
        """Whether the broker filters messages."""
        return self.sql is not None or self.tags != "*"


class PulledBody(msgspec.Struct, frozen=True, gc=False):
    """The response to one pull, with undecoded records.

    Attributes:
        address: The address of the broker that sent the response.
    """

    status: PullStatus
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None
    address: str


class PendingPull:
    """A pull whose request was written from a template.

    Args:
        future: Resolves to a PullReply for a response with messages, and to a RemotingCommand for any other response.
        since: Monotonic time of the request.
    """

    __slots__ = ("connection", "future", "opaque", "request", "since")

    def __init__(
        self, request: PullRequest, connection: Connection, opaque: int, future: asyncio.Future[Answer], since: float
    ) -> None:
        self.request = request
        self.connection = connection
        self.opaque = opaque
        self.future = future
        self.since = since

    def forget(self) -> None:
        """Abandon the response."""
        self.connection.requests.forget(self.opaque)
        self.future.cancel()


def start_pull(instance: ClientInstance, request: PullRequest, *, gather: bool = False) -> PendingPull | None:
    """Send a pull over the open connection, as a request written from a template. Return None if that is not possible.

    Args:
        gather: Whether to write the request together with other requests of this iteration of the loop.
    """
    queue = request.queue
    if instance.pull_sizes.lowered:
        request = _limited(instance, request)
    connection = instance.plain_connection(instance.routes.broker_of(queue))
    if connection is None or not connection.requests.is_open:
        return None
    template = _template(request.group, *queue, request.expression, round(request.suspend * 1000))
    if template is None:
        return None
    since = machine.monotonic()
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    deadline = since + request.timeout
    opaque = connection.requests.start_pull(template, request.offset, request.max_messages, future, deadline, gather=gather)
    return PendingPull(request, connection, opaque, future, since)


@lru_cache(maxsize=1024)
def _template(
    group: str, topic: str, broker_name: str, queue_id: int, expression: tuple[str, str], suspend_ms: int
) -> PullTemplate | None:
    """Return the template of a request, or None if no template can be used.

    Then ``_ask`` builds the header, or raises the error if the request is invalid.
    """
    try:
        template = PullTemplate(group, topic, queue_id, broker_name, expression[0], suspend_ms, expression[1])
    except (LocalProtocolError, UnicodeEncodeError, TypeError):
        return None
    return template if template.usable else None


async def pull_once(
    instance: ClientInstance, request: PullRequest, calls: Calls, pending: PendingPull | None = None
) -> PullResult:
    """Pull once and decode the messages.

    Args:
        calls: Receives the futures of the pull, which end when the consumer stops.
        pending: The request, if it was already sent; otherwise None.

    Raises:
        RequestTimeoutError: If the messages are not decoded in time.
        RemoteProtocolError: For a response with messages whose next offset is not above the requested offset. The errors of
            ``pull_body`` and ``lost_offsets`` also propagate.
    """
    since = pending.since if pending is not None else machine.monotonic()
    answer = await pull_body(instance, request, calls, pending)
    until = since + request.timeout + (instance.config.request_timeout if request.suspend else 0.0)
    if pending is not None:  # the response may have waited for the caller
        until = max(until, machine.monotonic() + instance.config.request_timeout)
    decoded = _NOTHING
    if answer.status is PullStatus.FOUND:
        decode = _decoder(instance, request, answer)
        if len(answer.body) < DECODE_IN_THREAD:
            decoded = decode()
        else:
            decoded = await _decoded(instance, decode, until, calls, request.queue, answer)
    result = _result(instance, request, answer, decoded)
    if result.lost:
        static = answer.offset_delta is not None
        left = max(until - machine.monotonic(), 0.0)
        lost = await lost_offsets(instance, request.queue, result.lost, static=static, timeout=left, calls=calls)
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
    """Decode the messages in a thread.

    Raises:
        RequestTimeoutError: If the messages are not decoded by ``deadline`` (monotonic).
    """
    try:
        return await instance.threads.run(decode, deadline, calls)
    except TimeoutError:
        text = (
            f"{len(answer.body)} bytes of messages of {instance.names.shown_queue(queue)} were not decoded in time; raise "
            "request_timeout, or pull fewer messages at a time"
        )
        raise RequestTimeoutError(text, broker=queue.broker_name, address=answer.address) from None


def small_result(instance: ClientInstance, pending: PendingPull) -> PullResult | None:
    """Return the result of ``pull_once`` for a response with messages that needs no thread and no further request. Return None for
    any other response.

    Raises:
        RemoteProtocolError: If the next offset of the response is not above the requested offset.
    """
    request, future = pending.request, pending.future
    if future.cancelled() or future.exception() is not None:
        return None
    reply = future.result()
    if not isinstance(reply, PullReply) or len(reply.body) >= DECODE_IN_THREAD:
        return None
    answer = _found(reply, pending.connection.address)
    if instance.pull_sizes.lowered:
        instance.pull_sizes.answered(request.queue, request.max_messages, len(reply.body))
    result = _result(instance, request, answer, _decoder(instance, request, answer)())
    if not result.lost:
        return result
    queue = request.queue
    return replace(result, lost=()) if instance.gaps.is_compacted(instance.routes.broker_of(queue), queue.topic) else None


async def pull_body(
    instance: ClientInstance, request: PullRequest, calls: Calls, pending: PendingPull | None = None
) -> PulledBody:
    """Pull once. While the response is above ``max_frame_size``, pull again with half the number of messages.

    Args:
        calls: Receives the futures of the pull, which end when the consumer stops.
        pending: The request, if it was already sent; otherwise None.

    Raises:
        BrokerError: For a response that is not a pull result.
        RemoteProtocolError: For a response without offsets.
        FrameTooLargeError: For a single message that is too large. Errors of the look-up of the broker, and of the request, also
            propagate.
    """
    queue, sizes = request.queue, instance.pull_sizes
    if sizes.lowered:
        request = _limited(instance, request)
    if pending is None:
        pending = start_pull(instance, request)
    try:
        if pending is None:
            response, address = await _ask(instance, request, request.timeout, calls)
        else:
            request = pending.request
            reply = await _answer_to(pending, instance, calls)
            if isinstance(reply, PullReply):
                if sizes.lowered:
                    sizes.answered(queue, request.max_messages, len(reply.body))
                return _found(reply, pending.connection.address)
            if reply.code == ResponseCode.GO_AWAY:
                left = max(pending.since + request.timeout - machine.monotonic(), 0.0)
                response, address = await _ask(instance, request, left, calls, reply)
            else:
                response, address = reply, pending.connection.address
    except RocketMQError as error:
        cause = too_large_frame(error)
        if cause is None or not _asks_for_fewer(instance, request, cause):
            if error is not cause:  # the frame closed the connection, and may have been the response to another request
                raise
            raise _one_too_large(instance, request, cause) from None
    else:
        return _general_body(instance, request, response, address)
    return await pull_body(instance, request, calls)


def _general_body(instance: ClientInstance, request: PullRequest, response: RemotingCommand, address: str) -> PulledBody:
    queue, sizes = request.queue, instance.pull_sizes
    status = _STATUS.get(response.code)
    if status is None:
        raise broker_error(response.code, response.remark, request="PULL_MESSAGE", broker=queue.broker_name, address=address)
    try:
        answer = from_ext(PullMessageResponseHeader, response.ext_fields)
    except RemoteProtocolError as error:
        error.broker, error.address = queue.broker_name, address
        raise
    if sizes.lowered and status is PullStatus.FOUND:
        sizes.answered(queue, request.max_messages, len(response.body))
    return PulledBody(
        status, response.body, answer.nextBeginOffset, answer.minOffset, answer.maxOffset, answer.offsetDelta, address
    )


def _asks_for_fewer(instance: ClientInstance, request: PullRequest, cause: FrameTooLargeError) -> bool:
    """Lower the number of messages in pulls of the queue after a response above ``max_frame_size``.

    Return False if the pull was for a single message.
    """
    queue, sizes = request.queue, instance.pull_sizes
    if not sizes.lower(queue, request.max_messages):
        return False
    shown, limit = instance.names.shown_queue(queue), sizes.limit(queue, request.max_messages)
    text = "pulls of %s now request at most %d messages, because a response to a pull of %d was above max_frame_size, %d bytes"
    logger.info(text, shown, limit, request.max_messages, cause.limit)
    return True


def _limited(instance: ClientInstance, request: PullRequest) -> PullRequest:
    """Return the request, with its number of messages limited so that responses of the queue fit into a frame."""
    limit = instance.pull_sizes.limit(request.queue, request.max_messages)
    return request if limit == request.max_messages else replace(request, max_messages=limit)


def _one_too_large(instance: ClientInstance, request: PullRequest, error: FrameTooLargeError) -> FrameTooLargeError:
    """Return the error of a pull for a single message. It names the message."""
    shown, after = instance.names.shown_queue(request.queue), next_offset_in(error)
    offset = request.offset if after is None else max(after - 1, request.offset)
    text = (
        f"the response with the message at offset {offset} of {shown} has {error.size} bytes, above max_frame_size={error.limit}; "
        f"set max_frame_size={error.size} or more to read it, or continue at offset {offset + 1}"
    )
    broker = request.queue.broker_name
    return FrameTooLargeError(
        text, size=error.size, limit=error.limit, fields=error.fields, broker=broker, address=error.address
    )


async def _ask(
    instance: ClientInstance,
    request: PullRequest,
    timeout: float,
    calls: Calls,
    sent_away: RemotingCommand | None = None,
) -> tuple[RemotingCommand, str]:
    """Send the request without a template. Return the response and the broker's address.

    Args:
        timeout: The remaining seconds.
        sent_away: The GO_AWAY response to an earlier attempt, or None.
    """
    queue = request.queue
    expression, expression_type = request.expression
    header = pull_header(
        request.group,
        queue.topic,
        queue.queue_id,
        queue.broker_name,
        expression,
        round(request.suspend * 1000),
        request.offset,
        request.max_messages,
        expression_type,
    )
    deadline = machine.monotonic() + timeout
    holder = await instance.holder_of(queue, timeout)
    return await instance.ask_broker(
        holder,
        queue.topic,
        request_of(header),
        max(deadline - machine.monotonic(), 0.0),
        any_replica=True,
        long_poll=request.suspend > 0,
        calls=calls,
        sent_away=sent_away,
    )


async def _answer_to(pending: PendingPull, instance: ClientInstance, calls: Calls) -> Answer:
    future = pending.future
    calls[future] = None
    try:
        return await future
    except BaseException as error:
        pending.connection.requests.forget(pending.opaque)
        if isinstance(error, RocketMQError):
            queue = pending.request.queue
            instance.explain(error, instance.routes.broker_of(queue), queue.topic)
        raise
    finally:
        calls.pop(future, None)
        del future, pending.future  # the traceback of its error references this frame and the frames of the callers


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


def _result(instance: ClientInstance, request: PullRequest, answer: PulledBody, decoded: DecodedMessages) -> PullResult:
    """Return the result of the pull.

    ``lost`` has the offsets without a record, including offsets that compaction has removed. It is empty for a filtered pull and
    for a light queue.

    Raises:
        RemoteProtocolError: For a FOUND response whose next offset is not above the requested offset.
    """
    queue, offset = request.queue, request.offset
    for corrupt in decoded.corrupt:
        corrupt.broker, corrupt.address = queue.broker_name, answer.address
    messages = decoded.messages
    after = answer.next_offset if decoded.resume_at is None else decoded.resume_at
    if messages and len(messages) == after - offset and messages[0].queue_offset == offset:
        held = _Held(messages, decoded.corrupt, after)
    else:
        held = _compared(request, answer, decoded)
    if answer.status is PullStatus.FOUND and held.after <= offset:
        raise RemoteProtocolError(
            f"the response to a pull of {instance.names.shown_queue(queue)} at offset {offset} has the next offset "
            f"{answer.next_offset} and the end {answer.max_offset}, so no read can continue there; start at a higher offset",
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


class _Held(msgspec.Struct, frozen=True):
    """The requested part of a response.

    Attributes:
        after: The next offset.
        missing: Requested offsets before ``after`` that have no record.
    """

    messages: tuple[MessageExt, ...]
    corrupt: tuple[CorruptMessageError, ...]
    after: int
    missing: tuple[range, ...] = ()


def _compared(request: PullRequest, answer: PulledBody, decoded: DecodedMessages) -> _Held:
    """Compare a response with its request, offset by offset.

    A batch that was stored as one record is returned as a whole, with messages before the requested offset. If the broker has
    deleted the requested message and returns another message in its place, the response is not used, because the following
    messages may be truncated; the next pull begins one offset later. Messages of a light queue (LMQ) have the offsets of another
    queue.
    """
    queue, offset, filtered = request.queue, request.offset, request.is_filtered
    after = answer.next_offset if decoded.resume_at is None else decoded.resume_at
    if queue.topic.startswith(LMQ_PREFIX):
        return _Held(decoded.messages, decoded.corrupt, after)
    if answer.status is PullStatus.OFFSET_ILLEGAL:
        return _Held((), (), after, () if filtered else missing_offsets(offset, min(after, answer.min_offset), ()))
    if answer.body and first_queue_offset(answer.body, queue, offset, answer.offset_delta) is None:
        return _Held((), (), offset + 1, () if filtered else (range(offset, offset + 1),))
    after = max(after, offset)  # only an offset that the queue does not have may lead back
    messages = tuple([message for message in decoded.messages if offset <= message.queue_offset < after])
    if decoded.resume_at is None:
        after = min(after, max(answer.max_offset, messages[-1].queue_offset + 1 if messages else offset))
    if filtered:
        return _Held(messages, decoded.corrupt, after)
    found = [message.queue_offset for message in messages]
    return _Held(messages, decoded.corrupt, after, missing_offsets(offset, after, found, decoded.corrupt))


def _decoder(instance: ClientInstance, request: PullRequest, answer: PulledBody) -> Callable[[], DecodedMessages]:
    return partial(
        decode_pull,
        answer.body,
        request.queue,
        tags=request.tags,
        offset_delta=answer.offset_delta,
        max_decompressed_size=instance.config.max_decompressed_size,
        allow_partial=True,
        only_queue=True,
    )
