"""Converts custom headers between typed fields and the texts of extFields; the other modules of the package declare them.

A header is declared once, with the field names of the wire in the order of the Java class; everything else is derived from
the declaration on first use: how each field is written and read, and whether it is required. The rules
(``RemotingCommand.makeCustomHeaderToNet`` and ``decodeCommandCustomHeader``): a field that is null is left out, integers are
decimal, booleans are ``true`` and ``false``, fields that the class does not declare are ignored.

This is the general path: 1 us to write a header, 2 us to read one. Sends and their replies have templates of their own in
``send_codec``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from ..errors import LocalProtocolError, RemoteProtocolError, shown

__all__ = ["BoundaryType", "Header", "RpcRequestHeader", "TopicRequestHeader", "from_ext", "to_ext"]


class BoundaryType(StrEnum):
    """The message that a search by time selects: LOWER the first one stored at that time or later, UPPER the last one stored at
    that time or earlier. ``from_ext`` ignores case and reads any other text as LOWER (``BoundaryType.getType``)."""

    LOWER = "LOWER"
    UPPER = "UPPER"


class Header(msgspec.Struct, kw_only=True, gc=False):
    """A custom header. ``request_code``: the code that annotates the Java class, None without one. ``choices``: integer field ->
    the only values that ``from_ext`` accepts."""

    request_code: ClassVar[int | None] = None
    choices: ClassVar[Mapping[str, frozenset[int]]] = {}


class RpcRequestHeader(Header, kw_only=True):
    """The fields of requests that a broker may forward to another one.

    ``ns``: namespace, ``nsd``: True if the request's names are in the namespace, ``bname``: name of the broker, ``oway``: True for
    a one-way request.
    """

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None


class TopicRequestHeader(RpcRequestHeader, kw_only=True):
    """The fields of requests about a topic. ``lo``: True if topic and queue are logical ones (static topics)."""

    lo: bool | None = None


H = TypeVar("H", bound=Header)

_DIGITS = re.compile(r"[+-]?\d{1,40}").fullmatch


class _Field(NamedTuple):
    name: str
    kind: type
    low: int
    high: int
    required: bool


@cache
def _fields(cls: type[Header]) -> tuple[_Field, ...]:
    """Returns the fields in Java's order: first those of the class itself, then those of its base classes, nearest first."""
    infos = {info.name: info for info in msgspec.structs.fields(cls)}
    bases = [base for base in cls.__mro__ if issubclass(base, Header)]
    names = [name for base in bases for name in base.__annotations__ if name in infos]
    return tuple(_field(infos[name]) for name in dict.fromkeys(names))


def _field(info: msgspec.structs.FieldInfo) -> _Field:
    kind: Any = info.type
    low = high = 0
    for option in (kind, *get_args(kind)):
        if get_origin(option) is Annotated:
            kind, meta = get_args(option)
            low, high = meta.ge, meta.le
            break
        if isinstance(option, type) and option is not type(None):
            kind = option
    return _Field(info.name, kind, low, high, info.required)


def to_ext(header: Header) -> dict[str, str]:
    """Returns the extFields of ``header``; fields that are None are left out.

    Raises LocalProtocolError, with header and field, for an integer outside the range of the field's Java type (Integer, 32
    bits, or Long, 64 bits).
    """
    ext: dict[str, str] = {}
    for name, kind, low, high, _ in _fields(header.__class__):
        value = getattr(header, name)
        if value is None:
            continue
        if kind is str:
            ext[name] = value
        elif kind is bool:
            ext[name] = "true" if value else "false"
        elif kind is int:
            if not low <= value <= high:
                raise LocalProtocolError(f"{header.__class__.__name__}.{name}: {shown(value)} must be in {low}..{high}")
            ext[name] = str(int(value))
        else:
            ext[name] = str(value)
    return ext


def from_ext(cls: type[H], ext: Mapping[str, str | None] | None, *, lenient: bool = False) -> H:
    """Returns the header in extFields; unknown fields are ignored, and a field that is missing or None has its default. ``ext``:
    None if the peer sent no extFields.

    A boolean is True for the text ``true``, in any case, else False. Raises RemoteProtocolError, with header and field, for an
    integer that is not decimal, does not fit its Java type or is none of the field's choices, and for a missing required field.
    With ``lenient`` a missing required field raises nothing and is None, against its declared type.
    """
    values: dict[str, Any] = {}
    given = ext or {}
    for field in _fields(cls):
        text = given.get(field.name)
        if text is not None:
            values[field.name] = _value(cls, field, text)
        elif field.required:
            if not lenient:
                raise RemoteProtocolError(f"{cls.__name__}.{field.name} is missing")
            values[field.name] = None
    return cls(**values)


def _value(cls: type[Header], field: _Field, text: str) -> Any:
    if field.kind is str:
        return text
    if field.kind is bool:
        return text.lower() == "true"
    if field.kind is int:
        value = int(text) if _DIGITS(text) else None
        if value is None or not field.low <= value <= field.high:
            raise RemoteProtocolError(
                f"{cls.__name__}.{field.name}: {text[:60]!r} is not an integer in {field.low}..{field.high}"
            )
        if field.name in cls.choices and value not in cls.choices[field.name]:
            raise RemoteProtocolError(f"{cls.__name__}.{field.name}: {value} is none of {sorted(cls.choices[field.name])}")
        return value
    return BoundaryType.UPPER if text.upper() == "UPPER" else BoundaryType.LOWER
