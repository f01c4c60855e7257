"""``queue_selector``: a function of the user's that is asked for each attempt; and who chooses where a key is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rmq_async import Message, MessageQueue, errors, select_best, select_by_hash, select_by_machine_room
from rmq_async.producer import prepare, send_prepared

from ..support.fakes import TOPIC, Cluster, late, refuse, silence
from .support import core_of, message, messages, outcomes, producer, timed

pytestmark = pytest.mark.virtual_time


class Asked:
    """A selector that writes down what it is asked, and takes the first queue."""

    def __init__(self) -> None:
        self.brokers: list[str] = []
        self.messages: list[Message] = []
        self.keys: list[Any] = []

    def __call__(self, queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        self.brokers.append("".join(sorted({queue.broker_name for queue in queues})))
        self.messages.append(item)
        self.keys.append(key)
        return queues[0]


async def test_it_is_asked_for_each_attempt_with_the_queues_of_brokers_not_tried(trio: Cluster) -> None:
    trio.a.answer = trio.b.answer = refuse(1)
    asked, item = Asked(), message()
    async with producer(trio, queue_selector=asked) as sender:
        result = await sender.send(item)
        assert (result.queue, result.attempts) == (trio.queue(trio.brokers[2]), 3)
        assert asked.brokers == ["abc", "bc", "c"]
        assert asked.keys == [None] * 3
        assert all(each is item for each in asked.messages)
        assert (await (await sender.send_async(item))).attempts == 3
        batch = messages(3)
        assert (await sender.send_batch(batch)).attempts == 3
        assert asked.brokers == ["abc", "bc", "c"] * 3
        assert asked.messages[-3:] == [batch[0]] * 3
        assert (await (await sender.send_batch_async(iter(batch)))).attempts == 3
        assert asked.messages[-3:] == [batch[0]] * 3


async def test_with_one_broker_it_is_asked_again_for_that(cluster: Cluster) -> None:
    cluster.a.answer = refuse(1)
    asked = Asked()
    async with producer(cluster, queue_selector=asked) as sender:
        with pytest.raises(errors.SendError):
            await sender.send(message())
    assert asked.brokers == ["a"] * 3


async def test_it_serves_every_way_of_sending_and_compressed_bodies(pair: Cluster) -> None:
    seen: list[int] = []

    async def last(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        await asyncio.sleep(0)
        seen.append(len(item.body))
        return queues[-1]

    async with producer(pair, queue_selector=last) as sender:
        await sender.send(message(b"x" * 8192))
        await (await sender.send_async(message(b"x" * 8192)))
        await sender.send_oneway(message())
        await sender.send_batch(messages(2))
        await sender.send(message(), timeout=1.0)
        await sender.flush()
    assert [sent.queue for sent in pair.sends] == [pair.queue(pair.b, 1)] * 5
    assert seen == [8192, 8192, 4, 6, 4]


async def test_a_key_goes_to_it_once_and_another_selector_goes_before_it(pair: Cluster) -> None:
    pair.answer(refuse(1))
    asked = Asked()
    async with producer(pair, queue_selector=asked) as sender:
        for options in ({"key": 7}, {"key": 0}):
            with pytest.raises(errors.BrokerSystemError):
                await sender.send(message(), **options)
        with pytest.raises(errors.BrokerSystemError):
            await sender.send(message(sharding_key="shard"))
        assert asked.keys == [7, 0, "shard"]
        assert asked.brokers == ["ab"] * 3
        await outcomes(sender.send(message(), key=7, selector=select_by_hash), sender.send(message(), selector=select_best))
        await outcomes(sender.send(message(), queue=pair.queue()))
        assert len(asked.keys) == 3


@pytest.mark.parametrize("way", ["send", "send_async", "send_oneway", "send_batch"])
async def test_what_is_wrong_with_it_is_a_selector_error(pair: Cluster, way: str) -> None:
    def broken(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        raise KeyError("k")

    async def strange(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        return MessageQueue(TOPIC, "a", 99)

    async def call(sender: Any) -> None:
        await getattr(sender, way)(messages(2) if way == "send_batch" else message())

    async with producer(pair, queue_selector=broken) as sender, producer(pair, "other", queue_selector=strange) as other:
        with pytest.raises(errors.SelectorError, match="broken raised KeyError: 'k'"):
            await call(sender)
        with pytest.raises(errors.SelectorError, match=r"strange returned .*99.*, which is not one of the queues"):
            await call(other)
    assert not pair.sends


async def test_a_call_for_which_it_has_no_further_queue_fails_as_its_attempts_did(pair: Cluster) -> None:
    rooms = select_by_machine_room({"a": "north", "b": "south"})

    def north(queues: Sequence[MessageQueue], item: Message, key: Any) -> Any:
        return rooms(queues, item, "north")

    pair.a.answer = refuse(14, "down for a while")
    async with producer(pair, queue_selector=north, timeout=0.5) as sender:
        with pytest.raises(errors.ServiceNotAvailableError) as caught:
            await sender.send(message())
        (note,) = caught.value.__notes__
        assert (
            "no queue of topic T is in machine room 'north'; the key must be the room of one of its brokers: b in south" in note
        )
        pair.a.answer = late(0.3)  # the attempt is capped at 0.2 s
        with timed(0.3, 0.3):
            assert (await sender.send(message())).attempts == 1
        pair.a.answer = silence
        with timed(0.5, 0.5), pytest.raises(errors.RequestTimeoutError) as late_one:
            await sender.send(message())
        assert late_one.value.maybe_stored
    assert not pair.b.sends


async def test_a_selector_that_is_cancelled_for_a_further_attempt_does_not_cancel_the_call(pair: Cluster) -> None:
    def waits(queues: Sequence[MessageQueue]) -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        return gone  # type: ignore[return-value]

    def ends_itself(queues: Sequence[MessageQueue]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return asyncio.sleep(1.0)

    pair.answer(refuse(14, "down for a while"))
    for then in (waits, ends_itself):
        asked = 0

        async def choose(queues: Sequence[MessageQueue], item: Message, key: Any, then: Any = then) -> MessageQueue:
            nonlocal asked
            asked += 1
            if asked > 1:
                await then(queues)
            return queues[0]

        async with producer(pair, queue_selector=choose) as sender:
            with pytest.raises(errors.ServiceNotAvailableError) as caught:
                await sender.send(message())
            assert "no further attempt: " in str(caught.value.__notes__)


async def test_a_late_answer_does_not_wait_for_a_selector_and_neither_does_a_stop(pair: Cluster) -> None:
    first = True

    async def hang(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        nonlocal first
        if not first:
            await asyncio.Event().wait()
        first = False
        return queues[0]

    pair.a.answer = late(0.3)
    sender = producer(pair, queue_selector=hang, timeout=0.6)
    async with sender:
        with timed(0.3, 0.3):
            assert (await sender.send(message())).attempts == 1
        with timed(0.2, 0.2), pytest.raises(errors.RequestTimeoutError, match="hang returned no queue before"):
            await sender.send(message(), timeout=0.2)
        first, pair.a.answer = True, refuse(1)
        waiting = [asyncio.ensure_future(sender.send(message(), timeout=9.0)) for _ in range(2)]
        await asyncio.sleep(0.05)
        await sender.stop(0.05)
        for error in await outcomes(*waiting):
            assert isinstance(error, errors.ClientStateError)


async def test_a_machine_room_is_wanted_by_key(trio: Cluster) -> None:
    async with producer(trio, queue_selector=select_by_machine_room({"a": "north", "b": "south", "c": "north"})) as sender:
        results = await asyncio.gather(*[sender.send(item, key="north") for item in messages(8)])
        assert {result.queue.broker_name for result in results} == {"a", "c"}
        assert (await sender.send(message(sharding_key="south"))).queue.broker_name == "b"
        with pytest.raises(errors.SelectorError, match="machine room 'west'"):
            await sender.send(message(), key="west")
        with pytest.raises(errors.SelectorError, match="machine room None"):
            await sender.send(message())


async def test_select_best_by_name_is_the_default(pair: Cluster) -> None:
    async with producer(pair, queue_selector=select_best) as sender:
        assert not core_of(sender).asks
        results = await asyncio.gather(*[sender.send(item, selector=select_best) for item in messages(8)])
    assert {result.queue for result in results} == {
        pair.queue(broker, number) for broker in pair.brokers for number in range(2)
    }


async def test_prepared_send_without_a_queue_asks_no_selector(pair: Cluster) -> None:
    """It has no message to show; the first attempt takes the next queue, as its further attempts do."""
    pair.a.answer = pair.b.answer = refuse(1)
    asked = Asked()
    async with producer(pair, queue_selector=asked, retries=1) as sender:
        prepared = prepare(sender, TOPIC, [b"x"], [""], None, None)
        with pytest.raises(errors.SendError) as caught:
            await send_prepared(sender, prepared, 5.0)
        assert {attempt.queue.broker_name for attempt in caught.value.attempts} == {"a", "b"}
        assert asked.messages == []
