"""Java's number types, for Structs whose fields must fit them, and the UTF-16 form and the hash of Java's strings."""

from __future__ import annotations

from codecs import utf_16_be_encode
from operator import mul
from typing import Annotated, Final

import msgspec

Int = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]
"""The range of Java's ``int`` and ``Integer``: 32 bits, signed."""

Long = Annotated[int, msgspec.Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)]
"""The range of Java's ``long`` and ``Long``: 64 bits, signed."""

Double = Annotated[float, msgspec.Meta(ge=-1.7976931348623157e308, le=1.7976931348623157e308)]
"""The range of Java's ``double``, without infinity and NaN, which JSON cannot express."""


def utf16(text: str) -> bytes:
    """Return the UTF-16 units of a string. Java sorts strings by these units and computes their hashes from them.

    The first call of ``str.encode`` would import the module of the codec, which fails in a process that may open no more files.
    """
    return utf_16_be_encode(text, "surrogatepass")[0]


_SHORT: Final = 128
_POWERS: Final = tuple([pow(31, exponent, 1 << 32) for exponent in reversed(range(_SHORT))])
"""The factors of a short string's characters in its hash; the last factor belongs to the last character."""


def string_hash(text: str) -> int:
    """Return Java's ``String.hashCode``, a signed 32-bit number."""
    value = 0
    if text.isascii():
        units = text.encode()
        if len(units) <= _SHORT:  # a tenth of the time of the loop
            value = sum(map(mul, units, _POWERS[_SHORT - len(units) :])) & 0xFFFFFFFF
        else:
            for unit in units:
                value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = utf16(text)
        for at in range(0, len(units), 2):
            value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
