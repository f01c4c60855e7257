"""Taking topics and brokers out of use for writing: what docs/topics.md says of it, on real brokers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from rmq_async import (
    Admin,
    BrokerNotFoundError,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
)
from rmq_async.errors import NoPermissionError
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import ConsumerSendMsgBackRequestHeader, to_ext

from ..support.instances import client_of

NO_POLLS = {"route_poll_interval": 600.0}


def new(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:12]}"


async def asked(admin: Admin, address: str, code: int, body: bytes = b"", **fields: Any) -> RemotingCommand:
    """The broker's answer to a request that the public names do not make."""
    pool = (await client_of(admin)).pool
    return await pool.request(address, RemotingCommand(code=code, ext_fields=fields, body=body), 10.0)


@asynccontextmanager
async def drained(admin: Admin, address: str) -> AsyncIterator[None]:
    """``mqadmin updateBrokerConfig -k brokerPermission -v 4`` and, afterwards, 6."""
    try:
        await set_permission(admin, address, 4)
        yield
    finally:
        await set_permission(admin, address, 6)


async def set_permission(admin: Admin, address: str, perm: int) -> None:
    answer = await asked(admin, address, RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=%d\n" % perm)
    assert answer.code == 0, answer.remark


async def perms(admin: Admin, topic: str) -> dict[str, int]:
    return {data.broker_name: data.perm for data in (await admin.topic_route(topic)).queue_datas}


async def shows(admin: Admin, topic: str, broker: str, perm: int, timeout: float = 5.0) -> None:
    deadline = monotonic() + timeout
    while (await perms(admin, topic))[broker] != perm:
        assert monotonic() < deadline, "the name servers do not show the permission"
        await asyncio.sleep(0.05)


async def bodies(consumer: PullConsumer, queues: Sequence[MessageQueue]) -> list[bytes]:
    return [message.body async for message in consumer.read(queues[0].topic, queues=queues)]


@pytest.mark.parametrize("order", [False, True])
async def test_topic_without_write_permission_stores(each_cluster: RealCluster, order: bool) -> None:
    """The permission of a topic goes into routes and nowhere else."""
    cluster, topic = each_cluster, new("Perm")
    async with (
        Admin(namesrv=cluster.namesrv, request_timeout=10.0) as admin,
        Producer(new("PG"), namesrv=cluster.namesrv, **NO_POLLS) as old,
    ):
        await admin.create_topic(topic, queues=1, order=order)
        queue = (await old.send(Message(topic, b"before"))).queue
        await admin.create_topic(topic, queues=1, perm=4, order=order)
        assert await perms(admin, topic) == {queue.broker_name: 4}
        await old.send(Message(topic, b"by the old route"))
        await old.send_batch([Message(topic, b"batch")])
        async with Producer(new("PG"), namesrv=cluster.namesrv, instance_name=new("I")) as fresh:
            with pytest.raises(BrokerNotFoundError, match="no write permission on"):
                await fresh.send(Message(topic, b"by the new route"))
        async with PullConsumer(new("CG"), namesrv=cluster.namesrv) as consumer:
            assert await bodies(consumer, [queue]) == [b"before", b"by the old route", b"batch"]


async def test_draining_broker_stores_by_old_routes(two_brokers: RealCluster) -> None:
    """Until producers poll. Only topics whose order counts are refused, and what consumers give back; reading goes on."""
    broker, namesrv = two_brokers.brokers[0], two_brokers.namesrv
    plain, ordered = new("Plain"), new("Ordered")
    async with (
        Admin(namesrv=namesrv, request_timeout=10.0) as admin,
        Producer(new("PG"), namesrv=namesrv, **NO_POLLS) as old,
        PullConsumer(new("CG"), namesrv=namesrv, instance_name=new("I")) as consumer,
    ):
        await admin.create_topic(plain, queues=1)
        await admin.create_topic(ordered, queues=1, order=True)
        queue = MessageQueue(plain, broker.name, 0)
        delayed = await old.send(Message(plain, b"delayed", delay_level=2), queue=queue)  # 5 s
        await old.send(Message(plain, b"first"), queue=queue)
        assert len(await old.fetch_publish_queues(ordered)) == 2
        async with drained(admin, broker.address):
            for topic in (plain, ordered, "TBW102"):
                assert (await perms(admin, topic))[broker.name] == 4, "name servers know at once"
            results = [await old.send(Message(plain, b"old route")) for _ in range(4)]
            assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}
            await old.send_batch([Message(plain, b"batch")], queue=queue)

            with pytest.raises(NoPermissionError, match="sending message is forbidden"):
                await old.send(Message(ordered, b"here"), queue=MessageQueue(ordered, broker.name, 0))
            results = [await old.send(Message(ordered, b"any")) for _ in range(4)]
            assert {result.queue.broker_name for result in results} == {"broker-b"}

            async with Producer(new("PG"), namesrv=namesrv, instance_name=new("I")) as fresh:
                assert {each.broker_name for each in await fresh.fetch_publish_queues(plain)} == {"broker-b"}
                kept = {each.broker_name for each in await fresh.fetch_publish_queues(ordered)}
                assert kept == {"broker-a", "broker-b"}, "the list of an order conf stays, so that keys keep their queues"
                results = [await fresh.send(Message(ordered, b"any")) for _ in range(4)]
                assert {result.queue.broker_name for result in results} == {"broker-b"}
                await fresh.send(Message(plain, b"named"), queue=queue)

            (message, *_) = (await consumer.pull(queue, 0)).messages
            await consumer.commit(queue, 1)
            assert await consumer.committed(queue) == 1
            assert (await given_back(admin, broker.address, consumer.group, message)).code == ResponseCode.NO_PERMISSION
            assert sorted(await bodies(consumer, [queue])) == [b"batch", b"first", b"named", b"old route", b"old route"]
            async for message in consumer.read(plain, queues=[queue], start={queue: 5}, end={queue: 6}):
                assert (message.body, message.unique_id) == (b"delayed", delayed.msg_id)
            assert "brokerPermission=4" in (broker.directory / "server.conf").read_text(), "it outlasts a restart"
        assert (await given_back(admin, broker.address, consumer.group, message)).code == ResponseCode.SUCCESS
        assert (await perms(admin, plain))[broker.name] == 6


async def given_back(admin: Admin, address: str, group: str, message: MessageExt) -> RemotingCommand:
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.commit_log_offset, group=group, delayLevel=3, originMsgId=message.msg_id, originTopic=message.topic,
        maxReconsumeTimes=16,
    )  # fmt: skip
    return await asked(admin, address, RequestCode.CONSUMER_SEND_MSG_BACK, **to_ext(header))
