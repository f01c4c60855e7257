"""Golden vectors of frames, headers, routes and bodies, and the list of what waits; see vectors.py."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wire_grammar import ends_inside_a_frame, is_unicode, is_well_formed

import vectors
from rmq_protocol import bodies, lenient_json
from rmq_protocol import headers as headers_module
from rmq_protocol.cluster import ClusterInfo
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
from rmq_protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    decode_heartbeat,
    encode_heartbeat,
    heartbeat_fingerprint,
    java_hash,
)
from rmq_protocol.java_types import Int, Long
from rmq_protocol.json_body import decode_body, encode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.route import (
    TopicRouteData,
    decode_route,
    encode_route,
    publish_queues,
    static_topic_endpoints,
    subscribe_queues,
)
from rmq_protocol.topics import TopicConfig
from vectors import (
    CLIENT_KINDS,
    CONTENT_KINDS,
    EXTRA_KINDS,
    LEFT_OUT,
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
KINDS = WIRE_KINDS + EXTRA_KINDS + CONTENT_KINDS + CLIENT_KINDS

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
    assert cls.request_code == case.expected["request_code"]
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


# Bodies.


@SUITE.handles("bodies", "heartbeat")
def bodies_heartbeat(case: Case) -> None:
    given, text = case.given, case.expected["text"]
    heartbeat = HeartbeatData(
        client_id=given["clientID"],
        producer_data_set=tuple(ProducerData(group) for group in given["producerGroups"]),
        consumer_data_set=tuple(msgspec.convert(consumer, ConsumerData) for consumer in given["consumers"]),
        heartbeat_fingerprint=given["heartbeatFingerprint"],
        without_sub=given["withoutSub"],
    )
    assert _with_sets_sorted(json.loads(encode_heartbeat(heartbeat))) == _with_sets_sorted(json.loads(text))
    decoded = decode_heartbeat(text.encode())
    assert _with_sets_sorted(json.loads(encode_heartbeat(decoded))) == _with_sets_sorted(json.loads(text))
    _check_fingerprint(decoded, case.expected["computed_fingerprint"])


def _check_fingerprint(heartbeat: HeartbeatData, official: int) -> None:
    """Java's is the hash of the text with the sets in the order of its hash tables, ours that of one fixed order."""
    plain = json.loads(encode_heartbeat(heartbeat)) | {"clientID": "", "heartbeatFingerprint": 0, "withoutSub": False}
    for consumer in plain["consumerDataSet"]:
        for subscription in consumer["subscriptionDataSet"]:
            subscription["subVersion"] = 0
    if _number_of_orders(plain) > 10_000:
        return
    texts = (json.dumps(order, ensure_ascii=False, sort_keys=True, separators=(",", ":")) for order in _orders(plain))
    hashes = {java_hash(text) for text in texts}
    assert official in hashes
    assert heartbeat_fingerprint(heartbeat) in hashes


def _number_of_orders(value: Any) -> int:
    if isinstance(value, dict):
        return math.prod(_number_of_orders(item) for item in value.values())
    if isinstance(value, list):
        return math.factorial(len(value)) * math.prod(_number_of_orders(item) for item in value)
    return 1


def _orders(value: Any) -> Iterator[Any]:
    """``value`` with the lists in it in every order."""
    if isinstance(value, dict):
        for items in itertools.product(*(_orders(item) for item in value.values())):
            yield dict(zip(value, items, strict=True))
    elif isinstance(value, list):
        for items in itertools.permutations(value):
            yield from (list(order) for order in itertools.product(*(_orders(item) for item in items)))
    else:
        yield value


def _with_sets_sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_sets_sorted(item) for name, item in value.items()}
    if isinstance(value, list):
        return sorted((_with_sets_sorted(item) for item in value), key=repr)
    return value


def _body_class(name: str) -> type[msgspec.Struct]:
    others: dict[str, type[msgspec.Struct]] = {"ClusterInfo": ClusterInfo, "TopicConfig": TopicConfig}
    return others.get(name) or getattr(bodies, name)


@SUITE.handles("bodies", "encode")
def bodies_encode(case: Case) -> None:
    official = data(case.expected["utf8"])
    decoded = _check_body(_body_class(case.given["class"]), official)
    _check_contains(_meaning(decoded), case.given["value"])


@SUITE.handles("bodies", "encode_special")
def bodies_encode_special(case: Case) -> None:
    _check_body(bodies.ConsumerRunningInfo, case.expected["text"].encode())


def _check_body(cls: type[msgspec.Struct], official: bytes) -> msgspec.Struct:
    """Read as the official library wrote it, and written again as that and as standard as can be."""
    decoded = decode_body(cls, official)
    assert decode_body(cls, encode_body(decoded)) == decoded
    rewritten = lenient_json.loads(encode_body(decoded, standard=False))
    assert _with_sets_sorted(rewritten) == _with_sets_sorted(lenient_json.loads(official))
    return decoded


def _meaning(value: Any) -> Any:
    """A body as the vectors tell it: maps keyed by queues as lists, the bits of an ack by number."""
    if isinstance(value, bodies.BatchAck):
        plain = {name: getattr(value, name) for name in value.__struct_fields__ if name != "bit_set"}
        plain["bits"] = list(bodies.unpack_bits(value.bit_set))
        return {_camel(name): item for name, item in plain.items()}
    if isinstance(value, msgspec.Struct):
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {name: _meaning(getattr(value, field)) for name, field in pairs}
    if isinstance(value, MessageQueue):
        return {"topic": value.topic, "brokerName": value.broker_name, "queueId": value.queue_id}
    if isinstance(value, dict):
        if any(isinstance(key, MessageQueue) for key in value):
            return [{"queue": _meaning(queue), **_offset(_meaning(item))} for queue, item in value.items()]
        return {str(key): _meaning(item) for key, item in value.items()}
    return [_meaning(item) for item in value] if isinstance(value, tuple) else value


def _offset(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"offset": value}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _check_contains(actual: Any, wanted: Any) -> None:
    """``wanted`` names only some members, and may have remarks."""
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            if name != "note":
                _check_contains(actual.get(name), value)
    elif wanted == []:
        assert not actual  # an empty list, or an empty map keyed by queues
    else:
        assert _with_sets_sorted(actual) == _with_sets_sorted(wanted)


def test_the_runner_fails_on_what_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "TALLIES", {})
    monkeypatch.setattr(vectors, "DIRECTORY", tmp_path)
    good = {"name": "a", "type": "schema", "in": {"header": "GetMinOffsetResponseHeader"}}
    schema = {"name": "offset", "type": "Long", "required": True, "default": None}
    good["out"] = {"request_code": None, "fields": [schema]}
    cases = [
        good,
        {"name": "b", "type": "schema", "in": {"header": "ElectMasterRequestHeader"}, "out": {}},
        {"name": "c", "type": "schema", "in": {"header": "NobodyKnowsHeader"}, "out": {}},
        {"name": "d", "type": "nobody_knows", "in": {}, "out": {}},
    ]
    path = tmp_path / "headers.json"
    path.write_text(json.dumps({"kind": "headers", "cases": cases}))
    with pytest.raises(pytest.fail.Exception, match="nobody_knows"):
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
