"""The queue of message traces that wait to be sent to the trace topic, for producers and consumers.

A record is encoded at once and waits in a queue, which limits the number and the bytes of the records. Several records are sent in
one trace message: one second after the first of them was queued, when the trace message is full, or without delay after ``hurry``.
Records that cannot be queued or sent are dropped and counted. Traces are sent in an empty context (of ``contextvars``), because
each task starts the next one and would keep the context of the first caller alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context
from typing import Final, NamedTuple

from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, STORED_CODES
from rmq_protocol.errors import LocalProtocolError, RocketMQError
from rmq_protocol.headers import SendMessageRequestHeaderV2, request_of
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.properties import message_properties
from rmq_protocol.trace import TraceContext, encode_trace, trace_keys

from .. import machine
from .._ordered import OrderedSet
from .._text import printable
from ..broker_answers import broker_error
from ..errors import TopicNotFoundError
from .instance import ClientInstance

DELAY: Final = 1.0
"""Seconds after which a waiting record is sent even if its trace message is not full."""
RECORDS: Final = 100
"""Maximum number of records in one trace message."""
BODY_SIZE: Final = 128_000
"""Maximum body size of one trace message in bytes, as in Java's client."""
KEYS_SIZE: Final = 16_000
"""Maximum bytes of the keys of one trace message. The limit for its properties is twice as large."""
MOST_RECORDS: Final = 10_000
MOST_BYTES: Final = 4 * 1024 * 1024
"""Maximum number of the waiting records, and maximum of their total bytes."""
AT_ONCE: Final = 4
"""Maximum number of trace messages in flight."""
TRACE_TIMEOUT: Final = 5.0
"""Seconds for one trace message, including all attempts."""


class Record(NamedTuple):
    """An encoded trace record.

    Attributes:
        keys: The keys that the trace message gets for this record.
        keys_size: The size of these keys in bytes.
    """

    data: bytes
    keys: Collection[str]
    keys_size: int


class TraceRecords:
    """The trace records of a producer or consumer that wait to be sent.

    Args:
        topic: The trace topic, without the namespace prefix.
        deliver: Sends one trace message by a monotonic deadline, and raises RocketMQError if it was not stored.
        owner: "producer" or "consumer".

    Attributes:
        lost: Number of records that were dropped or not sent.
    """

    def __init__(
        self, topic: str, deliver: Callable[[Message, float], Awaitable[None]], logger: logging.Logger, owner: str
    ) -> None:
        self.topic = topic
        self.lost = 0
        self._deliver = deliver
        self._logger = logger
        self._stopped = f"the {owner} has stopped"
        self._waiting: deque[Record] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = False  # the timer has fired: send all records, even in a message that is not full
        self._hurry = False
        self._closed = False
        self._sending: OrderedSet[asyncio.Task[None]] = OrderedSet()

    def append(self, context: TraceContext) -> None:
        """Queue a record for ``context``.

        If the queue is full or has ended, or the record is too large or cannot be encoded, drop and count the record.
        """
        try:
            data = encode_trace(context).encode()
        except (LocalProtocolError, UnicodeEncodeError) as error:
            self._lose(1, error)
            return
        if self._closed or len(self._waiting) >= MOST_RECORDS or self._bytes + len(data) > MOST_BYTES or len(data) > BODY_SIZE:
            self._lose(1, self._stopped if self._closed else "the queue is full, or the record is too large")
            return
        keys, size = _keys_of(context)
        self._waiting.append(Record(data, keys, size))
        self._bytes += len(data)
        if self._timer is None or self._hurry or len(self._waiting) >= RECORDS or self._bytes >= BODY_SIZE:
            self._send_more()

    # -- sending

    def _send_more(self) -> None:
        """Send trace messages that are full or due, and set the timer for the remaining records."""
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
        """Remove and return the records of the next trace message."""
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
            await self._deliver(message, machine.monotonic() + TRACE_TIMEOUT)
        except RocketMQError as error:
            self._lose(len(records), error)
        except asyncio.CancelledError:
            self._lose(len(records), self._stopped)
            raise

    def _lose(self, count: int, why: object) -> None:
        """Add ``count`` lost records, and log a WARNING when the total reaches or passes a power of two."""
        before, self.lost = self.lost, self.lost + count
        if before.bit_length() != self.lost.bit_length():
            self._logger.warning(
                "%d traces so far were not sent to topic %s; last reason: %s", self.lost, self.topic, printable(why, 300)
            )

    # -- the end

    def hurry(self) -> None:
        """Send records without delay from now on."""
        self._hurry = True
        self._send_more()

    async def flush(self, deadline: float) -> None:
        """Wait until all records are sent, at most until ``deadline`` (monotonic)."""
        self.hurry()
        while self._sending and (remaining := deadline - machine.monotonic()) > 0:
            await asyncio.wait(self._sending, timeout=remaining)

    def end(self) -> None:
        """Drop all waiting and later records, and cancel the tasks that send."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._lose(len(self._waiting), self._stopped)
            self._waiting.clear()
            self._bytes = 0
        for task in self._sending:
            task.cancel()

    async def ended(self) -> None:
        """Wait for the tasks that ``end`` has cancelled."""
        if self._sending:
            await asyncio.wait(self._sending)


def _keys_of(context: TraceContext) -> tuple[Collection[str], int]:
    """Return the keys that a trace message gets for the record, and their size in bytes."""
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
    """Return whether a message may have this key. In a transaction check, the message may come from any client and have other
    keys.
    """
    return "\x00" not in key


def _size(keys: Collection[str]) -> int:
    return sum(len(key.encode()) + 1 for key in keys)


# Trace messages of clients without a producer.

QUEUES: Final = 4
"""Number of queues per broker with which a send creates a trace topic."""


async def send_trace(instance: ClientInstance, group: str, message: Message, deadline: float) -> None:
    """Send a trace message by ``deadline`` (monotonic) in at most two attempts. They use two brokers if the topic has two.

    Args:
        group: The producer group in the header, with its name on the wire.

    Raises:
        TopicNotFoundError: If the topic does not exist and no broker offers to create it, or if no master has the topic with write
            permission.
        NameServerError: If no name server gives a usable response.
        RocketMQError: Other errors of ``ClientInstance.ask_broker``.
    """
    topic = instance.names.wire(message.topic)
    route = await instance.routes.get(
        topic, deadline - machine.monotonic(), create_key=AUTO_CREATE_TOPIC_KEY, default_queues=QUEUES
    )
    queues = route.reachable_queues
    if not queues:
        raise TopicNotFoundError(
            f"no master has trace topic {message.topic} with write permission; set its perm to 6, or turn tracing off"
        )
    first = machine.random.choice(queues)
    properties = message_properties(message, instance.unique_ids.next())
    try:
        await _send(instance, group, message, first, properties, min(deadline, machine.monotonic() + TRACE_TIMEOUT / 2))
    except RocketMQError as error:
        if not error.retriable:
            raise
        others = [queue for queue in queues if queue.broker_name != first.broker_name] or queues
        await _send(instance, group, message, machine.random.choice(others), properties, deadline)


async def _send(
    instance: ClientInstance, group: str, message: Message, queue: MessageQueue, properties: str, deadline: float
) -> None:
    broker_name = instance.routes.broker_of(queue)
    header = SendMessageRequestHeaderV2(
        a=group,
        b=queue.topic,
        c=AUTO_CREATE_TOPIC_KEY,
        d=QUEUES,
        e=queue.queue_id,
        f=0,
        g=round(machine.time() * 1000),
        h=message.flag,
        i=properties,
        j=0,
        k=instance.config.unit_mode,
        l=None,
        m=False,
        n=broker_name,
    )
    command = request_of(header, body=message.body)
    left = max(deadline - machine.monotonic(), 0.0)
    response, address = await instance.ask_broker(broker_name, queue.topic, command, left)
    if response.code not in STORED_CODES:
        raise broker_error(response.code, response.remark, request="SEND_MESSAGE_V2", broker=broker_name, address=address)
