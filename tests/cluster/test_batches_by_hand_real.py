"""Groups whose handlers take batches, and groups that are read by hand, on real brokers: what was sent is handled once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections import Counter
from typing import Any

from rmq_async import Admin, Batch, ClientStateError, Consumer, Message, MessageExt, Producer, Retry
from rmq_async.testing.cluster import RealCluster

from ..consumer.group.support import until
from .accounting import read_all

SENT = 400


class Run:
    """A topic and a group of their own. ``done``: how often each body was handled to its end; ``dead``: bodies to dead-letter."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        mark = uuid.uuid4().hex[:12]
        self.topic, self.group = f"Batches_{mark}", f"Batches_{mark}"
        self.seed = random.randrange(1 << 32)
        self.chance = random.Random(self.seed)
        self.bodies = [b"%d" % number for number in range(SENT)]
        self.dead = set(self.chance.sample(self.bodies, 5))
        self.again = set(self.chance.sample(self.bodies, 20)) - self.dead
        self.done: Counter[bytes] = Counter()

    def member(self, name: str, **options: Any) -> Consumer:
        return Consumer(
            self.group, namesrv=self.namesrv, instance_name=f"{self.group} {name}", retry=Retry(delays=(1,)), **options
        )

    async def send(self) -> None:
        async with Producer("senders", namesrv=self.namesrv) as producer:
            for body in self.bodies:
                await producer.send(Message(self.topic, body))

    def is_to_fail(self, message: MessageExt) -> bool:
        return message.body in self.again and not message.reconsume_times

    @property
    def is_over(self) -> bool:
        return len(self.done) >= SENT - len(self.dead)

    async def check(self) -> None:
        """Asserts that each message was handled once, and prints the counts."""
        dead = Counter([message.body for message in await read_all(self.namesrv, f"%DLQ%{self.group}")])
        lost = set(self.bodies) - self.done.keys() - dead.keys()
        twice = sum(count - 1 for count in self.done.values())
        print(
            f"seed {self.seed}: sent {SENT}, handled {len(self.done)}, delivered again {len(self.again)}, "
            f"dead letters {len(dead)}, lost {len(lost)}, twice {twice}"
        )
        assert not lost
        assert twice == 0
        assert dead == Counter(self.dead)


async def test_batches_of_two_members_one_of_which_comes_and_goes(each_cluster: RealCluster) -> None:
    run = Run(each_cluster.namesrv)
    async with Admin(namesrv=run.namesrv) as admin:
        await admin.create_topic(run.topic, queues=8)
    sizes: list[int] = []

    async def load(batch: Batch) -> None:
        sizes.append(len(batch))
        await asyncio.sleep(0.02)
        for message in batch:
            if message.body in run.dead:
                batch.mark_dead_letter(message, "marked")
            elif run.is_to_fail(message):
                batch.mark_retry(message, 1.0)
            else:
                run.done[message.body] += 1

    one, two = run.member("one"), run.member("two")
    for each in (one, two):
        each.subscribe(run.topic, load, batch_size=40, batch_wait=0.2)
    async with one:
        sending = asyncio.create_task(run.send())
        await asyncio.sleep(0.3)
        async with two:
            await until(lambda: len(run.done) > SENT // 2, 30.0)
        await sending
        await until(lambda: run.is_over, 30.0)
        await one.wait_idle()
    print(f"{len(sizes)} batches, the largest of {max(sizes)}")
    assert max(sizes) > 1
    await run.check()


async def test_members_that_read_by_hand_one_of_which_comes_and_goes(each_cluster: RealCluster) -> None:
    """One in each way: message by message, in batches, and by ``receive``; iterators are left and begun again meanwhile."""
    run = Run(each_cluster.namesrv)
    async with Admin(namesrv=run.namesrv) as admin:
        await admin.create_topic(run.topic, queues=8)

    async def settle(consumer: Consumer, message: MessageExt) -> None:
        if message.body in run.dead:
            assert await consumer.dead_letter(message, "by hand")
        elif run.is_to_fail(message):
            assert await consumer.retry(message, 1.0)
        else:
            run.done[message.body] += 1

    async def one_by_one(consumer: Consumer) -> None:
        for leave_after in (7, 30, SENT):
            count = 0
            async for message in consumer:
                if count == leave_after:
                    break  # it goes back, and is the first of the next iterator
                count += 1
                await settle(consumer, message)

    async def in_batches(consumer: Consumer) -> None:
        async with contextlib.aclosing(consumer.batches(10, wait=0.05)) as batches:
            async for batch in batches:
                for message in batch:
                    if message.body in run.dead:
                        batch.mark_dead_letter(message)
                    elif run.is_to_fail(message):
                        batch.mark_retry(message, 1.0)
                    else:
                        run.done[message.body] += 1

    async def received(consumer: Consumer) -> None:
        with contextlib.suppress(ClientStateError):  # at the stop
            while True:
                for message in await consumer.receive(10, timeout=0.2):
                    await settle(consumer, message)
                    consumer.done(message)

    first, second, third = (run.member(name, topics=run.topic) for name in ("one", "two", "three"))
    async with first, third:
        tasks = [asyncio.create_task(one_by_one(first)), asyncio.create_task(received(third))]
        sending = asyncio.create_task(run.send())
        await asyncio.sleep(0.3)
        await second.start()
        passing = asyncio.create_task(in_batches(second))
        await until(lambda: len(run.done) > SENT // 2, 30.0)
        await second.stop()
        await passing
        await sending
        await until(lambda: run.is_over, 30.0)
        await asyncio.gather(first.wait_idle(), third.wait_idle())
        assert third.health().problems == ()
    await asyncio.gather(*tasks)
    await run.check()
