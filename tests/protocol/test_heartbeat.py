"""Heartbeat bodies."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, damaged, ints, json_values, longs, names, texts

from rmq_protocol.errors import LocalProtocolError, RemoteProtocolError
from rmq_protocol.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
    decode_heartbeat,
    encode_heartbeat,
    heartbeat_fingerprint,
)
from rmq_protocol.java_types import string_hash

subscriptions = st.builds(
    SubscriptionData,
    names,
    texts,
    st.lists(names, max_size=3).map(tuple),
    st.lists(ints, max_size=3).map(tuple),
    longs,
    st.sampled_from(["TAG", "SQL92"]),
    st.booleans(),
)
consumers = st.builds(
    ConsumerData,
    names,
    st.sampled_from(ConsumeType).map(str),
    st.sampled_from(MessageModel).map(str),
    st.sampled_from(ConsumeFromWhere).map(str),
    st.lists(subscriptions, max_size=3).map(tuple),
    st.booleans(),
)
heartbeats = st.builds(
    HeartbeatData,
    names,
    st.lists(st.builds(ProducerData, names), max_size=3).map(tuple),
    st.lists(consumers, max_size=3).map(tuple),
    ints,
    st.booleans(),
)
MEMBERS = ["clientID", "producerDataSet", "consumerDataSet", "groupName", "subscriptionDataSet", "tagsSet", "codeSet", "topic"]


@given(heartbeats)
@FUZZ
def test_a_heartbeat_survives_the_wire(data: HeartbeatData) -> None:
    assert decode_heartbeat(encode_heartbeat(data)) == data


def test_the_heartbeat_of_a_producer() -> None:
    data = HeartbeatData("10.0.0.1@1", (ProducerData("g"),))
    assert json.loads(encode_heartbeat(data)) == {
        "clientID": "10.0.0.1@1",
        "producerDataSet": [{"groupName": "g"}],
        "consumerDataSet": [],
        "heartbeatFingerprint": 0,
        "withoutSub": False,
    }


def test_names_of_newer_peers_are_kept() -> None:
    text = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_NEW","more":1}]}'
    assert decode_heartbeat(text).consumer_data_set[0].consume_type == "CONSUME_NEW"


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"clientID":7}', b'{"clientID":"c","producerDataSet":[{}]}', b"[" * 10_000]
)
def test_a_body_that_is_no_heartbeat(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"HeartbeatData|JSON"):
        decode_heartbeat(data)


@given(damaged(heartbeats.map(encode_heartbeat)))
@FUZZ
def test_damaged_heartbeats_are_heartbeats_or_our_error(data: bytes) -> None:
    try:
        found = decode_heartbeat(data)
    except RemoteProtocolError:
        return
    assert decode_heartbeat(encode_heartbeat(found)) == found


@given(json_values(MEMBERS))
@FUZZ
def test_any_json_is_a_heartbeat_or_our_error(value: Any) -> None:
    for shape in (value, {"clientID": "c", "consumerDataSet": [value]}, {"clientID": "c", "producerDataSet": value}):
        try:
            found = decode_heartbeat(json.dumps(shape).encode())
        except RemoteProtocolError:
            continue
        heartbeat_fingerprint(found)


@given(heartbeats)
@FUZZ
def test_the_fingerprint_sees_groups_and_subscriptions_only(data: HeartbeatData) -> None:
    turned = msgspec.structs.replace(
        data,
        client_id="other",
        producer_data_set=data.producer_data_set[::-1],
        consumer_data_set=tuple(
            msgspec.structs.replace(
                consumer,
                subscription_data_set=tuple(
                    msgspec.structs.replace(item, sub_version=1, tags_set=item.tags_set[::-1], code_set=item.code_set[::-1])
                    for item in reversed(consumer.subscription_data_set)
                ),
            )
            for consumer in reversed(data.consumer_data_set)
        ),
        heartbeat_fingerprint=5,
        without_sub=True,
    )
    fingerprint = heartbeat_fingerprint(data)
    assert heartbeat_fingerprint(turned) == fingerprint
    assert fingerprint != 0
    assert -(2**31) <= fingerprint < 2**31
    more = msgspec.structs.replace(data, producer_data_set=(*data.producer_data_set, ProducerData("one more")))
    assert heartbeat_fingerprint(more) != fingerprint


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("TagA", 2598919), ("中文", 646394), ("polygenelubricants", -(2**31)), ("\U00010000", 0xD800 * 31 + 0xDC00)],
)
def test_java_hash(text: str, value: int) -> None:
    assert string_hash(text) == value


def test_text_that_is_not_unicode_is_refused() -> None:
    data = HeartbeatData("c", (ProducerData("\ud800"),))
    with pytest.raises(LocalProtocolError):
        encode_heartbeat(data)
    with pytest.raises(LocalProtocolError):
        heartbeat_fingerprint(data)
