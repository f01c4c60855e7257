"""Scenarios in which servers run, and connections, client processes or an operator fail the sends."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

from rmq_async import Admin, Message, MessageExt, MessageQueue, Producer, TransactionProducer, TransactionStatus

from ....support.instances import client_of
from . import programs
from .world import BROKER, Outcome, World, copies, kind, kinds, message, new_topic, own, producing, stored, until

__all__ = [
    "answers_cut", "connection_silent", "queues_taken_away", "requester_without_answerer", "transaction_without_sender",
]  # fmt: skip


async def queues_taken_away(world: World) -> Outcome:
    """An operator leaves a topic two of its eight queues, and a producer does not know it yet."""
    topic = await new_topic(world, broker=BROKER, queues=8)
    async with Admin(**own(world)) as admin, producing(world, topic) as producer:
        await admin.create_topic(topic, queues=2, broker=BROKER)
        outcome: Outcome = {
            "sends": dict(Counter([await kind(producer.send(message(topic))) for _ in range(8)])),
            "at once": await kinds(producer.send(message(topic)) for _ in range(8)),
            "to a queue that is gone": await kind(producer.send(message(topic), queue=MessageQueue(topic, BROKER, 5))),
            "batch to a queue that is gone": await kind(
                producer.send_batch([message(topic), message(topic)], queue=MessageQueue(topic, BROKER, 5))
            ),
            "with a key": await kinds(producer.send(message(topic), key=str(number)) for number in range(8)),
        }
        found = [each for each in await stored(world, topic) if not each.body.startswith(b"warm")]
    outcome["queues"] = sorted({each.queue.queue_id for each in found})
    outcome["stored"] = len(found)
    return outcome


async def answers_cut(world: World) -> Outcome:
    """The connection ends between requests, which the broker has, and their answers."""
    topic = await new_topic(world, broker=BROKER)
    outcome: Outcome = {}
    async with world.network() as network:
        for retries in (0, 2):
            async with producing(network, topic, timeout=5.0, retries=retries) as producer:
                network.lose_answers(BROKER)
                calls = [producer.send(message(topic, f"{retries} {number}")) for number in range(5)]
                ends = asyncio.ensure_future(kinds(calls))
                await asyncio.sleep(0.3)
                network.reset(BROKER)
                network.heal(BROKER)
                outcome[f"{retries} retries"] = await ends
                outcome[f"{retries} retries, later"] = await kind(producer.send(message(topic, f"{retries} later")))
    outcome["copies"] = dict(sorted((await copies(world, topic)).items()))
    outcome["ids"] = len({each.msg_id for each in await stored(world, topic) if each.body.startswith(b"2 ")})
    return outcome


async def connection_silent(world: World) -> Outcome:
    """A connection carries nothing in either direction and does not end; then it carries all that was written."""
    topic = await new_topic(world, queues=1)
    queue = MessageQueue(topic, BROKER, 0)
    async with world.network() as network, producing(network, topic, timeout=3.0, retries=2) as producer:
        network.silence(BROKER)
        named = asyncio.ensure_future(kind(producer.send(message(topic, "named"), queue=queue, timeout=0.5)))
        results = await asyncio.gather(*[producer.send(message(topic, f"plain {number}")) for number in range(6)])
        network.heal(BROKER)

        async def caught_up() -> bool:
            return "named" in await copies(world, topic)

        await until(caught_up, "the broker gets what was written")
        after = await kind(producer.send(message(topic, "after"), queue=queue))
        await asyncio.sleep(0.2)
    found = await copies(world, topic)
    return {
        "named": await named,
        "stored by": sorted({result.queue.broker_name for result in results}),
        "attempts": sorted({result.attempts for result in results}),
        "after": after,
        "copies of sends": sorted({found[f"plain {number}"] for number in range(6)}),
        "more copies than attempts": [
            number for number, result in enumerate(results) if found[f"plain {number}"] > result.attempts
        ],
        "copies of the others": (found["named"], found["after"]),
    }


async def requester_without_answerer(world: World) -> Outcome:
    """A process that replies to requests is killed; another one replies late to the last request."""
    topic = await new_topic(world, broker=BROKER, queues=1)
    async with producing(world, topic, timeout=5.0) as producer, Producer("late", **own(world)) as late:
        async with world.process(programs.answers, world.namesrv, topic) as process:
            await process.line()
            outcome: Outcome = {"answered": (await producer.request(message(topic, "first"), timeout=10.0)).body}
            await process.kill()
        outcome["killed"] = await kind(producer.request(message(topic, "second"), timeout=0.5))
        (asked,) = [each for each in await stored(world, topic) if each.body == b"second"]
        outcome["late reply"] = await kind(late.reply(asked, b"re:second"))
        replies = (await client_of(producer)).replies
        outcome["open, ignored"] = len(replies), replies.strays
        await producer.stop()
        outcome["reply to a stopped requester"] = await kind(late.reply(asked, b"re:second", timeout=1.0))
    return outcome


async def transaction_without_sender(world: World) -> Outcome:
    """The process that began a transaction is killed before the end of it; the broker asks another one of its group."""
    topic, group = await new_topic(world, broker=BROKER, queues=1), f"both-{uuid.uuid4().hex[:12]}"
    asked: list[str] = []

    async def check(half: MessageExt) -> TransactionStatus:
        asked.append(half.msg_id)
        return TransactionStatus.COMMIT

    async def execute(half: Message, _: object) -> TransactionStatus:
        raise AssertionError("this process sends nothing")

    async with world.process(programs.begins, world.namesrv, topic, group) as process:
        unique_id = await process.line()
        await process.kill()
    async with Admin(**own(world)) as admin:

        async def gone() -> bool:
            return await kind(admin.producer_connections(group)) != "done"

        await until(gone, "the broker forgets the process")
        online = await kind(admin.producer_connections(group))
    before = [each.body for each in await stored(world, topic)]
    async with TransactionProducer(group, execute=execute, check=check, topics=[topic], **own(world)):
        await until(lambda: bool(asked), "the second process is asked")
        await asyncio.sleep(1.5)  # another round of questions
    found = await stored(world, topic)
    return {
        "group without it": online,
        "seen before": before,
        "asked once": asked == [unique_id],
        "seen": [each.body for each in found],
        "with its id": [each.msg_id for each in found] == [unique_id],
    }
