"""Batches: cut by what they take on the wire, sent with callbacks, and what may not be in one."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from rmq_async import (
    BackpressureError,
    BrokerError,
    ClientStateError,
    InvalidMessageError,
    Message,
    Producer,
    SelectorError,
    SendError,
    SendStatus,
    split_batches,
)
from rmq_async.client.unique_ids import UniqueIds
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.batch import encode_batch

from ..support.fakes import TOPIC, Cluster, each, late, refuse, reset, silence, stored
from .support import Calls, message, messages, outcomes, producer, seeded, until

pytestmark = pytest.mark.virtual_time

LIMIT = 4 * 1024 * 1024
ID = "0" * 32


def encoded(batch: list[Message], unique_id: str = ID, limit: int = LIMIT) -> int:
    return len(encode_batch(batch, [unique_id] * len(batch), limit))


# -- cutting


def some_messages(source: random.Random, count: int) -> list[Message]:
    def one() -> Message:
        options: dict[str, Any] = {}
        if source.random() < 0.3:
            options["tags"] = source.choice(["t", "grün", "標籤"])
        if source.random() < 0.3:
            options["keys"] = [f"k{source.randrange(1000)}" for _ in range(source.randrange(4))]
        if source.random() < 0.2:
            options["properties"] = {"p" * source.randint(1, 30): "ü€𝄞" * source.randint(1, 30)}
        if source.random() < 0.2:
            options["unique_id"] = "own" * source.randint(1, 30)
        return Message(TOPIC, source.randbytes(source.choice([1, 10, 100, 900])), **options)

    return [one() for _ in range(count)]


def test_batches_are_as_full_as_can_be_and_never_fuller() -> None:
    source = seeded()
    for _ in range(30):
        given = some_messages(source, source.randint(1, 60))
        limit = max(source.randint(1000, 8000), *(encoded([one]) for one in given))
        batches = list(split_batches(given, limit))
        assert [one for batch in batches for one in batch] == given
        assert all(encoded(batch) <= limit for batch in batches)
        assert all(encoded([*batch, following[0]]) > limit for batch, following in pairwise(batches))


def test_a_batch_ends_at_the_byte() -> None:
    one = message(b"x" * 100)
    size = encoded([one])
    assert [len(batch) for batch in split_batches([one] * 6, 3 * size)] == [3, 3]
    assert [len(batch) for batch in split_batches([one] * 6, 3 * size - 1)] == [2, 2, 2]
    assert [len(batch) for batch in split_batches([one] * 2, size)] == [1, 1]
    with pytest.raises(
        InvalidMessageError, match=rf"message 1 \(topic 'T', keys 'k'\) has {encoded([message(keys='k')])} encoded bytes"
    ):
        list(split_batches([message(b"x"), message(keys="k")], encoded([message(keys="k")]) - 1))


def test_batches_above_the_default_body_size_hold_bodies_above_it() -> None:
    large, small = message(b"x" * (LIMIT + 1)), message(b"y")
    size = encoded([large], limit=2 * LIMIT)
    assert list(split_batches([large, small], size)) == [[large], [small]]
    with pytest.raises(InvalidMessageError, match=rf"has {size} encoded bytes, above max_bytes {size - 1}; send it by itself"):
        list(split_batches([large], size - 1))


def test_ids_of_a_client_addressed_by_ipv6_are_longer() -> None:
    gc.collect()
    one = message(b"x" * 100)
    assert [len(batch) for batch in split_batches([one] * 2, 2 * encoded([one]))] == [2]
    ids = UniqueIds(bytes(16))
    assert [len(batch) for batch in split_batches([one] * 2, 2 * encoded([one]))] == [1, 1]
    assert [len(batch) for batch in split_batches([one] * 2, 2 * encoded([one], ids.next()))] == [2]


def test_another_topic_or_wait_begins_another_batch() -> None:
    given = [
        message(b"1"), message(b"2"), message(b"3", topic="U"), message(b"4", topic="U", wait_store=False),
        message(b"5", wait_store=False), message(b"6", wait_store=False), message(b"7"),
    ]  # fmt: skip
    assert [[one.body for one in batch] for batch in split_batches(given)] == [
        [b"1", b"2"],
        [b"3"],
        [b"4"],
        [b"5", b"6"],
        [b"7"],
    ]


def test_nothing_comes_of_nothing() -> None:
    assert list(split_batches([])) == []


def test_messages_are_read_as_batches_are_asked_for() -> None:
    read: list[int] = []

    def endless() -> Iterator[Message]:
        number = 0
        while True:
            read.append(number)
            yield message(b"x" * 100)
            number += 1

    batches = split_batches(endless(), 10 * encoded([message(b"x" * 100)]))
    assert not read
    assert len(next(batches)) == 10
    assert len(read) == 11
    next(batches)
    assert len(read) == 21


@pytest.mark.parametrize(
    "options",
    [{"delay_level": 1}, {"delay": 1.0}, {"delay": 0.0}, {"deliver_at": 2e9}, {"topic": "%RETRY%g"}, {"body": b""},
     {"topic": "no topic"}, {"topic": "SCHEDULE_TOPIC_XXXX"}, {"properties": {"p": "x" * 40_000}}],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_what_no_batch_may_hold_is_named_in_its_place(options: dict[str, Any]) -> None:
    batches = split_batches([message(b"1"), message(b"2", wait_store=False), message(**options)])
    assert [one.body for one in next(batches)] == [b"1"]
    with pytest.raises(InvalidMessageError, match=r"^message 2 \(topic "):
        list(batches)
    with pytest.raises(InvalidMessageError):
        encode_batch([message(**options)], [ID], LIMIT)  # sending says the same


def test_what_is_no_message_or_no_limit() -> None:
    with pytest.raises(TypeError, match="message 0 must be a Message, not bytes"):
        list(split_batches([b"x"]))  # type: ignore[list-item]
    for limit in (0, -1, 1.5, True, "1", None):
        with pytest.raises(ValueError, match="max_bytes"):
            split_batches([], limit)  # type: ignore[arg-type]


async def test_what_is_cut_is_sent(loop_errors: list[dict[str, Any]]) -> None:
    given = [message(b"%06d" % number + b"x" * 2000, keys=f"k{number}") for number in range(3000)]
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv) as sender:
        batches = list(split_batches(given))
        assert len(batches) == 2
        assert encoded(batches[0]) > LIMIT - 2200
        for batch in batches:
            await sender.send_batch(batch)
        found = server.messages(TOPIC)
    assert sorted(one.body for one in found) == [one.body for one in given]


# -- send_batch_async


async def test_a_batch_with_callbacks(cluster: Cluster) -> None:
    calls = Calls()
    async with producer(cluster) as sender:
        future = await sender.send_batch_async(iter(messages(3)), **calls.both, queue=cluster.queue(queue_id=1))
        assert sender.health().unanswered == 3
        result = await future
        assert sender.health().unanswered == 0
    assert calls.results == [result]
    assert not calls.errors
    assert (result.status, result.queue, result.attempts) == (SendStatus.SEND_OK, cluster.queue(queue_id=1), 1)
    [sent] = cluster.sends
    assert [record.body for record in sent.batch] == [one.body for one in messages(3)]
    assert len(set(result.msg_ids)) == len(result.offset_msg_ids) == len(result.results) == 3
    assert sent.code == 320


async def test_it_returns_before_the_answer(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    async with producer(cluster) as sender:
        future = await sender.send_batch_async(messages(2))
        await until(lambda: cluster.sends)
        assert not future.done()
        await sender.flush()
        assert future.done()


async def test_retries_carry_the_same_batch(pair: Cluster) -> None:
    answers = each(refuse(1), reset, stored)
    pair.answer(lambda link, sent: answers(link, sent))
    async with producer(pair) as sender:
        result = await (await sender.send_batch_async(messages(5)))
    assert result.attempts == 3
    assert len({sent.body for sent in pair.sends}) == 1


async def test_errors_go_to_callback_and_future(pair: Cluster) -> None:
    calls = Calls()
    pair.answer(refuse(1))
    async with producer(pair, async_retries=1) as sender:
        future = await sender.send_batch_async(messages(2), **calls.both)
        with pytest.raises(SendError) as caught:
            await future
        assert calls.errors == [caught.value]
        pair.answer(refuse(13))
        future = await sender.send_batch_async(messages(2), **calls.both)
        with pytest.raises(BrokerError):
            await future
    assert (len(calls.errors), len(calls.results)) == (2, 0)


async def test_cancelling_frees_the_credits_of_all_its_messages(cluster: Cluster) -> None:
    calls = Calls()
    cluster.a.answer = silence
    async with producer(cluster, async_limit=8) as sender:
        future = await sender.send_batch_async(messages(8), **calls.both)
        with pytest.raises(BackpressureError, match="no room for 2 more sends"):
            await sender.send_batch_async(messages(2), timeout=0.05)
        waiting = asyncio.ensure_future(sender.send_batch_async(messages(2), timeout=1.0))
        await until(lambda: cluster.sends)
        assert not waiting.done()
        future.cancel()
        assert [type(error) for error in calls.errors] == [asyncio.CancelledError]
        second = await waiting
        assert sender.health().unanswered == 2
        second.cancel()
        await outcomes(future, second)
        assert sender.health().unanswered == 0
    assert calls.count == 1


async def test_stop_ends_batches_too(cluster: Cluster) -> None:
    calls = Calls()
    cluster.a.answer = silence
    sender = producer(cluster)
    await sender.start()
    future = await sender.send_batch_async(messages(3), **calls.both)
    await sender.stop(0.05)
    with pytest.raises(ClientStateError):
        await future
    assert calls.errors == [future.exception()]
    assert not calls.results


async def test_stop_waits_for_batches(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    sender = producer(cluster)
    await sender.start()
    future = await sender.send_batch_async(messages(3))
    await sender.stop()
    assert (await future).status is SendStatus.SEND_OK


async def test_what_the_call_itself_raises_goes_to_no_callback(cluster: Cluster) -> None:
    calls = Calls()

    async def coroutine(result: object) -> None: ...

    async with producer(cluster) as sender:
        for bad in ([], [message(), message(topic="U")], [message(), message(wait_store=False)], [message(delay=1.0)]):
            with pytest.raises(InvalidMessageError):
                await sender.send_batch_async(bad, **calls.both)
        with pytest.raises(SelectorError):
            await sender.send_batch_async(messages(1), queue=cluster.queue()._replace(topic="U"), **calls.both)
        for wrong in ([b"x"], [message(), b"x"], [*messages(20), None]):
            with pytest.raises(TypeError, match="a batch must be made of Messages"):
                await sender.send_batch_async(wrong, **calls.both)  # type: ignore[arg-type]
        for single in (message(), None):
            with pytest.raises(TypeError, match="messages must be an iterable of Messages, such as a list, not"):
                await sender.send_batch_async(single, **calls.both)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="on_success must be a plain function"):
            await sender.send_batch_async(messages(1), on_success=coroutine)
        with pytest.raises(ValueError, match="timeout"):
            await sender.send_batch_async(messages(1), timeout=0)
    assert not calls.count
    assert not cluster.sends


async def test_a_callback_that_raises_hurts_no_other(cluster: Cluster, loop_errors: list[dict[str, Any]]) -> None:
    def bad(result: object) -> None:
        raise RuntimeError("a bug")

    async with producer(cluster) as sender:
        result = await (await sender.send_batch_async(messages(2), on_success=bad))
        assert result.status is SendStatus.SEND_OK
        await sender.send_batch(messages(2))
    assert [str(context["exception"]) for context in loop_errors] == ["a bug"]
    loop_errors.clear()


async def test_batches_of_one_queue_leave_in_call_order(cluster: Cluster) -> None:
    async with producer(cluster) as sender:
        futures = [await sender.send_batch_async([message(b"%d" % number)] * 2, queue=cluster.queue()) for number in range(50)]
        await asyncio.gather(*futures)
    assert [sent.batch[0].body for sent in cluster.sends] == [b"%d" % number for number in range(50)]
