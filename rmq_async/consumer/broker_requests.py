"""Requests that tools send to a member through its broker: running info, positions, resets, and consumption of one message.

Answers have the form of Java's push consumer, which mqadmin and the dashboards read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from rmq_protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    GetConsumerStatusBody,
    ProcessQueueInfo,
    decode_reset_offsets,
    encode_body,
)
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.forwarding import original_topic
from rmq_protocol.heartbeat import ConsumerData, ConsumeType
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.stored import decode_messages

from .. import machine
from .._text import printable
from ..client import ClientInstance
from ..errors import ProtocolError
from ..transport import not_supported
from .assignment import Assignment
from .by_hand import ByHand
from .calls import HandlerCalls
from .held_queue import HeldQueue
from .outcome import DeadLetter, RetryLater
from .subscription import Subscription
from .supervisor import Supervisor

__all__ = ["BrokerRequests", "MemberRequests"]

logger = logging.getLogger(__name__)

ANSWER_WITHIN: Final = 9.0
"""Seconds for the handler of a message that a tool sends: the broker waits 10 s for the answer
(``Broker2Client.callClient``)."""
MEBIBYTE: Final = 1024 * 1024


class MemberRequests:
    """Answers the requests of tools to a member that holds no queues.

    ``data``: returns its part of the heartbeat. ``subscriptions``: by topic on the wire.
    """

    def __init__(
        self,
        instance: ClientInstance,
        data: Callable[[], ConsumerData],
        subscriptions: Mapping[str, Subscription],
        calls: HandlerCalls | ByHand,
    ) -> None:
        self._instance = instance
        self._data = data
        self._subscriptions = subscriptions
        self._calls = calls
        self._started_ms = round(machine.time() * 1000)
        self._direct = asyncio.Lock()
        """A lock that is held while the handler runs with a message of a tool: one at a time."""

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Returns the answer to a request of a tool: an awaitable of it for CONSUME_MESSAGE_DIRECTLY (309), and None for a
        RESET_CONSUMER_CLIENT_OFFSET (220) that can be read, because brokers expect no answer to that."""
        try:
            if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                return _answer(command, encode_body(self._running_info(), standard=False))
            if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return _answer(command, encode_body(self._status(command), standard=False))
            if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._reset(decode_reset_offsets(command.body))
                return None
            if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return self._consume(command)
        except ProtocolError as error:
            return make_response(command, ResponseCode.SYSTEM_ERROR, printable(error, 300))
        return not_supported(command)

    # -- 307, 221

    def _running_info(self) -> ConsumerRunningInfo:
        config = self._instance.config
        properties = {
            "PROP_CONSUME_TYPE": str(ConsumeType.CONSUME_PASSIVELY),
            "PROP_CONSUMEORDERLY": "true" if any(each.order for each in self._subscriptions.values()) else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CLIENT_VERSION": "V5_5_0",
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in config.namesrv or ()),
            "PROP_THREADPOOL_CORE_SIZE": str(self._calls.concurrency),
            "messageModel": self._data().message_model,
            "consumeFromWhere": self._data().consume_from_where,
        }
        topics = dict.fromkeys(each.topic for each in self._data().subscription_data_set)
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=self._data().subscription_data_set,
            mq_table=self._queues(),
            status_table={topic: ConsumeStatus() for topic in topics},
        )

    def _queues(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Returns the state of the queues that this member holds, as tools show it."""
        return {}

    def _status(self, command: RemotingCommand) -> GetConsumerStatusBody:
        return GetConsumerStatusBody()

    # -- 220

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Does nothing, because a member that pops holds no queue: the broker itself continues at other offsets."""

    # -- 309

    async def _consume(self, command: RemotingCommand) -> RemotingCommand:
        """Calls the handler with the message in the request, and settles nothing; returns the answer."""
        found = decode_messages(command.body)
        if len(found.messages) != 1:
            text = f"the request must hold one message that can be read, and holds {len(found.messages)}; send one"
            return make_response(command, ResponseCode.SYSTEM_ERROR, text)
        message = self._instance.names.shown_messages(found.messages)[0]
        topic = self._instance.names.wire(original_topic(message.topic, message.properties))
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            text = f"no handler of this consumer subscribes to topic {printable(topic)!r}; ask a member that subscribes to it"
            return make_response(command, ResponseCode.SYSTEM_ERROR, text)
        message = msgspec.structs.replace(message, topic=subscription.topic)
        since = machine.monotonic()
        async with self._direct:
            result, remark = await self._call(subscription, message)
        spent = round((machine.monotonic() - since) * 1000)
        logger.info("message %s was handled on request of a tool: %s", message.msg_id, result)
        answer = ConsumeMessageDirectlyResult(consume_result=result, remark=remark, spent_time_mills=spent)
        return _answer(command, encode_body(answer, standard=False))

    async def _call(self, subscription: Subscription, message: MessageExt) -> tuple[str, str | None]:
        """Returns the outcome in Java's word (``CMResult``), and the text of the error; None without one."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                error = await self._calls.call_once(subscription, message)
        except TimeoutError:
            return "CR_THROW_EXCEPTION", f"the handler did not end within {ANSWER_WITHIN:g} s"
        if error is None:
            return "CR_SUCCESS", None
        word = "CR_LATER" if isinstance(error, RetryLater | DeadLetter) else "CR_THROW_EXCEPTION"
        return word, printable(repr(error), 500)


class BrokerRequests(MemberRequests):
    """Answers the requests of tools to a member that holds queues. ``data``, ``subscriptions``: as for MemberRequests."""

    def __init__(
        self,
        instance: ClientInstance,
        data: Callable[[], ConsumerData],
        subscriptions: Mapping[str, Subscription],
        assignment: Assignment,
        calls: HandlerCalls | ByHand,
        supervisor: Supervisor,
    ) -> None:
        super().__init__(instance, data, subscriptions, calls)
        self._assignment = assignment
        self._supervisor = supervisor

    def _queues(self) -> dict[MessageQueue, ProcessQueueInfo]:
        return {held.queue: self._queue_info(held) for held in self._assignment.owned()}

    def _queue_info(self, held: HeldQueue) -> ProcessQueueInfo:
        waiting = self._assignment.dispatcher.buffered_of(held)
        messages = [*[item.message for item in held.running], *waiting]
        offsets = [message.queue_offset for message in messages]
        size = sum(len(message.body) for message in messages)
        locked_at = self._assignment.locks.locked_at(held.queue)
        return ProcessQueueInfo(
            commit_offset=held.progress.watermark,
            cached_msg_min_offset=min(offsets, default=0),
            cached_msg_max_offset=max(offsets, default=0),
            cached_msg_count=len(offsets),
            cached_msg_size_in_mib=size // MEBIBYTE,
            locked=locked_at is not None,
            last_lock_timestamp=0 if locked_at is None else _epoch_ms(locked_at),
            droped=held in self._assignment.leaving,
            last_pull_timestamp=_epoch_ms(held.pulled_at),
            last_consume_timestamp=_epoch_ms(held.settled_at),
        )

    def _status(self, command: RemotingCommand) -> GetConsumerStatusBody:
        topic = (command.ext_fields or {}).get("topic")
        table = {held.queue: held.progress.watermark for held in self._assignment.owned() if held.queue.topic == topic}
        return GetConsumerStatusBody(message_queue_table=table)

    def _reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begins to move the queues that this member holds; others, and offsets below 0, are ignored."""
        for queue, offset in offsets.items():
            held = self._assignment.held.get(queue)
            if held is not None and offset >= 0:
                self._supervisor.once(f"reset of {held.shown}", self._assignment.reset(held, offset))


def _answer(command: RemotingCommand, body: bytes) -> RemotingCommand:
    return msgspec.structs.replace(make_response(command, ResponseCode.SUCCESS, None), body=body)


def _epoch_ms(monotonic: float) -> int:
    return round((machine.time() - machine.monotonic() + monotonic) * 1000)
