"""Java's number types, for Structs whose fields must fit them, and the UTF-16 form of Java's strings."""

from __future__ import annotations

from codecs import utf_16_be_encode
from typing import Annotated

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
