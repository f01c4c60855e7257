"""Java's types of numbers, for Structs whose fields must fit them."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["Double", "Int", "Long"]

Int = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]
"""Type of Java's ``int`` and ``Integer``: 32 bits, signed."""

Long = Annotated[int, msgspec.Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)]
"""Type of Java's ``long`` and ``Long``: 64 bits, signed."""

Double = Annotated[float, msgspec.Meta(ge=-1.7976931348623157e308, le=1.7976931348623157e308)]
"""Type of Java's ``double``, finite: JSON has neither infinity nor NaN."""
