"""Deliver messages later: after some seconds, at a time, or by one of the broker's levels. (Its clock is moved by hand here.)"""

from datetime import UTC, datetime, timedelta

import rmq_async
from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock


async def main() -> None:
    clock = ManualClock()
    async with EmbeddedRocketMQ(clock=clock) as server, Producer("reminders", namesrv=server.namesrv) as producer:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        await producer.send(Message("ReminderTopic", b"tomorrow", deliver_at=tomorrow))
        await producer.send(Message("ReminderTopic", b"in an hour", delay=3600))
        await producer.send(Message("ReminderTopic", b"level 3: in 10 s", delay_level=3))  # what brokers before 5.0 can do
        await producer.send(Message("ReminderTopic", b"now"))

        for passed in (0, 10, 3600, 86400):
            await clock.advance(passed)
            messages = sorted(server.messages("ReminderTopic"), key=lambda message: message.store_time_ms)
            print(" - ".join(message.body.decode() for message in messages))


rmq_async.run(main())
