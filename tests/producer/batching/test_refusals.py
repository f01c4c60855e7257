"""What follows a batch that a broker refuses, does not answer, or cannot receive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import errors

from ...support.fakes import TOPIC, Cluster, each, late, refuse, silence, stored
from ...support.instances import client_of
from ..support import message, messages, outcomes, producer, spin, until
from .support import BATCH, ONE_LANE, at_rest, later, numbers, refuse_bodies

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("code", [13, 29])
@pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["in turn", "in order"])
async def test_a_batch_refused_as_illegal_is_split_so_that_one_bad_message_fails_alone(
    cluster: Cluster, code: int, options: dict[str, Any]
) -> None:
    cluster.a.answer = refuse_bodies(code, lambda body: body in (b"000017", b"000018"))
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        results = await outcomes(*[sender.send(item, **options) for item in messages(50)])
        assert at_rest(sender)
    failed = [number for number, result in enumerate(results) if isinstance(result, BaseException)]
    assert failed == [17, 18]
    assert {results[number].code for number in failed} == {code}
    ids: dict[bytes, set[str]] = {}
    for sent in cluster.sends:
        for record in sent.batch if sent.code == BATCH else ():
            ids.setdefault(record.body, set()).add(record.properties.split(b"\x02")[0].decode())
    assert {len(each_one) for each_one in ids.values()} == {1}, "a message has the same id in every part"


async def test_time_outs_are_never_split(cluster: Cluster) -> None:
    cluster.a.answer = silence
    async with producer(cluster, batching=True, topics=[TOPIC], timeout=0.2) as sender:
        results = await outcomes(*[sender.send(item) for item in messages(5)])
        assert {type(error) for error in results} == {errors.RequestTimeoutError}
        assert all(error.maybe_stored for error in results)
        assert len({id(error) for error in results}) == 5, "each has an error of its own"
        assert at_rest(sender)
    assert numbers(cluster) == [5]


async def test_other_refusals_reach_all(cluster: Cluster) -> None:
    cluster.a.answer = refuse(3)
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        results = await outcomes(*[sender.send(item) for item in messages(5)])
    assert {error.code for error in results} == {3}
    assert numbers(cluster) == [5]


async def test_a_batch_is_retried_on_another_broker_under_the_same_ids(pair: Cluster) -> None:
    pair.a.answer = pair.b.answer = each(refuse(2), stored)
    async with producer(pair, batching=True, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert {result.attempts for result in results} == {2}
    first, second = pair.sends
    assert first.body == second.body
    assert first.broker is not second.broker


async def test_the_send_of_a_dead_broker_goes_to_another_one(pair: Cluster) -> None:
    async with producer(pair, batching=True, topics=[TOPIC], timeout=2.0) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(200)])
        await pair.a.stop()
        for _ in range(5):
            results = await asyncio.gather(*[sender.send(item) for item in messages(200)])
            assert {result.queue.broker_name for result in results} == {"b"}
        assert at_rest(sender)


async def test_a_broker_that_sends_its_clients_away_costs_no_send(pair: Cluster) -> None:
    async with producer(pair, batching=True, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(200)])
        for options in ({}, {"queue": pair.queue(pair.a)}):
            pair.answer(each(refuse(1500), stored))
            results = await asyncio.gather(*[sender.send(item, **options) for item in messages(5)])
            assert {result.attempts for result in results} == {2}
        assert at_rest(sender)


async def test_slow_brokers_are_left_alone(pair: Cluster) -> None:
    pair.a.answer = refuse(1)
    async with producer(pair, batching=True, topics=[TOPIC], latency_fault=True) as sender:
        for _ in range(20):
            await asyncio.gather(*[sender.send(item) for item in messages(10)])
        assert at_rest(sender)
    assert len(pair.a.sends) <= 2


async def test_the_route_is_found_once_for_all_who_wait(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.05
    async with producer(cluster, batching=True) as sender:
        calls = [sender.send(item) for item in messages(100)] + [sender.send(item, key="k") for item in messages(100)]
        await asyncio.gather(*calls)
    assert len(cluster.name_server.asked) == 1


async def test_a_route_without_a_queue_while_messages_gather_fails_those(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC], timeout=1.0) as sender:
        first = later(sender.send(message()))
        await until(lambda: cluster.sends)
        calls = [later(sender.send(item)) for item in messages(3)]
        await spin(3)
        cluster.name_server.routes[TOPIC] = cluster.route(perm=4)
        await (await client_of(sender)).routes.refresh(TOPIC, 1.0)
        results = await outcomes(first, *calls)
        assert [type(result).__name__ for result in results] == ["SendResult", *["BrokerNotFoundError"] * 3]
        cluster.name_server.routes[TOPIC] = cluster.route()
        await (await client_of(sender)).routes.refresh(TOPIC, 1.0)
        await sender.send(message())
        assert at_rest(sender)
