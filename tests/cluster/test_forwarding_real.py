"""Messages that real brokers tried again, gave up, or held back, sent on to where they were first sent to."""

from __future__ import annotations

import asyncio
import time
import uuid

from rmq_async import Admin, Message, MessageExt, MessageQueue, Producer, PullConsumer, TopicNotFoundError, run
from rmq_async.testing._probe import ask
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import ConsumerSendMsgBackRequestHeader, to_ext

BROKER = "broker-a"


async def give_back(address: str, group: str, message: MessageExt, level: int) -> None:
    """As a consumer whose handler failed. ``level``: of the delay; -1 gives the message up."""
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.commit_log_offset,
        group=group,
        delayLevel=level,
        originMsgId=message.offset_msg_id,
        originTopic=message.topic,
        maxReconsumeTimes=16,
    )
    answer = await ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, {**to_ext(header)})
    assert answer is not None
    assert answer.code == 0, answer.remark


async def only(consumer: PullConsumer, topic: str) -> MessageExt:
    """The one message of the topic, which comes soon."""
    deadline = time.monotonic() + 20
    while True:
        try:
            found = [message async for message in consumer.read(topic)]
        except TopicNotFoundError:
            found = []
        if found:
            assert len(found) == 1
            return found[0]
        assert time.monotonic() < deadline, f"nothing came to {topic}"
        await asyncio.sleep(0.1)


def test_what_comes_from_elsewhere_goes_back(each_cluster: RealCluster | ExternalCluster) -> None:
    async def main() -> None:
        namesrv, address = each_cluster.namesrv, each_cluster.brokers[0].address
        name = uuid.uuid4().hex[:12]
        topic, group = f"forwards-{name}", f"fails-{name}"
        queue = MessageQueue(topic, BROKER, 0)
        async with (
            Admin(namesrv=namesrv, request_timeout=30.0) as admin,
            Producer("forwards", namesrv=namesrv) as producer,
            PullConsumer(group, namesrv=namesrv) as consumer,
        ):
            await admin.create_topic(topic, queues=1, broker=BROKER)
            first = Message(
                topic,
                b"paid",
                tags="order",
                keys=("k-1", "k-2"),
                flag=7,
                properties={"color": "red"},
                sharding_key="customer-5",
            )
            await producer.send(first, queue=queue)
            (received,) = (await consumer.pull(queue, 0, wait=5.0)).messages  # stored is not yet readable
            assert received.user_properties == {"color": "red"}
            await give_back(address, group, received, 1)
            await give_back(address, group, received, -1)
            found = [received]
            for prefix in ("%RETRY%", "%DLQ%"):
                message = await only(consumer, prefix + group)
                assert message.topic == prefix + group
                assert message.reconsume_times == 1
                assert message.user_properties == {"color": "red"}
                found.append(message)
            for message in found:
                copy = Message.from_received(message)
                assert copy == first
                offset = (await producer.send(copy, queue=queue)).queue_offset
                (again,) = (await consumer.pull(queue, offset, wait=5.0)).messages
                assert (again.topic, again.body, again.tags, again.keys, again.flag) == (topic, b"paid", "order", first.keys, 7)
                assert (again.sharding_key, again.user_properties) == ("customer-5", {"color": "red"})
                assert again.unique_id != received.unique_id
            offset = (await consumer.max_offset(queue)) - 1
            late = Message.from_received(found[1], delay_level=1)  # and once it has waited nothing of that is left
            await producer.send(late, queue=queue)
            deadline = time.monotonic() + 20
            while not (waited := (await consumer.pull(queue, offset + 1)).messages):
                assert time.monotonic() < deadline, "the delayed message did not come"
                await asyncio.sleep(0.1)
            assert waited[0].properties["REAL_TOPIC"] == topic
            assert Message.from_received(waited[0]) == first

    run(main())
