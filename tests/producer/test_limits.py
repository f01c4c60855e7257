"""How many messages and bytes a producer accepts before they are answered."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import BackpressureError, InvalidMessageError, Message, Producer, errors
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import TOPIC, Cluster, Link, Sent, late, refuse, silence, stored
from .support import Calls, Send, every_way, message, messages, outcomes, producer, spin, timed, until

pytestmark = pytest.mark.virtual_time


async def test_the_ninth_of_eight_waits_until_its_deadline(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster, async_limit=8, timeout=5.0, stop_timeout=0) as sender:
        futures = [await sender.send_async(item) for item in messages(8)]
        await until(lambda: len(cluster.sends) == 8)
        for send in (sender.send, sender.send_async):
            with timed(0.2, 0.2), pytest.raises(BackpressureError, match="8 of 8"):
                await send(message(), timeout=0.2)
        with timed(0.1, 0.1), pytest.raises(BackpressureError):
            await sender.send_batch([message()], timeout=0.1)
        assert len(cluster.sends) == 8
    assert {type(error) for error in await outcomes(*futures)} == {errors.ClientStateError}


async def test_the_ninth_of_eight_goes_when_one_is_answered(cluster: Cluster) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster, async_limit=8) as sender:
        await sender.send(message(b"warm"))
        with timed(0.15, 0.15):
            await asyncio.gather(*[sender.send(item) for item in messages(24)])
    assert cluster.a.bodies[1:] == [item.body for item in messages(24)]


async def test_first_come_first_served(cluster: Cluster) -> None:
    async with producer(cluster, async_limit=3) as sender:
        await sender.send(message(b"warm"))
        await asyncio.gather(*[sender.send(item) for item in messages(500)])
    assert cluster.a.bodies[1:] == [item.body for item in messages(500)]


async def test_bytes_are_counted_as_they_are_given(cluster: Cluster) -> None:
    """Compression does not make room for more."""
    cluster.a.answer = silence
    async with producer(cluster, pending_bytes_limit=100_000, stop_timeout=0) as sender:
        futures = [await sender.send_async(message(b"x" * 30_000)) for _ in range(3)]
        with timed(0.05, 0.05), pytest.raises(BackpressureError, match="90000 of 100000 bytes"):
            await sender.send_async(message(b"x" * 30_000), timeout=0.05)
        futures.append(await sender.send_async(message(b"x" * 10_000)))
        await until(lambda: len(cluster.sends) == 4)
        assert max(len(sent.body) for sent in cluster.sends) < 1000
    await outcomes(*futures)


async def test_a_body_above_the_whole_limit_passes_alone(cluster: Cluster) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster, pending_bytes_limit=1000, compress_over=1 << 30) as sender:
        small, large = asyncio.ensure_future(sender.send(message())), asyncio.ensure_future(sender.send(message(b"x" * 5000)))
        await spin(2)
        after = asyncio.ensure_future(sender.send(message(b"after")))
        with timed(0.15, 0.15):
            await asyncio.gather(small, large, after)
    assert [len(body) for body in cluster.a.bodies] == [4, 5000, 5]


async def test_a_batch_counts_its_messages(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster, async_limit=10, stop_timeout=0) as sender:
        batch = asyncio.ensure_future(sender.send_batch(messages(8)))
        await until(lambda: cluster.sends)
        assert sender.health().unanswered == 8
        futures = [await sender.send_async(message()) for _ in range(2)]
        with pytest.raises(BackpressureError, match=r"10 of 10 messages, 56 of \d+ bytes are unfinished"):
            await sender.send_async(message(), timeout=0.02)
        assert await outcomes(sender.send_batch(messages(3), timeout=0.02)) != []
    await outcomes(batch, *futures)


async def test_a_batch_of_more_than_the_limit_goes_alone(cluster: Cluster) -> None:
    async with producer(cluster, async_limit=4) as sender:
        batch, *singles = await asyncio.gather(sender.send_batch(messages(50)), *[sender.send(item) for item in messages(9)])
    assert len(batch.msg_ids) == 50
    assert len(singles) == 9


@every_way(1)
async def test_credits_return_after_every_outcome(cluster: Cluster, send: Send) -> None:
    async with producer(cluster, async_limit=1, timeout=1.0) as sender:
        await send(sender)
        assert sender.health().unanswered == 0
        cluster.a.answer = refuse(13)
        with pytest.raises(errors.MessageIllegalError):
            await send(sender)
        assert sender.health().unanswered == 0
        cluster.a.answer = refuse(1)
        with pytest.raises(errors.SendError):
            await send(sender)
        assert sender.health().unanswered == 0
        cluster.a.answer = silence
        with pytest.raises(errors.RequestTimeoutError):
            await send(sender, timeout=0.05)
        assert sender.health().unanswered == 0
        with pytest.raises(errors.TopicNotFoundError):
            await send(sender, topic="NOWHERE")
        assert sender.health().unanswered == 0
        call = asyncio.ensure_future(send(sender))
        sent = len(cluster.sends)
        await until(lambda: len(cluster.sends) > sent)
        assert sender.health().unanswered == 1
        call.cancel()
        await outcomes(call)
        assert sender.health().unanswered == 0
        with pytest.raises(errors.BrokerNotFoundError):
            await sender.send(message(), queue=cluster.queue()._replace(broker_name="missing"))
        assert sender.health().unanswered == 0
        call = asyncio.ensure_future(send(sender))
        await spin(3)
        await sender.stop(0.0)
        assert isinstance((await outcomes(call))[0], errors.ClientStateError)


async def test_credits_return_once_if_a_message_to_a_retry_topic_is_refused() -> None:
    """It has a sharding key, which such a topic does not use: the call leaves the short way and is refused after that."""
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv, async_limit=1) as sender:
        await sender.send(Message("%RETRY%g", b"x", sharding_key="k"))
        for _ in range(3):
            with pytest.raises(InvalidMessageError):
                await sender.send(Message("%RETRY%g", b"x", sharding_key="k", properties={"p": "x" * 40_000}))
        assert sender.health().unanswered == 0


async def test_credits_return_if_the_properties_are_too_large(cluster: Cluster) -> None:
    huge = message(properties={"p": "x" * 40_000})
    async with producer(cluster, async_limit=1, oneway_limit=1) as sender:
        for send in (sender.send, sender.send_async, sender.send_oneway):
            await sender.send(message())  # else the topic is not known, and no credit is taken so early
            with pytest.raises(InvalidMessageError):
                await send(huge)
            assert sender.health().unanswered == 0


async def test_twenty_thousand_at_once_are_all_acknowledged() -> None:
    calls = Calls()
    async with EmbeddedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv, timeout=20.0) as sender:
            futures = [await sender.send_async(item, **calls.both) for item in messages(20_000)]
            results = await asyncio.gather(*futures)
        stored_bodies = sorted(item.body for item in server.messages(TOPIC))
    assert not calls.errors
    assert sorted(map(id, calls.results)) == sorted(map(id, results))
    assert len({result.msg_id for result in results}) == 20_000
    assert stored_bodies == [item.body for item in messages(20_000)]


@pytest.mark.usefixtures("wide_window")
async def test_no_more_than_the_window_is_on_the_wire(cluster: Cluster) -> None:
    unanswered, most = 0, 0

    def count(link: Link, sent: Sent) -> None:
        nonlocal unanswered, most
        unanswered += 1
        most = max(most, unanswered)
        asyncio.get_running_loop().call_later(0.001, answer, link, sent)

    def answer(link: Link, sent: Sent) -> None:
        nonlocal unanswered
        unanswered -= 1
        stored(link, sent)

    cluster.a.answer = count
    async with producer(cluster, broker_window=200, timeout=20.0) as sender:
        futures = [await sender.send_async(item) for item in messages(1500)]
        await asyncio.gather(*futures, *[sender.send(item) for item in messages(1500)])
    assert len(cluster.sends) == 3000
    assert 100 < most <= 200


async def test_the_window_of_a_broker_is_counted_over_all_producers(cluster: Cluster) -> None:
    cluster.a.answer = silence
    options = {"broker_window": 5, "stop_timeout": 0}
    async with producer(cluster, "one", **options) as one, producer(cluster, "two", **options) as two:
        futures = [await sender.send_async(item) for item in messages(10) for sender in (one, two)]
        await until(lambda: len(cluster.sends) == 5)
        await asyncio.sleep(0.02)
        assert len(cluster.sends) == 5
    assert len(await outcomes(*futures)) == 20


async def test_what_waits_in_the_client_may_be_late_and_was_never_sent(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster, broker_window=2, stop_timeout=0) as sender:
        await sender.fetch_publish_queues(TOPIC)
        first, last = messages(2), messages(3)  # those that wait have less time: none leaves in the moment the first are over
        sends = [sender.send(item, timeout=0.1) for item in first] + [sender.send(item, timeout=0.08) for item in last]
        results = await outcomes(*sends)
        assert [type(error) for error in results] == [errors.RequestTimeoutError] * 5
        assert [error.maybe_stored for error in results] == [True, True, False, False, False]
    assert len(cluster.sends) == 2


async def test_credits_of_awaited_and_deferred_sends_are_the_same(cluster: Cluster) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster, async_limit=2) as sender:
        first = asyncio.ensure_future(sender.send(message()))
        second = await sender.send_async(message())
        with timed(0.03, 0.06):
            third = await sender.send_async(Message(TOPIC, b"third"))
        await asyncio.gather(first, second, third)
