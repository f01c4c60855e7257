"""Topics, groups and brokers at once, on embedded brokers."""

from __future__ import annotations

import pytest

from rmq_async import Admin, Consumer, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode, ResponseCode

from .support import send

pytestmark = pytest.mark.virtual_time


async def test_overview_shows_names_of_its_namespace_only(server: EmbeddedRocketMQ, admin: Admin) -> None:
    async with Admin(namesrv=server.namesrv, namespace="shop") as inside:
        await inside.create_topic("OrderTopic", queues=1)
        async with Producer("p", namesrv=server.namesrv, namespace="shop") as producer:
            for _ in range(3):
                await producer.send(Message("OrderTopic", b"x"))
        async with Consumer("billing", namesrv=server.namesrv, namespace="shop", topics="OrderTopic", start_from="earliest"):
            seen = await inside.overview()
            outside = await admin.overview(topics=["Order*", "shop*"], groups="shop*")
    assert [*seen.topics] == ["OrderTopic"]
    assert {queue.topic for queue in seen.topics["OrderTopic"]} == {"OrderTopic"}
    (group,) = seen.groups.values()
    assert ([*seen.groups], group.lag.messages, group.lag.retries, len(group.members or ())) == (["billing"], 3, 0, 1)
    assert {queue.topic for queue in group.lag.queues} == {"OrderTopic"}
    assert [*outside.topics] == ["OrderTopic", "shop%OrderTopic"]
    assert [*outside.groups] == ["shop%billing"]


async def test_overview_without_the_members_that_a_busy_broker_does_not_say(server: EmbeddedRocketMQ, admin: Admin) -> None:
    async with Consumer("billing", namesrv=server.namesrv, topics="OrderTopic", start_from="earliest"):
        server.fail_next(ResponseCode.SYSTEM_BUSY, 1, request=RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        busy = await admin.overview(groups="billing")
        known = await admin.overview(groups="billing")
    stopped = await admin.overview(groups="billing")
    assert busy.groups["billing"].members is None
    assert len(known.groups["billing"].members or ()) == 1
    assert stopped.groups["billing"].members == ()


async def test_overview_names_brokers_that_are_too_busy_to_say_offsets(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await send(server, b"1")
    async with Consumer("billing", namesrv=server.namesrv, topics="OrderTopic", start_from="earliest"):
        await admin.overview()
    server.fail_next(ResponseCode.SYSTEM_BUSY, 1, request=RequestCode.GET_CONSUME_STATS)
    server.fail_next(ResponseCode.SYSTEM_BUSY, 1, request=RequestCode.GET_TOPIC_STATS_INFO)
    busy = await admin.overview(topics="OrderTopic", groups="billing")
    known = await admin.overview(topics="OrderTopic", groups="billing")
    assert len(busy.groups["billing"].lag_unknown) == len(busy.topics_unknown["OrderTopic"]) == 1
    assert {queue.broker_name for queue in busy.topics["OrderTopic"]}.isdisjoint(busy.topics_unknown["OrderTopic"])
    assert (known.groups["billing"].lag_unknown, known.topics_unknown) == ((), {})


async def test_overview_names_a_broker_that_does_not_respond_and_goes_on(server: EmbeddedRocketMQ) -> None:
    async with Admin(namesrv=server.namesrv, request_timeout=0.3) as admin:
        await admin.create_topic("OrderTopic", queues=1)
        whole = await admin.overview(system=True)
        server.stall("broker-b")
        seen = await admin.overview()
        server.resume("broker-b")
    assert "TBW102" in whole.topics
    assert (seen.brokers["broker-a"].problem, seen.brokers["broker-a"].version) == (None, "V5_5_0")
    assert "no response" in (seen.brokers["broker-b"].problem or "")
    assert {queue.broker_name for queue in seen.topics["OrderTopic"]} == {"broker-a"}


async def test_overview_gives_the_time_of_the_oldest_message(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await send(server, *(b"%d" % number for number in range(4)))
    async with Consumer("billing", namesrv=server.namesrv, topics="OrderTopic", start_from="earliest"):
        seen = await admin.overview()
    assert seen.groups["billing"].oldest_store_time_ms in {message.store_time_ms for message in server.messages("OrderTopic")}
    await admin.reset_offsets("billing", "OrderTopic", "latest")
    assert (await admin.overview()).groups["billing"].oldest_store_time_ms is None
