"""What the first version of batching did wrong, and small things that are easily broken again."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
from msgspec.structs import force_setattr, replace

from rmq_async import Batching, Hook, Message, Producer, SendResult, errors
from rmq_async.errors import ForbiddenError
from rmq_protocol.route import BrokerData

from ...support.fakes import TOPIC, Cluster, each, late, silence, stored
from ...support.instances import client_of
from ..support import core_of, message, messages, outcomes, producer, spin, tasks_named, timed, until
from .support import later, numbers, requests

pytestmark = pytest.mark.virtual_time

SEARCH = "rmq_async route of a batch"


def bodies(cluster: Cluster) -> list[bytes]:
    return [body for request in requests(cluster) for body in request]


@pytest.mark.parametrize(
    "further",
    [
        pytest.param([message(b"3" * 5000), message(b"4")], id="one that goes alone"),
        pytest.param([message(b"3", wait_store=False)], id="another wait_store"),
    ],
)
async def test_an_ordered_lane_goes_on_after_all_that_gathered_were_cancelled(cluster: Cluster, further: list[Message]) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster, batching=True, timeout=1.0) as sender:
        first = later(sender.send(message(b"1"), key="k"))
        await until(lambda: cluster.sends)
        second = later(sender.send(message(b"2"), key="k"))
        await spin(5)
        second.cancel()
        await spin(5)
        results = await outcomes(first, *[later(sender.send(item, key="k")) for item in further])
    assert [getattr(result, "queue_offset", result) for result in results] == [*range(1 + len(further))]


async def test_a_topic_with_and_without_its_namespace_in_one_ordered_lane(cluster: Cluster) -> None:
    cluster.name_server.routes["ns%T"] = cluster.route()
    async with producer(cluster, batching=True, namespace="ns", timeout=1.0) as sender:
        items = [message(b"1"), message(b"2", topic="ns%T"), message(b"3")]
        results = await outcomes(*[sender.send(item, key="k") for item in items])
        results += await outcomes(sender.send(message(b"4"), key="k"))
    assert sorted([getattr(result, "queue_offset", result) for result in results]) == [0, 1, 2, 3]
    assert sorted(bodies(cluster)) == [b"1", b"2", b"3", b"4"]


class Odd(ForbiddenError):
    """One that no copy can be made of."""

    def __init__(self, text: str, *, why: int) -> None:
        super().__init__(text)
        self.why = why


class Refusing(Hook):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def check_forbidden(self, context: Any) -> None:
        raise self.error


async def test_an_error_that_cannot_be_copied_reaches_all(cluster: Cluster) -> None:
    error = Odd("no", why=1)
    async with producer(cluster, batching=True, hooks=[Refusing(error)], timeout=0.5) as sender:
        results = await outcomes(*[sender.send(item) for item in messages(5)])
        assert [type(result) for result in results] == [Odd] * 5


async def without_a_route(sender: Producer, calls: list[Any]) -> list[asyncio.Future[Any]]:
    """The calls wait for a search for the route that has not begun yet."""
    await sender.fetch_publish_queues(TOPIC)
    table = core_of(sender).topics
    futures = [later(call) for call in calls]
    await spin(1)
    table.queues_by_topic.clear()
    now, table.now = table.now, lambda topic: None  # type: ignore[method-assign]
    await spin(1)
    table.now = now  # type: ignore[method-assign]
    assert len(tasks_named(SEARCH)) == 1
    return futures


async def test_thousands_of_refused_requests_do_not_lead_into_each_other(cluster: Cluster) -> None:
    """They are sent when the route is there, and refused at once, all in one step of the loop."""
    hooks, batching = [Refusing(ForbiddenError("no"))], Batching(max_messages=1)
    async with producer(cluster, batching=batching, hooks=hooks, timeout=2.0) as sender:
        await sender.fetch_publish_queues(TOPIC)
        table = core_of(sender).topics
        now, table.now = table.now, lambda topic: None  # type: ignore[method-assign]
        gathering = table.queues_by_topic[TOPIC].gathering
        assert gathering is not None
        table.queues_by_topic.clear()
        futures = [asyncio.get_running_loop().create_future() for _ in range(3000)]
        for future in futures:
            gathering.add(future, message(), 100, 1e12)
        table.now = now  # type: ignore[method-assign]
        results = await asyncio.wait_for(outcomes(*futures), 5.0)
    assert {type(result) for result in results} == {ForbiddenError}


async def test_a_callback_that_cancels_another_call_ends_nothing_else(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster, batching=Batching(lanes_per_broker=1), stop_timeout=0.0) as sender:
        first = later(sender.send(message(b"0")))
        await until(lambda: cluster.sends)
        waiting: list[asyncio.Future[Any]] = []
        future = await sender.send_async(message(b"1"), on_error=lambda _: waiting[0].cancel())
        waiting += [later(sender.send(message(b"2"))), later(sender.send(message(b"3")))]
        await spin(5)
    results = await asyncio.wait_for(outcomes(first, future, *waiting), 1.0)
    assert [type(result) for result in results] == [
        errors.ClientStateError, errors.ClientStateError, asyncio.CancelledError, errors.ClientStateError,
    ]  # fmt: skip


async def test_a_forgotten_lane_does_not_take_its_successor_away(cluster: Cluster) -> None:
    """With ``linger``: its timer may still run when the next one has something under way."""
    async with producer(cluster, batching=Batching(linger=0.05)) as sender:
        first = later(sender.send(message(b"1"), key="k"))
        await spin(20)
        await sender.flush()
        assert first.done()
        cluster.a.answer = late(0.2)
        second = later(sender.send(message(b"2"), key="k"))
        await spin(20)
        flushing = later(sender.flush())
        await until(lambda: len(cluster.sends) == 2)
        await asyncio.sleep(0.08)
        third = later(sender.send(message(b"3"), key="k"))
        await asyncio.sleep(0.08)
        assert len(cluster.sends) == 2, "the third goes when the second is answered"
        await asyncio.gather(first, second, third, flushing)


async def test_a_lane_is_free_again_when_no_call_waits_for_its_request(cluster: Cluster) -> None:
    cluster.a.answer = each(silence, stored)
    async with producer(cluster, batching=True, timeout=30.0, topics=[TOPIC]) as sender:
        calls = [later(sender.send(item, key="k")) for item in messages(3)]
        await until(lambda: cluster.sends)
        for call in calls:
            call.cancel()
        await asyncio.wait_for(sender.send(message(b"next"), key="k"), 1.0)
        assert numbers(cluster) == [3, 1]


async def test_a_message_that_waited_for_a_credit_does_not_end_the_others_early(cluster: Cluster) -> None:
    """It is added last and is the first whose time is over."""
    cluster.a.answer = each(late(0.3), silence)
    options: dict[str, Any] = {"async_limit": 2, "timeout": 0.5, "retries": 0, "topics": [TOPIC]}
    async with producer(cluster, batching=Batching(linger=0.02), **options) as sender:
        loop = asyncio.get_running_loop()
        order: list[str] = []

        async def worker() -> None:
            await sender.send(message(b"first"))
            began = loop.time()
            with pytest.raises(errors.RequestTimeoutError):
                await sender.send(message(b"fresh"))
            assert loop.time() - began > 0.45
            order.append("fresh")

        async def waiting() -> None:
            began = loop.time()
            with pytest.raises(errors.RequestTimeoutError):
                await sender.send(message(b"waited"))
            assert loop.time() - began < 0.75  # "fresh" ends 0.8 s after it began
            order.append("waited")

        calls = [later(sender.send(message(b"first"))), later(worker())]
        await spin(1)
        await asyncio.gather(*calls, later(waiting()))
    assert order == ["waited", "fresh"]
    assert [record.body for record in cluster.sends[1].batch] == [b"fresh", b"waited"]


async def test_a_search_for_the_route_that_others_cancel_is_made_anew(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, timeout=1.0) as sender:
        (call,) = await without_a_route(sender, [sender.send(message(b"1"))])
        (search,) = tasks_named(SEARCH)
        search.cancel()
        with pytest.raises(errors.ClientStateError):
            await call
        await asyncio.wait_for(sender.send(message(b"2")), 0.5)


async def test_a_full_batch_does_not_linger(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(linger=20.0, max_messages=2), timeout=30.0) as sender:
        calls = [later(sender.send(item, key="k")) for item in messages(5)]
        alone = later(sender.send(message(b"x" * 5000), key="k"))
        await asyncio.wait_for(asyncio.gather(*calls, alone), 2.0)
        plain = [later(sender.send(item)) for item in messages(4)]
        await asyncio.wait_for(asyncio.gather(*plain[:2]), 2.0)
        await asyncio.wait_for(sender.flush(), 2.0)
        await asyncio.gather(*plain)
    assert numbers(cluster) == [2, 2, 1, 1, 2, 2]


async def test_a_stop_does_not_linger(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.1
    async with producer(cluster, batching=Batching(linger=20.0), timeout=30.0) as sender:
        call = later(sender.send(message()))
        await spin(5)
        with timed(most=1.0):
            await sender.stop()
        assert (await call).queue_offset == 0


async def test_what_gathered_goes_where_the_queue_is_when_it_leaves(pair: Cluster) -> None:
    """The broker moves to another address while messages for its queue gather."""
    pair.a.answer = late(0.2)
    async with producer(pair, batching=True, timeout=2.0) as sender:
        first = later(sender.send(message(b"1"), queue=pair.queue(pair.a)))
        await until(lambda: pair.a.sends)
        second = later(sender.send(message(b"2"), queue=pair.queue(pair.a)))
        await spin(5)
        old = pair.name_server.routes[TOPIC]
        moved = BrokerData("a", {0: pair.b.address}, "c")
        pair.name_server.routes[TOPIC] = replace(old, broker_datas=(moved, *old.broker_datas[1:]))
        await (await client_of(sender)).routes.refresh(TOPIC, 1.0)
        await asyncio.gather(first, second)
    assert [sent.body for sent in pair.a.sends] == [b"1"]
    assert [sent.body for sent in pair.b.sends] == [b"2"]


class Seeing(Hook):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def before_send(self, context: Any) -> None:
        self.seen.append(VARIABLE.get("unset"))


VARIABLE: ContextVar[str] = ContextVar("VARIABLE")


async def test_hooks_of_a_batch_see_the_context_of_no_caller(cluster: Cluster) -> None:
    hook = Seeing()
    VARIABLE.set("the test's")
    async with producer(cluster, batching=True, hooks=[hook]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(5)])
        await sender.send(message())
        await sender.send(message(b"x" * 5000))
    assert hook.seen == ["unset", "unset", "the test's"]


async def test_a_message_that_is_spoiled_while_it_gathers_fails_alone(cluster: Cluster) -> None:
    spoiled = message(b"bad", properties={"a": "b"})
    cluster.a.answer = late(0.1)
    async with producer(cluster, batching=Batching(lanes_per_broker=1)) as sender:
        first = later(sender.send(message(b"0")))
        await until(lambda: cluster.sends)
        calls = [later(sender.send(item)) for item in messages(3)]
        calls.append(later(sender.send(spoiled, timeout=3.0)))  # with a timeout it is encoded when it leaves
        calls += [later(sender.send(item)) for item in messages(3)]
        await spin(5)
        force_setattr(spoiled, "properties", {"a": "x" * 40_000})
        results = await outcomes(*calls, first)
    assert [type(result) for result in results] == [SendResult] * 3 + [errors.InvalidMessageError] + [SendResult] * 4


async def test_a_member_that_has_waited_out_its_time_does_not_wait_in_a_request(cluster: Cluster) -> None:
    """Where the last who would wait is cancelled the request ends with those whose time is over."""
    cluster.a.answer = each(silence, stored)
    async with producer(cluster, batching=True, timeout=30.0, topics=[TOPIC]) as sender:
        short = later(sender.send(message(b"1"), key="k", timeout=0.1))
        long = later(sender.send(message(b"2"), key="k"))
        await until(lambda: cluster.sends)
        long.cancel()
        behind = later(sender.send(message(b"3"), key="k"))
        with pytest.raises(errors.RequestTimeoutError) as caught:
            await short
        assert caught.value.maybe_stored
        await asyncio.wait_for(behind, 1.0)
