"""Converts JSON bodies between bytes and Structs, and accepts the deviations from JSON that servers write.

First, msgspec decodes the body directly into the Struct (the fast path). If that fails, the body is parsed again with fastjson's
rules (the slow path), which allow integer keys without quotes, numbers and booleans written as strings (as long numbers are in
the browser-compatible form), and nulls for members that may be missing. Both paths ignore members that the Struct does not have.

On the wire, queues are objects. They are items of lists and even keys of maps, which is not JSON. A Struct declares them as
MessageQueue (``dict[MessageQueue, X]``, ``tuple[MessageQueue, ...]``), and such a Struct is always read on the slow path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from .command import plain_text
from .errors import LocalProtocolError, RemoteProtocolError
from .java_types import Int
from .lenient_json import dumps, loads
from .message import MessageQueue

__all__ = ["MAX_JSON_BODY_SIZE", "decode_body", "encode_body"]

MAX_JSON_BODY_SIZE: Final = 4 * 1024 * 1024
"""Maximum size of a JSON body in bytes. The route of 1,000 brokers has 0.3 MB. The slow path takes 0.1 s for each MB."""

T = TypeVar("T")
Change = Callable[[Any], Any]

_readers: dict[type[Any], tuple[msgspec.json.Decoder[Any], Change | None]] = {}


class _Queue(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: Int


def decode_body(cls: type[T], body: bytes) -> T:
    """Return the ``cls`` in a JSON body.

    Raises:
        RemoteProtocolError: If the body is not a ``cls`` or exceeds MAX_JSON_BODY_SIZE. The error has the name of ``cls`` and the
            reason.
    """
    if len(body) > MAX_JSON_BODY_SIZE:
        raise RemoteProtocolError(f"{cls.__name__}: body of {len(body)} bytes is above the limit of {MAX_JSON_BODY_SIZE}")
    decoder, find_queues = _readers.get(cls) or _reader(cls)
    if find_queues is None:
        try:
            value: T = decoder.decode(body)
            return value
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    try:
        plain = _without_nulls(loads(body))
        return msgspec.convert(plain if find_queues is None else find_queues(plain), cls, strict=False)
    except (msgspec.MsgspecError, ValueError, RemoteProtocolError) as error:
        raise RemoteProtocolError(f"{cls.__name__}: {str(error)[:200]}") from None


def encode_body(value: msgspec.Struct, *, standard: bool = True) -> bytes:
    """Return the JSON of ``value``.

    None is left out, whether it is a member, an item of a list or a value of a map. NaN and infinity become null.

    Args:
        value: The Struct to encode.
        standard: False writes integer keys without quotes, as servers do. It is ignored for a value that has maps with queues as
            keys: such a value has no standard form and is always written as servers do.

    Raises:
        LocalProtocolError: If JSON cannot express the value, for example because a string has no UTF-8 form.
    """
    cls = value.__class__
    _, find_queues = _readers.get(cls) or _reader(cls)
    try:
        plain = _without_nulls(msgspec.to_builtins(value, enc_hook=plain_text)) if find_queues is None else _plain(value)
        if not standard or (find_queues is not None and _has_queue_keys(cls)):
            return dumps(plain)
        return msgspec.json.encode(plain, enc_hook=plain_text)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise LocalProtocolError(
            f"{cls.__name__} cannot be encoded: {error}; give values of its fields' types, without lone surrogates"
        ) from None


def _reader(cls: type[Any]) -> tuple[msgspec.json.Decoder[Any], Change | None]:
    found = _readers[cls] = msgspec.json.Decoder(cls), _finder(inspect.type_info(cls))
    return found


def _without_nulls(value: Any) -> Any:
    """Return the value without nulls. The recursion is bounded because ``lenient_json`` and the Structs limit the depth."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _plain(value: Any) -> Any:
    """Return ``value`` with its queues in the form that ``lenient_json.dumps`` accepts."""
    if isinstance(value, msgspec.Struct):
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        items = ((name, getattr(value, field)) for name, field in pairs)
        return {name: _plain(item) for name, item in items if item is not None}
    if isinstance(value, MessageQueue):
        return dict(_key(value))
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value if item is not None]
    return msgspec.to_builtins(value) if isinstance(value, bytes | Enum) else value


def _key(key: Any) -> Any:
    if isinstance(key, MessageQueue):
        return (("brokerName", key.broker_name), ("queueId", key.queue_id), ("topic", key.topic))
    return key


# The types tell where the queues are. Each function below returns a function that replaces queues by MessageQueues, or None if the
# type has no queues in it.


@cache
def _has_queue_keys(cls: type[Any]) -> bool:
    return _keyed_by_queues(inspect.type_info(cls))


def _finder(kind: inspect.Type) -> Change | None:
    match kind:
        case inspect.NamedTupleType(cls=cls) if cls is MessageQueue:
            return _queue
        case inspect.StructType(fields=fields):
            members = {field.encode_name: find for field in fields if (find := _finder(field.type)) is not None}
            return _in_members(members) if members else None
        case inspect.DictType(key_type=key_type, value_type=value_type):
            return _in_table(_finder(key_type), _finder(value_type))
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return _in_list(_finder(kind.item_type))
        case inspect.UnionType(types=types):
            return next((find for find in map(_finder, types) if find is not None), None)
    return None


def _keyed_by_queues(kind: inspect.Type) -> bool:
    match kind:
        case inspect.StructType(fields=fields):
            return any(_keyed_by_queues(field.type) for field in fields)
        case inspect.DictType(key_type=key_type, value_type=value_type):
            return isinstance(key_type, inspect.NamedTupleType) or _keyed_by_queues(value_type)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return _keyed_by_queues(kind.item_type)
        case inspect.UnionType(types=types):
            return any(_keyed_by_queues(each) for each in types)
    return False


def _queue(value: Any) -> MessageQueue:
    queue = msgspec.convert(dict(value) if isinstance(value, tuple) else value, _Queue, strict=False)
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


def _in_members(members: dict[str, Change]) -> Change:
    def change(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: members[name](item) if name in members else item for name, item in value.items()}

    return change


def _in_table(find_in_key: Change | None, find_in_value: Change | None) -> Change | None:
    if find_in_key is None and find_in_value is None:
        return None

    def change(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            find_in_key(key) if find_in_key else key: find_in_value(item) if find_in_value else item
            for key, item in value.items()
        }

    return change


def _in_list(find: Change | None) -> Change | None:
    if find is None:
        return None
    return lambda value: [find(item) for item in value] if isinstance(value, list) else value
