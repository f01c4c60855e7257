"""Static topics on real brokers: their queues name a pseudo broker, and the route says which broker holds each."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from typing import Any

from rmq_async import (
    Consumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    RetryLater,
    TopicNotFoundError,
    allocate_by_circle,
    run,
)
from rmq_async.testing._probe import ask
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import CreateTopicRequestHeader, to_ext

from .accounting import stored_count

QUEUES = 4


async def create_static_topic(cluster: RealCluster, topic: str) -> None:
    """Two queues on each of two brokers, as ``mqadmin updateStaticTopic`` lays them out."""
    epoch = int(time.time() * 1000)
    for number, broker in enumerate(cluster.brokers):
        hosted = {
            str(QUEUES // 2 * number + own): [
                {
                    "gen": 0, "queueId": own, "bname": broker.name, "logicOffset": 0, "startOffset": 0, "endOffset": -1,
                    "timeOfStart": -1, "timeOfEnd": -1,
                }
            ]
            for own in range(QUEUES // 2)
        }  # fmt: skip
        detail = {
            "topic": topic, "scope": "__global__", "totalQueues": QUEUES, "bname": broker.name, "epoch": epoch, "dirty": False,
            "hostedQueues": hosted,
        }  # fmt: skip
        header = CreateTopicRequestHeader(
            topic=topic,
            defaultTopic="TBW102",
            readQueueNums=QUEUES // 2,
            writeQueueNums=QUEUES // 2,
            perm=6,
            topicFilterType="SINGLE_TAG",
            force=True,
        )
        answer = await ask(
            broker.address, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, {**to_ext(header)}, json.dumps(detail).encode()
        )
        assert answer is not None
        assert answer.code == 0, answer.remark
    for server in cluster.namesrv.split(";"):  # brokers register with each of them in their own time
        async with PullConsumer("static", namesrv=server) as consumer:
            async with asyncio.timeout(20):
                while len(await queues_of(consumer, topic)) < QUEUES:
                    await asyncio.sleep(0.1)


async def queues_of(consumer: PullConsumer, topic: str) -> tuple[MessageQueue, ...]:
    try:
        return await consumer.queues(topic)
    except TopicNotFoundError:
        return ()


def test_a_static_topic_is_written_to_and_read_where_its_queues_are(two_brokers: RealCluster) -> None:
    async def main() -> None:
        topic = f"static-{uuid.uuid4().hex[:12]}"
        await create_static_topic(two_brokers, topic)
        async with Producer("static", namesrv=two_brokers.namesrv) as producer:
            async with asyncio.timeout(40):  # a name server may leave a broker's queues out while that registers anew
                while len(queues := await producer.fetch_publish_queues(topic)) < QUEUES:
                    await asyncio.sleep(0.2)
            assert [(queue.broker_name, queue.queue_id) for queue in queues] == [
                ("__syslo__global__", each) for each in range(QUEUES)
            ]
            sent = {}
            for number in range(20):
                result = await producer.send(Message(topic, b"%d" % number))
                sent[b"%d" % number] = (result.queue, result.queue_offset, result.offset_msg_id)
            batch = await producer.send_batch([Message(topic, b"20"), Message(topic, b"21")], queue=queues[0])
            for name, result in zip((b"20", b"21"), batch.results, strict=True):
                sent[name] = (result.queue, result.queue_offset, result.offset_msg_id)
        per_queue = Counter(queue for queue, _, _ in sent.values())
        per_broker = Counter(offset_id[:16] for _, _, offset_id in sent.values())
        assert per_queue == {queues[0]: 7, queues[1]: 5, queues[2]: 5, queues[3]: 5}
        assert sorted(per_broker.values()) == [10, 12]
        await stored_count(two_brokers.namesrv, topic, 22)
        async with PullConsumer("static", namesrv=two_brokers.namesrv) as consumer:
            assert set(await consumer.queues(topic)) == set(queues)
            read = {message.body: message async for message in consumer.read(topic)}
            assert [await consumer.max_offset(queue) for queue in queues] == [7, 5, 5, 5]
        assert {name: (each.queue, each.queue_offset, each.offset_msg_id) for name, each in read.items()} == sent

    run(main())


def test_a_group_shares_a_static_topic(two_brokers: RealCluster) -> None:
    """Two members read all queues, commit what they have handled, and get again what they give back."""

    async def main() -> None:
        topic, group = f"static-{uuid.uuid4().hex[:12]}", f"static-{uuid.uuid4().hex[:12]}"
        namesrv = two_brokers.namesrv
        await create_static_topic(two_brokers, topic)
        handled: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            handled.append(message.body)
            if message.body in (b"0", b"2") and message.reconsume_times == 0:  # of both brokers
                raise RetryLater(1)

        options: Any = {"namesrv": namesrv, "start_from": "earliest", "allocate": allocate_by_circle}
        members = [Consumer(group, instance_name=name, **options) for name in ("one", "two")]
        async with Producer("static", namesrv=namesrv) as producer:
            queues = await producer.fetch_publish_queues(topic)
            for number in range(20):
                await producer.send(Message(topic, b"%d" % number), queue=queues[number % QUEUES])
            for member in members:
                member.subscribe(topic, handle)
            async with members[0], members[1]:
                async with asyncio.timeout(40):
                    while len(handled) < 22:
                        await asyncio.sleep(0.1)
                assert Counter(handled) == Counter([b"%d" % number for number in range(20)] + [b"0", b"2"])
                assert [sum(each.topic == topic for each in member.assignment) for member in members] == [2, 2]
        async with PullConsumer(group, namesrv=namesrv) as reader:
            assert [await reader.committed(queue) for queue in queues] == [5] * QUEUES

    run(main())
