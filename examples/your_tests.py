"""Test your own code without a server: a broker in the test's own process, with faults at your word. (Run: python or pytest.)"""

import asyncio

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ

SYSTEM_BUSY = 2


async def publish_order(producer: Producer, number: int) -> str:
    """The code under test."""
    result = await producer.send(Message("PublishedTopic", b"paid", keys=f"order-{number}"))
    return result.msg_id


async def check_that_orders_survive_a_busy_broker() -> None:
    async with EmbeddedRocketMQ() as server, Producer("shop", namesrv=server.namesrv) as producer:
        server.fail_next(SYSTEM_BUSY, 2)
        msg_id = await publish_order(producer, 17)
        (stored,) = server.messages("PublishedTopic")
        assert (stored.msg_id, stored.keys) == (msg_id, ("order-17",))


def test_orders_survive_a_busy_broker() -> None:
    asyncio.run(check_that_orders_survive_a_busy_broker())


if __name__ == "__main__":
    test_orders_survive_a_busy_broker()
    print("passed")
