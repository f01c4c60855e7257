"""The parser of words into a tree, by the grammar of RocketMQ's brokers.

    condition  = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
                       | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" string { "," string } ")" }
    unary      = ("+" | "-" | NOT) unary | primary
    primary    = string | number | TRUE | FALSE | NULL | name | "(" condition ")"

So NOT binds tighter than the comparisons. Text behind a complete condition is ignored, as by those brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from . import nodes
from .errors import ConditionError
from .lexer import Kind, Lexer, Word
from .nodes import MAX_DEPTH, Node

__all__ = ["parse"]

_TRUTHS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_PARTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_COMPARING: Final = frozenset([">", ">=", "<", "<=", "NOT", "BETWEEN", "IN", *_PARTS])


def parse(text: str) -> Node:
    """Return the tree of a condition.

    Raises:
        ConditionError: For a text that is no condition, or is deeper than MAX_DEPTH.
    """
    return nodes.as_condition(_Parser(text).condition())


class _Parser:
    """The parser of one condition.

    Attributes:
        _next: The word that was read ahead, if any.
    """

    def __init__(self, text: str) -> None:
        self._lexer = Lexer(text)
        self._next: Word | None = None
        self._depth = 0

    def condition(self) -> Node:
        return self._chain("OR", self._and, nodes.either)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, nodes.both)

    def _chain(self, word: str, part: Callable[[], Node], join: Callable[[Sequence[Node]], Node]) -> Node:
        parts = [part()]
        while self._looks_at(word):
            self._take()
            if len(parts) == 1:
                parts[0] = nodes.as_condition(parts[0])
            parts.append(nodes.as_condition(part()))
        return parts[0] if len(parts) == 1 else join(parts)

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            if self._looks_at("="):
                self._take()
                left = nodes.equality(left, self._comparison())
            elif self._looks_at("<>"):
                self._take()
                left = nodes.inequality(left, self._comparison())
            elif self._looks_at("IS"):
                self._take()
                negative = self._looks_at("NOT")
                if negative:
                    self._take()
                self._expect("NULL")
                left = nodes.opposite(nodes.is_null(left)) if negative else nodes.is_null(left)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while self._peek().text in _COMPARING and self._peek().kind in (Kind.RESERVED, Kind.SIGN):
            left = self._compared(left, self._take().text)
        return left

    def _compared(self, left: Node, word: str) -> Node:
        """Make the comparison that begins with ``word``, which is taken."""
        if word in (">", ">=", "<", "<="):
            return nodes.order(word, left, self._unary())
        negative = word == "NOT"
        if negative:
            following = self._take()
            word = following.text
        if word in _PARTS:
            return nodes.contains(word, left, self._string(), outside=negative)
        if word == "BETWEEN":
            low = self._unary()
            self._expect("AND")
            return (nodes.not_between if negative else nodes.between)(left, low, self._unary())
        if word == "IN":
            return nodes.member(left, self._strings(), outside=negative)
        raise ConditionError(f"BETWEEN, IN, {', '.join(_PARTS)} may follow NOT here, not {following}")

    def _strings(self) -> frozenset[str]:
        self._expect("(")
        texts = [self._string()]
        while self._looks_at(","):
            self._take()
            texts.append(self._string())
        self._expect(")")
        return frozenset(texts)

    def _unary(self) -> Node:
        word = self._peek()
        if word.kind not in (Kind.SIGN, Kind.RESERVED) or word.text not in ("+", "-", "NOT"):
            return self._primary()
        self._take()
        with_sign = self._inside(self._unary)
        if word.text == "+":
            return with_sign
        return nodes.minus(with_sign) if word.text == "-" else nodes.opposite(with_sign)

    def _primary(self) -> Node:
        word = self._take()
        if word.kind is Kind.STRING:
            return nodes.constant(_content(word))
        if word.kind is Kind.WHOLE:
            return nodes.whole(word.text)
        if word.kind is Kind.FLOATING:
            return nodes.floating(word.text)
        if word.kind is Kind.NAME:
            return nodes.property_of(word.text)
        if word.kind is Kind.RESERVED and word.text in _TRUTHS:
            return nodes.constant(_TRUTHS[word.text])
        if word.kind is Kind.SIGN and word.text == "(":
            inner = self._inside(self.condition)
            self._expect(")")
            return inner
        raise ConditionError(f"a value is expected, not {word}")

    def _inside(self, part: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConditionError(f"the condition is deeper than {MAX_DEPTH} levels; nest fewer brackets and operators")
        node = part()
        self._depth -= 1
        return node

    def _string(self) -> str:
        word = self._take()
        if word.kind is not Kind.STRING:
            raise ConditionError(f"a string is expected, not {word}")
        return _content(word)

    def _expect(self, text: str) -> None:
        word = self._take()
        if word.text != text or word.kind not in (Kind.RESERVED, Kind.SIGN):
            raise ConditionError(f"{text} is expected, not {word}")

    def _looks_at(self, text: str) -> bool:
        word = self._peek()
        return word.text == text and word.kind in (Kind.RESERVED, Kind.SIGN)

    def _peek(self) -> Word:
        if self._next is None:
            self._next = self._lexer.next()
        return self._next

    def _take(self) -> Word:
        word = self._peek()
        self._next = None
        return word


def _content(word: Word) -> str:
    return word.text[1:-1].replace("''", "'")
