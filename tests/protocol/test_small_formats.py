"""Traces, recall handles, pop infos, subscriptions, namespaces, replies, shares: round trips, and any other bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, ints, longs, names, texts

from rmq_protocol import namespace as ns
from rmq_protocol import pop
from rmq_protocol.allocation import allocate_machine_room
from rmq_protocol.errors import LocalProtocolError, RemoteProtocolError
from rmq_protocol.java_types import string_hash
from rmq_protocol.message import MessageQueue
from rmq_protocol.recall import RecallHandle, decode_recall_handle, encode_recall_handle
from rmq_protocol.reply import create_reply
from rmq_protocol.stored import parse_tags
from rmq_protocol.subscription import build_subscription, split_tags
from rmq_protocol.trace import (
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    decode_trace,
    encode_trace,
)

SEPARATORS = "\x01\x02"

# Traces.

fields = st.none() | texts.filter(lambda text: not set(text) & set(SEPARATORS) and text != "null")
beans = st.builds(
    TraceBean,
    topic=fields,
    msg_id=fields,
    offset_msg_id=fields,
    tags=fields,
    keys=fields,
    store_host=fields,
    body_length=ints,
    msg_type=st.sampled_from(MessageType),
    retry_times=ints,
    transaction_id=fields,
    transaction_state=fields,
    from_transaction_check=st.booleans(),
)
contexts = st.builds(
    TraceContext,
    trace_type=st.sampled_from(TraceType),
    beans=st.lists(beans, min_size=1, max_size=3).map(tuple),
    time_stamp=longs,
    region_id=fields,
    group_name=fields,
    cost_time=ints,
    success=st.booleans(),
    request_id=fields,
    context_code=ints,
)


@given(st.lists(contexts, max_size=3), st.booleans())
@FUZZ
def test_a_trace_says_the_same_when_written_again(given_contexts: list[TraceContext], cloud: bool) -> None:
    data = "".join(encode_trace(context, cloud=cloud) for context in given_contexts)
    decoded = decode_trace(data)
    assert len(decoded) == data.count("\x02")
    again = "".join(encode_trace(context, cloud=cloud) for context in decoded)
    assert again == data


trace_words = st.sampled_from(
    [*SEPARATORS * 3, *TraceType, "null", "true", "-1", "99999999999", "5", "x", "", "1e3", "9" * 5000]
)


@given(st.lists(trace_words | texts, max_size=40).map("".join) | texts)
@FUZZ
def test_any_text_is_a_trace_or_refused(data: str) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert all(len(context.beans) == 1 for context in decode_trace(data))


def test_records_of_other_kinds_are_left_out() -> None:
    assert decode_trace("New\x011\x02Pub\x02"[:7]) == []
    with pytest.raises(RemoteProtocolError, match=r"^trace: a record of kind Pub has 0 fields"):
        decode_trace("New\x011\x02Pub\x02")


def test_the_records_of_old_and_other_clients() -> None:
    whole = "Pub\x015\x01region\x01g\x01T\x01id\x01tag\x01k\x01h:1\x017\x012\x013\x01offset\x01true\x01c:2\x02"
    [context] = decode_trace(whole)
    assert (context.beans[0].offset_msg_id, context.success, context.beans[0].client_host) == ("offset", True, "c:2")
    assert context.beans[0].msg_type is MessageType.DELAY
    [old] = decode_trace("Pub\x015\x01region\x01g\x01T\x01id\x01tag\x01k\x01h:1\x017\x012\x013\x01true\x02")
    assert (old.beans[0].offset_msg_id, old.success, old.beans[0].client_host) == (None, True, None)
    [after] = decode_trace("SubAfter\x01r\x01id\x019\x01false\x01k\x012\x02")
    assert (after.cost_time, after.success, after.context_code, after.group_name) == (9, False, 2, None)


@pytest.mark.parametrize("text", ["a\x01b", "\x02"])
def test_a_separator_is_not_traced(text: str) -> None:
    context = TraceContext(trace_type=TraceType.PUB, beans=(TraceBean(tags=text),))
    with pytest.raises(LocalProtocolError, match=r"^trace: tags .* must not have the separators"):
        encode_trace(context)


# Recall handles.

words = names.filter(lambda text: " " not in text)


@given(st.builds(RecallHandle, words, words, longs.map(str), words))
@FUZZ
def test_any_recall_handle_is_read_back(handle: RecallHandle) -> None:
    text = encode_recall_handle(handle)
    assert decode_recall_handle(text) == decode_recall_handle(text.rstrip("=")) == handle


base64_text = st.text("ABCdjEgVCBiIDEgaWQ019-_=+/ ", max_size=40)


@given(base64_text | texts)
@FUZZ
def test_any_text_is_a_recall_handle_or_refused(text: str) -> None:
    try:
        handle = decode_recall_handle(text)
    except RemoteProtocolError:
        return
    assert len(handle) == 4


@pytest.mark.parametrize("part", ["", "a b"])
def test_a_part_that_would_break_a_recall_handle_is_refused(part: str) -> None:
    with pytest.raises(LocalProtocolError, match=r"broker_name .* must not be empty and must have no space"):
        encode_recall_handle(RecallHandle("T", part, "1", "id"))


# Pop.


@given(
    st.builds(
        pop.ExtraInfo,
        longs,
        longs,
        longs,
        ints,
        st.sampled_from("012"),
        words,
        ints,
        msg_queue_offset=st.none() | longs,
        lite_topic=st.none(),
    )
)
@FUZZ
def test_any_extra_info_is_read_back(info: pop.ExtraInfo) -> None:
    assert pop.parse_extra_info(pop.build_extra_info(info)) == info


keys = st.builds(lambda topic, queue: pop.info_key(topic, queue), st.sampled_from(["T", "%RETRY%g_T", "%RETRY%g+T"]), ints)
order_keys = st.builds(lambda queue, offset: pop.order_info_key("T", queue, offset), ints, longs)


@given(
    st.dictionaries(keys, longs, max_size=4),
    st.dictionaries(keys, st.lists(longs, min_size=1, max_size=4).map(tuple), max_size=4),
    st.dictionaries(keys | order_keys, ints, max_size=4),
)
@FUZZ
def test_any_infos_of_a_pop_are_read_back(starts: dict[str, int], offsets: dict[str, Any], counts: dict[str, int]) -> None:
    assert pop.parse_start_offset_info(pop.build_info(starts)) == starts
    assert pop.parse_msg_offset_info(pop.build_info(offsets)) == offsets
    assert pop.parse_order_count_info(pop.build_info(counts)) == counts


pop_texts = st.lists(
    st.sampled_from([" ", ";", ",", "0", "1", "-7", "x", "qo1%5", "9" * 19, "9" * 6000, "٣", "@"]), max_size=30
).map("".join)


@given(st.none() | pop_texts | texts)
@FUZZ
def test_any_text_is_an_info_or_refused(text: str | None) -> None:
    for parse in (pop.parse_start_offset_info, pop.parse_msg_offset_info, pop.parse_order_count_info):
        with contextlib.suppress(RemoteProtocolError):
            found: dict[str, Any] = parse(text)  # type: ignore[operator]
            assert parse(pop.build_info(found)) == found  # type: ignore[operator]
    with contextlib.suppress(RemoteProtocolError):
        pop.parse_extra_info(text or "")


def test_the_topic_a_popped_message_is_stored_in() -> None:
    assert [pop.real_topic(flag, "T", "g") for flag in "012"] == ["T", "%RETRY%g_T", "%RETRY%g+T"]
    assert [pop.retry_flag(topic) for topic in ("T", "%RETRY%g_T", "%RETRY%g+T")] == ["0", "1", "2"]
    with pytest.raises(RemoteProtocolError, match="retry flag '3'"):
        pop.real_topic("3", "T", "g")


# Subscriptions, namespaces, replies, shares.


@given(st.lists(st.sampled_from(["A", "B ", " ", "||", "|", "*", "中", "\u200b"]), max_size=12).map("".join))
@FUZZ
def test_any_expression_of_tags_is_a_subscription_or_refused(expression: str) -> None:
    try:
        built = build_subscription("T", expression)
    except LocalProtocolError:
        assert not expression.replace("|", "")
        return
    assert set(built.code_set) == {string_hash(tag) for tag in built.tags_set}
    assert len(set(built.tags_set)) == len(built.tags_set)
    assert all(tag and "||" not in tag for tag in built.tags_set)


def test_only_what_javas_trim_takes_is_taken_off_tags() -> None:
    expression = "\u3000A || \tB\u00a0 ||B\u00a0|| "
    assert split_tags(expression) == ("\u3000A", "B\u00a0")
    assert parse_tags(expression) == {"\u3000A", "B\u00a0"}


resources = st.lists(st.sampled_from(["%RETRY%", "%DLQ%", "%", "ns", "T", "TBW102", "rmq_sys_x", "CID_RMQ_SYS_"]), max_size=5)


@given(st.sampled_from(["", "ns", "MQ_INST_1", "%"]) | names, resources.map("".join) | texts)
@FUZZ
def test_a_namespace_comes_off_as_it_went_on(namespace: str, resource: str) -> None:
    wrapped = ns.with_namespace(namespace, resource)
    assert ns.with_namespace(namespace, wrapped) == wrapped
    brokers_own = namespace.startswith(("rmq_sys_", "CID_RMQ_SYS_"))  # then the whole name is, and has none
    if wrapped != resource and "%" not in namespace and not brokers_own:
        assert ns.has_namespace(wrapped, namespace)
        assert ns.namespace_of(wrapped) == namespace
        assert ns.without_namespace(wrapped, namespace) == ns.without_namespace(wrapped) == resource


def test_a_reply_needs_the_cluster_of_its_request() -> None:
    request = {"CLUSTER": "c", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "client", "TTL": "3000", "KEYS": "k"}
    reply = create_reply(request)
    assert reply.topic == "c_REPLY_TOPIC"
    assert reply.properties == {"MSG_TYPE": "reply", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "client", "TTL": "3000"}
    with pytest.raises(LocalProtocolError) as caught:
        create_reply({"CORRELATION_ID": "id"})
    assert caught.value.code == 10007


@given(st.integers(0, 30), st.integers(1, 9))
@FUZZ
def test_each_queue_of_a_room_goes_to_one_member(count: int, members: int) -> None:
    queues = [MessageQueue("T", f"{('hz', 'sh', 'x')[at % 3]}@b", at) for at in range(count)] + [MessageQueue("T", "b", 0)]
    clients = [f"c{at}" for at in range(members)]
    shares = [allocate_machine_room(client, queues, clients, ["hz", "sh"]) for client in clients]
    assert sorted(queue for share in shares for queue in share) == sorted(
        q for q in queues if q.broker_name[:2] in ("hz", "sh")
    )
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
