"""Dead letters of one group, handled by a second one, on real brokers of each version."""

from __future__ import annotations

import uuid

from rmq_async import Admin, Consumer, DeadLetter, Message, MessageExt, Outcome, Producer, Retry
from rmq_async.testing.cluster import RealCluster


async def test_dead_letters_of_a_group_are_handled_by_a_second_one(each_cluster: RealCluster) -> None:
    """They keep keys, tags and properties, name the topic they come from, and count their attempts on."""
    first, second = (f"dead-{uuid.uuid4().hex[:12]}" for _ in range(2))
    namesrv = each_cluster.namesrv
    seen: list[MessageExt] = []

    async def fail(message: MessageExt) -> None:
        if message.tags == "late":
            raise ValueError("as its tag says")
        raise DeadLetter("as its tag says")

    async def repair(message: MessageExt) -> None:
        seen.append(message)
        if message.tags == "late":
            raise ValueError("not to be repaired")

    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin, Producer(f"sender-{first}", namesrv=namesrv) as producer:
        await admin.create_topic(first, queues=1)
        billing = Consumer(first, namesrv=namesrv, start_from="earliest", retry=Retry(limit=1, delays=(1,)))
        billing.subscribe(first, fail)
        async with billing:
            for tag in ("soon", "late"):
                await producer.send(Message(first, tag.encode(), tags=tag, keys=f"order-{tag}", properties={"shop": "eu"}))
            await billing.wait_settled(3, timeout=30.0)
        repairs = Consumer(
            second, namesrv=namesrv, instance_name=second, start_from="earliest", retry=Retry(limit=1, delays=(1,))
        )
        repairs.subscribe(f"%DLQ%{first}", repair)
        async with repairs:
            settled = await repairs.wait_settled(2, timeout=30.0)
    outcomes = {each.message.tags: each.outcome for each in settled}
    print([(message.tags, message.reconsume_times, message.properties) for message in seen], outcomes)
    assert sorted(message.body for message in seen) == [b"late", b"soon"]
    for message in seen:
        assert message.topic == f"%DLQ%{first}"
        assert message.keys == (f"order-{message.tags}",)
        assert (message.properties["shop"], message.properties["RETRY_TOPIC"]) == ("eu", first)
    assert outcomes == {"soon": Outcome.DONE, "late": Outcome.DEAD_LETTERED}, "its attempts count on: the limit is reached"
