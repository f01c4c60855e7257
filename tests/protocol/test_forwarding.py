"""Messages made of received ones: each result can be sent, and carries what the first sender gave."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_protocol.constants import PropertyName
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.message import Message, MessageExt
from rmq_protocol.properties import RESERVED_NAMES, decode_properties, encode_properties, message_properties
from rmq_protocol.stored import decode_messages, encode_stored
from rmq_protocol.validation import check_message

NAMES = st.one_of(st.sampled_from([name.value for name in PropertyName]), st.text(min_size=1, max_size=12))
TEXTS = st.text(min_size=1, max_size=20)
ANYTHING = st.dictionaries(NAMES, TEXTS, max_size=8)
TOPIC = st.text("abcXYZ019_-%|", min_size=1, max_size=20)
GIVEN_NAMES = st.text("abcdef. -é中", min_size=1, max_size=8).filter(lambda name: bool(name.strip()))
GIVEN = st.dictionaries(GIVEN_NAMES, st.text("xyz =é中", min_size=1).filter(lambda text: bool(text.strip())), max_size=5)


def sent(message: Message) -> MessageExt:
    """What a broker has of it, as far as the sender gives it."""
    check_message(message.topic, message.body, properties=message.properties)
    text = message_properties(message, "ID")
    return MessageExt(message.topic, message.body, message.flag, decode_properties(text))


@given(TOPIC, st.binary(min_size=1, max_size=50), st.integers(-(2**31), 2**31 - 1), ANYTHING)
def test_any_received_message_can_be_sent(topic: str, body: bytes, flag: int, properties: dict[str, str]) -> None:
    received = MessageExt(topic, body, flag, properties)
    message = Message.from_received(received, topic=topic)
    again = sent(message)
    assert (again.topic, again.body, again.flag) == (topic, body, flag)
    assert not (message.properties or {}).keys() & RESERVED_NAMES
    assert (message.properties or {}).items() <= received.user_properties.items() <= properties.items()
    assert Message.from_received(again) == Message.from_received(again, topic=topic) == message


@given(TOPIC, st.binary(min_size=1, max_size=50), st.binary(max_size=200))
def test_anything_a_record_holds_can_be_sent(topic: str, body: bytes, properties: bytes) -> None:
    (received,) = decode_messages(encode_stored(topic=topic, body=body, properties=properties)).messages
    sent(Message.from_received(received, topic=topic))


@given(st.binary(min_size=1), st.integers(0, 100), st.lists(st.text("kéy1", min_size=1), max_size=3), GIVEN, st.booleans())
def test_what_a_sender_gave_is_kept(body: bytes, flag: int, keys: list[str], properties: dict[str, str], tagged: bool) -> None:
    first = Message(
        "T",
        body,
        tags="tag" if tagged else None,
        keys=keys,
        flag=flag,
        properties=properties,
        sharding_key="k" if tagged else None,
    )
    received = sent(first)
    assert received.user_properties == properties
    copy = Message.from_received(received)
    assert (copy.topic, copy.body, copy.tags, copy.flag, copy.sharding_key) == ("T", body, first.tags, flag, first.sharding_key)
    assert (copy.keys, dict(copy.properties or {})) == (tuple(keys), properties)
    assert copy.unique_id is None


BROKER_OF = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C", "UNIQ_KEY": "U", "WAIT": "true"}


@pytest.mark.parametrize(
    ("topic", "properties", "origin"),
    [
        ("T", {}, "T"),
        ("T", {"REAL_TOPIC": "other", "RETRY_TOPIC": "other"}, "T"),  # a delayed message that has arrived keeps them
        ("%RETRY%g", {"RETRY_TOPIC": "T", "REAL_TOPIC": "%RETRY%g", "DELAY": "3"}, "T"),
        ("%DLQ%g", {"RETRY_TOPIC": "T", "DELAY": "0"}, "T"),
        ("%DLQ%g", {"DLQ_ORIGIN_TOPIC": "T"}, "T"),
        ("%DLQ%g", {}, "%DLQ%g"),
        ("%RETRY%g", {"RETRY_TOPIC": "%RETRY%g"}, "%RETRY%g"),
        ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "T"}, "T"),
        ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%g", "RETRY_TOPIC": "T"}, "T"),
        ("rmq_sys_wheel_timer", {"REAL_TOPIC": "T"}, "T"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "T"}, "T"),
        ("%RETRY%g_T", {"ORIGIN_GROUP": "g", "1ST_POP_TIME": "1"}, "T"),
        ("%RETRY%g_h_T_x", {"ORIGIN_GROUP": "g_h"}, "T_x"),
        ("%RETRY%g+T", {}, "T"),
        ("%DLQ%g", {"RETRY_TOPIC": "%RETRY%g_T", "ORIGIN_GROUP": "g"}, "T"),
        ("%DLQ%g", {"RETRY_TOPIC": "%RETRY%h", "DLQ_ORIGIN_TOPIC": "%DLQ%g"}, "%RETRY%h"),  # ends, though they go round
    ],
)
def test_the_original_topic_is_found(topic: str, properties: dict[str, str], origin: str) -> None:
    received = MessageExt(topic, b"x", 0, BROKER_OF | properties | {"color": "red"})
    message = Message.from_received(received)
    assert message.topic == origin
    assert message.properties == received.user_properties == {"color": "red"}
    assert Message.from_received(received, topic="U").topic == "U"


def test_changes_take_the_place_of_fields() -> None:
    received = MessageExt("T", b"x", 3, {"TAGS": "a", "KEYS": "k", "color": "red", "__SHARDINGKEY": "s"})
    changed = Message.from_received(received, body=b"y", tags=None, keys="l m", properties={"size": "9"}, delay=1.5, flag=0)
    assert changed == Message("T", b"y", keys=("l", "m"), properties={"size": "9"}, delay=1.5, sharding_key="s")
    merged = Message.from_received(received, properties=received.user_properties | {"size": "9"})
    assert merged.properties == {"color": "red", "size": "9"}
    with pytest.raises(InvalidMessageError, match="'TAGS' is reserved"):
        Message.from_received(received, properties={"TAGS": "b"})
    misspelt: dict[str, Any] = {"tag": "b"}
    with pytest.raises(TypeError, match="tag"):
        Message.from_received(received, **misspelt)


def test_user_properties_are_a_copy() -> None:
    received = MessageExt("T", b"x", 0, {"color": "red", "__RMQ.TRANSIENT.TOPIC_SYS_FLAG": "0", "ORIGIN_GROUP": "g"})
    received.user_properties["color"] = "blue"
    assert received.user_properties == {"color": "red"}
    assert encode_properties(received.user_properties) == b"color\x01red\x02"
