"""The locks of ordered queues on real brokers, under the group's own name, and each way in which a member gives them up."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from rmq_async import Admin, ClientConfig, Consumer, Message, MessageExt, Producer
from rmq_async.client import ClientInstance
from rmq_async.consumer.group.queue_locks import QueueLocks
from rmq_async.testing.cluster import RealCluster

from ..client.support import until


@pytest.mark.parametrize("way", ["stop", "cancelled call", "rebalance", "failed start"])
async def test_order_by_queue_holds_the_lock_of_the_group_until_it_leaves(each_cluster: RealCluster, way: str) -> None:
    """Another client asks for the locks under the group's own name, as Java's orderly members do."""
    name = f"locks-{uuid4().hex[:12]}"
    hangs = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        hangs.set()
        await asyncio.Event().wait()

    def member(instance_name: str) -> Consumer:
        consumer = Consumer(name, namesrv=each_cluster.namesrv, instance_name=instance_name, handover_timeout=1.0)
        consumer.subscribe(name, handle, order="queue")
        return consumer

    async with Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin, AsyncExitStack() as stack:
        await admin.create_topic(name, queues=2)
        probe = await ClientInstance.acquire(ClientConfig(namesrv=each_cluster.namesrv, instance_name=name))
        stack.push_async_callback(probe.release)
        await probe.routes.get(name, 3.0)
        locks = QueueLocks(probe, name)
        consumer = member("one")
        await consumer.start()
        queues = sorted(queue for queue in consumer.assignment if queue.topic == name)
        assert len(queues) == 2
        assert await locks.lock(queues) == frozenset()
        expected = set(queues)
        if way == "cancelled call":
            async with Producer(f"p-{name}", namesrv=each_cluster.namesrv) as producer:
                await producer.send(Message(name, b"hangs"))
            await hangs.wait()
            await consumer.stop(4.0)
        elif way == "rebalance":
            other = await stack.enter_async_context(member("two"))
            await until(lambda: len([queue for queue in other.assignment if queue.topic == name]) == 1)
            assert await locks.lock(queues) == frozenset()  # each has the lock of its own
            await other.stop()
            await consumer.stop()
        elif way == "failed start":
            await consumer.stop()
            await locks.lock(queues)
            await locks.unlock(queues)
            starting = asyncio.create_task(consumer.start())
            await until(lambda: consumer.assignment)
            starting.cancel()
            await asyncio.wait([starting])
            await consumer.stop()
        else:
            await consumer.stop()
        assert await locks.lock(queues) == expected
        await locks.unlock(queues)


async def test_queues_given_back_while_their_locks_are_renewed_are_free_for_others(each_cluster: RealCluster) -> None:
    name = f"given-back-{uuid4().hex[:12]}"
    async with Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin, AsyncExitStack() as stack:
        await admin.create_topic(name, queues=8)
        both = []
        for client in ("one", "two"):
            config = ClientConfig(namesrv=each_cluster.namesrv, instance_name=f"{client} of {name}")
            instance = await ClientInstance.acquire(config)
            stack.push_async_callback(instance.release)
            queues = (await instance.routes.get(name, 3.0)).subscribe_queues
            both.append(QueueLocks(instance, name))
        one, two = both
        for turn in range(20):
            assert await one.lock(queues) == set(queues)
            renewal = asyncio.create_task(one.renew())
            await asyncio.sleep(0)
            unlocks = [asyncio.create_task(one.unlock([queue])) for queue in queues]
            await renewal
            again = asyncio.create_task(one.renew())
            if turn % 2:  # as a stop does whose time is over
                await asyncio.sleep(0)
                for unlock in unlocks[1:]:
                    unlock.cancel()
            await asyncio.wait([*unlocks, again])
            await one.unlock_owed()
            assert not one.held
            assert await two.lock(queues) == set(queues)
            await two.unlock(queues)
        await admin.delete_topic(name)
