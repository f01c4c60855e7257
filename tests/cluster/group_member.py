"""One member of a consumer group, a process of its own: ``python group_member.py SETTINGS``, the JSON of ``MemberSettings``.

It appends a line to a file when a handler begins and when one ends, with one write each, which a SIGKILL cannot cut in two.
``group_members`` starts and counts them; ``group_calls`` says what a line is.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from time import time
from typing import Final, Literal

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rmq_async import Batch, DeadLetter, MessageExt, Retry
from rmq_async.consumer import Consumer

RAISES: Final = "raises"
DEAD: Final = "dead"
"""Tags of messages at which handlers raise an error, or DeadLetter."""


class MemberSettings(msgspec.Struct):
    """``work``: the longest handler takes so many seconds, the mean one half. ``options``: of the Consumer. ``retry``: limit and
    delays, None for the default. ``order``: of the subscription. ``fails``: this share of the attempts raises. ``batch``: messages
    of a call at most; None for one. ``by_hand``: reads with three iterators at a time, without handlers."""

    namesrv: str
    group: str
    topic: str
    name: str
    file: str
    work: float
    options: dict[str, int | float | str]
    retry: tuple[int, tuple[float, ...]] | None = None
    order: Literal["key", "queue"] | None = None
    fails: float = 0.0
    batch: int | None = None
    by_hand: bool = False


async def main(settings: MemberSettings) -> None:
    chance = random.Random(settings.name)
    file = os.open(settings.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, message: MessageExt) -> None:
        number = bytes(message.body[:20]).partition(b" ")[0].decode()
        place = f"{message.queue.broker_name}:{message.queue.queue_id}:{message.queue_offset}"
        os.write(file, f"{what} {number} {place} {message.reconsume_times} {time():.4f}\n".encode())

    async def handle(message: MessageExt) -> None:
        note("begun", message)
        await asyncio.sleep(chance.uniform(0.0, settings.work))
        if message.tags in (RAISES, DEAD):
            note("failed", message)
            raise DeadLetter("as its tag says") if message.tags == DEAD else ValueError("as its tag says")
        if chance.random() < settings.fails:
            note("failed", message)
            raise ConnectionError("fails now and then")
        note("ended", message)

    async def handle_batch(batch: Batch) -> None:
        for message in batch:
            note("begun", message)
        await asyncio.sleep(chance.uniform(0.0, settings.work))
        for message in batch:
            note("ended", message)

    async def iterate() -> None:
        async for message in consumer:
            await handle(message)

    async def report() -> None:
        while not consumer.assignment:
            await asyncio.sleep(0.01)
        print("reads", flush=True)

    topics = [settings.topic] if settings.by_hand else []
    consumer = Consumer(settings.group, namesrv=settings.namesrv, topics=topics, **settings.options)  # type: ignore[arg-type]
    retry = None if settings.retry is None else Retry(limit=settings.retry[0], delays=settings.retry[1])
    reporting = asyncio.get_running_loop().create_task(report())
    if settings.by_hand:  # such members end by SIGKILL
        async with consumer:
            await asyncio.gather(iterate(), iterate(), iterate())
        return
    if settings.batch is None:
        consumer.subscribe(settings.topic, handle, retry=retry, order=settings.order)
    else:
        consumer.subscribe(settings.topic, handle_batch, retry=retry, order=settings.order, batch_size=settings.batch)
    await consumer.run()
    reporting.cancel()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1].encode(), type=MemberSettings)))
