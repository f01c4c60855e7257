"""PullConsumer.read where brokers or queues come to a topic later, in simulations: broker-b is away when it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq_async import Admin, Message, MessageQueue, Producer, PullConsumer, machine
from rmq_async.testing.simulation import Simulation

from .support import each

TOPIC = "T"
A, B = (MessageQueue(TOPIC, name, 0) for name in ("broker-a", "broker-b"))
AWAY = 200.0
"""Seconds after which no name server knows a broker that is away."""


async def send(producer: Producer, *texts: str, queues: tuple[MessageQueue, ...] = (A, B)) -> None:
    for text in texts:
        for queue in queues:
            await producer.send(Message(TOPIC, f"{text}-{queue.broker_name[-1]}".encode()), queue=queue, timeout=60.0)


def read_beside(start: Any) -> list[str]:
    """What a reading gives of "older" and "old", sent half a minute after each other before it begins, and of "new"."""
    got: list[str] = []

    async def main(simulation: Simulation) -> None:
        async with Admin(namesrv=simulation.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=1)
        async with (
            Producer("p", namesrv=simulation.namesrv) as producer,
            PullConsumer("c", namesrv=simulation.namesrv) as consumer,
        ):
            await send(producer, "older")
            await asyncio.sleep(30.0)
            time = datetime.fromtimestamp(machine.time(), UTC)
            await asyncio.sleep(1.0)
            await send(producer, "old")
            simulation.machine("broker-b").crash()
            await asyncio.sleep(AWAY)
            assert await consumer.queues(TOPIC) == (A,)
            first = start if isinstance(start, str) else {A: 1} if isinstance(start, Mapping) else time
            reading = asyncio.create_task(
                each(consumer.read(TOPIC, start=first, end=None), lambda message: got.append(message.body.decode()))
            )
            await asyncio.sleep(20.0)
            simulation.machine("broker-b").restart()
            await send(producer, "new")
            await asyncio.sleep(60.0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    Simulation(1, faults=None).run(main)
    return sorted(got)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("latest", ["new-a", "new-b"]),
        ({}, ["new-a", "new-b", "old-a"]),
        (datetime.max, ["new-a", "new-b", "old-a", "old-b"]),
        ("earliest", ["new-a", "new-b", "old-a", "old-b", "older-a", "older-b"]),
    ],
    ids=["latest", "offsets", "time", "earliest"],
)
def test_reading_begins_at_its_start_on_a_broker_that_comes_back(start: Any, expected: list[str]) -> None:
    assert read_beside(start) == expected


def test_new_queue_of_a_broker_is_read_whole_also_where_its_clock_is_late() -> None:
    got: list[str] = []

    async def main(simulation: Simulation) -> None:
        simulation.machine("broker-a").skew(-300.0)
        async with (
            Admin(namesrv=simulation.namesrv) as admin,
            Producer("p", namesrv=simulation.namesrv) as producer,
            PullConsumer("c", namesrv=simulation.namesrv) as consumer,
        ):
            await admin.create_topic(TOPIC, queues=1)
            await send(producer, "old", queues=(A,))
            reading = asyncio.create_task(
                each(consumer.read(TOPIC, start="latest", end=None), lambda message: got.append(message.body.decode()))
            )
            await asyncio.sleep(20.0)
            await admin.create_topic(TOPIC, queues=2)
            await asyncio.sleep(1.0)
            await send(producer, "new", queues=(A._replace(queue_id=1),))
            await asyncio.sleep(60.0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    Simulation(1, faults=None, brokers=1).run(main)
    assert got == ["new-a"]
