"""Retries use the time there is: brokers that are away, that refuse, or that leave the route, while calls have time left."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import process_time
from typing import Any

import pytest

from rmq_async import Message, MessageQueue, Producer, SendError, TransactionProducer, TransactionStatus
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import (
    ClientStateError,
    ConnectError,
    RequestTimeoutError,
    RocketMQError,
    ServiceNotAvailableError,
)
from rmq_protocol.route import BrokerData, TopicRouteData

from ..support.fakes import Cluster, Link, Sent, cut, each, refuse, silence, stored
from .support import Calls, message, messages, outcomes, producer, spin, timed, until

pytestmark = pytest.mark.virtual_time

CHOICES: list[tuple[Message, dict[str, Any]]] = [(messages(2)[0], {}), (messages(2)[1], {"key": 1})]
QUEUE = MessageQueue("T", "broker-a", 0)


async def gathered_batch(sender: Producer, **options: Any) -> Any:
    return (await sender.send_batch([message(), message()], **options)).results


async def deferred_batch(sender: Producer, **options: Any) -> Any:
    return (await (await sender.send_batch_async([message(), message()], **options))).results


WAYS: dict[str, Callable[..., Awaitable[Any]]] = {
    "send": lambda sender, **options: sender.send(message(), **options),
    "send with a queue": lambda sender, **options: sender.send(message(), queue=QUEUE, **options),
    "send with a key": lambda sender, **options: sender.send(message(), key="k", **options),
    "send_async": lambda sender, **options: resolved(sender.send_async(message(), **options)),
    "send_async with a key": lambda sender, **options: resolved(sender.send_async(message(), key="k", **options)),
    "send_batch": gathered_batch,
    "send_batch with a queue": lambda sender, **options: gathered_batch(sender, queue=QUEUE, **options),
    "send_batch_async": deferred_batch,
}


async def resolved(accepting: Awaitable[asyncio.Future[Any]]) -> Any:
    return await (await accepting)


@asynccontextmanager
async def away(server: EmbeddedRocketMQ, seconds: float) -> AsyncIterator[None]:
    """No server listens any more, and after some time those on the same ports do again."""
    await server.stop()
    await asyncio.sleep(0.01)  # until the clients have lost their connections
    coming = asyncio.create_task(_start(server, seconds))
    try:
        yield
    finally:
        await coming


async def _start(server: EmbeddedRocketMQ, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await server.start()


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as running:
        yield running


# -- a broker that is away


@pytest.mark.parametrize(
    "options", [{}, {"retries": 0, "async_retries": 0, "latency_fault": True}, {"batching": True}], ids=str
)
async def test_sends_wait_for_the_only_broker(server: EmbeddedRocketMQ, options: dict[str, Any]) -> None:
    """In all ways, those that were under way with a connection and those that come later."""
    async with Producer("group", namesrv=server.namesrv, **options) as sender:
        await asyncio.gather(*[send(sender) for send in WAYS.values()])
        before = len(server.messages("T"))
        async with away(server, 0.3):
            early = [asyncio.ensure_future(send(sender)) for send in WAYS.values()]
            await asyncio.sleep(0.1)
            results = await asyncio.gather(*early, *[send(sender) for send in WAYS.values()])
        stored_now = server.messages("T")[before:]
    assert len(stored_now) == 2 * (len(WAYS) + 3)
    assert {one.msg_id for one in stored_now} == {
        result.msg_id for each in results for result in (each if isinstance(each, tuple) else (each,))
    }


async def test_requests_and_transactions_wait_for_the_only_broker(server: EmbeddedRocketMQ) -> None:
    async def answering(replier: Producer) -> None:
        await until(lambda: server.messages("T"))
        await replier.reply(server.messages("T")[0], b"answer")

    transacting = TransactionProducer(
        "transacting",
        namesrv=server.namesrv,
        execute=lambda message, arg: TransactionStatus.COMMIT,
        check=lambda message: TransactionStatus.UNKNOWN,
    )
    async with Producer("asker", namesrv=server.namesrv) as asker, transacting:
        await asker.send(Message("warm", b"x"))
        await asker.fetch_publish_queues("T")
        await transacting.send(Message("warm", b"x"))
        async with away(server, 0.3):
            replier = asyncio.create_task(answering(asker))
            reply, result = await asyncio.gather(
                asker.request(message(b"question"), timeout=5.0), transacting.send_in_transaction(Message("warm", b"half"))
            )
        await replier
    assert reply.body == b"answer"
    assert result.local_status is TransactionStatus.COMMIT
    assert [one.body for one in server.messages("warm")] == [b"x", b"x", b"half"]


async def test_broker_that_comes_back_elsewhere_is_found(pair: Cluster) -> None:
    """The broker is the same, its address is another one, which only the name server knows."""
    old, new = pair.brokers
    pair.name_server.routes["T"] = TopicRouteData(pair.route(old).queue_datas, (BrokerData("a", {0: old.address}, "c"),))
    async with producer(pair, timeout=5.0) as sender:
        await sender.send(message())
        await old.stop()
        await until(lambda: not sender.health().brokers["a"].connected)
        waiting = [asyncio.ensure_future(sender.send(item, **options)) for item, options in CHOICES]
        await asyncio.sleep(0.3)
        pair.name_server.routes["T"] = TopicRouteData(pair.route(old).queue_datas, (BrokerData("a", {0: new.address}, "c"),))
        with timed(most=2.0):
            await asyncio.gather(*waiting)
    assert sorted(new.bodies) == [b"000000", b"000001"]


async def test_broker_added_meanwhile_is_used(pair: Cluster) -> None:
    pair.name_server.routes["T"] = pair.route(pair.a)
    async with producer(pair, timeout=5.0) as sender:
        await sender.send(message())
        await pair.a.stop()
        waiting = asyncio.ensure_future(sender.send(message(b"for any")))
        await asyncio.sleep(0.2)
        pair.name_server.routes["T"] = pair.route()
        with timed(most=2.0):
            assert (await waiting).queue.broker_name == "b"


async def test_route_without_the_broker_is_waited_for(pair: Cluster) -> None:
    """A broker that ends in order is not in the route any more, or is there with its replica only."""
    replica = TopicRouteData(pair.route().queue_datas, (BrokerData("a", {1: pair.a.address}, "c"),))
    async with producer(pair, timeout=5.0, route_poll_interval=0.1) as sender:
        for route, options in ((replica, {}), (replica, {"key": 1}), (pair.route(pair.b), {"queue": pair.queue(pair.a)})):
            pair.name_server.routes["T"] = pair.route(pair.a)
            await sender.send(message())
            pair.name_server.routes["T"] = route
            asked = len(pair.name_server.asked)
            await until(lambda asked=asked: len(pair.name_server.asked) >= asked + 2)
            waiting = [asyncio.ensure_future(sender.send(item, **options)) for item in messages(50)]
            waiting += [asyncio.ensure_future(resolved(sender.send_async(item, **options))) for item in messages(50)]
            asked = len(pair.name_server.asked)
            await asyncio.sleep(0.3)
            assert not any(call.done() for call in waiting)
            assert len(pair.name_server.asked) - asked < 10, "they ask together"
            pair.name_server.routes["T"] = pair.route(pair.a)
            with timed(most=1.5):
                await asyncio.gather(*waiting)
    assert not pair.b.sends


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Tasks may begin at once from Python 3.12 on")
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_route_without_the_broker_with_eager_tasks(pair: Cluster) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    async with producer(pair, timeout=30.0, route_poll_interval=0.1) as sender:
        await sender.send(message(), queue=pair.queue(pair.b))
        pair.name_server.routes["T"] = pair.route(pair.a)
        asked = len(pair.name_server.asked)
        await until(lambda: len(pair.name_server.asked) >= asked + 2)
        waiting = asyncio.ensure_future(sender.send(message(), queue=pair.queue(pair.b)))
        await asyncio.sleep(0.1)
        pair.name_server.routes["T"] = pair.route()
        assert (await waiting).queue == pair.queue(pair.b)


async def test_route_without_the_broker_ends_calls_in_time(pair: Cluster) -> None:
    async with producer(pair, timeout=0.3, route_poll_interval=0.1) as sender:
        await sender.send(message())
        replica = BrokerData("a", {1: pair.a.address}, "c")
        pair.name_server.routes["T"] = TopicRouteData(pair.route().queue_datas, (replica,))
        asked = len(pair.name_server.asked)
        await until(lambda: len(pair.name_server.asked) >= asked + 2)
        for options in ({}, {"key": 1}, {"queue": pair.queue()}):
            with timed(0.3, 0.3), pytest.raises(RocketMQError, match="master's address"):
                await sender.send(message(), **options)


async def test_thousands_wait_for_a_broker_together() -> None:
    """No call does anything by itself meanwhile, nor do they come all at once when it is back."""
    async with Cluster(1) as cluster, producer(cluster, timeout=20.0) as sender:
        await sender.send(message())
        await cluster.a.stop()
        await until(lambda: not sender.health().brokers["a"].connected)
        waiting = [asyncio.ensure_future(sender.send(item)) for item in messages(2000)]
        waiting += [asyncio.ensure_future(resolved(sender.send_async(item))) for item in messages(2000)]
        asked = len(cluster.name_server.asked)
        await asyncio.sleep(1.0)
        busy = []
        for _ in range(3):  # a busy machine makes the poll of routes and connects dearer than they are
            began = process_time()
            await asyncio.sleep(0.3)
            busy.append(process_time() - began)
        limit = 0.25 if sys.gettrace() else 0.1  # coverage takes 2.5 times the CPU
        assert min(busy) < limit, f"none of them does anything meanwhile: {busy}"
        assert len(cluster.name_server.asked) - asked <= 5
        accepted, under_way, most = len(cluster.a.links), 0, 0

        def later(link: Link, sent: Sent) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            asyncio.get_running_loop().call_later(0.001, answer, link, sent)

        def answer(link: Link, sent: Sent) -> None:
            nonlocal under_way
            under_way -= 1
            stored(link, sent)

        cluster.a.answer = later
        await cluster.a.start()
        results = await asyncio.gather(*waiting)
    assert len({result.msg_id for result in results}) == 4000
    assert len(cluster.a.links) - accepted == 1
    assert most < 3000, "a broker that has just started is not given all of them at once"


@pytest.mark.parametrize("choice", ["none", "queue", "key"])
async def test_waiting_call_ends_at_its_deadline(cluster: Cluster, choice: str) -> None:
    async with producer(cluster) as sender:
        await sender.send(message())
        await cluster.a.stop()
        await until(lambda: not sender.health().brokers["a"].connected)
        options = {"none": {}, "queue": {"queue": cluster.queue()}, "key": {"key": 1}}[choice]
        with timed(0.6, 0.6), pytest.raises(SendError) as caught:
            await sender.send(message(), timeout=0.6, **options)
    error = caught.value
    assert not error.maybe_stored
    assert [type(attempt.error) for attempt in error.attempts] == [ConnectError, ConnectError]
    assert "send to topic T failed" in str(error)
    assert "Connection refused" in str(error)
    assert re.search(rf"no connection to {cluster.a.address} for \d", str(error))
    assert "within" not in str(error)


@pytest.mark.parametrize("choice", ["none", "queue", "key"])
async def test_call_within_the_back_off_names_the_refusal(cluster: Cluster, choice: str) -> None:
    async with producer(cluster) as sender:
        await sender.send(message())
        await cluster.a.stop()
        await until(lambda: not sender.health().brokers["a"].connected)
        options = {"none": {}, "queue": {"queue": cluster.queue()}, "key": {"key": 1}}[choice]
        for _ in range(4):  # the back-off grows until one connect takes more than the next call's whole time
            with timed(0.3, 0.3), pytest.raises((SendError, RequestTimeoutError)) as caught:
                await sender.send(message(), timeout=0.3, **options)
            assert not caught.value.maybe_stored
            assert "Connection refused" in str(caught.value)
            assert "within" not in str(caught.value)


async def test_waiting_call_leaves_when_cancelled_or_stopped(cluster: Cluster) -> None:
    calls = Calls()
    sender = producer(cluster, timeout=30.0)
    async with sender:
        await sender.send(message())
        await cluster.a.stop()
        await until(lambda: not sender.health().brokers["a"].connected)
        waiting = [asyncio.ensure_future(send(sender)) for send in (WAYS["send"], WAYS["send with a key"], WAYS["send_async"])]
        futures = [await sender.send_async(message(), **calls.both) for _ in range(2)]
        await asyncio.sleep(0.2)
        waiting[0].cancel()
        futures[0].cancel()
        await spin(5)
        assert waiting[0].cancelled()
        with timed(most=0.3):
            await sender.stop(0.1)
        ended = await outcomes(*waiting[1:], futures[1])
    assert {type(error) for error in ended} == {ClientStateError}
    assert not any(error.maybe_stored for error in ended)
    assert sorted(type(error).__name__ for error in calls.errors) == ["CancelledError", "ClientStateError"]


# -- brokers that answer


async def test_many_retries_are_spread_over_the_time(cluster: Cluster) -> None:
    cluster.answer(refuse(14, "not now"))
    async with producer(cluster, retries=100, async_retries=100, topics=["T"]) as sender:
        with timed(0.7, 1.0), pytest.raises(SendError) as caught:
            await sender.send(message(), timeout=1.0)
    error = caught.value
    assert 5 <= error.made == len(cluster.sends) <= 16
    gaps = [after - before for before, after in itertools.pairwise(cluster.a.times)]
    assert 0.02 < gaps[0] < 0.1
    assert 0.045 < gaps[1] < 0.2
    assert max(gaps) > 0.15
    assert type(error.__cause__) in (ServiceNotAvailableError, RequestTimeoutError)  # the last one may find a busy machine
    assert error.maybe_stored == isinstance(error.__cause__, RequestTimeoutError)


async def test_no_attempt_begins_late(cluster: Cluster) -> None:
    """The loop is blocked during the pause before a retry, until the time of the call is over."""

    def refuse_and_block(link: Link, sent: Sent) -> None:
        refuse(14)(link, sent)
        asyncio.get_running_loop().call_later(0.02, time.sleep, 0.6)  # the second pause takes 50 ms at least

    async with producer(cluster, retries=5) as sender:
        await sender.send(message(b"connects"))
        cluster.answer(each(refuse(14), refuse_and_block, stored))
        with pytest.raises(RocketMQError):
            await sender.send(message(b"late"), timeout=0.5)
        await sender.send(message(b"last"))
    assert cluster.a.bodies == [b"connects", b"late", b"late", b"last"]


async def test_default_retries_are_three_attempts(cluster: Cluster) -> None:
    cluster.answer(refuse(14, "not now"))
    async with producer(cluster, timeout=30.0) as sender:
        for send in (sender.send(message()), resolved(sender.send_async(message())), sender.send_batch([message()])):
            with timed(0.06, 0.3), pytest.raises(SendError) as caught:
                await send
            assert (caught.value.made, len(caught.value.attempts)) == (3, 3)
        with timed(most=0.05), pytest.raises(ServiceNotAvailableError):
            await sender.send(message(), queue=cluster.queue())


async def test_broker_that_recovers_within_the_time_stores(cluster: Cluster) -> None:
    answers = iter([refuse(14)] * 5)
    cluster.a.answer = lambda link, sent: next(answers, stored)(link, sent)
    async with producer(cluster, retries=100, timeout=10.0) as sender:
        assert (await sender.send(message())).attempts == 6


async def test_attempts_that_reached_no_broker_do_not_count(cluster: Cluster) -> None:
    """The broker goes away in order, is gone for a while, and refuses twice when it is back."""
    cluster.a.answer = each(refuse(1500), refuse(1500), refuse(14), refuse(14), stored)
    async with producer(cluster, timeout=10.0) as sender:
        call = asyncio.ensure_future(sender.send(message()))
        await until(lambda: len(cluster.sends) == 2)
        await cluster.a.stop()
        await asyncio.sleep(0.5)
        await cluster.a.start()
        result = await call
    assert result.attempts >= 5
    assert len(cluster.sends) == 5


async def test_chosen_queue_is_tried_until_a_broker_may_have_the_message(cluster: Cluster) -> None:
    async with producer(cluster, timeout=5.0) as sender:
        for answer, error, may in ((cut, RocketMQError, True), (refuse(14), ServiceNotAvailableError, False)):
            await cluster.a.stop()
            call = asyncio.ensure_future(sender.send(message(), queue=cluster.queue()))
            await asyncio.sleep(0.1)
            cluster.a.answer, sends = each(refuse(1500), answer), len(cluster.sends)
            await cluster.a.start()
            with pytest.raises(SendError) as caught:
                await call
            assert isinstance(caught.value.__cause__, error)
            assert (caught.value.maybe_stored, len(cluster.sends) - sends) == (may, 2)


# -- what errors say


async def test_send_error_of_many_attempts_is_short(cluster: Cluster) -> None:
    topic = "T" * 127
    cluster.name_server.routes[topic] = cluster.route()
    remark = "an obstinate broker says\n" * 100
    cluster.answer(refuse(14, remark))
    async with producer(cluster, retries=100) as sender:
        with pytest.raises(SendError) as caught:
            await sender.send(message(topic=topic), timeout=0.7)
        error = caught.value
        text = str(error)
        assert len(text.encode()) < 1024
        assert "\n" not in text
        assert "\\n" not in text
        assert f"failed after {error.made} attempts" in text
        late = isinstance(error.__cause__, RequestTimeoutError)  # the last one may find a busy machine
        assert text.count("SERVICE_NOT_AVAILABLE") == 4 - late, "of the first two and the newest two"
        assert f"{error.made - 4} more ({error.made - 4} ServiceNotAvailableError)" in text
        cluster.a.answer = each(*[refuse(code, remark) for code in (1, 14, 13)])
        with pytest.raises(SendError) as caught:
            await sender.send(message(topic=topic))
        assert len(str(caught.value).encode()) < 1024
        for text in ("SYSTEM_ERROR", "SERVICE_NOT_AVAILABLE", "MESSAGE_ILLEGAL", cluster.a.address, topic):
            assert text in str(caught.value)


async def test_error_at_a_deadline_says_what_was_awaited(cluster: Cluster) -> None:
    cluster.answer(silence)
    async with producer(cluster, retries=0, async_retries=0) as sender:
        for options in ({}, {"queue": cluster.queue()}):
            for send in (sender.send, lambda item, **options: resolved(sender.send_async(item, **options))):
                with pytest.raises(RequestTimeoutError) as caught:
                    await send(message(), timeout=0.2, **options)
                text = str(caught.value)
                assert "topic T" in text
                assert re.search(r"after \d[\d.]* s on a:", text), text
                assert cluster.a.address in text
