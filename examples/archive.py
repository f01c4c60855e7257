"""Reading by hand: a member of a group that iterates. Asking for the next message says that this one is done."""

import os

import rmq_async
from rmq_async import Admin, Consumer, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ


async def main() -> None:
    async with EmbeddedRocketMQ() as server:
        os.environ["NAMESRV_ADDR"] = server.namesrv
        async with Admin() as admin, Producer("orders") as producer:
            await admin.create_topic("OrderTopic", queues=4)
            for number in range(20):
                await producer.send(Message("OrderTopic", b"paid", keys=f"order-{number}"))
        print(f"archived: {len(await archived(20))}")
        print(f"archived after a restart: {len(await archived(0))}")


async def archived(count: int) -> list[str]:
    """Reads until it has caught up, and returns the keys; what it has read is committed."""
    archive: list[str] = []
    async with Consumer("audit", topics=["OrderTopic"], start_from="earliest") as consumer:
        if not count:
            await consumer.wait_idle()
            return archive
        async for message in consumer:
            archive.append(message.keys[0])
            if len(archive) == count:
                consumer.done(message)  # leaving the loop would leave the last message for another member
                break
    return archive


if __name__ == "__main__":
    rmq_async.run(main())
