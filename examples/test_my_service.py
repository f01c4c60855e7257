"""A small service and its tests, with the fixture ``rocketmq`` that rmq-async brings to pytest. (Run: ``pytest`` on this file.)

The fixture is a name server and brokers in memory, new for each test, and works in plain and in async tests.
"""

import asyncio
from collections import deque

import pytest

import rmq_async
from rmq_async import Message, Producer, RocketMQError
from rmq_protocol.constants import ResponseCode


class Shop:
    """Announces paid orders; what the broker does not take now is kept and announced with the next one."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.waiting: deque[int] = deque()

    async def paid(self, order: int) -> None:
        self.waiting.append(order)
        while self.waiting:
            message = Message("Paid", b"%d" % self.waiting[0], keys=f"order-{self.waiting[0]}")
            try:
                await self._producer.send(message, timeout=0.5)
            except RocketMQError:
                return
            self.waiting.popleft()


def announced(rocketmq) -> list[bytes]:
    return [message.body for message in rocketmq.messages("Paid")]


# -- async tests (pytest-asyncio)


@pytest.mark.asyncio
async def test_a_paid_order_is_announced(rocketmq):
    async with Producer("shop", namesrv=rocketmq.namesrv) as producer:
        await Shop(producer).paid(17)
    (message,) = rocketmq.messages("Paid")
    assert (message.body, message.keys) == (b"17", ("order-17",))


@pytest.mark.asyncio
async def test_a_busy_broker_is_asked_again_by_the_client_itself(rocketmq):
    async with Producer("shop", namesrv=rocketmq.namesrv) as producer:
        rocketmq.fail_next(ResponseCode.SYSTEM_BUSY, 2)
        shop = Shop(producer)
        await shop.paid(17)
    assert not shop.waiting
    assert announced(rocketmq) == [b"17"]


@pytest.mark.asyncio
async def test_orders_wait_while_there_is_no_broker(rocketmq):
    async with Producer("shop", namesrv=rocketmq.namesrv) as producer:
        shop = Shop(producer)
        await shop.paid(1)
        await rocketmq.stop()
        await shop.paid(2)
        await shop.paid(3)
        assert list(shop.waiting) == [2, 3]
        await rocketmq.start()
        await asyncio.sleep(1)  # after a failed connect a client waits up to a second
        await shop.paid(4)
    assert announced(rocketmq) == [b"1", b"2", b"3", b"4"]


# -- a plain test, for a service that runs its own loop


def test_the_whole_program(rocketmq):
    async def program() -> None:
        async with Producer("shop", namesrv=rocketmq.namesrv) as producer:
            shop = Shop(producer)
            for order in range(10):
                await shop.paid(order)

    rmq_async.run(program())
    assert announced(rocketmq) == [b"%d" % order for order in range(10)]
