"""Hypothesis strategies for JSON bodies of every class, from their declarations."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect
from strategies_wire import ints, names, texts

from rmq_protocol import bodies
from rmq_protocol.cluster import ClusterInfo
from rmq_protocol.heartbeat import HeartbeatData
from rmq_protocol.message import MessageQueue
from rmq_protocol.topics import TopicConfig

BODIES: list[type[msgspec.Struct]] = [
    *(value for value in vars(bodies).values() if isinstance(value, type) and value.__module__ == bodies.__name__),
    ClusterInfo,
    HeartbeatData,
    TopicConfig,
]

queues = st.builds(MessageQueue, texts, names, ints)


def body_values(cls: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    return _values(inspect.type_info(cls))


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _values(field.type) for field in fields})
        case inspect.NamedTupleType():
            return queues
        case inspect.DictType(key_type=key_type, value_type=value_type):
            return st.dictionaries(_values(key_type), _values(value_type), max_size=3)
        case inspect.VarTupleType(item_type=item_type):
            return st.lists(_values(item_type), max_size=3).map(tuple)
        case inspect.UnionType(types=types):
            return st.one_of(*map(_values, types))
        case inspect.IntType(ge=low, le=high):
            return st.integers(low, high)
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType():
            return st.binary(max_size=12)
        case inspect.NoneType():
            return st.none()
        case inspect.StrType():
            return texts
    raise TypeError(f"no strategy for {kind}")


def members(cls: type[msgspec.Struct]) -> list[str]:
    """Names of the members of ``cls`` and of what is in it."""
    found: list[str] = []

    def walk(kind: inspect.Type) -> None:
        match kind:
            case inspect.StructType(fields=fields):
                for field in fields:
                    found.append(field.encode_name)
                    walk(field.type)
            case inspect.DictType(value_type=value_type):
                walk(value_type)
            case inspect.VarTupleType(item_type=item_type):
                walk(item_type)
            case inspect.UnionType(types=types):
                for each in types:
                    walk(each)
            case inspect.NamedTupleType():
                found.extend(("topic", "brokerName", "queueId"))

    walk(inspect.type_info(cls))
    return found
