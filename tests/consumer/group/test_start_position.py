"""Where a group starts in the queues of a topic, also after a start that has failed half-way."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Literal

import pytest

from rmq_async import Consumer, Message, MessageQueue, Producer, RequestTimeoutError
from rmq_async.client import instance as instance_module
from rmq_async.consumer.group import positions as start_position
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import NoPermissionError
from rmq_async.testing.simulation import Simulation
from rmq_protocol.command import make_response
from rmq_protocol.constants import RequestCode, ResponseCode

from .support import Seen, create, member, send, until

pytestmark = pytest.mark.virtual_time

OLD = [b"old %d" % number for number in range(16)]
OFFSETS = {RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET}
NEW = [b"new %d" % number for number in range(16)]


@pytest.mark.parametrize("stored", range(9))
async def test_start_after_one_that_failed_while_it_stored_positions(stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the old messages is delivered, and all of the new ones are."""
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv)
        await send(server.namesrv, *OLD)
        real, count = start_position.commit_offset, itertools.count()

        async def refused(*args: object) -> None:
            if next(count) >= stored:
                raise NoPermissionError("no right to commit", code=ResponseCode.NO_PERMISSION)
            await real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(start_position, "commit_offset", refused)
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", Seen())
        if stored < 8:
            with pytest.raises(NoPermissionError):
                await consumer.start()
        else:
            await consumer.start()
            await consumer.stop()
        monkeypatch.undo()
        assert len(server.progress("g")) >= stored
        seen = Seen()
        async with member("g", server.namesrv, "next", seen):
            await send(server.namesrv, *NEW)
            await until(lambda: len(seen.bodies) == len(NEW))
        assert seen.bodies == dict.fromkeys(NEW, 1)


@pytest.mark.parametrize("start_from", ["latest", "earliest"])
async def test_start_at_a_busy_broker(start_from: Literal["latest", "earliest"]) -> None:
    """As brokers are that have just started, when all clients come back."""
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        for code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            server.fail_next(ResponseCode.SYSTEM_BUSY, 2, request=code)
        seen = Seen()
        async with member("g", server.namesrv, "first", seen, start_from=start_from):
            await send(server.namesrv, *NEW)
            await until(lambda: len(seen.bodies) == len(NEW))
        assert seen.bodies == dict.fromkeys(NEW, 1)


@pytest.mark.parametrize("options", [{}, {"mode": "pop"}, {"broadcast": True}], ids=str)
async def test_start_beside_a_broker_that_stays_busy(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = instance_module.ClientInstance.ask_broker

    async def ask(instance: Any, broker: str, *given: Any, **more: Any) -> Any:
        if broker == "broker-a" and given[1].code in OFFSETS:
            return make_response(given[1], ResponseCode.SYSTEM_BUSY, "too many requests"), server.brokers[broker]
        return await real(instance, broker, *given, **more)

    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        monkeypatch.setattr(instance_module.ClientInstance, "ask_broker", ask)
        seen = Seen()
        async with member("g", server.namesrv, "first", seen, start_from="earliest", **options):
            await send(server.namesrv, *NEW)
            await until(lambda: len(seen.bodies) >= len(NEW) // 2)


async def test_position_that_a_busy_broker_stores_later() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, *OLD)
        server.fail_next(ResponseCode.SYSTEM_BUSY, 2, request=RequestCode.UPDATE_CONSUMER_OFFSET)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen):
            await send(server.namesrv, *NEW)
            await until(lambda: len(seen.bodies) == len(NEW))
        assert seen.bodies == dict.fromkeys(NEW, 1)


async def test_queues_and_brokers_that_are_new_while_no_member_runs() -> None:
    """They are read from their first message on, with any ``start_from``."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        seen = Seen()
        async with member("g", server.namesrv, "one", seen):
            await send(server.namesrv, *OLD)
            await until(lambda: len(seen.bodies) == len(OLD))
        server.resize("T", 4)
        await send(server.namesrv, *NEW)
        async with member("g", server.namesrv, "two", seen):
            await until(lambda: len(seen.bodies) == len(OLD) + len(NEW))
        assert seen.twice == 0


@pytest.mark.parametrize("start_from", ["latest", "earliest"])
@pytest.mark.parametrize("is_new", [False, True], ids=["old", "new"])
def test_member_starts_without_the_queues_of_a_silent_broker(start_from: str, is_new: bool) -> None:
    """Only in a new group with "latest" it cannot, since where that was at the silent broker is not known later. Else its queues
    are read when it answers, from the group's offsets or their first messages."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=32)
        silent, seen = s.brokers[0], Seen()

        async def send_to(broker: str, *bodies: bytes) -> None:
            async with Producer("senders", namesrv=s.namesrv) as producer:
                for number, body in enumerate(bodies):
                    await producer.send(Message("T", body), queue=MessageQueue("T", broker, number))

        if not is_new:
            async with member("g", s.namesrv, "one", seen, start_from="earliest"):
                await send_to("broker-a", *OLD)
                await until(lambda: len(seen.bodies) == len(OLD))
        await send_to("broker-a", *NEW)
        silent.pause()
        consumer, began = member("g", s.namesrv, "two", seen, start_from=start_from), s.now
        if is_new and start_from == "latest":
            with pytest.raises(RequestTimeoutError, match="QUERY_CONSUMER_OFFSET"):
                await consumer.start()
            silent.resume()
            return
        async with consumer:
            assert s.now - began < 22.5
            await send_to("broker-b", b"other")
            await until(lambda: b"other" in seen.bodies)
            assert not seen.bodies.keys() & set(NEW)
            silent.resume()
            await until(lambda: seen.bodies.keys() >= set(NEW), 60.0)
        assert seen.twice == 0

    Simulation(5, brokers=2, faults=None).run(main)


def test_member_stays_ready_while_a_rebalance_waits_for_a_queue() -> None:
    """Else each restart of one member would make all others unready in turn."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        slow = Seen()
        first = member("g", s.namesrv, "one", slow, start_from="earliest")
        second = member("g", s.namesrv, "two", Seen(), start_from="earliest")
        third = member("g", s.namesrv, "three", Seen(), start_from="earliest")
        slow.work = lambda message: asyncio.sleep(8)
        await first.start()
        await second.start()
        await until(lambda: second.health().ready, 30.0)
        await send(s.namesrv, *OLD)
        stopping = asyncio.create_task(first.stop())
        unready = 0
        while not stopping.done():
            await asyncio.sleep(0.1)
            unready += not second.health().ready
        assert unready == 0
        await third.start()
        await until(lambda: third.health().ready, 60.0)
        await third.stop()
        await second.stop()

    Simulation(2, brokers=2, faults=None).run(main)
