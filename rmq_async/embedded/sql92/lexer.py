"""The words of a condition.

If several words are possible, the longest one is taken, and a reserved word rather than a name.

Words are read one by one, as the parser asks for them: an unknown character is an error only where the parser looks at it.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from .errors import ConditionError

__all__ = ["Kind", "Lexer", "Word"]


class Kind(Enum):
    WHOLE = "a whole number"
    FLOATING = "a number with a fraction"
    STRING = "a string"
    NAME = "a name"
    RESERVED = "a reserved word"
    SIGN = "a sign"
    END = "the end"


class Word(NamedTuple):
    """One word of a condition.

    Attributes:
        text: In capitals for reserved words, else as written.
        at: Place of its first character.
    """

    kind: Kind
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind is Kind.END else f"{self.text[:40]!r} at character {self.at + 1}"


_RESERVED: Final = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)
_EXPONENT: Final = r"[eE][+-]?[0-9]+"
_BLANK: Final = re.compile(r"[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*(?:[^*]|\*(?!/))*\*/")
"""Blanks and comments. A comment from ``--`` to the end of its line needs a line break; without one, ``--`` are two signs."""
_WORD: Final = re.compile(
    rf"(?P<FLOATING>[0-9]+\.[0-9]*(?:{_EXPONENT})?|\.[0-9]+(?:{_EXPONENT})?|[0-9]+{_EXPONENT})"
    r"|(?P<WHOLE>0|[1-9][0-9]*[lL]?)"
    r"|(?P<STRING>'(?:[^']|'')*')"
    r"|(?P<NAME>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<SIGN><>|>=|<=|[=<>(),+-])"
)


class Lexer:
    """Reads the words of a condition, one after the other.

    Attributes:
        at: Index of the character after the last word.
    """

    __slots__ = ("_text", "at")

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def next(self) -> Word:
        """Return the next word.

        Raises:
            ConditionError: For a character that begins no word, and for a string without an end.
        """
        text, at = self._text, self.at
        while blank := _BLANK.match(text, at):
            at = blank.end()
        if at == len(text):
            self.at = at
            return Word(Kind.END, "", at)
        found = _WORD.match(text, at)
        if found is None and text[at] == "'":
            raise ConditionError(f"the string at character {at + 1} has no end; close it with a single quote")
        if found is None or found.lastgroup is None:
            allowed = "a name, a number, a string or an operator"
            raise ConditionError(f"{text[at]!r} at character {at + 1} begins no word; {allowed} must follow")
        self.at = found.end()
        kind, word = Kind[found.lastgroup], found.group()
        if kind is Kind.NAME and (capitals := word.upper()) in _RESERVED:
            return Word(Kind.RESERVED, capitals, at)
        return Word(kind, word, at)
