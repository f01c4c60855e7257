"""Brokers that cannot be reached: refused, backing off, black holes; and routes that have changed."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from rmq_async import SendError, errors
from rmq_protocol.route import BrokerData

from ..support.fakes import TOPIC, Broker, Cluster, cut, late, refuse, silence
from ..support.instances import client_of
from ..support.virtual_time import BLACK_HOLE
from .support import Send, every_way, message, messages, outcomes, producer, spin, timed, until

pytestmark = pytest.mark.virtual_time


@every_way(2)
async def test_a_refused_connection_is_an_attempt_and_another_broker_is_used(pair: Cluster, send: Send) -> None:
    await pair.a.stop()
    async with producer(pair) as sender:
        seen = set()
        for _ in range(8):
            with timed(most=0.05):
                result = await send(sender)
            assert result.queue.broker_name == "b"
            seen.add(result.attempts)
        assert seen == {1, 2}


@every_way(2)
async def test_while_an_address_backs_off_others_are_used_at_once(pair: Cluster, send: Send) -> None:
    await pair.a.stop()
    async with producer(pair) as sender:
        pool = (await client_of(sender)).pool
        while not pool.backing_off(pair.a.address):
            await send(sender)
        with timed(most=0.05):
            await asyncio.gather(*[send(sender) for _ in range(40)])
    assert len(pair.b.sends) > 40


@every_way(1)
async def test_a_lone_broker_that_is_down(cluster: Cluster, send: Send) -> None:
    await cluster.a.stop()
    choice = {"queue": cluster.queue()} if send.__name__ == "batched" else {"key": 1}
    async with producer(cluster, timeout=0.5) as sender:
        for options in ({}, choice):
            with timed(0.5, 0.5), pytest.raises(SendError) as caught:
                await send(sender, **options)
            assert [type(attempt.error) for attempt in caught.value.attempts] == [errors.ConnectError] * 2
            assert not caught.value.maybe_stored
            assert caught.value.code == 10001
            assert isinstance(caught.value.attempts[0].error.__cause__, OSError)


@every_way(1)
async def test_a_lone_broker_that_comes_back_within_the_budget(cluster: Cluster, send: Send) -> None:
    await cluster.a.stop()
    async with producer(cluster, retries=10, async_retries=10, timeout=3.0) as sender:
        call = asyncio.ensure_future(send(sender))
        await asyncio.sleep(0.3)
        assert not call.done()
        await cluster.a.start()
        with timed(most=1.0):
            result = await call
    assert result.attempts > 1


@every_way(1)
async def test_soon_after_the_port_opens_sends_succeed_again(cluster: Cluster, send: Send) -> None:
    async with producer(cluster, timeout=0.3) as sender:
        await send(sender)
        await cluster.a.stop()
        for _ in range(2):
            assert isinstance((await outcomes(send(sender)))[0], errors.RocketMQError)
        await cluster.a.start()
        with timed(most=1.1):
            while isinstance((await outcomes(send(sender)))[0], errors.RocketMQError):
                await asyncio.sleep(0.01)
        await asyncio.gather(*[send(sender) for _ in range(10)])


@every_way(2)
async def test_connecting_counts_inside_the_cap(pair: Cluster, send: Send) -> None:
    """A black hole takes its share of the budget, whichever way is used."""
    name = pair.a.name
    route = pair.route()
    pair.name_server.routes[TOPIC] = replace(
        route, broker_datas=(BrokerData(name, {0: BLACK_HOLE}, "c"), route.broker_datas[1])
    )
    async with producer(pair, timeout=0.9, connect_timeout=3.0) as sender:
        attempts = set()
        while attempts < {1, 2}:
            with timed(most=0.3) as taken:
                result = await send(sender)
            assert result.queue.broker_name == "b"
            assert taken.seconds > 0.25 or result.attempts == 1
            attempts.add(result.attempts)


@every_way(1)
async def test_a_lone_black_hole_ends_with_the_budget(cluster: Cluster, send: Send) -> None:
    cluster.name_server.routes[TOPIC] = replace(cluster.route(), broker_datas=(BrokerData("a", {0: BLACK_HOLE}, "c"),))
    async with producer(cluster, timeout=0.3) as sender:
        with timed(0.3, 0.3), pytest.raises(errors.RequestTimeoutError) as caught:
            await send(sender)
        assert not caught.value.maybe_stored
        with timed(0.2, 0.2), pytest.raises(errors.RequestTimeoutError):
            await send(sender, timeout=0.2, queue=cluster.queue())


async def test_a_caller_without_time_to_connect_leaves_their_time_to_the_others(cluster: Cluster) -> None:
    """Those behind it in the same line are not ended by its deadline, and its error is not replaced by theirs."""
    cluster.name_server.routes[TOPIC] = replace(cluster.route(), broker_datas=(BrokerData("a", {0: BLACK_HOLE}, "c"),))
    async with producer(cluster) as sender:

        async def send(timeout: float) -> None:
            with timed(timeout, timeout), pytest.raises(errors.RequestTimeoutError, match="no connection") as caught:
                await sender.send(message(), queue=cluster.queue(), timeout=timeout)
            assert not caught.value.maybe_stored

        await asyncio.gather(send(0.03), send(0.2), send(0.1))


async def test_a_late_stored_resolves_the_call_while_it_connects_elsewhere(pair: Cluster) -> None:
    """The first attempt is given up after 0.2 s, the second meets a black hole, and the first one's answer comes at 0.3 s."""
    async with producer(pair, timeout=0.9, attempt_timeout=0.2) as sender:
        route = pair.route()
        pair.name_server.routes[TOPIC] = replace(
            route, broker_datas=(route.broker_datas[0], BrokerData("b", {0: BLACK_HOLE}, "c"))
        )
        pair.a.answer = late(0.3)
        while not pair.a.sends:
            with timed(0.2, 0.5):
                result = await sender.send(message())
        assert result.queue.broker_name == "a"
        assert len(pair.a.sends) == 1
        with timed(0.25, 0.3):
            while (await sender.send(message(), queue=pair.queue(pair.a))).attempts != 1:
                pytest.fail("one attempt")


async def test_of_a_call_that_connects_nothing_is_left_when_it_is_cancelled() -> None:
    async with Cluster(1) as cluster:
        cluster.name_server.routes[TOPIC] = replace(cluster.route(), broker_datas=(BrokerData("a", {0: BLACK_HOLE}, "c"),))
        async with producer(cluster) as sender:
            calls = [asyncio.ensure_future(sender.send(item)) for item in messages(3)]
            calls += [asyncio.ensure_future(sender.send(item, key=1)) for item in messages(3)]
            calls += [asyncio.ensure_future(sender.send_async(item)) for item in messages(3)]  # type: ignore[misc]
            calls += [asyncio.ensure_future(sender.send_oneway(item)) for item in messages(3)]  # type: ignore[misc]
            await asyncio.sleep(0.05)
            for call in calls:
                call.cancel()
            assert {type(error) for error in await outcomes(*calls)} == {asyncio.CancelledError}
            assert sender.health().unanswered == 0


async def test_a_thousand_first_sends_make_one_route_request_and_one_connection(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.05
    async with producer(cluster) as sender:
        await asyncio.gather(
            *[sender.send(item) for item in messages(300)],
            *[sender.send_async(item) for item in messages(300)],
            *[sender.send_batch([item]) for item in messages(300)],
            *[sender.send_oneway(item) for item in messages(100)],
        )
        await sender.flush()
    assert cluster.name_server.asked == [TOPIC]
    assert len(cluster.a.links) == 1


async def test_after_a_failed_attempt_the_route_is_asked_for_anew_and_used(cluster: Cluster) -> None:
    """A broker that moved to another address is found before the next poll, by calls under way too."""
    moved = Broker("a")
    await moved.start()
    try:
        async with producer(cluster, timeout=3.0, retries=20) as sender:
            await sender.send(message())
            await cluster.a.stop()
            cluster.name_server.routes[TOPIC] = cluster.route(moved)
            with timed(most=2.0):
                result = await sender.send(message(b"moved"))
            assert result.attempts > 1
            assert moved.bodies == [b"moved"]
            assert (await sender.send(message(), key=1)).attempts == 1
    finally:
        await moved.stop()


@every_way(1)
async def test_a_queue_that_is_kept_to_is_found_where_its_broker_moved(cluster: Cluster, send: Send) -> None:
    moved = Broker("a")
    await moved.start()
    try:
        async with producer(cluster, timeout=3.0, retries=20, async_retries=20, retry_same_queue=True) as sender:
            await send(sender)
            await cluster.a.stop()
            cluster.name_server.routes[TOPIC] = cluster.route(moved)
            result = await send(sender, queue=cluster.queue())
            assert result.attempts > 1
            assert [sent.queue for sent in moved.sends] == [cluster.queue()]
    finally:
        await moved.stop()


@pytest.mark.parametrize("code", [14, 16, 17, 1500])
async def test_a_broker_that_sends_clients_away_is_left_when_the_route_says_so(pair: Cluster, code: int) -> None:
    async with producer(pair) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        pair.a.answer = refuse(code, "please go away")
        pair.name_server.routes[TOPIC] = pair.route(pair.b)
        results = await asyncio.gather(*[sender.send(item) for item in messages(4)])
        assert {result.queue.broker_name for result in results} == {"b"}
        await until(lambda: pair.name_server.asked.count(TOPIC) == 2)
        routes = (await client_of(sender)).routes
        await until(lambda: {queue.broker_name for queue in routes.cached(TOPIC).publish_queues} == {"b"})
        results = await asyncio.gather(*[sender.send(item) for item in messages(8)])
        assert {result.attempts for result in results} == {1}


async def test_many_failures_ask_for_the_route_once_a_second(cluster: Cluster) -> None:
    cluster.a.answer = refuse(1)
    async with producer(cluster) as sender:
        await outcomes(*[sender.send(item) for item in messages(300)])
        await outcomes(*[sender.send(item, key=1) for item in messages(100)])
    assert cluster.name_server.asked.count(TOPIC) <= 2


async def test_a_busy_broker_is_no_reason_to_doubt_the_route(cluster: Cluster) -> None:
    cluster.a.answer = refuse(2)
    async with producer(cluster, retries=0) as sender:
        await outcomes(*[sender.send(item) for item in messages(10)])
    assert cluster.name_server.asked.count(TOPIC) == 1


async def test_a_route_without_a_master(pair: Cluster) -> None:
    route = pair.route()
    slaves = tuple(BrokerData(data.broker_name, {1: data.broker_addrs[0]}, "c") for data in route.broker_datas)
    pair.name_server.routes[TOPIC] = replace(route, broker_datas=slaves)
    async with producer(pair) as sender:
        for call in (sender.send(message()), sender.send_async(message()), sender.send_oneway(message())):
            with pytest.raises(errors.RocketMQError) as caught:
                await call
            assert isinstance(caught.value, errors.BrokerNotFoundError | errors.TopicNotFoundError)
    assert not pair.sends


async def test_a_slow_name_server_is_inside_the_budget(cluster: Cluster) -> None:
    cluster.name_server.answer = silence
    async with producer(cluster) as sender:
        with timed(0.2, 0.2), pytest.raises(errors.NameServerError, match=cluster.namesrv):
            await sender.send(message(), timeout=0.2)
        cluster.name_server.answer = None
    assert not cluster.sends


async def test_connections_that_break_at_once(pair: Cluster) -> None:
    """Accepting and closing is not being there: the other broker is used, and the first is not stormed."""
    pair.a.answer = cut
    async with producer(pair, timeout=2.0) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(20)])
        assert {result.queue.broker_name for result in results} == {"b"}
        assert len(pair.a.links) <= 3
        pair.a.answer = silence
        await spin()
