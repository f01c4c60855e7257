"""What a message costs a group consumer: Python functions called for it, counted. A pull brings 32, as a stock broker gives them.

The server runs in another thread, which the counting does not see. The first handler calls wait until all messages are buffered:
else the calls depend on how many come at once, because an ended call that leaves nothing to begin costs one more.
"""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer
from rmq_async.testing.threaded import ThreadedRocketMQ

from ...support.calls import Calls, counted
from ...support.waiting import until

TOPIC = "costs"
QUEUES, PULLED = 4, 32
MESSAGES = QUEUES * PULLED * 16
ROUNDS = 3
LIMIT = 7.2
"""Calls of one message, the handler's own not included."""
LOOSE = 0.9
"""What runs meanwhile, the more the slower the machine: smaller answers, commits, renewals. One more call for each message
exceeds it."""


async def test_calls_of_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.consumer.queues.pull_session.most_ahead", lambda *_: MESSAGES)
    count, over, gate = 0, asyncio.Event(), asyncio.Event()

    async def handler(message: MessageExt) -> None:
        nonlocal count
        await gate.wait()
        count += 1
        if count == MESSAGES:
            over.set()

    def is_buffered(calls: Calls) -> bool:
        before = calls.count
        buffered = consumer.stats().buffered
        calls.count = before  # looking belongs to no message
        return buffered == MESSAGES

    figures = []
    with ThreadedRocketMQ() as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        async with Producer("senders", namesrv=server.namesrv) as producer:
            for number in range(MESSAGES // PULLED):
                batch = [Message(TOPIC, b"body") for _ in range(PULLED)]
                await producer.send_batch(batch, queue=MessageQueue(TOPIC, "broker-a", number % QUEUES))
        consumer = Consumer("costs", namesrv=server.namesrv)
        consumer.subscribe(TOPIC, handler)
        async with consumer:
            for _ in range(ROUNDS):
                consumer.pause()
                for queue in sorted(each for each in consumer.assignment if each.topic == TOPIC):
                    await consumer.seek(queue, 0)
                count = 0
                over.clear()
                gate.clear()
                with counted() as calls:
                    consumer.resume()
                    await until(lambda: is_buffered(calls), 60.0)
                    gate.set()
                    await over.wait()
                figures.append(calls.count / MESSAGES)
    print(f"{min(figures):.3f} calls, the limit is {LIMIT}")
    assert min(figures) <= LIMIT + LOOSE
    assert min(figures) >= LIMIT * 0.9, "less than the limit says: lower it"
