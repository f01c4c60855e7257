"""Requests of a client whose address changes, in simulations: its old connection is silent, the broker ends it minutes later."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from rmq_async import Admin, Message, Producer, PullConsumer, RocketMQError
from rmq_async.testing.simulation import Simulation

TOPIC = "Requests"


async def answer(simulation: Simulation) -> None:
    async with (
        Producer("answers", namesrv=simulation.namesrv) as producer,
        PullConsumer("a", namesrv=simulation.namesrv) as consumer,
    ):
        async for message in consumer.read(TOPIC, end=None):
            with suppress(RocketMQError):
                await producer.reply(message, b"re: " + message.body)


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("every", [1.0, 7.0, 20.0])
def test_replies_reach_a_client_after_its_address_has_changed(brokers: int, every: float) -> None:
    """All but those of the moment in which a broker ends the old connection, and forgets the client with it."""
    failed: list[float] = []

    async def ask(simulation: Simulation) -> None:
        async with Producer("asks", namesrv=simulation.namesrv) as producer:
            await asyncio.sleep(5.0)
            while simulation.now < 400.0:
                began = simulation.now
                try:
                    await producer.request(Message(TOPIC, b"x"), timeout=4.0)
                except RocketMQError:
                    failed.append(began)
                await asyncio.sleep(every)

    async def main(simulation: Simulation) -> None:
        async with Admin(namesrv=simulation.namesrv) as admin:
            await admin.create_topic(TOPIC)
        simulation.machine("answers").run(lambda: answer(simulation))
        asks = simulation.machine("asks")
        asking = asks.run(lambda: ask(simulation))
        await asyncio.sleep(50.0)
        asks.move("10.9.9.9")
        await asking

    simulation = Simulation(1, faults=None, brokers=brokers)
    simulation.run(main)
    late = [began for began in failed if began > 70.0]
    assert len(late) <= brokers, failed
    assert all(150.0 < began < 210.0 for began in late), failed
