"""Message traces: what became of each attempt, reported to a topic where mqadmin and consoles look it up by id and key.

A record is made when an attempt ends and waits as text, bounded in number and bytes. Records leave together, a second after the
first of them or when a message is full, through the producer's connections but past its credits, hooks and selectors: a trace
never stands in front of a send, and is not traced itself. What cannot be kept or sent is dropped and counted. Traces are sent in a
context (of ``contextvars``) of their own: each sending leads to the next, and the first caller's would live on in all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from contextvars import Context
from time import monotonic, time
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_protocol.errors import LocalProtocolError, RocketMQError
from rmq_protocol.message import Message, MessageExt
from rmq_protocol.trace import TRACE_TOPIC, MessageType, TraceBean, TraceContext, TraceType, encode_trace, trace_keys

from ..client.text import printable
from ..results import BatchSendResult, SendResult
from .call import SendCall
from .hooks import SendContext
from .lanes import Lane, Target
from .outgoing import Outgoing
from .policy import is_retriable
from .replies import SEND_OK, stored_message

if TYPE_CHECKING:
    from .sender import Sender

__all__ = ["Tracer"]

logger = logging.getLogger("rmq_async.producer.trace")

DELAY: Final = 1.0
"""Seconds that a record waits at most before it is sent."""
RECORDS: Final = 100
"""Records of one trace message."""
BODY_SIZE: Final = 128_000
"""Bytes of one trace message, as Java's client has it."""
KEYS_SIZE: Final = 16_000
"""Bytes of the keys that one trace message is found by; its properties may take twice as many."""
MOST_RECORDS: Final = 10_000
MOST_BYTES: Final = 4 * 1024 * 1024
AT_ONCE: Final = 4
"""Trace messages that are on their way at the same time."""
TIMEOUT: Final = 5.0
REGION: Final = "DefaultRegion"
"""Where a broker does not say which region it is in."""
REGIONS_KEPT: Final = 1024
"""Brokers whose regions are known."""


class Record(NamedTuple):
    """``keys``: of the trace message, so that the record is found by them; ``keys_size``: their bytes."""

    data: bytes
    keys: frozenset[str]
    keys_size: int


class Tracer:
    """A hook of the producer's own. ``lost``: records that were dropped, or could not be sent."""

    def __init__(self, sender: Sender, trace: bool | str) -> None:
        self.topic = trace if isinstance(trace, str) else TRACE_TOPIC
        self.lost = 0
        self._sender = sender
        self._regions: dict[str, str | None] = {}
        """By broker, what its last answer said; None for one that wants no traces."""
        self._waiting: deque[Record] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        """Everything that waits is to be sent, full messages or not."""
        self._hurry = False
        self._closed = False
        self._sending: set[asyncio.Task[None]] = set()

    # -- what is reported

    def after_send(self, context: SendContext) -> None:
        """A record for each message of the attempt. Nothing is known of a one-way send, so it has none."""
        result = context.result
        if (result is None and context.error is None) or context.queue.topic == self.topic:
            return
        region = self._region(context.broker, result)
        if region is None:
            return
        cost = round(context.elapsed * 1000)
        messages = context.message if isinstance(context.message, tuple) else (context.message,)
        offset_ids: Collection[str | None] = [None] * len(messages)
        if isinstance(result, BatchSendResult):
            offset_ids = result.offset_msg_ids
        elif result is not None:
            offset_ids = [result.offset_msg_id]
        kind = context.message_type if context.message_type is not MessageType.ORDER else MessageType.NORMAL  # as Java
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
            self.append(
                TraceContext(
                    trace_type=TraceType.PUB,
                    beans=(bean,),
                    time_stamp=_now_ms() - cost,
                    region_id=region,
                    group_name=context.group,
                    cost_time=cost,
                    success=result is not None and result.status is SEND_OK,
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
        """``state``: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW. ``address``: of the broker that it was sent to."""
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
        """A delayed message was recalled, or was not."""
        self._append(TraceType.RECALL, TraceBean(topic=topic, msg_id=msg_id), region, success=success)

    def _append(self, kind: TraceType, bean: TraceBean, region: str | None, *, success: bool) -> None:
        self.append(
            TraceContext(
                trace_type=kind,
                beans=(bean,),
                time_stamp=_now_ms(),
                region_id=region or REGION,
                group_name=self._sender.group,
                success=success,
            )
        )

    def append(self, context: TraceContext) -> None:
        """Keeps the record until it is sent; what is too much is dropped. Never waits and never raises."""
        try:
            data = encode_trace(context).encode()
        except (LocalProtocolError, UnicodeEncodeError) as error:
            self._lose(1, error)
            return
        if self._closed or len(self._waiting) >= MOST_RECORDS or self._bytes + len(data) > MOST_BYTES or len(data) > BODY_SIZE:
            self._lose(1, "the producer has stopped" if self._closed else "too many of them wait, or one is too large")
            return
        keys = frozenset(filter(_may_be_key, trace_keys([context])))
        size = _size(keys)
        if size > KEYS_SIZE:
            keys &= {context.beans[0].msg_id or ""}
            size = _size(keys)
        self._waiting.append(Record(data, keys, size))
        self._bytes += len(data)
        self._send_more()

    def _region(self, broker: str, result: SendResult | BatchSendResult | None) -> str | None:
        """The broker's region, or None where it wants no traces; of a failed attempt, what it said the last time."""
        if result is None:
            return self._regions.get(broker, REGION)
        if len(self._regions) >= REGIONS_KEPT and broker not in self._regions:
            self._regions.clear()
        region = self._regions[broker] = (result.region_id or REGION) if result.trace_on else None
        return region

    # -- sending

    def _send_more(self) -> None:
        """Begins to send what is full or due, or sets the timer for it."""
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
        """The records of the next message."""
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
            await self._deliver(message, monotonic() + TIMEOUT)
        except RocketMQError as error:
            self._lose(len(records), error)
        except asyncio.CancelledError:
            self._lose(len(records), "the producer has stopped")
            raise

    async def _deliver(self, message: Message, deadline: float) -> None:
        """Two attempts at most, on two brokers where there are."""
        sender = self._sender
        outgoing = sender.encoder.encode(message)
        lane = await sender.topics.lane(self.topic, deadline)
        first = lane.next()
        try:
            await self._attempt(first, outgoing, lane, min(deadline, monotonic() + TIMEOUT / 2))
        except RocketMQError as error:
            if sender.closed or not is_retriable(error, sender.config.retry_codes):
                raise
            second = lane.next_of(lane.brokers - {first.broker} or lane.brokers)
            await self._attempt(second, outgoing, lane, deadline)

    async def _attempt(self, target: Target, outgoing: Outgoing, lane: Lane, deadline: float) -> None:
        now = monotonic()
        call = SendCall(self._sender, outgoing, lane, stored_message, deadline=deadline, started=now, retries=0)
        call.begin_with(target)
        await call.run()

    def _lose(self, count: int, why: object) -> None:
        """Counts, and says so when the count has doubled."""
        before, self.lost = self.lost, self.lost + count
        if before.bit_length() != self.lost.bit_length():
            logger.warning("%d traces did not get to topic %s, the last: %s", self.lost, self.topic, printable(why, 300))

    # -- the end

    def hurry(self) -> None:
        """From here on nothing waits for company."""
        self._hurry = True
        self._send_more()

    async def flush(self, deadline: float) -> None:
        """Waits until everything is sent, at most until ``deadline``."""
        self.hurry()
        while self._sending and (remaining := deadline - monotonic()) > 0:
            await asyncio.wait(self._sending, timeout=remaining)

    def end(self) -> None:
        """Drops what is left, and what comes."""
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
        """Waits for what ``end`` has cancelled."""
        if self._sending:
            await asyncio.wait(self._sending)


def _keys(message: Message | MessageExt) -> str | None:
    """As they are on the wire."""
    return " ".join(message.keys) or None


def _may_be_key(key: str) -> bool:
    """Whether a message may have it: records that brokers ask about hold what other clients have written."""
    return "\x00" not in key


def _size(keys: Collection[str]) -> int:
    return sum(len(key.encode()) + 1 for key in keys)


def _now_ms() -> int:
    return round(time() * 1000)
