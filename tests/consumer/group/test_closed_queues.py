"""Queues that brokers put messages into and that no member can read: permissions, and numbers of queues."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from rmq_async import Admin, Consumer, MessageExt, Problem, Retry
from rmq_async.client import RouteTable, TopicRoute
from rmq_async.consumer.group.closed_queues import closed_brokers
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.bodies import SubscriptionGroupConfig, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.route import QueueData, TopicQueueMapping, TopicRouteData

from ...support.instances import client_of
from .support import Seen, create, member, send, until

WAYS: dict[str, dict[str, Any]] = {
    "pull": {},
    "pop": {"mode": "pop"},
    "broadcast": {"broadcast": True},
    "by hand": {"topics": "T"},
}


def of(consumer: Consumer, code: str) -> list[Problem]:
    return [problem for problem in consumer.health().problems if problem.code == code]


async def read_by_hand(consumer: Consumer, seen: Seen) -> None:
    async for message in consumer:
        await seen(message)
        consumer.done(message)


@pytest.mark.virtual_time
@pytest.mark.parametrize("way", WAYS)
async def test_topic_without_permission_to_read_is_a_problem_until_it_has_it(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=2, perm=2)
        await send(server.namesrv, b"1")
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", route_poll_interval=0.1, **WAYS[way])
        if way != "by hand":
            consumer.subscribe("T", seen)
        async with consumer:
            reading = asyncio.create_task(read_by_hand(consumer, seen) if way == "by hand" else asyncio.sleep(0))
            await until(lambda: len(of(consumer, "unreadable_topic")) == 2)
            problem, _ = sorted(of(consumer, "unreadable_topic"), key=lambda each: each.broker or "")
            assert problem.broker == "broker-a"
            assert "topic T may not be read on broker broker-a, where its permission is 2" in problem.text
            assert consumer.health().ready
            assert caplog.text.count("topic T may not be read on broker broker-a") == 1
            await admin.create_topic("T", queues=2, broker="broker-a")
            await until(lambda: len(of(consumer, "unreadable_topic")) == 1)
            await admin.create_topic("T", queues=2, broker="broker-b")
            await until(lambda: seen.bodies[b"1"] and not consumer.health().problems)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading


@pytest.mark.virtual_time
async def test_permission_that_is_taken_away_is_one_problem(caplog: pytest.LogCaptureFixture) -> None:
    """The queues also leave the route, but where the reason is known there is no second problem."""
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await create(server.namesrv)
        consumer = Consumer("g", namesrv=server.namesrv, route_poll_interval=0.1, rebalance_interval=0.5)
        consumer.subscribe("T", Seen())
        async with consumer:
            await admin.create_topic("T", queues=4, perm=2)
            await until(lambda: len(consumer.assignment) == 1)
            await asyncio.sleep(0.3)  # held pulls end
            await send(server.namesrv, b"1", b"2")
            assert [problem.code for problem in consumer.health().problems] == ["unreadable_topic"]
            assert (await admin.group_lag("g")).messages == 2
        assert caplog.text.count("may not be read") == 1


@pytest.mark.virtual_time
async def test_topic_with_more_queues_to_write_than_to_read_is_a_problem() -> None:
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=4, read_queues=2)
        consumer = Consumer("g", namesrv=server.namesrv, route_poll_interval=0.1)
        consumer.subscribe("T", Seen())
        async with consumer:
            await until(lambda: of(consumer, "unreadable_topic"))
            assert (
                "fewer read queues than write queues on broker broker-a: messages in queues 2 to 3"
                in consumer.health().problems[0].text
            )
            await admin.create_topic("T", queues=4)
            await until(lambda: not consumer.health().problems)


def test_closed_queues_of_a_route() -> None:
    def route(**changes: Any) -> TopicRouteData:
        return TopicRouteData(
            queue_datas=(QueueData("b", **({"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6} | changes)),)
        )

    def closed(data: TopicRouteData) -> list[tuple[range, int | None]]:
        return [(each.numbers, each.perm) for each in closed_brokers("T", data)]

    assert closed(route()) == []
    assert closed(route(write_queue_nums=2)) == []
    assert closed(route(perm=4, read_queue_nums=2)) == []
    assert closed(route(perm=2, write_queue_nums=8)) == [(range(8), 2)]
    assert closed(route(perm=0)) == [(range(4), 0)]
    assert closed(route(read_queue_nums=1)) == [(range(1, 4), None)]
    static = TopicRouteData(queue_datas=route(perm=2).queue_datas, topic_queue_mapping_by_broker={"b": TopicQueueMapping()})
    assert closed(static) == []


async def set_retry_queues(admin: Admin, number: int) -> None:
    """Sets the number as a tool does that leaves the retry topic as it is."""
    client = await client_of(admin)
    body = encode_body(SubscriptionGroupConfig("g", retry_queue_nums=number))
    command = RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    await client.ask_broker("broker-a", "T", command, 3.0)


async def fail_once(message: MessageExt) -> None:
    if not message.reconsume_times:
        raise ValueError


@pytest.mark.virtual_time
async def test_retry_topic_grows_with_the_retry_queues_of_its_group() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, Admin(namesrv=server.namesrv) as admin:
        await create(server.namesrv)
        await admin.create_group("g")
        seen = Seen(fail_once)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", retry=Retry(limit=3, delays=(0.05,)))
        consumer.subscribe("T", seen)
        async with consumer:
            await admin.create_group("g", retry_queue_nums=4)
            route = await admin.topic_route("%RETRY%g")
            assert {(data.read_queue_nums, data.write_queue_nums) for data in route.queue_datas} == {(4, 4)}
            await send(server.namesrv, *[b"%d" % number for number in range(32)])
            await until(lambda: len(seen.bodies) == 32, 30)
            assert not of(consumer, "queue_missing")
            await admin.create_group("g", retry_queue_nums=1)
            route = await admin.topic_route("%RETRY%g")
            assert {data.read_queue_nums for data in route.queue_datas} == {4}, "messages that are left are read"


@pytest.mark.virtual_time
async def test_route_that_changes_at_each_request_is_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while brokers restart: each look requests the route, and each new route asks for a look."""
    refresh, looks = RouteTable.refresh, 0

    async def changed(table: RouteTable, topic: str, *arguments: Any, **options: Any) -> TopicRoute:
        nonlocal looks
        route = await refresh(table, topic, *arguments, **options)
        looks += topic == "%RETRY%g"
        for callback in [*table.on_change]:
            callback(route)
        return route

    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await create(server.namesrv)
        async with member("g", server.namesrv, "one", Seen()) as consumer:
            await until(lambda: consumer.assignment)
        await set_retry_queues(admin, 4)
        async with member("g", server.namesrv, "one", Seen()) as consumer:
            await until(lambda: of(consumer, "queue_missing"), 120.0)
            monkeypatch.setattr(RouteTable, "refresh", changed)
            await asyncio.sleep(70)
            began = looks
            await asyncio.sleep(10)
            assert 1 <= looks - began <= 10


@pytest.mark.virtual_time
async def test_group_without_a_retry_queue_is_a_problem_until_it_has_one() -> None:
    """As where another tool has made the group: brokers drop what fails, and answer that it is stored."""
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await create(server.namesrv)
        await set_retry_queues(admin, 0)
        async with member("g", server.namesrv, "one", Seen()) as consumer:
            await until(lambda: of(consumer, "queue_missing"), 120.0)
            (problem,) = of(consumer, "queue_missing")
            assert "group g has no retry queue on broker broker-a, so the broker drops messages that fail" in problem.text
            assert problem.text.endswith("rmq group create g --retry-queues 1 adds one")
            await admin.create_group("g")
            await until(lambda: not of(consumer, "queue_missing"), 120.0)


@pytest.mark.virtual_time
async def test_retry_queues_of_an_old_broker_are_looked_up_again_after_no_answer() -> None:
    """It returns the settings of all groups only, which a member asks for every half hour."""
    async with EmbeddedRocketMQ(version="4.9.7") as server, Admin(namesrv=server.namesrv) as admin:
        await create(server.namesrv)
        await set_retry_queues(admin, 0)
        server.fail_next(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 1000, request=RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
        server.fail_next(ResponseCode.SYSTEM_ERROR, request=RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        async with member("g", server.namesrv, "one", Seen()) as consumer:
            await until(lambda: of(consumer, "queue_missing"), 130.0)


@pytest.mark.virtual_time
async def test_retry_queues_that_the_retry_topic_lacks_are_a_problem_and_count_as_lag(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where another tool has raised their number."""
    async with EmbeddedRocketMQ() as server, Admin(namesrv=server.namesrv) as admin:
        await create(server.namesrv)
        seen = Seen(fail_once)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", retry=Retry(limit=3, delays=(0.05,)))
        consumer.subscribe("T", seen)
        async with consumer:
            await until(lambda: consumer.assignment)
        await set_retry_queues(admin, 4)
        seen = Seen(fail_once)
        options = {"retry": Retry(limit=3, delays=(0.05,)), "commit_interval": 0.1}
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", **options)
        consumer.subscribe("T", seen)
        async with consumer:
            await until(lambda: of(consumer, "queue_missing"))
            (problem,) = of(consumer, "queue_missing")
            assert "group g has 4 retry queues on broker broker-a, and its retry topic has 1" in problem.text
            assert "in queues 1 to 3 reach no member" in problem.text
            assert "rmq group create g --retry-queues 4 adds the missing queues" in problem.text
            assert problem.broker == "broker-a"
            await send(server.namesrv, *[b"%d" % number for number in range(40)])
            await until(lambda: len(seen.attempts) >= 41)
            await asyncio.sleep(1.0)  # retries come, and are committed
            lag = await admin.group_lag("g")
            assert lag.retries == 40 - len(seen.bodies) > 0
            assert {queue.queue_id for queue in lag.retry_queues} > {0}
            await admin.create_group("g", retry_queue_nums=4)
            await until(lambda: len(seen.bodies) == 40, 40)
            await until(lambda: not consumer.health().problems)
        assert caplog.text.count("group g has 4 retry queues") == 1
