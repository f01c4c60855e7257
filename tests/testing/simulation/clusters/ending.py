"""Scenarios in which a server's process is killed or stopped."""

from __future__ import annotations

import asyncio
import uuid
from time import monotonic
from typing import Any, Final

from rmq_async import Admin, Message, MessageExt, MessageQueue, Producer, PullConsumer, SendResult

from ....support.instances import client_of
from .world import (
    BROKER,
    Outcome,
    World,
    copies,
    kind,
    kinds,
    kinds_of,
    message,
    new_topic,
    own,
    producing,
    stored,
    strays,
    until,
)

__all__ = [
    "SENDS", "every_broker_down", "kept_over_a_kill", "killed_in_flight", "name_server_down", "restarted_under_load",
    "stopped_and_resumed",
]  # fmt: skip

SENDS: Final = 5


async def killed_in_flight(world: World) -> Outcome:
    """A broker is killed while it has requests that it has not read; another one has the topic, too."""
    topic = await new_topic(world)
    async with producing(world, topic, timeout=10.0) as producer:
        await world.pause(BROKER)
        calls = [asyncio.ensure_future(producer.send(message(topic))) for _ in range(20)]
        await asyncio.sleep(0.3)
        waiting = [call for call in calls if not call.done()]
        await world.kill(BROKER)
        results: list[SendResult] = await asyncio.gather(*calls)
        found = await copies(world, topic)
    return {
        "sends that met it": await kinds(waiting),
        "the others": await kinds(call for call in calls if call not in waiting),
        "stored by": sorted({result.queue.broker_name for result in results}),
        "copies": sorted(set(found.values())),
        "all there": len(found) == len(results),
    }


async def stopped_and_resumed(world: World) -> Outcome:
    """A broker does not run for longer than its requests may take, and goes on."""
    topic = await new_topic(world, broker=BROKER)
    queue = MessageQueue(topic, BROKER, 0)
    short: Any = {"timeout": 0.5, "retries": 0}
    async with (
        producing(world, topic, **short) as producer,
        Producer("new", **own(world), **short) as new,
        PullConsumer("new", **own(world), request_timeout=0.5) as consumer,
        Admin(**own(world), request_timeout=0.5) as admin,
    ):
        before = await strays(producer)
        await world.pause(BROKER)
        outcome: Outcome = await kinds_of(
            {
                **{f"send {number}": producer.send(message(topic, f"sent {number}")) for number in range(SENDS)},
                "batch": producer.send_batch([message(topic, "batched"), message(topic, "batched too")]),
                "one-way": producer.send_oneway(message(topic, "one-way")),
                "on a new connection": new.send(message(topic, "new")),
                "pull": consumer.pull(queue, 0),
                "offset": admin.max_offset(queue),
                "route": admin.topic_route(topic),
            }
        )
        await world.resume(BROKER)

        async def late() -> bool:
            return await strays(producer) - before == SENDS + 1

        await until(late, "the answers to the sends and the batch come late")
        outcome["after"] = await kinds(producer.send(message(topic, f"after {number}"), timeout=5.0) for number in range(SENDS))

        async def all_stored() -> bool:
            return len(await copies(world, topic)) == 2 * SENDS + 4

        await until(all_stored, "all that timed out is stored")
        outcome["copies"] = sorted(set((await copies(world, topic)).values()))
    return outcome


async def restarted_under_load(world: World) -> Outcome:
    """The only broker of a topic is killed and started again while a producer sends in order and a reader follows."""
    topic = await new_topic(world, broker=BROKER, queues=1)
    read: list[MessageExt] = []
    results: list[SendResult] = []
    slowest = 0.0

    async def follow() -> None:
        async with PullConsumer("follows", **own(world)) as consumer:
            async for each in consumer.read(topic, end=None):
                read.append(each)  # noqa: PERF401 - others look at it meanwhile

    async def load(producer: Producer) -> None:
        nonlocal slowest
        while True:
            began = monotonic()
            results.append(await producer.send(message(topic, f"{len(results):06}")))
            slowest = max(slowest, monotonic() - began)
            await asyncio.sleep(0.01)

    async with producing(world, topic, timeout=60.0) as producer, Admin(**own(world)) as admin:
        tasks = [asyncio.create_task(follow()), asyncio.create_task(load(producer))]
        await asyncio.sleep(0.5)
        await world.kill(BROKER)
        await asyncio.sleep(0.3)
        await world.start(BROKER)
        opened = len(results)
        await until(lambda: len(results) > opened + 20, "sends succeed again")
        clients = {each.client_id for each in await admin.producer_connections(producer.group)}
        tasks[1].cancel()
        await asyncio.wait(tasks[1:])
        await until(lambda: bool(read) and read[-1].queue_offset >= results[-1].queue_offset, "the reader has everything")
        tasks[0].cancel()
        await asyncio.wait(tasks)
    found = [each.body.decode() for each in await stored(world, topic)][1:]
    names = [f"{number:06}" for number in range(len(results))]
    return {
        "ends": [repr(task.exception()) for task in tasks if not task.cancelled()],
        "retried": any(result.attempts > 1 for result in results),
        "in time": slowest < 60.0,
        "lost": sorted(set(names) - set(found)),
        "too many copies": [name for name, each in zip(names, results, strict=True) if found.count(name) > each.attempts],
        "order kept": list(dict.fromkeys(found))[: len(names)] == names,
        "read without gap and repeat": [each.queue_offset for each in read] == list(range(len(read))),
        "registered again": len(clients),
    }


async def every_broker_down(world: World) -> Outcome:
    """The only broker of a topic is dead for longer than sends may take."""
    topic = await new_topic(world, broker=BROKER)
    queue = MessageQueue(topic, BROKER, 0)
    async with producing(world, topic, timeout=1.0) as producer, Admin(**own(world)) as admin:
        connections = (await client_of(producer)).pool.connections
        await world.kill(BROKER)
        await until(lambda: not all(each.is_open for each in connections), "the connection is lost")

        async def no_route() -> bool:
            return await kind(admin.topic_route(topic)) != "done"

        await until(no_route, "the name servers forget the broker")
        outcome: Outcome = await kinds_of(
            {
                "route": admin.topic_route(topic),
                "send": producer.send(message(topic)),
                "to a queue": producer.send(message(topic), queue=queue),
                "batch": producer.send_batch([message(topic), message(topic)]),
                "one-way": producer.send_oneway(message(topic)),
                "request": producer.request(message(topic)),
                "offset": admin.max_offset(queue),
                "another topic": admin.create_topic(f"{topic}-more", broker=BROKER),
            }
        )
        async with Producer("new", **own(world)) as new:
            outcome["of a new client"] = await kind(new.send(message(topic)))
            outcome["queues of a new client"] = [
                (each.broker_name, each.queue_id) for each in await new.fetch_publish_queues(topic)
            ]
        return outcome


async def name_server_down(world: World) -> Outcome:
    """The only name server that a client knows is down when it starts, up, down and up."""
    only: Any = {"namesrv": world.name_servers[0], "request_timeout": 1.0, "timeout": 1.0, "route_poll_interval": 0.2}
    known, other = await new_topic(world, broker=BROKER), await new_topic(world, broker=BROKER)
    await world.kill("namesrv-0")
    outcome: Outcome = {"start": await kind(Producer("early", **only, instance_name=uuid.uuid4().hex).start())}
    await world.start("namesrv-0")
    async with Producer("only", **only, instance_name=uuid.uuid4().hex) as producer:
        outcome["up"] = await kind(producer.send(message(known)))
        await world.kill("namesrv-0")
        await asyncio.sleep(0.5)
        outcome["known topic"] = await kinds(producer.send(message(known)) for _ in range(SENDS))
        outcome["other topic"] = await kind(producer.send(message(other)))
        await world.start("namesrv-0")
        outcome["other topic, up again"] = await kind(producer.send(message(other), timeout=5.0))
    return outcome


async def kept_over_a_kill(world: World) -> Outcome:
    """What a broker has after its process was killed: messages, their index, delays, topics; and what it had not read."""
    topic = await new_topic(world, broker=BROKER, queues=3)
    queue = MessageQueue(topic, BROKER, 0)
    key = uuid.uuid4().hex
    async with producing(world, topic, timeout=10.0) as producer, Admin(**own(world)) as admin:
        keyed = await producer.send(Message(topic, b"keyed", keys=key), queue=queue)
        ends = await admin.max_offset(queue)
        await producer.send(Message(topic, b"delayed", delay_level=1), queue=queue)
        await world.pause(BROKER)
        one_way = await kind(producer.send_oneway(message(topic, "one-way"), queue=queue))
        await world.kill(BROKER)
        await world.start(BROKER)
        outcome: Outcome = {
            "queues": [each.queue_id for each in await producer.fetch_publish_queues(topic)],
            "offsets": (await admin.min_offset(queue), await admin.max_offset(queue) >= ends),
            "by offset id": (await admin.view_message(topic, keyed.offset_msg_id)).body,
            "by unique id": (await admin.view_message(topic, keyed.msg_id)).body,
            "by key": {each.body for each in await admin.query_message(topic, key)},
        }

        async def delivered() -> bool:
            return "delayed" in await copies(world, topic)

        await until(delivered, "the delayed message is delivered")
        outcome["send"] = await kind(producer.send(message(topic, "after"), queue=queue))
        outcome["one-way"] = one_way
        outcome["copies"] = dict(sorted((await copies(world, topic)).items()))
    return outcome
