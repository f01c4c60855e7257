"""A loop that stood still for seconds: what has been answered meanwhile is not called late."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
import uvloop

from rmq_async import Producer, errors
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import TOPIC, Cluster
from ..support.instances import client_of
from .support import Taken, message, messages, outcomes, producer, spin, timed, until


@contextmanager
def broker_elsewhere(delay: float = 0.0) -> Iterator[EmbeddedRocketMQ]:
    """An embedded broker in a thread of its own, which goes on while this loop is blocked."""
    server = EmbeddedRocketMQ()
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with server:
            server.delay(delay, broker="broker-a")
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(5)
    try:
        yield server
    finally:
        over.set()
        thread.join()


@pytest.mark.usefixtures("wide_window")
async def test_seconds_during_sends_are_no_timeout() -> None:
    """Answers of 1,000 sends, of every kind, come while the loop stands still; their budget is over when it goes on."""
    with broker_elsewhere(delay=0.2) as server:
        async with Producer("group", namesrv=server.namesrv, timeout=1.0) as sender:
            await sender.send(message())
            sends = [asyncio.ensure_future(sender.send(item)) for item in messages(400)]
            sends += [asyncio.ensure_future(sender.send(item, key=1)) for item in messages(100)]
            sends += [asyncio.ensure_future(sender.send_batch([item])) for item in messages(100)]
            sends += [await sender.send_async(item) for item in messages(400)]  # type: ignore[misc]
            await spin(3)
            connections = (await client_of(sender)).pool.open
            await until(lambda: not any(each.buffered_bytes for each in connections.values()))  # all frames have left
            time.sleep(5.0 if isinstance(asyncio.get_running_loop(), uvloop.Loop) else 2.5)
            results = await asyncio.gather(*sends)
            assert {result.attempts for result in results} == {1}
            assert len(server.messages(TOPIC)) == 1001


async def test_last_frames_kept_from_leaving() -> None:
    """A few frames wait for answers to many sends (194 of them: three writes of 64, and 2), and then for the loop."""
    with broker_elsewhere() as server:
        async with Producer("group", namesrv=server.namesrv, timeout=0.3) as sender:
            await asyncio.gather(*map(sender.send, messages(10)))
            for _ in range(3):
                sends = [asyncio.ensure_future(sender.send(item)) for item in messages(97)]
                sends += [await sender.send_async(item) for item in messages(97)]
                batch = asyncio.ensure_future(sender.send_batch(messages(3)))
                await asyncio.sleep(0)
                asyncio.get_running_loop().call_soon(time.sleep, 0.5)
                results = await asyncio.gather(batch, *sends)
                assert {result.attempts for result in results} == {1}


async def test_what_is_not_answered_is_late_all_the_same() -> None:
    with broker_elsewhere() as server:
        async with Producer("group", namesrv=server.namesrv, timeout=0.3, stop_timeout=0) as sender:
            await sender.send(message())
            server.stall()
            sends = [asyncio.ensure_future(sender.send(item)) for item in messages(10)]
            await asyncio.sleep(0.02)
            time.sleep(0.6)
            with timed(most=0.1):
                results = await outcomes(*sends)
            assert {type(result) for result in results} == {errors.RequestTimeoutError}
            server.resume()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_unanswered_call_beside_busy_ones(cluster: Cluster) -> None:
    """Answers keep coming: no reason to put off, after a block, a call whose answer is not among those that waited."""
    stored = cluster.a.answer
    cluster.a.answer = lambda link, sent: None if sent.body == b"silent" else stored(link, sent)
    async with producer(cluster, stop_timeout=0) as sender:
        over = False

        async def busy() -> None:
            while not over:
                await sender.send(message())

        others = [asyncio.ensure_future(busy()) for _ in range(4)]
        late = []
        for _ in range(3):
            call = asyncio.ensure_future(sender.send(message(b"silent"), timeout=0.2))
            await asyncio.sleep(0.15)
            time.sleep(0.25)
            free, taken = monotonic(), Taken()
            assert isinstance((await outcomes(call))[0], errors.RequestTimeoutError)
            taken.stop()
            late.append(monotonic() - free - 2 * taken.lag)
        assert min(late) < 0.06, late
        over = True
        await asyncio.gather(*others)


async def test_a_blocked_loop_while_the_route_and_the_connection_are_made() -> None:
    with broker_elsewhere(delay=0.05) as server:
        async with Producer("group", namesrv=server.namesrv, timeout=0.6) as sender:
            sends = [asyncio.ensure_future(sender.send(message(), key=key)) for key in (None, 1, None, 1)]
            await asyncio.sleep(0.01)
            time.sleep(0.4)
            results = await asyncio.gather(*sends)
            assert {result.attempts for result in results} == {1}


async def test_many_short_blocks() -> None:
    with broker_elsewhere() as server:
        async with Producer("group", namesrv=server.namesrv, timeout=0.2) as sender:
            for _ in range(8):
                send = asyncio.ensure_future(sender.send(message()))
                await asyncio.sleep(0)
                time.sleep(0.05)
                await send
