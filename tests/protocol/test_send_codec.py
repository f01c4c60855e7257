"""The templates and the typed reply of the send path say the same as the general codec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ

from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import ONEWAY_FLAG, VERSION, LanguageCode, RequestCode, SerializeType
from rmq_protocol.errors import LocalProtocolError, RemoteProtocolError
from rmq_protocol.frame import FrameDecoder
from rmq_protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader, from_ext, to_ext
from rmq_protocol.send_codec import (
    FIRST_OPAQUE,
    JOIN_BELOW,
    LAST_OPAQUE,
    SendTemplate,
    decode_send_reply,
    send_reply,
)

names = st.text(alphabet="abcXYZ019%|_-", min_size=1, max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
int32 = st.integers(-(2**31), 2**31 - 1)


@FUZZ
@given(
    form=st.sampled_from(SerializeType),
    batch=st.booleans(),
    oneway=st.booleans(),
    group=names,
    topic=names,
    broker=texts.filter(bool),
    queue_id=int32,
    opaque=st.integers(FIRST_OPAQUE, LAST_OPAQUE),
    born=st.integers(10**12, 10**13 - 1),
    properties=texts,
    size=st.sampled_from([0, 1, 128, JOIN_BELOW - 1, JOIN_BELOW, 5000]),
    sys_flag=st.sampled_from([0, 1, 0x301, 4]),
    flag=st.one_of(st.just(0), int32),
)
def test_a_template_gives_what_the_general_header_gives(
    form: SerializeType,
    batch: bool,
    oneway: bool,
    group: str,
    topic: str,
    broker: str,
    queue_id: int,
    opaque: int,
    born: int,
    properties: str,
    size: int,
    sys_flag: int,
    flag: int,
) -> None:
    template = SendTemplate(
        group=group,
        topic=topic,
        queue_id=queue_id,
        broker_name=broker,
        default_topic="TBW102",
        default_topic_queues=4,
        batch=batch,
        oneway=oneway,
        serialize_type=form,
    )
    body = b"b" * size
    parts = template.parts(opaque, b"%d" % born, properties, body, sys_flag, flag)
    assert isinstance(parts, bytes) == (size < JOIN_BELOW)
    stream = parts if isinstance(parts, bytes) else b"".join(parts)
    (frame,) = FrameDecoder().feed(stream)
    command = decode_command(frame)
    header = SendMessageRequestHeaderV2(
        a=group,
        b=topic,
        c="TBW102",
        d=4,
        e=queue_id,
        f=sys_flag,
        g=born,
        h=flag,
        i=properties,
        j=0,
        k=False,
        m=batch,
        n=broker,
    )
    expected = RemotingCommand(
        code=RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2,
        opaque=opaque,
        flag=ONEWAY_FLAG if oneway else 0,
        ext_fields={**to_ext(header)},
        body=body,
        language=LanguageCode.PYTHON,
        version=VERSION,
    )
    (same,) = FrameDecoder().feed(b"".join(encode_command(expected, form)))
    assert command == decode_command(same)


replies = st.fixed_dictionaries(
    {"msgId": names, "queueId": int32.map(str), "queueOffset": st.integers(-(2**63), 2**63 - 1).map(str)},
    optional={
        "transactionId": names,
        "MSG_REGION": names,
        "TRACE_ON": st.sampled_from(["true", "false"]),
        "recallHandle": names,
        "batchUniqId": names,
        "somethingNew": names,
    },
)


@FUZZ
@given(
    form=st.sampled_from(SerializeType), code=st.sampled_from([0, 1, 10, 17]), remark=st.one_of(st.none(), names), ext=replies
)
def test_a_typed_reply_is_the_general_reply(form: SerializeType, code: int, remark: str | None, ext: dict[str, str]) -> None:
    command = RemotingCommand(code=code, opaque=7, flag=1, remark=remark, ext_fields={**ext})
    (frame,) = FrameDecoder().feed(b"".join(encode_command(command, form)))
    reply = send_reply(frame)
    if form == SerializeType.JSON:
        assert decode_send_reply(frame.header) == reply
    general = from_ext(SendMessageResponseHeader, decode_command(frame).ext_fields or {})
    fields = reply.extFields
    assert fields is not None
    assert (reply.code, reply.opaque, reply.flag, reply.remark) == (code, 7, 1, remark)
    assert (fields.msgId, fields.queueId, fields.queueOffset) == (general.msgId, general.queueId, general.queueOffset)
    assert (fields.transactionId, fields.recallHandle) == (general.transactionId, general.recallHandle)
    assert ext.get("MSG_REGION") == fields.MSG_REGION
    trace_on = ext["TRACE_ON"] == "true" if "TRACE_ON" in ext else None
    assert trace_on is fields.TRACE_ON


def test_a_trace_flag_of_another_spelling_is_on() -> None:
    command = RemotingCommand(code=0, opaque=7, flag=1, ext_fields={"msgId": "m", "TRACE_ON": "perhaps"})
    (frame,) = FrameDecoder().feed(b"".join(encode_command(command)))
    fields = send_reply(frame).extFields
    assert fields is not None
    assert fields.TRACE_ON is True


@FUZZ
@given(
    form=st.sampled_from(SerializeType),
    unique_id=st.text(alphabet="0123456789ABCDEF", min_size=1, max_size=56),
    size=st.sampled_from([0, 128, JOIN_BELOW - 1, JOIN_BELOW]),
)
def test_a_plain_message_gives_the_frame_of_its_properties(form: SerializeType, unique_id: str, size: int) -> None:
    template = SendTemplate(
        group="g", topic="T%", queue_id=3, broker_name="b", default_topic="TBW102", default_topic_queues=4, serialize_type=form
    )
    body, born = b"x" * size, b"1700000000000"
    properties = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02"
    assert template.plain(FIRST_OPAQUE, born, unique_id, body) == template.parts(FIRST_OPAQUE, born, properties, body)


@pytest.mark.parametrize("ext", [{"queueId": "x"}, {"queueOffset": "1.5.2"}, {"queueId": ""}])
def test_a_reply_with_a_field_of_another_type_is_the_peers_fault(ext: dict[str, str]) -> None:
    command = RemotingCommand(code=0, opaque=7, flag=1, ext_fields={"msgId": "m", **ext})
    (frame,) = FrameDecoder().feed(b"".join(encode_command(command)))
    with pytest.raises(RemoteProtocolError, match="send reply"):
        send_reply(frame)


def test_a_reply_without_fields_is_a_reply() -> None:
    command = RemotingCommand(code=2, opaque=7, flag=1, remark="[OVERLOAD]")
    (frame,) = FrameDecoder().feed(b"".join(encode_command(command)))
    assert send_reply(frame).extFields is None
    assert decode_send_reply(frame.header).remark == "[OVERLOAD]"


def test_a_group_without_utf8_form_is_refused_when_the_template_is_made() -> None:
    with pytest.raises(LocalProtocolError):
        SendTemplate(group="\ud800", topic="T", queue_id=0, broker_name="b", default_topic="TBW102", default_topic_queues=4)
