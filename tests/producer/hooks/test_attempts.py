"""Hooks see every attempt exactly once before and once after it, for each way in which an attempt can end."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rmq_async import ClientStateError, ConnectError, Hook, Producer, RequestTimeoutError, SendContext, SendError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.trace import MessageType

from ...support.fakes import AfterNext, Cluster, each, refuse, reset, silence, stored
from ..support import message, messages, producer, spin, until
from .support import SEND, WAYS, Requests, Seen

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("name", WAYS)
async def test_a_send_that_is_stored_at_once(cluster: Cluster, name: str) -> None:
    seen = Seen()
    async with producer(cluster, hooks=[seen]) as sender:
        result = await WAYS[name](sender)
    assert seen.order == ["check", "before", "after"]
    assert seen.ended == [(1, "stored")]
    [context] = seen.contexts
    assert context.result == result
    assert (context.queue, context.broker, context.address) == (result.queue, "a", cluster.a.address)
    assert (context.group, context.mode, context.message_type) == (
        "group", "async" if name == "async" else "sync", MessageType.NORMAL
    )  # fmt: skip
    assert context.msg_id == (result.msg_ids[0] if name == "batch" else result.msg_id)
    assert 0 < context.elapsed < 1
    given = context.message if name == "batch" else (context.message,)
    assert [one.body for one in given] == [b"body"]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", WAYS)
async def test_each_retry_is_an_attempt_of_its_own(pair: Cluster, name: str) -> None:
    seen = Seen()
    pair.answer(each(refuse(2), stored))
    pair.a.answer = pair.b.answer = each(refuse(1), stored)
    async with producer(pair, hooks=[seen]) as sender:
        result = await WAYS[name](sender)
    assert seen.order == ["check", "before", "after"] * result.attempts
    assert [number for number, _ in seen.ended] == list(range(1, result.attempts + 1))
    assert seen.ended[-1] == (result.attempts, "stored")
    assert {how for _, how in seen.ended[:-1]} == {"BrokerSystemError"}
    assert len({context.msg_id for context in seen.contexts}) == 1


@pytest.mark.parametrize("name", WAYS)
async def test_a_late_answer_ends_the_call_and_each_attempt_is_reported_once(pair: Cluster, name: str) -> None:
    seen, requests = Seen(), Requests()
    pair.answer(AfterNext())
    async with producer(pair, hooks=[seen, requests], timeout=2.0, attempt_timeout=0.2) as sender:
        result = await WAYS[name](sender)
        assert result.attempts == 2
        assert len(seen.contexts) == 2
        assert seen.ended == [(1, "RequestTimeoutError"), (2, "GivenUpError")]
    assert requests.of(*SEND) == [(None, "RequestTimeoutError"), (None, "CancelledError")]
    assert requests.balanced


@pytest.mark.parametrize("name", WAYS)
async def test_no_answer_at_all(cluster: Cluster, name: str) -> None:
    seen, requests = Seen(), Requests()
    cluster.a.answer = silence
    async with producer(cluster, hooks=[seen, requests]) as sender:
        with pytest.raises(RequestTimeoutError):
            await WAYS[name](sender, timeout=0.3)
    assert seen.ended == [(1, "RequestTimeoutError")]
    assert 0.05 < seen.contexts[0].elapsed < 0.3 + 1  # the rest of the 0.3 s went into the route and the connection
    assert requests.of(*SEND) == [(None, "RequestTimeoutError")]


@pytest.mark.parametrize("name", WAYS)
async def test_no_connection(cluster: Cluster, name: str) -> None:
    seen = Seen()
    await cluster.a.stop()
    async with producer(cluster, hooks=[seen], retries=1, async_retries=1) as sender:
        await sender.fetch_publish_queues("T")
        expected = []
        for options in ({}, {"queue": cluster.queue()}):
            with pytest.raises(SendError) as caught:
                await WAYS[name](sender, timeout=2.0, **options)
            attempts = caught.value.attempts
            assert {type(attempt.error) for attempt in attempts} == {ConnectError}
            assert len(attempts) >= 2
            expected += [(number, "ConnectError") for number in range(1, len(attempts) + 1)]
        assert seen.ended == expected


@pytest.mark.parametrize("name", WAYS)
async def test_a_connection_that_breaks(cluster: Cluster, name: str) -> None:
    seen, requests = Seen(), Requests()
    cluster.a.answer = each(reset, stored)
    async with producer(cluster, hooks=[seen, requests]) as sender:
        await WAYS[name](sender)
    assert seen.ended == [(1, "ConnectionLostError"), (2, "stored")]
    assert requests.of(*SEND) == [(None, "ConnectionLostError"), (0, None)]


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", WAYS)
async def test_cancelled(pair: Cluster, name: str, explicit: bool) -> None:
    seen, requests = Seen(), Requests()
    pair.answer(silence)
    async with producer(pair, hooks=[seen, requests]) as sender:
        call = asyncio.ensure_future(WAYS[name](sender, **({"queue": pair.queue()} if explicit else {})))
        await until(lambda: pair.sends)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert seen.ended == [(1, "CancelledError")]
        await spin(2)  # what gathers for a queue looks after its requests once in an iteration
        assert requests.of(*SEND) == [(None, "CancelledError")]


@pytest.mark.parametrize("name", WAYS)
async def test_cancelled_in_its_second_attempt(pair: Cluster, name: str) -> None:
    seen = Seen()
    first = each(refuse(1), silence)
    pair.answer(lambda link, sent: first(link, sent))
    async with producer(pair, hooks=[seen]) as sender:
        call = asyncio.ensure_future(WAYS[name](sender))
        await until(lambda: len(pair.sends) == 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: len(seen.ends) == 2)
        assert seen.ended == [(1, "BrokerSystemError"), (2, "CancelledError")]


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("name", WAYS)
async def test_stopped(pair: Cluster, name: str, attempt: int) -> None:
    seen, requests = Seen(), Requests()
    first = each(*[refuse(1)] * (attempt - 1), silence)
    pair.answer(lambda link, sent: first(link, sent))
    sender = producer(pair, hooks=[seen, requests])
    await sender.start()
    call = asyncio.ensure_future(WAYS[name](sender))
    await until(lambda: len(pair.sends) == attempt)
    await sender.stop(0.05)
    with pytest.raises(ClientStateError):
        await call
    assert seen.ended[-1] == (attempt, "ClientStateError")
    assert len(seen.ended) == attempt
    assert len(requests.of(*SEND)) == attempt
    assert requests.of(*SEND)[-1][1] in ("ClientStateError", "CancelledError")


async def test_one_way(cluster: Cluster) -> None:
    seen, requests = Seen(), Requests()
    async with producer(cluster, hooks=[seen, requests], oneway_window=3) as sender:
        for _ in range(6):
            await sender.send_oneway(message())
        await sender.flush()
        assert seen.ended == [(1, "queued")] * 6
        assert {context.mode for context in seen.contexts} == {"oneway"}
        answers = Counter(requests.of(*SEND))
        assert set(answers) == {(None, None), (0, None)}
        assert sum(answers.values()) == 6
        assert requests.balanced
    await cluster.a.stop()
    async with producer(cluster, hooks=[seen]) as sender:
        with pytest.raises(ConnectError):
            await sender.send_oneway(message())
    assert seen.ended[6:] == [(1, "ConnectError")]


async def test_callbacks_come_after_the_hooks(cluster: Cluster) -> None:
    order: list[str] = []

    class Order(Hook):
        def after_send(self, context: SendContext) -> None:
            order.append("hook")

    async with producer(cluster, hooks=[Order()]) as sender:
        future = await sender.send_async(message(), on_success=lambda result: order.append("callback"))
        await future
        future = await sender.send_batch_async(messages(2), on_success=lambda result: order.append("callback"))  # type: ignore[assignment]
        await future
    assert order == ["hook", "callback"] * 2


async def test_kinds_of_messages(cluster: Cluster) -> None:
    seen = Seen()
    async with producer(cluster, hooks=[seen]) as sender:
        for options in ({}, {"delay_level": 1}, {"delay": 1.0}, {"deliver_at": 2e9}, {"sharding_key": "s"}):
            await sender.send(message(**options))
    delay = MessageType.DELAY
    assert [context.message_type for context in seen.contexts] == [MessageType.NORMAL, delay, delay, delay, MessageType.ORDER]


async def test_contexts_say_where_they_come_from() -> None:
    """As Java's SendMessageContext (bornHost) and CheckForbiddenContext (nameSrvAddr, unitMode) do."""
    seen = Seen()
    async with (
        EmbeddedRocketMQ() as server,
        Producer(
            "g", namesrv=f"{server.namesrv};127.0.0.1:1", hooks=[seen], client_ip="10.9.8.7", unit_mode=True, unit_name="east"
        ) as sender,
        Producer("h", namesrv=server.namesrv, hooks=[seen]) as plain,
    ):
        await sender.send(message())
        await sender.send_batch(messages(2))
        await plain.send(message())
    found = [(context.born_host, context.name_servers, context.unit_mode) for context in seen.contexts]
    there = server.namesrv
    assert found == [("10.9.8.7", (there, "127.0.0.1:1"), True)] * 2 + [("127.0.0.1", (there,), False)]
