"""Client processes that a scenario may kill; also a program, ``python programs.py NAME ARGUMENT ...``, that prints its lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from rmq_async import Message, MessageExt, Producer, PullConsumer, TransactionProducer, TransactionStatus

__all__ = ["PROGRAMS", "answers", "begins"]

Say = Callable[[str], None]


async def answers(say: Say, namesrv: str, topic: str) -> None:
    """Replies to each request of the topic."""
    async with Producer("answers", namesrv=namesrv) as producer, PullConsumer("answers", namesrv=namesrv) as consumer:
        await consumer.queues(topic)
        say("ready")
        async for asked in consumer.read(topic, end=None):
            if asked.properties.get("CORRELATION_ID"):
                await producer.reply(asked, b"re:" + asked.body)


async def begins(say: Say, namesrv: str, topic: str, group: str) -> None:
    """Sends a half message and never ends its transaction."""

    async def execute(message: Message, _: object) -> TransactionStatus:
        say(message.unique_id or "")
        await asyncio.sleep(600)
        return TransactionStatus.ROLLBACK

    async def check(_: MessageExt) -> TransactionStatus:
        return TransactionStatus.UNKNOWN

    async with TransactionProducer(group, execute=execute, check=check, namesrv=namesrv) as producer:
        await producer.send_in_transaction(Message(topic, b"half"))


PROGRAMS = {program.__name__: program for program in (answers, begins)}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(PROGRAMS[sys.argv[1]](say, *sys.argv[2:]))
