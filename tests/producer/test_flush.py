"""``flush``: everything accepted so far is answered or failed, whether or not more is accepted meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import errors

from ..support.fakes import Cluster, Link, Sent, late, refuse, silence, stored
from .support import message, messages, outcomes, producer, spin, timed, until

pytestmark = pytest.mark.virtual_time


async def test_with_nothing_under_way(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        with timed(most=0.01):
            await sender.flush()
            await sender.flush(0.001)


async def test_it_waits_for_every_kind_of_send(cluster: Cluster) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster, oneway_window=1) as sender:
        sends = [asyncio.ensure_future(sender.send(message())), asyncio.ensure_future(sender.send_batch(messages(2)))]
        future = await sender.send_async(message())
        await sender.send_oneway(message())
        await spin(3)
        await sender.flush()
        assert future.done()
        assert sender.health().unanswered == 0
        await asyncio.gather(*sends)


async def test_failed_sends_are_finished_too(cluster: Cluster) -> None:
    cluster.a.answer = refuse(13)
    async with producer(cluster) as sender:
        future = await sender.send_async(message())
        await sender.flush()
        await spin(2)
        assert isinstance((await outcomes(future))[0], errors.MessageIllegalError)


async def test_it_ends_while_others_go_on_sending(cluster: Cluster) -> None:
    cluster.a.answer = late(0.03)
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while True:
            await sender.send_async(message())
            await sender.send_oneway(message())
            sent += 1
            await asyncio.sleep(0.001)

    async with producer(cluster, oneway_window=20) as sender:
        pouring = [asyncio.ensure_future(pour()) for _ in range(3)]
        await until(lambda: sent > 50)
        before = await sender.send_async(message(b"before"))
        with timed(0.02, 0.06):
            await sender.flush()
        assert before.done()
        passed, sent = sent, 0
        await until(lambda: sent)
        assert passed > 50
        for task in pouring:
            task.cancel()
        await outcomes(*pouring)


async def test_what_comes_later_is_not_waited_for(cluster: Cluster) -> None:
    def by_body(link: Link, sent: Sent) -> None:
        (late(0.05) if sent.body == b"early" else silence)(link, sent)

    cluster.a.answer = by_body
    async with producer(cluster, oneway_window=1, stop_timeout=0) as sender:
        early = await sender.send_async(message(b"early"))
        await sender.send_oneway(message(b"early"))
        flushing = asyncio.ensure_future(sender.flush())
        await spin()
        late_ones = [await sender.send_async(message(b"late"))]
        await sender.send_oneway(message(b"late"))
        with timed(0.03, 0.05):
            await flushing
        assert early.done()
        assert not late_ones[0].done()
    await outcomes(*late_ones)


async def test_several_flushes_at_once(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster) as sender:
        futures, flushes = [], []
        for item in messages(5):
            futures.append(await sender.send_async(item))
            flushes.append(asyncio.ensure_future(sender.flush()))
            await spin()
        await until(lambda: len(cluster.sends) == 5)
        for count, sent in enumerate(sorted(cluster.sends, key=lambda sent: sent.body), 1):
            stored(cluster.a.open_links[0], sent)
            await until(futures[count - 1].done)
            await spin(5)
            assert [flush.done() for flush in flushes] == [True] * count + [False] * (5 - count)


async def test_its_own_timeout(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster, stop_timeout=0) as sender:
        futures = [await sender.send_async(item) for item in messages(3)]
        with timed(0.1, 0.1), pytest.raises(errors.RequestTimeoutError, match="3 messages") as caught:
            await sender.flush(0.1)
        assert isinstance(caught.value, TimeoutError)
        assert not any(future.done() for future in futures)
    await outcomes(*futures)


async def test_cancelling_it_harms_no_other_call(cluster: Cluster) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster) as sender:
        future = await sender.send_async(message())
        flushes = [asyncio.ensure_future(sender.flush()) for _ in range(3)]
        await spin(2)
        flushes[1].cancel()
        assert [type(result) for result in await outcomes(*flushes)] == [type(None), asyncio.CancelledError, type(None)]
        assert future.done()
