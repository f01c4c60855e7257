"""Bodies that are compressed and decompressed in threads: calls end in time, however busy the threads are.

The threads are real. Busy ones stay so until a call has ended, so no test compares seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from rmq_async import Admin, Consumer, MessageExt, Producer, PullConsumer, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.transport import Threads
from rmq_async.transport.threads import MAX_THREADS
from rmq_protocol.compression import CompressionType, compress
from rmq_protocol.constants import SysFlag

from ..support.fakes import TOPIC, Cluster, Link, Sent, push, stored
from .support import message, outcomes, producer, spin, until

LARGE = b"much of the same " * 10_000
"""170 KB, which compress to little: in a thread, and small when it is there."""
INCOMPRESSIBLE = bytes(random.Random(1).choices(b"abcdefgh", k=400_000))
"""150 KB when compressed: what is decompressed in a thread."""


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rmq_async")]


@contextmanager
def full_default_executor() -> Iterator[None]:
    """The service's own blocking work takes all the threads of the loop's executor."""
    over, loop = threading.Event(), asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    for _ in range(2):
        loop.run_in_executor(None, over.wait)
    try:
        yield
    finally:
        over.set()


@asynccontextmanager
async def full_threads() -> AsyncIterator[None]:
    """The library's own are all at work."""
    over, threads = threading.Event(), Threads()
    work = [asyncio.ensure_future(threads.run(over.wait, float("inf"))) for _ in range(MAX_THREADS)]
    await until(lambda: len(ours()) == min(MAX_THREADS, os.cpu_count() or 1))
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*work)
        threads.close()


async def test_full_default_executor_delays_no_send(cluster: Cluster) -> None:
    async with producer(cluster, timeout=60.0) as sender:
        await sender.send(message())
        with full_default_executor():
            future = await sender.send_async(message(LARGE))
            await asyncio.gather(
                future,
                sender.send(message(LARGE)),
                sender.send(message(LARGE), timeout=50.0),
                sender.send(message(LARGE), key="k"),
                sender.send(message(), key="other"),
                sender.send_oneway(message(LARGE)),
            )
            await sender.flush()
    assert len(cluster.sends) == 7


async def test_sends_end_while_threads_are_busy(cluster: Cluster) -> None:
    async with producer(cluster, timeout=60.0) as sender:
        await sender.send(message())
        async with full_threads():
            results = await outcomes(
                sender.send(message(LARGE), timeout=0.04),
                sender.send_async(message(LARGE), timeout=0.04),
                sender.send(message(LARGE), key="k", timeout=0.04),
                sender.send(message(), key="behind it", timeout=0.03),
                sender.send_oneway(message(LARGE), timeout=0.04),
            )
        assert [type(result) for result in results[:3]] == [errors.RequestTimeoutError] * 3
        assert not any(result.maybe_stored for result in results if isinstance(result, errors.RocketMQError))
        assert all(isinstance(result, TimeoutError | errors.BackpressureError) for result in results)
        assert f"topic {TOPIC}" in str(results[0])
        await sender.send(message(LARGE))  # the threads are free: what they began before it would be sent
        assert len(cluster.sends) == 2
        assert sender.health().unanswered == 0


async def test_stop_ends_waits_for_threads(cluster: Cluster) -> None:
    sender = producer(cluster, timeout=30.0)
    await sender.start()
    await sender.send(message())
    async with full_threads():
        call = asyncio.ensure_future(sender.send(message(LARGE)))
        await spin(5)
        await sender.stop(0.02)
        with pytest.raises(errors.ClientStateError):
            await call


async def answered(server: EmbeddedRocketMQ, replying: Any) -> None:
    await until(lambda: server.messages(TOPIC))
    await replying.reply(server.messages(TOPIC)[0], INCOMPRESSIBLE)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=1)
        yield server


@pytest.fixture
async def replying(server: EmbeddedRocketMQ) -> AsyncIterator[Any]:
    async with producer(server, "replying", instance_name="replying") as replying:  # type: ignore[arg-type]
        yield replying


async def test_full_default_executor_delays_no_reply(server: EmbeddedRocketMQ, replying: Any) -> None:
    async with producer(server) as asking:  # type: ignore[arg-type]
        with full_default_executor():
            reply, _ = await asyncio.gather(asking.request(message(), timeout=60.0), answered(server, replying))
        assert reply.body == INCOMPRESSIBLE


async def test_request_ends_while_threads_are_busy(cluster: Cluster) -> None:
    body = compress(INCOMPRESSIBLE, CompressionType.ZLIB, 5)
    flags = int(SysFlag.COMPRESSED | CompressionType.ZLIB.value)

    def pushed(link: Link, sent: Sent) -> None:
        push(link, sent, body=body, sysFlag=flags)
        stored(link, sent)

    cluster.a.answer = pushed
    async with producer(cluster) as asking:
        assert (await asking.request(message())).body == INCOMPRESSIBLE
        async with full_threads():
            with pytest.raises(errors.ReplyTimeoutError, match="were not decompressed") as caught:
                await asking.request(message(), timeout=1.0)  # in which the reply must come
            call = asyncio.ensure_future(asking.request(message(), timeout=60.0))
            await until(lambda: len(cluster.sends) == 3)
            await asking.stop(0.02)
            with pytest.raises(errors.ClientStateError) as stopped:
                await call
        assert caught.value.maybe_stored
        assert stopped.value.maybe_stored


async def test_pull_ends_while_threads_are_busy(server: EmbeddedRocketMQ) -> None:
    async with producer(server, compress_over=1 << 30) as sender:  # type: ignore[arg-type]
        await sender.send(message(INCOMPRESSIBLE))
    consumer = PullConsumer("reading", namesrv=server.namesrv, request_timeout=1.0)  # seconds in which the answer must come
    stopping = PullConsumer("stopping", namesrv=server.namesrv, request_timeout=60.0)
    async with consumer, stopping:
        queue = (await consumer.queues(TOPIC))[0]
        with full_default_executor():
            assert (await consumer.pull(queue, 0)).messages[0].body == INCOMPRESSIBLE
        async with full_threads():
            with pytest.raises(errors.RequestTimeoutError, match="not decoded in time"):
                await consumer.pull(queue, 0)
            call = asyncio.ensure_future(stopping.pull(queue, 0))
            await asyncio.sleep(0.04)
            await stopping.stop()
            with pytest.raises(errors.ClientStateError):
                await call


async def test_start_ends_while_threads_are_busy(server: EmbeddedRocketMQ) -> None:
    async with full_threads():
        with pytest.raises(errors.RequestTimeoutError, match="certificate authorities"):
            await producer(server, tls=True, request_timeout=0.04).start()  # type: ignore[arg-type]


async def test_threads_end_with_last_client(cluster: Cluster) -> None:
    async with producer(cluster, "one") as one:
        async with producer(cluster, "two", instance_name="another") as two:
            assert not ours()
            await asyncio.gather(*[sender.send(message(LARGE)) for sender in (one, two) for _ in range(2 * MAX_THREADS)])
            assert 0 < len(ours()) <= min(MAX_THREADS, os.cpu_count() or 1)
        await one.send(message(LARGE))
    await until(lambda: not ours())


async def test_threads_are_made_anew(cluster: Cluster) -> None:
    for _ in range(2):
        async with producer(cluster) as sender:
            await sender.send(message(LARGE))
    assert len(cluster.sends) == 2


async def test_large_bodies_while_no_thread_is_granted(refusing: list[bool]) -> None:
    """The loop packs and unpacks them; no message waits behind one that is large."""
    async with (
        EmbeddedRocketMQ() as server,
        Admin(namesrv=server.namesrv) as admin,
        Producer("p", namesrv=server.namesrv) as sender,
    ):
        await admin.create_topic(TOPIC, queues=1)
        refusing[0] = True
        for body in (LARGE, b"small", INCOMPRESSIBLE):
            await sender.send(message(body))
        assert not ours()
        seen: list[int] = []

        async def handler(message: MessageExt) -> None:
            seen.append(len(message.body))

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        consumer.subscribe(TOPIC, handler)
        async with consumer, PullConsumer("r", namesrv=server.namesrv) as reader:
            assert [len(each.body) async for each in reader.read(TOPIC)] == [len(LARGE), 5, len(INCOMPRESSIBLE)]
            await consumer.wait_idle(timeout=60)
        assert sorted(seen) == sorted([len(LARGE), 5, len(INCOMPRESSIBLE)])
        assert not ours()
