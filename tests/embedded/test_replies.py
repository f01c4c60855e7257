"""Replies between clients, and what an admin asks of a consumer: both go through the broker and wait for the client's answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, ProducerData, encode_heartbeat
from rmq_protocol.properties import decode_properties
from rmq_protocol.stored import decode_messages

from ..support.fakes import RawClient, oneway, pull_fields, send_fields
from .inside import broker_of, congested

pytestmark = pytest.mark.virtual_time

TOPIC = "DefaultCluster_REPLY_TOPIC"
V2 = RequestCode.SEND_REPLY_MESSAGE_V2
RUNNING = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY


def reply(client_id: str | None = "c1", **over: str | None) -> dict[str, str]:
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "id", "TTL": "3000"}
    if client_id is not None:
        properties["REPLY_TO_CLIENT"] = client_id
    return send_fields(TOPIC, properties=properties, **over)


@pytest.fixture
async def asker(server: EmbeddedRocketMQ) -> AsyncIterator[RawClient]:
    """Producer and consumer "c1" on broker-a."""
    async with RawClient(server.brokers["broker-a"]) as client:
        data = HeartbeatData("c1", (ProducerData("PG"),), (ConsumerData("CG"),))
        await client.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(data))
        await client.request()  # NOTIFY_CONSUMER_IDS_CHANGED
        yield client


async def test_a_reply_reaches_the_client_and_its_answer_the_replier(
    server: EmbeddedRocketMQ, broker: RawClient, asker: RawClient
) -> None:
    opaque = broker.write(V2, reply(), b"body")
    pushed = await asker.request()
    assert (pushed.code, pushed.is_oneway, pushed.body) == (326, False, b"body")
    ext = pushed.ext_fields or {}
    assert (ext["topic"], ext["producerGroup"], ext["queueId"], ext["flag"], ext["unitMode"]) == (
        TOPIC,
        "PG",
        "0",
        "7",
        "false",
    )
    assert (ext["bornHost"], ext["storeHost"]) == (broker.local, server.brokers["broker-a"])
    properties = decode_properties(ext["properties"] or "")
    assert properties.pop("PUSH_REPLY_TIME") == ext["storeTimestamp"]
    assert properties == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "id",
        "TTL": "3000",
        "REPLY_TO_CLIENT": "c1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    with pytest.raises(TimeoutError):
        await broker.read(0.05)
    asker.answer(pushed)
    response = await broker.read()
    assert (response.code, response.opaque) == (0, opaque)
    (stored,) = server.messages(TOPIC)
    assert (response.ext_fields or {})["msgId"] == stored.offset_msg_id
    assert stored.body == b"body"


async def test_the_long_form_of_a_reply(broker: RawClient, asker: RawClient) -> None:
    long = {
        "producerGroup": "PG",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": reply()["i"],
    }
    broker.write(RequestCode.SEND_REPLY_MESSAGE, long, b"x")
    asker.answer(await asker.request())
    assert (await broker.read()).code == 0


async def test_a_reply_that_cannot_be_delivered_is_1_and_says_why(broker: RawClient, asker: RawClient) -> None:
    missing = await broker.ask(V2, reply("missing"), b"x")
    assert (missing.code, missing.remark) == (1, "push reply message fail, channel of <missing> not found.")
    unmarked = await broker.ask(V2, reply(None), b"x")
    assert (unmarked.code, unmarked.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    broker.write(V2, reply(), b"x")
    asker.answer(await asker.request(), 1, "not mine")
    refused = await broker.read()
    assert (refused.code, refused.remark) == (1, "push reply message to c1fail.")
    assert (await broker.ask(V2, reply(e="9"), b"x")).code == 29
    assert (await broker.ask(V2, reply(), b"")).code == 13


async def test_a_client_that_goes_or_stays_silent_fails_the_reply(
    server: EmbeddedRocketMQ, broker: RawClient, asker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_async.embedded.calls.CALL_TIMEOUT", 0.05)
    broker.write(V2, reply(), b"x")
    pushed = await asker.request()
    assert (await broker.read()).code == 1
    asker.answer(pushed)  # too late: no request waits
    assert (await broker.ask(9999)).code == 3
    monkeypatch.setattr("rmq_async.embedded.calls.CALL_TIMEOUT", 30.0)
    broker.write(V2, reply(), b"x")
    await asker.request()
    asker.writer.close()
    assert (await broker.read()).code == 1
    assert len(broker_of(server).calls) == 0


async def test_only_the_client_asked_can_answer(server: EmbeddedRocketMQ, broker: RawClient, asker: RawClient) -> None:
    broker.write(V2, reply(), b"x")
    pushed = await asker.request()
    async with RawClient(server.brokers["broker-a"]) as stranger:
        stranger.answer(pushed)
        await stranger.ask(9999)
    with pytest.raises(TimeoutError):
        await broker.read(0.05)
    asker.answer(pushed)
    assert (await broker.read()).code == 0


async def test_one_way_replies_are_delivered_and_not_answered(broker: RawClient, asker: RawClient) -> None:
    broker.write(V2, reply(), b"x", flag=oneway())
    asker.answer(await asker.request())
    await asker.ask(9999)
    assert (await broker.ask(9999)).code == 3


async def test_requests_to_one_client_are_bounded(broker: RawClient, asker: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.embedded.calls.MAX_CALLS_PER_CONNECTION", 2)
    for _ in range(3):
        broker.write(V2, reply(), b"x")
    assert (await broker.read()).code == 1
    for _ in range(2):
        asker.answer(await asker.request())
        assert (await broker.read()).code == 0


async def test_nothing_is_left_of_requests_when_the_server_stops(
    server: EmbeddedRocketMQ, broker: RawClient, asker: RawClient
) -> None:
    broker.write(V2, reply(), b"x")
    await asker.request()
    await server.stop()
    assert len(broker_of(server).calls) == 0


async def test_running_information_comes_from_the_client(broker: RawClient, asker: RawClient) -> None:
    broker.write(RUNNING, {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "false", "other": "kept"})
    asked = await asker.request()
    assert (asked.code, asked.ext_fields) == (
        307,
        {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "false", "other": "kept"},
    )
    asker.answer(asked, 0, "remark", {"a": "b"}, b'{"properties":{}}')
    response = await broker.read()
    assert (response.code, response.remark, response.ext_fields, response.body) == (
        0,
        "remark",
        {"a": "b"},
        b'{"properties":{}}',
    )


async def test_a_message_is_consumed_directly_with_its_record(
    server: EmbeddedRocketMQ, broker: RawClient, asker: RawClient
) -> None:
    sent = await broker.send("T", b"again")
    msg_id = (sent.ext_fields or {})["msgId"] or ""
    fields = {"consumerGroup": "CG", "clientId": "c1", "topic": "T"}
    broker.write(DIRECTLY, {**fields, "msgId": msg_id})
    asked = await asker.request()
    assert asked.ext_fields == {**fields, "msgId": msg_id, "brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
    (message,) = decode_messages(asked.body).messages
    assert (message.body, message.offset_msg_id) == (b"again", msg_id)
    asker.answer(asked, 0, None, None, b'{"consumeResult":"CR_SUCCESS"}')
    assert (await broker.read()).body == b'{"consumeResult":"CR_SUCCESS"}'
    for wrong in ("zz", "", "7F00000100002A9F00000000000F4240"):
        assert (await broker.ask(DIRECTLY, {**fields, "msgId": wrong})).code == 1


async def test_consumers_that_are_not_there_or_too_old_are_1(
    broker: RawClient, asker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group, client_id in (("CG", "c9"), ("other", "c1")):
        refused = await broker.ask(RUNNING, {"consumerGroup": group, "clientId": client_id})
        assert (refused.code, refused.remark) == (1, f"The Consumer <{group}> <{client_id}> not online")
    monkeypatch.setattr("rmq_async.embedded.calls.CALL_TIMEOUT", 0.05)
    broker.write(RUNNING, {"consumerGroup": "CG", "clientId": "c1"})
    await asker.request()
    late = await broker.read()
    assert (late.code, late.remark) == (207, "consumer <CG> <c1> Timeout: no response in time")
    data = HeartbeatData("c1", (), (ConsumerData("CG"),))
    await asker.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(data), version=61)
    refused = await broker.ask(RUNNING, {"consumerGroup": "CG", "clientId": "c1"})
    assert refused.code == 1
    assert "too low" in (refused.remark or "")


async def test_a_client_that_does_not_read_is_not_asked(server: EmbeddedRocketMQ, broker: RawClient, asker: RawClient) -> None:
    await broker.send("T", bytes(4_000_000))
    asker.writer.transport.pause_reading()  # type: ignore[attr-defined]
    while not congested(server):
        asker.write(11, pull_fields("T"))
        await asyncio.sleep(0.01)
    assert (await broker.ask(V2, reply(), b"x")).code == 1
