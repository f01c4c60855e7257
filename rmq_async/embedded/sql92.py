"""SQL92 conditions over the properties of messages. They give the same results as the classes that Java brokers use
(``SelectorParser``).

    condition = compile_condition("a > 5 AND region = 'eu'")
    condition.matches({"a": "7", "region": "eu"})

The lexer reads the tokens of a text, the parser builds a tree of nodes from them, and values are compared as Java compares
them. The length and the depth of a condition are limited.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

# Errors that are raised when a condition is parsed or evaluated.


class ConditionError(ValueError):
    """Raised if a text is not a condition, or if a condition is too long or too deep."""


class EvaluationError(Exception):
    """Raised if a comparison has no result for the properties of a message. The message is then not delivered."""


# Values of a condition, compared as Java compares them.
#
# A property is a string. A number in the condition is an ``int`` (Java's Integer), a ``Long`` or a ``float`` (Double). A string
# that is compared with a number is converted to the number's type; if that fails, the comparison has no result.


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
    """Parse a whole number as ``Long.valueOf`` and ``Integer.valueOf`` do.

    Raises:
        EvaluationError: If the text is not such a number.
    """
    if _WHOLE.fullmatch(text) and max(text) <= "\uffff" and (value := int(text)) in among:
        return value
    raise EvaluationError(f"{text[:80]!r} is not a whole number from {among.start} to {among.stop - 1}")


def read_floating(text: str) -> float:
    """Parse a number as ``Double.valueOf`` does.

    Raises:
        EvaluationError: If the text is not such a number.
    """
    found = _FLOATING.fullmatch(text.strip(_BLANKS))
    if found is None or (found["hex"] and not _HEX_DIGITS.match(found["hex"])):
        raise EvaluationError(f"{text[:80]!r} is not a number; give digits, with a decimal point or an exponent")
    if found["hex"]:
        try:
            value = float.fromhex(found["hex"])
        except OverflowError:
            value = math.inf
    else:
        value = float(found["word"] or found["decimal"])
    return -value if found["sign"] == "-" else value


def compare(left: Known, right: Known) -> int:
    """Return the order of two values: a negative number, 0, or a positive number. Return -1 for types without an order.

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
    """Return whether two values are equal. Return None if only the right value exists.

    Raises:
        EvaluationError: If ``compare`` raises it.
    """
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, right) == 0


def ordered(left: Value, right: Value) -> int | None:
    """Return the order of two values as ``compare`` does. Return None if one of the values is missing.

    Raises:
        EvaluationError: For a string that is not a number.
    """
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return _compare_floating(read_floating(left), read_floating(right))
    return compare(left, right)


def negate(value: Value) -> Value:
    """Return the negated number. Return None for a value that is not a number."""
    if isinstance(value, Long):
        return Long(-value)
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as(number: Known, text: str) -> int | float:
    """Parse ``text`` as a number of the same type as ``number``.

    Raises:
        EvaluationError: For any other text.
    """
    if isinstance(number, float):
        return read_floating(text)
    return read_whole(text, _LONG if isinstance(number, Long) else _INTEGER)


def _compare_floating(left: float, right: float) -> int:
    """Compare two numbers as ``Double.compareTo`` does: -0.0 is below 0.0, and NaN is above all numbers and equal to itself."""
    if left != right:
        return (
            math.isnan(left) - math.isnan(right) if math.isnan(left) or math.isnan(right) else (left > right) - (left < right)
        )
    return int(math.copysign(1.0, left) - math.copysign(1.0, right)) if left == 0 else 0


# The nodes of a condition's tree, which the parser builds. They have the checks of Java's classes, and they evaluate the
# condition.

MAX_DEPTH: Final = 64
"""Maximum number of nested levels of brackets and operators. Java's limit is the stack of a thread."""

_MOST_DIGITS: Final = 19
"""Number of digits of the largest number of 63 bits."""
Properties = Mapping[str, str]


class Shape(Enum):
    """The kinds of expressions that Java's checks distinguish."""

    PROPERTY = "a property"
    CONSTANT = "a string or a number"
    TRUTH = "TRUE, FALSE or NULL"
    CONDITION = "a condition"
    NEGATIVE = "a value with a minus sign"


class Node(NamedTuple):
    """A part of a condition.

    Attributes:
        value: The value, if the node is a constant.
        depth: Number of nodes on the longest path down from this node, including the node itself.
        size: Number of nodes in this part.
    """

    shape: Shape
    evaluate: Callable[[Properties], Value]
    value: Value = None
    depth: int = 1
    size: int = 1

    @property
    def described(self) -> str:
        """A description of the node: the text of a constant, in at most 40 characters, or the kind of any other node."""
        if self.shape is Shape.TRUTH:
            return "NULL" if self.value is None else str(self.value).upper()
        return repr(self.value)[:40] if self.shape is Shape.CONSTANT else self.shape.value

    @property
    def is_constant(self) -> bool:
        return self.shape in (Shape.CONSTANT, Shape.TRUTH)

    @property
    def is_condition(self) -> bool:
        return self.shape in (Shape.CONDITION, Shape.TRUTH)


def _made(shape: Shape, evaluate: Callable[[Properties], Value], parts: Sequence[Node]) -> Node:
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        raise ConditionError(f"the condition is deeper than {MAX_DEPTH} levels; nest fewer brackets and operators")
    return Node(shape, evaluate, None, depth, 1 + sum(part.size for part in parts))


def constant(value: Value) -> Node:
    """Make a node for a string, a number, TRUE, FALSE or NULL."""
    shape = Shape.TRUTH if value is None or isinstance(value, bool) else Shape.CONSTANT
    return Node(shape, lambda _: value, value)


def property_of(name: str) -> Node:
    return Node(Shape.PROPERTY, lambda properties: properties.get(name))


def as_condition(node: Node) -> Node:
    """Convert a node to a node that is true, false or unknown. A property is never true.

    Raises:
        ConditionError: For strings, numbers and values with a minus sign.
    """
    if node.is_condition:
        return node
    if node.shape is not Shape.PROPERTY:
        raise ConditionError(f"{node.described} is not a condition; compare it with a property")
    return _of_known(node, lambda value: False)


def _of_known(node: Node, holds: Callable[[Known], bool]) -> Node:
    """Make a condition node from the value of a node. The condition is unknown if the node has no value."""
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else holds(value)

    return _made(Shape.CONDITION, evaluate, [node])


def both(parts: Sequence[Node]) -> Node:
    """Make an AND node of ``parts``."""
    return _joined(parts, False)


def either(parts: Sequence[Node]) -> Node:
    """Make an OR node of ``parts``."""
    return _joined(parts, True)


def _joined(parts: Sequence[Node], decisive: bool) -> Node:
    """Return a node that evaluates ``parts`` in order.

    Args:
        decisive: The value that ends the evaluation.
    """
    inner = tuple(as_condition(part).evaluate for part in parts)

    def evaluate(properties: Properties) -> Value:
        unknown = False
        for each in inner:
            value = each(properties)
            if value is decisive:
                return decisive
            unknown = unknown or value is None
        return None if unknown else not decisive

    return _made(Shape.CONDITION, evaluate, parts)


def opposite(node: Node) -> Node:
    """Make a NOT node of ``node``."""
    return _of_known(as_condition(node), lambda value: not value)


def minus(node: Node) -> Node:
    inner = node.evaluate
    return _made(Shape.NEGATIVE, lambda properties: negate(inner(properties)), [node])


def equality(left: Node, right: Node) -> Node:
    for each in (left, right):
        if each.is_constant and each.value is None:
            raise ConditionError("NULL cannot be compared; use IS NULL or IS NOT NULL")
    if left.shape is Shape.TRUTH and right.shape is Shape.CONSTANT:
        raise ConditionError(
            f"{left.described} cannot be compared with {right.described}; compare it with a property, TRUE or FALSE"
        )
    return _equal(left, right)


def inequality(left: Node, right: Node) -> Node:
    return opposite(equality(left, right))


def is_null(node: Node) -> Node:
    return _equal(node, constant(None))


def _equal(left: Node, right: Node) -> Node:
    first, second = left.evaluate, right.evaluate
    return _made(Shape.CONDITION, lambda properties: equal(first(properties), second(properties)), [left, right])


_ORDERS: Final[Mapping[str, Callable[[int], bool]]] = {
    ">": lambda answer: answer > 0,
    ">=": lambda answer: answer >= 0,
    "<": lambda answer: answer < 0,
    "<=": lambda answer: answer <= 0,
}


def order(sign: str, left: Node, right: Node) -> Node:
    """Make a node for >, >=, < or <=.

    Raises:
        ConditionError: For a side that is a string or a condition.
    """
    for each in (left, right):
        if each.is_condition or isinstance(each.value, str):
            raise ConditionError(f"{each.described} has no order; use numbers or properties with {sign}")
    first, second, holds = left.evaluate, right.evaluate, _ORDERS[sign]

    def evaluate(properties: Properties) -> Value:
        left_value = first(properties)
        if left_value is None:
            return None
        answer = ordered(left_value, second(properties))
        return None if answer is None else holds(answer)

    return _made(Shape.CONDITION, evaluate, [left, right])


def between(node: Node, low: Node, high: Node) -> Node:
    made = both([order(">=", node, low), order("<=", node, high)])
    if isinstance(low.value, int | float) and isinstance(high.value, int | float) and compare(high.value, low.value) < 0:
        raise ConditionError(f"BETWEEN {low.value} AND {high.value}: the first limit is above the second; exchange them")
    return made


def not_between(node: Node, low: Node, high: Node) -> Node:
    return either([order("<", node, low), order(">", node, high)])


def member(node: Node, texts: frozenset[str], *, outside: bool) -> Node:
    """Make a node for IN or NOT IN."""
    if node.shape is not Shape.PROPERTY:
        raise ConditionError(f"IN must follow a property, not {node.described}")
    return _of_known(node, lambda value: (value in texts) is not outside)


_PARTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def contains(word: str, node: Node, part: str, *, outside: bool) -> Node:
    """Make a node for CONTAINS, STARTSWITH, ENDSWITH or one of their opposites. All of these are false for an empty ``part``
    and for values that are not strings.
    """
    inner, holds = node.evaluate, _PARTS[word]

    def evaluate(properties: Properties) -> Value:
        value = inner(properties) if part else None
        return isinstance(value, str) and holds(value, part) is not outside

    return _made(Shape.CONDITION, evaluate, [node])


def whole(text: str) -> Node:
    """Make a node for a whole number that Java's Long can hold."""
    digits = text.rstrip("lL")
    if len(digits) > _MOST_DIGITS or (value := int(digits)) >= 2**63:
        raise ConditionError(f"{text[:40]} is above {2**63 - 1}, the largest whole number; give a smaller one")
    return constant(value if value < 2**31 else Long(value))


def floating(text: str) -> Node:
    """Make a node for a number with a fraction or an exponent. Java accepts such numbers only above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ConditionError(
            f"{text[:40]} is out of range; with a fraction or an exponent, it must be above 0 and at most {sys.float_info.max}"
        )
    return constant(value)


# The tokens of a condition, called words here.
#
# If several words match, the longest word is taken, and a reserved word is preferred to a name.
#
# Words are read one by one when the parser requests them, so an unknown character is an error only if the parser reaches it.


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
        text: The text of the word. Reserved words are in capitals.
        at: Index of the first character.
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
"""Blanks and comments. A comment that begins with ``--`` must end with a line break. Without a line break, ``--`` is two minus
signs."""
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

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def next(self) -> Word:
        """Return the next word.

        Raises:
            ConditionError: For a character that cannot begin a word, and for an unterminated string.
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


# The parser of words into a tree, by the grammar of RocketMQ's brokers.
#
#     condition  = and { OR and }
#     and        = equality { AND equality }
#     equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
#     comparison = unary { (">" | ">=" | "<" | "<=") unary
#                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
#                        | [NOT] BETWEEN unary AND unary
#                        | [NOT] IN "(" string { "," string } ")" }
#     unary      = ("+" | "-" | NOT) unary | primary
#     primary    = string | number | TRUE | FALSE | NULL | name | "(" condition ")"
#
# NOT therefore binds tighter than the comparisons. Text after a complete condition is ignored, as it is by RocketMQ's brokers.

_TRUTHS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_COMPARING: Final = frozenset([">", ">=", "<", "<=", "NOT", "BETWEEN", "IN", *_PARTS])


def parse(text: str) -> Node:
    """Parse a condition. Return its tree.

    Raises:
        ConditionError: For a text that is not a condition, and for a condition deeper than MAX_DEPTH.
    """
    return as_condition(_Parser(text).condition())


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
        return self._chain("OR", self._and, either)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, both)

    def _chain(self, word: str, part: Callable[[], Node], join: Callable[[Sequence[Node]], Node]) -> Node:
        parts = [part()]
        while self._looks_at(word):
            self._take()
            if len(parts) == 1:
                parts[0] = as_condition(parts[0])
            parts.append(as_condition(part()))
        return parts[0] if len(parts) == 1 else join(parts)

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            if self._looks_at("="):
                self._take()
                left = equality(left, self._comparison())
            elif self._looks_at("<>"):
                self._take()
                left = inequality(left, self._comparison())
            elif self._looks_at("IS"):
                self._take()
                negative = self._looks_at("NOT")
                if negative:
                    self._take()
                self._expect("NULL")
                left = opposite(is_null(left)) if negative else is_null(left)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while self._peek().text in _COMPARING and self._peek().kind in (Kind.RESERVED, Kind.SIGN):
            left = self._compared(left, self._take().text)
        return left

    def _compared(self, left: Node, word: str) -> Node:
        """Make the comparison whose operator begins with ``word``, which has already been read."""
        if word in (">", ">=", "<", "<="):
            return order(word, left, self._unary())
        negative = word == "NOT"
        if negative:
            following = self._take()
            word = following.text
        if word in _PARTS:
            return contains(word, left, self._string(), outside=negative)
        if word == "BETWEEN":
            low = self._unary()
            self._expect("AND")
            return (not_between if negative else between)(left, low, self._unary())
        if word == "IN":
            return member(left, self._strings(), outside=negative)
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
        return minus(with_sign) if word.text == "-" else opposite(with_sign)

    def _primary(self) -> Node:
        word = self._take()
        if word.kind is Kind.STRING:
            return constant(_content(word))
        if word.kind is Kind.WHOLE:
            return whole(word.text)
        if word.kind is Kind.FLOATING:
            return floating(word.text)
        if word.kind is Kind.NAME:
            return property_of(word.text)
        if word.kind is Kind.RESERVED and word.text in _TRUTHS:
            return constant(_TRUTHS[word.text])
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


MAX_LENGTH: Final = 16 * 1024
"""Maximum number of characters of a condition."""


class Condition:
    """A parsed condition.

    Attributes:
        size: Number of nodes of the condition.
        evaluate: A function that evaluates the condition for properties. It returns True, False, or None for unknown. It raises
            EvaluationError for a comparison without a result.
    """

    __slots__ = ("evaluate", "size", "text")

    def __init__(self, text: str, node: Node) -> None:
        self.text = text
        self.size = node.size
        self.evaluate = node.evaluate

    def __repr__(self) -> str:
        return f"<Condition {self.text[:80]!r}>"

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the condition is true for these properties. A message is delivered only if its condition is true."""
        try:
            return self.evaluate(properties) is True
        except EvaluationError:
            return False


@lru_cache(maxsize=256)
def compile_condition(text: str) -> Condition:
    """Parse a condition.

    Raises:
        ConditionError: For a text that is not a condition, and for a condition that is longer than MAX_LENGTH or deeper than
            MAX_DEPTH.
    """
    if len(text) > MAX_LENGTH:
        raise ConditionError(f"the condition has {len(text)} characters, the limit is {MAX_LENGTH}; shorten it")
    return Condition(text, parse(text))
