"""Sends with a queue, a selector or a key are stored in the order of their calls, by brokers that handle requests in any order."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

from rmq_async import (
    Batching,
    Hook,
    Message,
    MessageQueue,
    Producer,
    SendContext,
    SendResult,
    TransactionProducer,
    TransactionStatus,
    errors,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import ForbiddenError
from rmq_protocol.constants import RequestCode

from ..support.fakes import TOPIC, Cluster, Link, MostUnderWay, Sent, each, late, refuse, silence, stored
from .support import core_of, message, messages, outcomes, producer, queue_places, seeded, spin, timed, until

pytestmark = pytest.mark.virtual_time

SENDS = 240
KEYS = 4
SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE

Way = Callable[[Producer, Message, int], Awaitable[Any]]
"""Sends a message in the order of the lane that the number names."""

gathering = pytest.mark.parametrize("batching", [False, True], ids=["single", "gathered"])


async def by_key(sender: Producer, item: Message, lane: int) -> Any:
    return await sender.send(item, key=f"key {lane}")


async def by_queue(sender: Producer, item: Message, lane: int) -> Any:
    return await sender.send(item, queue=MessageQueue(TOPIC, "broker-a", lane))


async def by_selector(sender: Producer, item: Message, lane: int) -> Any:
    return await sender.send(item, selector=lambda queues, _message, key: queues[key], key=lane)


async def by_slow_selector(sender: Producer, item: Message, lane: int) -> Any:
    async def choose(queues: Sequence[MessageQueue], _message: Message, key: Any) -> MessageQueue:
        await asyncio.sleep(0.0005 if item.body.endswith(b"0") else 0)
        return queues[key]

    return await sender.send(item, selector=choose, key=lane)


async def by_sharding_key(sender: Producer, item: Message, lane: int) -> Any:
    return await sender.send(Message(TOPIC, item.body, sharding_key=f"key {lane}"))


async def asynchronously(sender: Producer, item: Message, lane: int) -> Any:
    return await (await sender.send_async(item, key=f"key {lane}"))


async def in_batches(sender: Producer, item: Message, lane: int) -> Any:
    queue = MessageQueue(TOPIC, "broker-a", lane)
    if item.body.endswith(b"5"):
        return await (await sender.send_batch_async([item], queue=queue))
    return await sender.send_batch([item], queue=queue)


async def mixed(sender: Producer, item: Message, lane: int) -> Any:
    """Small, large and compressed ones, such as need not wait for a disk, batches, awaited and asynchronous."""
    number, queue = int(item.body), MessageQueue(TOPIC, "broker-a", lane)
    if number % 7 == 0:
        return await sender.send(Message(TOPIC, item.body + bytes(5000)), queue=queue)
    if number % 11 == 0:
        return await sender.send(Message(TOPIC, item.body + os.urandom(100_000)), queue=queue)
    if number % 5 == 0:
        return await sender.send(Message(TOPIC, item.body, wait_store=False), queue=queue)
    if number % 3 == 0:
        return await sender.send_batch([item], queue=queue)
    if number % 2 == 0:
        return await (await sender.send_async(item, queue=queue))
    return await sender.send(item, queue=queue)


WAYS = [by_key, by_queue, by_selector, by_slow_selector, by_sharding_key, asynchronously, in_batches, mixed]


def inversions(server: EmbeddedRocketMQ, topic: str = TOPIC) -> int:
    """Neighbours in a lane, of all that is stored, of which the later call is stored first. Bodies begin with the call's number."""
    lanes: dict[int, list[int]] = defaultdict(list)
    for found in server.messages(topic):
        number = int(found.body[:6])
        lanes[number % KEYS].append(number)
    return sum(first > second for lane in lanes.values() for first, second in pairwise(lane))


@gathering
@pytest.mark.parametrize("way", WAYS)
async def test_order_of_calls_is_the_stored_one(way: Way, batching: bool) -> None:
    """From a cold start, with no route and no connection, and then all at once on a warm client."""
    async with EmbeddedRocketMQ() as server:
        server.shuffle(seeded().randrange(1 << 32))
        async with Producer("ordered", namesrv=server.namesrv, batching=batching, timeout=10.0) as sender:
            calls = [(item, number % KEYS) for number, item in enumerate(messages(SENDS))]
            results = await asyncio.gather(*[way(sender, item, lane) for item, lane in calls[: SENDS // 4]])
            results += await asyncio.gather(*[way(sender, item, lane) for item, lane in calls[SENDS // 4 :]])
        assert {result.attempts for result in results} == {1}
        assert len(server.messages(TOPIC)) == SENDS
        assert inversions(server) == 0


async def test_plain_sends_lose_their_order() -> None:
    """What the others would show, too, if more than one request were under way."""
    async with EmbeddedRocketMQ() as server:
        server.shuffle(seeded().randrange(1 << 32))
        async with Producer("ordered", namesrv=server.namesrv, topics=[TOPIC]) as sender:
            await sender.send(message(b"000000"))
            server.clear()
            await asyncio.gather(*[sender.send(item) for item in messages(SENDS)])
        assert inversions(server) > 0


@gathering
async def test_retries_on_the_same_queue_keep_the_order(batching: bool) -> None:
    source = seeded()
    async with EmbeddedRocketMQ() as server:
        server.shuffle(source.randrange(1 << 32))
        options: dict[str, Any] = {"retry_same_queue": True, "retries": 10, "batching": batching, "timeout": 20.0}
        async with Producer("ordered", namesrv=server.namesrv, **options) as sender:
            calls = []
            for number, item in enumerate(messages(SENDS)):
                calls.append(asyncio.ensure_future(mixed(sender, item, number % KEYS)))
                if number % 20 == 0:
                    await asyncio.sleep(0.001)
                    server.fail_next(14, 1, request=source.choice([SINGLE, BATCH]))
            results = await asyncio.gather(*calls)
        assert max(result.attempts for result in results) > 1
        assert inversions(server) == 0


async def test_broker_that_sends_clients_away_keeps_the_order(cluster: Cluster) -> None:
    """The request that it has not looked at goes once more, before all that come after it."""
    cluster.a.answer = each(refuse(1500), stored)
    async with producer(cluster, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item, key="k", timeout=5.0) for item in messages(50)])
    assert max(result.attempts for result in results) == 2
    assert [result.queue_offset for result in results] == sorted(result.queue_offset for result in results)


@gathering
async def test_one_request_of_a_queue_is_under_way(cluster: Cluster, batching: bool) -> None:
    """Of all kinds together; those that wait meanwhile travel as one batch."""
    under_way = MostUnderWay()
    cluster.a.answer = under_way
    async with producer(cluster, batching=batching, timeout=10.0) as sender:
        calls: list[Awaitable[Any]] = []
        for number, item in enumerate(messages(100)):
            queue = cluster.queue(queue_id=number % 2)
            calls.append(sender.send(item, queue=queue))
            if number % 4 == 1:
                calls.append(sender.send(Message(TOPIC, bytes(5000)), queue=queue))
            elif number % 4 == 2:
                calls.append(sender.send_batch(messages(2), queue=queue))
            elif number % 4 == 3:
                calls.append(sender.send(message(delay_level=1), queue=queue))
        await asyncio.gather(*calls)
        single = len(cluster.sends)
        await asyncio.gather(*[sender.send(item, key="k") for item in messages(100)])
    assert set(under_way.most.values()) == {1}
    assert len(under_way.most) == 2
    assert len(cluster.sends) - single <= 2, "the first at most by itself, all others together"


async def test_queues_do_not_wait_for_one_another(cluster: Cluster) -> None:
    """One queue gets no answers; sends to the other one go on, and those that wait for the first end by their own deadlines."""

    def answer(link: Link, sent: Sent) -> None:
        (silence if sent.queue.queue_id == 0 else stored)(link, sent)

    async with producer(cluster, timeout=5.0, topics=[TOPIC], stop_timeout=0.0) as sender:
        await sender.send(message())
        cluster.a.answer = answer
        first = asyncio.ensure_future(sender.send(message(b"first"), queue=cluster.queue(queue_id=0)))
        await until(lambda: cluster.sends[-1].body == b"first")
        with timed(0.2, 0.2):
            waiting = [
                asyncio.ensure_future(sender.send(item, queue=cluster.queue(queue_id=0), timeout=0.2)) for item in messages(20)
            ]
            with timed(most=0.1):
                await asyncio.gather(*[sender.send(item, queue=cluster.queue(queue_id=1)) for item in messages(200)])
            ended = await outcomes(*waiting)
        assert {(type(error), error.maybe_stored) for error in ended} == {(errors.RequestTimeoutError, False)}
        assert "was not sent: it waited" in str(ended[0])
        first.cancel()
        await outcomes(first)
    assert [sent.body for sent in cluster.sends if sent.queue.queue_id == 0][-1] == b"first"


async def test_call_without_connection_is_not_sent(cluster: Cluster) -> None:
    """A member whose time is over while its batch waits for a connection leaves the batch; the others are sent without it."""
    source = seeded()
    async with producer(cluster, timeout=5.0, topics=[TOPIC], retry_same_queue=True, retries=1000) as sender:
        await sender.send(message(), key="k")
        cluster.a.sends.clear()
        await cluster.a.stop()
        await until(lambda: not sender.health().brokers["a"].connected)
        items = messages(30)
        short = source.sample(range(30), 10)
        calls = [
            asyncio.ensure_future(sender.send(item, key="k", timeout=0.3 if number in short else 5.0))
            for number, item in enumerate(items)
        ]
        ended = await outcomes(*[calls[number] for number in short])
        assert {getattr(error, "maybe_stored", error) for error in ended} == {False}
        await cluster.a.start()
        left = [number for number in range(30) if number not in short]
        results = await asyncio.gather(*[calls[number] for number in left])
    assert [body for sent in cluster.sends for body in sent.bodies] == [items[number].body for number in left]
    offsets = [result.queue_offset for result in results]
    assert offsets == sorted(offsets)


async def test_transactions_of_a_sharding_key_keep_their_order() -> None:
    def commit(*_: Any) -> TransactionStatus:
        return TransactionStatus.COMMIT

    async with EmbeddedRocketMQ() as server:
        server.shuffle(seeded().randrange(1 << 32))
        options: dict[str, Any] = {"execute": commit, "check": commit, "namesrv": server.namesrv, "timeout": 10.0}
        async with TransactionProducer("ordered", **options) as sender:
            items = [Message(TOPIC, b"%06d" % number, sharding_key=f"key {number % KEYS}") for number in range(60)]
            await asyncio.gather(*[sender.send_in_transaction(item) for item in items])
        assert inversions(server, "RMQ_SYS_TRANS_HALF_TOPIC") == 0


async def test_oneway_sends_are_written_in_call_order(cluster: Cluster) -> None:
    """Also among others, which wait for answers meanwhile."""
    cluster.a.answer = late(0.002)
    items = messages(120)
    async with producer(cluster, oneway_window=0) as sender:
        calls = [
            sender.send_oneway(item, key="k") if number % 3 else sender.send(item, key="k") for number, item in enumerate(items)
        ]
        await asyncio.gather(*calls)
        await until(lambda: sum(len(sent.bodies) for sent in cluster.sends) == 120)
    assert [body for sent in cluster.sends for body in sent.bodies] == [item.body for item in items]


async def test_oneway_send_waits_in_its_time(cluster: Cluster) -> None:
    """Behind one that is not answered: it is not sent, and what comes after it is none the worse when it is cancelled."""
    cluster.a.answer = each(silence, stored)
    async with producer(cluster, timeout=0.5, topics=[TOPIC]) as sender:
        first = asyncio.ensure_future(sender.send(message(b"first"), key="k"))
        await until(lambda: cluster.sends)
        with timed(0.1, 0.1), pytest.raises(errors.RequestTimeoutError) as caught:
            await sender.send_oneway(message(b"short"), key="k", timeout=0.1)
        assert not caught.value.maybe_stored
        gone = asyncio.ensure_future(sender.send_oneway(message(b"gone"), key="k", timeout=5.0))
        last = asyncio.ensure_future(sender.send_oneway(message(b"last"), key="k", timeout=5.0))
        await spin(5)
        gone.cancel()
        await outcomes(first, gone)
        await last
        await until(lambda: len(cluster.sends) == 2)
    assert [sent.body for sent in cluster.sends] == [b"first", b"last"]


# -- hooks


CALLER: ContextVar[str] = ContextVar("CALLER")


class Watching(Hook):
    """Keeps what it sees. ``forbidden``: the body of the message that it refuses."""

    def __init__(self, forbidden: bytes = b"") -> None:
        self.forbidden = forbidden
        self.checked: list[bytes] = []
        self.before: list[SendContext] = []
        self.after: list[tuple[SendContext, int, Any]] = []
        self.callers: list[str] = []

    def check_forbidden(self, context: SendContext) -> None:
        assert isinstance(context.message, Message)
        self.checked.append(context.message.body)
        if context.message.body == self.forbidden:
            raise ForbiddenError("not this one")

    def before_send(self, context: SendContext) -> None:
        assert isinstance(context.message, Message)
        context.properties["added"] = context.message.body.decode()
        self.before.append(context)
        self.callers.append(CALLER.get("none"))

    def after_send(self, context: SendContext) -> None:
        self.after.append((context, context.attempt, context.result or context.error))


@gathering
async def test_hooks_see_each_message_of_a_batch(cluster: Cluster, batching: bool) -> None:
    hook, items = Watching(), messages(10)

    async def call(item: Message, number: int) -> SendResult:
        CALLER.set(f"caller {number}")
        if number % 2:
            return await (await sender.send_async(item, key="k"))
        return await sender.send(item, key="k")

    async with producer(cluster, hooks=[hook], batching=batching, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[call(item, number) for number, item in enumerate(items)])
    (sent,) = cluster.sends
    assert hook.checked == [context.message.body for context in hook.before] == [item.body for item in items]  # type: ignore[union-attr]
    assert [context for context, _, _ in hook.after] == hook.before
    assert [(attempt, result) for _, attempt, result in hook.after] == [(1, result) for result in results]
    assert [context.msg_ids for context in hook.before] == [(result.msg_id,) for result in results]
    assert [context.mode for context in hook.before] == ["sync", "async"] * 5
    assert hook.callers == [f"caller {number}" for number in range(10)]
    assert [b"added\x01" + item.body in record.properties for item, record in zip(items, sent.batch, strict=True)] == [
        True
    ] * 10


@gathering
async def test_message_that_a_hook_forbids_fails_alone(cluster: Cluster, batching: bool) -> None:
    hook = Watching(b"000003")
    async with producer(cluster, hooks=[hook], batching=batching, topics=[TOPIC]) as sender:
        ended = await outcomes(*[sender.send(item, key="k") for item in messages(10)])
    assert [type(each_one) for each_one in ended] == [SendResult] * 3 + [ForbiddenError] + [SendResult] * 6
    assert len(cluster.sends) == 1
    assert Counter(hook.checked) == dict.fromkeys([item.body for item in messages(10)], 1)
    assert len(hook.before) == len(hook.after) == 9


@pytest.mark.parametrize("number", [1, 2, 5])
async def test_hooks_see_each_attempt_of_each_message(cluster: Cluster, number: int) -> None:
    """A batch that is refused and sent again, and one that was refused for one of its messages."""
    hook = Watching()
    cluster.a.answer = each(refuse(14), stored)
    async with producer(cluster, hooks=[hook], retry_same_queue=True, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item, key="k") for item in messages(number)])
        assert [(context.msg_id, attempt) for context, attempt, _ in hook.after] == [
            (result.msg_id, attempt) for attempt in (1, 2) for result in results
        ]
        assert [type(result) for _, _, result in hook.after] == [errors.ServiceNotAvailableError] * number + [
            SendResult
        ] * number
        hook.after.clear()
        cluster.a.answer = lambda link, sent: (refuse(13) if b"000000" in sent.bodies else stored)(link, sent)
        await outcomes(*[sender.send(item, key="k") for item in messages(number)])
    counted = Counter(context.msg_id for context, _, _ in hook.after)
    assert len(counted) == number
    assert all(attempt <= counted[context.msg_id] for context, attempt, _ in hook.after)


async def test_hook_sees_the_end_of_a_member_when_it_ends(cluster: Cluster) -> None:
    """One is cancelled and one has less time while their batch is under way."""
    hook = Watching()
    cluster.a.answer = late(0.6)
    async with producer(cluster, hooks=[hook], topics=[TOPIC]) as sender:
        kept, gone, short = [
            asyncio.ensure_future(sender.send(item, key="k", timeout=timeout))
            for item, timeout in zip(messages(3), (3.0, 3.0, 0.3), strict=True)
        ]
        await until(lambda: cluster.sends)
        gone.cancel()
        await outcomes(gone, short)
        assert [type(result) for _, _, result in hook.after] == [asyncio.CancelledError, errors.RequestTimeoutError]
        result = await kept
    assert [result for _, _, result in hook.after][2:] == [result]


async def test_hook_that_exits_refuses_one_message(cluster: Cluster, loop_errors: list[dict[str, Any]]) -> None:
    """One with a bug refuses the message that it failed for, and no other."""

    class Broken(Hook):
        def check_forbidden(self, context: SendContext) -> None:
            assert isinstance(context.message, Message)
            if context.message.body == b"000001":
                raise ZeroDivisionError("a bug")

    async with producer(cluster, hooks=[Broken()], topics=[TOPIC]) as sender:
        ended = await outcomes(*[sender.send(item, key="k") for item in messages(4)])
    assert [type(each_one) for each_one in ended] == [SendResult, ForbiddenError, SendResult, SendResult]
    assert not loop_errors


async def test_trace_has_a_record_for_each_message() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Producer("ordered", namesrv=server.namesrv, trace="Traces", topics=[TOPIC]) as sender:
            results = await asyncio.gather(*[sender.send(item, key="k") for item in messages(20)])
        found = b"".join(each_one.body for each_one in server.messages("Traces"))
    assert found.count(b"\x02") == 20
    assert all(result.msg_id.encode() in found for result in results)


# -- bounds


async def test_queues_that_are_idle_are_forgotten(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(), topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(message(), queue=cluster.queue(queue_id=number)) for number in range(2000)])
        assert not queue_places(core_of(sender).batcher)
        await sender.send_oneway(message(), queue=cluster.queue())
        assert not queue_places(core_of(sender).batcher)


async def test_batches_of_waiting_sends_are_bounded(cluster: Cluster) -> None:
    """By number and by bytes, as gathered batches are by default."""
    cluster.a.answer = each(late(0.05), stored)
    async with producer(cluster, topics=[TOPIC]) as sender:
        items = [message(b"x" * 1000) for _ in range(3000)]
        await asyncio.gather(*[sender.send(item, key="k", timeout=10.0) for item in items])
    assert max(len(sent.bodies) for sent in cluster.sends) <= 1024
    assert max(len(sent.body) for sent in cluster.sends) <= 256 * 1024
    assert sum(len(sent.bodies) for sent in cluster.sends) == 3000
