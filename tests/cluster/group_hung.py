"""A handler that hangs, in one queue of sixteen of a consumer in this process, on a real broker."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from time import monotonic

import msgspec

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer, Retry
from rmq_async.testing.cluster import RealCluster

from .group_calls import high

__all__ = ["Hung", "hangs"]

QUEUES = 16


class Hung(msgspec.Struct):
    """What one hang has shown; times in seconds.

    ``others``: share of the messages sent to other queues meanwhile that were handled. ``waits``: 99 % of them began within so
    many seconds of their confirmation. ``ahead``: offsets from the hung message to the highest one that was begun in its queue
    while it hung. ``named_after``: when ``health()`` named the message. ``cancelled_after``, ``again_after``: since the call
    began. ``at_a_time``: calls of the message at a time, at most. ``calls``: of the message. ``lost``, ``repeated``: of the others.
    """

    sent: int
    others: float
    waits: float
    ahead: int
    named_after: float | None
    cancelled_after: float
    again_after: float
    at_a_time: int
    calls: int
    lost: int
    repeated: int


class Hanging:
    """The handler. ``begun``: body -> when its calls began."""

    def __init__(self) -> None:
        self.begun: dict[bytes, list[float]] = defaultdict(list)
        self.ended: dict[bytes, list[float]] = defaultdict(list)
        self.offsets: list[tuple[float, MessageQueue, int]] = []
        self.cancelled = 0.0
        self.running = self.at_a_time = 0
        self.hung: MessageExt | None = None

    async def handle(self, message: MessageExt) -> None:
        self.begun[message.body].append(monotonic())
        if message.tags == "hang":
            await self._hang(message)
        else:
            self.offsets.append((monotonic(), message.queue, message.queue_offset))
            await asyncio.sleep(0.005)
        self.ended[message.body].append(monotonic())

    async def _hang(self, message: MessageExt) -> None:
        self.running += 1
        self.at_a_time = max(self.at_a_time, self.running)
        try:
            if not message.reconsume_times:
                self.hung = message
                await asyncio.Event().wait()
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            self.cancelled = monotonic()
            raise
        finally:
            self.running -= 1


async def hangs(real: RealCluster, rate: float, timeout: float, max_span: int) -> Hung:
    """Sends ``rate`` messages a second to all queues in turn; after a second comes the one that hangs. ``timeout``: of a call."""
    name = f"hung-{uuid.uuid4().hex[:12]}"
    async with (
        Admin(namesrv=real.namesrv) as admin,
        Producer(f"sender-{name}", namesrv=real.namesrv, batching=True) as producer,
    ):
        await admin.create_topic(name, queues=QUEUES)
        queues = sorted(await producer.fetch_publish_queues(name))
        hanging = Hanging()
        consumer = Consumer(name, namesrv=real.namesrv, max_span=max_span, stuck_after=timeout / 4, start_from="earliest")
        consumer.subscribe(name, hanging.handle, timeout=timeout, retry=Retry(delays=(1,)))
        sent: dict[bytes, tuple[float, MessageQueue]] = {}
        async with consumer:
            sending = asyncio.create_task(_send(producer, name, queues, rate, timeout + 3.0, sent))
            await asyncio.sleep(1.0)
            await producer.send(Message(name, b"hangs", tags="hang"), queue=queues[0])
            named = await _named(consumer, hanging, timeout)
            await sending
            deadline = monotonic() + 30.0
            while (len(hanging.ended) <= len(sent) or not hanging.ended[b"hangs"]) and monotonic() < deadline:
                await asyncio.sleep(0.05)
    return _result(hanging, sent, queues[0], named)


async def _send(
    producer: Producer, topic: str, queues: list[MessageQueue], rate: float, seconds: float,
    sent: dict[bytes, tuple[float, MessageQueue]],
) -> None:  # fmt: skip
    calls: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        body, queue = b"%d" % number, queues[number % QUEUES]
        await producer.send(Message(topic, body), queue=queue)
        sent[body] = (monotonic(), queue)

    number, began = 0, monotonic()
    while monotonic() - began < seconds:
        while number < (monotonic() - began) * rate:
            call = asyncio.create_task(one(number))
            calls.add(call)
            call.add_done_callback(calls.discard)
            number += 1
        await asyncio.sleep(0.01)
    await asyncio.gather(*calls)


async def _named(consumer: Consumer, hanging: Hanging, timeout: float) -> float | None:
    """Seconds from the beginning of the hung call until ``health()`` names its message, and that one alone; None if never."""
    began = monotonic()
    while monotonic() - began < timeout and not hanging.cancelled:
        health = consumer.health()
        stuck = [problem for problem in health.problems if problem.code == "handler_stuck"]
        message = hanging.hung
        if message is not None and stuck and message.msg_id in stuck[0].text:
            assert health.live
            assert health.oldest_unfinished is not None
            assert health.oldest_unfinished.messages[0].msg_id == message.msg_id
            return round(monotonic() - hanging.begun[b"hangs"][0], 2)
        await asyncio.sleep(0.02)
    return None


def _result(hanging: Hanging, sent: dict[bytes, tuple[float, MessageQueue]], queue: MessageQueue, named: float | None) -> Hung:
    assert hanging.hung is not None
    begun, cancelled = hanging.begun[b"hangs"][0], hanging.cancelled
    others = {body: at for body, (at, where) in sent.items() if where != queue and begun <= at < cancelled - 0.5}
    in_time = [body for body in others if any(end < cancelled for end in hanging.ended[body])]
    at_hung = hanging.hung.queue_offset
    beyond = [offset for at, where, offset in hanging.offsets if where == queue and begun <= at < cancelled]
    return Hung(
        sent=len(sent),
        others=round(len(in_time) / max(len(others), 1), 4),
        waits=high(hanging.begun[body][0] - at for body, at in others.items() if hanging.begun[body]),
        ahead=max(beyond, default=at_hung) - at_hung,
        named_after=named,
        cancelled_after=round(cancelled - begun, 2),
        again_after=round(hanging.begun[b"hangs"][-1] - begun, 2),
        at_a_time=hanging.at_a_time,
        calls=len(hanging.begun[b"hangs"]),
        lost=sum(not hanging.ended[body] for body in sent),
        repeated=sum(len(hanging.ended[body]) > 1 for body in sent),
    )
