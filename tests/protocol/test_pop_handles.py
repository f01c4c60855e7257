"""Handles of popped messages, in the forms that real brokers (5.5.0) have answered with."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, ints, longs, texts

from rmq_protocol.bodies import MAX_ACK_SPAN, BatchAckMessageRequestBody, encode_body, unpack_bits
from rmq_protocol.errors import LocalProtocolError, RemoteProtocolError
from rmq_protocol.headers import ChangeInvisibleTimeResponseHeader, PopMessageResponseHeader
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.pop import ExtraInfo, build_extra_info, parse_extra_info
from rmq_protocol.pop_handles import (
    can_be_gathered,
    changed_handle,
    find_handles,
    gather_acks,
    left_handles,
    plain_topic,
)


def popped(topic: str, queue_id: int, offset: int, handle: str | None = None, **more: object) -> MessageExt:
    properties = {} if handle is None else {"POP_CK": handle}
    return MessageExt(topic, b"", 0, properties, MessageQueue(topic, "", queue_id), offset, **more)  # type: ignore[arg-type]


def test_handles_of_several_queues_are_built_from_the_infos() -> None:
    answer = PopMessageResponseHeader(
        popTime=1795367583753,
        invisibleTime=5000,
        reviveQid=1,
        startOffsetInfo="0 1 0;0 0 0;0 3 0;0 2 0",
        msgOffsetInfo="0 1 0,1,2;0 0 0,1,2;0 3 0,1,2;0 2 0,1,2",
    )
    messages = [popped("TA", queue, offset) for queue in (1, 0, 3, 2) for offset in range(3)]
    handles = find_handles(answer, messages, "broker-a")
    assert handles[2] is not None
    assert build_extra_info(handles[2]) == "0 1795367583753 5000 1 0 broker-a 1 2"
    assert [(each.queue_id, each.msg_queue_offset) for each in handles if each] == [
        (message.queue.queue_id, message.queue_offset) for message in messages
    ]


def test_handles_behind_a_filter_begin_where_reading_began() -> None:
    answer = PopMessageResponseHeader(popTime=7, invisibleTime=5, startOffsetInfo="0 0 0", msgOffsetInfo="0 0 1,3,5")
    handles = find_handles(answer, [popped("T", 0, offset) for offset in (1, 3, 5)], "b")
    assert [(each.ck_queue_offset, each.msg_queue_offset) for each in handles if each] == [(0, 1), (0, 3), (0, 5)]
    (ack,) = gather_acks("g", [("T", each) for each in handles if each])
    assert unpack_bits(ack.bit_set) == (1, 3, 5)


MIXED = PopMessageResponseHeader(
    popTime=1795368672009,
    invisibleTime=20000,
    reviveQid=0,
    startOffsetInfo="0 0 1;1 0 1",
    msgOffsetInfo="0 0 1;1 0 1,2,3,4",
)
RETRIED = [popped("TQ9", 0, at, f"1 1795368672009 20000 0 1 broker-a 0 {at}", reconsume_times=1) for at in (1, 2, 3, 4)]


def test_a_retried_message_with_the_topics_name_has_its_own_handle() -> None:
    handles = find_handles(MIXED, [popped("TQ9", 0, 1), *RETRIED], "broker-a")
    assert [(each.retry, each.msg_queue_offset) for each in handles if each] == [("0", 1), *(("1", at) for at in (1, 2, 3, 4))]
    acks = gather_acks("GQ9", [("TQ9", each) for each in handles if each])
    body = encode_body(BatchAckMessageRequestBody(broker_name="broker-a", acks=acks)).decode()
    assert body == (  # as a real broker has taken it
        '{"brokerName":"broker-a","acks":[{"c":"GQ9","t":"TQ9","r":"0","so":1,"q":0,"rq":0,"pt":1795368672009,"it":20000,"b":"AQ=="},'
        '{"c":"GQ9","t":"TQ9","r":"1","so":1,"q":0,"rq":0,"pt":1795368672009,"it":20000,"b":"Dw=="}]}'
    )


def test_a_retried_message_with_the_retry_topics_name_has_its_handle_from_the_infos() -> None:
    answer = PopMessageResponseHeader(popTime=1795368279429, invisibleTime=2000, startOffsetInfo="2 0 0", msgOffsetInfo="2 0 0")
    (handle,) = find_handles(answer, [popped("%RETRY%GK+TK", 0, 0)], "broker-a")
    assert handle is not None
    assert build_extra_info(handle) == "0 1795368279429 2000 0 2 broker-a 0 0"
    assert plain_topic("%RETRY%GK+TK", "GK") == "TK"


@pytest.mark.parametrize(
    "copied",
    [
        "1 1795368672008 20000 0 1 broker-a 0 1",  # of an earlier pop
        "1 1795368672009 20000 0 1 broker-b 0 1",
        "1 1795368672009 20000 3 1 broker-a 0 1",
        "1 1795368672009 20000 0 1 broker-a 0",
        "zz",
        "",
    ],
)
def test_a_handle_that_a_sender_has_copied_is_not_used(copied: str) -> None:
    (handle,) = find_handles(MIXED, [popped("TQ9", 0, 1, copied)], "broker-a")
    assert handle == ExtraInfo(1, 1795368672009, 20000, 0, "0", "broker-a", 0, 1)


@pytest.mark.parametrize("message", [popped("TQ9", 1, 1), popped("TQ9", 0, 2), popped("%RETRY%g+T", 0, 1)])
def test_a_message_that_the_infos_do_not_name_has_no_handle(message: MessageExt) -> None:
    assert find_handles(MIXED, [message], "broker-a") == [None]


def test_a_second_message_with_the_same_handle_has_none() -> None:
    first, second = find_handles(MIXED, [RETRIED[0], RETRIED[0]], "broker-a")
    assert (first is not None, second) == (True, None)


def test_handles_that_no_message_has_are_left() -> None:
    handles = find_handles(MIXED, [popped("TQ9", 0, 1), *RETRIED], "broker-a")
    assert left_handles(MIXED, handles, "broker-a") == []
    assert left_handles(MIXED, [*handles[1:3], None, handles[4]], "broker-a") == [handles[0], handles[3]]
    odd = PopMessageResponseHeader(popTime=7, startOffsetInfo="0 0 1;0 x 1;7 1 1", msgOffsetInfo="0 0 1,1,0;0 x 1;7 1 1;0 2 1")
    assert left_handles(odd, [], "b") == [ExtraInfo(1, 7, 0, 0, "0", "b", 0, 1)]


@pytest.mark.parametrize(
    "infos", [("0 0 x", "0 0 1"), ("0 0 1", "0 0"), ("0 0 1;0 0 1", "0 0 1"), ("0 0 1", "0 0 " + "9" * 20), ("0 0 5", "0 0 1")]
)
def test_infos_that_cannot_be_are_refused(infos: tuple[str, str]) -> None:
    answer = PopMessageResponseHeader(popTime=7, startOffsetInfo=infos[0], msgOffsetInfo=infos[1])
    with contextlib.suppress(RemoteProtocolError):
        assert find_handles(answer, [popped("T", 0, 1)], "b") == [None]


def test_a_changed_handle_begins_at_the_messages_offset() -> None:
    handle = parse_extra_info("1 1795367583753 5000 1 0 broker-a 3 4")
    answer = ChangeInvisibleTimeResponseHeader(popTime=1795367583964, invisibleTime=9000, reviveQid=1)
    changed = changed_handle(handle, answer)
    assert build_extra_info(changed) == "4 1795367583964 9000 1 0 broker-a 3 4"
    assert unpack_bits(gather_acks("g", [("T", changed)])[0].bit_set) == (0,)
    for broken in ({"popTime": -1}, {"reviveQid": -1}):
        with pytest.raises(RemoteProtocolError, match="after a change of the invisible time is invalid"):
            changed_handle(handle, ChangeInvisibleTimeResponseHeader(**broken))


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3 4 0 b 0",
        "2 2 3 4 0 b 0 1",
        "-1 2 3 4 0 b 0 1",
        "1 -2 3 4 0 b 0 1",
        "1 2 3 -4 0 b 0 1",
        "1 2 3 4 3 b 0 1",
        "1 2 3 4 0  0 1",
        "1 2 3 4 0 b -1 1",
        "1 2 3 4 0 b 2147483648 1",
    ],
)
def test_a_handle_that_cannot_be_is_none(text: str) -> None:
    info = parse_extra_info(text)
    answer = PopMessageResponseHeader(popTime=info.pop_time, reviveQid=info.revive_qid)
    assert find_handles(answer, [popped("T", 0, 1, text)], info.broker_name) == [None]


def test_acks_of_one_pop_and_queue_are_one() -> None:
    handles = [ExtraInfo(10, pop, 5, 0, "0", "b", queue, 10 + at) for pop in (1, 2) for queue in (0, 1) for at in (0, 3, 9)]
    acks = gather_acks("g", [("T", each) for each in handles])
    assert [(ack.pop_time, ack.queue_id, unpack_bits(ack.bit_set)) for ack in acks] == [
        (pop, queue, (0, 3, 9)) for pop in (1, 2) for queue in (0, 1)
    ]


def test_an_ack_too_far_from_its_start_is_not_gathered() -> None:
    near, far = (ExtraInfo(1, 2, 3, 4, "0", "b", 0, 1 + MAX_ACK_SPAN + more) for more in (0, 1))
    assert (can_be_gathered(near), can_be_gathered(far)) == (True, False)
    gather_acks("g", [("T", near)])
    for each in (far, far._replace(msg_queue_offset=None)):
        with pytest.raises(LocalProtocolError):
            gather_acks("g", [("T", each)])


def test_the_plain_topic_of_a_retry_topic() -> None:
    names = ["%RETRY%g_T", "%RETRY%g+T", "%RETRY%g", "%RETRY%g_", "T", "%RETRY%other_T", "%RETRY%g_a_b"]
    assert [plain_topic(name, "g") for name in names] == ["T", "T", "%RETRY%g", "%RETRY%g_", "T", "%RETRY%other_T", "a_b"]


parts = st.sampled_from(["0 0 1", "1 0 1,2", "0 0 1,2,3", "0 -1 7", "2 0 0", "x", ";", " "])
infos = st.none() | texts | st.lists(parts, max_size=4).map(";".join)
topics = st.sampled_from(["T", "%RETRY%g_T", "%RETRY%g+T"])
cks = st.none() | texts | st.sampled_from(["1 7 5 0 1 b 0 1", "9 7 5 0 1 b 0 1", "1 7 5 0 9 b 0 1"])


@given(
    st.builds(
        PopMessageResponseHeader, popTime=st.just(7) | longs, invisibleTime=longs, reviveQid=st.just(0) | ints,
        startOffsetInfo=infos, msgOffsetInfo=infos,
    ),
    st.lists(st.builds(popped, topics, st.integers(-1, 2), st.integers(-1, 4) | longs, cks), max_size=6),
)  # fmt: skip
@FUZZ
def test_any_answer_gives_handles_that_can_be_or_is_refused(
    answer: PopMessageResponseHeader, messages: list[MessageExt]
) -> None:
    with contextlib.suppress(RemoteProtocolError):
        handles = find_handles(answer, messages, "b")
        assert len(handles) == len(messages)
        found = [handle for handle in handles if handle is not None]
        assert [parse_extra_info(build_extra_info(handle)) for handle in found] == found
        assert len({(each.retry, each.queue_id, each.msg_queue_offset) for each in found}) == len(found)
        left = left_handles(answer, found, "b")
        names = {(each.retry, each.queue_id, each.msg_queue_offset) for each in (*found, *left)}
        assert len(names) == len(found) + len(left)
        gather_acks("g", [("T", handle) for handle in (*found, *left) if can_be_gathered(handle)])


queues = st.sampled_from([MessageQueue("", "", number) for number in (-1, 0, 1)])
plain = st.builds(lambda topic, queue, offset: MessageExt(topic, b"", 0, {}, queue, offset), topics, queues, st.integers(-1, 4))


@given(
    st.builds(
        PopMessageResponseHeader, popTime=st.just(7) | st.just(-7), invisibleTime=st.just(5), reviveQid=st.just(0) | ints,
        startOffsetInfo=infos, msgOffsetInfo=infos,
    ),
    st.lists(plain, max_size=8),
)  # fmt: skip
@FUZZ
def test_handles_from_infos_do_not_depend_on_a_message_with_its_own(
    answer: PopMessageResponseHeader, messages: list[MessageExt]
) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert find_handles(answer, messages, "b") == find_handles(answer, [*messages, popped("T", 9, 9, "")], "b")[:-1]


def test_acks_of_pops_that_alternate_are_one_for_each_pop() -> None:
    first, second = (ExtraInfo(0, time, 5, 0, "0", "b", 0, 0) for time in (1, 2))
    handles = [("T", each._replace(msg_queue_offset=offset)) for offset in range(3) for each in (first, second)]
    acks = gather_acks("g", handles)
    assert [(ack.pop_time, unpack_bits(ack.bit_set)) for ack in acks] == [(1, (0, 1, 2)), (2, (0, 1, 2))]
