"""Hypothesis strategies for frames, commands, headers and JSON bodies, well-formed and damaged."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import LanguageCode, SerializeType
from rmq_protocol.headers import Header
from rmq_protocol.java_types import Int, Long
from rmq_protocol.route import BrokerData, QueueData, TopicQueueMapping, TopicRouteData

FUZZ = settings(max_examples=int(os.environ.get("RMQ_FUZZ_EXAMPLES", "40")), deadline=None, database=None, print_blob=True)
"""What every fuzzed decoder gets; a failure prints the blob that reproduces it."""

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
ints = st.integers(INT_MIN, INT_MAX)
longs = st.integers(LONG_MIN, LONG_MAX)
serialize_types = st.sampled_from(SerializeType)

commands = st.builds(
    RemotingCommand,
    code=st.integers(-0x8000, 0x7FFF),
    opaque=ints,
    flag=st.integers(0, 3),
    remark=st.none() | texts.filter(bool),  # the binary form has one way to write nothing
    ext_fields=st.none() | st.dictionaries(names, texts.filter(bool), min_size=1, max_size=6),
    body=st.binary(max_size=60),
    language=st.sampled_from(LanguageCode),
    version=st.integers(0, 0x7FFF),
)


def cuts(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """``data`` in pieces."""
    places = st.lists(st.integers(0, len(data)), max_size=12).map(sorted)
    return places.map(lambda at: [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)])


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of ``whole`` with one to four injuries: cut out, put in, repeated, overwritten by a number lengths fear."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 4)):
            case 0:
                del data[at : at + draw(st.integers(1, 8))]
            case 1:
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case 2:
                data[at:at] = data[at : at + draw(st.integers(1, 30))]
            case 3:
                number = draw(st.sampled_from([-1, 0, 1, 3, 0x7FFF, 0xFFFF, INT_MAX, INT_MIN, 16777212, 16777213]))
                data[at : at + 4] = (number & 0xFFFFFFFF).to_bytes(4)
            case _:
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
    return bytes(data)


def header_values(cls: type[Header]) -> st.SearchStrategy[Header]:
    """Instances of a header class with any values of its types."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for info in msgspec.structs.fields(cls):
        kind: Any = info.type
        values: st.SearchStrategy[Any]
        if info.name in cls.choices:
            values = st.sampled_from(sorted(cls.choices[info.name]))
        elif kind in (Int, Int | None):
            values = ints
        elif kind in (Long, Long | None):
            values = longs
        elif kind in (bool, bool | None):
            values = st.booleans()
        elif kind in (str, str | None):
            values = texts
        else:
            values = st.from_type(kind)
        fields[info.name] = values if info.required or info.default is not None else st.none() | values
    return st.builds(cls, **fields)


def ext_fields(cls: type[Header]) -> st.SearchStrategy[dict[str, str | None]]:
    """extFields that mostly name fields of ``cls``, with values that mostly are none of theirs."""
    numbers = st.sampled_from(
        ["0", "-1", "+7", "007", "2147483648", "9" * 30, "9" * 5000, "1e3", "0x10", " 1", "1_0", "٣", "true", ""]
    )
    keys = st.sampled_from([info.name for info in msgspec.structs.fields(cls)] or ["x"]) | texts
    return st.dictionaries(keys, st.none() | numbers | texts | longs.map(str), max_size=12)


addresses = st.builds(
    lambda host, port: f"{host}:{port}", st.sampled_from(["10.0.0.1", "b.example", "::1", "[::1]"]), st.integers(1, 65535)
)

queue_datas = st.builds(QueueData, names, st.integers(-3, 20), st.integers(-3, 20), st.integers(0, 15), st.integers(0, 3))
broker_datas = st.builds(
    BrokerData,
    names,
    st.dictionaries(st.integers(0, 3), addresses, max_size=3),
    st.none() | names,
    st.none() | names,
    st.booleans(),
)
mappings = st.builds(
    TopicQueueMapping,
    st.none() | names,
    st.sampled_from(["__global__", "scope"]),
    st.integers(-1, 8),
    names,
    st.integers(0, 3),
    st.booleans(),
    st.dictionaries(st.integers(0, 8), st.integers(0, 8), max_size=6),
)
routes = st.builds(
    TopicRouteData,
    st.lists(queue_datas, max_size=5).map(tuple),
    st.lists(broker_datas, max_size=5).map(tuple),
    st.none() | st.sampled_from(["", "broker-a:3", "broker-a:3;broker-b:2;", "b", "b:x", ";;", "b:70000", "b:-1"]),
    st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2),
    st.none() | st.dictionaries(names, mappings, max_size=4),
)

scalars = (
    st.none()
    | st.booleans()
    | longs
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)


def json_values(members: list[str]) -> st.SearchStrategy[Any]:
    """Any JSON value whose objects mostly have these members: wrong types in every place."""
    keys = st.sampled_from(members) | texts
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5), max_leaves=25
    )


object_keys = st.dictionaries(texts, scalars, max_size=4).map(lambda key: tuple(sorted(key.items(), key=lambda pair: pair[0])))
lenient_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | longs | object_keys, inner, max_size=5),
    max_leaves=25,
)
"""What ``lenient_json`` reads: integer and object keys too."""
