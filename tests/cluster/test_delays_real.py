"""Messages that become visible later, on real brokers: delay levels, timers, and timers that are recalled."""

from __future__ import annotations

import asyncio
import uuid
from time import time

import pytest

from rmq_async import Admin, Message, MessageQueue, Producer, PullConsumer, errors, run
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_protocol.recall import RecallHandle, encode_recall_handle

LATE_MS = 15_000
"""A busy machine may be late; early is wrong on any."""


def test_levels_and_timers_come_when_they_are_due_and_recalled_ones_do_not(feature_cluster: RealCluster) -> None:
    async def main() -> None:
        namesrv, topic = feature_cluster.namesrv, f"delays-{uuid.uuid4().hex[:12]}"
        async with (
            Admin(namesrv=namesrv, request_timeout=30.0) as admin,
            Producer("delays", namesrv=namesrv) as producer,
            PullConsumer("delays", namesrv=namesrv) as consumer,
        ):
            await admin.create_topic(topic, queues=1)
            began = time()
            recalled = await producer.send(Message(topic, b"recalled", delay=3.0))
            await producer.send(Message(topic, b"kept", delay=3.5))
            await producer.send(Message(topic, b"level", delay_level=1))
            await producer.send(Message(topic, b"delay", delay=1.0))
            await producer.send(Message(topic, b"deliver_at", deliver_at=began + 1.0))
            handle = recalled.recall_handle
            assert handle is not None
            assert await producer.recall(topic, handle) == recalled.msg_id
            assert await producer.recall(topic, handle) == recalled.msg_id, "brokers confirm it again"
            with pytest.raises(errors.BrokerError, match="timestamp invalid") as caught:
                past = RecallHandle(topic, recalled.queue.broker_name, str(int((began - 60) * 1000)), recalled.msg_id)
                await producer.recall(topic, encode_recall_handle(past))
            assert (caught.value.code, caught.value.broker) == (604, recalled.queue.broker_name)
            came = {}
            async with asyncio.timeout(30):
                async for message in consumer.read(topic, end=None):
                    came[message.body] = message.store_time_ms / 1000 - began
                    if message.body == b"kept":
                        break
        print({body.decode(): round(seconds, 2) for body, seconds in came.items()})
        assert came.keys() == {b"level", b"delay", b"deliver_at", b"kept"}
        assert all(0.9 <= seconds <= 1.0 + LATE_MS / 1000 for body, seconds in came.items() if body != b"kept")

    run(main())


def test_a_broker_that_does_not_recall_says_so_at_once(each_cluster: RealCluster | ExternalCluster) -> None:
    """A stock 5.5.0 gives handles and refuses them; 4.9.7 knows neither."""

    async def main() -> None:
        topic = f"recall-{uuid.uuid4().hex[:12]}"
        async with (
            Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
            Producer("recall", namesrv=each_cluster.namesrv) as producer,
        ):
            await admin.create_topic(topic, queues=1)
            sent = await producer.send(Message(topic, b"soon", delay=2.0))
            new = sent.recall_handle is not None
            due = str(int((time() + 2) * 1000))
            for broker in (sent.queue.broker_name, "gone"):
                handle = encode_recall_handle(RecallHandle(topic, broker, due, sent.msg_id))
                with pytest.raises(errors.BrokerError, match="recallMessageEnable=true") as caught:
                    await producer.recall(topic, handle)
                assert caught.value.code == (16 if new else 3)
                assert caught.value.broker == sent.queue.broker_name

    run(main())


async def test_levels_above_the_highest_count_as_it(each_cluster: RealCluster | ExternalCluster) -> None:
    """A stock broker has 18: 2 hours."""
    topic = f"levels-{uuid.uuid4().hex[:12]}"
    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=10.0) as admin,
        Producer("levels", namesrv=each_cluster.namesrv) as producer,
        PullConsumer("levels", namesrv=each_cluster.namesrv) as consumer,
    ):
        await admin.create_topic(topic, queues=1)
        sent = {}
        for level in (18, 19, 100, 2**31 - 1):
            result = await producer.send(Message(topic, b"%d" % level, delay_level=level))
            sent[result.msg_id] = level
        queue = MessageQueue("SCHEDULE_TOPIC_XXXX", result.queue.broker_name, 17)
        async with asyncio.timeout(20):
            while len((newest := await consumer.pull(queue, max(0, await consumer.max_offset(queue) - 4))).messages) < 4:
                await asyncio.sleep(0.05)  # a stored message is readable a moment later
        assert {message.unique_id: message.properties["DELAY"] for message in newest.messages} == dict.fromkeys(sent, "18")
