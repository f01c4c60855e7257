"""A broker that drains, and transactions: it ends those under way."""

from __future__ import annotations

from rmq_async import (
    Admin,
    Message,
    MessageQueue,
    PullConsumer,
    TransactionProducer,
    TransactionStatus,
)
from rmq_async.testing.cluster import RealCluster

from .test_draining import NO_POLLS, bodies, new, set_permission, shows


async def test_draining_broker_ends_transactions(feature_cluster: RealCluster) -> None:
    """Also those that begin by an old route; and it recalls delayed messages."""
    (broker,), namesrv, topic = feature_cluster.brokers, feature_cluster.namesrv, new("Half")

    async def execute(message: Message, admin: Admin) -> TransactionStatus:
        if message.body == b"before":
            await set_permission(admin, broker.address, 4)
        return TransactionStatus.COMMIT

    async with (
        Admin(namesrv=namesrv, request_timeout=10.0) as admin,
        TransactionProducer(
            new("PG"), namesrv=namesrv, execute=execute, check=lambda _: TransactionStatus.UNKNOWN, **NO_POLLS
        ) as sender,
        PullConsumer(new("CG"), namesrv=namesrv) as consumer,
    ):
        await admin.create_topic(topic, queues=1)
        later = await sender.send(Message(topic, b"later", delay=600.0))
        try:
            await sender.send_in_transaction(Message(topic, b"before"), admin)
            await shows(admin, topic, broker.name, 4)
            await sender.send_in_transaction(Message(topic, b"after"), admin)
            await sender.recall(topic, later.recall_handle or "")
        finally:
            await set_permission(admin, broker.address, 6)
        queue = MessageQueue(topic, broker.name, 0)
        assert await bodies(consumer, [queue]) == [b"before", b"after"]
