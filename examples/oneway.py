"""Send without any confirmation, for what may be lost. The producer still paces the flow, so that no broker is flooded."""

import rmq_async
from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ


async def main() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Producer("logs", namesrv=server.namesrv) as producer:
            for number in range(2000):
                await producer.send_oneway(Message("LogTopic", f"line {number}".encode()))
        print(f"2000 handed over, {len(server.messages('LogTopic'))} arrived")


rmq_async.run(main())
