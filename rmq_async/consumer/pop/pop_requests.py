"""Makes the requests of a member that pops: POP_MESSAGE, BATCH_ACK_MESSAGE, ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME.

The requests are sent to masters only.
"""

# Pops use separate connections, which a stop closes. Otherwise, a broker would send messages for a held pop to a client that has
# stopped. The codes of acknowledgements and changes do not fit into the binary header of ``serialize_type="rocketmq"``, so with
# that setting, these requests also have separate connections, with JSON headers.

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from rmq_protocol import headers
from rmq_protocol.bodies import BatchAckMessageRequestBody, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import CorruptMessageError, RemoteProtocolError
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pop import ExtraInfo, build_extra_info, real_topic
from rmq_protocol.pop_handles import changed_handle, find_handles, gather_acks, left_handles
from rmq_protocol.stored import DecodedMessages, decode_messages
from rmq_protocol.subscription import SQL92, TAG

from ... import machine
from ...broker_answers import broker_error
from ...client import ClientInstance
from ...errors import FrameTooLargeError, RequestTimeoutError, RocketMQError
from ...hooks import RequestHook
from ...transport import CloseReason, ConnectionPool, client_context
from ..subscription import Subscription

ANSWER_WITHIN: Final = 10.0
"""Maximum seconds for the response to a pop after the time for which the broker may hold the pop, as in the Java client."""
DECODE_IN_THREAD: Final = 64 * 1024
"""Minimum size in bytes of a body that is decoded in a thread."""
ANY_QUEUE: Final = -1
FROM_THE_FIRST: Final = 0
"""The value of ``initMode`` that makes a broker begin with the first message of a queue without an offset."""
_NOTHING: Final = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND})


class Wanted(NamedTuple):
    """The parameters of one pop.

    Attributes:
        topic: Name of the topic on the wire.
        messages: Maximum number of messages.
        invisible_ms: Milliseconds for which no other member gets the messages.
        poll_ms: Milliseconds for which the broker may hold the pop.
        born_ms: Time of the request by the broker's clock, in milliseconds since the epoch. A later time if the clock is unknown.
    """

    topic: str
    broker: str
    subscription: Subscription
    messages: int
    invisible_ms: int
    poll_ms: int
    born_ms: int


class Popped(NamedTuple):
    """The response to one pop.

    Attributes:
        messages: The messages, with the topics under which they are stored.
        handles: The handle (POP_CK) with which each message is acknowledged; None for a message without one.
        corrupt: The errors of damaged records.
        unread: The handles of records without a message, which are ``corrupt`` or were left out. Empty if these handles cannot
            be determined.
        is_partial: Whether messages were left out because all bodies together exceed ``max_decompressed_size``, or because the
            response exceeds ``max_frame_size``.
        rest: Estimated number of messages that remain at the broker.
        popped_ms: Time of the pop by the broker's clock, in milliseconds since the epoch; 0 if the response does not contain it.
        invisible_ms: Milliseconds for which no other member gets the messages; at most the requested value.
        sent: Monotonic time of the request.
        arrived: Monotonic time of the response.
        refusal: The remark of a response without messages; "" otherwise.
        blocked: The errors of messages that are not damaged but that this client cannot read. Their handles are left out, so they
            are delivered again after their invisible time.
    """

    messages: Sequence[MessageExt]
    handles: Sequence[ExtraInfo | None]
    corrupt: Sequence[CorruptMessageError]
    unread: Sequence[ExtraInfo]
    is_partial: bool
    rest: int
    popped_ms: int
    invisible_ms: int
    sent: float
    arrived: float
    refusal: str = ""
    blocked: Sequence[RocketMQError] = ()


class Changed(NamedTuple):
    """The response to a change of the invisible time.

    Attributes:
        handle: The handle that is valid from now on.
        invisible_ms: Milliseconds for which the handle is valid; at most the requested value.
        sent: Monotonic time of the request.
        arrived: Monotonic time of the response.
    """

    handle: ExtraInfo
    invisible_ms: int
    sent: float
    arrived: float


class Requests:
    """The requests of a member that pops.

    Args:
        group: Name of the group on the wire.

    Attributes:
        pool: The connections for pops. ``open`` creates it.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._config = replace(instance.config, serialize_type="json")
        self.pool: ConnectionPool
        self._others = instance.pool
        self._made: list[ConnectionPool] = []
        self._hooks: Sequence[RequestHook] = ()

    async def open(self, hooks: Sequence[RequestHook]) -> None:
        """Create the connection pools. The errors of ``client_context`` propagate.

        Args:
            hooks: The hooks for requests of the consumer.
        """
        self._hooks = hooks
        self.pool = await self._new_pool()
        if self._instance.config.serialize_type != "json":
            self._others = await self._new_pool()

    async def _new_pool(self) -> ConnectionPool:
        pool = ConnectionPool(self._config, tls=await client_context(self._config, self._instance.threads))
        for hook in self._hooks:
            pool.hooks.add(hook)
        self._made.append(pool)
        return pool

    async def end_pops(self) -> None:
        """Close the connections for pops, so that brokers give the messages for held pops to other members."""
        for pool in self._made[:1]:
            await pool.aclose()

    async def close(self) -> None:
        async with AsyncExitStack() as pools:  # so that each pool is closed even if the wait for another one is cancelled
            for pool in self._made:
                pools.push_async_callback(pool.aclose)

    async def pop(self, wanted: Wanted) -> Popped:
        """Pop once and decode the messages. Of a response above ``max_frame_size``, only the handles are read.

        Raises:
            BrokerError: If the broker refuses the pop, including POLLING_FULL.
            RemoteProtocolError: For an invalid response.
            RequestTimeoutError: If the messages are not decoded in time. The errors of a request also propagate.
        """
        expression, kind = wanted.subscription.tags, TAG
        if wanted.subscription.sql is not None:
            expression, kind = wanted.subscription.sql, SQL92
        header = headers.PopMessageRequestHeader(
            consumerGroup=self._group,
            topic=wanted.topic,
            queueId=ANY_QUEUE,
            maxMsgNums=wanted.messages,
            invisibleTime=wanted.invisible_ms,
            pollTime=wanted.poll_ms,
            bornTime=wanted.born_ms,
            initMode=FROM_THE_FIRST,
            expType=kind,
            exp=expression,
            order=False,
        )
        timeout = wanted.poll_ms / 1000 + ANSWER_WITHIN
        command = headers.request_of(header)
        begun = machine.monotonic()
        try:
            response, address, sent = await self._ask(self.pool, wanted.broker, wanted.topic, command, timeout, long_poll=True)
        except FrameTooLargeError as error:
            return self._too_large(wanted, error, begun)
        arrived = machine.monotonic()
        try:
            if response.code == ResponseCode.SUCCESS:
                return await self._read(wanted, response, address, sent, arrived)
            if response.code in _NOTHING:
                answer = headers.from_ext(headers.PopMessageResponseHeader, response.ext_fields)
                rest, refusal = max(answer.restNum, 0), response.remark or ""
                return Popped((), (), (), (), False, rest, answer.popTime, 0, sent, arrived, refusal)
        except RemoteProtocolError as error:
            error.broker, error.address = wanted.broker, address
            raise
        raise broker_error(response.code, response.remark, request="POP_MESSAGE", broker=wanted.broker, address=address)

    def _too_large(self, wanted: Wanted, error: FrameTooLargeError, sent: float) -> Popped:
        """Return the result from the header of a response above ``max_frame_size``. Raise ``error`` if the header is not
        sufficient.
        """
        arrived = machine.monotonic()
        try:
            answer = headers.from_ext(headers.PopMessageResponseHeader, error.fields)
            handles = left_handles(answer, (), wanted.broker)
        except RemoteProtocolError:
            raise error from None
        if not handles:
            raise error
        blocked: tuple[RocketMQError, ...] = ()
        if len(handles) == 1:
            (handle,), handles = handles, []
            topic = real_topic(handle.retry, wanted.topic, self._group)
            queue = self._instance.names.shown_queue(MessageQueue(topic, wanted.broker, handle.queue_id))
            text = (
                f"the response with the message at offset {handle.msg_queue_offset} of {queue} has {error.size} bytes, above "
                f"max_frame_size={error.limit}; set max_frame_size={error.size} or more to read it"
            )
            size, limit = error.size, error.limit
            blocked = (FrameTooLargeError(text, size=size, limit=limit, broker=wanted.broker, address=error.address),)
        invisible_ms = min(answer.invisibleTime, wanted.invisible_ms)
        rest = max(answer.restNum, 0)
        times = (answer.popTime, invisible_ms, sent, arrived)
        return Popped((), (), (), handles, bool(handles), rest, *times, blocked=blocked)

    async def _read(self, wanted: Wanted, response: RemotingCommand, address: str, sent: float, arrived: float) -> Popped:
        answer = headers.from_ext(headers.PopMessageResponseHeader, response.ext_fields)
        decoded = await self._decoded(wanted, response, address, arrived, answer.invisibleTime)
        handles = find_handles(answer, decoded.messages, wanted.broker)
        blocked = [each for each in decoded.corrupt if each.intact]
        return Popped(
            decoded.messages,
            handles,
            [each for each in decoded.corrupt if not each.intact],
            _unread(answer, decoded, handles, wanted.broker),
            decoded.resume_at is not None,
            max(answer.restNum, 0),
            answer.popTime,
            min(answer.invisibleTime, wanted.invisible_ms),
            sent,
            arrived,
            blocked=blocked,
        )

    async def _decoded(
        self, wanted: Wanted, response: RemotingCommand, address: str, arrived: float, invisible_ms: int
    ) -> DecodedMessages:
        """Return the messages of a response. A large body is decoded in a thread.

        Raises:
            RemoteProtocolError: If there are messages, and their invisible time is not above 0.
            RequestTimeoutError: If a large body was not decoded in time.
        """
        instance, body = self._instance, response.body
        decode = partial(
            decode_messages,
            body,
            topic_queue_broker=wanted.broker,
            max_decompressed_size=instance.config.max_decompressed_size,
            allow_partial=True,
        )
        if len(body) < DECODE_IN_THREAD:
            decoded: DecodedMessages = decode()
        else:
            try:
                decoded = await instance.threads.run(decode, arrived + instance.config.request_timeout)
            except TimeoutError:
                limit = instance.config.request_timeout
                text = (
                    f"{len(body)} bytes of popped messages were not decoded within {limit:g} s; they are delivered again; lower "
                    "pull_size"
                )
                raise RequestTimeoutError(text, broker=wanted.broker, address=address) from None
        if decoded.messages and invisible_ms <= 0:
            raise RemoteProtocolError(f"a pop returned messages with invisibleTime {invisible_ms}; it must be above 0 ms")
        return decoded

    async def acknowledge(self, broker: str, handles: Sequence[tuple[str, ExtraInfo]], timeout: float) -> None:
        """Acknowledge messages of one broker.

        Args:
            handles: Pairs of a topic and a handle. The topic is the name on the wire of the subscribed topic, even if the message
                came from a retry topic.

        Raises:
            BrokerError: If the broker refuses the request. The errors of a request also propagate. The call may be repeated after
                any error.
        """
        topic = handles[0][0]
        body = encode_body(BatchAckMessageRequestBody(broker_name=broker, acks=gather_acks(self._group, handles)))
        command = RemotingCommand(code=RequestCode.BATCH_ACK_MESSAGE, body=body)
        await self._succeed(broker, topic, command, timeout)

    async def acknowledge_one(self, topic: str, handle: ExtraInfo, timeout: float) -> None:
        """Acknowledge a single message that cannot be part of a batch. It raises the errors of ``acknowledge``.

        Args:
            topic: Name on the wire of the subscribed topic, even if the message came from a retry topic.
        """
        header = headers.AckMessageRequestHeader(
            consumerGroup=self._group,
            topic=real_topic(handle.retry, topic, self._group),
            queueId=handle.queue_id,
            extraInfo=build_extra_info(handle),
            offset=handle.msg_queue_offset or 0,
            liteTopic=handle.lite_topic,
        )
        command = headers.request_of(header)
        await self._succeed(handle.broker_name, topic, command, timeout)

    async def change(self, topic: str, handle: ExtraInfo, invisible_ms: int, timeout: float, *, suspend: bool) -> Changed:
        """Make a broker deliver a message again after ``invisible_ms`` milliseconds. ``handle`` is invalid afterwards.

        After an error that leaves open whether the broker has handled the request, the caller must not repeat the request,
        because two changes of a handle cause two deliveries.

        Args:
            topic: Name on the wire of the subscribed topic, even if the message came from a retry topic.
            suspend: Whether the broker should not count an attempt.

        Raises:
            BrokerError: If the broker refuses the request.
            RemoteProtocolError: For an invalid response. The errors of a request also propagate.
        """
        header = headers.ChangeInvisibleTimeRequestHeader(
            consumerGroup=self._group,
            topic=real_topic(handle.retry, topic, self._group),
            queueId=handle.queue_id,
            extraInfo=build_extra_info(handle),
            offset=handle.msg_queue_offset or 0,
            invisibleTime=invisible_ms,
            suspend=suspend,
            liteTopic=handle.lite_topic,
        )
        command = headers.request_of(header)
        response, sent = await self._succeed(handle.broker_name, topic, command, timeout)
        arrived = machine.monotonic()
        changed = changed_handle(handle, headers.from_ext(headers.ChangeInvisibleTimeResponseHeader, response.ext_fields))
        if changed.invisible_time <= (0 if handle.lite_topic is None else -1):  # of a lite topic: from the pop on
            raise RemoteProtocolError(
                f"a change to {invisible_ms} ms set the invisible time to {changed.invisible_time} ms; it must be above 0 ms"
            )
        return Changed(changed, min(changed.invisible_time, invisible_ms), sent, arrived)

    async def _succeed(
        self, broker: str, topic: str, command: RemotingCommand, timeout: float
    ) -> tuple[RemotingCommand, float]:
        response, address, sent = await self._ask(self._others, broker, topic, command, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(
                response.code, response.remark, request=RequestCode(command.code).name, broker=broker, address=address
            )
        return response, sent

    async def _ask(
        self,
        pool: ConnectionPool,
        broker: str,
        topic: str,
        command: RemotingCommand,
        timeout: float,
        *,
        long_poll: bool = False,
    ) -> tuple[RemotingCommand, str, float]:
        """Return the response, the broker's address, and the monotonic time of the request."""
        instance, deadline = self._instance, machine.monotonic() + timeout
        try:
            address = await instance.broker_address(broker, topic, timeout)
            if pool.get(address) is None:
                await pool.connect(address, max(deadline - machine.monotonic(), 0.0))
            sent = machine.monotonic()
            response = await pool.request(address, command, max(deadline - sent, 0.0), long_poll=long_poll)
        except RocketMQError as error:
            instance.explain(error, broker, topic)
            if long_poll and isinstance(error, RequestTimeoutError) and (late := pool.get(error.address or "")) is not None:
                late.close(CloseReason.DEAD)  # only pops use this connection, and it may never respond again
            raise
        return response, address, sent


def _unread(
    answer: headers.PopMessageResponseHeader, decoded: DecodedMessages, handles: Sequence[ExtraInfo | None], broker: str
) -> list[ExtraInfo]:
    """Return the handles of records that were left out or are damaged. Return an empty list if they cannot be determined."""
    is_partial = decoded.resume_at is not None
    if None in handles or not (decoded.corrupt or is_partial):
        return []
    unread = left_handles(answer, handles, broker)
    if not is_partial and len(unread) != len(decoded.corrupt):
        return []
    intact = {each.queue_offset for each in decoded.corrupt if each.intact}
    return [handle for handle in unread if handle.msg_queue_offset not in intact]
