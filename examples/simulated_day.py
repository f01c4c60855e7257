"""A day of a small service on a simulated cluster whose brokers crash, freeze and are cut off, in seconds.

Orders come in on one machine, which announces them; another one reads them and ships each once. Clocks, network, brokers and
clients are simulated: the same seed gives the same day.
"""

import asyncio
import logging
from collections import deque

from rmq_async import Admin, Message, MessageQueue, Producer, PullConsumer, RocketMQError
from rmq_async.testing.simulation import Faults, Simulation

DAY = 86_400.0
BROKER_FAILURES = Faults(
    frozenset({"broker-crash", "broker-pause", "broker-busy", "link-cut", "link-reset"}), rate=0.1, end=DAY
)


class Orders:
    """Takes an order every two minutes. What cannot be announced now is kept and announced with the next one."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.taken = 0
        self.kept = 0
        self.waiting: deque[int] = deque()

    async def run(self) -> None:
        async with Producer("orders", namesrv=self.namesrv) as producer:
            for _ in range(int(DAY / 120)):
                self.taken += 1
                self.waiting.append(self.taken)
                await self.announce(producer)
                await asyncio.sleep(120)

    async def announce(self, producer: Producer) -> None:
        while self.waiting:
            order = self.waiting[0]
            try:
                await producer.send(Message("Orders", b"%d" % order, keys=f"order-{order}"), timeout=1.0)
            except RocketMQError:
                self.kept += 1
                return
            self.waiting.popleft()


class Shipping:
    """Reads every ten minutes what is new. An order may be announced twice and is shipped once."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.shipped: set[int] = set()
        self.copies = 0
        self.position: dict[MessageQueue, int] = {}

    async def run(self) -> None:
        async with PullConsumer("shipping", namesrv=self.namesrv) as consumer:
            while True:
                try:
                    await self.ship_new_orders(consumer)
                except RocketMQError as error:
                    logging.info("shipping later: %s", error)
                await asyncio.sleep(600)

    async def ship_new_orders(self, consumer: PullConsumer) -> None:
        start = {queue: self.position.get(queue, 0) for queue in await consumer.queues("Orders")}
        async for message in consumer.read("Orders", start=start):
            self.position[message.queue] = message.queue_offset + 1
            order = int(message.body)
            self.copies += order in self.shipped
            self.shipped.add(order)


async def day(simulation: Simulation) -> None:
    async with Admin(namesrv=simulation.namesrv) as admin:
        await admin.create_topic("Orders", queues=1)
    orders, shipping = Orders(simulation.namesrv), Shipping(simulation.namesrv)
    simulation.machine("shipping").run(shipping.run)
    await simulation.machine("orders").run(orders.run)
    await asyncio.sleep(3600)  # the faults are over
    assert not orders.waiting
    assert shipping.shipped == set(range(1, orders.taken + 1))
    print(f"{orders.taken} orders taken, {len(shipping.shipped)} shipped")
    print(f"kept for later: {orders.kept}, announced twice: {shipping.copies}")


def main() -> None:
    logging.getLogger("rmq_async").setLevel(logging.CRITICAL)  # hundreds of warnings about faults that are meant
    simulation = Simulation(17, brokers=1, faults=BROKER_FAILURES)
    simulation.run(day)
    simulation.check()
    print(f"{simulation.now / 3600:.0f} hours, {simulation.faults_met['broker-crash']} crashes of brokers")


if __name__ == "__main__":
    main()
