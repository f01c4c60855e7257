"""Slots for handler calls, shared between subscriptions and queues."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import MessageExt, MessageQueue
from rmq_async.consumer.handling.dispatch import Dispatcher
from rmq_async.consumer.held_queue import HeldQueue, Waiting
from rmq_async.consumer.subscription import Subscription, on_change
from rmq_async.testing.simulation import Simulation

pytestmark = pytest.mark.virtual_time

Begun = list[tuple[str, int, int]]


async def handler(message: MessageExt) -> None:
    """Never called here."""


def make(
    *topics: str, concurrency: int, limits: dict[str, int] | None = None
) -> tuple[Dispatcher, Begun, dict[str, Subscription]]:
    subscriptions = {topic: Subscription(topic, handler, concurrency=(limits or {}).get(topic)) for topic in topics}
    begun: Begun = []

    def begin(subscription: Subscription, taken: tuple[Waiting, ...]) -> None:
        begun.extend((subscription.topic, item.held.queue.queue_id, item.message.queue_offset) for item in taken)

    return Dispatcher(subscriptions.values(), concurrency, begin), begun, subscriptions


def fill(dispatcher: Dispatcher, subscription: Subscription, number: int, count: int) -> HeldQueue:
    queue = MessageQueue(subscription.topic, "a", number)
    held = HeldQueue(queue, queue, subscription, 0)
    for offset in range(count):
        dispatcher.add(held, subscription, [MessageExt(subscription.topic, b"", queue=queue, queue_offset=offset)])
    return held


async def test_dispatcher_shares_slots_between_subscriptions_and_queues() -> None:
    dispatcher, begun, subscriptions = make("A", "B", concurrency=6)
    fill(dispatcher, subscriptions["A"], 0, 100)
    fill(dispatcher, subscriptions["A"], 1, 100)
    fill(dispatcher, subscriptions["B"], 0, 100)
    dispatcher.pump()
    assert sorted(begun) == [("A", 0, 0), ("A", 0, 1), ("A", 1, 0), ("B", 0, 0), ("B", 0, 1), ("B", 0, 2)]
    assert (dispatcher.running, dispatcher.buffered) == (6, 294)


async def test_dispatcher_limit_of_a_subscription() -> None:
    dispatcher, begun, subscriptions = make("A", "B", concurrency=10, limits={"A": 1})
    fill(dispatcher, subscriptions["A"], 0, 5)
    fill(dispatcher, subscriptions["B"], 0, 3)
    dispatcher.pump()
    assert sorted(begun) == [("A", 0, 0), ("B", 0, 0), ("B", 0, 1), ("B", 0, 2)]
    dispatcher.ended(subscriptions["A"], ())
    assert begun[-1] == ("A", 0, 1)
    on_change(subscriptions["A"], dispatcher.settings_changed)
    subscriptions["A"].concurrency = 3
    assert [each for each in begun if each[0] == "A"] == [("A", 0, 0), ("A", 0, 1), ("A", 0, 2), ("A", 0, 3)]


async def test_dispatcher_slot_that_its_subscription_has_lost_takes_no_next_message() -> None:
    """A handler lowers the limit, and its calls share a task."""
    dispatcher, begun, subscriptions = make("A", concurrency=8, limits={"A": 5})
    on_change(subscriptions["A"], dispatcher.settings_changed)
    fill(dispatcher, subscriptions["A"], 0, 20)
    dispatcher.pump()
    assert len(begun) == 5
    assert dispatcher.next_of(subscriptions["A"]) is not None
    subscriptions["A"].concurrency = 4
    assert dispatcher.next_of(subscriptions["A"]) is None


async def test_dispatcher_drop_above_an_offset() -> None:
    dispatcher, begun, subscriptions = make("A", concurrency=2)
    held = fill(dispatcher, subscriptions["A"], 0, 6)
    dispatcher.pump()
    dropped = dispatcher.drop(held, 3)
    assert sorted(message.queue_offset for message in dropped) == [4, 5]
    assert [message.queue_offset for message in dispatcher.buffered_of(held)] == [2, 3]
    assert dispatcher.waits(held)
    dispatcher.drop(held, -1)
    assert not dispatcher.waits(held)
    assert begun == [("A", 0, 0), ("A", 0, 1)]


async def test_dispatcher_message_again_is_in_the_order_of_the_offsets() -> None:
    taken: list[Waiting] = []
    subscription = Subscription("A", handler)
    dispatcher = Dispatcher([subscription], 3, lambda _, items: taken.extend(items))
    held = fill(dispatcher, subscription, 0, 5)
    dispatcher.pump()
    for item in (taken[2], taken[0], taken[1]):
        dispatcher.again(subscription, item, 0.0)
    assert [message.queue_offset for message in dispatcher.buffered_of(held)] == [0, 1, 2, 3, 4]


def batches_of(
    size: int, wait: float = 0.0, concurrency: int = 1
) -> tuple[Dispatcher, list[list[tuple[int, int]]], Subscription]:
    """Returns a dispatcher, what it begins (queue and offset of each message of each call), and its subscription."""
    subscription = Subscription("A", handler, batch_size=size, batch_wait=wait)
    begun: list[list[tuple[int, int]]] = []

    def begin(_: Subscription, taken: tuple[Waiting, ...]) -> None:
        begun.append([(item.held.queue.queue_id, item.message.queue_offset) for item in taken])

    return Dispatcher([subscription], concurrency, begin), begun, subscription


async def test_dispatcher_batch_takes_one_queue_after_the_other() -> None:
    """The queue whose messages do not fit has its next turn after the others."""
    dispatcher, begun, subscription = batches_of(4)
    for number, count in enumerate((3, 6, 2)):
        fill(dispatcher, subscription, number, count)
    dispatcher.pump()
    for _ in range(3):
        dispatcher.ended(subscription, ())
    assert begun == [[(0, 0), (0, 1), (0, 2), (1, 0)], [(2, 0), (2, 1), (1, 1), (1, 2)], [(1, 3), (1, 4), (1, 5)]]
    assert (dispatcher.buffered, dispatcher.running) == (0, 0)


async def test_dispatcher_batch_waits_until_it_is_full() -> None:
    dispatcher, begun, subscription = batches_of(3, 60.0, concurrency=5)
    fill(dispatcher, subscription, 0, 2)
    dispatcher.pump()
    assert begun == []
    fill(dispatcher, subscription, 1, 2)
    dispatcher.pump()
    assert begun == [[(0, 0), (0, 1), (1, 0)]]
    dispatcher.hasten()
    assert begun[1:] == [[(1, 1)]]
    dispatcher.close()


def test_dispatcher_one_timer_for_all_batches() -> None:
    async def main(s: Simulation) -> None:
        dispatcher, begun, subscription = batches_of(100, 5.0, concurrency=5)
        fill(dispatcher, subscription, 0, 2)
        dispatcher.pump()
        await asyncio.sleep(3.0)
        fill(dispatcher, subscription, 1, 1)
        dispatcher.pump()
        await asyncio.sleep(1.9)
        assert begun == []
        await asyncio.sleep(0.2)
        assert begun == [[(0, 0), (0, 1), (1, 0)]]

    Simulation(1, brokers=1, faults=None).run(main)


async def test_dispatcher_hastens_one_queue_with_those_beside_it() -> None:
    dispatcher, begun, subscription = batches_of(100, 60.0, concurrency=5)
    held = fill(dispatcher, subscription, 0, 2)
    fill(dispatcher, subscription, 1, 2)
    stranger = HeldQueue(MessageQueue("A", "b", 9), MessageQueue("A", "b", 9), subscription, 0)
    dispatcher.pump()
    dispatcher.hasten(stranger)
    assert begun == []
    dispatcher.hasten(held)
    assert begun == [[(0, 0), (0, 1), (1, 0), (1, 1)]]
