"""Parsed conditions, and their evaluation on the properties of a message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from .errors import ConditionError, EvaluationError
from .nodes import Node
from .parser import parse
from .values import Value

__all__ = ["MAX_LENGTH", "Condition", "compile_condition"]

MAX_LENGTH: Final = 16 * 1024
"""Maximum number of characters of a condition."""


class Condition:
    """A parsed condition.

    Attributes:
        size: Number of its parts.
    """

    __slots__ = ("_evaluate", "size", "text")

    def __init__(self, text: str, node: Node) -> None:
        self.text = text
        self.size = node.size
        self._evaluate = node.evaluate

    def __repr__(self) -> str:
        return f"<Condition {self.text[:80]!r}>"

    def evaluate(self, properties: Mapping[str, str]) -> Value:
        """Return True, False, or None for unknown.

        Raises:
            EvaluationError: For a comparison without a result.
        """
        return self._evaluate(properties)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the condition is true for these properties; only such messages are delivered."""
        try:
            return self._evaluate(properties) is True
        except EvaluationError:
            return False


@lru_cache(maxsize=256)
def compile_condition(text: str) -> Condition:
    """Parse a condition.

    Raises:
        ConditionError: For a text that is no condition, is longer than MAX_LENGTH, or is deeper than MAX_DEPTH.
    """
    if len(text) > MAX_LENGTH:
        raise ConditionError(f"the condition has {len(text)} characters, the limit is {MAX_LENGTH}; shorten it")
    return Condition(text, parse(text))
