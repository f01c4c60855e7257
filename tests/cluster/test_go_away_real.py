"""A real broker that shuts down in order, with a load on it and on a second one: it sends its clients away for 5 s, then it closes.

It refuses pulls as it refuses sends, so what it stored is read back by a client that says it is of version 4.9, which it serves on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from time import monotonic

from rmq_async import MessageExt, Producer, PullConsumer, run
from rmq_async.errors import GoAwayError
from rmq_async.testing.cluster import RealCluster, require
from rmq_async.transport import CloseReason
from rmq_protocol.constants import RequestCode
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient, pull_fields
from .accounting import read_all
from .conftest import NO_TIMERS
from .history import copies, faults
from .load import Load, Watch, new_topic, print_counts

QUEUES = 4
OLD = 407
"""The version of a client that is not sent away."""


def test_a_broker_that_shuts_down_in_order_costs_no_send() -> None:
    require()

    async def main() -> None:
        async with RealCluster(brokers=2, profile="go-away", broker_conf=NO_TIMERS) as cluster:
            await going_away(cluster)

    run(main())


async def going_away(cluster: RealCluster) -> None:
    leaving, staying = cluster.brokers
    topic = await new_topic(cluster)
    async with (
        Producer("going", namesrv=cluster.namesrv) as producer,
        PullConsumer("seen", namesrv=cluster.namesrv) as consumer,
    ):
        load = Load(producer, topic)
        await asyncio.sleep(1.0)
        watch = await Watch.of(producer)
        (old,) = (each for each in watch.connections if each.address == leaving.address)
        (queue,) = (each for each in await consumer.queues(topic) if each[1:] == (leaving.name, 0))
        os.kill(leaving.pid, signal.SIGTERM)
        began = monotonic()
        try:
            while not old.retired:
                assert monotonic() < began + 4.5, "no client was sent away"
                await asyncio.sleep(0.01)
            retired = monotonic()
            try:
                await consumer.pull(queue, 0)
                pulled = "served"
            except GoAwayError as error:
                pulled = str(error)
            while old.close_reason is None:
                assert monotonic() < retired + 3.0, "what was under way has not ended"
                await asyncio.sleep(0.01)
            assert old.close_reason is CloseReason.AWAY
            while {each.broker for each in load.between(monotonic() - 0.3, monotonic())} != {staying.name}:
                assert monotonic() < began + 3.0, "the broker that leaves is still sent to"
                await asyncio.sleep(0.05)
            settled = monotonic()
        finally:
            await load.stop()
        read = [*await stored_on(leaving.address, topic), *await read_all(cluster.namesrv, topic)]
        print(f"sent away after {retired - began:.3f} s, all on {staying.name} after {settled - began:.3f} s; a pull: {pulled}")
        print_counts(f"{leaving.name} shut down in order", load.history, copies(read), watch.lost)
        assert load.history.failed == {}
        assert load.history.retried, "no send met the broker that leaves"
        assert max(load.history.requests.values()) <= 3
        assert faults(load.history, copies(read)) == []
        slow = sum(seconds > 0.9 for seconds in load.history.seconds.values())  # a first attempt has a second
        assert 0 <= len(read) - len(load.history.acknowledged) <= slow, "no send was stored twice but for a slow machine"
        assert "1500 GO_AWAY" in pulled


async def stored_on(address: str, topic: str) -> list[MessageExt]:
    """All messages of the topic on one broker."""
    found: list[MessageExt] = []
    async with RawClient(address) as client:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                response = await client.ask(
                    RequestCode.PULL_MESSAGE, pull_fields(topic, queue_id, offset, sysFlag="4"), version=OLD
                )
                if response.code != 0:
                    assert response.code == 19, response  # there is no more
                    break
                messages = decode_messages(response.body).messages
                found += messages
                offset += len(messages)
    return found
