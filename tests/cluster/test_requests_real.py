"""Request and reply between two clients of ours, over real brokers of both versions. Java on either side: test_java_real.py."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from rmq_async import Admin, Message, MessageExt, Producer, PullConsumer, errors, run
from rmq_async.testing.cluster import ExternalCluster, RealCluster

from ..support.instances import client_of

LARGE = b"large " * 20_000


def test_questions_get_their_answers_and_silence_is_reported(each_cluster: RealCluster | ExternalCluster) -> None:
    async def main() -> None:
        namesrv, topic = each_cluster.namesrv, f"questions-{uuid.uuid4().hex[:12]}"
        unanswered: list[MessageExt] = []
        async with (
            Admin(namesrv=namesrv, request_timeout=30.0) as admin,
            Producer("asks", namesrv=namesrv, instance_name="asks") as asking,
            Producer("replies", namesrv=namesrv, instance_name="replies") as replying,
            PullConsumer("replies", namesrv=namesrv, instance_name="replies") as consumer,
        ):
            await admin.create_topic(topic, queues=2)

            async def answer() -> None:
                async for asked in consumer.read(topic, end=None):
                    if asked.body == b"silence":
                        unanswered.append(asked)
                    else:
                        await replying.reply(asked, LARGE if asked.body == b"large" else b"re:" + asked.body, timeout=15.0)

            answering = asyncio.create_task(answer())
            try:
                questions = [b"%d" % number for number in range(20)] + [b"large"]
                replies = await asyncio.gather(*[asking.request(Message(topic, body), timeout=30.0) for body in questions])
                with pytest.raises(errors.ReplyTimeoutError):
                    await asking.request(Message(topic, b"silence"), timeout=1.0)
                async with Producer("leaves", namesrv=namesrv, instance_name="asks", topics=[topic]) as leaving:
                    assert await client_of(leaving) is await client_of(asking)
                replies.append(await asking.request(Message(topic, b"and now?"), timeout=10.0))
            finally:
                answering.cancel()
                await asyncio.wait([answering])
            questions.append(b"and now?")
            assert [reply.body for reply in replies] == [LARGE if body == b"large" else b"re:" + body for body in questions]
            assert {reply.topic.partition("_")[2] for reply in replies} == {"REPLY_TOPIC"}
            instance = await client_of(asking)
            await replying.reply(unanswered[0], b"too late")
            assert (len(instance.replies), instance.replies.strays) == (0, 1)
            await asking.stop()
            with pytest.raises(errors.RocketMQError, match=r"channel of .* not found") as caught:
                await replying.reply(unanswered[0], b"no requester is there")
            assert caught.value.code == 1

    run(main())
