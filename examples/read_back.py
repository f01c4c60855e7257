"""Read a topic from its first message to its last, then only what came since, by queue and offset; or only some tags of it."""

import rmq_async
from rmq_async import Message, MessageQueue, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ


async def main() -> None:
    async with (
        EmbeddedRocketMQ() as server,
        Producer("orders", namesrv=server.namesrv) as producer,
        PullConsumer("report", namesrv=server.namesrv) as consumer,
    ):
        for number in range(10):
            await producer.send(Message("OrderTopic", f"order {number}".encode(), tags="even" if number % 2 == 0 else "odd"))

        position: dict[MessageQueue, int] = dict.fromkeys(await consumer.queues("OrderTopic"), 0)
        async for message in consumer.read("OrderTopic", start=position):
            position[message.queue] = message.queue_offset + 1
        print(f"{sum(position.values())} messages in {len(position)} queues")

        await producer.send(Message("OrderTopic", b"order 10", tags="even"))
        print([message.body async for message in consumer.read("OrderTopic", start=position)])
        print(sorted([message.body async for message in consumer.read("OrderTopic", tags="odd")]))


rmq_async.run(main())
