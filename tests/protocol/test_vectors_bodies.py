"""Golden vectors of JSON bodies; see vectors.py."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmq_protocol import bodies, lenient_json
from rmq_protocol.cluster import ClusterInfo
from rmq_protocol.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    decode_heartbeat,
    encode_heartbeat,
    heartbeat_fingerprint,
)
from rmq_protocol.java_types import string_hash
from rmq_protocol.json_body import decode_body, encode_body
from rmq_protocol.message import MessageQueue
from rmq_protocol.topics import TopicConfig
from vectors import BODY_KINDS, Case, Suite, data

SUITE = Suite(*BODY_KINDS)


@pytest.mark.parametrize("path", SUITE.files(), ids=lambda path: path.name)
def test_golden_vectors(path: Path) -> None:
    SUITE.run(path)


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
    hashes = {string_hash(text) for text in texts}
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
    """A body as the vectors write it: maps keyed by queues as lists, the bits of an ack by number."""
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
