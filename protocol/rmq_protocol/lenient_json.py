"""Parses and writes the JSON of RocketMQ's servers, including its deviations from the standard.

Brokers and name servers serialise maps as fastjson does by default, in two forms that strict parsers refuse:

    {"brokerAddrs":{0:"10.0.0.1:10911"}}                               integer keys without quotes
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}     objects as keys

Control characters in strings are accepted, as in fastjson. Everything else is standard: comments, single quotes, bare words,
trailing commas and NaN are refused. The parser is safe for any input. It reads the input once, has a stack of its own
(``MAX_DEPTH`` deep) instead of recursion, and takes memory in proportion to the input. It reads cluster bodies at 12 MB/s
(msgspec: 200 MB/s), so callers try msgspec first and limit the size of the input.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import msgspec

from .command import plain_text
from .errors import LocalProtocolError, RemoteProtocolError

__all__ = ["MAX_DEPTH", "dumps", "loads"]

MAX_DEPTH: Final = 128
"""Maximum number of objects and arrays nested in each other. The deepest body of the protocol has 5."""

_space = re.compile(r"[ \t\n\r]*").match
_number = re.compile(r"(-?(?:0|[1-9][0-9]*))((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)").match
_integer = re.compile(r"-?[0-9]+").match
_surrogate = re.compile("[\ud800-\udfff]").search
_encode = msgspec.json.Encoder(enc_hook=plain_text).encode
_raw_decode = json.JSONDecoder(strict=False).raw_decode
_MAX_DIGITS: Final = 400
_LONG: Final = range(-0x8000000000000000, 0x8000000000000000)

Key = str | int | tuple[tuple[str, Any], ...]


def loads(data: bytes | str) -> Any:
    """Return the value of one JSON document.

    Integer keys without quotes become ints: ``{0: 1}`` has the key 0, ``{"0": 1}`` has the key "0".

    An object used as a key becomes a tuple of its (name, value) pairs sorted by name, so that ``dict(key)`` is the object. Its
    values must be strings, numbers, booleans or nulls, as those of a MessageQueue are. If a key occurs twice, the last value
    counts.

    Raises:
        RemoteProtocolError: If ``data`` is not such JSON or is beyond the limits: nested deeper than ``MAX_DEPTH``, an integer of
            more than 400 digits, an integer key outside 64 bits, a number too large for a float, or a lone surrogate. The error
            gives the position in characters, or in bytes if ``data`` is not UTF-8. No other error is raised.
    """
    if isinstance(data, str):
        text = data
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"JSON: not UTF-8 at byte {error.start}") from None
    try:
        return _parse(text)
    except IndexError:
        raise RemoteProtocolError(f"JSON: the text ends at {len(text)}, before its value is complete") from None


def dumps(value: Any) -> bytes:
    """Return the JSON that servers write for ``value``, with integer and object keys (as ``loads`` returns them) without quotes.

    NaN and infinity become null.

    Raises:
        LocalProtocolError: If JSON cannot express the value, or if it is nested deeper than ``MAX_DEPTH``.
    """
    parts: list[bytes] = []
    try:
        _write(value, parts, MAX_DEPTH)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise LocalProtocolError(
            f"the value cannot be written as JSON: {error}; give a value such as loads() returns"
        ) from None
    return b"".join(parts)


def _write(value: Any, parts: list[bytes], depth: int) -> None:
    if depth < 0:
        raise LocalProtocolError(f"the value cannot be written as JSON: it is nested deeper than {MAX_DEPTH}, the limit")
    if isinstance(value, dict):
        mark = b"{"
        for key, item in value.items():
            parts.append(mark)
            if isinstance(key, tuple):
                parts.append(_encode(dict(key)))
            else:
                parts.append(_encode(key))
            parts.append(b":")
            _write(item, parts, depth - 1)
            mark = b","
        parts.append(b"}" if mark == b"," else b"{}")
    elif isinstance(value, list | tuple):
        mark = b"["
        for item in value:
            parts.append(mark)
            _write(item, parts, depth - 1)
            mark = b","
        parts.append(b"]" if mark == b"," else b"[]")
    else:
        parts.append(_encode(value))


def _parse(text: str) -> Any:
    """Return the value of the text.

    Raises:
        IndexError: If the text ends before its value is complete.
    """
    open_values: list[dict[Key, Any] | list[Any]] = []
    keys: list[Key] = []  # the key of the value being read, for each open object
    at = _skip(text, 0)
    while True:
        # A value begins at `at`.
        value: Any
        char = text[at]
        if char in "{[":
            if len(open_values) == MAX_DEPTH:
                raise _error(text, at, f"nested deeper than {MAX_DEPTH}")
            value = {} if char == "{" else []
            at = _skip(text, at + 1)
            if text[at] != ("}" if char == "{" else "]"):
                open_values.append(value)
                if char == "{":
                    key, at = _key(text, at)
                    keys.append(key)
                continue
            at += 1
        else:
            value, at = _scalar(text, at)
        # A value ends before `at`. It goes into the innermost open object or array, which may end here too.
        while open_values:
            parent = open_values[-1]
            at = _skip(text, at)
            char = text[at]
            at = at + 1
            if isinstance(parent, dict):
                parent[keys.pop()] = value
                if char == ",":
                    key, at = _key(text, _skip(text, at))
                    keys.append(key)
                    break
                if char != "}":
                    raise _error(text, at - 1, "expected ',' or '}'")
            else:
                parent.append(value)
                if char == ",":
                    at = _skip(text, at)
                    break
                if char != "]":
                    raise _error(text, at - 1, "expected ',' or ']'")
            value = open_values.pop()
        else:
            at = _skip(text, at)
            if at != len(text):
                raise _error(text, at, "more text after the value")
            return value


def _key(text: str, at: int) -> tuple[Key, int]:
    """Return the key that begins at ``at``, and the position where its value begins."""
    key: Key
    char = text[at]
    if char == '"':
        key, at = _string(text, at)
    elif char == "{":
        key, at = _object_key(text, at)
    else:
        match = _integer(text, at)
        if match is None:
            raise _error(text, at, "expected a key")
        key = _int(text, at, match.group())
        if key not in _LONG:
            raise _error(text, at, "key outside 64 bits")
        at = match.end()
    return key, _colon(text, at)


def _object_key(text: str, at: int) -> tuple[Key, int]:
    members: dict[str, Any] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        if members:
            if text[at] != ",":
                raise _error(text, at, "expected ',' or '}'")
            at = _skip(text, at + 1)
        if text[at] != '"':
            raise _error(text, at, "expected a quoted name in an object used as a key")
        name, at = _string(text, at)
        at = _colon(text, at)
        if text[at] in "{[":
            raise _error(text, at, "expected a text, a number, true, false or null in an object used as a key")
        members[name], at = _scalar(text, at)
        at = _skip(text, at)
    return tuple(sorted(members.items(), key=_first)), at + 1


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _colon(text: str, at: int) -> int:
    at = _skip(text, at)
    if text[at] != ":":
        raise _error(text, at, "expected ':'")
    return _skip(text, at + 1)


def _scalar(text: str, at: int) -> tuple[Any, int]:
    char = text[at]
    if char == '"':
        return _string(text, at)
    match = _number(text, at)
    if match is not None:
        return _to_number(text, at, match), match.end()
    for word, value in (("true", True), ("false", False), ("null", None)):
        if text.startswith(word, at):
            return value, at + len(word)
    raise _error(text, at, "expected a value")


def _to_number(text: str, at: int, match: re.Match[str]) -> int | float:
    whole, rest = match.groups()
    if not rest:
        return _int(text, at, whole)
    value = float(match.group())
    if math.isinf(value):
        raise _error(text, at, "number too large")
    return value


def _int(text: str, at: int, digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _error(text, at, f"number of {len(digits)} digits, the limit is {_MAX_DIGITS},")
    return int(digits)


def _string(text: str, at: int) -> tuple[str, int]:
    """Return the string whose opening quote is ``text[at]``, and the position after it.

    Control characters are allowed, as in fastjson.
    """
    value: str
    try:
        value, end = _raw_decode(text, at)
    except ValueError:
        raise _error(text, at, "string with an invalid escape or without an end") from None
    if not value.isascii() and _surrogate(value):
        raise _error(text, at, "lone surrogate in a string")
    return value, end


def _skip(text: str, at: int) -> int:
    return _space(text, at).end()  # type: ignore[union-attr]  # it always matches


def _error(text: str, at: int, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"JSON: {reason} at {at}: {text[at : at + 20]!r}")
