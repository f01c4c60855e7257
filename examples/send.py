"""Send one message and know that it is stored. Runs as it is, on a broker inside this process."""

import rmq_async
from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ


async def main() -> None:
    async with EmbeddedRocketMQ() as server, Producer("orders", namesrv=server.namesrv) as producer:
        message = Message("OrderTopic", b'{"order": 17, "paid": true}', tags="paid", keys="order-17", properties={"shop": "eu"})
        result = await producer.send(message)
        print(f"{result.status.value}: {result.msg_id} at offset {result.queue_offset} of queue {result.queue.queue_id}")


rmq_async.run(main())
