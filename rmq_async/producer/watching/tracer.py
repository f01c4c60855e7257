"""Message traces: the outcome of each attempt, sent to a topic in which mqadmin and consoles find it by id and key.

A record is encoded when an attempt ends, and waits in a queue bounded in number and bytes. Records are sent together, a second
after the first of them or when a trace message is full, over the producer's connections but without its credits, hooks and
selectors: a trace never delays a send, and is not traced itself. Records that cannot be kept or sent are dropped and counted.
Traces are sent in an empty context (of ``contextvars``): each Task starts the next, and would keep the first caller's context
alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from contextvars import Context
from typing import Final, NamedTuple

from rmq_protocol.errors import LocalProtocolError, RocketMQError
from rmq_protocol.message import Message, MessageExt
from rmq_protocol.trace import TRACE_TOPIC, MessageType, TraceBean, TraceContext, TraceType, encode_trace, trace_keys

from ... import machine
from ..._ordered import OrderedSet
from ..._text import printable
from ...results import BatchSendResult, SendResult
from ..calls import Call, Dispatch, RetryLoop, is_retriable
from ..encoding import SEND_OK, Encoder, Outgoing, stored_message
from ..hooks import SendContext
from ..routing import Target, TopicQueues

__all__ = ["Tracer"]

logger = logging.getLogger("rmq_async.producer.trace")

DELAY: Final = 1.0
"""Maximum seconds that a record waits before it is sent."""
RECORDS: Final = 100
"""Maximum number of records in one trace message."""
BODY_SIZE: Final = 128_000
"""Maximum body size of one trace message in bytes, as in Java's client."""
KEYS_SIZE: Final = 16_000
"""Maximum size in bytes of the keys of one trace message; properties are limited to twice that."""
MOST_RECORDS: Final = 10_000
MOST_BYTES: Final = 4 * 1024 * 1024
AT_ONCE: Final = 4
"""Maximum number of trace messages in flight."""
TIMEOUT: Final = 5.0
REGION: Final = "DefaultRegion"
"""Region of a broker that names none."""
REGIONS_KEPT: Final = 1024
"""Maximum number of brokers whose regions are kept."""


class Record(NamedTuple):
    """An encoded trace record. ``keys``: keys that its trace message gets for it; ``keys_size``: their size in bytes."""

    data: bytes
    keys: Collection[str]
    keys_size: int


class Tracer:
    """The producer's built-in hook that sends traces. ``lost``: number of records that were dropped or not sent."""

    def __init__(self, dispatch: Dispatch, encoder: Encoder, group: str, trace: bool | str) -> None:
        self.topic = trace if isinstance(trace, str) else TRACE_TOPIC
        self.lost = 0
        self._dispatch = dispatch
        self._encoder = encoder
        self._group = group
        # Region by broker, from its last response; None for a broker that turns tracing off.
        self._regions: dict[str, str | None] = {}
        self._waiting: deque[Record] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = False  # the timer has fired: send all records, also in a message that is not full
        self._hurry = False
        self._closed = False
        self._sending: OrderedSet[asyncio.Task[None]] = OrderedSet()

    # -- records

    def after_send(self, context: SendContext) -> None:
        """Appends a record for each message of the attempt; none for a one-way send, whose outcome is unknown."""
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
        """``after_send`` without a SendContext, for a usual message. ``result``: None for an attempt that failed."""
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
        """Appends a record of a transaction's end.

        ``state``: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW. ``address``: broker that the end was sent to.
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
        """Appends a record of the recall of a delayed message. ``success``: whether the broker confirmed it."""
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

    def append(self, context: TraceContext) -> None:
        """Queues the record, or drops and counts it if the queue is full. Never waits and never raises."""
        try:
            data = encode_trace(context).encode()
        except (LocalProtocolError, UnicodeEncodeError) as error:
            self._lose(1, error)
            return
        if self._closed or len(self._waiting) >= MOST_RECORDS or self._bytes + len(data) > MOST_BYTES or len(data) > BODY_SIZE:
            self._lose(1, "the producer has stopped" if self._closed else "the queue is full, or the record is too large")
            return
        keys, size = _keys_of(context)
        self._waiting.append(Record(data, keys, size))
        self._bytes += len(data)
        if self._timer is None or self._hurry or len(self._waiting) >= RECORDS or self._bytes >= BODY_SIZE:
            self._send_more()

    def _region(self, broker: str, result: SendResult | BatchSendResult | None) -> str | None:
        """Returns the broker's region, for a failed attempt the last one known; None if the broker turns tracing off."""
        if result is None:
            return self._regions.get(broker, REGION)
        if len(self._regions) >= REGIONS_KEPT and broker not in self._regions:
            self._regions.clear()
        region = self._regions[broker] = (result.region_id or REGION) if result.trace_on else None
        return region

    # -- sending

    def _send_more(self) -> None:
        """Sends full or due trace messages, or sets the timer for the rest."""
        full = len(self._waiting) >= RECORDS or self._bytes >= BODY_SIZE
        while self._waiting and (full or self._due or self._hurry) and len(self._sending) < AT_ONCE:
            sending = self._send(self._take())
            task = asyncio.get_running_loop().create_task(sending, name="rmq_async trace", context=Context())
            self._sending.add(task)
            task.add_done_callback(self._sent, context=Context())
            full = len(self._waiting) >= RECORDS or self._bytes >= BODY_SIZE
        if not self._waiting:
            self._due = False
        if self._waiting and self._timer is None and not self._due:
            self._timer = asyncio.get_running_loop().call_later(DELAY, self._time_is_up, context=Context())
        elif not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_up(self) -> None:
        self._timer = None
        self._due = True
        self._send_more()

    def _take(self) -> list[Record]:
        """Removes and returns the records of the next trace message."""
        taken = [self._waiting.popleft()]
        size, keys_size = len(taken[0].data), taken[0].keys_size
        while self._waiting and len(taken) < RECORDS:
            following = self._waiting[0]
            size += len(following.data)
            keys_size += following.keys_size
            if size > BODY_SIZE or keys_size > KEYS_SIZE:
                break
            taken.append(self._waiting.popleft())
        self._bytes -= sum(len(record.data) for record in taken)
        return taken

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "sending traces failed", "exception": error})
        if not self._closed:
            self._send_more()

    async def _send(self, records: list[Record]) -> None:
        keys = frozenset[str]().union(*(record.keys for record in records))
        try:
            message = Message(self.topic, b"".join([record.data for record in records]), keys=sorted(keys))
            await self._deliver(message, machine.monotonic() + TIMEOUT)
        except RocketMQError as error:
            self._lose(len(records), error)
        except asyncio.CancelledError:
            self._lose(len(records), "the producer has stopped")
            raise

    async def _deliver(self, message: Message, deadline: float) -> None:
        """Sends one trace message in at most two attempts, on two brokers if the topic has them."""
        dispatch = self._dispatch
        outgoing = self._encoder.encode(message)
        topic_queues = await dispatch.router.topics.find(self.topic, deadline)
        first = topic_queues.next()
        try:
            await self._attempt(first, outgoing, topic_queues, min(deadline, machine.monotonic() + TIMEOUT / 2))
        except RocketMQError as error:
            if dispatch.closed or not is_retriable(error, dispatch.config.retry_codes):
                raise
            second = topic_queues.next_of(topic_queues.brokers - {first.broker} or topic_queues.brokers)
            await self._attempt(second, outgoing, topic_queues, deadline)

    async def _attempt(self, target: Target, outgoing: Outgoing, topic_queues: TopicQueues, deadline: float) -> None:
        loop = RetryLoop(self._dispatch, Call(outgoing, stored_message, machine.monotonic(), deadline, 0), topic_queues)
        loop.begin_with(target)
        await loop.run()

    def _lose(self, count: int, why: object) -> None:
        """Counts lost records; logs when the count reaches the next power of two."""
        before, self.lost = self.lost, self.lost + count
        if before.bit_length() != self.lost.bit_length():
            logger.warning("%d traces were not sent to topic %s, the last: %s", self.lost, self.topic, printable(why, 300))

    # -- the end

    def hurry(self) -> None:
        """Sends records without delay from now on."""
        self._hurry = True
        self._send_more()

    async def flush(self, deadline: float) -> None:
        """Waits until all records are sent, at most until ``deadline`` (monotonic)."""
        self.hurry()
        while self._sending and (remaining := deadline - machine.monotonic()) > 0:
            await asyncio.wait(self._sending, timeout=remaining)

    def end(self) -> None:
        """Drops all remaining and later records, and cancels the Tasks that send."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._lose(len(self._waiting), "the producer has stopped")
            self._waiting.clear()
            self._bytes = 0
        for task in self._sending:
            task.cancel()

    async def ended(self) -> None:
        """Waits for the Tasks that ``end`` has cancelled."""
        if self._sending:
            await asyncio.wait(self._sending)


def _keys(message: Message | MessageExt) -> str | None:
    """Returns the message's keys in wire format, or None."""
    return " ".join(message.keys) or None


def _keys_of(context: TraceContext) -> tuple[Collection[str], int]:
    """Returns the keys that a trace message gets for the record, and their size in bytes."""
    bean = context.beans[0]
    if bean.keys is None and bean.msg_id and "\x00" not in bean.msg_id:
        return (bean.msg_id,), len(bean.msg_id.encode()) + 1
    keys = frozenset(filter(_may_be_key, trace_keys([context])))
    size = _size(keys)
    if size > KEYS_SIZE:
        keys &= {bean.msg_id or ""}
        size = _size(keys)
    return keys, size


def _may_be_key(key: str) -> bool:
    """Returns whether a message may carry the key; a checked transaction may have keys that other clients wrote."""
    return "\x00" not in key


def _size(keys: Collection[str]) -> int:
    return sum(len(key.encode()) + 1 for key in keys)


def _now_ms() -> int:
    return round(machine.time() * 1000)
