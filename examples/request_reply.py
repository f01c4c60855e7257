"""Ask by message and get the answer by message: ``request`` waits for what somebody else's ``reply`` sends back."""

import asyncio
import contextlib
import logging
import time

import rmq_async
from rmq_async import Admin, Message, MessageExt, Producer, PullConsumer, RocketMQError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ReplyTimeoutError

PRICES = {b"apple": b"3", b"pear": b"4"}
logger = logging.getLogger("prices")


def is_over(request: MessageExt) -> bool:
    """No request waits for an answer any more."""
    return time.time() * 1000 > request.born_time_ms + int(request.properties.get("TTL", "0"))


async def answer(namesrv: str) -> None:
    async with PullConsumer("prices", namesrv=namesrv) as consumer, Producer("prices", namesrv=namesrv) as producer:
        async for request in consumer.read("PriceTopic", end=None):  # from the first message on, old questions too
            if request.body not in PRICES or is_over(request):
                continue
            try:
                await producer.reply(request, PRICES[request.body])
            except RocketMQError as error:  # the client that asked is gone; others still wait
                logger.warning("no reply to %s: %s", request.msg_id, error)


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


if __name__ == "__main__":
    rmq_async.run(main())
