"""How queues are chosen: round robin, by hash, at random, by the caller's own function."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from rmq_async import ClientConfig, Message, MessageQueue, errors, select_at_random, select_best, select_by_hash
from rmq_async.producer.routing.topic_queues import HeaderSettings, TopicQueues
from rmq_protocol.java_types import string_hash

from ..support.fakes import TOPIC, Cluster
from ..support.instances import client_of
from .support import message, messages, producer, seeded, timed

pytestmark = pytest.mark.virtual_time

KEYS = ("", "order-12345", "中文", "😀", "polygenelubricants", True, False, 0, -7, 2**31 - 1, -(2**31), 2**40, -(2**63))
QUEUES = [MessageQueue("T", "a", number) for number in range(8)]


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 1000])
def test_select_by_hash_of_long_keys(length: int) -> None:
    queues = [MessageQueue("T", "a", number) for number in range(997)]
    for shift in range(3):
        key = "".join(chr(32 + (shift + 7 * at) % 95) for at in range(length))
        assert select_by_hash(queues, message(), key).queue_id == abs(string_hash(key)) % 997


async def test_round_robin_is_even_over_all_queues(trio: Cluster) -> None:
    async with producer(trio) as sender:
        for _ in range(60):
            await sender.send(message())
        assert set(Counter(sent.queue for sent in trio.sends).values()) == {10}
        await asyncio.gather(*[sender.send(item) for item in messages(60)])
        await asyncio.gather(*[sender.send_oneway(item) for item in messages(30)])
        for _ in range(30):
            await sender.send_batch(messages(2))
        await sender.flush()
    assert set(Counter(sent.queue for sent in trio.sends).values()) == {30}


async def test_round_robin_goes_in_the_order_of_the_queues(pair: Cluster) -> None:
    async with producer(pair) as sender:
        queues = await sender.fetch_publish_queues(TOPIC)
        sent_to = [(await sender.send(message())).queue for _ in range(8)]
    assert queues == tuple(MessageQueue(TOPIC, broker, number) for broker in "ab" for number in range(2))
    start = queues.index(sent_to[0])
    assert sent_to == [queues[(start + step) % 4] for step in range(8)]


async def test_round_robin_begins_anywhere(cluster: Cluster) -> None:
    cluster.name_server.routes[TOPIC] = cluster.route(queues=4)
    async with producer(cluster) as sender:
        await sender.send(message())
        route = (await client_of(sender)).routes.cached(TOPIC)
        settings = HeaderSettings("group", ClientConfig(), 32)
        starts = {TopicQueues(route, settings).next().queue.queue_id for _ in range(200)}
    assert starts == {0, 1, 2, 3}


async def test_queues_that_cannot_be_written_to_are_left_out(pair: Cluster) -> None:
    route = pair.route()
    first, second = route.queue_datas
    pair.name_server.routes[TOPIC] = replace(route, queue_datas=(replace(first, perm=4), second))
    async with producer(pair) as sender:
        assert {queue.broker_name for queue in await sender.fetch_publish_queues(TOPIC)} == {"b"}
        await asyncio.gather(*[sender.send(item) for item in messages(8)])
    assert (len(pair.a.sends), len(pair.b.sends)) == (0, 8)


async def test_a_key_finds_the_queue_that_java_finds(pair: Cluster) -> None:
    async with producer(pair) as sender:
        queues = await sender.fetch_publish_queues(TOPIC)
        for key in KEYS:
            expected = select_by_hash(queues, message(), key)
            assert (await sender.send(message(), key=key)).queue == expected
            assert (await sender.send(message(), key=key, selector=select_by_hash)).queue == expected
            if isinstance(key, str) and key:
                assert (await sender.send(message(sharding_key=key))).queue == expected


async def test_a_given_key_wins_over_the_sharding_key_and_a_queue_over_both(cluster: Cluster) -> None:
    seen: list[Any] = []

    def note(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        seen.append(key)
        return queues[0]

    item = message(sharding_key="shard")
    async with producer(cluster) as sender:
        await sender.send(item, selector=note)
        await sender.send(item, selector=note, key=("any", "thing"))
        await sender.send(message(), selector=note)
        assert (await sender.send(item, key=0, queue=cluster.queue(queue_id=1))).queue.queue_id == 1
    assert seen == ["shard", ("any", "thing"), None]


async def test_selectors_get_the_queues_and_the_message(pair: Cluster) -> None:
    seen: list[Any] = []

    async def choose(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        seen.append((tuple(queues), item, key))
        await asyncio.sleep(0)
        return queues[-1]

    item = message()
    async with producer(pair) as sender:
        assert (await sender.send(item, selector=choose, key=9)).queue == pair.queue(pair.b, 1)
        assert seen == [(await sender.fetch_publish_queues(TOPIC), item, 9)]
        future = await sender.send_async(item, selector=choose)
        assert (await future).queue == pair.queue(pair.b, 1)
        await sender.send_oneway(item, selector=choose)
        await sender.flush()
    assert len(pair.b.sends) == 3
    assert seen[0][1] is item


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (lambda queues, item, key: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda queues, item, key: None, "returned None"),
        (lambda queues, item, key: 3, "returned 3"),
        (lambda queues, item, key: MessageQueue("T", "a", 99), "not one of the queues"),
        (lambda queues, item, key: MessageQueue("OTHER", "a", 0), "not one of the queues"),
        (lambda queues, item: queues[0], "raised TypeError"),
        ("", "raised TypeError: 'str' object is not callable"),
        (lambda queues, item, key: asyncio.sleep(0, None), "returned None"),
        (lambda queues, item, key: _raise(TimeoutError("mine")), "raised TimeoutError: mine"),
        (lambda queues, item, key: _raise_later(TimeoutError("mine")), "raised TimeoutError: mine"),
        (lambda queues, item, key: _raise_later(KeyError("k")), "raised KeyError: 'k'"),
        (lambda queues, item, key: _raise(asyncio.CancelledError()), "raised CancelledError"),
        (lambda queues, item, key: _raise_later(asyncio.CancelledError()), "raised CancelledError"),
    ],
)
async def test_bad_selectors(cluster: Cluster, selector: Any, text: str) -> None:
    async with producer(cluster) as sender:
        for send in (sender.send, sender.send_async, sender.send_oneway):
            with pytest.raises(errors.SelectorError, match=text):
                await send(message(), selector=selector)
    assert not cluster.sends


class First(list[str]):
    """A selector that is also an empty list, and so counts as false."""

    def __call__(self, queues: Sequence[MessageQueue], item: Message, key: object) -> MessageQueue:
        return queues[0]


@pytest.mark.parametrize("options", [{}, {"queue_selector": select_best}])
async def test_selector_that_counts_as_false_is_asked(cluster: Cluster, options: dict[str, Any]) -> None:
    async with producer(cluster, **options) as sender:
        assert {(await sender.send(message(), key=key, selector=First())).queue.queue_id for key in range(8)} == {0}


def _raise(error: BaseException) -> Any:
    raise error


async def _raise_later(error: BaseException) -> Any:
    await asyncio.sleep(0)
    raise error


async def test_a_selector_that_never_ends_uses_up_the_call_and_no_more(cluster: Cluster) -> None:
    async def hang(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        await asyncio.Event().wait()
        return queues[0]

    async with producer(cluster) as sender:
        await sender.fetch_publish_queues(TOPIC)
        for send in (sender.send, sender.send_async, sender.send_oneway):
            with timed(0.1, 0.1), pytest.raises(errors.RequestTimeoutError, match="hang returned no queue"):
                await send(message(), selector=hang, timeout=0.1)
        await sender.send(message(), key=1)


def names_late(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
    time.sleep(0.08)
    return queues[0]


async def waits_and_names_late(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
    await asyncio.sleep(0)
    return names_late(queues, item, key)


@pytest.mark.parametrize("selector", [names_late, waits_and_names_late])
@pytest.mark.parametrize("way", ["of the call", "of the producer"])
async def test_selector_that_names_late_sends_nothing(cluster: Cluster, selector: Any, way: str) -> None:
    options: dict[str, Any] = {"queue_selector": selector} if way == "of the producer" else {}
    given: dict[str, Any] = {} if options else {"selector": selector}
    async with producer(cluster, **options) as sender:
        await sender.fetch_publish_queues(TOPIC)
        await sender.send(message(b"connects"), queue=cluster.queue())
        sends = [partial(send, message(b"late"), **given) for send in (sender.send, sender.send_async, sender.send_oneway)]
        if options:
            sends += [partial(sender.send, message(b"late"), key=1), partial(sender.send_batch, messages(2))]
        for send in sends:
            with pytest.raises(errors.RequestTimeoutError, match=f"selector {selector.__name__} returned ") as caught:
                await send(timeout=0.05)
            assert caught.value.maybe_stored is False
        await sender.send(message(b"last"), queue=cluster.queue())
    assert cluster.a.bodies == [b"connects", b"last"]


async def test_a_selector_that_cancels_its_call_cancels_it(cluster: Cluster) -> None:
    async def hang(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        await asyncio.Event().wait()
        return queues[0]

    async with producer(cluster) as sender:
        await sender.fetch_publish_queues(TOPIC)
        sending = asyncio.ensure_future(sender.send(message(), selector=hang))
        await asyncio.sleep(0.01)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending


@pytest.mark.parametrize("selector", [select_at_random, select_by_hash])
def test_without_queues_there_is_none_to_choose(selector: Any) -> None:
    with pytest.raises(errors.SelectorError, match="no queues"):
        selector([], message(), 1)


@pytest.mark.parametrize("key", [None, 1.5, b"bytes", (1,), 2**63, -(2**63) - 1, pytest.param(10**5000, id="huge")])
def test_keys_that_java_has_no_hash_for(key: Any) -> None:
    with pytest.raises(errors.SelectorError):
        select_by_hash(QUEUES, message(), key)


def test_random_choice_is_even() -> None:
    """Chi-square with seven degrees of freedom stays below 24.3 in 999 of 1000 runs; three runs in a row above it mean more."""
    for _ in range(3):
        seeded()
        counts = Counter(select_at_random(QUEUES, message()) for _ in range(8000))
        chi_square = sum((counts[queue] - 1000) ** 2 / 1000 for queue in QUEUES)
        print("chi-square", chi_square)
        if chi_square < 24.3:
            return
    pytest.fail("three times uneven")


async def test_random_choice_through_the_producer(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        await asyncio.gather(*[sender.send(item, selector=select_at_random) for item in messages(100)])
    counts = Counter(sent.queue.queue_id for sent in cluster.sends for _ in sent.bodies)
    assert set(counts) == {0, 1}
    assert min(counts.values()) > 15


@pytest.mark.parametrize("queue", ["q", ("T", "a"), ("T", "a", "0"), ("T", "a", -1)])
async def test_what_is_no_queue_is_refused_before_anything_is_sent(cluster: Cluster, queue: Any) -> None:
    async with producer(cluster) as sender:
        for call in (sender.send, sender.send_async, sender.send_oneway):
            with pytest.raises(errors.ConfigError, match="a queue must be a MessageQueue"):
                await call(message(), queue=queue)
        with pytest.raises(errors.ConfigError, match="a queue must be a MessageQueue"):
            await sender.send_batch(messages(2), queue=queue)
    assert not cluster.sends
