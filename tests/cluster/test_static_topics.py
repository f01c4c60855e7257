"""Static topics on real brokers: their queues name a pseudo broker, and the route says which broker holds each."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter

from rmq_async import Message, MessageQueue, Producer, PullConsumer, TopicNotFoundError, run
from rmq_async.testing._probe import ask
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import CreateTopicRequestHeader, to_ext

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
            queues = await producer.fetch_publish_queues(topic)
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
        async with PullConsumer("static", namesrv=two_brokers.namesrv) as consumer:
            assert set(await consumer.queues(topic)) == set(queues)
            read = {message.body: message async for message in consumer.read(topic)}
            assert [await consumer.max_offset(queue) for queue in queues] == [7, 5, 5, 5]
        assert {name: (each.queue, each.queue_offset, each.offset_msg_id) for name, each in read.items()} == sent

    run(main())
