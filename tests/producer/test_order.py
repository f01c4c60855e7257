"""Sends with a queue, a selector or a key: one queue, one attempt, and frames leave in the order of the calls."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from rmq_async import Message, MessageQueue, Producer, errors
from rmq_async.producer.admission import ordering as order
from rmq_async.producer.oneway.pacing import pacing_of
from rmq_async.transport import Connection

from ..support.fakes import TOPIC, Broker, Cluster, each, late, refuse, silence, stored
from ..support.instances import client_of
from .support import core_of, message, messages, outcomes, producer, seeded, spin, timed, until

pytestmark = pytest.mark.virtual_time

Way = Callable[[Producer, Message], Awaitable[Any]]


async def by_queue(sender: Producer, item: Message) -> Any:
    return await sender.send(item, queue=MessageQueue(TOPIC, "a", 1))


async def by_key(sender: Producer, item: Message) -> Any:
    return await sender.send(item, key="order-12345")


async def by_selector(sender: Producer, item: Message) -> Any:
    return await sender.send(item, selector=lambda queues, _message, _key: queues[0])


async def by_slow_selector(sender: Producer, item: Message) -> Any:
    async def choose(queues: Sequence[MessageQueue], chosen_for: Message, key: Any) -> MessageQueue:
        await asyncio.sleep(0.0005 if chosen_for.body.endswith(b"0") else 0)
        return queues[0]

    return await sender.send(item, selector=choose)


async def by_sharding_key(sender: Producer, item: Message) -> Any:
    return await sender.send(Message(TOPIC, item.body, sharding_key="order-12345"))


async def asynchronously(sender: Producer, item: Message) -> Any:
    return await (await sender.send_async(item, key="order-12345"))


async def oneway(sender: Producer, item: Message) -> Any:
    return await sender.send_oneway(item, key="order-12345")


async def in_batches(sender: Producer, item: Message) -> Any:
    return await sender.send_batch([item], queue=MessageQueue(TOPIC, "a", 1))


async def mixed(sender: Producer, item: Message) -> Any:
    way = (by_key, asynchronously, oneway, by_sharding_key)[int(item.body[:6]) % 4]
    return await way(sender, item)


ways = pytest.mark.parametrize(
    "way", [by_queue, by_key, by_selector, by_slow_selector, by_sharding_key, asynchronously, oneway, in_batches, mixed]
)


def bodies(broker: Broker) -> list[bytes]:
    """Of all messages, in order of arrival."""
    return [body for sent in broker.sends for body in sent.bodies]


@ways
async def test_a_thousand_calls_on_a_cold_topic_leave_in_order(cluster: Cluster, way: Way) -> None:
    """Nothing is there: no route, which a slow name server sends, and no connection."""
    cluster.name_server.delay = 0.05
    items = messages(1000)
    async with producer(cluster, oneway_window=0, timeout=10.0) as sender:
        await asyncio.gather(*[way(sender, item) for item in items])
        await sender.flush()
    await until(lambda: len(bodies(cluster.a)) == 1000)
    assert bodies(cluster.a) == [item.body for item in items]
    assert len(cluster.name_server.asked) == 1
    assert len(cluster.a.links) == 1
    assert len({sent.queue for sent in cluster.sends}) == 1


async def test_order_holds_while_credits_are_waited_for(cluster: Cluster) -> None:
    items = messages(300)
    async with producer(cluster, async_limit=7) as sender:
        await asyncio.gather(*[by_key(sender, item) for item in items])
        assert bodies(cluster.a) == [item.body for item in items]
        cluster.a.sends.clear()
        await asyncio.gather(*[asynchronously(sender, item) for item in items])
    assert bodies(cluster.a) == [item.body for item in items]


async def test_order_holds_while_bodies_are_compressed_off_the_loop(cluster: Cluster) -> None:
    items = [message(b"%03d" % number + b"x" * (300_000 if number % 3 == 0 else 10)) for number in range(30)]
    async with producer(cluster) as sender:
        await sender.send(message())
        cluster.a.sends.clear()
        await asyncio.gather(*[by_key(sender, item) for item in items])
    large = [sent for sent in cluster.sends if sent.sys_flag & 1]
    assert (len(large), max(len(sent.body) for sent in large) < 5000) == (10, True)
    stored = [body for sent in cluster.sends for body in ([zlib.decompress(sent.body)] if sent in large else sent.bodies)]
    assert stored == [item.body for item in items]


async def test_order_holds_when_the_connection_is_made_anew(cluster: Cluster) -> None:
    items = messages(200)
    async with producer(cluster) as sender:
        await by_key(sender, message())
        pool = (await client_of(sender)).pool
        for link in list(cluster.a.open_links):
            link.transport.abort()
        await until(lambda: not pool.get(cluster.a.address))
        cluster.a.sends.clear()
        early = [asyncio.ensure_future(by_key(sender, item)) for item in items[:100]]
        await until(lambda: pool.get(cluster.a.address) is not None)
        later = [asyncio.ensure_future(asynchronously(sender, item)) for item in items[100:]]
        await asyncio.gather(*early, *later)
    assert bodies(cluster.a) == [item.body for item in items]


async def test_a_call_behind_others_ends_by_its_own_deadline(cluster: Cluster) -> None:
    """Also one that arrives just when the turn is being passed on."""
    cluster.name_server.answer = silence
    async with producer(cluster, request_timeout=1.0) as sender:
        first = asyncio.ensure_future(sender.send(message(), key=1, timeout=0.2))
        second = asyncio.ensure_future(sender.send(message(), key=1, timeout=0.7))
        first.add_done_callback(lambda _: late_comers.append(asyncio.ensure_future(sender.send(message(), key=1, timeout=0.1))))
        late_comers: list[asyncio.Future[Any]] = []
        with timed(0.2, 0.2), pytest.raises(errors.NameServerError):
            await first
        await asyncio.sleep(0)
        with timed(0.1, 0.1), pytest.raises(errors.BackpressureError):
            await late_comers[0]
        with timed(0.3, 0.45), pytest.raises(errors.NameServerError):
            await second
    assert not cluster.sends


async def test_a_caller_that_gives_up_is_stepped_over(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.1
    items = messages(100)
    async with producer(cluster) as sender:
        calls = [asyncio.ensure_future(by_key(sender, item)) for item in items]
        await asyncio.sleep(0.02)
        for call in (*calls[1:50:2], calls[99]):
            call.cancel()
        await outcomes(*calls)
    assert bodies(cluster.a) == [item.body for index, item in enumerate(items) if not calls[index].cancelled()]
    assert len(bodies(cluster.a)) == 74


def test_places_left_behind_a_waiting_one_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "LEFT_KEPT", 4, raising=False)
    line = order.Line()
    first = line.join()
    for _ in range(100):
        line.join().leave()
        assert len(line.places) <= 2 * (4 + 1)
    last = line.join()
    assert line.is_first(first)
    first.leave()
    assert line.is_first(last)
    last.leave()
    assert not line.places


async def test_after_any_join_or_leave_it_is_the_turn_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared, step by step, with a plain list."""
    monkeypatch.setattr(order, "LEFT_KEPT", 2, raising=False)
    source = seeded()
    line = order.Line()
    there: list[tuple[order.Place, asyncio.Task[None]]] = []
    for _ in range(600):
        kind = source.choice(["join", "join", "leave", "pass", "storm"])
        if kind == "join":
            place = line.join()
            there.append((place, asyncio.ensure_future(place.turn(time.monotonic() + 60.0))))
        elif there:
            gone = there[:1] if kind == "pass" else source.sample(there, 1 if kind == "leave" else len(there) // 2)
            for place, turn in gone:
                there.remove((place, turn))
                turn.cancel()
                place.leave()
        await spin(4)
        assert [turn.done() for _, turn in there] == [True] * bool(there) + [False] * (len(there) - 1)
        assert len(line.places) <= 2 * (2 + 1 + len(there))
        assert bool(line.places) == bool(there)
    for place, turn in there:
        turn.cancel()
        place.leave()
    assert not line.places


async def test_lines_of_unknown_topics_are_not_kept(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "LINES_KEPT", 8)
    answer = cluster.name_server.answer_route
    asked: list[Any] = []
    cluster.name_server.answer = lambda link, command: (
        asked.append((link, command)) if (command.ext_fields or {})["topic"] == TOPIC else answer(link, command)
    )
    items = messages(5)
    async with producer(cluster, timeout=30.0) as sender:
        early = [asyncio.ensure_future(by_key(sender, item)) for item in items[:3]]
        await until(lambda: asked)
        for number in range(30):
            with pytest.raises(errors.TopicNotFoundError):
                await sender.send(message(topic=f"unknown{number}"), key=number)
        assert len(core_of(sender).admission.lines.by_topic) <= 8
        late_ones = [asyncio.ensure_future(by_key(sender, item)) for item in items[3:]]
        await spin(2)
        cluster.name_server.answer = None
        answer(*asked[0])
        await asyncio.gather(*early, *late_ones)
    assert bodies(cluster.a) == [item.body for item in items]


async def test_the_first_of_the_line_may_fail_without_holding_up_the_others(cluster: Cluster) -> None:
    def moody(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        if item.body == b"000000":
            raise ZeroDivisionError("mood")
        return queues[0]

    async with producer(cluster) as sender:
        results = await outcomes(*[sender.send(item, selector=moody) for item in messages(10)])
    assert isinstance(results[0], errors.SelectorError)
    assert bodies(cluster.a) == [item.body for item in messages(10)[1:]]


async def test_a_broker_that_cannot_be_reached_holds_up_only_those_who_want_to_go_there(pair: Cluster) -> None:
    async with producer(pair, timeout=1.0) as sender:
        await sender.fetch_publish_queues(TOPIC)
        await sender.send(message(), queue=pair.queue(pair.b))
        pair.b.sends.clear()
        await pair.a.stop()
        await outcomes(*[sender.send(message(), queue=pair.queue(pair.a)) for _ in range(5)])
        stuck = [asyncio.ensure_future(sender.send(message(), queue=pair.queue(pair.a))) for _ in range(20)]
        with timed(most=0.05):
            await asyncio.gather(*[sender.send(item, queue=pair.queue(pair.b)) for item in messages(50)])
        assert bodies(pair.b) == [item.body for item in messages(50)]
        with timed(most=1.0):
            failures = await outcomes(*stuck)
        assert {type(error.__cause__) for error in failures} == {errors.ConnectError}


async def test_one_attempt_and_its_own_error(pair: Cluster) -> None:
    pair.answer(refuse(1, "no"))
    async with producer(pair) as sender:
        for options in ({"queue": pair.queue()}, {"key": 1}, {"selector": lambda queues, item, key: queues[0]}):
            for send in (sender.send(message(), **options), _resolved(sender.send_async(message(), **options))):
                with pytest.raises(errors.BrokerSystemError):
                    await send
        with pytest.raises(errors.BrokerSystemError):
            await sender.send(message(sharding_key="s"))
        with pytest.raises(errors.BrokerSystemError):
            await sender.send_batch([message()], queue=pair.queue())
    assert len(pair.sends) == 8


async def _resolved(send: Awaitable[asyncio.Future[Any]]) -> Any:
    return await (await send)


async def test_one_silent_attempt_gets_the_whole_budget(pair: Cluster) -> None:
    pair.answer(late(0.25))
    async with producer(pair, timeout=1.0, attempt_timeout=0.05) as sender:
        result, batch = await asyncio.gather(
            sender.send(message(), queue=pair.queue()), sender.send_batch([message()], queue=pair.queue())
        )
        assert (result.attempts, batch.attempts, result.queue) == (1, 1, pair.queue())
        pair.answer(silence)
        with timed(0.1, 0.1), pytest.raises(errors.RequestTimeoutError) as caught:
            await sender.send(message(), key="k", timeout=0.1)
        assert caught.value.maybe_stored


async def test_the_same_queue_may_be_tried_again_on_demand(pair: Cluster) -> None:
    for options in ({"queue": pair.queue(pair.b, 1)}, {"key": "k"}):
        for broker in pair.brokers:
            broker.answer = each(refuse(1), refuse(2), stored)
            broker.sends.clear()
        async with producer(pair, retry_same_queue=True, async_retries=0) as sender:
            result = await sender.send(message(), **options)
        assert result.attempts == 3
        assert {sent.queue for sent in pair.sends} == {result.queue}
        assert len(pair.sends) == 3
    pair.answer(refuse(1))
    async with producer(pair, retry_same_queue=True, retries=1) as sender:
        with pytest.raises(errors.SendError) as caught:
            await (await sender.send_async(message(), queue=pair.queue()))
    assert len(caught.value.attempts) == 2


async def test_calls_for_a_queue_that_is_away_end_in_time(cluster: Cluster) -> None:
    """One of them waits for the connection, the others for their turns: none is stored, and each says so."""
    await cluster.a.stop()
    async with producer(cluster, retry_same_queue=True, retries=1, timeout=0.5) as sender:
        sends = [sender.send(message(), queue=cluster.queue()) for _ in range(3)]
        with timed(0.45, 0.55):
            failures = await outcomes(*sends, _resolved(sender.send_async(message(), queue=cluster.queue())))
    assert isinstance(failures[0], errors.SendError)
    assert len(failures[0].attempts) == 2
    assert {type(error) for error in failures[1:]} == {errors.RequestTimeoutError}
    assert not any(error.maybe_stored for error in failures)
    assert all(cluster.a.address in str(error) for error in failures)


async def test_a_queue_is_used_as_it_is_given(pair: Cluster) -> None:
    async with producer(pair) as sender:
        for number in (0, 1, 77):
            result = await sender.send(message(), queue=MessageQueue(TOPIC, "b", number))
            assert result.queue == MessageQueue(TOPIC, "b", number)
    assert [sent.fields["e"] for sent in pair.b.sends] == ["0", "1", "77"]


async def test_a_queue_of_another_topic_or_broker(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        before = cluster.received
        stranger = MessageQueue("OTHER", "a", 0)
        for send in (sender.send, sender.send_async, sender.send_oneway):
            with pytest.raises(errors.SelectorError, match="OTHER"):
                await send(message(), queue=stranger)
        with pytest.raises(errors.SelectorError, match="OTHER"):
            await sender.send_batch([message()], queue=stranger)
        assert cluster.received == before, "not even the route was asked for"
        for send in (sender.send, sender.send_async, sender.send_oneway):
            with pytest.raises(errors.BrokerNotFoundError, match=r"missing.*another broker: a"):
                await send(message(), queue=MessageQueue(TOPIC, "missing", 0))
    assert not cluster.sends


async def with_full_windows(sender: Producer, cluster: Cluster, size: int) -> Connection:
    """The connection to the broker, once the windows of its one-way messages, which begin small, have grown to ``size``."""
    await sender.send(message(b"warm"))
    connection = (await client_of(sender)).pool.open[cluster.a.address]
    for _ in range(100):
        for _ in range(size):
            await sender.send_oneway(message(b"warm"))
        await sender.flush()
        if pacing_of(connection).size >= size:
            await until(lambda: len(cluster.sends) % size == 1)
            return connection
    raise AssertionError(f"windows of {size} did not come about")


@pytest.mark.parametrize("way", [oneway, mixed])
async def test_order_holds_while_the_broker_does_not_read(cluster: Cluster, way: Way) -> None:
    """Also over the ordinary requests that end windows of one-way messages, and between one-way and other sends."""
    items = [message(b"%06d" % number + b"x" * 100_000) for number in range(200)]
    async with producer(cluster, oneway_window=16, compress_over=1 << 30, timeout=10.0) as sender:
        connection = await with_full_windows(sender, cluster, 16)
        (link,) = cluster.a.open_links
        warm = len(cluster.sends)
        link.transport.pause_reading()
        calls = [asyncio.ensure_future(way(sender, item)) for item in items]
        await until(
            lambda: " 0 held" not in repr(connection) or way is mixed
        )  # of which one request is under way, all others wait for it
        await asyncio.sleep(0.02)
        link.transport.resume_reading()
        await asyncio.gather(*calls)
        await sender.flush()
        await until(lambda: len(bodies(cluster.a)) == warm + 200)
    assert [body[:6] for body in bodies(cluster.a)[warm:]] == [item.body[:6] for item in items]


async def test_order_holds_when_the_window_of_the_broker_is_full(cluster: Cluster) -> None:
    cluster.a.answer = late(0.002)
    items = messages(400)
    async with producer(cluster, broker_window=10, oneway_window=16) as sender:
        await sender.send(message(b"warm"))
        await asyncio.gather(*[mixed(sender, item) for item in items])
        await sender.flush()
        await until(lambda: len(bodies(cluster.a)) == 401)
    assert bodies(cluster.a)[1:] == [item.body for item in items]


async def test_what_is_held_when_the_connection_breaks_gives_its_credits_back(cluster: Cluster) -> None:
    async with producer(cluster, oneway_window=0, compress_over=1 << 30) as sender:
        await sender.send(message(b"warm"))
        (link,) = cluster.a.open_links
        link.transport.pause_reading()
        for _ in range(60):
            await sender.send_oneway(message(b"x" * 200_000))
        assert sender.health().unanswered > 0
        link.transport.abort()
        await sender.flush(2.0)
        assert sender.health().unanswered == 0


async def test_a_keyed_send_that_waits_in_line_is_not_late_for_a_blocked_loop(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.05
    async with producer(cluster, timeout=2.0) as sender:
        calls = [asyncio.ensure_future(by_key(sender, item)) for item in messages(20)]
        await asyncio.sleep(0.02)
        time.sleep(1.0)  # answers come while the loop stands still
        results = await asyncio.gather(*calls)
    assert len(results) == 20
