"""Members of a group whose broker has no master for a while, or another one: what they keep, and what they ask for anew."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import BrokerNotFoundError, Consumer, Message, MessageExt, MessageQueue, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation
from rmq_protocol.constants import RequestCode

from .support import Seen, committed_at, create, is_locked_at, member, send, serving, until

Q0 = MessageQueue("T", "broker-a", 0)
BACKLOG = 300


@pytest.mark.parametrize("order", [None, "queue"])
def test_member_reads_from_a_replica_for_as_long_as_there_is_no_master(order: str | None) -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with Producer("p", namesrv=s.namesrv) as producer:
            await producer.send_batch([Message("T", b"%d" % number) for number in range(BACKLOG)])
        seen = Seen(lambda _: asyncio.sleep(0.5))
        consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest", concurrency=1, max_span=10)
        consumer.subscribe("T", seen, order=order)  # type: ignore[arg-type]
        async with consumer:
            await until(lambda: len(seen.bodies) >= 10, 20.0)
            (broker,) = s.brokers
            broker.lose_master()
            await asyncio.sleep(130.0)
            assert len(seen.bodies) > 250
            assert consumer.health().live
            committed = committed_at(broker, "g", Q0)
            assert committed < 20, "a replica is no place for commits"
            broker.elect_master()
            await until(lambda: committed_at(broker, "g", Q0) > 250, 5.0)
            await until(lambda: is_locked_at(broker, "g" if order else "%RETRY%g", Q0), 2.0)
            await until(lambda: len(seen.bodies) == BACKLOG, 60.0)
        assert seen.twice == 0
        assert committed_at(broker, "g", Q0) == BACKLOG

    Simulation(5, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("masterless", [False, True])
def test_member_that_is_cut_off_lets_go_before_the_next_owner_reads(masterless: bool) -> None:
    """Also one that knew of no master when it was cut off: what it has heard then ends its lock 55 s later."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        running: dict[str, int] = {}
        overlaps = handled = 0

        async def handle(name: str, message: MessageExt) -> None:
            nonlocal overlaps, handled
            overlaps += any(count for other, count in running.items() if other != name)
            running[name] = running.get(name, 0) + 1
            try:
                await asyncio.sleep(0.2)
            finally:
                running[name] -= 1
            handled += 1

        async def serve() -> None:
            consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest", rebalance_interval=5.0)
            consumer.subscribe("T", lambda message: handle("cut off", message), order="queue")
            async with consumer:
                await asyncio.Event().wait()

        cut_off = s.machine("cut-off")
        cut_off.run(serve)
        async with Producer("p", namesrv=s.namesrv) as producer:
            await producer.send_batch([Message("T", b"%d" % number) for number in range(1000)])
        await until(lambda: handled > 3, 20.0)
        (broker,) = s.brokers
        if masterless:
            broker.lose_master()
            await asyncio.sleep(70.0)
            assert handled > 300, "it reads from the replica"
        for server in ("broker-a", *[each.name for each in s.name_servers]):
            s.link("cut-off", server).cut()
        other = Consumer("g", namesrv=s.namesrv, start_from="earliest", rebalance_interval=5.0)
        other.subscribe("T", lambda message: handle("other", message), order="queue")
        if masterless:
            await asyncio.sleep(3.0)
            broker.elect_master()
            await asyncio.sleep(61.0)
        async with other:
            await until(lambda: running.get("other"), 200.0)
            assert not running["cut off"]
            await asyncio.sleep(5.0)
        assert overlaps == 0

    Simulation(6, brokers=1, name_servers=2, faults=None).run(main)


def test_name_server_that_does_not_answer_is_no_evidence_of_a_missing_master() -> None:
    """The other one may be as separated from the master as this member is."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        seen = Seen(lambda _: asyncio.sleep(0.5))
        consumer = Consumer("g", namesrv=s.namesrv, start_from="earliest", concurrency=1)
        consumer.subscribe("T", seen, order="queue")
        async with Producer("p", namesrv=s.namesrv) as producer:
            await producer.send_batch([Message("T", b"%d" % number) for number in range(BACKLOG)])
        async with consumer:
            await until(lambda: len(seen.bodies) >= 3, 20.0)
            s.machine("namesrv-1").crash()
            s.brokers[0].lose_master()
            await asyncio.sleep(70.0)
            before = len(seen.bodies)
            await asyncio.sleep(20.0)
            assert len(seen.bodies) == before, "its lock has ended"
            assert "queue_lost" in [each.code for each in consumer.health().problems]

    Simulation(7, brokers=1, name_servers=2, faults=None).run(main)


async def test_start_without_a_master_says_so() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        server.lose_master("broker-a")
        consumer = member("g", server.namesrv, "one", Seen())
        with pytest.raises(
            BrokerNotFoundError, match=r"names a master of broker broker-a; they name only 1 of its replicas.*no group starts"
        ):
            await consumer.start()
        server.elect_master("broker-a")
        await consumer.start()
        await consumer.stop()


@pytest.mark.virtual_time
@pytest.mark.parametrize("order", [None, "queue"])
async def test_locks_are_requested_at_a_new_master_before_their_time(order: str | None) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        consumer = Consumer("g", namesrv=server.namesrv, rebalance_interval=300.0, start_from="earliest")
        seen = Seen()
        consumer.subscribe("T", seen, order=order)  # type: ignore[arg-type]
        async with consumer:
            await until(lambda: len(consumer.assignment) == 3)
            server.lose_master("broker-a")
            await asyncio.sleep(0.2)
            before = server.requests[RequestCode.LOCK_BATCH_MQ]
            server.elect_master("broker-a")
            await until(lambda: server.requests[RequestCode.LOCK_BATCH_MQ] > before, 3.0)
            await send(server.namesrv, b"1")
            await until(lambda: seen.bodies)


def test_next_owner_waits_for_the_offsets_of_the_last_one_at_a_new_master() -> None:
    """The new master knows no locks: it grants them to a member whose notice of the other members is older than itself."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        seen = Seen()
        first = serving(s, "one", seen, machine="first")
        second = serving(s, "two", seen, machine="second")
        await asyncio.sleep(5.0)
        bodies = [b"%d" % number for number in range(40)]
        await send(s.namesrv, *bodies)
        await until(lambda: len(seen.bodies) == 40, 10.0)
        await asyncio.sleep(3.0)
        for _ in range(3):
            (broker,) = s.brokers
            broker.lose_master()
            await asyncio.sleep(4.0)
            broker.elect_master()
            await asyncio.sleep(20.0)
        assert seen.twice == 0
        assert first.running
        assert second.running

    Simulation(8, brokers=1, faults=None).run(main)
