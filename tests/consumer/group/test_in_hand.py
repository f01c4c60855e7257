"""Wrong use of consumers that are read by hand, forks, and a model of what is in hand."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_async import (
    ClientStateError,
    ConfigError,
    Consumer,
    ForkedError,
    MessageExt,
    MessageQueue,
    Outcome,
    Retry,
)
from rmq_async.consumer.by_hand.in_hand import ByHand, HandDispatcher, InHand
from rmq_async.consumer.handling.ack import SettledLog, Settling
from rmq_async.consumer.held_queue import HeldQueue, Waiting
from rmq_async.consumer.subscription import Subscription, by_hand
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Seen, create, member, reader, send

Q0 = MessageQueue("T", "broker-a", 0)
NOWHERE = "127.0.0.1:1"
STEPS = ("arrive", "ask", "settle", "close")


def test_topics_to_read_by_hand() -> None:
    assert [each.topic for each in Consumer("g", namesrv=NOWHERE, topics=("A", "B")).subscriptions] == ["A", "B"]
    (only,) = Consumer("g", namesrv=NOWHERE, topics={"A": "x || y"}).subscriptions
    assert (only.tags, only.name, only.timeout) == ("x || y", "by hand", 900.0)
    for wrong, text in [
        (b"T", "topics must be"),
        (3, "topics must be"),
        (["T", "T"], "twice"),
        ([["T"]], "topics must be"),
        ("a topic", "topic"),
        ({"T": 1}, "tags"),
    ]:
        with pytest.raises(ConfigError, match=text):
            Consumer("g", namesrv=NOWHERE, topics=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="trace"):
        Consumer("g", namesrv=NOWHERE, topics="T", trace=True)
    consumer = Consumer("g", namesrv=NOWHERE, topics="T")
    with pytest.raises(ConfigError, match="exclude each other"):
        consumer.subscribe("U", Seen())


@pytest.mark.virtual_time
async def test_read_by_hand_without_a_start_or_with_handlers() -> None:
    consumer = Consumer("g", namesrv=NOWHERE, topics="T")
    with pytest.raises(ClientStateError, match="not started"):
        await anext(aiter(consumer))
    with pytest.raises(ClientStateError, match="not started"):
        await consumer.receive()
    with pytest.raises(ClientStateError, match="not started"):
        consumer.done(MessageExt("T", b""))
    for options in ({"max_messages": 0}, {"wait": -1.0}):
        with pytest.raises(ConfigError):
            consumer.batches(**options)  # type: ignore[arg-type]
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with member("g", server.namesrv, "one", Seen()) as other:
            with pytest.raises(ClientStateError, match="has handlers"):
                await anext(aiter(other))
        async with reader(server.namesrv) as consumer:
            with pytest.raises(TypeError, match=r"done\(\*batch\)"):
                consumer.done([])  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="timeout"):
                await consumer.receive(timeout=-1)
            message = MessageExt("T", b"")
            with pytest.raises(ConfigError, match="delay"):
                await consumer.retry(message, -1)
            assert not await consumer.retry(message)
            assert not await consumer.dead_letter(message)
            assert not consumer.done(message)
            iterator = aiter(consumer)
            waiting = asyncio.ensure_future(anext(iterator))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task waits"):
                await anext(iterator)
            with pytest.raises(RuntimeError, match="cancel it"):
                await iterator.aclose()
            with pytest.raises(TypeError, match="no values"):
                await iterator.asend(3)  # type: ignore[arg-type]
            waiting.cancel()
            await asyncio.wait([waiting])
            with pytest.raises(KeyError):
                await iterator.athrow(KeyError("x"))


def forked(work: Callable[[], object]) -> int:
    """Returns the exit status of a forked child: 0 where ``work`` raises ForkedError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from 3.12 on
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
        except ForkedError:
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_steps_in_a_forked_child() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv) as consumer:
            await send(server.namesrv, b"0", b"1")
            iterator = aiter(consumer)
            message = await anext(iterator)
            assert forked(lambda: anext(iterator).__await__().send(None)) == 0
            assert forked(lambda: anext(aiter(consumer)).__await__().send(None)) == 0
            assert forked(lambda: consumer.receive().send(None)) == 0
            assert forked(lambda: consumer.done(message)) == 0
            assert (await anext(iterator)).body == b"1"
            await iterator.aclose()


# -- a model


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3), st.integers(1, 4)), max_size=40))
def test_messages_in_hand_follow_a_model(steps: list[tuple[str, int, int]]) -> None:
    """Each message is in the buffer, in one hand, or settled; what goes back is the next one of its queue."""

    async def main() -> None:
        subscription = Subscription("T", by_hand)
        settled: list[int] = []
        dispatcher = HandDispatcher([subscription])
        unused: Any = None

        def ended(item: Waiting, outcome: Outcome) -> None:
            assert outcome is Outcome.DONE
            settled.append(item.message.queue_offset)

        settling = Settling(Retry(), unused, SettledLog(), ended, dispatcher.again, unused)
        room = dispatcher.room = ByHand(settling, dispatcher, lambda queue: True)
        held = HeldQueue(Q0, Q0, subscription, 0)
        hands: list[InHand | None] = [None] * 4
        buffer: list[int] = []
        in_hand: list[list[int]] = [[], [], [], []]
        done: list[int] = []
        following = 0
        for step, number, count in steps:
            hand = hands[number]
            if step == "arrive":
                for _ in range(count):
                    held.progress.enter(following)
                    dispatcher.add(held, subscription, [MessageExt("T", b"", queue=Q0, queue_offset=following)])
                    buffer.append(following)
                    following += 1
                dispatcher.pump()
            elif step == "ask":
                if hand is not None:
                    room.finish(hand)
                    done += in_hand[number]
                hands[number] = hand = await room.ask(count, until=0.0, iterated=True)
                in_hand[number], buffer = buffer[:count], buffer[count:]
                assert [message.queue_offset for message in (hand.delivery.messages if hand else ())] == in_hand[number]
            elif step == "settle" and hand is not None and in_hand[number]:
                first = in_hand[number].pop(0)
                assert room.done([message for message in hand.delivery.messages if message.queue_offset == first])
                done.append(first)
            elif step == "close" and hand is not None:
                room.put_back(hand)
                buffer = sorted([*buffer, *in_hand[number]])
                hands[number], in_hand[number] = None, []
            all_in_hand = [offset for offsets in in_hand for offset in offsets]
            assert sorted(settled) == sorted(done)
            assert [message.queue_offset for message in dispatcher.buffered_of(held)] == buffer
            assert sorted(item.message.queue_offset for item in held.running) == sorted(all_in_hand)
            assert dispatcher.running == sum(map(bool, in_hand))
            left = sorted([*buffer, *all_in_hand])
            assert held.progress.watermark == (left[0] if left else following)
        room.close()

    asyncio.run(main())
