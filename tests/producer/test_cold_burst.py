"""Thousands of first sends at once: they share one look-up and one connect, and cost little while they wait for these."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rmq_async import Producer, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import ScriptedPeer, routes_to

from ..support.calls import lines_counted
from ..support.fakes import TOPIC
from ..support.virtual_time import BLACK_HOLE
from .support import message, messages, outcomes, until

pytestmark = pytest.mark.virtual_time


async def test_waiting_sends_take_no_task_each() -> None:
    """To a broker that drops SYNs: no Task for any of them, also where the connect has failed and is tried again."""
    async with (
        ScriptedPeer(aside=routes_to(BLACK_HOLE)) as names,
        Producer("group", namesrv=names.address, timeout=0.9, connect_timeout=0.3, stop_timeout=0) as producer,
    ):
        before = len(asyncio.all_tasks())
        sends = [asyncio.ensure_future(producer.send(item)) for item in messages(500)]
        most = 0
        while not all(send.done() for send in sends):
            most = max(most, len(asyncio.all_tasks()))
            await asyncio.sleep(0.05)
        assert most < before + 500 + 20
        results = await outcomes(*sends)
        assert {type(result) for result in results} <= {errors.RequestTimeoutError, errors.ConnectError, errors.SendError}
        assert not any(result.maybe_stored for result in results)


async def test_cost_of_waiting_among_many() -> None:
    """Lines that a send runs that waits for a connect until its time is over: among 2,000 as many as among 100."""

    async def cost(number: int) -> float:
        async with (
            ScriptedPeer(aside=routes_to(BLACK_HOLE)) as names,
            Producer("group", namesrv=names.address, timeout=0.3, stop_timeout=0) as producer,
        ):
            with lines_counted() as lines:
                await outcomes(*[producer.send(item) for item in messages(number)])
            return lines.count / number

    few = await cost(100)
    assert few > 10
    assert await cost(2000) < 1.2 * few


async def test_first_sends_all_arrive() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv, timeout=30) as producer:
            results = await asyncio.gather(*[producer.send(item) for item in messages(5000)])
        assert {result.attempts for result in results} == {1}
        assert len(server.messages(TOPIC)) == 5000


async def test_stop_ends_all_that_wait() -> None:
    """In the look-up of the route, in the connect, and each with an error of its own."""
    async with ScriptedPeer(aside=routes_to(BLACK_HOLE)) as names:
        producer = Producer("group", namesrv=names.address, timeout=30, stop_timeout=0)
        await producer.start()
        sends = [asyncio.ensure_future(producer.send(item)) for item in messages(300)]
        await until(lambda: names.answered_aside[105])
        sends += [asyncio.ensure_future(producer.send(item)) for item in messages(300, topic="Other")]
        await asyncio.sleep(0)
        began = time.monotonic()
        await producer.stop()
        results = await outcomes(*sends)
        assert time.monotonic() - began < 1.0
        kinds: Counter[Any] = Counter(type(result) for result in results)
        assert kinds == {errors.ClientStateError: 600}
        assert len({id(result) for result in results}) == 600


async def test_cancelled_first_sends_leave_others() -> None:
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv, timeout=30) as producer:
        sends = [asyncio.ensure_future(producer.send(message(b"%d" % number))) for number in range(2000)]
        await asyncio.sleep(0)
        for send in sends[::2]:
            send.cancel()
        results = await outcomes(*sends)
        assert {type(result) for result in results[::2]} == {asyncio.CancelledError}
        assert {result.attempts for result in results[1::2]} == {1}
        assert sorted(int(each.body) for each in server.messages(TOPIC)) == [*range(1, 2000, 2)]


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_late_connect_is_explained(uncollected: None) -> None:
    """A call whose time is over before it has a connection: its error has all that one of several attempts has, and no cycle."""
    async with (
        ScriptedPeer(aside=routes_to(BLACK_HOLE)) as names,
        Producer("group", namesrv=names.address, timeout=0.2, stop_timeout=0) as producer,
    ):
        results = await outcomes(*[producer.send(item) for item in messages(300)])
        assert {type(result) for result in results} == {errors.RequestTimeoutError}
        assert {(result.broker, result.address, result.maybe_stored) for result in results} == {("broker-a", BLACK_HOLE, False)}
        assert len({id(result) for result in results}) == 300
        assert f"send to topic {TOPIC} failed after " in str(results[0])
        assert f"no connection to {BLACK_HOLE}" in str(results[0])
        kept = [weakref.ref(result) for result in results]
        del results
        await asyncio.sleep(0)
        assert sum(each() is not None for each in kept) == 0
