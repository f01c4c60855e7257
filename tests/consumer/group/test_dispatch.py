"""Slots for handler calls, shared between subscriptions and queues."""

from __future__ import annotations

from rmq_async import MessageExt, MessageQueue
from rmq_async.consumer.dispatch import Dispatcher
from rmq_async.consumer.held_queue import HeldQueue, Waiting
from rmq_async.consumer.subscription import Subscription

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
        dispatcher.add(held, subscription, MessageExt(subscription.topic, b"", queue=queue, queue_offset=offset))
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
    subscriptions["A"].wake = dispatcher.pump
    subscriptions["A"].concurrency = 3
    assert [each for each in begun if each[0] == "A"] == [("A", 0, 0), ("A", 0, 1), ("A", 0, 2), ("A", 0, 3)]


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
        dispatcher.again(subscription, item)
    assert [message.queue_offset for message in dispatcher.buffered_of(held)] == [0, 1, 2, 3, 4]
