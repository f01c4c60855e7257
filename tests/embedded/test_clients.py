"""Heartbeats and unregistration, and what the broker then knows of its clients."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.clients import ClientTable
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    encode_heartbeat,
    java_hash,
)

from .raw import RawClient

HEARTBEAT = RequestCode.HEART_BEAT
UNREGISTER = RequestCode.UNREGISTER_CLIENT


def clients(server: EmbeddedRocketMQ) -> ClientTable:
    return server._brokers[0].state.clients


def consumer(group: str = "CG", *subscriptions: SubscriptionData) -> ConsumerData:
    return ConsumerData(group, "CONSUME_PASSIVELY", subscription_data_set=subscriptions)


async def beat(client: RawClient, client_id: str = "c1", **parts: Any) -> dict[str, str | None]:
    response = await client.ask(HEARTBEAT, None, encode_heartbeat(HeartbeatData(client_id, **parts)))
    assert (response.code, response.remark) == (0, None)
    assert response.version == 513
    return response.ext_fields or {}


async def test_a_heartbeat_registers_until_unregistered(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    ext = await beat(broker, producer_data_set=(ProducerData("PG"),), consumer_data_set=(consumer(),))
    assert ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert list(clients(server).producers["PG"]) == ["c1"]
    assert list(clients(server).consumers["CG"].members) == ["c1"]
    response = await broker.ask(UNREGISTER, {"clientID": "c1", "producerGroup": "PG"})
    assert (response.code, response.ext_fields) == (0, {})
    assert clients(server).producers == {}
    assert list(clients(server).consumers) == ["CG"]
    await broker.ask(UNREGISTER, {"clientID": "c1", "consumerGroup": "CG"})
    assert clients(server).consumers == {}
    assert (await broker.ask(UNREGISTER, {"clientID": "c1", "producerGroup": "PG", "consumerGroup": "CG"})).code == 0
    assert (await broker.ask(UNREGISTER, None)).code == 0


async def test_the_end_of_a_connection_unregisters_only_its_clients(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await beat(broker, "c1", producer_data_set=(ProducerData("PG"),))
    async with RawClient(server.brokers["broker-a"]) as other:
        await beat(other, "c2", producer_data_set=(ProducerData("PG"),), consumer_data_set=(consumer(),))
        assert list(clients(server).producers["PG"]) == ["c1", "c2"]
    await broker.ask(9999)
    assert list(clients(server).producers["PG"]) == ["c1"]
    assert clients(server).consumers == {}


async def test_a_client_that_came_back_is_not_forgotten_with_its_old_connection(
    server: EmbeddedRocketMQ, broker: RawClient
) -> None:
    async with RawClient(server.brokers["broker-a"]) as old:
        await beat(old, "c1", producer_data_set=(ProducerData("PG"),))
        await beat(broker, "c1", producer_data_set=(ProducerData("PG"),))
    await broker.ask(9999)
    assert list(clients(server).producers["PG"]) == ["c1"]


async def test_fingerprints_say_whether_subscriptions_changed(broker: RawClient) -> None:
    changes = []
    for fingerprint, without in ((77, False), (77, True), (78, False), (78, True), (0, False), (78, False)):
        ext = await beat(broker, consumer_data_set=(consumer(),), heartbeat_fingerprint=fingerprint, without_sub=without)
        changes.append(ext["IS_SUB_CHANGE"])
    assert changes == ["false", "false", "true", "false", "true", "true"]
    assert (await beat(broker, producer_data_set=(ProducerData("PG"),), heartbeat_fingerprint=5))["IS_SUB_CHANGE"] == "false"


async def test_pulls_without_a_subscription_use_the_groups(broker: RawClient) -> None:
    await broker.send("T")
    assert (await broker.pull("T", sysFlag="0", consumerGroup="CGS")).code == 24
    subscription = SubscriptionData("T", "B", ("B",), (java_hash("B"),), sub_version=5)
    await beat(broker, consumer_data_set=(consumer("CGS", subscription),))
    for without_sub in (False, True):
        if without_sub:
            await beat(broker, consumer_data_set=(consumer("CGS"),), heartbeat_fingerprint=9, without_sub=True)
        assert (await broker.pull("T", sysFlag="0", consumerGroup="CGS", subVersion="5")).code == 20
        assert (await broker.pull("T", sysFlag="0", consumerGroup="CGS", subVersion="6")).code == 25
        assert (await broker.pull("TBW102", sysFlag="0", consumerGroup="CGS")).code == 24


async def test_a_consumer_group_gets_its_retry_topic(names: RawClient, broker: RawClient) -> None:
    await beat(broker, consumer_data_set=(consumer("CG"), consumer("no such name")))
    assert (await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%CG"})).code == 0
    assert (await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%no such name"})).code == 17


@pytest.mark.parametrize(
    "body", [b"", b"{nope", b"[1]", b"null", b'{"producerDataSet":[]}', b'{"clientID":{}}', b"\xff" * 50, b"[" * 5000]
)
async def test_bodies_that_are_no_heartbeat_are_1(server: EmbeddedRocketMQ, broker: RawClient, body: bytes) -> None:
    assert (await broker.ask(HEARTBEAT, None, body)).code == 1
    assert clients(server).producers == {}


async def test_unknown_members_and_missing_sets_are_fine(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    body = msgspec.json.encode({"clientID": "c", "producerDataSet": [{"groupName": "PG", "new": 1}], "newer": {}})
    assert (await broker.ask(HEARTBEAT, None, body)).code == 0
    assert list(clients(server).producers["PG"]) == ["c"]


async def test_the_groups_of_one_connection_are_bounded(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.clients.MAX_GROUPS_PER_CONNECTION", 10)
    await beat(broker, producer_data_set=tuple(ProducerData(f"G{index}") for index in range(50)))
    assert len(clients(server).producers) == 10
