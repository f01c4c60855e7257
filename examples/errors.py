"""What the error of a failed send holds: the brokers tried, what each said, and whether the message may be stored all the same."""

import rmq_async
from rmq_async import InvalidMessageError, Message, Producer, RequestTimeoutError, SendError
from rmq_async.embedded import EmbeddedRocketMQ

SERVICE_NOT_AVAILABLE = 14


async def main() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, Producer("orders", namesrv=server.namesrv) as producer:
        message = Message("RetryTopic", b"order 17")

        server.fail_next(SERVICE_NOT_AVAILABLE)
        result = await producer.send(message)
        print(f"one broker refused, another stored it: {result.attempts} attempts")

        server.fail_next(SERVICE_NOT_AVAILABLE, 3)
        try:
            await producer.send(message)
        except SendError as error:
            print(f"{len(error.attempts)} attempts refused, maybe_stored={error.maybe_stored}")

        server.stall()
        try:
            await producer.send(message, queue=result.queue, timeout=0.2)
        except RequestTimeoutError as error:
            print(f"no answer in time, maybe_stored={error.maybe_stored}")
        server.resume()

        try:
            await producer.send(Message("RetryTopic", b"x" * (4 * 1024 * 1024 + 1)))
        except InvalidMessageError as error:
            print(f"refused before anything was sent: {error}")


rmq_async.run(main())
