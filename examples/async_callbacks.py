"""Send without waiting for each answer: a callback for every message, and a future for those who want one."""

import rmq_async
from rmq_async import Message, Producer, SendResult
from rmq_async.embedded import EmbeddedRocketMQ


async def main() -> None:
    stored: list[str] = []
    failed: list[BaseException] = []

    def on_success(result: SendResult) -> None:
        stored.append(result.msg_id)

    # At most 256 messages are unanswered at a time: the next send_async() waits for one of them.
    async with EmbeddedRocketMQ() as server, Producer("events", namesrv=server.namesrv, async_limit=256) as producer:
        for number in range(1000):
            message = Message("EventTopic", f"event {number}".encode())
            await producer.send_async(message, on_success=on_success, on_error=failed.append)
        future = await producer.send_async(Message("EventTopic", b"one more"))
        print(f"one more: offset {(await future).queue_offset}")
        await producer.flush()
        print(f"{len(stored)} stored, {len(failed)} failed")


rmq_async.run(main())
