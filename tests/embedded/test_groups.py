"""Subscription groups: made on first use, set up by an admin, deleted; and what their settings forbid."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper, decode_body, encode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat

from ..support.fakes import RawClient
from .inside import broker_of

PUT = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
PUT_LIST = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
ALL = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
ONE = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
DELETE = RequestCode.DELETE_SUBSCRIPTIONGROUP


async def put(broker: RawClient, name: str, **settings: object) -> None:
    response = await broker.ask(PUT, None, msgspec.json.encode({"groupName": name, **settings}))
    assert (response.code, response.ext_fields) == (0, None)


async def one(broker: RawClient, name: str) -> SubscriptionGroupConfig:
    response = await broker.ask(ONE, {"group": name})
    assert response.code == 0
    return decode_body(SubscriptionGroupConfig, response.body)


async def test_a_group_that_is_asked_for_comes_into_being_with_the_defaults(broker: RawClient) -> None:
    assert await one(broker, "CG") == SubscriptionGroupConfig("CG")
    raw = json.loads((await broker.ask(ONE, {"group": "CG"})).body)
    assert (raw["retryMaxTimes"], raw["groupRetryPolicy"], raw["attributes"]) == (16, {"type": "CUSTOMIZED"}, {})
    refused = await broker.ask(ONE, {"group": "a b"})
    assert (refused.code, refused.remark) == (26, "No group in this broker")


async def test_settings_are_kept_changed_and_deleted(broker: RawClient) -> None:
    await put(broker, "CG", retryMaxTimes=3, newer={"x": 1})
    assert (await one(broker, "CG")).retry_max_times == 3
    await put(broker, "CG", retryQueueNums=2)
    assert await one(broker, "CG") == SubscriptionGroupConfig("CG", retry_queue_nums=2)
    assert (await broker.ask(DELETE, {"groupName": "CG"})).code == 0
    assert (await broker.ask(DELETE, {"groupName": "CG"})).code == 0
    assert await one(broker, "CG") == SubscriptionGroupConfig("CG")
    assert (await broker.ask(PUT)).code == 0


async def test_all_groups_and_their_number(broker: RawClient) -> None:
    body = msgspec.json.encode({"groupConfigList": [{"groupName": "A"}, {"groupName": "B", "retryMaxTimes": 1}]})
    assert (await broker.ask(PUT_LIST, None, body)).code == 0
    response = await broker.ask(ALL)
    assert response.ext_fields == {"totalGroupNum": "10"}  # eight of them the broker's own
    table = decode_body(SubscriptionGroupWrapper, response.body).subscription_group_table
    assert len(table) == 10
    assert table["B"].retry_max_times == 1
    assert "TOOLS_CONSUMER" in table


async def test_a_list_with_one_bad_name_makes_none(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    body = msgspec.json.encode({"groupConfigList": [{"groupName": "A"}, {"groupName": "a b"}]})
    refused = await broker.ask(PUT_LIST, None, body)
    assert (refused.code, refused.remark) == (
        29,
        "The specified group: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
    )
    assert broker_of(server).state.groups.get("A") is None


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "The specified group is blank."),
        ("g" * 121, f"The specified group: {'g' * 121}, is longer than group max length: 120"),
    ],
)
async def test_names_no_group_may_have_are_29(broker: RawClient, name: str, remark: str) -> None:
    refused = await broker.ask(PUT, None, encode_body(SubscriptionGroupConfig(name)))
    assert (refused.code, refused.remark) == (29, remark)


@pytest.mark.parametrize("body", [b"{nope", b"[]", b"{}", b'{"groupName":1}', b'{"groupName":"G","retryMaxTimes":"x"}'])
async def test_unreadable_settings_are_1(broker: RawClient, body: bytes) -> None:
    response = await broker.ask(PUT, None, body)
    assert response.code == 1
    assert (response.remark or "").startswith("SubscriptionGroupConfig: ")


async def test_groups_and_their_size_are_bounded(broker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.groups.MAX_GROUPS", 2)
    monkeypatch.setattr("rmq_async.embedded.groups.MAX_GROUP_BYTES", 5000)
    await put(broker, "A")
    await put(broker, "B")
    refused = await broker.ask(PUT, None, b'{"groupName":"C"}')
    assert (refused.code, refused.remark) == (
        1,
        "this broker has 2 groups and cannot take 1 more, the limit is 2; delete some first",
    )
    pulled = await broker.pull("TBW102", consumerGroup="C")
    assert (pulled.code, pulled.remark) == (
        26,
        "subscription group [C] does not exist, this broker has 2 groups, the maximum; delete some first",
    )
    large = await broker.ask(PUT, None, msgspec.json.encode({"groupName": "A", "attributes": {"+lite.bind.topic": "y" * 5000}}))
    assert large.code == 1
    assert re.fullmatch(
        r"settings of groups would take \d{4} bytes, the limit of this broker is 5000; delete some groups", large.remark or ""
    )
    assert (await broker.ask(DELETE, {"groupName": "A"})).code == 0
    await put(broker, "C")


async def test_a_group_that_may_not_consume_pulls_nothing(broker: RawClient) -> None:
    await broker.send("T")
    await put(broker, "CG", consumeEnable=False)
    refused = await broker.pull("T")
    assert (refused.code, refused.remark, refused.ext_fields) == (
        16,
        "subscription group no permission, CG",
        {"forbiddenType": "2"},
    )
    await put(broker, "CG", consumeBroadcastEnable=False)
    data = ConsumerData("CG", message_model="BROADCASTING", subscription_data_set=(SubscriptionData("T"),))
    await broker.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(HeartbeatData("c1", consumer_data_set=(data,))))
    refused = await broker.pull("T", sysFlag="0")
    assert (refused.code, refused.ext_fields) == (16, {"forbiddenType": "4"})
    assert (await broker.pull("T")).code == 0


async def test_settings_shape_the_retry_topic_and_the_notices(broker: RawClient) -> None:
    await put(broker, "CG", retryQueueNums=3, notifyConsumerIdsChangedEnable=False)
    data = HeartbeatData("c1", consumer_data_set=(ConsumerData("CG", unit_mode=True),))
    await broker.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(data))
    topic = json.loads((await broker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "%RETRY%CG"})).body)
    assert (topic["readQueueNums"], topic["writeQueueNums"], topic["topicSysFlag"]) == (3, 3, 2)
    await broker.ask(9999)
    assert broker.pushed == []
