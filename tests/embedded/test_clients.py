"""Heartbeats and unregistration, and what the broker then knows of its clients."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.clients import ClientTable
from rmq_protocol.bodies import (
    CheckClientRequestBody,
    Connection,
    ConsumerConnection,
    ProducerConnection,
    decode_body,
    encode_body,
)
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    encode_heartbeat,
)
from rmq_protocol.java_types import string_hash

from ..support.fakes import RawClient
from .inside import broker_of

pytestmark = pytest.mark.virtual_time

HEARTBEAT = RequestCode.HEART_BEAT
UNREGISTER = RequestCode.UNREGISTER_CLIENT


def clients(server: EmbeddedRocketMQ) -> ClientTable:
    return broker_of(server).state.clients


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
    assert list(clients(server).consumers["CG"].ids()) == ["c1"]
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
    subscription = SubscriptionData("T", "B", ("B",), (string_hash("B"),), sub_version=5)
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
    data = HeartbeatData("c1", producer_data_set=tuple(ProducerData(f"G{index}") for index in range(50)))
    response = await broker.ask(HEARTBEAT, None, encode_heartbeat(data))
    assert (response.code, response.remark) == (1, "this connection has 10 groups, the maximum; use another connection")
    assert len(clients(server).producers) == 10


async def test_the_members_and_subscriptions_of_all_groups_are_bounded(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.clients.MAX_MEMBERS", 2)
    monkeypatch.setattr("rmq_async.embedded.clients.MAX_SUBSCRIPTION_BYTES", 5000)
    large = consumer("CG", *(SubscriptionData(f"T{index}", "A" * 100) for index in range(20)))
    refused = await broker.ask(HEARTBEAT, None, encode_heartbeat(HeartbeatData("c1", consumer_data_set=(large,))))
    assert (refused.code, refused.remark) == (
        1,
        "subscriptions would take 16440 bytes, the limit of this broker is 5000; subscribe to fewer topics or tags",
    )
    await beat(broker, "c1", producer_data_set=(ProducerData("A"), ProducerData("B")))
    refused = await broker.ask(HEARTBEAT, None, encode_heartbeat(HeartbeatData("c1", (ProducerData("C"),))))
    assert (refused.code, refused.remark) == (1, "this broker has 2 group members, the maximum; stop some")
    await beat(broker, "c1", producer_data_set=(ProducerData("A"),))
    await broker.ask(UNREGISTER, {"clientID": "c1", "producerGroup": "A"})
    await beat(broker, "c1", producer_data_set=(ProducerData("C"),))


async def test_subscriptions_that_stay_because_newer_ones_are_older_count_as_what_they_take(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.clients.MAX_SUBSCRIPTION_BYTES", 50_000)
    large, small = (SubscriptionData("T", "A" * count, sub_version=count) for count in (10_000, 1))
    await beat(broker, consumer_data_set=(consumer("CG", large),))
    await beat(broker, consumer_data_set=(consumer("CG", small),))
    assert clients(server).consumers["CG"].subscriptions == {"T": large}
    other = HeartbeatData("c1", consumer_data_set=(consumer("CG2", large),))
    assert (await broker.ask(HEARTBEAT, None, encode_heartbeat(other))).code == 1
    await beat(broker, consumer_data_set=(consumer("CG", SubscriptionData("U")),))
    assert (await broker.ask(HEARTBEAT, None, encode_heartbeat(other))).code == 0
    for group in ("CG", "CG2"):
        await broker.ask(UNREGISTER, {"clientID": "c1", "consumerGroup": group})
    assert clients(server)._size == 0  # noqa: SLF001


@pytest.mark.parametrize(
    "data", [HeartbeatData("c" * 513, (ProducerData("PG"),)), HeartbeatData("c", (ProducerData("P" * 513),))]
)
async def test_names_in_heartbeats_are_bounded(server: EmbeddedRocketMQ, broker: RawClient, data: HeartbeatData) -> None:
    refused = await broker.ask(HEARTBEAT, None, encode_heartbeat(data))
    assert refused.code == 1
    assert re.fullmatch("the name '(c|P){80}' has 513 characters, the limit is 512; shorten it", refused.remark or "")
    assert clients(server).producers == {}


async def test_members_hear_of_other_members_and_topics(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    async def heard(client: RawClient, group: str = "CG") -> None:
        command = await client.request()
        assert (command.code, command.is_oneway, command.ext_fields) == (40, True, {"consumerGroup": group})

    async def nothing(*listening: RawClient) -> None:
        for client in listening:
            await client.ask(9999)
            assert client.pushed == []

    topic = SubscriptionData("T", sub_version=5)
    await beat(broker, "c1", consumer_data_set=(consumer("CG", topic),))
    await heard(broker)
    async with RawClient(server.brokers["broker-a"]) as other:
        await beat(other, "c2", consumer_data_set=(consumer("CG", topic),))
        await heard(broker)
        await heard(other)
        await beat(other, "c2", consumer_data_set=(consumer("CG", topic),))
        await beat(other, "c2", consumer_data_set=(consumer("CG", SubscriptionData("T", "A", sub_version=6)),))
        await nothing(broker, other)
        await beat(other, "c2", consumer_data_set=(consumer("CG", topic, SubscriptionData("U")),))
        await heard(broker)
        await heard(other)
        assert clients(server).consumers["CG"].subscriptions["T"].sub_string == "A"  # the newest version stays
        await broker.ask(UNREGISTER, {"clientID": "c1", "consumerGroup": "CG"})
        await heard(other)
        await nothing(broker)
        await beat(broker, "c1", consumer_data_set=(consumer("CG", topic),))
        await heard(broker)
    await heard(broker)  # the other one's connection has ended


async def test_broadcasting_groups_hear_nothing(broker: RawClient) -> None:
    await beat(broker, consumer_data_set=(ConsumerData("CG", message_model="BROADCASTING"),))
    await broker.ask(UNREGISTER, {"clientID": "c1", "consumerGroup": "CG"})
    await broker.ask(9999)
    assert broker.pushed == []


async def test_clients_without_heartbeats_are_forgotten(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RawClient(server.brokers["broker-a"]) as silent:
        await beat(silent, "c1", producer_data_set=(ProducerData("PG"),), consumer_data_set=(consumer("CG"),))
        await beat(broker, "c2", producer_data_set=(ProducerData("PG"),), consumer_data_set=(consumer("CG"),))
        monkeypatch.setattr("rmq_async.embedded.clients.EXPIRY", 0.1)
        await asyncio.sleep(0.15)
        await beat(broker, "c2", consumer_data_set=(consumer("CG"),))
        broker.pushed.clear()
        broker_of(server).tick()
        assert await silent.is_closed()
        assert (await broker.request()).code == 40
        assert clients(server).producers == {}
        assert list(clients(server).consumers["CG"].ids()) == ["c2"]
        assert (await broker.ask(9999)).code == 3


async def test_a_client_that_moves_to_another_connection_keeps_its_groups(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    async with RawClient(server.brokers["broker-a"]) as old:
        await beat(old, "c1", producer_data_set=(ProducerData("PG"),))
        await beat(broker, "c1", producer_data_set=(ProducerData("PG"),))
        table = clients(server)
        found = table.find_producer("c1")
        assert found is not None
        assert found.connection.remote == broker.local
    await broker.ask(9999)
    assert table.producer_connection("PG") is found.connection
    assert table.producer_connection("nope") is None
    await broker.ask(UNREGISTER, {"clientID": "c1", "producerGroup": "PG"})
    assert table.find_producer("c1") is None
    assert (table._members, table._groups_of) == (0, {})  # noqa: SLF001


async def test_who_replies_are_pushed_to_is_forgotten_as_by_a_real_broker(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """Whichever group leaves, and whichever connection ends; what brings the client back is a group that is new to the broker."""
    table = clients(server)
    both = (ProducerData("PG"), ProducerData("other"))
    await beat(broker, "c1", producer_data_set=both)
    for _ in range(2):
        assert table.find_producer("c1") is not None
        await broker.ask(UNREGISTER, {"clientID": "c1", "producerGroup": "other"})
        await beat(broker, "c1", producer_data_set=both[:1])
        assert table.find_producer("c1") is None
        await beat(broker, "c1", producer_data_set=both)
    async with RawClient(server.brokers["broker-a"]) as newer:
        await beat(newer, "c1", producer_data_set=both)
        assert table.find_producer("c1") is not None
        broker.writer.close()
        async with asyncio.timeout(3.0):
            while table.find_producer("c1") is not None:
                await asyncio.sleep(0.001)
        await beat(newer, "c1", producer_data_set=both)
        assert table.find_producer("c1") is None
        assert set(table.producers) == {"PG", "other"}
        await newer.ask(UNREGISTER, {"clientID": "c1", "producerGroup": "PG"})
        await newer.ask(UNREGISTER, {"clientID": "c1", "producerGroup": "other"})
    assert (table._reachable, table._members) == ({}, 0)  # noqa: SLF001


async def test_the_members_of_a_group(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    fields = {"consumerGroup": "CG"}
    none = await broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
    assert (none.code, none.remark, none.ext_fields) == (1, "no consumer for this group, CG", {})
    none = await broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
    assert (none.code, none.remark) == (206, "the consumer group[CG] not online")
    subscription = SubscriptionData("T", "A || B", ("A", "B"), (65, 66), 7)
    await beat(broker, "c1", consumer_data_set=(consumer("CG", subscription),))
    async with RawClient(server.brokers["broker-a"]) as other:
        await beat(other, "c2", consumer_data_set=(consumer("CG", subscription),))
        response = await broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
        assert (response.code, response.ext_fields, response.body) == (0, {}, b'{"consumerIdList":["c1","c2"]}')
        response = await broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
        assert decode_body(ConsumerConnection, response.body) == ConsumerConnection(
            (Connection("c1", broker.local, "PYTHON", 513), Connection("c2", other.local, "PYTHON", 513)),
            {"T": subscription},
            "CONSUME_PASSIVELY",
            "CLUSTERING",
            "CONSUME_FROM_LAST_OFFSET",
        )


async def test_the_producers_of_a_group(broker: RawClient) -> None:
    fields = {"producerGroup": "PG"}
    none = await broker.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
    assert (none.code, none.remark) == (1, "the producer group[PG] not exist")
    await beat(broker, "c1", producer_data_set=(ProducerData("PG"),))
    response = await broker.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
    assert decode_body(ProducerConnection, response.body).connection_set == (Connection("c1", broker.local, "PYTHON", 513),)


async def test_a_subscription_by_anything_but_tags_is_refused_beforehand(unfiltering: RawClient) -> None:
    def check(subscription: SubscriptionData | None) -> bytes:
        return encode_body(CheckClientRequestBody("c1", "CG", subscription))

    code = RequestCode.CHECK_CLIENT_CONFIG
    for good in (b"", check(None), check(SubscriptionData("T", "A"))):
        assert (await unfiltering.ask(code, None, good)).code == 0
    refused = await unfiltering.ask(code, None, check(SubscriptionData("T", "a > 1", expression_type="SQL92")))
    assert (refused.code, refused.remark) == (1, "The broker does not support consumer to filter message by SQL92")
    assert (await unfiltering.ask(code, None, b"{nope")).code == 1


async def test_pulls_by_sql_are_refused_whichever_way_they_come(unfiltering: RawClient) -> None:
    await unfiltering.send("T")
    refused = await unfiltering.pull("T", subscription="a > 1", expressionType="SQL92")
    assert (refused.code, refused.remark, refused.ext_fields) == (
        1,
        "The broker does not support consumer to filter message by SQL92",
        {},
    )
    sql = SubscriptionData("T", "a > 1", expression_type="SQL92", sub_version=1)
    await beat(unfiltering, consumer_data_set=(consumer("CG", sql),))
    assert (await unfiltering.pull("T", sysFlag="0")).remark == refused.remark
