"""One-way sends on a stock broker, which drops without a word what waited 200 ms in its queue; the bound on unfinished sends."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from rmq_async import Admin, BackpressureError, Message, Producer, run
from rmq_async.producer.oneway.pacing import OnewayPacing
from rmq_async.testing.cluster import RealCluster
from rmq_async.transport import RequestTable

from ..support.lateness import Lateness
from .accounting import read_all, stored_count
from .conftest import started

LATE, MACHINE = 0.05, 0.2
"""Seconds after its deadline by which a call has ended, and more of them where a busy machine needs them."""

PATIENCE = 0.2
"""Seconds a stock broker lets a message wait in its queue (``waitTimeMillsInSendQueue``)."""


class Frames:
    """Counts the sends that leave: one-way frames and ordinary requests, and how long the latter took at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.oneway = self.ordinary = 0
        self.slowest = 0.0
        closed = OnewayPacing.closed
        submit_oneway, submit_plain, start_send = (
            RequestTable.submit_oneway,
            RequestTable.submit_single_oneway,
            RequestTable.start_send,
        )

        def counted_oneway(table: RequestTable, *arguments: Any) -> None:
            self.oneway += 1
            submit_oneway(table, *arguments)

        def counted_plain(table: RequestTable, *arguments: Any) -> None:
            self.oneway += 1
            submit_plain(table, *arguments)

        def counted_send(table: RequestTable, *arguments: Any) -> Any:
            self.ordinary += 1
            return start_send(table, *arguments)

        def timed(pacing: OnewayPacing, answers: int, seconds: float | None) -> None:
            self.slowest = max(self.slowest, seconds or 0.0)
            closed(pacing, answers, seconds)

        monkeypatch.setattr(OnewayPacing, "closed", timed)
        monkeypatch.setattr(RequestTable, "submit_oneway", counted_oneway)
        monkeypatch.setattr(RequestTable, "submit_single_oneway", counted_plain)
        monkeypatch.setattr(RequestTable, "start_send", counted_send)


async def new_topic(cluster: RealCluster, broker: str | None = None) -> str:
    topic = f"oneway-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, broker=broker)
    return topic


async def standing_count(cluster: RealCluster, topic: str) -> int:
    """What is stored, once the number has stood still for half a second."""
    before, count = -1, await stored_count(cluster.namesrv, topic)
    async with asyncio.timeout(120):
        while count != before:
            await asyncio.sleep(0.5)
            before, count = count, await stored_count(cluster.namesrv, topic)
    return count


class BrokerPausedError(Exception):
    """The machine kept the broker from working for about as long as it lets messages wait: what it dropped then proves nothing."""


async def flood(cluster: RealCluster, frames: Frames) -> None:
    topic = await new_topic(cluster)
    sent = 0
    async with Producer("oneway", namesrv=cluster.namesrv) as producer:
        for count in (200, 100_000):
            began = monotonic()
            for _ in range(count):
                await producer.send_oneway(Message(topic, b"%012d" % sent + b"." * 116))
                sent += 1
            await producer.flush()
            seconds = monotonic() - began
            stored = await standing_count(cluster, topic)
            print(
                f"{count} one-way messages in {seconds:.3f} s ({count / seconds:.0f}/s); so far sent {sent}, stored {stored}, "
                f"{frames.oneway} one-way frames and {frames.ordinary} ordinary requests, slowest window {frames.slowest:.3f} s"
            )
            few = count < 512 or 0 < frames.ordinary <= 16 + sent / 512
            if frames.slowest > 0.75 * PATIENCE and not (stored == sent and few):
                raise BrokerPausedError
            assert stored == sent
            assert frames.oneway + frames.ordinary == sent
            assert few
    assert len({message.body for message in await read_all(cluster.namesrv, topic)}) == sent


@pytest.mark.deep
def test_a_cold_stock_broker_stores_every_oneway_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has served nothing before, so that its code is cold and slowest. Where a busy machine stops it, once more."""
    for _ in range(5):
        with contextmanager(started)(RealCluster(profile="stock")) as cluster, monkeypatch.context() as patch:
            try:
                run(flood(cluster, Frames(patch)))
            except BrokerPausedError:
                continue
            return
    pytest.skip("void: on this machine the broker was stopped for too long each time")


def test_the_ninth_of_eight_unanswered_sends_waits_and_is_refused_at_its_deadline(two_brokers: RealCluster) -> None:
    async def main() -> None:
        broker = two_brokers.brokers[0]
        topic = await new_topic(two_brokers, broker.name)
        async with Producer("bounded", namesrv=two_brokers.namesrv, async_limit=8, timeout=5.0) as producer:
            await producer.send(Message(topic, b"warm"))
            broker.pause()
            try:
                futures = [await producer.send_async(Message(topic, b"%d" % number)) for number in range(8)]
                async with Lateness() as late:
                    began = monotonic()
                    with pytest.raises(BackpressureError, match="8 of 8 messages") as refused:
                        await producer.send_async(Message(topic, b"ninth"), timeout=0.5)
                    ended = monotonic()
                ninth = asyncio.ensure_future(producer.send_async(Message(topic, b"the next ninth")))
                await asyncio.sleep(0.1)
                assert not ninth.done()
                assert not any(future.done() for future in futures)
            finally:
                broker.resume()
            results = [*await asyncio.gather(*futures), await (await ninth)]
            print(f"refused after {ended - began:.3f} s of 0.5: {refused.value}")
        assert ended - began >= 0.5
        assert late.own(began, ended) <= 0.5 + LATE + MACHINE
        assert not refused.value.maybe_stored
        assert {result.attempts for result in results} == {1}
        assert await standing_count(two_brokers, topic) == 10

    run(main())


def test_oneway_sends_wait_for_a_broker_that_does_not_keep_up(
    two_brokers: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        broker = two_brokers.brokers[0]
        topic = await new_topic(two_brokers, broker.name)
        async with Producer("paced", namesrv=two_brokers.namesrv, oneway_window=256) as producer:
            sent = 0

            async def some(count: int) -> None:
                nonlocal sent
                for _ in range(count):
                    await producer.send_oneway(Message(topic, b"%d" % sent), timeout=0.5)
                    sent += 1

            await some(2000)
            await producer.flush()
            frames = Frames(monkeypatch)
            before = sent
            broker.pause()
            try:
                with pytest.raises(BackpressureError, match="did not respond to"):
                    await some(5000)
            finally:
                broker.resume()
            await producer.flush()
            print(f"{sent - before} one-way messages to a paused broker, {frames.ordinary} of them as ordinary requests")
            assert frames.ordinary == 2
            assert sent - before < 3 * 256
            await some(2000)
            await producer.flush()
        assert await standing_count(two_brokers, topic) == sent

    run(main())
