"""Ask by message and get the answer by message: ``request`` waits for what somebody else's ``reply`` sends back."""

import asyncio
import contextlib

import rmq_async
from rmq_async import Admin, Message, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ReplyTimeoutError

PRICES = {b"apple": b"3", b"pear": b"4"}


async def answer(namesrv: str) -> None:
    async with PullConsumer("prices", namesrv=namesrv) as consumer, Producer("prices", namesrv=namesrv) as producer:
        async for request in consumer.read("PriceTopic", end=None):
            if request.body in PRICES:
                await producer.reply(request, PRICES[request.body])


async def main() -> None:
    async with EmbeddedRocketMQ() as server, Producer("shop", namesrv=server.namesrv) as producer:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic("PriceTopic")
        answering = asyncio.create_task(answer(server.namesrv))
        for fruit in PRICES:
            reply = await producer.request(Message("PriceTopic", fruit), timeout=3.0)
            print(f"{fruit.decode()}: {reply.body.decode()}")
        try:
            await producer.request(Message("PriceTopic", b"plum"), timeout=0.3)
        except ReplyTimeoutError:
            print("plum: no answer")
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering


rmq_async.run(main())
