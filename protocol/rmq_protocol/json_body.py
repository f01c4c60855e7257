"""JSON bodies between bytes and Structs, as forgiving as the servers' peers have to be.

The fast way first: msgspec straight into the Struct. What it refuses is read again the way fastjson reads: unquoted integer
keys, numbers and booleans given as text (long numbers are written so in the browser-compatible form), nulls where a
member could have been missing. Members the Struct does not know are ignored either way.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from .errors import LocalProtocolError, RemoteProtocolError
from .lenient_json import dumps, loads

__all__ = ["MAX_JSON_BODY_SIZE", "decode_body", "encode_body"]

MAX_JSON_BODY_SIZE: Final = 4 * 1024 * 1024
"""Bytes of the largest JSON body read; the route of 1,000 brokers has 0.3 MB. The slow way needs 0.1 s for each MB."""

T = TypeVar("T")

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode_body(cls: type[T], body: bytes) -> T:
    """Raises RemoteProtocolError, naming the class and the place, for a body that is not a ``cls``."""
    if len(body) > MAX_JSON_BODY_SIZE:
        raise RemoteProtocolError(f"{cls.__name__}: body of {len(body)} bytes is above the limit of {MAX_JSON_BODY_SIZE}")
    try:
        value: T = _decoder(cls).decode(body)
        return value
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return msgspec.convert(_without_nulls(loads(body)), cls, strict=False)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RemoteProtocolError(f"{cls.__name__}: {str(error)[:200]}") from None


def encode_body(value: msgspec.Struct, *, standard: bool = True) -> bytes:
    """JSON of ``value``; members that are None are left out. ``standard=False``: integer keys go without quotes.

    Raises LocalProtocolError for text that is not Unicode.
    """
    plain = _without_nulls(msgspec.to_builtins(value))
    if not standard:
        return dumps(plain)
    try:
        return msgspec.json.encode(plain)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise LocalProtocolError(f"{value.__class__.__name__} cannot be encoded: {error}") from None


def _decoder(cls: type[Any]) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = msgspec.json.Decoder(cls)
    return decoder


def _without_nulls(value: Any) -> Any:
    """As deep as ``lenient_json`` and our own Structs go."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value if item is not None]
    return value
