"""Subscriptions to lite topics: what a client may change, whom an exclusive group evicts, where a group begins, and how
subscriptions end."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.bodies import SubscriptionGroupConfig, encode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.lite import (
    BrokerLiteInfo,
    LiteAction,
    LiteClientDetails,
    LiteSubscription,
    LiteSubscriptions,
    OffsetOption,
    OffsetType,
)
from rmq_protocol.message import MessageQueue

from .inside import START
from .lite_client import FIRST, LAST, NONE, LiteClient, bodies

pytestmark = pytest.mark.virtual_time

QUEUE = MessageQueue("%LMQ%$T$a", "broker-a", 0)
OFFSET, TAIL, TIME = OffsetType.OFFSET, OffsetType.TAIL_N, OffsetType.TIMESTAMP


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


async def count(lite: LiteClient) -> int:
    return (await lite.details(BrokerLiteInfo, RequestCode.GET_BROKER_LITE_INFO)).lite_subscription_count


async def names(lite: LiteClient) -> list[str] | None:
    """The queues that the broker has for the client."""
    info = await lite.details(
        LiteClientDetails, RequestCode.GET_LITE_CLIENT_INFO, parentTopic="T", group="G", clientId=lite.client_id
    )
    return None if info.lite_topic_set is None else sorted(each.rpartition("$")[2] for each in info.lite_topic_set)


async def test_each_action_changes_the_set_of_a_client(lite: LiteClient) -> None:
    await lite.prepare()
    steps = (
        (LiteAction.ADD, "ab", ["a", "b"]), (LiteAction.ADD, "bc", ["a", "b", "c"]), (LiteAction.REMOVE, "ax", ["b", "c"]),
        (LiteAction.SET, "cd", ["c", "d"]), (LiteAction.SET, "", []), (LiteAction.SET, "e", ["e"]), (LiteAction.CLEAR, "", None),
    )  # fmt: skip
    for action, given, expected in steps:
        assert (await lite.control(action, *given)).code == 0
        assert await names(lite) == expected
        assert await count(lite) == len(expected or ())


async def test_requests_without_changes_are_604(lite: LiteClient) -> None:
    code = RequestCode.LITE_SUBSCRIPTION_CTL
    empty = await lite.ask(code, None)
    assert (empty.code, empty.remark) == (604, "Request body is null.")
    assert (await lite.ask(code, None, b'{"subscriptionSet":[]}')).code == 604
    assert (await lite.ask(code, None, b"{")).code == 1


async def test_a_group_that_may_not_consume_cannot_subscribe(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.put_group(SubscriptionGroupConfig("G", consume_enable=False))
    codes = {action: (await lite.control(action, "a")).code for action in LiteAction}
    assert codes == {LiteAction.ADD: 604, LiteAction.SET: 604, LiteAction.REMOVE: 0, LiteAction.CLEAR: 0}


async def test_a_client_keeps_the_group_of_its_first_request(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.create_group("H", lite_bind_topic="T")
    await lite.subscribe("a")
    lite.group = "H"
    await lite.subscribe("b")
    (subscriber,) = (await lite.topic_details("b")).subscriber or ()
    assert subscriber.group == "G"


@pytest.mark.parametrize(
    ("option", "first"),
    [
        (None, b"0"), (NONE, b"0"), (FIRST, b"0"), (LAST, b"3"), (OffsetOption(OFFSET, 2), b"2"), (OffsetOption(OFFSET, 9), b"3"),
        (OffsetOption(OFFSET, -1), b"0"), (OffsetOption(TAIL, 1), b"0"), (OffsetOption(TIME, START), b"0"),
    ],
)  # fmt: skip
async def test_a_new_group_begins_where_its_option_says(lite: LiteClient, option: OffsetOption | None, first: bytes) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1", "2")
    await lite.subscribe("a", option=option)
    before = await lite.popped(maxMsgNum=1)
    await lite.stored("a", "3")
    assert bodies([*before, *await lite.popped()])[0] == first


@pytest.mark.parametrize(
    ("option", "offset"),
    [
        (None, 2),
        (NONE, 2),
        (FIRST, 0),
        (LAST, 3),
        (OffsetOption(TAIL, 1), 1),
        (OffsetOption(TAIL, 9), 0),
        (OffsetOption(TIME, 0), 2),
    ],
)
async def test_a_group_with_an_offset_moves_to_its_option(
    lite: LiteClient, server: EmbeddedRocketMQ, option: OffsetOption | None, offset: int
) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1", "2")
    await lite.subscribe("a")
    await lite.acked(*await lite.popped(maxMsgNum=2))
    await lite.subscribe("a", option=option)
    assert server.progress("G")[QUEUE] == offset


async def test_an_ack_before_the_pop_after_a_reset_has_no_effect(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    await lite.stored("a", "0", "1")
    await lite.subscribe("a")
    popped = await lite.popped()
    await lite.subscribe("a", option=LAST)
    await lite.acked(*popped)
    assert server.progress("G")[QUEUE] == 2


async def test_a_removal_resets_the_offset_if_the_group_says_so(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare(lite_sub_reset_offset_unsubscribe="true")
    await lite.stored("a", "0", "1")
    await lite.subscribe("a")
    await lite.acked(*await lite.popped())
    await lite.control(LiteAction.REMOVE, "a")
    assert server.progress("G")[QUEUE] == 0
    await lite.subscribe("a")
    await lite.acked(*await lite.popped())
    await lite.control(LiteAction.CLEAR)
    assert server.progress("G")[QUEUE] == 2


@pytest.mark.parametrize("reset", ["true", "false"])
async def test_an_exclusive_group_evicts_the_older_subscriber_with_a_notice(
    lite: LiteClient, server: EmbeddedRocketMQ, reset: str
) -> None:
    await lite.prepare(lite_sub_model="Exclusive", lite_sub_reset_offset_exclusive=reset)
    await lite.stored("a", "0", "1")
    await lite.subscribe("a", "b")
    await lite.acked(*await lite.popped(maxMsgNum=1))
    async with LiteClient(server.brokers["broker-a"]) as other:
        other.client_id = "two"
        await other.subscribe("a")
        notice = await lite.request()
        assert (notice.code, notice.is_oneway) == (RequestCode.NOTIFY_UNSUBSCRIBE_LITE, True)
        assert notice.ext_fields == {"liteTopic": "a", "consumerGroup": "G", "clientId": "one"}
        assert (await lite.subscribers("a"), await names(lite)) == ({"two"}, ["b"])
        assert bodies(await other.popped()) == ([b"0", b"1"] if reset == "true" else [b"1"])
        assert await lite.popped() == []


async def test_an_exclusive_client_that_subscribes_twice_evicts_itself(lite: LiteClient) -> None:
    """As on a real broker: it stays a subscriber, but its set is empty, so a timeout does not end the subscription."""
    await lite.prepare(lite_sub_model="Exclusive")
    await lite.subscribe("a")
    await lite.subscribe("a")
    assert (await lite.request()).ext_fields == {"liteTopic": "a", "consumerGroup": "G", "clientId": "one"}
    assert (await lite.subscribers("a"), await names(lite)) == ({"one"}, None)


async def test_a_complete_set_evicts_nobody(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare(lite_sub_model="Exclusive")
    await lite.subscribe("a")
    async with LiteClient(server.brokers["broker-a"]) as other:
        other.client_id = "two"
        assert (await other.control(LiteAction.SET, "a")).code == 0
        assert await lite.subscribers("a") == {"one", "two"}
        assert lite.pushed == []


async def test_other_groups_are_not_evicted(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare(lite_sub_model="Exclusive")
    await lite.create_group("H", lite_bind_topic="T", lite_sub_model="Exclusive")
    await lite.subscribe("a")
    async with LiteClient(server.brokers["broker-a"]) as other:
        other.client_id, other.group = "two", "H"
        await other.subscribe("a")
        assert await lite.subscribers("a") == {"one", "two"}


async def test_a_subscription_outlives_its_connection_and_gets_no_notice(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare(lite_sub_model="Exclusive")
    async with LiteClient(server.brokers["broker-a"]) as other:
        other.client_id = "two"
        await other.subscribe("a", "b")
    assert await lite.subscribers("a") == {"two"}
    await lite.subscribe("a")
    assert await lite.subscribers("a") == {"one"}


async def test_subscriptions_end_three_minutes_after_the_last_change(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare()
    await lite.subscribe("a")
    await clock.advance(60)
    await lite.control(LiteAction.SET, "a")
    await clock.advance(180)  # at 240 s, 180 s are not over
    assert await lite.subscribers("a") == {"one"}
    await clock.advance(120)
    assert (await lite.subscribers("a"), await names(lite), await count(lite)) == (set(), None, 0)


async def test_a_client_that_repeats_its_set_stays(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare()
    for _ in range(20):
        await lite.control(LiteAction.SET, "a")
        await clock.advance(30)
    assert await lite.subscribers("a") == {"one"}


async def test_events_of_an_ended_client_go_to_another(lite: LiteClient, server: EmbeddedRocketMQ) -> None:
    await lite.prepare()
    await lite.subscribe("a")
    await lite.stored("a", "0")
    async with LiteClient(server.brokers["broker-a"]) as other:
        other.client_id = "two"
        await other.control(LiteAction.SET, "b")
        await lite.stored("a", "1")
        await other.control(LiteAction.CLEAR, client_id="one")
        await other.subscribe("a")
        assert bodies(await other.popped()) == [b"0", b"1"]


async def test_more_subscriptions_than_the_limit_are_refused_with_2018() -> None:
    async with EmbeddedRocketMQ(max_lite_subscriptions=2) as server, LiteClient(server.brokers["broker-a"]) as lite:
        await lite.prepare()
        await lite.subscribe("a", "b", "c")  # the limit is checked before a request, as on a real broker
        refused = await lite.control(LiteAction.ADD, "d")
        assert (refused.code, refused.remark) == (
            2018,
            "org.apache.rocketmq.broker.lite.LiteQuotaException: lite subscription quota exceeded 2",
        )
        assert (await lite.control(LiteAction.SET, *"abcdefgh")).code == 2018
        assert (await lite.control(LiteAction.SET, "d")).code == 0
        assert await lite.subscribers("d") == {"one"}


async def test_hostile_subscriptions_are_bounded(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.subscribe("x" * 300, "ok")
    assert await names(lite) == ["ok"]
    for client_id, group in (("c" * 513, "G"), ("one", "g" * 513)):
        change = LiteSubscription(LiteAction.CLEAR, client_id, group, "T", ("a",))
        response = await lite.ask(RequestCode.LITE_SUBSCRIPTION_CTL, None, encode_body(LiteSubscriptions((change,))))
        assert (response.code, "the limit is 512" in (response.remark or "")) == (1, True)


async def test_changes_without_a_client_are_ignored(lite: LiteClient) -> None:
    await lite.prepare()
    await lite.subscribe("a", client_id=" ")
    assert await count(lite) == 0


async def test_a_stop_ends_all_subscriptions(server: EmbeddedRocketMQ) -> None:
    async with LiteClient(server.brokers["broker-a"]) as lite:
        await lite.prepare()
        await lite.stored("a", "0")
        await lite.subscribe("a")
    await server.stop()
    await server.start()
    async with LiteClient(server.brokers["broker-a"]) as lite:
        assert (await lite.subscribers("a"), await count(lite)) == (set(), 0)
        assert await lite.popped() == []
