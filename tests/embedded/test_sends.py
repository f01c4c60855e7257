"""Sends: what is answered, what is stored, what is refused and with which code."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.sends import MAX_BATCH
from rmq_protocol.batch import encode_batch_message
from rmq_protocol.constants import MAX_BODY_SIZE, RequestCode, SerializeType
from rmq_protocol.ids import pack_offset_id, unpack_unique_id
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.properties import encode_properties, properties_text
from rmq_protocol.stored import decode_messages, encode_stored

from ..support.fakes import UNIQUE_ID, RawClient, oneway, send_fields

ADDED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
REPLY = {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}


async def test_a_send_is_answered_with_its_place(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T")
    address = server.brokers["broker-a"]
    first = await broker.send("T", queue=2)
    assert (first.code, first.remark) == (0, None)
    assert first.ext_fields == {
        **REPLY,
        "msgId": pack_offset_id(address, 0),
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": UNIQUE_ID,
    }
    (stored,) = server.messages("T")
    second = await broker.send("T", queue=2)
    assert second.ext_fields == {
        **REPLY,
        "msgId": pack_offset_id(address, stored.store_size),
        "queueId": "2",
        "queueOffset": "1",
        "transactionId": UNIQUE_ID,
    }


async def test_what_is_stored(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    properties = {"UNIQ_KEY": "u1", "WAIT": "true", "TAGS": "A", "KEYS": "k1 k2", "中": "文"}
    await broker.send("T", b"body", queue=3, properties=properties, h="-5", j="2", f="0")
    (message,) = server.messages("T")
    assert message == MessageExt(
        topic="T",
        body=b"body",
        flag=-5,
        properties={**properties, **ADDED},
        queue=MessageQueue("T", "broker-a", 3),
        queue_offset=0,
        commit_log_offset=0,
        sys_flag=0,
        body_crc=zlib.crc32(b"body") & 0x7FFFFFFF,
        store_size=message.store_size,
        born_time_ms=1700000000000,
        store_time_ms=message.store_time_ms,
        born_host=broker.local,
        store_host=server.brokers["broker-a"],
        reconsume_times=2,
    )
    assert message.store_time_ms > 1700000000000


async def test_the_same_bytes_as_the_codec_writes_come_back(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.send("T", b"x" * 1000, properties={"UNIQ_KEY": "u"})
    record = (await broker.pull("T")).body
    (message,) = server.messages("T")
    assert record == encode_stored(
        topic="T",
        body=b"x" * 1000,
        properties=encode_properties({"UNIQ_KEY": "u", **ADDED}),
        flag=7,
        born_time_ms=1700000000000,
        born_host=broker.local,
        store_time_ms=message.store_time_ms,
        store_host=server.brokers["broker-a"],
    )


async def test_long_form_sends_and_both_header_types_store_the_same(server: EmbeddedRocketMQ) -> None:
    long_names = {
        "producerGroup": "PG",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "properties": send_fields("T")["i"],
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    for serialize_type in SerializeType:
        async with RawClient(server.brokers["broker-a"], serialize_type=serialize_type) as client:
            assert (await client.send("T")).code == 0
            assert client.last_frame is not None
            assert client.last_frame.serialize_type == SerializeType.JSON
            assert (await client.ask(RequestCode.SEND_MESSAGE, long_names, b"hello")).code == 0
    messages = server.messages("T")
    assert [message.queue_offset for message in messages] == [0, 1, 2, 3]
    assert len({(message.body, message.flag, message.born_time_ms, str(message.properties)) for message in messages}) == 1


async def test_the_fast_and_the_general_answer_are_equal(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    """A failure waiting for another request switches the fast path off."""
    batch = encode_batch_message(b"a", 0, b"") + encode_batch_message(b"b", 0, b"")
    cases: list[tuple[bytes, dict[str, Any]]] = [
        (b"x", {}),
        (b"x", {"properties": {"UNIQ_KEY": 'quote " \\ and \x07 中'}}),
        (batch, {"code": 320, "m": "true"}),
    ]
    for body, options in cases:
        fast = await broker.send("T", body, **options)
        server.fail_next(1, request=9999)
        general = await broker.send("T", body, **options)
        server.fail_next(1, 0, request=9999)
        for response in (fast, general):
            assert response.ext_fields is not None
            del response.ext_fields["msgId"], response.ext_fields["queueOffset"]
            response.opaque = 0
        assert fast == general


async def test_oneway_sends_are_stored_in_order_and_not_answered(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    for index in range(500):
        broker.write(310, send_fields("T", properties={"UNIQ_KEY": f"u{index}"}), b"x", flag=oneway())
    broker.write(310, send_fields("a b"), b"x", flag=oneway())
    broker.write(9999, None, flag=oneway())
    assert await broker.offset(RequestCode.GET_MAX_OFFSET, "T") == 500
    assert [message.msg_id for message in server.messages("T")] == [f"u{index}" for index in range(500)]


async def test_a_negative_queue_id_lets_the_broker_choose(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T", readQueueNums="8", writeQueueNums="2")
    for _ in range(40):
        assert (await broker.send("T", queue=-1)).code == 0
    assert {message.queue.queue_id for message in server.messages("T")} == {0, 1}


async def test_a_wrong_queue_id_is_29_with_the_topics_settings(broker: RawClient) -> None:
    await broker.create_topic("T", readQueueNums="6", writeQueueNums="5")
    assert (await broker.send("T", queue=5)).code == 0
    response = await broker.send("T", queue=6)
    assert (response.code, response.ext_fields) == (29, REPLY)
    assert response.remark == (
        "request queueId[6] is illegal, TopicConfig [topicName=T, readQueueNums=6, writeQueueNums=5, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}] Producer: " + broker.local
    )
    await broker.create_topic("empty", 0)
    assert [(await broker.send("empty", queue=queue)).code for queue in (-1, 0)] == [29, 29]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("a b", 29),
        ("", 29),
        ("../x", 29),
        ("t" * 128, 29),
        ("SCHEDULE_TOPIC_XXXX", 16),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 16),
        ("TBW102", 0),
    ],
)
async def test_topics_that_no_client_may_send_to(server: EmbeddedRocketMQ, broker: RawClient, topic: str, code: int) -> None:
    response = await broker.send(topic)
    assert response.code == code
    assert len(server.messages(topic)) == (code == 0)


async def test_sizes_at_their_limits(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    limit = 4 * 1024 * 1024
    assert (await broker.send("T", bytes(limit))).code == 0
    too_big = await broker.send("T", bytes(limit + 1))
    assert too_big.code == 13
    assert f"msg body length limit {limit}B" in (too_big.remark or "")
    assert (await broker.send("T", b"")).code == 13
    room = 32767 - len(properties_text({"UNIQ_KEY": "u", "K": "", **ADDED}))
    assert (await broker.send("T", properties={"UNIQ_KEY": "u", "K": "v" * room})).code == 0
    assert (await broker.send("T", properties={"UNIQ_KEY": "u", "K": "v" * (room + 1)})).code == 13
    assert (await broker.send("T", properties={"UNIQ_KEY": "u", "K": "文" * (room // 3)})).code == 0
    assert (await broker.send("T", properties={"UNIQ_KEY": "u", "K": "文" * (room // 3 + 1)})).code == 13
    assert len(server.messages("T")) == 3


@pytest.mark.parametrize("letter", ["a", "b", "c", "d", "e", "f", "g", "h"])
async def test_a_missing_field_is_1_and_named(server: EmbeddedRocketMQ, broker: RawClient, letter: str) -> None:
    response = await broker.send("T", **{letter: None})
    assert (response.code, response.remark) == (1, f"SendMessageRequestHeaderV2.{letter} is missing")
    assert server.messages("T") == []


@pytest.mark.parametrize(("letter", "text"), [("e", "abc"), ("g", str(2**63)), ("h", str(2**31)), ("d", " 4 "), ("f", "1.5")])
async def test_an_unreadable_number_is_1(server: EmbeddedRocketMQ, broker: RawClient, letter: str, text: str) -> None:
    response = await broker.send("T", **{letter: text})
    assert response.code == 1
    assert f".{letter}:" in (response.remark or "")
    assert server.messages("T") == []


async def test_no_ext_fields_at_all_is_1(broker: RawClient) -> None:
    assert (await broker.ask(310, None, b"x")).code == 1
    assert (await broker.ask(10, None, b"x")).code == 1


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("UNIQ_KEY\x01k", {"UNIQ_KEY": "k"}),
        ("a\x01b\x02UNIQ_KEY\x01k\x02a\x01c\x02", {"a": "c", "UNIQ_KEY": "k"}),
        ("UNIQ_KEY\x01k\x02CLUSTER\x01zz\x02MSG_REGION\x01r\x02TRACE_ON\x01false\x02", {"UNIQ_KEY": "k"}),
        ("UNIQ_KEY\x01k\x02x\x02y\x01\x02z\x01a\x01b\x02", {"UNIQ_KEY": "k", "z": "a\x01b"}),
        ("UNIQ_KEY\x01k\x02POP_CK\x01zz\x02q\x01w\x02", {"UNIQ_KEY": "k", "q": "w"}),
    ],
)
async def test_odd_properties_are_stored_as_a_broker_reads_them(
    server: EmbeddedRocketMQ, broker: RawClient, text: str, kept: dict[str, str]
) -> None:
    assert (await broker.send("T", properties=text)).code == 0
    (message,) = server.messages("T")
    assert message.properties == {**kept, **ADDED}
    written = encode_properties({**kept, **ADDED})
    assert (await broker.pull("T")).body.endswith(struct.pack(">H", len(written)) + written)


async def test_a_message_without_a_unique_id_gets_one(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    replies = [await broker.send("T", properties=text) for text in ("", "UNIQ_KEY\x01\x02", None)[:2]]
    replies.append(await broker.send("T", i=None))
    ids = [message.msg_id for message in server.messages("T")]
    assert [(reply.ext_fields or {})["transactionId"] for reply in replies] == ids
    assert len(set(ids)) == 3
    assert unpack_unique_id(ids[0]).ip == "127.0.0.1"


async def test_transaction_flags_without_the_property_are_refused(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    for flag in ("4", "12"):
        half = await broker.send("T", properties={"UNIQ_KEY": "u"}, f=flag)
        assert (half.code, half.remark) == (16, "the broker[127.0.0.1] sending transaction message is forbidden")
        batch = await broker.send("T", batch_body(2), code=320, m="true", f=flag)
        assert (batch.code, batch.remark) == (half.code, half.remark)
    assert server.messages("T") == []
    assert (await broker.send("T", properties={"UNIQ_KEY": "u", "TRAN_MSG": "false"}, f="8")).code == 0


async def test_compressed_bodies_are_kept_as_they_came(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    packed = zlib.compress(b"hello " * 1000)
    await broker.send("T", packed, f=str(0x301))
    (message,) = server.messages("T")
    assert (message.body, message.body_crc) == (b"hello " * 1000, zlib.crc32(packed) & 0x7FFFFFFF)
    await broker.send("T", b"not compressed", f="1")
    assert len(server.messages("T")) == 1
    assert await broker.offset(RequestCode.GET_MAX_OFFSET, "T") == 2


async def test_multi_tag_topics_mark_their_messages(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    await broker.create_topic("T", topicFilterType="MULTI_TAG")
    await broker.send("T")
    assert server.messages("T")[0].sys_flag == 2


def batch_body(count: int, *, tags: str = "") -> bytes:
    return b"".join(
        encode_batch_message(f"b{index}".encode(), index, f"UNIQ_KEY\x01U{index}\x02WAIT\x01true\x02{tags}".encode())
        for index in range(count)
    )


@pytest.mark.parametrize("code", [320, 310])
async def test_a_batch_becomes_messages_of_their_own(server: EmbeddedRocketMQ, broker: RawClient, code: int) -> None:
    await broker.send("T", queue=1)
    reply = await broker.send("T", batch_body(3), code=code, m="true", queue=1, properties={"WAIT": "true"})
    messages = server.messages("T")[1:]
    assert reply.ext_fields == {
        **REPLY,
        "msgId": ",".join(message.offset_msg_id for message in messages),
        "queueId": "1",
        "queueOffset": "1",
    }
    assert [(message.body, message.flag, message.msg_id, message.queue_offset) for message in messages] == [
        (b"b0", 0, "U0", 1),
        (b"b1", 1, "U1", 2),
        (b"b2", 2, "U2", 3),
    ]
    assert messages[0].properties == {"UNIQ_KEY": "U0", "WAIT": "true"}
    assert messages[0].body_crc == zlib.crc32(b"b0") & 0x7FFFFFFF


async def test_the_field_and_not_the_code_says_what_is_a_batch(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    reply = await broker.send("T", batch_body(2), code=320, m="false")
    assert (reply.code, (reply.ext_fields or {})["transactionId"]) == (0, UNIQUE_ID)
    assert server.messages("T")[0].body == batch_body(2)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"garbage", 1),
        (batch_body(2)[:-3], 1),
        (struct.pack(">iiiii", 30, 0, 0, 0, 2**31 - 1) + bytes(10), 1),
        (struct.pack(">iiiii", 30, 0, 0, 0, -1) + bytes(10), 1),
        (b"", 13),
        (encode_batch_message(bytes(2 * 1024 * 1024), 0, b"") * 2, 1),
    ],
)
async def test_broken_batches_store_nothing(server: EmbeddedRocketMQ, broker: RawClient, body: bytes, code: int) -> None:
    reply = await broker.send("T", body, code=320, m="true")
    assert reply.code == code
    assert server.messages("T") == []


@pytest.mark.virtual_time
async def test_batches_of_more_messages_than_real_clients_can_send_are_13(
    server: EmbeddedRocketMQ, broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = encode_batch_message(b"", 0, b"")
    refused = await broker.send("T", smallest * 65_537, code=320, m="true")
    assert (refused.code, refused.remark) == (13, "a batch must have at most 65536 messages, this one has more")
    assert server.messages("T") == []
    unique = encode_batch_message(b"b", 0, f"UNIQ_KEY\x01{UNIQUE_ID}\x02".encode())
    assert MAX_BODY_SIZE // len(unique) < MAX_BATCH == 65_536
    monkeypatch.setattr("rmq_async.embedded.sends.MAX_BATCH", 3)
    assert (await broker.send("T", smallest * 3, code=320, m="true")).code == 0
    assert (await broker.send("T", smallest * 4, code=320, m="true")).code == 13
    assert len(server.messages("T")) == 3


async def test_batches_to_retry_topics_are_13(broker: RawClient) -> None:
    reply = await broker.send("%RETRY%CG", batch_body(1), code=320, m="true")
    assert (reply.code, reply.remark) == (13, "batch request does not support retry group %RETRY%CG")


async def test_records_of_long_topics_have_the_second_layout(server: EmbeddedRocketMQ, broker: RawClient) -> None:
    topic = "%DLQ%" + "g" * 200
    await broker.create_topic(topic)
    assert (await broker.send(topic)).code == 0
    record = (await broker.pull(topic)).body
    assert record[4:8].hex() == "daa320ab"
    assert decode_messages(record).messages[0].topic == topic
    assert len(server.messages(topic)) == 1


async def test_ipv6_hosts_and_ids() -> None:
    async with EmbeddedRocketMQ(host="::1") as server, RawClient(server.brokers["broker-a"]) as broker:
        assert server.namesrv.startswith("[::1]:")
        reply = await broker.send("T")
        (message,) = server.messages("T")
        assert message.store_host == server.brokers["broker-a"]
        assert message.born_host.startswith("[::1]:")
        assert len((reply.ext_fields or {})["msgId"] or "") == 56
        assert (reply.ext_fields or {})["msgId"] == message.offset_msg_id
