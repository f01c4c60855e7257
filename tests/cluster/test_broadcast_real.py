"""Broadcast, and pause, resume and seek, on real brokers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rmq_async import Admin, Consumer, Message, MessageExt, Producer
from rmq_async.testing.cluster import ExternalCluster, RealCluster

PROGRAM = Path(__file__).with_name("broadcast_member.py")
RATE = 200
"""Messages per second beside restarts."""


async def new_topic(namesrv: str, queues: int) -> str:
    topic = f"Broadcast_{uuid.uuid4().hex}"
    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=queues)
    return topic


def counting(group: str, namesrv: str, topic: str, name: str, **options: bool) -> tuple[Consumer, Counter[bytes]]:
    consumer, handled = Consumer(group, namesrv=namesrv, instance_name=name, **options), Counter[bytes]()  # type: ignore[arg-type]

    @consumer.handler(topic)
    async def count(message: MessageExt) -> None:
        handled[message.body] += 1

    return consumer, handled


async def until(handled: Counter[bytes], count: int, timeout: float = 20.0) -> None:
    async with asyncio.timeout(timeout):
        while len(handled) < count:
            await asyncio.sleep(0.02)


async def send(namesrv: str, topic: str, first: int, last: int) -> None:
    async with Producer("broadcast", namesrv=namesrv) as producer:
        for number in range(first, last):
            await producer.send(Message(topic, b"%d" % number))


async def test_each_member_handles_each_message_once(each_cluster: RealCluster | ExternalCluster) -> None:
    namesrv, group = each_cluster.namesrv, f"broadcast-{uuid.uuid4().hex}"
    topic = await new_topic(namesrv, 4)
    one, first = counting(group, namesrv, topic, "one", broadcast=True)
    two, second = counting(group, namesrv, topic, "two", broadcast=True)
    async with one, two, Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        shown = await admin.consumer_connections(group)
        assert (shown.message_model, len(shown.connections), set(shown.subscriptions)) == ("BROADCASTING", 2, {topic})
        await send(namesrv, topic, 0, 200)
        await until(first, 200)
        await until(second, 200)
        assert (one.health().problems, two.health().problems) == ((), ())
        assert one.assignment == two.assignment
        assert len(one.assignment) == 4
    print("sent 200, handled", sum(first.values()), "and", sum(second.values()))
    assert first == second == Counter({b"%d" % number: 1 for number in range(200)})


@asynccontextmanager
async def process(namesrv: str, group: str, topic: str, home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A member that reads, until the block ends."""
    member = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), namesrv, group, topic, str(home / "positions.json"), str(home / "handled")),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert member.stdout is not None
        async with asyncio.timeout(20):
            assert await member.stdout.readline() == b"reads\n"
        yield member
    finally:
        if member.returncode is None:
            member.kill()
        await member.communicate()


async def test_restarts_with_stored_positions_lose_nothing(cluster: RealCluster | ExternalCluster, tmp_path: Path) -> None:
    namesrv, group = cluster.namesrv, f"broadcast-{uuid.uuid4().hex}"
    topic = await new_topic(namesrv, 4)
    sent = 0

    async def load() -> None:
        nonlocal sent
        async with Producer("broadcast", namesrv=namesrv) as producer:
            while True:
                await producer.send(Message(topic, b"%d" % sent))
                sent += 1
                await asyncio.sleep(1 / RATE)

    def handled() -> Counter[bytes]:
        return Counter((tmp_path / "handled").read_bytes().split())

    kills, loading = 2, None
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        async with process(namesrv, group, topic, tmp_path) as member:
            loading = loading or asyncio.create_task(load())
            await asyncio.sleep(1.5)
            before = handled()
            member.send_signal(number)
            await member.wait()
            if number is signal.SIGTERM:
                assert member.returncode == 0
        assert sum(before.values()) > 0
    assert loading is not None
    loading.cancel()
    async with process(namesrv, group, topic, tmp_path), asyncio.timeout(20):
        while len(handled()) < sent:
            await asyncio.sleep(0.05)
    twice = sum(handled().values()) - len(handled())
    print(f"{sent} sent, {sent - len(handled())} lost, {twice} handled twice, {kills} kills")
    assert set(handled()) == {b"%d" % number for number in range(sent)} or set(handled()) == {
        b"%d" % n for n in range(sent + 1)
    }
    assert twice <= kills * 2 * RATE  # a save each second


async def test_pause_resume_and_seek(each_cluster: RealCluster | ExternalCluster) -> None:
    namesrv, group = each_cluster.namesrv, f"control-{uuid.uuid4().hex}"
    topic = await new_topic(namesrv, 2)
    consumer, handled = counting(group, namesrv, topic, "one")
    async with consumer:
        await send(namesrv, topic, 0, 10)
        await until(handled, 10)
        consumer.pause(topic)
        await send(namesrv, topic, 10, 20)
        await asyncio.sleep(0.5)
        assert len(handled) == 10
        consumer.resume(topic)
        await until(handled, 20)
        await consumer.wait_idle(timeout=20)
        queue = min(queue for queue in consumer.assignment if queue.topic == topic)
        await consumer.seek(queue, "earliest")
        async with asyncio.timeout(20):
            while sum(handled.values()) < 30:
                await asyncio.sleep(0.02)
        consumer.pause()
        await send(namesrv, topic, 20, 30)
        await consumer.seek(queue, "latest")
        assert await consumer.committed(queue) == consumer.position(queue) == 15
        consumer.resume()
        await until(handled, 25)
        await asyncio.sleep(0.5)
    print("handled", len(handled), "of 30,", sum(count > 1 for count in handled.values()), "twice")
    assert (len(handled), sum(handled.values())) == (25, 35)
