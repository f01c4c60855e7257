"""What reading costs: Python functions called for one message, counted. A pull brings 32, as a stock broker gives them.

The server runs in another thread, which the counting does not see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from rmq_async import Admin, Message, MessageQueue, Producer, PullConsumer
from rmq_async.testing.threaded import ThreadedRocketMQ
from rmq_protocol.stored import decode_pull, encode_stored

from ..support.calls import counted

TOPIC = "calls"
QUEUES, PULLED = 8, 32
MESSAGES = QUEUES * PULLED * 16
ROUNDS = 3
LOOSE = 0.4
"""What depends on how answers come: pieces of a frame, several in one read, a wake-up for each or for several."""

Way = Callable[[PullConsumer], Awaitable[int]]


async def read(consumer: PullConsumer) -> int:
    count = 0
    async with aclosing(consumer.read(TOPIC)) as messages:
        async for _ in messages:
            count += 1
    return count


async def pull(consumer: PullConsumer) -> int:
    count = 0
    for queue in await consumer.queues(TOPIC):
        offset, end = 0, MESSAGES // QUEUES
        while offset < end:
            result = await consumer.pull(queue, offset, max_messages=PULLED)
            count += len(result.messages)
            offset = result.next_offset
    return count


WAYS: dict[str, tuple[Way, float, float]] = {
    # calls that a message may take, and that it took before pulls had templates and ordinary records a loop of their own
    "read": (read, 2.7, 8.2),
    "pull": (pull, 1.65, 6.9),
}


@pytest.mark.parametrize("name", WAYS)
async def test_calls_of_one_message(name: str) -> None:
    way, limit, before = WAYS[name]
    assert limit <= before / 2
    with ThreadedRocketMQ() as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        async with Producer("group", namesrv=server.namesrv) as sender:
            for queue_id in range(QUEUES):
                queue = MessageQueue(TOPIC, "broker-a", queue_id)
                for _ in range(MESSAGES // QUEUES // PULLED):
                    await sender.send_batch([Message(TOPIC, b"body") for _ in range(PULLED)], queue=queue)
        async with PullConsumer("readers", namesrv=server.namesrv) as consumer:
            figures = []
            assert await way(consumer) == MESSAGES  # connects
            for _ in range(ROUNDS):
                with counted() as calls:
                    assert await way(consumer) == MESSAGES
                figures.append(calls.count / MESSAGES)
    print(f"{name}: {min(figures):.3f} calls, the limit is {limit}")
    assert min(figures) <= limit + LOOSE
    assert min(figures) >= limit * 0.8, "less than the limit says: lower it"


def test_decoding_ordinary_records_calls_nothing_for_each() -> None:
    queue = MessageQueue(TOPIC, "broker-a", 0)

    def block(count: int) -> bytes:
        return b"".join(
            encode_stored(
                topic=TOPIC, body=b"x", properties=b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % number, queue_offset=number
            )
            for number in range(count)
        )

    costs = []
    for count in (2, 1000):
        data = block(count)
        with counted() as calls:
            assert len(decode_pull(data, queue).messages) == count
        costs.append(calls.count)
    assert max(costs) <= 12  # for any count; some are made once in a process
