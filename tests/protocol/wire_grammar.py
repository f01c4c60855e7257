"""Whether frames keep to the grammar of the protocol: a second reader beside the package's, as simple as it can be.

The vector tests ask it which input may be refused, and which must be read as Java reads it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

from rmq_protocol.constants import MAX_FRAME_SIZE, SerializeType


def is_well_formed(raw: bytes) -> bool:
    """One whole frame."""
    length, word = struct.unpack(">iI", raw[:8])
    header = raw[8 : 8 + (word & 0xFFFFFF)]
    if length != len(raw) - 4 or len(header) != word & 0xFFFFFF:
        return False
    return _is_json_header(header) if word >> 24 == SerializeType.JSON else _is_binary_header(header)


def _is_json_header(header: bytes) -> bool:
    """An object with members of the right types."""
    try:
        fields = json.loads(header, parse_constant=lambda _: 1 / 0)
        integers = [fields["code"], *(fields.get(name, 0) for name in ("opaque", "flag", "version"))]
        texts = [fields.get("language"), fields.get("remark")]
        ext = fields.get("extFields") or {}
        values = [*texts, *ext, *ext.values()]
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError, RecursionError):
        return False
    return (
        all(type(value) is int and -(2**31) <= value < 2**31 for value in integers)
        and all(value is None or isinstance(value, str) for value in texts)
        and all(value is None or isinstance(value, str | bool | int) for value in values)
        and is_unicode(value for value in values if isinstance(value, str))
    )


def _is_binary_header(header: bytes) -> bool:
    """Every length inside what it measures, every text UTF-8."""
    try:
        remark, at = _sized(header, 13, ">i")
        ext, _ = _sized(header, at, ">i")
        remark.decode()
        at = 0
        while at < len(ext):
            key, at = _sized(ext, at, ">h")
            value, at = _sized(ext, at, ">i")
            (key + value).decode()
    except (struct.error, ValueError):
        return False
    return True


def _sized(raw: bytes, at: int, form: str) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(form, raw, at)
    at += struct.calcsize(form)
    if not 0 <= size <= len(raw) - at:
        raise ValueError(size)
    return raw[at : at + size], at + size


def ends_inside_a_frame(stream: bytes) -> bool:
    """The last frame of the stream is not complete, and its length can be one."""
    at = 0
    while len(stream) - at >= 4:
        (length,) = struct.unpack_from(">i", stream, at)
        if not 4 <= length <= MAX_FRAME_SIZE - 4:
            return False
        at += 4 + length
    return at != len(stream)


def is_unicode(texts: Iterable[str | None]) -> bool:
    return not any("\ud800" <= char <= "\udfff" for text in texts if text for char in text)
