"""One-way sends: credits until the kernel has the bytes, windows that pace, errors that are raised."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from rmq_async import BackpressureError, Producer, RocketMQError, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.producer.oneway.pacing import FIRST_WINDOW, SHARE, OnewayPacing, pacing_of
from rmq_async.transport import RequestTable
from rmq_async.transport.send_window import LONG

from ..support.fakes import TOPIC, Cluster, cut, late, refuse, silence, stored
from ..support.instances import client_of
from .support import message, messages, outcomes, producer, spin, timed, until

pytestmark = pytest.mark.virtual_time


def ordinary(cluster: Cluster) -> list[int]:
    """Places of the frames that want an answer."""
    return [index for index, sent in enumerate(cluster.sends) if not sent.oneway]


async def full_windows(sender: Producer, *peers: Any) -> None:
    """Connects, and lets windows have their full size at once: those of a new connection begin small."""
    client = await client_of(sender)
    for peer in peers:
        connection = await client.pool.connect(peer.address, 1.0)
        pacing_of(connection).size = size = sender.config.oneway_window
        connection.requests.window.size = connection.requests.limit = SHARE * size


async def sent_by(cluster: Cluster, count: int) -> None:
    await until(lambda: len(cluster.sends) >= count)
    assert len(cluster.sends) == count


async def test_a_frame_without_an_answer(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        result = await sender.send_oneway(message(b"x", tags="t", keys=["k"]))  # type: ignore[func-returns-value]
        await sent_by(cluster, 1)
    assert result is None
    (sent,) = cluster.sends
    assert (sent.oneway, sent.code, sent.body) == (True, 310, b"x")
    assert {"TAGS": "t", "KEYS": "k"}.items() <= sent.properties.items()
    assert len(sent.unique_id) == 32


async def test_windows_begin_small_and_double_up_to_the_setting(cluster: Cluster) -> None:
    async with producer(cluster, oneway_window=256) as sender:
        for item in messages(2000):
            await sender.send_oneway(item)
        await sent_by(cluster, 2000)
    places = [-1, *ordinary(cluster)]
    sizes = [after - before for before, after in pairwise(places)]
    assert sizes[0] == FIRST_WINDOW == 2
    assert max(sizes) == 256
    assert sizes[:-1] == sorted(sizes[:-1])
    assert cluster.a.bodies == [item.body for item in messages(2000)]


@pytest.mark.parametrize("fast", [True, False])
async def test_producers_of_one_connection_have_windows_of_their_own(cluster: Cluster, fast: bool) -> None:
    options: dict[str, Any] = {} if fast else {"key": "k"}
    async with producer(cluster, oneway_window=256) as large, producer(cluster, group="other", oneway_window=5) as small:
        await full_windows(large, cluster.a)
        for sender, window in ((large, 256), (small, 5), (large, 256)):
            before = len(cluster.sends)
            for item in messages(2 * window):
                await sender.send_oneway(item, **options)
            await sent_by(cluster, before + 2 * window)
            assert [place - before + 1 for place in ordinary(cluster) if place >= before] == [window, 2 * window]
            await spin()


@pytest.mark.parametrize(
    ("size", "limit", "seconds", "following"),
    [
        (2, 64, 0.0, 4),
        (24, 72, 0.0, 32),  # the window of the connection has grown by 24
        (24, 72, None, 24),
        (256, 384, None, 128),  # which other sends have narrowed meanwhile
        (256, 8192, 0.0, 512),
        (256, 768, LONG + 0.02, 128),
        (2, 64, LONG + 0.02, 4),
    ],
)
async def test_answers_lead_the_size_of_windows(size: int, limit: int, seconds: float | None, following: int) -> None:
    requests = RequestTable("broker:1", 10.0, lost=lambda written, code: RocketMQError(), die=lambda: None, unread=lambda: 0)
    requests.deadlines.stop()
    pacing = OnewayPacing(requests)
    requests.adjust(0, 0.001)
    pacing.size, requests.window.size, requests.limit = size, limit, limit
    pacing.opened()
    pacing.closed(size, seconds)
    assert (pacing.size, pacing.open) == (following, 0)


async def test_busy_broker_gets_the_smallest_windows(cluster: Cluster) -> None:
    cluster.a.answer = refuse(2, "[TIMEOUT_CLEAN_QUEUE]broker busy")
    async with producer(cluster, oneway_window=256) as sender:
        await full_windows(sender, cluster.a)
        for item in messages(256):
            await sender.send_oneway(item)
        await sender.flush()
        for item in messages(4):
            await sender.send_oneway(item)
        await sender.flush()
    assert ordinary(cluster) == [255, 257, 259]


async def test_the_message_of_a_window_is_the_same_message(cluster: Cluster) -> None:
    async with producer(cluster, oneway_window=1) as sender:
        await sender.send_oneway(message(b"x", tags="t"))
        await sender.flush()
    (sent,) = cluster.sends
    assert (sent.oneway, sent.code, sent.body, sent.properties["TAGS"]) == (False, 310, b"x", "t")


async def test_a_third_window_waits_for_an_answer(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster, oneway_window=10, stop_timeout=0) as sender:
        await full_windows(sender, cluster.a)
        with timed(most=0.1):
            for item in messages(29):
                await sender.send_oneway(item)
        await sent_by(cluster, 29)
        assert ordinary(cluster) == [9, 19]
        with timed(0.1, 0.1), pytest.raises(BackpressureError, match=cluster.a.address):
            await sender.send_oneway(message(b"third"), timeout=0.1)
        assert sender.health().unanswered == 2
        waiting = [asyncio.ensure_future(sender.send_oneway(item)) for item in messages(5)]
        await asyncio.sleep(0.02)
        assert len(cluster.sends) == 29
        stored(cluster.a.open_links[0], cluster.sends[9])
        await asyncio.gather(*waiting)
        await sent_by(cluster, 34)
        assert ordinary(cluster) == [9, 19, 29]


@pytest.mark.parametrize("code", [1, 13])
async def test_any_answer_closes_a_window_and_errors_are_counted(
    cluster: Cluster, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cluster.a.answer = refuse(code, "no\nway")
    async with producer(cluster, oneway_window=10) as sender:
        await full_windows(sender, cluster.a)
        for item in messages(100):
            await sender.send_oneway(item)
        await sender.flush()
        pacing = (await client_of(sender)).pool.open[cluster.a.address].attributes[OnewayPacing]
        assert isinstance(pacing, OnewayPacing)
        assert pacing.errors == 10
    assert len(cluster.sends) == 100, "nothing is sent again"
    reported = [record.getMessage() for record in caplog.records]
    assert [text.split(": ")[1].split()[0] for text in reported] == ["1", "2", "4", "8"]
    assert all(f"code {code}" in text and text.isprintable() for text in reported)


async def test_a_window_that_is_not_answered_closes_after_request_timeout(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster, oneway_window=2, request_timeout=0.2) as sender:
        await sender.fetch_publish_queues(TOPIC)
        await full_windows(sender, cluster.a)
        for item in messages(5):
            await sender.send_oneway(item)
        with timed(0.15, 0.2):
            await sender.send_oneway(message(), timeout=1.0)
        await sender.flush()


async def test_without_windows(cluster: Cluster) -> None:
    async with producer(cluster, oneway_window=0) as sender:
        for item in messages(3000):
            await sender.send_oneway(item)
        await sender.flush()
        await sent_by(cluster, 3000)
    assert not ordinary(cluster)


async def test_windows_are_counted_over_all_producers_on_a_connection(cluster: Cluster) -> None:
    cluster.a.answer = silence
    options = {"oneway_window": 10, "stop_timeout": 0}
    async with producer(cluster, "one", **options) as one, producer(cluster, "two", **options) as two:
        await full_windows(one, cluster.a)
        for item in messages(29):
            await (one if int(item.body) % 2 else two).send_oneway(item)
        for sender in (one, two):
            with pytest.raises(BackpressureError):
                await sender.send_oneway(message(), timeout=0.02)
    assert len(cluster.sends) == 29
    assert len(ordinary(cluster)) == 2


async def test_each_broker_has_windows_of_its_own(pair: Cluster) -> None:
    pair.a.answer = silence
    async with producer(pair, oneway_window=10, stop_timeout=0) as sender:
        await full_windows(sender, pair.a)
        for item in messages(29):
            await sender.send_oneway(item, queue=pair.queue(pair.a))
        for item in messages(100):
            await sender.send_oneway(item, queue=pair.queue(pair.b))
        await until(lambda: len(pair.b.sends) == 100)


async def test_a_credit_is_held_until_the_kernel_has_the_last_byte() -> None:
    async with EmbeddedRocketMQ() as server:
        options = {"oneway_limit": 40, "compress_over": 1 << 30, "oneway_window": 0}
        async with Producer("group", namesrv=server.namesrv, **options) as sender:  # type: ignore[arg-type]
            await sender.send(message())
            server.stall()
            sent = 0
            with pytest.raises(BackpressureError, match=f"40 of 40 messages, {40 * 400_000} of"):
                for _ in range(200):
                    await sender.send_oneway(message(b"x" * 400_000), timeout=0.1)
                    sent += 1
            assert sent >= 40
            assert sender.health().unanswered == 40
            server.resume()
            await sender.flush(5)
            assert sender.health().unanswered == 0
        assert len(server.messages(TOPIC)) == sent + 1


async def test_credits_come_back_when_the_connection_breaks() -> None:
    server = EmbeddedRocketMQ()
    await server.start()
    async with Producer("group", namesrv=server.namesrv, compress_over=1 << 30, oneway_window=0) as sender:
        await sender.send(message())
        server.stall()
        for _ in range(30):
            await sender.send_oneway(message(b"x" * 400_000))
        assert sender.health().unanswered > 0
        server.drop_connections()
        await sender.flush(2)
        server.resume()
    await server.stop()


async def test_a_lost_connection_closes_its_windows(cluster: Cluster) -> None:
    cluster.a.answer = cut
    async with producer(cluster, oneway_window=10) as sender:
        for item in messages(95):
            with_connection = await outcomes(sender.send_oneway(item))
            assert with_connection == [None]
        await sender.flush(2)
        assert sender.health().unanswered == 0


async def test_connecting_may_fail_and_is_raised(cluster: Cluster) -> None:
    await cluster.a.stop()
    async with producer(cluster) as sender:
        with timed(most=0.1), pytest.raises(errors.ConnectError, match=cluster.a.address):
            await sender.send_oneway(message())
        await cluster.a.start()
        await sender.send_oneway(message(b"again"))
        await sent_by(cluster, 1)
    assert cluster.a.bodies == [b"again"]


async def test_no_route_is_raised(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        with pytest.raises(errors.TopicNotFoundError):
            await sender.send_oneway(message(topic="NOWHERE"))
        assert sender.health().unanswered == 0


async def test_cancelling_one_that_waits_for_its_window(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    async with producer(cluster, oneway_window=10) as sender:
        await full_windows(sender, cluster.a)
        for item in messages(29):
            await sender.send_oneway(item)
        waiting = [asyncio.ensure_future(sender.send_oneway(message(b"waits"))) for _ in range(10)]
        await spin(3)
        for wait in waiting[::2]:
            wait.cancel()
        kinds = [type(result) for result in await outcomes(*waiting)]
        assert kinds == [asyncio.CancelledError, type(None)] * 5
        await sender.flush()
    assert len(cluster.sends) == 34


async def third_window(sender: Producer, cluster: Cluster) -> asyncio.Future[Any]:
    """Starts ``sender``, fills its windows and returns a send that waits for room in the third."""
    await sender.start()
    await full_windows(sender, cluster.a)
    for item in messages(29):
        await sender.send_oneway(item)
    waiting = asyncio.ensure_future(sender.send_oneway(message()))
    await spin(2)
    return waiting


async def test_stop_waits_for_the_answers_of_windows_and_ends_who_waits(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    sender = producer(cluster, oneway_window=10)
    waiting = await third_window(sender, cluster)
    with timed(0.18, 0.2):  # the one that waited is the third window's
        await sender.stop()
    assert (await outcomes(waiting))[0] is None
    assert len(cluster.sends) == 30

    cluster.a.answer = silence
    cluster.a.sends.clear()
    waiting = await third_window(sender, cluster)
    with timed(0.05, 0.1):
        await sender.stop(0.05)
    assert isinstance((await outcomes(waiting))[0], errors.ClientStateError)


async def test_thirty_thousand_arrive_and_few_of_them_are_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    start_send = RequestTable.start_send

    def counting(self: RequestTable, *args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return start_send(self, *args, **options)

    monkeypatch.setattr(RequestTable, "start_send", counting)
    async with EmbeddedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv) as sender:
            item = message(b"0123456789")
            for _ in range(30_000):
                await sender.send_oneway(item)
            await sender.flush()
            await until(lambda: server.requests[310] == 30_000, 20)
        assert server.requests[310] == 30_000
    assert 25 <= asked <= 30_000 / 200, "more of them where a busy machine ends windows early"
