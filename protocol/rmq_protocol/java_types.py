"""Java's types of numbers, for Structs whose fields must fit them, and the form of its texts."""

from __future__ import annotations

from codecs import utf_16_be_encode
from typing import Annotated

import msgspec

Int = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]
"""Type of Java's ``int`` and ``Integer``: 32 bits, signed."""

Long = Annotated[int, msgspec.Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)]
"""Type of Java's ``long`` and ``Long``: 64 bits, signed."""

Double = Annotated[float, msgspec.Meta(ge=-1.7976931348623157e308, le=1.7976931348623157e308)]
"""Type of Java's ``double``, finite: JSON has neither infinity nor NaN."""


def utf16(text: str) -> bytes:
    """Return the UTF-16 units of a text, by which Java orders texts and computes their hashes.

    ``str.encode`` would open the file of the codec at its first call, and fail in a process that may open no more files.
    """
    return utf_16_be_encode(text, "surrogatepass")[0]
