"""Templates of pulls write what the general way writes, and typed answers say what the general way reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq_protocol.command import RemotingCommand, decode_command, encode_command, make_response
from rmq_protocol.constants import RequestCode
from rmq_protocol.frame import Frame, FrameDecoder
from rmq_protocol.headers import to_ext
from rmq_protocol.pull_codec import PullTemplate, decode_pull_reply, pull_header

GIVEN: list[tuple[str, str, int, str, str, int]] = [
    ("group", "topic", 0, "broker-a", "*", 0),
    ("50%d", 'to"pic\\', 2**31 - 1, "bröker", "a || b", 15_000),
    ("g", "t", 7, "b", "%s%%", 1),
]
FIELDS = {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "-1", "maxOffset": str(2**63 - 1)}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(("opaque", "offset", "count"), [(1, 0, 1), (2**31 - 1, 2**63 - 1, 1024)])
def test_a_template_writes_what_the_general_way_writes(given: Any, opaque: int, offset: int, count: int) -> None:
    template = PullTemplate(*given)
    header = pull_header(*given, offset, count)
    general = RemotingCommand(code=RequestCode.PULL_MESSAGE, opaque=opaque, ext_fields={**to_ext(header)})
    assert template.usable
    assert template.held == (given[-1] > 0)
    assert read(template.frame(opaque, offset, count)) == read(b"".join(encode_command(general)))


def test_a_template_writes_other_expressions() -> None:
    template = PullTemplate("g", "t", 3, "b", "a > '50%'", 0, "SQL92")
    header = pull_header("g", "t", 3, "b", "a > '50%'", 0, 5, 6, "SQL92")
    general = RemotingCommand(code=RequestCode.PULL_MESSAGE, opaque=7, ext_fields={**to_ext(header)})
    assert read(template.frame(7, 5, 6)) == read(b"".join(encode_command(general)))
    assert (header.subscription, header.expressionType) == ("a > '50%'", "SQL92")


def read(frame: bytes) -> RemotingCommand:
    (found,) = FrameDecoder().feed(frame)
    return decode_command(found)


def test_a_huge_header_is_left_to_the_general_way() -> None:
    assert not PullTemplate("g", "t", 0, "b", "a" * 100_000, 0).usable


def answer(code: int = 0, **fields: Any) -> Frame:
    request = RemotingCommand(code=RequestCode.PULL_MESSAGE, opaque=9)
    (frame,) = FrameDecoder().feed(
        b"".join(encode_command(make_response(request, code, None, {**FIELDS, **fields}, b"records")))
    )
    return frame


def test_an_answer_with_messages_is_read_into_one_struct() -> None:
    for delta in (None, "5"):
        frame = answer(offsetDelta=delta, topicSysFlag="0")
        reply = decode_pull_reply(frame.header, frame.body)
        assert reply is not None
        fields = reply.extFields
        assert (reply.code, reply.opaque, reply.body) == (0, 9, b"records")
        assert (fields.nextBeginOffset, fields.minOffset, fields.maxOffset) == (7, -1, 2**63 - 1)
        assert fields.offsetDelta == (None if delta is None else 5)


@pytest.mark.parametrize(
    "frame",
    [
        answer(19),
        answer(nextBeginOffset="x"),
        answer(nextBeginOffset=str(2**63)),
        answer(minOffset=None),
        Frame(0, b"{}", b"x"),
        Frame(0, b"\xff", b"x"),
        Frame(0, json.dumps({"code": 0, "opaque": 9, "flag": 0, "extFields": FIELDS}).encode(), b"a request, no answer"),
    ],
)
def test_anything_else_is_left_to_the_general_way(frame: Frame) -> None:
    assert decode_pull_reply(frame.header, frame.body) is None
