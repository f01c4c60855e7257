"""Client and broker checks of names and bodies. The exact verdicts are the golden vectors'; here: messages and limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_messages import fuzz

from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.validation import (
    NOT_ALLOWED_SEND_TOPICS,
    SYSTEM_TOPICS,
    broker_group_remark,
    broker_topic_remark,
    check_group,
    check_message,
    check_topic,
    is_not_allowed_send_topic,
    is_system_topic,
)


@pytest.mark.parametrize(
    ("check", "name", "words"),
    [
        (check_topic, "t" * 128, ["128", "127"]),
        (check_group, "g" * 121, ["121", "120"]),
        (check_topic, "a b", ["'a b'"]),
        (check_topic, "T\n", ["T\\n"]),
        (check_topic, "", ["blank"]),
        (check_group, "  ", ["blank"]),
        (check_topic, None, ["NoneType"]),
        (check_group, b"g", ["bytes"]),
        (check_topic, "t" * 100_000, ["100000", "127"]),
    ],
)
def test_refused_names_say_why_with_the_limit_and_the_value(check: Any, name: Any, words: list[str]) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        check(name)
    assert caught.value.code == -1
    assert len(str(caught.value)) < 400
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["empty"]),
        (b"x" * 101, ["101", "100"]),
        (bytearray(b"x"), ["bytearray"]),
        ("x", ["str"]),
        (None, ["NoneType"]),
        (memoryview(b"x"), ["memoryview"]),
    ],
)
def test_refused_bodies_say_why_with_the_limit_and_the_value(body: Any, words: list[str]) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        check_message("T", body, 100)
    assert caught.value.code == 13
    for word in words:
        assert word in str(caught.value)


def test_the_default_limit_is_4_mib_counted_in_bytes() -> None:
    check_message("T", bytes(4 * 1024 * 1024))
    with pytest.raises(InvalidMessageError, match=r"4194305 bytes, the limit is 4194304"):
        check_message("T", bytes(4 * 1024 * 1024 + 1))


@pytest.mark.parametrize("topic", sorted(NOT_ALLOWED_SEND_TOPICS))
def test_topics_of_the_broker_take_no_messages(topic: str) -> None:
    for _ in range(2):  # a topic that passed is remembered, one that did not is not
        with pytest.raises(InvalidMessageError, match=topic) as caught:
            check_message(topic, b"x")
        assert caught.value.code == -1
    assert is_not_allowed_send_topic(topic)
    assert is_system_topic(topic)


def test_system_topics() -> None:
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("orders")
    assert SYSTEM_TOPICS > NOT_ALLOWED_SEND_TOPICS


def test_a_path_separator_in_the_dispatch_property_is_refused() -> None:
    check_message("T", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    with pytest.raises(InvalidMessageError, match="INNER_MULTI_DISPATCH"):
        check_message("T", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a/b"})


def test_brokers_allow_longer_names_to_retry_topics() -> None:
    assert broker_topic_remark("%RETRY%" + "g" * 248) is None
    assert broker_topic_remark("%DLQ%" + "g" * 250) is None
    assert "255" in (broker_topic_remark("%RETRY%" + "g" * 249) or "")
    assert "127" in (broker_topic_remark("t" * 128) or "")
    assert broker_topic_remark(None) == "the topic is blank"
    assert "120" in (broker_group_remark("g" * 121) or "")
    assert broker_group_remark("g") is None


@given(st.text(max_size=200) | st.none() | st.binary() | st.lists(st.integers()), st.binary(max_size=5) | st.none() | st.text())
@fuzz
def test_only_our_own_error_comes_out_and_client_and_broker_agree(topic: Any, body: Any) -> None:
    try:
        check_message(topic, body, 4)
    except InvalidMessageError:
        return
    assert broker_topic_remark(topic) is None
    assert 0 < len(body) <= 4


def test_many_topics_do_not_pile_up() -> None:
    for index in range(10_000):
        check_message(f"topic-{index}", b"x")
    with pytest.raises(InvalidMessageError):
        check_message("topic 1", b"x")
