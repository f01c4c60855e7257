"""A broker that loses its master, and the one that is elected."""

from __future__ import annotations

import pytest

from rmq_async import Message, MessageQueue, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import RocketMQError

Q0 = MessageQueue("T", "broker-a", 0)


@pytest.mark.virtual_time
@pytest.mark.parametrize("offsets", [False, True])
async def test_replica_serves_reads_and_stores_nothing_until_it_is_elected(offsets: bool) -> None:
    async with EmbeddedRocketMQ() as server, Producer("p", namesrv=server.namesrv, retries=0) as producer:
        await producer.send(Message("T", b"0"), queue=Q0)
        async with PullConsumer("g", namesrv=server.namesrv) as consumer:
            await consumer.commit(Q0, 1)
            server.lose_master("broker-a")
            assert [each.body async for each in consumer.read("T", start={Q0: 0}, end={Q0: 1})] == [b"0"]
            with pytest.raises(RocketMQError):
                await producer.send(Message("T", b"1"), queue=Q0, timeout=0.5)
            assert await consumer.queues("T")  # it asks for the route
            with pytest.raises(RocketMQError, match="names a master"):
                await consumer.commit(Q0, 1)
            server.elect_master("broker-a", offsets=offsets)
            assert await consumer.committed(Q0) == (1 if offsets else None)
            await producer.send(Message("T", b"2"), queue=Q0, timeout=5.0)
        assert [each.body for each in server.messages("T")] == [b"0", b"2"]


async def test_elected_master_has_no_old_offsets_after_a_crash_either() -> None:
    async with EmbeddedRocketMQ() as server, PullConsumer("g", namesrv=server.namesrv) as consumer:
        async with Producer("p", namesrv=server.namesrv) as producer:
            await producer.send(Message("T", b"0"), queue=Q0)
        await consumer.commit(Q0, 1)
        server.lose_master("broker-a")
        server.elect_master("broker-a")
        server.lose_offsets()
        assert server.progress("g") == {}
