"""Admin requests about lite topics, and the attributes of topics and groups."""

from __future__ import annotations

import msgspec
import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.bodies import SubscriptionGroupConfig, decode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.lite import (
    BrokerLiteInfo,
    LiteClientDetails,
    LiteGroupDetails,
    LiteLag,
    LiteOffsets,
    LiteOffsetWrapper,
    ParentTopicInfo,
)
from rmq_protocol.lite import (
    LiteClient as LiteClientRow,
)

from .inside import START
from .lite_client import LiteClient

pytestmark = pytest.mark.virtual_time

BROKER_INFO, TOPIC_INFO, LITE_INFO, CLIENT_INFO, GROUP_INFO, TRIGGER = (
    RequestCode.GET_BROKER_LITE_INFO, RequestCode.GET_PARENT_TOPIC_INFO, RequestCode.GET_LITE_TOPIC_INFO,
    RequestCode.GET_LITE_CLIENT_INFO, RequestCode.GET_LITE_GROUP_INFO, RequestCode.TRIGGER_LITE_DISPATCH,
)  # fmt: skip


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


async def used(lite: LiteClient, clock: ManualClock) -> None:
    """Two lite topics with messages, of which the group has done one."""
    await lite.prepare(expiration=30)
    await lite.stored("a", "0")
    await clock.advance(1)
    await lite.stored("a", "1", "2")
    await lite.stored("b", "0")
    await lite.subscribe("a", "c")
    (popped,) = await lite.popped(maxMsgNum=1)
    await lite.acked(popped)


async def test_the_broker_counts_its_lite_topics(lite: LiteClient, clock: ManualClock) -> None:
    await used(lite, clock)
    await lite.create_topic("other", 1, attributes="+message.type=LITE")
    info = await lite.details(BrokerLiteInfo, BROKER_INFO)
    assert info.cq_table_size >= 3
    assert msgspec.structs.replace(info, cq_table_size=0) == BrokerLiteInfo(
        store_type="default", max_lmq_num=20_000, current_lmq_num=2, lite_subscription_count=2, order_info_count=1,
        offset_table_size=1, event_map_size=1, topic_meta={"T": 30, "other": -1}, group_meta={"T": ("G",)},
    )  # fmt: skip


async def test_a_parent_topic_names_its_groups(lite: LiteClient, clock: ManualClock) -> None:
    await used(lite, clock)
    assert await lite.details(ParentTopicInfo, TOPIC_INFO, topic="T") == ParentTopicInfo("T", 30, ("G",), 2, 2)


async def test_a_lite_topic_names_its_subscribers_and_offsets(lite: LiteClient, clock: ManualClock) -> None:
    await used(lite, clock)
    info = await lite.topic_details("a")
    assert (info.parent_topic, info.lite_topic, info.sharding_to_broker) == ("T", "a", True)
    assert info.subscriber == (LiteClientRow("one", "G"),)
    assert info.topic_offset == LiteOffsets(0, 3, START + 1000)
    assert (await lite.topic_details("none")).topic_offset == LiteOffsets()


async def test_a_client_names_its_lite_topics(lite: LiteClient, clock: ManualClock) -> None:
    await used(lite, clock)
    ask = {"parentTopic": "T", "group": "G", "clientId": "one"}
    info = await lite.details(LiteClientDetails, CLIENT_INFO, **ask)
    assert info == LiteClientDetails("T", "G", "one", START + 1000, 0, 2, ("%LMQ%$T$a", "%LMQ%$T$c"))
    assert len((await lite.details(LiteClientDetails, CLIENT_INFO, **ask, maxCount=1)).lite_topic_set or ()) == 1
    unknown = await lite.details(LiteClientDetails, CLIENT_INFO, **{**ask, "clientId": "two"})
    assert (unknown.lite_topic_count, unknown.last_access_time, unknown.lite_topic_set) == (-1, -1, None)


async def test_a_group_has_a_lag_in_each_lite_topic(lite: LiteClient, clock: ManualClock) -> None:
    await used(lite, clock)
    for name, lag, oldest, wrapper in (
        ("a", 2, START + 1000, LiteOffsetWrapper(3, 1, 0, START)), ("b", 0, -1, None), ("none", -1, -1, None),
    ):  # fmt: skip
        info = await lite.details(LiteGroupDetails, GROUP_INFO, group="G", liteTopic=name)
        assert (info.total_lag_count, info.earliest_unconsumed_timestamp, info.lite_topic_offset_wrapper) == (
            lag,
            oldest,
            wrapper,
        )
    await lite.subscribe("b")
    await lite.popped()
    total = await lite.details(LiteGroupDetails, GROUP_INFO, group="G", topK=1)
    assert (total.total_lag_count, total.lag_timestamp_top_k) == (3, ())
    assert total.lag_count_top_k == (LiteLag("a", 2, START + 1000),)


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (TOPIC_INFO, {"topic": "none"}, (17, "Topic [none] not exist.")),
        (TOPIC_INFO, {"topic": "normal"}, (29, "Topic [normal] type not match.")),
        (LITE_INFO, {"parentTopic": "none", "liteTopic": "a"}, (17, "Topic [none] not exist.")),
        (CLIENT_INFO, {"parentTopic": "normal", "group": "G", "clientId": "one"}, (29, "Topic [normal] type not match.")),
        (CLIENT_INFO, {"parentTopic": "T", "group": "none", "clientId": "one"}, (26, "Group [none] not exist.")),
        (CLIENT_INFO, {"parentTopic": "T", "group": "free", "clientId": "one"}, (29, "Subscription [free]-[T] not match.")),
        (GROUP_INFO, {"group": "none"}, (26, "Group [none] not exist.")),
        (GROUP_INFO, {"group": "free"}, (29, "Group [free] is not a LITE group.")),
        (GROUP_INFO, {"group": "G", "topK": "0"}, (1, "java.lang.IllegalArgumentException")),
        (TRIGGER, {"group": "none"}, (26, "Group [none] not exist.")),
        (TRIGGER, {"group": "free"}, (29, "Group [free] is not a LITE group.")),
    ],
)
async def test_refused_questions(code: RequestCode, fields: dict[str, str], expected: tuple[int, str]) -> None:
    async with EmbeddedRocketMQ(auto_create_groups=False) as server, LiteClient(server.brokers["broker-a"]) as lite:
        await lite.prepare()
        await lite.create_topic("normal", 1)
        await lite.create_group("free")
        response = await lite.ask(code, fields)
        assert (response.code, response.remark) == expected


async def group_attributes(lite: LiteClient, group: str) -> dict[str, str]:
    response = await lite.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
    return decode_body(SubscriptionGroupConfig, response.body).attributes


async def test_attributes_of_a_group_are_changed_one_by_one(lite: LiteClient) -> None:
    await lite.create_group("G", lite_bind_topic="T", lite_sub_model="Exclusive")
    await lite.put_group(SubscriptionGroupConfig("G", attributes={"-lite.sub.model": "", "+lite.sub.client.quota": "5"}))
    assert await group_attributes(lite, "G") == {"lite.bind.topic": "T", "lite.sub.client.quota": "5"}
    await lite.put_group(SubscriptionGroupConfig("G", retry_max_times=3))
    assert await group_attributes(lite, "G") == {"lite.bind.topic": "T", "lite.sub.client.quota": "5"}


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"+lite.sub.model": "Both"}, "value is not in set: [Shared, Exclusive]"),
        ({"+lite.sub.reset.offset.exclusive": "yes"}, "boolean attribute format is wrong."),
        ({"+lite.sub.client.max.event.cnt": "9"}, "value is not in range(10, 9223372036854775807)"),
        ({"+lite.sub.client.quota": "x"}, 'For input string: "x"'),
        ({"lite.bind.topic": "T"}, "wrong format key: ite.bind.topic"),
        ({"-lite.bind.topic": ""}, "attempt to delete a nonexistent key: lite.bind.topic"),
        ({"+lite.sub.wildcard": "true"}, "unsupported key: lite.sub.wildcard"),
    ],
)
async def test_refused_attributes_of_a_group(lite: LiteClient, change: dict[str, str], remark: str) -> None:
    await lite.create_group("G")
    response = await lite.put_group(SubscriptionGroupConfig("G", attributes=change))
    assert (response.code, response.remark) == (1, f"java.lang.RuntimeException: {remark}")
    new = await lite.put_group(SubscriptionGroupConfig("new", attributes=change))
    assert new.code == 1
    assert await group_attributes(lite, "G") == {}


@pytest.mark.parametrize("value", ["-2", "43201", "x", "", "9" * 30])
async def test_an_expiration_out_of_range_is_refused(lite: LiteClient, value: str) -> None:
    assert (await lite.create_topic("T", 1, attributes=f"+lite.topic.expiration={value}")).code == 1
    for good in ("-1", "43200"):
        assert (await lite.create_topic("T", 1, attributes=f"+lite.topic.expiration={good}")).code == 0


@pytest.mark.parametrize(
    "over", [{"max_lite_topics": 0}, {"max_lite_subscriptions": 0}, {"min_lite_ttl": -1}, {"max_lite_topics": 200_001}]
)
def test_settings_out_of_range_are_refused(over: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(over))):
        EmbeddedRocketMQ(**over)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lite_topics"):
        EmbeddedRocketMQ(lite_topics=1)  # type: ignore[arg-type]
