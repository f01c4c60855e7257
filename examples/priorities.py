"""Urgent jobs first: each message has a priority, and pops begin with the highest.

In production, on brokers of 5.5 and later: ``NAMESRV_ADDR=10.0.0.1:9876 python priorities.py`` works until SIGTERM. Run as it is, a
broker in memory has ten jobs of each priority waiting when an urgent one comes.
"""

import asyncio
import os

import rmq_async
from rmq_async import Admin, Consumer, Message, MessageExt, Producer

HIGHEST = 2


def worker(namesrv: str | None, done: list[str]) -> Consumer:
    consumer = Consumer("job-workers", namesrv=namesrv, mode="pop", start_from="earliest", concurrency=1)

    @consumer.handler("UrgencyTopic")
    async def work(message: MessageExt) -> None:
        await asyncio.sleep(0.03)
        done.append(message.body.decode())

    return consumer


async def show(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("UrgencyTopic", queues=HIGHEST + 1, attributes={"message.type": "PRIORITY"})
    done: list[str] = []
    async with Producer("planners", namesrv=namesrv) as producer:
        for number in range(30):
            priority = number % (HIGHEST + 1)
            await producer.send(Message("UrgencyTopic", b"priority %d" % priority, priority=priority))
        async with worker(namesrv, done) as consumer:
            await consumer.wait_settled(12)
            await producer.send(Message("UrgencyTopic", b"urgent", priority=HIGHEST))
            await consumer.wait_settled(19)
    waited = done.index("urgent") - 12
    done.remove("urgent")
    print(f"in order: {done == sorted(done, reverse=True)}, the urgent one waited for fewer than 10: {waited < 10}")


async def main() -> None:
    namesrv = os.environ.get("NAMESRV_ADDR")
    if namesrv is not None:
        await worker(namesrv, []).run()  # until SIGTERM
        return
    from rmq_async.embedded import EmbeddedRocketMQ

    async with EmbeddedRocketMQ() as server:
        await show(server.namesrv)


if __name__ == "__main__":
    rmq_async.run(main())
