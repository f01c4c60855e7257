"""Values of a condition, compared as Java compares them.

A property is a string; a number in the condition is an ``int`` (Java's Integer), a ``Long`` or a ``float`` (Double). A string
that is compared with a number is converted to the number's type; if that fails, the comparison has no result.
"""

from __future__ import annotations

import math
import re
from typing import Final

from .errors import EvaluationError

__all__ = ["Long", "Value", "compare", "equal", "negate", "ordered", "read_floating", "read_whole"]


class Long(int):
    """A whole number of more than 31 bits, which Java keeps in a Long."""

    __slots__ = ()


Known = str | bool | int | float
Value = Known | None

_INTEGER: Final = range(-(2**31), 2**31)
_LONG: Final = range(-(2**63), 2**63)
_WHOLE: Final = re.compile(r"[+-]?\d{1,4000}")
_BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that ``String.trim`` removes."""
_FLOATING: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<word>NaN|Infinity)|(?P<hex>0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?[0-9]+)[fFdD]?"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)",
)
_HEX_DIGITS: Final = re.compile(r"0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP]")


def read_whole(text: str, among: range) -> int:
    """Return the number that a text is, as ``Long.valueOf`` and ``Integer.valueOf`` read it.

    Raises:
        EvaluationError: For others.
    """
    if _WHOLE.fullmatch(text) and max(text) <= "\uffff" and (value := int(text)) in among:
        return value
    raise EvaluationError(f"{text[:80]!r} is no whole number from {among.start} to {among.stop - 1}")


def read_floating(text: str) -> float:
    """Return the number that a text is, as ``Double.valueOf`` reads it.

    Raises:
        EvaluationError: For others.
    """
    found = _FLOATING.fullmatch(text.strip(_BLANKS))
    if found is None or (found["hex"] and not _HEX_DIGITS.match(found["hex"])):
        raise EvaluationError(f"{text[:80]!r} is no number; give digits, with a decimal point or an exponent")
    if found["hex"]:
        try:
            value = float.fromhex(found["hex"])
        except OverflowError:
            value = math.inf
    else:
        value = float(found["word"] or found["decimal"])
    return -value if found["sign"] == "-" else value


def compare(left: Known, right: Known) -> int:
    """Return the order of two values: a number below 0, 0, or above 0; -1 for types without an order.

    Raises:
        EvaluationError: For a string that cannot be compared with the other value.
    """
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationError(
                f"{str(left).upper()} cannot be compared with the string {right[:80]!r}; exchange the two sides"
            )
        return left - right if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return (left.lower() == "true") - right if isinstance(left, str) else -1
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = _as(right, left)
    elif isinstance(right, str):
        right = _as(left, right)
    if isinstance(left, float) or isinstance(right, float):
        return _compare_floating(float(left), float(right))
    return (left > right) - (left < right)


def equal(left: Value, right: Value) -> bool | None:
    """Return whether two values are equal; None if only the right one exists.

    Raises:
        EvaluationError: As ``compare`` does.
    """
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, right) == 0


def ordered(left: Value, right: Value) -> int | None:
    """Return the order of two values as ``compare`` does, None if one is missing.

    Raises:
        EvaluationError: For a string that is no number.
    """
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return _compare_floating(read_floating(left), read_floating(right))
    return compare(left, right)


def negate(value: Value) -> Value:
    """Return the negated number; None for a value that is not a number."""
    if isinstance(value, Long):
        return Long(-value)
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as(number: Known, text: str) -> int | float:
    """Return the number that ``text`` is, read as the type of ``number``.

    Raises:
        EvaluationError: For any other text.
    """
    if isinstance(number, float):
        return read_floating(text)
    return read_whole(text, _LONG if isinstance(number, Long) else _INTEGER)


def _compare_floating(left: float, right: float) -> int:
    """Compare as ``Double.compareTo``: -0.0 is below 0.0, NaN is above all numbers and equal to itself."""
    if left != right:
        return (
            math.isnan(left) - math.isnan(right) if math.isnan(left) or math.isnan(right) else (left > right) - (left < right)
        )
    return int(math.copysign(1.0, left) - math.copysign(1.0, right)) if left == 0 else 0
