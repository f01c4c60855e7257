"""Bytes that no correct peer sends: one table of streams, fed in every way, and damaged frames at random.

Each row of the table is fed whole, byte by byte, behind a good frame and with more behind it. What must hold: the frames
that are good come out, the broken one is named in a RemoteProtocolError as soon as its bytes allow, nothing else is raised,
and nothing is allocated for what was only announced.
"""

from __future__ import annotations

import re
import struct
import tracemalloc
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_wire import FUZZ, INT_MAX, INT_MIN, commands, cuts, damaged

from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import MAX_FRAME_SIZE, LanguageCode, SerializeType
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.frame import Frame, FrameDecoder

LIMIT = MAX_FRAME_SIZE - 4


@dataclass
class Row:
    """``data`` makes one frame: ``reads`` is what its command says, or ``breaks`` what the error says.

    ``seen``: how many of its bytes are enough to refuse it; None for a header that is only read when its frame is complete.
    """

    name: str
    data: bytes
    reads: dict[str, object] | None = None
    breaks: str = ""
    seen: int | None = None


def words(length: int, word: int) -> bytes:
    return struct.pack(">iI", length, word & 0xFFFFFFFF)


def framed(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return words(4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def json_row(name: str, header: bytes | str, breaks: str = "", body: bytes = b"", **reads: object) -> Row:
    data = framed(header if isinstance(header, bytes) else header.encode(), body)
    return Row(name, data, None if breaks else reads, breaks)


def binary(remark: bytes = b"\0\0\0\0", ext: bytes = b"\0\0\0\0", language: int = 3) -> bytes:
    """A binary header with its two variable parts, lengths included, as given."""
    return struct.pack(">hBhii", 17, language, 513, 5, 1) + remark + ext


def sized(data: bytes, length: int | None = None, form: str = ">i") -> bytes:
    return struct.pack(form, len(data) if length is None else length) + data


def entry(key: bytes, value: bytes) -> bytes:
    return sized(key, form=">h") + sized(value)


def binary_row(name: str, header: bytes, breaks: str = "", body: bytes = b"", **reads: object) -> Row:
    return Row(name, framed(header, body, kind=1), None if breaks else reads, breaks)


FRAMES = [
    Row("length -1", words(-1, 0), breaks="frame length -1 is below 4", seen=4),
    Row("length INT_MIN", words(INT_MIN, 0), breaks="frame length -2147483648 is below 4", seen=4),
    *(Row(f"length {n}", words(n, 0), breaks=f"frame length {n} is below 4", seen=4) for n in range(4)),
    Row(
        "length above the limit", words(LIMIT + 1, 2), breaks=f"frame length {LIMIT + 1} is above the limit of {LIMIT}", seen=4
    ),
    Row("length INT_MAX", words(INT_MAX, 2), breaks=f"frame length {INT_MAX} is above the limit", seen=4),
    Row("ASCII instead of a frame", b"GET / HTTP/1.1\r\n\r\n", breaks="it answers with the text 'GET ", seen=4),
    Row("TLS instead of a frame", bytes.fromhex("1603010200010001"), breaks="it speaks TLS (record type 0x16)", seen=4),
    Row(
        "header longer than its frame", words(8, 5) + b"{}{}", breaks="header length 5 is beyond its frame, which has 4", seen=8
    ),
    Row("header of 16 MiB", words(4, 0xFFFFFF), breaks="header length 16777215 is beyond its frame, which has 0", seen=8),
    Row("serialize type 2", words(6, 2 << 24 | 2) + b"{}", breaks="serialize type 2 is unknown", seen=8),
    Row("serialize type 255", words(6, 255 << 24 | 2) + b"{}", breaks="serialize type 255 is unknown", seen=8),
    Row("no header, JSON", words(4, 0), breaks="JSON header"),
    Row("no header, binary", words(4, 1 << 24), breaks="binary header of 0 bytes"),
    Row("no header but a body", words(6, 0) + b"{}", breaks="JSON header"),
]

JSON = [
    json_row("plain", '{"code":17,"opaque":5,"flag":1}', code=17, opaque=5, flag=1, ext_fields=None, remark=None, body=b""),
    json_row("with a body", '{"code":1}', "", b"body", code=1),
    json_row("space around everything", ' {\t"code" :\n1 , "flag":\r1 } ', code=1, flag=1),
    json_row("unknown members", '{"new":{"a":[1,{"b":null}]},"code":1,"x":[[[]]]}', code=1),
    json_row("extFields null, remark null", '{"code":1,"extFields":null,"remark":null}', code=1, ext_fields=None, remark=None),
    json_row("extFields empty", '{"code":1,"extFields":{}}', code=1, ext_fields={}),
    json_row(
        "extFields with integers, booleans, nulls",
        '{"code":1,"extFields":{"a":3,"b":true,"c":false,"d":null,"e":-9223372036854775808,"f":""}}',
        ext_fields={"a": "3", "b": "true", "c": "false", "d": None, "e": "-9223372036854775808", "f": ""},
    ),
    json_row("keys twice: the last counts", '{"code":1,"code":2,"extFields":{"a":"1","a":"2"}}', code=2, ext_fields={"a": "2"}),
    json_row("unknown language", '{"code":1,"language":"KOTLIN"}', language=None),
    json_row("language null", '{"code":1,"language":null}', language=None),
    json_row("escapes", r'{"code":1,"remark":"\u4e2d\ud83d\ude00\/\n\u0000"}', remark="中😀/\n\0"),
    json_row("raw text outside ASCII", '{"code":1,"remark":"中😀"}', remark="中😀"),
    json_row("opaque at the ends of 32 bits", '{"code":-2147483648,"opaque":2147483647}', code=INT_MIN, opaque=INT_MAX),
    json_row("serializeTypeCurrentRPC lies", '{"code":1,"serializeTypeCurrentRPC":"ROCKETMQ"}', code=1),
    json_row("not JSON", "code=1", "JSON header"),
    json_row("empty object", "{}", "JSON header: Object missing required field `code`"),
    json_row("array", "[]", "JSON header: Expected `object`, got `array`"),
    json_row("text", '"code"', "JSON header"),
    json_row("number", "1", "JSON header"),
    json_row("null", "null", "JSON header"),
    json_row("cut short", '{"code":1', "JSON header"),
    json_row("more behind the object", '{"code":1}{"code":2}', "JSON header"),
    json_row("trailing comma", '{"code":1,}', "JSON header"),
    json_row("single quotes", "{'code':1}", "JSON header"),
    json_row("byte order mark", b'\xef\xbb\xbf{"code":1}', "JSON header"),
    json_row("NUL behind the object", b'{"code":1}\0', "JSON header"),
    json_row("10,000 arrays", "[" * 10_000, "JSON header"),
    json_row("10,000 arrays in an unknown member", '{"code":1,"x":' + "[" * 10_000, "JSON header"),
    json_row(
        "100,000 closed arrays in an unknown member", '{"code":1,"x":' + "[" * 100_000 + "]" * 100_000 + "}", "JSON header"
    ),
    json_row(
        "100,000 arrays in extFields", '{"code":1,"extFields":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}", "JSON header"
    ),
    json_row("code of 31 digits", '{"code":1' + "0" * 30 + "}", "JSON header"),
    json_row("code of 5,001 digits", '{"code":1' + "0" * 5000 + "}", "JSON header"),
    json_row("code above 32 bits", '{"code":2147483648}', "code 2147483648 is outside 32 bits"),
    json_row("opaque above 32 bits", '{"code":1,"opaque":-2147483649}', "opaque -2147483649 is outside 32 bits"),
    json_row("flag above 32 bits", '{"code":1,"flag":4294967296}', "flag 4294967296 is outside 32 bits"),
    json_row("code NaN", '{"code":NaN}', "JSON header"),
    json_row("code Infinity", '{"code":Infinity}', "JSON header"),
    json_row("code 1e400", '{"code":1e400}', "JSON header"),
    json_row("code 1.5", '{"code":1.5}', "JSON header"),
    json_row("code as text", '{"code":"1"}', "JSON header"),
    json_row("code null", '{"code":null}', "JSON header"),
    json_row("code true", '{"code":true}', "JSON header"),
    json_row("opaque as an object", '{"code":1,"opaque":{}}', "JSON header"),
    json_row("language as a number", '{"code":1,"language":3}', "JSON header"),
    json_row("remark as a number", '{"code":1,"remark":5}', "JSON header"),
    json_row("extFields as an array", '{"code":1,"extFields":["a"]}', "JSON header"),
    json_row("extFields as text", '{"code":1,"extFields":"a"}', "JSON header"),
    json_row("extFields with an object", '{"code":1,"extFields":{"a":{"b":1}}}', "extFields 'a' must be text"),
    json_row(
        "extFields with a fraction",
        '{"code":1,"extFields":{"a":1.5}}',
        "extFields 'a' must be text, an integer, a boolean or null, not 1.5",
    ),
    json_row("extFields with 400 zeros", '{"code":1,"extFields":{"a":1' + "0" * 400 + "}}", ext_fields={"a": "1" + "0" * 400}),
    json_row("extFields with 5,000 zeros", '{"code":1,"extFields":{"a":1' + "0" * 5000 + "}}", "JSON header"),
    json_row("invalid UTF-8 in a value", b'{"code":1,"remark":"\xff"}', "JSON header"),
    json_row("invalid UTF-8 in a key", b'{"code":1,"extFields":{"\xc3":"a"}}', "JSON header"),
    json_row("UTF-8 of a surrogate", b'{"code":1,"remark":"\xed\xa0\x80"}', "JSON header"),
    json_row("half a surrogate pair", r'{"code":1,"remark":"\ud800"}', "JSON header"),
    json_row("the other half", r'{"code":1,"extFields":{"a":"\udc00x"}}', "JSON header"),
    json_row("raw control character", b'{"code":1,"remark":"a\x01b"}', "JSON header"),
]

BINARY = [
    binary_row("plain", binary(), code=17, opaque=5, flag=1, version=513, ext_fields=None, remark=None, body=b""),
    binary_row("with a body", binary(), "", b"body", code=17),
    binary_row("unknown language", binary(language=99), language=None),
    binary_row("language above 127", binary(language=255), language=None),
    binary_row("texts", binary(sized("é😀".encode()), sized(entry(b"a", b"b"))), remark="é😀", ext_fields={"a": "b"}),
    binary_row("empty value", binary(ext=sized(entry(b"a", b""))), ext_fields={"a": None}),
    binary_row("empty key", binary(ext=sized(entry(b"", b"b"))), ext_fields={}),
    binary_row("keys twice: the last counts", binary(ext=sized(entry(b"a", b"1") + entry(b"a", b"2"))), ext_fields={"a": "2"}),
    binary_row("bytes behind extFields", binary() + b"more", code=17, ext_fields=None),
    binary_row("20 bytes", binary()[:20], "binary header of 20 bytes is shorter than its 21 fixed bytes"),
    binary_row("remark length -1", binary(sized(b"", -1)), "remark length -1"),
    binary_row("remark length INT_MIN", binary(sized(b"", INT_MIN)), "remark length -2147483648"),
    binary_row("remark length INT_MAX", binary(sized(b"", INT_MAX)), "remark length 2147483647 must be from 0 to 0"),
    binary_row("remark over the extFields length", binary(sized(b"", 1)), "remark length 1 must be from 0 to 0"),
    binary_row("extFields length -1", binary(ext=sized(b"", -1)), "extFields length -1"),
    binary_row("extFields length INT_MAX", binary(ext=sized(b"", INT_MAX)), "extFields length 2147483647 must be from 0 to 0"),
    binary_row(
        "extFields length over the end", binary(ext=sized(entry(b"a", b"b"), 9)), "extFields length 9 must be from 0 to 8"
    ),
    binary_row("one byte for a key length", binary(ext=sized(b"\0")), "1 byte is left for an extFields key length"),
    binary_row("key length -1", binary(ext=sized(sized(b"abcdef", -1, ">h"))), "extFields key length -1"),
    binary_row("key length 32767", binary(ext=sized(sized(b"abcdef", 32767, ">h"))), "extFields key length 32767"),
    binary_row("key over the value length", binary(ext=sized(sized(b"abcd", 4, ">h"))), "extFields key length 4"),
    binary_row("value length -1", binary(ext=sized(b"\0\1a" + sized(b"b", -1))), "extFields value length -1"),
    binary_row("value length INT_MAX", binary(ext=sized(b"\0\1a" + sized(b"b", INT_MAX))), "extFields value length 2147483647"),
    binary_row(
        "value over the end", binary(ext=sized(b"\0\1a" + sized(b"b", 2))), "extFields value length 2 must be from 0 to 1"
    ),
    binary_row("invalid UTF-8 in the remark", binary(sized(b"a\xff")), "remark is not UTF-8 at byte 1"),
    binary_row("invalid UTF-8 in a key", binary(ext=sized(entry(b"\xff", b"a"))), "extFields key is not UTF-8"),
    binary_row("invalid UTF-8 in a value", binary(ext=sized(entry(b"a", b"\xed\xa0\x80"))), "extFields value is not UTF-8"),
]

TABLE = FRAMES + JSON + BINARY
GOOD = framed(b'{"code":105,"opaque":1}', b"ok")


def check(row: Row, frames: list[Frame]) -> None:
    """The one frame of a row: read, or refused by its header."""
    [frame] = frames
    if row.reads is None:
        with pytest.raises(RemoteProtocolError, match=re.escape(row.breaks)) as caught:
            decode_command(frame)
        assert len(str(caught.value)) < 500
        return
    command = decode_command(frame)
    for name, value in row.reads.items():
        assert getattr(command, name) == value, name


def feed(row: Row, decoder: FrameDecoder, data: bytes) -> list[Frame]:
    """Feeds bytes that make the row's frame or, for a broken one, its refusal."""
    if row.seen is None:
        return decoder.feed(data)
    with pytest.raises(RemoteProtocolError, match=re.escape(row.breaks)) as caught:
        decoder.feed(data)
    assert decoder.error is caught.value
    return []


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_frame_is_read_or_refused(row: Row) -> None:
    whole(row)
    with_more_behind_it(row)
    behind_a_good_frame(row)
    if len(row.data) < 30_000:
        byte_by_byte(row)


def whole(row: Row) -> None:
    decoder = FrameDecoder()
    frames = feed(row, decoder, row.data)
    if row.seen is None:
        check(row, frames)
        assert decoder.pending == 0


def byte_by_byte(row: Row) -> None:
    decoder = FrameDecoder()
    enough = row.seen or len(row.data)
    for at in range(enough - 1):
        assert decoder.feed(row.data[at : at + 1]) == []
        assert decoder.pending == at + 1
    frames = feed(row, decoder, row.data[enough - 1 : enough])
    if row.seen is None:
        check(row, frames)


def with_more_behind_it(row: Row) -> None:
    decoder = FrameDecoder()
    more = GOOD + GOOD[:7]
    frames = feed(row, decoder, row.data + more)
    if row.seen is None:
        check(row, frames[:1])
        assert [decode_command(frame).opaque for frame in frames[1:]] == [1]
        assert decoder.pending == 7


def behind_a_good_frame(row: Row) -> None:
    """The good frame is delivered; the stream's error waits for the next call."""
    decoder = FrameDecoder()
    frames = decoder.feed(GOOD + row.data)
    assert decode_command(frames[0]).body == b"ok"
    if row.seen is None:
        check(row, frames[1:])
        return
    assert len(frames) == 1
    assert decoder.error is not None
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=re.escape(row.breaks)):
            decoder.feed(GOOD)


@pytest.mark.parametrize("length", [LIMIT + 1, INT_MAX, INT_MIN, -1])
def test_a_length_out_of_bounds_allocates_nothing(length: int) -> None:
    data = words(length, 2) + bytes(60)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            with pytest.raises(RemoteProtocolError):
                FrameDecoder().feed(data)
        assert tracemalloc.get_traced_memory()[1] - base < 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_length_within_bounds_allocates_what_has_arrived() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        decoder.feed(words(LIMIT, 100))
        for _ in range(8):
            decoder.feed(bytes(1024))
        assert tracemalloc.get_traced_memory()[1] - base < 64 * 1024
        assert decoder.pending == 8 + 8 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("row", [row for row in BINARY if "INT_MAX" in row.name], ids=lambda row: row.name)
def test_an_inner_length_out_of_bounds_allocates_nothing(row: Row) -> None:
    [frame] = FrameDecoder().feed(row.data)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        with pytest.raises(RemoteProtocolError):
            decode_command(frame)
        assert tracemalloc.get_traced_memory()[1] - base < 64 * 1024
    finally:
        tracemalloc.stop()


def read_all(pieces: list[bytes]) -> list[RemotingCommand]:
    """What a connection does with a stream: frames, then commands, until something is broken."""
    decoder = FrameDecoder()
    found: list[RemotingCommand] = []
    try:
        for piece in pieces:
            found += [decode_command(frame) for frame in decoder.feed(piece)]
            if decoder.error is not None:
                break
    except RemoteProtocolError:
        pass
    return found


streams = st.lists(
    st.tuples(commands, st.sampled_from(SerializeType)).map(lambda pair: b"".join(encode_command(*pair))),
    min_size=1,
    max_size=3,
).map(b"".join)


@given(damaged(streams), st.data())
@FUZZ
def test_damaged_streams_give_commands_or_our_error(stream: bytes, draw: st.DataObject) -> None:
    whole = read_all([stream])
    for command in whole:
        assert isinstance(command.code, int)
        assert isinstance(command.language, LanguageCode | None)
    pieces = read_all(draw.draw(cuts(stream)))
    assert pieces[: len(whole)] == whole[: len(pieces)]  # a cut may show a frame before the broken one behind it


@given(st.binary(max_size=200))
@FUZZ
def test_random_bytes_give_commands_or_our_error(stream: bytes) -> None:
    read_all([stream])


@given(damaged(commands.map(lambda command: b"".join(encode_command(command, SerializeType.ROCKETMQ))[8:])))
@FUZZ
def test_damaged_binary_headers_are_read_or_refused(header: bytes) -> None:
    try:
        command = decode_command(Frame(1, header, b""))
    except RemoteProtocolError:
        return
    again = b"".join(encode_command(command, SerializeType.ROCKETMQ))
    kept = {name: value for name, value in (command.ext_fields or {}).items() if value is not None}
    assert (decode_command(FrameDecoder().feed(again)[0]).ext_fields or {}) == kept


@given(damaged(commands.map(lambda command: b"".join(encode_command(command))[8:])))
@FUZZ
def test_damaged_json_headers_are_read_or_refused(header: bytes) -> None:
    try:
        command = decode_command(Frame(0, header, b""))
    except RemoteProtocolError:
        return
    assert all(value is None or isinstance(value, str) for value in (command.ext_fields or {}).values())
    if -(2**31) <= command.version < 2**31:
        assert encode_command(command)
