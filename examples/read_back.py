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
            await producer.send(Message("ReportTopic", f"order {number}".encode(), tags="even" if number % 2 == 0 else "odd"))

        position: dict[MessageQueue, int] = {}
        for queue in await consumer.queues("ReportTopic"):
            position[queue] = await consumer.min_offset(queue)
        number_read = 0
        async for message in consumer.read("ReportTopic", start=position):
            position[message.queue] = message.queue_offset + 1
            number_read += 1
        print(f"{number_read} messages in {len(position)} queues")

        await producer.send(Message("ReportTopic", b"order 10", tags="even"))
        print([message.body async for message in consumer.read("ReportTopic", start=position)])
        print(sorted([message.body async for message in consumer.read("ReportTopic", tags="odd")]))


rmq_async.run(main())
