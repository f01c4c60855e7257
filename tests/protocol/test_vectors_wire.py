"""Golden vectors of frames, headers and routes, and what all of them must keep to; see vectors.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wire_grammar import ends_inside_a_frame, is_unicode, is_well_formed

import vectors
from rmq_protocol import headers as headers_module
from rmq_protocol import lenient_json
from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import LanguageCode, SerializeType
from rmq_protocol.errors import RemoteProtocolError, RocketMQError
from rmq_protocol.frame import Frame, FrameDecoder
from rmq_protocol.headers import (
    BoundaryType,
    Header,
    from_ext,
    send_header_v1,
    send_header_v2,
    to_ext,
)
from rmq_protocol.java_types import Int, Long
from rmq_protocol.route import (
    TopicRouteData,
    decode_route,
    encode_route,
    publish_queues,
    static_topic_endpoints,
    subscribe_queues,
)
from vectors import (
    BODY_KINDS,
    CLIENT_KINDS,
    CONTENT_KINDS,
    EXTRA_KINDS,
    LEFT_OUT,
    LITE_KINDS,
    WAITING,
    WIRE_KINDS,
    Case,
    Outcome,
    Suite,
    check_bytes,
    data,
    is_error,
    official_or_refused,
    refused,
)

SUITE = Suite(*WIRE_KINDS)
KINDS = WIRE_KINDS + BODY_KINDS + EXTRA_KINDS + LITE_KINDS + CONTENT_KINDS + CLIENT_KINDS

HEADERS: dict[str, type[Header]] = {
    name: value for name, value in vars(headers_module).items() if isinstance(value, type) and issubclass(value, Header)
}


@pytest.mark.parametrize("path", SUITE.files(), ids=lambda path: path.name)
def test_golden_vectors(path: Path) -> None:
    SUITE.run(path)


def test_every_file_of_vectors_is_of_a_known_kind() -> None:
    unknown = [path.name for path in vectors.all_files() if vectors.kind_of(path) not in KINDS]
    assert not unknown


def test_nothing_that_is_here_is_said_to_wait() -> None:
    assert not LEFT_OUT & HEADERS.keys()
    assert WAITING.keys() <= {*KINDS}


# Frames.


@SUITE.handles("frames", "encode")
def frames_encode(case: Case) -> Outcome | None:
    given, expected = case.given, case.expected
    command = RemotingCommand(
        code=given["code"],
        opaque=given["opaque"],
        flag=(1 if given["response"] else 0) | (2 if given["oneway"] else 0),
        remark=given["remark"],
        ext_fields=None if given["ext_pairs"] is None else dict(given["ext_pairs"]),
        body=data(given["body"]),
        language=LanguageCode[given["language"]],
        version=given["version"],
    )
    serialize_type = SerializeType[given["serialize_type"]]
    if "hex" in expected["frame"] and not is_error(expected["decoded"]):
        check_decoded(decode(data(expected["frame"])), expected["decoded"])
    if not _fits(command, serialize_type):
        with refused():  # Java cuts numbers and replaces characters, which says something else
            encode_command(command, serialize_type)
        return Outcome.DIFFERS
    frame = b"".join(encode_command(command, serialize_type))
    if serialize_type is SerializeType.ROCKETMQ:
        check_bytes(frame, expected["frame"])
    else:
        header = split(frame).header
        assert json.loads(header) == expected["header_fields"]
        assert int.from_bytes(frame[:4]) == len(frame) - 4 == 4 + len(header) + len(command.body)
    check_decoded(decode(frame), expected["decoded"])
    return None


def _fits(command: RemotingCommand, serialize_type: SerializeType) -> bool:
    """Whether the form has room for the command as it is."""
    ext = command.ext_fields or {}
    if not is_unicode([command.remark, *ext, *ext.values()]):
        return False
    return serialize_type is SerializeType.JSON or (
        all(-0x8000 <= value <= 0x7FFF for value in (command.code, command.version))
        and all(len(key.encode()) <= 0x7FFF for key in ext)
    )


@SUITE.handles("frames", "fast_encode")
def frames_fast_encode(case: Case) -> None:
    given, expected = case.given, case.expected
    header = to_ext(HEADERS[given["header_class"]](**given["header_fields"]))
    more = dict(given["ext_pairs"] or ())
    serialize_type = SerializeType[given["serialize_type"]]
    command = RemotingCommand(
        code=given["code"],
        opaque=given["opaque"],
        ext_fields={**header, **more} if serialize_type is SerializeType.ROCKETMQ else {**more, **header},
        body=data(given["body"]),
        language=LanguageCode[given["language"]],
        version=given["version"],
    )
    frame = b"".join(encode_command(command, serialize_type))
    if serialize_type is SerializeType.ROCKETMQ and not header.keys() & more.keys():
        check_bytes(frame, expected["frame"])
    check_decoded(decode(frame), expected["decoded"])
    if "hex" in expected["frame"]:
        check_decoded(decode(data(expected["frame"])), expected["decoded"])


@SUITE.handles("frames", "decode")
def frames_decode(case: Case) -> None:
    raw = data(case.given["frame"])
    if is_error(case.expected):
        with refused():
            decode(raw)
    elif is_well_formed(raw):
        check_decoded(decode(raw), case.expected)
        assert SerializeType(raw[4]).name == case.expected["serialize_type"]
    else:
        official_or_refused(lambda: check_decoded(decode(raw), case.expected))


@SUITE.handles("frames", "stream")
def frames_stream(case: Case) -> Outcome | None:
    """Ours stops at a broken frame, as soon as its length words show it; Java's still delivers what follows in the same read."""
    decoder, received = FrameDecoder(), b""
    is_open, outcome = True, None
    for chunk, expected in zip(case.given["chunks"], case.expected["after_each_chunk"], strict=True):
        frames: list[dict[str, int]] = []
        received += data(chunk)
        if is_open:
            try:
                for frame in decoder.feed(data(chunk)):
                    command = decode_command(frame)
                    frames.append({"opaque": command.opaque, "code": command.code, "body_len": len(command.body)})
                is_open = decoder.error is None
            except RemoteProtocolError:
                is_open = False
        if is_open:
            assert expected["channel_open"]
            assert frames == expected["frames"]
            continue
        assert frames == expected["frames"][: len(frames)]
        if expected["channel_open"]:
            assert frames == expected["frames"]
            assert ends_inside_a_frame(received)
            outcome = Outcome.DIFFERS
        elif frames != expected["frames"]:
            outcome = Outcome.DIFFERS
    return outcome


def split(frame: bytes) -> Frame:
    found = FrameDecoder().feed(frame)
    if not found:
        raise RemoteProtocolError("the stream ends inside the frame")
    return found[0]


def decode(frame: bytes) -> RemotingCommand:
    return decode_command(split(frame))


def check_decoded(command: RemotingCommand, expected: dict[str, Any]) -> None:
    assert command.code == expected["code"]
    assert (None if command.language is None else command.language.name) == expected["language"]
    assert command.version == expected["version"]
    if expected["opaque"] is not None:  # else the header had none, and Java draws one
        assert command.opaque == expected["opaque"]
    assert command.flag == expected["flag"]
    assert command.is_response == expected["is_response"]
    assert command.is_oneway == expected["is_oneway"]
    assert command.remark == expected["remark"]
    assert command.ext_fields == expected["extFields"]
    check_bytes(command.body, expected["body"])


# Headers.

_KINDS = {"String": str, "Integer": Int, "int": Int, "Long": Long, "long": Long, "Boolean": bool, "boolean": bool}


@SUITE.handles("headers", "schema")
def headers_schema(case: Case) -> None:
    cls = HEADERS[case.given["header"]]
    ours = {info.name: info for info in msgspec.structs.fields(cls)}
    theirs = {field["name"]: field for field in case.expected["fields"]}
    assert ours.keys() == theirs.keys()
    assert case.expected["request_code"] in (None, cls.request_code)  # Java leaves it out at some classes
    for name, field in theirs.items():
        kind = _KINDS.get(field["type"], BoundaryType)
        default = field["default"]
        assert ours[name].type in (kind, kind | None), name
        assert ours[name].required == (field["required"] and default is None), name
        if default is not None:
            assert ours[name].default == (default == "true" if kind is bool else int(default)), name
        elif not field["required"]:
            assert ours[name].default is None, name


@SUITE.handles("headers", "encode")
def headers_encode(case: Case) -> None:
    header = HEADERS[case.given["header"]](**case.given["fields"])
    if is_error(case.expected):
        with refused():
            to_ext(header)
        return
    assert to_ext(header) == case.expected["extFields"]
    if any(getattr(header, name) not in values for name, values in header.choices.items()):
        with refused():  # Java writes it, and refuses to read it
            from_ext(type(header), case.expected["extFields"])
        return
    decoded = from_ext(type(header), case.expected["extFields"], lenient=True)
    for name, value in case.given["fields"].items():
        assert value is None or getattr(decoded, name) == value


@SUITE.handles("headers", "decode")
def headers_decode(case: Case) -> None:
    cls, ext, expected = HEADERS[case.given["header"]], case.given["extFields"], case.expected

    def check(official: dict[str, Any]) -> None:
        assert not is_error(official)
        assert msgspec.structs.asdict(from_ext(cls, ext, lenient=True)) == official["fields"]

    if is_error(expected) or ("client_path" in expected and is_error(expected["client_path"])):
        with refused():
            from_ext(cls, ext, lenient=True)
    elif "client_path" in expected:
        check(expected["client_path"])
    elif _has_broken_number(cls, ext or {}):
        official_or_refused(lambda: check(expected))
    else:
        check(expected)
        required = [info.name for info in msgspec.structs.fields(cls) if info.required]
        if any((ext or {}).get(name) is None for name in required):
            with refused():  # what Java finds out later
                from_ext(cls, ext)
        else:
            assert from_ext(cls, ext) == from_ext(cls, ext, lenient=True)


def _has_broken_number(cls: type[Header], ext: dict[str, str | None]) -> bool:
    for info in msgspec.structs.fields(cls):
        text = ext.get(info.name)
        if text is None or info.type not in (Int, Int | None, Long, Long | None):
            continue
        bits = 31 if info.type in (Int, Int | None) else 63
        try:
            if not -(1 << bits) <= int(text) < 1 << bits or text != str(int(text)):
                return True
        except ValueError:
            return True
    return False


@SUITE.handles("headers", "v1_to_v2")
def headers_v1_to_v2(case: Case) -> None:
    v1 = HEADERS["SendMessageRequestHeader"](**case.given["fields"])
    assert isinstance(v1, headers_module.SendMessageRequestHeader)
    v2 = send_header_v2(v1)
    assert msgspec.structs.asdict(v2) == case.expected["v2"]
    assert to_ext(v2) == case.expected["extFields"]
    if "back_to_v1" in case.expected:
        assert msgspec.structs.asdict(send_header_v1(v2)) == case.expected["back_to_v1"]


# Routes.


@SUITE.handles("routes", "decode")
def routes_decode(case: Case) -> Outcome | None:
    body, expected = data(case.given["body"]), case.expected
    nulls = any(_is_null_error(expected[name]) for name in ("publish", "subscribe"))
    try:
        route = decode_route(body)
    except RemoteProtocolError:
        if nulls:
            return Outcome.DIFFERS  # Java finds out when it uses the route
        with refused():  # only what is no JSON, not even the servers' own, may be refused
            lenient_json.loads(body)
        return None
    check_route(route, expected)
    assert decode_route(encode_route(route)) == route
    assert decode_route(encode_route(route, standard=False)) == route
    if nulls:
        # Java fails over a null where a list or map belongs; here that one is empty.
        publish_queues("T", route)
        subscribe_queues("T", route)
        return Outcome.DIFFERS
    subscribed = {(queue.broker_name, queue.queue_id) for queue in subscribe_queues("T", route)}
    assert sorted(subscribed) == sorted(tuple(queue) for queue in expected["subscribe"]["queues_sorted"])
    endpoints = {f"{queue.broker_name} {queue.queue_id}": name for queue, name in static_topic_endpoints("T", route).items()}
    assert endpoints == (expected["static_topic_endpoints"] or {})
    return check_published(route, expected["publish"])


def check_published(route: TopicRouteData, expected: dict[str, Any]) -> Outcome | None:
    if is_error(expected):
        with refused():
            publish_queues("T", route)
        return None
    ours = [[queue.broker_name, queue.queue_id] for queue in publish_queues("T", route)]
    masters = {data.broker_name: data.broker_addrs.get(0) for data in reversed(route.broker_datas)}
    unusable = {name for name, address in masters.items() if address is not None and not _is_usable(address)}
    if not unusable or route.order_topic_conf or (route.order_topic_conf is None and route.topic_queue_mapping_by_broker):
        assert ours == expected["queues"]
        assert bool(ours) == expected["ok"]
        assert bool(route.order_topic_conf) == expected["orderTopic"]
        return None
    assert ours == [queue for queue in expected["queues"] if queue[0] not in unusable]
    return Outcome.DIFFERS


def _is_usable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


def _is_null_error(expected: Any) -> bool:
    return is_error(expected) and expected["error"] == "NullPointerException"


def check_route(route: TopicRouteData, expected: dict[str, Any]) -> None:
    ours = json.loads(msgspec.json.encode(route))
    assert ours["orderTopicConf"] == expected["orderTopicConf"]
    assert ours["queueDatas"] == expected["queueDatas"]
    assert ours["brokerDatas"] == expected["brokerDatas"]


def test_the_runner_fails_on_what_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "TALLIES", {})
    monkeypatch.setattr(vectors, "DIRECTORY", tmp_path)
    good = {"name": "a", "type": "schema", "in": {"header": "GetMinOffsetResponseHeader"}}
    schema = {"name": "offset", "type": "Long", "required": True, "default": None}
    good["out"] = {"request_code": None, "fields": [schema]}
    cases = [
        good,
        {"name": "b", "type": "schema", "in": {"header": "ElectMasterRequestHeader"}, "out": {}},
        {"name": "c", "type": "schema", "in": {"header": "UnknownHeader"}, "out": {}},
        {"name": "d", "type": "unknown_type", "in": {}, "out": {}},
    ]
    path = tmp_path / "headers.json"
    path.write_text(json.dumps({"kind": "headers", "cases": cases}))
    with pytest.raises(pytest.fail.Exception, match="unknown_type"):
        SUITE.run(path)
    tally = vectors.TALLIES["headers.json"]
    assert (tally.counts[Outcome.EQUAL], tally.counts[Outcome.LEFT_OUT], len(tally.failed)) == (1, 1, 2)
    (tmp_path / "new.json").write_text(json.dumps({"kind": "new", "cases": []}))
    with pytest.raises(AssertionError):
        test_every_file_of_vectors_is_of_a_known_kind()


def test_a_foreign_exception_is_not_a_refusal() -> None:
    with pytest.raises(KeyError), refused():
        raise KeyError("x")
    with pytest.raises(KeyError):
        official_or_refused(lambda: {}["x"])
    with refused():
        raise RocketMQError("x")
