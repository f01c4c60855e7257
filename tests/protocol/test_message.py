"""Message and MessageExt: what can be built, what is refused, what is derived."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_messages import fuzz, user_properties, visible_texts

from rmq_protocol.errors import InvalidMessageError, RocketMQError
from rmq_protocol.message import Message, MessageExt, MessageQueue
from rmq_protocol.properties import RESERVED_NAMES, decode_properties, message_properties

pytestmark = pytest.mark.interpreters


def test_a_plain_message_has_the_defaults_of_the_api() -> None:
    message = Message("T", b"x")
    assert (message.topic, message.body, message.tags, message.keys, message.flag) == ("T", b"x", None, (), 0)
    assert (message.properties, message.delay_level, message.delay, message.deliver_at) == (None, 0, None, None)
    assert (message.wait_store, message.sharding_key, message.unique_id) == (True, None, None)


def test_topic_and_body_may_be_named_and_the_rest_must_be() -> None:
    assert Message(topic="T", body=b"x") == Message("T", b"x")
    with pytest.raises(TypeError):
        Message("T", b"x", "tag")  # type: ignore[misc]


def test_a_message_cannot_be_changed() -> None:
    message = Message("T", b"x")
    with pytest.raises(AttributeError):
        message.topic = "U"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("a", ("a",)),
        ("a b", ("a", "b")),
        (" a  b ", ("a", "b")),
        ("", ()),
        ([], ()),
        (["a", "b"], ("a", "b")),
        ({"a": 1}, ("a",)),
        (iter(["a", "", "b"]), ("a", "b")),
    ],
)
def test_keys_become_a_tuple_of_texts(keys: Any, expected: tuple[str, ...]) -> None:
    assert Message("T", b"x", keys=keys).keys == expected


def test_later_changes_of_the_callers_properties_do_not_reach_the_message() -> None:
    properties = {"a": "1"}
    message = Message("T", b"x", properties=properties)
    properties["a"] = "2"
    properties["KEYS"] = "k"
    assert message.properties == {"a": "1"}


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_reserved_property_names_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidMessageError, match="reserved") as caught:
        Message("T", b"x", properties={name: "v"})
    assert name in str(caught.value)
    assert caught.value.code == 13


def test_reserved_names_are_those_of_java() -> None:
    vectors = json.loads((Path(__file__).parents[2] / "protocol" / "vectors" / "properties.json").read_text("utf-8"))
    assert set(vectors["reserved_names_refused_by_putUserProperty"]) == RESERVED_NAMES


@pytest.mark.parametrize(
    "arguments",
    [
        {"properties": {"a\x01": "v"}},
        {"properties": {"a": "v\x02"}},
        {"properties": {"a": "\x00"}},
        {"properties": {"": "v"}},
        {"properties": {"a": ""}},
        {"properties": {" ": "v"}},
        {"properties": {"a": "\t\n"}},
        {"properties": {"a": 1}},
        {"properties": {1: "v"}},
        {"properties": {"a": None}},
        {"properties": {"a": "\ud800"}},
        {"properties": [("a", "b")]},
        {"properties": "a=b"},
        {"tags": "a\x02"},
        {"tags": 7},
        {"keys": "a\x01b"},
        {"keys": ["a", 5]},
        {"keys": 5},
        {"keys": [None]},
        {"sharding_key": "\x02"},
        {"sharding_key": 3},
        {"unique_id": ""},
        {"unique_id": " "},
        {"unique_id": "a\x01b"},
        {"unique_id": 5},
        {"flag": 2**31},
        {"flag": -(2**31) - 1},
        {"flag": "1"},
        {"flag": None},
        {"flag": None, "tags": "t"},
        {"flag": 0.0, "keys": "k"},
        {"delay_level": -1},
        {"delay_level": 2**31},
        {"delay_level": "3"},
        {"delay_level": 1.5},
        {"delay": -0.001},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": "5"},
        {"delay": True},
        {"delay": 1e300},
        {"deliver_at": -1.0},
        {"deliver_at": float("nan")},
        {"deliver_at": datetime(2026, 1, 1)},
        {"deliver_at": datetime(1960, 1, 1, tzinfo=UTC)},
        {"deliver_at": "tomorrow"},
        {"delay": 1, "delay_level": 1},
        {"delay": 1, "deliver_at": 5.0},
        {"delay": 0, "deliver_at": 0},
        {"delay_level": 1, "deliver_at": 5.0},
    ],
    ids=repr,
)
def test_what_would_break_the_wire_is_refused_when_the_message_is_built(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        Message("T", b"x", **arguments)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ({"tags": "t"}, "TAGS", "t"),
        ({"keys": ["a", "b"]}, "KEYS", "a b"),
        ({"wait_store": False}, "WAIT", "false"),
        ({}, "WAIT", "true"),
        ({"delay_level": 18}, "DELAY", "18"),
        ({"delay_level": 2**31 - 1}, "DELAY", "2147483647"),
        ({"delay": 2.5}, "TIMER_DELAY_MS", "2500"),
        ({"delay": 0}, "TIMER_DELAY_MS", "0"),
        ({"deliver_at": 1.8e9}, "TIMER_DELIVER_MS", "1800000000000"),
        ({"deliver_at": datetime(2027, 1, 15, 8, tzinfo=UTC)}, "TIMER_DELIVER_MS", "1800000000000"),
        ({"deliver_at": datetime(2027, 1, 15, 10, tzinfo=timezone(timedelta(hours=2)))}, "TIMER_DELIVER_MS", "1800000000000"),
        ({"sharding_key": "order 7"}, "__SHARDINGKEY", "order 7"),
        ({"properties": {"colour": "blau"}}, "colour", "blau"),
        ({"properties": {"TRACE_CONTEXT": "c"}}, "TRACE_CONTEXT", "c"),
    ],
    ids=repr,
)
def test_what_is_given_goes_out_as_a_property(arguments: dict[str, Any], name: str, value: str) -> None:
    properties = decode_properties(message_properties(Message("T", b"x", **arguments), "U1"))
    assert properties[name] == value
    assert properties["UNIQ_KEY"] == "U1"


def test_properties_of_the_kind_of_send_are_appended() -> None:
    text = message_properties(Message("T", b"x"), "U1", {"TRAN_MSG": "true", "PGROUP": "g"})
    assert decode_properties(text) == {"UNIQ_KEY": "U1", "WAIT": "true", "TRAN_MSG": "true", "PGROUP": "g"}


@pytest.mark.parametrize("char", ["v", "é", "中", "😀"])
def test_properties_above_32767_bytes_are_refused_with_the_limit_and_the_size(char: str) -> None:
    overhead = len(message_properties(Message("T", b"x"), "U1")) + len("a\x01\x02")
    width = len(char.encode())
    fitting = (32767 - overhead) // width
    text = message_properties(Message("T", b"x", properties={"a": char * fitting}), "U1")
    assert 32767 - width < len(text.encode()) <= 32767
    with pytest.raises(InvalidMessageError, match="32767") as caught:
        message_properties(Message("T", b"x", properties={"a": char * (fitting + 1)}), "U1")
    assert caught.value.code == 13
    assert str(overhead + width * (fitting + 1)) in str(caught.value)


@given(properties=user_properties, tags=st.none() | visible_texts, key=st.none() | visible_texts)
@fuzz
def test_sent_properties_decode_to_what_was_given(properties: dict[str, str], tags: str | None, key: str | None) -> None:
    keys = () if key is None else (key.replace(" ", "_"),)
    message = Message("T", b"x", properties=properties, tags=tags, keys=keys)
    decoded = decode_properties(message_properties(message, "U1"))
    received = MessageExt("T", b"x", properties=decoded)
    assert received.tags == tags
    assert received.keys == keys
    assert {**decoded, **properties} == decoded
    assert received.msg_id == "U1"


anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | st.lists(st.text())
)


@given(
    arguments=st.dictionaries(
        st.sampled_from(
            ["tags", "keys", "flag", "properties", "delay_level", "delay", "deliver_at", "sharding_key", "unique_id"]
        ),
        anything | st.dictionaries(st.text(max_size=3), anything, max_size=2) | st.datetimes(),
    )
)
@fuzz
def test_any_argument_raises_only_our_own_error(arguments: dict[str, Any]) -> None:
    try:
        message = Message("T", b"x", **arguments)
        message_properties(message, "U1").encode()
    except RocketMQError:
        return
    assert isinstance(message.keys, tuple)


def received(**arguments: Any) -> MessageExt:
    return MessageExt("T", b"x", **arguments)


def test_the_message_id_is_the_unique_id_else_the_offset_id() -> None:
    stored = {"store_host": "127.0.0.1:10911", "commit_log_offset": 1234}
    assert received(**stored).msg_id == "7F00000100002A9F00000000000004D2"
    assert received(**stored, properties={"UNIQ_KEY": "U1"}).msg_id == "U1"
    assert received(**stored, properties={"UNIQ_KEY": "U1"}).offset_msg_id == "7F00000100002A9F00000000000004D2"
    assert received(**stored).unique_id is None
    assert received().offset_msg_id == ""
    assert received().queue == MessageQueue("", "", 0)


@pytest.mark.parametrize(("value", "level"), [("3", 3), ("0", 0), ("x", 0), ("", 0), ("-1", 0), ("٣", 0), ("9" * 5000, 0)])
def test_a_delay_property_that_is_no_level_counts_as_none(value: str, level: int) -> None:
    assert received(properties={"DELAY": value}).delay_level == level


@pytest.mark.parametrize(("value", "wait"), [("true", True), ("TRUE", True), ("false", False), ("", True), ("yes", False)])
def test_wait_store_is_read_as_java_reads_booleans(value: str, wait: bool) -> None:
    assert received(properties={"WAIT": value}).wait_store is wait
    assert received().wait_store is True


def test_keys_and_sharding_key_of_a_received_message() -> None:
    message = received(properties={"KEYS": " a  b", "__SHARDINGKEY": "s"})
    assert message.keys == ("a", "b")
    assert message.sharding_key == "s"
    assert received().keys == ()
    assert received().tags is None


TEXTS = st.one_of(
    visible_texts,
    st.text(max_size=6),
    st.sampled_from(["", " ", "a b", "  a", "\t", "\x04", "\x01", "\u3000", "ä", "\ud800", "UNIQ_KEY", "KEYS"]),
)


class Text(str):
    """A text that is no plain str."""


def outcome(**fields: Any) -> Any:
    """The message's fields, or the error's text with the types of texts left out."""
    try:
        message = Message("T", b"x", **fields)
    except InvalidMessageError as error:
        return str(error)
    return message, type(message.keys), message_properties(message, "id")


@fuzz
@given(
    tags=st.none() | TEXTS,
    keys=st.none() | TEXTS,
    properties=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    sharding_key=st.none() | TEXTS,
)
def test_texts_checked_together_and_one_by_one_have_one_outcome(
    tags: str | None, keys: str | None, properties: dict[str, str] | None, sharding_key: str | None
) -> None:
    """A subclass of str is checked field by field, and kept as a plain text."""
    fields: dict[str, Any] = {"tags": tags, "properties": properties, "sharding_key": sharding_key}
    others = {
        "tags": None if tags is None else Text(tags),
        "properties": None if properties is None else {Text(name): Text(value) for name, value in properties.items()},
        "sharding_key": None if sharding_key is None else Text(sharding_key),
    }
    if keys is not None:
        fields["keys"], others["keys"] = keys, Text(keys)
    assert outcome(**fields) == outcome(**others)
