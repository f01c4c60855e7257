"""JSON bodies of every class: both ways, in the servers' own form too, and any other bytes instead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_bodies import BODIES, body_values, members
from strategies_wire import FUZZ, damaged, json_values, object_keys

from rmq_protocol import lenient_json
from rmq_protocol.bodies import (
    MAX_ACK_SPAN,
    ConsumerConnection,
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    GetConsumerStatusBody,
    KVTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueueForC,
    OffsetWrapper,
    QueryAssignmentResponseBody,
    ResetOffsetBodyForC,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicOffset,
    TopicStatsTable,
    decode_body,
    decode_reset_offsets,
    encode_body,
    pack_bits,
    unpack_bits,
)
from rmq_protocol.errors import LocalProtocolError, RemoteProtocolError
from rmq_protocol.message import MessageQueue
from rmq_protocol.topics import TopicConfig

QUEUE = MessageQueue("T", "broker-a", 3)
KEY = b'{"brokerName":"broker-a","queueId":3,"topic":"T"}'

any_class = st.sampled_from(BODIES)
any_body = any_class.flatmap(body_values)


@given(any_body)
@FUZZ
def test_any_body_survives_both_forms(body: msgspec.Struct) -> None:
    assert decode_body(type(body), encode_body(body)) == body
    assert decode_body(type(body), encode_body(body, standard=False)) == body


@given(any_class.flatmap(lambda cls: st.tuples(st.just(cls), damaged(body_values(cls).map(_as_servers_do)))))
@FUZZ
def test_a_damaged_body_is_read_or_refused(case: tuple[type[msgspec.Struct], bytes]) -> None:
    read_or_refuse(*case)


@given(any_class.flatmap(lambda cls: st.tuples(st.just(cls), json_values(members(cls)).map(lenient_json.dumps))))
@FUZZ
def test_other_json_is_read_or_refused(case: tuple[type[msgspec.Struct], bytes]) -> None:
    read_or_refuse(*case)


@given(st.dictionaries(object_keys, st.integers(), max_size=4).map(lambda table: lenient_json.dumps({"offsetTable": table})))
@FUZZ
def test_other_keys_than_queues_are_refused(body: bytes) -> None:
    read_or_refuse(TopicStatsTable, body)
    read_or_refuse(ConsumeStats, body)


@given(any_class, st.binary(max_size=60))
@FUZZ
def test_any_bytes_are_read_or_refused(cls: type[msgspec.Struct], body: bytes) -> None:
    read_or_refuse(cls, body)


def _as_servers_do(body: msgspec.Struct) -> bytes:
    return encode_body(body, standard=False)


def read_or_refuse(cls: type[msgspec.Struct], body: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        value = decode_body(cls, body)
        assert decode_body(cls, encode_body(value)) == value


def test_queues_are_objects_in_lists_and_unquoted_as_keys() -> None:
    assert encode_body(LockBatchResponseBody((QUEUE,))) == b'{"lockOKMQSet":[' + KEY + b"]}"
    table = TopicStatsTable({QUEUE: TopicOffset(1, 2, 3)})
    text = b'{"offsetTable":{' + KEY + b':{"minOffset":1,"maxOffset":2,"lastUpdateTimestamp":3}},"topicPutTps":0.0}'
    assert encode_body(table) == encode_body(table, standard=False) == text
    assert decode_body(TopicStatsTable, text) == table


class Word(str):
    """A text that is a little more, as NumPy's are."""


@pytest.mark.parametrize(
    "body",
    [
        lambda text: TopicList((text("a"),), text("b")),
        lambda text: KVTable({text("a"): text("b")}),
        lambda text: LockBatchRequestBody(text("g"), text("c"), (MessageQueue(text("T"), text("b"), 1),)),
        lambda text: TopicStatsTable({MessageQueue(text("T"), text("b"), 1): TopicOffset(1, 2, 3)}),
    ],
    ids=["list", "table", "queues", "table by queues"],
)
@pytest.mark.parametrize("standard", [True, False])
def test_texts_of_a_class_below_str_are_texts(body: Callable[[Callable[[str], str]], msgspec.Struct], standard: bool) -> None:
    assert encode_body(body(Word), standard=standard) == encode_body(body(str), standard=standard)
    for text in (Word, str):
        with pytest.raises(LocalProtocolError, match="surrogates not allowed"):
            encode_body(body(lambda given, text=text: text("\ud800" + given)), standard=standard)


def test_the_members_of_a_queue_come_in_any_order_and_with_others() -> None:
    key = b'{ "topic" : "T", "new":true, "queueId":"3" , "brokerName":"broker-a"}'
    stats = decode_body(ConsumeStats, b'{"offsetTable":{' + key + b':{"brokerOffset":7}},"consumeTps":"1.5"}')
    assert stats == ConsumeStats({QUEUE: OffsetWrapper(broker_offset=7)}, 1.5)
    assert decode_body(LockBatchResponseBody, b'{"lockOKMQSet":[null,' + key + b"]}").lock_ok_mq_set == (QUEUE,)


@pytest.mark.parametrize(
    "key",
    [
        '{"topic":"T","brokerName":"b"}',
        '{"topic":"T","brokerName":null,"queueId":1}',
        '{"topic":"T","brokerName":"b","queueId":2147483648}',
        '{"topic":"T","brokerName":"b","queueId":1.5}',
        "{}",
        '"T"',
        "5",
    ],
)
def test_a_key_that_is_no_queue_is_refused(key: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^TopicStatsTable: "):
        decode_body(TopicStatsTable, f'{{"offsetTable":{{{key}:{{}}}}}}'.encode())


@pytest.mark.parametrize("item", ['["T","b",0]', '"T"', "5", "{}", '{"topic":1,"brokerName":"b","queueId":0}'])
def test_an_item_that_is_no_queue_is_refused(item: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^LockBatchRequestBody: "):
        decode_body(LockBatchRequestBody, f'{{"consumerGroup":"g","clientId":"c","mqSet":[{item}]}}'.encode())


def test_queues_deep_inside() -> None:
    body = b'{"messageQueueAssignments":[{"messageQueue":' + KEY + b',"mode":"POP"}]}'
    [assignment] = decode_body(QueryAssignmentResponseBody, body).message_queue_assignments
    assert (assignment.message_queue, assignment.mode, assignment.attachments) == (QUEUE, "POP", None)
    status = decode_body(GetConsumerStatusBody, b'{"consumerTable":{"c":{' + KEY + b":5}}}")
    assert status == GetConsumerStatusBody(consumer_table={"c": {QUEUE: 5}})


def test_offsets_of_a_reset_come_in_two_forms() -> None:
    listed = b'{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":3,"topic":"T"}]}'
    assert decode_reset_offsets(b'{"offsetTable":{' + KEY + b":5}}") == {QUEUE: 5}
    assert decode_reset_offsets(listed) == {QUEUE: 5}
    assert encode_body(ResetOffsetBodyForC((MessageQueueForC("T", "broker-a", 3, 5),))) == (
        b'{"offsetTable":[{"topic":"T","brokerName":"broker-a","queueId":3,"offset":5}]}'
    )
    for empty in (b"", b"{}", b'{"offsetTable":{}}', b'{"offsetTable":[]}'):
        assert decode_reset_offsets(empty) == {}
    for bad in (b"[", b'{"offsetTable":5}', b'{"offsetTable":[{"topic":"T"}]}', b'{"offsetTable":{"T":5}}'):
        with pytest.raises(RemoteProtocolError, match=r"^ResetOffsetBodyForC: "):
            decode_reset_offsets(bad)


def test_integer_keys_go_without_quotes_only_where_servers_write() -> None:
    body = ConsumerOffsetSerializeWrapper({"T@g": {3: 9}})
    assert encode_body(body) == b'{"offsetTable":{"T@g":{"3":9}}}'
    assert encode_body(body, standard=False) == b'{"offsetTable":{"T@g":{3:9}}}'


def test_members_may_be_missing_and_unknown() -> None:
    assert decode_body(TopicList, b'{"new":[{}]}') == TopicList()
    assert decode_body(ConsumerConnection, b"{}").consume_type == "CONSUME_PASSIVELY"
    assert decode_body(SubscriptionGroupConfig, b'{"groupName":"g","retryMaxTimes":null}').retry_max_times == 16
    wrapper = decode_body(SubscriptionGroupWrapper, b'{"subscriptionGroupTable":{"g":{"groupName":"g"}}}')
    assert wrapper.subscription_group_table == {"g": SubscriptionGroupConfig("g")}
    with pytest.raises(RemoteProtocolError, match=r"^SubscriptionGroupConfig: .*groupName"):
        decode_body(SubscriptionGroupConfig, b"{}")


@pytest.mark.parametrize("number", ['"nan"', '"inf"', '"-inf"', '"1e999"', "1" + "0" * 399, "NaN"])
def test_a_number_that_json_does_not_have_is_refused(number: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^TopicStatsTable: "):
        decode_body(TopicStatsTable, f'{{"topicPutTps":{number}}}'.encode())


def test_topics_by_name() -> None:
    wrapper = TopicConfigSerializeWrapper({"T": TopicConfig("T", attributes={"+message.type": "FIFO"})})
    assert decode_body(TopicConfigSerializeWrapper, encode_body(wrapper)) == wrapper


@given(st.sets(st.integers(0, 300)))
@FUZZ
def test_the_bits_of_an_ack(bits: set[int]) -> None:
    assert unpack_bits(pack_bits(bits)) == tuple(sorted(bits))


def test_the_span_of_an_ack_is_bounded() -> None:
    assert unpack_bits(pack_bits([MAX_ACK_SPAN])) == (MAX_ACK_SPAN,)
    assert unpack_bits(bytes(10_000) + b"\x01") == ()
    for bit in (-1, MAX_ACK_SPAN + 1, 1 << 62):
        with pytest.raises(LocalProtocolError, match=f"offset {bit}, counted from start_offset"):
            pack_bits([bit])
