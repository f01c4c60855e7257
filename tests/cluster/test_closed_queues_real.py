"""Queues that a broker puts messages into and that no member can read."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from rmq_async import Admin, Consumer, Message, MessageExt, Producer, Retry
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_protocol.bodies import SubscriptionGroupConfig, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ..consumer.group.support import until
from ..support.instances import client_of

Cluster = RealCluster | ExternalCluster


def codes(consumer: Consumer) -> set[str]:
    return {str(problem.code) for problem in consumer.health().problems}


async def test_topic_that_may_not_be_read_is_a_problem_until_it_may(each_cluster: Cluster) -> None:
    namesrv, topic = each_cluster.namesrv, f"WriteOnly{os.urandom(4).hex()}"
    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=1, perm=2)
        async with Producer("p", namesrv=namesrv) as producer:
            await producer.send(Message(topic, b"1"))
        seen: list[bytes] = []
        modes = ("pull", "pop") if each_cluster.version != "4.9.7" else ("pull",)
        options: dict[str, Any] = {"start_from": "earliest", "route_poll_interval": 0.5}
        members = [Consumer(f"{topic}-{mode}", namesrv=namesrv, mode=mode, **options) for mode in modes]
        for member in members:
            member.subscribe(topic, lambda message: seen.append(message.body))
            await member.start()
        try:
            await until(lambda: all(codes(member) == {"unreadable_topic"} for member in members), 20)
            assert (await admin.group_lag(f"{topic}-pull")).messages == 1
            await admin.create_topic(topic, queues=1)
            await until(lambda: len(seen) == len(members) and not any(map(codes, members)), 30)
        finally:
            for member in members:
                await member.stop()


async def test_retry_topic_has_the_retry_queues_of_its_group(each_cluster: Cluster) -> None:
    """First they are raised as another tool does it, then by ``create_group``."""
    namesrv, topic = each_cluster.namesrv, f"Retried{os.urandom(4).hex()}"
    group, again = f"{topic}-g", set[bytes]()

    def fail_once(message: MessageExt) -> None:
        if not message.reconsume_times:
            raise ValueError
        again.add(message.body)

    def member() -> Consumer:
        options: dict[str, Any] = {
            "start_from": "earliest",
            "retry": Retry(limit=3, delays=(1,)),
            "commit_interval": 0.5,
            "route_poll_interval": 1.0,
        }
        consumer = Consumer(group, namesrv=namesrv, **options)
        consumer.subscribe(topic, fail_once)
        return consumer

    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin, Producer("p", namesrv=namesrv) as producer:
        await admin.create_topic(topic, queues=1)
        await admin.create_group(group)
        async with member() as first:
            await until(lambda: len(first.assignment) == 2)
        client = await client_of(admin)
        body = encode_body(SubscriptionGroupConfig(group, retry_queue_nums=4))
        await client.ask_broker(
            "broker-a", topic, RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body), 3.0
        )
        async with member() as consumer:
            await until(lambda: "queue_missing" in codes(consumer), 20)
            for number in range(24):
                await producer.send(Message(topic, b"%d" % number))
            await until(lambda: consumer.stats().retried == 24, 20)
            await until(lambda: again, 20)

            async def lag() -> tuple[int, set[int]]:
                found = await admin.group_lag(group)
                return found.retries, {queue.queue_id for queue, each in found.retry_queues.items() if each.messages}

            async with asyncio.timeout(20):
                while (found := await lag())[0] + len(again) != 24 or not found[1] or 0 in found[1]:
                    await asyncio.sleep(0.2)
            await admin.create_group(group, retry_queue_nums=4)
            await until(lambda: len(again) == 24, 40)
            await until(lambda: not codes(consumer), 20)
