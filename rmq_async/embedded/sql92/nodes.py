"""The nodes of a condition's tree, which the parser builds: their checks, which are those of Java's classes, and their
evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from .errors import ConditionError
from .values import Long, Value, compare, equal, negate, ordered

__all__ = [
    "MAX_DEPTH", "Node", "Properties", "Shape", "as_condition", "between", "both", "constant", "contains", "either", "equality",
    "floating", "inequality", "is_null", "member", "minus", "not_between", "opposite", "order", "property_of", "whole",
]  # fmt: skip

MAX_DEPTH: Final = 64
"""Maximum number of levels of brackets and operators inside each other. Java's limit is the stack of a thread."""

_MOST_DIGITS: Final = 19
"""Digits of the largest number of 63 bits."""
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
        value: Of a constant.
        depth: Number of nodes on the longest path down from this one, this one included.
        size: Number of all nodes in this part.
    """

    shape: Shape
    evaluate: Callable[[Properties], Value]
    value: Value = None
    depth: int = 1
    size: int = 1

    @property
    def described(self) -> str:
        """Text of a constant, at most 40 characters; the kind of another node."""
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
    """Make the node of a string, a number, or TRUE, FALSE or NULL."""
    shape = Shape.TRUTH if value is None or isinstance(value, bool) else Shape.CONSTANT
    return Node(shape, lambda _: value, value)


def property_of(name: str) -> Node:
    return Node(Shape.PROPERTY, lambda properties: properties.get(name))


def as_condition(node: Node) -> Node:
    """Return a node that is true, false or unknown; a property is never true.

    Raises:
        ConditionError: For strings, numbers and values with a minus sign.
    """
    if node.is_condition:
        return node
    if node.shape is not Shape.PROPERTY:
        raise ConditionError(f"{node.described} is no condition; compare it with a property")
    inner = node.evaluate
    return _made(Shape.CONDITION, lambda properties: None if inner(properties) is None else False, [node])


def both(parts: Sequence[Node]) -> Node:
    """Make the node of AND."""
    return _joined(parts, False)


def either(parts: Sequence[Node]) -> Node:
    """Make the node of OR."""
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
    """Make the node of NOT."""
    checked = as_condition(node)
    inner = checked.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return _made(Shape.CONDITION, evaluate, [checked])


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
    """Make the node of >, >=, < or <=.

    Raises:
        ConditionError: For a side that is a string or a condition.
    """
    for each in (left, right):
        if each.is_condition or isinstance(each.value, str):
            raise ConditionError(f"{each.described} has no order; give numbers or properties to {sign}")
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
    """Make the node of IN, or of NOT IN."""
    if node.shape is not Shape.PROPERTY:
        raise ConditionError(f"IN must follow a property, not {node.described}")
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else (value in texts) is not outside

    return _made(Shape.CONDITION, evaluate, [node])


_PARTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def contains(word: str, node: Node, part: str, *, outside: bool) -> Node:
    """Make the node of CONTAINS, STARTSWITH, ENDSWITH or their opposites, which are false for an empty ``part`` and for values
    that are not strings.
    """
    inner, holds = node.evaluate, _PARTS[word]

    def evaluate(properties: Properties) -> Value:
        value = inner(properties) if part else None
        return isinstance(value, str) and holds(value, part) is not outside

    return _made(Shape.CONDITION, evaluate, [node])


def whole(text: str) -> Node:
    """Make the node of a whole number that Java's Long can hold."""
    digits = text.rstrip("lL")
    if len(digits) > _MOST_DIGITS or (value := int(digits)) >= 2**63:
        raise ConditionError(f"{text[:40]} is above {2**63 - 1}, the largest whole number; give a smaller one")
    return constant(value if value < 2**31 else Long(value))


def floating(text: str) -> Node:
    """Make the node of a number with a fraction or an exponent, which Java takes only above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ConditionError(
            f"{text[:40]} is out of range; with a fraction or an exponent, it must be above 0 and at most {sys.float_info.max}"
        )
    return constant(value)
