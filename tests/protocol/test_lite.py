"""Names of lite topics, and the hash that chooses their queues, beside Guava's in ``protocol/vectors/lite_topics.json``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.java_types import string_hash
from rmq_protocol.lite import check_lite_topic, consistent_hash, lmq_name, split_lmq_name
from rmq_protocol.message import Message, MessageExt
from rmq_protocol.message_type import TopicMessageType, topic_message_type
from rmq_protocol.properties import decode_properties, message_properties
from vectors import LITE_KINDS, Case, Outcome, Suite

SUITE = Suite(*LITE_KINDS)


@SUITE.handles("lite_topics", "consistent_hash")
def guava_hash(case: Case) -> Outcome | None:
    value = string_hash(case.given["name"])
    assert value == case.expected["hash"]
    assert [consistent_hash(value, buckets) for buckets in case.given["buckets"]] == case.expected["chosen"]
    return None


@pytest.mark.parametrize("path", SUITE.files(), ids=lambda path: path.name)
def test_golden_vectors(path: Path) -> None:
    SUITE.run(path)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(1, 64))
def test_consistent_hash_moves_values_only_to_the_new_bucket(value: int, buckets: int) -> None:
    before, after = consistent_hash(value, buckets), consistent_hash(value, buckets + 1)
    assert 0 <= before < buckets
    assert after in (before, buckets)


@pytest.mark.parametrize("name", ["s", "a" * 64, "session 17", "会話", "😀" * 32, "a.b:c", "%RETRY%x"])
def test_check_lite_topic_returns_valid_names(name: str) -> None:
    assert check_lite_topic("Chat", name) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "is blank"),
        ("  ", "is blank"),
        ("a$b", r"holds '\$'"),
        ("a,b", "holds ','"),
        ("a/b", "holds '/'"),
        ("a\\b", "holds"),
        ("a\nb", "holds"),
        ("a\x01b", "holds"),
        ("\ud800", "holds"),
        ("a" * 65, "has 65 characters, the limit is 64"),
        ("😀" * 33, "has 66 characters, the limit is 64"),
        (7, "must be a str, not int"),
        (b"a", "must be a str, not bytes"),
    ],
)
def test_check_lite_topic_refuses_other_names(name: object, text: str) -> None:
    with pytest.raises(InvalidMessageError, match=text) as caught:
        check_lite_topic("Chat", name)
    assert caught.value.code == 13


def test_check_lite_topic_refuses_names_beyond_a_directory() -> None:
    """127 bytes of the topic, 7 of the prefix and the separator leave 121 bytes."""
    topic = "T" * 127
    assert check_lite_topic(topic, "é" * 60)
    with pytest.raises(InvalidMessageError, match="make a queue name of 262 bytes, the limit is 255"):
        check_lite_topic(topic, "é" * 64)


def test_split_lmq_name_returns_both_parts() -> None:
    assert lmq_name("Chat", "s1") == "%LMQ%$Chat$s1"
    assert split_lmq_name("%LMQ%$Chat$s1") == ("Chat", "s1")
    for other in ("Chat", "%LMQ%Chat", "%LMQ%$Chat", "%LMQ%$Chat$", "%LMQ%$$s1", "%LMQ%$Chat$a$b"):
        assert split_lmq_name(other) is None


def test_message_has_one_of_lite_topic_priority_key_and_delay() -> None:
    options = {"lite_topic": "s1", "priority": 3, "sharding_key": "k", "delay": 1.0}
    for name, value in options.items():
        Message("T", b"x", **{name: value})  # type: ignore[arg-type]
        for other in options.keys() - {name}:
            if {name, other} & {"lite_topic", "priority"}:
                with pytest.raises(InvalidMessageError, match="may have only one of them"):
                    Message("T", b"x", **{name: value, other: options[other]})  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", [-1, 2**31, True, 1.0, "1"])
def test_message_refuses_a_priority_out_of_range(priority: object) -> None:
    with pytest.raises(InvalidMessageError, match="priority must be an integer from 0 to 2147483647"):
        Message("T", b"x", priority=priority)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"lite_topic": "s1"}, TopicMessageType.LITE), ({"priority": 0}, TopicMessageType.PRIORITY)],
)
def test_lite_topic_and_priority_round_trip(given: dict[str, object], kind: TopicMessageType) -> None:
    message = Message("T", b"x", tags="red", keys="a b", properties={"p": "1"}, **given)  # type: ignore[arg-type]
    properties = decode_properties(message_properties(message, "ID"))
    assert topic_message_type(properties) is kind
    received = MessageExt("T", b"x", properties=properties)
    assert (received.lite_topic, received.priority) == (given.get("lite_topic"), given.get("priority"))
    assert (received.tags, received.keys, received.user_properties) == ("red", ("a", "b"), {"p": "1"})
    again = Message.from_received(received)
    assert (again.lite_topic, again.priority, again.keys) == (message.lite_topic, message.priority, message.keys)


@pytest.mark.parametrize("text", ["", "-1", "x", "2147483648", "99999999999"])
def test_received_priority_that_is_no_number_is_none(text: str) -> None:
    assert MessageExt("T", b"x", properties={"_SYS_MSG_PRIORITY_": text}).priority is None
