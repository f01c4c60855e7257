"""Pops of lite topics: events of clients, queues blocked for their group, acks, invisible times and waiting pops."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.constants import RequestCode
from rmq_protocol.lite import BrokerLiteInfo, LiteAction
from rmq_protocol.message import MessageQueue

from .inside import START
from .lite_client import FIRST, LiteClient, bodies, taken

pytestmark = pytest.mark.virtual_time

QUEUE = MessageQueue("%LMQ%$T$a", "broker-a", 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


async def test_a_queue_is_blocked_until_all_its_messages_are_acknowledged(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1", "2")
    await lite.subscribe("a")
    popped = await lite.popped(maxMsgNum=2)
    assert [each.handle.revive_qid for each in popped] == [999, 999]
    await lite.acked(popped[1])
    assert server.progress("G")[QUEUE] == 0
    assert await lite.popped() == []
    await lite.acked(popped[0])
    assert server.progress("G")[QUEUE] == 2
    assert bodies(await lite.popped()) == [b"2"]


async def test_a_pop_takes_several_lite_topics_and_leaves_the_rest_of_its_events(lite: LiteClient) -> None:
    await lite.prepare()
    for name in "abc":
        await lite.stored(name, f"{name}0", f"{name}1")
    await lite.stored("other", "x")
    await lite.subscribe("a", "b", "c")
    assert bodies(await lite.popped(maxMsgNum=3)) == [b"a0", b"a1", b"b0"]
    assert bodies(await lite.popped(maxMsgNum=3)) == [b"c0", b"c1"]
    assert await lite.popped(maxMsgNum=0) == []


async def test_unacknowledged_messages_come_again_with_a_count(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1")
    await lite.subscribe("a")
    first = await lite.pop(invisibleTime=1000)
    assert (first.ext_fields or {})["orderCountInfo"] == "0;0"
    await clock.advance(0.999)
    assert await lite.popped() == []
    await clock.advance(0.001)
    second = await lite.pop(invisibleTime=1000)
    assert (second.ext_fields or {})["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1"
    await lite.acked(*taken(first))  # without an effect
    await lite.acked(taken(second)[0])
    await clock.advance(1)
    assert bodies(await lite.popped()) == [b"1"]


async def test_the_same_attempt_is_not_blocked(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.stored("a", "0")
    await lite.subscribe("a")
    await lite.popped(attemptId="x")
    await lite.stored("a", "1")
    assert bodies(await lite.popped(attemptId="x")) == [b"0", b"1"]
    await lite.stored("a", "2")
    assert await lite.popped(attemptId="y") == []


async def test_a_change_of_one_message_frees_the_queue_when_all_are_visible(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1")
    await lite.subscribe("a")
    first, _ = await lite.popped(invisibleTime=5000)
    response = await lite.change(first, 2000)
    assert (response.ext_fields or {})["invisibleTime"] == "2000"
    lite.start_pop()
    await clock.advance(4.999)
    assert not await arrived(lite)
    await clock.advance(0.001)
    assert bodies(taken(await lite.read())) == [b"0", b"1"]


async def arrived(lite: LiteClient) -> bool:
    """Whether a frame comes within a moment; it is then lost."""
    try:
        await lite.read(0.1)
    except TimeoutError:
        return False
    return True


async def test_a_suspended_queue_does_not_count_the_delivery(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1")
    await lite.subscribe("a")
    for expected in ("0;0", "0 qo0%0 1;0 qo0%1 1", "0 qo0%0 1;0 qo0%1 1"):
        response = await lite.pop(invisibleTime=60_000)
        assert (response.ext_fields or {})["orderCountInfo"] == expected
        await lite.change(taken(response)[0], 1000, suspend="true")
        await clock.advance(0.999)
        assert await lite.popped() == []
        await clock.advance(0.001)
    popped = await lite.popped(invisibleTime=60_000)
    await lite.acked(popped[0])
    await lite.change(popped[1], 1000, suspend="true")
    await clock.advance(1)
    assert bodies(await lite.popped()) == [b"1"]


async def test_a_change_of_an_old_pop_has_no_effect(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare()
    await lite.stored("a", "0")
    await lite.subscribe("a")
    (old,) = await lite.popped(invisibleTime=1000)
    await clock.advance(1)
    (new,) = await lite.popped(invisibleTime=1000)
    for over in ({}, {"suspend": "true"}):
        assert (await lite.change(old, 60_000, **over)).code == 0
    await clock.advance(1)
    (again,) = await lite.popped()
    await lite.acked(again)
    for popped in (new, again):
        response = await lite.change(popped, 1000)
        assert (response.code, (response.ext_fields or {})["popTime"]) == (0, "0")


@pytest.mark.parametrize(
    ("over", "code", "remark"),
    [
        ({"offset": 2}, 208, "ack offset illegal."),
        ({"offset": 1}, 13, "ack offset illegal."),
        ({"consumerGroup": "other"}, 29, "group type or bind topic not match."),
        ({"queueId": 1}, 29, "ack queue illegal."),
        ({"extraInfo": "0 1 2 3 0 broker-a 0 0"}, 29, "ack queue illegal."),
        ({"liteTopic": "none", "offset": 0}, 0, None),
        ({"offset": -1}, 0, None),
    ],
)
async def test_acks_that_are_refused_or_ignored(
    lite: LiteClient, server: EmbeddedRocketMQ, over: dict[str, object], code: int, remark: str | None
) -> None:
    await lite.prepare(queues=2)
    await lite.stored("a", "0")
    await lite.subscribe("a")
    (popped,) = await lite.popped()
    response = await lite.ack(popped, **over)
    assert (response.code, response.remark) == (code, remark)
    assert server.progress("G")[QUEUE] == 0
    assert (await lite.change(popped, 1000, offset=2)).code == 208


async def test_refused_pops(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.create_topic("normal", 1)
    await lite.create_topic("unread", 1, perm="2", attributes="+message.type=LITE")
    await lite.create_group("unbound")
    cases = {
        "no topic": ({"topic": "none"}, 17), "another type": ({"topic": "normal"}, 29), "no permission": ({"topic": "unread"}, 16),
        "another binding": ({"consumerGroup": "unbound"}, 29), "many": ({"maxMsgNum": 33}, 29),
        "late": ({"bornTime": START - 1000, "pollTime": 400}, 210),
    }  # fmt: skip
    for what, (over, code) in cases.items():
        response = await lite.pop(**over)
        assert (what, response.code, (response.ext_fields or {})["popTime"]) == (what, code, "0")


async def test_a_waiting_pop_gets_a_message_that_arrives(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    await lite.subscribe("a")
    lite.start_pop()
    async with LiteClient(server.brokers["broker-a"]) as other:
        await other.stored("b", "x")
        await other.stored("a", "0")
    assert bodies(taken(await lite.read())) == [b"0"]


async def test_a_waiting_pop_of_another_client_gets_nothing(
    lite: LiteClient, server: EmbeddedRocketMQ, clock: ManualClock
) -> None:
    await lite.prepare()
    await lite.subscribe("a")
    async with LiteClient(server.brokers["broker-a"]) as other:
        other.client_id = "two"
        other.start_pop(pollTime=1000)
        await lite.stored("a", "0")
        assert bodies(await lite.popped()) == [b"0"]
        await clock.advance(0.95)
        response = await other.read()
        assert (response.code, response.remark) == (210, "NO_MESSAGE_IN_QUEUE")


async def test_a_waiting_pop_gets_a_queue_that_an_ack_frees(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1")
    await lite.subscribe("a")
    (popped,) = await lite.popped(maxMsgNum=1)
    lite.start_pop()
    async with LiteClient(server.brokers["broker-a"]) as other:
        await other.acked(popped)
        assert bodies(taken(await lite.read())) == [b"1"]


async def test_messages_go_to_one_member_of_a_shared_group_and_to_each_group(
    lite: LiteClient, server: EmbeddedRocketMQ, clock: ManualClock
) -> None:
    await lite.prepare()
    await lite.create_group("H", lite_bind_topic="T")
    address = server.brokers["broker-a"]
    async with LiteClient(address) as second, LiteClient(address) as third:
        second.client_id = "two"
        third.client_id, third.group = "three", "H"
        for client in (lite, second, third):
            await client.subscribe("a")
        await lite.stored("a", "0")
        assert sorted(bodies(await lite.popped()) + bodies(await second.popped())) == [b"0"]
        assert bodies(await third.popped()) == [b"0"]


async def test_events_of_a_client_that_does_not_pop_go_to_another(
    lite: LiteClient, server: EmbeddedRocketMQ, clock: ManualClock
) -> None:
    await lite.prepare()
    async with LiteClient(server.brokers["broker-a"]) as other:
        other.client_id = "two"
        await lite.subscribe("a")
        await lite.stored("a", "0")
        await other.subscribe("a")
        other.start_pop(pollTime=60_000)
        await clock.advance(10)
        assert not await arrived(other)
        await clock.advance(10)
        assert bodies(taken(await other.read())) == [b"0"]
        assert await lite.popped() == []


async def test_events_that_do_not_fit_come_with_a_full_dispatch_after_10_seconds(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare(lite_sub_client_max_event_cnt=10)
    names = [f"l{number}" for number in range(12)]
    for name in names:
        await lite.stored(name, name)
    await lite.subscribe(*names)
    got = await lite.popped()
    assert len(got) == 10
    await lite.acked(*got)
    assert await lite.popped() == []
    await clock.advance(9.999)
    assert await lite.popped() == []
    await clock.advance(0.001)
    assert sorted(bodies(await lite.popped())) == [b"l10", b"l11"]


async def test_a_full_dispatch_waits_until_few_events_are_left(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare(lite_sub_client_max_event_cnt=10)
    names = [f"l{number}" for number in range(12)]
    for name in names:
        await lite.stored(name, name)
    await lite.subscribe(*names)
    await clock.advance(6)
    assert len(await lite.popped(maxMsgNum=2, invisibleTime=60_000)) == 2  # eight of ten are left
    await clock.advance(4)  # the full dispatch is put off
    got = await lite.popped(maxMsgNum=7, invisibleTime=60_000)
    await lite.acked(*got)  # which dispatches their queues again
    assert bodies(await lite.popped(invisibleTime=60_000)) == [b"l9"]
    await clock.advance(9.999)
    assert await lite.popped() == []
    await clock.advance(0.001)
    assert sorted(bodies(await lite.popped())) == [b"l10", b"l11"]


async def test_a_trigger_dispatches_at_once(lite: LiteClient) -> None:
    await lite.prepare(lite_sub_client_max_event_cnt=10)
    names = [f"l{number}" for number in range(12)]
    for name in names:
        await lite.stored(name, name)
    await lite.subscribe(*names)
    await lite.acked(*await lite.popped())
    assert await lite.popped() == []  # acks dispatch their queues again, which have no more messages
    for fields in ({"clientId": "none"}, {"clientId": "one"}, {}):
        assert (await lite.ask(RequestCode.TRIGGER_LITE_DISPATCH, {"group": "G", **fields})).code == 0
    assert len(await lite.popped()) == 2


async def test_the_default_number_of_events_is_100(lite: LiteClient) -> None:
    await lite.prepare()
    names = [f"l{number}" for number in range(101)]
    for name in names:
        await lite.stored(name, name)
    await lite.subscribe(*names)
    assert [len(await lite.popped()) for _ in range(5)] == [32, 32, 32, 4, 0]


async def test_a_reset_unblocks_the_queue(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1")
    await lite.subscribe("a")
    popped = await lite.popped(invisibleTime=60_000)
    await lite.acked(*popped)
    await lite.stored("a", "2")
    assert len(await lite.popped(invisibleTime=60_000)) == 1
    await lite.control(LiteAction.REMOVE, "a")
    await lite.subscribe("a", option=FIRST)
    assert bodies(await lite.popped()) == [b"0", b"1", b"2"]


async def test_faults_of_pops_apply(lite: LiteClient, server: EmbeddedRocketMQ, clock: ManualClock) -> None:
    await lite.prepare()
    await lite.stored("a", "0")
    await lite.subscribe("a")
    server.empty_pops(1)
    assert await lite.popped(pollTime=10_000) == []
    server.lose_acks(1)
    await lite.acked(*await lite.popped(invisibleTime=1000))
    await clock.advance(1)
    assert bodies(await lite.popped()) == [b"0"]


async def test_waiting_pops_of_a_client_are_bounded(lite: LiteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.held_pops.MAX_HELD", 2)
    await lite.prepare()
    for _ in range(2):
        lite.start_pop()
    response = await lite.pop(pollTime=10_000)
    assert (response.code, response.remark) == (209, "NO_MESSAGE_IN_QUEUE")


async def test_a_closed_connection_drops_its_waiting_pops(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    async with LiteClient(server.brokers["broker-a"]) as other:
        await other.subscribe("a")
        other.start_pop()
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.1)
    await lite.stored("a", "0")
    assert bodies(await lite.popped()) == [b"0"]  # it has the same client id
    info = await lite.details(BrokerLiteInfo, RequestCode.GET_BROKER_LITE_INFO)
    assert (info.order_info_count, info.event_map_size) == (1, 1)


async def test_the_second_port_serves_no_pops_of_lite_topics(server: EmbeddedRocketMQ) -> None:
    host, _, port = server.brokers["broker-a"].rpartition(":")
    async with LiteClient(f"{host}:{int(port) - 2}") as lite:
        await lite.prepare()
        await lite.subscribe("a")
        assert (await lite.pop()).code == 3
