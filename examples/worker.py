"""A worker: a member of the group "billing", which shares the paid orders with the other members and retries what fails.

In production: ``NAMESRV_ADDR=10.0.0.1:9876 python worker.py``, as often as you like; each runs until SIGTERM or SIGINT. Run as it
is, it handles three orders of a broker in memory.
"""

import asyncio
import os
import signal

import rmq_async
from rmq_async import Consumer, Message, MessageExt, Producer

consumer = Consumer("billing", start_from="earliest")  # at the name servers of $NAMESRV_ADDR


@consumer.handler("OrderTopic", tags="paid", timeout=30.0)
async def bill(message: MessageExt) -> None:
    print(f"billed: {message.body.decode()}", flush=True)


async def main() -> None:
    from rmq_async.embedded import EmbeddedRocketMQ

    async with EmbeddedRocketMQ() as server:
        os.environ["NAMESRV_ADDR"] = server.namesrv
        async with Producer("orders") as producer:
            for number in range(3):
                await producer.send(Message("OrderTopic", b"order %d" % number, tags="paid"))
        running = asyncio.create_task(consumer.run())
        await consumer.start()  # returns when the worker runs
        settled = await consumer.wait_settled(3)
        signal.raise_signal(signal.SIGTERM)  # as Kubernetes does
        await running
        print(f"{len(settled)} handled, committed: {sum(server.progress('billing').values())}")


if __name__ == "__main__":
    rmq_async.run(consumer.run() if "NAMESRV_ADDR" in os.environ else main())
