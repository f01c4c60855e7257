"""Keep the messages of one order in order: the same key goes to the same queue."""

import asyncio

import rmq_async
from rmq_async import Message, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ

STEPS = ("created", "paid", "sent")


async def main() -> None:
    async with EmbeddedRocketMQ() as server, Producer("orders", namesrv=server.namesrv) as producer:
        server.shuffle(seed=1)  # as a real broker, whose threads work on the requests in flight in any order
        # Messages with the same key are stored in the order of the calls, so the calls need not wait for one another.
        sends = [
            producer.send(Message("StepTopic", f"{order} {step}".encode(), keys=order), key=order)
            for step in STEPS
            for order in ("order-1", "order-2", "order-3")
        ]
        results = await asyncio.gather(*sends)

        first = {result.queue: result.queue_offset for result in reversed(results)}  # in each queue the first of ours
        seen: dict[str, list[str]] = {}
        async with PullConsumer("audit", namesrv=server.namesrv) as consumer:
            async for message in consumer.read("StepTopic", start=first):
                order, step = message.body.decode().split()
                seen.setdefault(order, []).append(step)
        for order, steps in sorted(seen.items()):
            print(order, " > ".join(steps))
            assert tuple(steps) == STEPS


rmq_async.run(main())
