"""A service and what must hold for it under every fault of its cluster: ``rmq simulate simulated_service:service`` in this folder.

One machine takes orders and announces them; another one ships them, as a member of a group. Each seed has faults of its own.
RocketMQ delivers a message at least once, so ``Shipping`` remembers what it has shipped; without that, one seed in twenty fails.
"""

import asyncio
import logging

from rmq_async import Consumer, Message, MessageExt, Producer, RocketMQError
from rmq_async.testing.simulation import Simulation

TAKES_ORDERS = 300.0
CALM = 65.0  # seconds without faults after which every client must work again


class Shipping:
    """Ship each order once."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.shipped: list[bytes] = []

    async def run(self) -> None:
        consumer = Consumer("shipping", namesrv=self.namesrv, start_from="earliest")
        consumer.subscribe("Orders", self.ship)
        async with consumer:
            await asyncio.get_running_loop().create_future()

    async def ship(self, message: MessageExt) -> None:
        if message.body not in self.shipped:
            self.shipped.append(message.body)
            await asyncio.sleep(0.05)


async def service(sim: Simulation) -> None:
    """Take orders for five minutes under faults, end the faults, and check that the last order is shipped within a minute."""
    shipping = Shipping(sim.namesrv)
    sim.machine("shipping").run(shipping.run)
    async with Producer("orders", namesrv=sim.namesrv) as producer:
        number = 0
        while sim.now < TAKES_ORDERS:
            number += 1
            try:
                await producer.send(Message("Orders", b"%d" % number))
            except RocketMQError:
                await asyncio.sleep(1)
            await asyncio.sleep(2)
        await sim.calm(CALM)
        await producer.send(Message("Orders", b"the last one"))
        await asyncio.sleep(60)
    assert b"the last one" in shipping.shipped, "an order was not shipped"
    assert len(set(shipping.shipped)) == len(shipping.shipped), "an order was shipped twice"


if __name__ == "__main__":
    logging.getLogger("rmq_async").setLevel(logging.CRITICAL)  # the faults are meant
    simulation = Simulation(17)
    simulation.run(service)
    simulation.check()
    print(f"{simulation.now / 60:.0f} minutes, {sum(simulation.faults_met.values())} faults")
