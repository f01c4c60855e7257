"""RemotingCommand in both forms of its header; broken headers are in test_hostile_bytes.py."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from strategies_wire import FUZZ, commands, serialize_types

from rmq_protocol.command import RemotingCommand, decode_command, encode_command, make_response
from rmq_protocol.constants import LanguageCode, RequestCode, ResponseCode, SerializeType
from rmq_protocol.errors import LocalProtocolError
from rmq_protocol.frame import Frame, FrameDecoder

pytestmark = pytest.mark.interpreters

BINARY_105 = bytes.fromhex("0000002501000021" + "00690301df0000000100000000000000000000000c0005746f7069630000000154")


def reread(command: RemotingCommand, serialize_type: SerializeType = SerializeType.JSON) -> RemotingCommand:
    [frame] = FrameDecoder().feed(b"".join(encode_command(command, serialize_type)))
    return decode_command(frame)


@given(commands, serialize_types)
@FUZZ
def test_what_is_written_is_read_again_in_either_form(command: RemotingCommand, serialize_type: SerializeType) -> None:
    assert reread(command, serialize_type) == command


def test_binary_bytes_of_a_route_request() -> None:
    command = RemotingCommand(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=1, version=479, ext_fields={"topic": "T"})
    assert b"".join(encode_command(command, SerializeType.ROCKETMQ)) == BINARY_105


def test_json_header_has_the_members_java_writes() -> None:
    [data] = encode_command(RemotingCommand(code=105, opaque=7, ext_fields={"topic": "T", "none": None}))
    assert json.loads(data[8:]) == {
        "code": 105,
        "extFields": {"topic": "T"},
        "flag": 0,
        "language": "PYTHON",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("language", LanguageCode)
def test_every_language_keeps_its_name(language: LanguageCode, serialize_type: SerializeType) -> None:
    assert reread(RemotingCommand(code=0, language=language), serialize_type).language is language


@pytest.mark.parametrize("serialize_type", SerializeType)
def test_no_language_is_sent_as_other(serialize_type: SerializeType) -> None:
    assert reread(RemotingCommand(code=0, language=None), serialize_type).language is LanguageCode.OTHER


def test_the_form_of_the_reply_is_its_own() -> None:
    """A broker answers binary requests with JSON; each frame says what it is."""
    frames = b"".join(
        part for form in SerializeType for part in encode_command(RemotingCommand(code=0, opaque=9, flag=1), form)
    )
    assert [decode_command(frame).opaque for frame in FrameDecoder().feed(frames)] == [9, 9]


def test_binary_form_reads_empty_texts_as_nothing() -> None:
    command = RemotingCommand(code=0, remark="", ext_fields={"a": ""})
    assert reread(command).ext_fields == {"a": ""}
    assert reread(command).remark == ""
    assert reread(command, SerializeType.ROCKETMQ).ext_fields == {"a": None}
    assert reread(command, SerializeType.ROCKETMQ).remark is None


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, 0x8000, -0x8001])
def test_codes_above_16_bits_are_refused_on_the_binary_form_only(code: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"code {int(code)} does not fit"):
        encode_command(RemotingCommand(code=code), SerializeType.ROCKETMQ)
    assert reread(RemotingCommand(code=code)).code == code


@pytest.mark.parametrize("field", ["code", "opaque", "flag", "version"])
def test_integers_outside_32_bits_are_refused(field: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"{field} must be a signed 32-bit integer, not 2147483648"):
        encode_command(RemotingCommand(**{"code": 0, field: 2**31}))


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("field", [{"remark": "\ud800"}, {"ext_fields": {"a": "\udfff"}}, {"ext_fields": {"\ud800": "a"}}])
def test_half_a_surrogate_pair_is_refused(field: dict[str, object], serialize_type: SerializeType) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be encoded"):
        encode_command(RemotingCommand(code=0, **field), serialize_type)  # type: ignore[arg-type]


def test_version_above_16_bits_and_a_key_above_its_length_word_are_refused_on_the_binary_form() -> None:
    with pytest.raises(LocalProtocolError, match="version 32768"):
        encode_command(RemotingCommand(code=0, version=0x8000), SerializeType.ROCKETMQ)
    with pytest.raises(LocalProtocolError, match="key of 32768 bytes"):
        encode_command(RemotingCommand(code=0, ext_fields={"k" * 0x8000: "v"}), SerializeType.ROCKETMQ)


def test_a_response_carries_the_opaque_of_its_request() -> None:
    request = RemotingCommand(code=RequestCode.GET_MAX_OFFSET, opaque=77, flag=2)
    response = make_response(request, ResponseCode.SYSTEM_ERROR, "why", {"a": "b"}, b"body")
    assert (response.opaque, response.code, response.remark, response.body) == (77, 1, "why", b"body")
    assert response.is_response
    assert not response.is_oneway
    assert request.is_oneway
    assert not request.is_response


def test_missing_members_have_javas_defaults() -> None:
    command = decode_command(Frame(0, b'{"code":5}', b""))
    assert (command.code, command.language, command.version, command.flag) == (5, LanguageCode.JAVA, 0, 0)
    assert command.ext_fields is None
