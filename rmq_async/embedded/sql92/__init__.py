"""SQL92 conditions over the properties of messages, with the results of the classes that Java brokers use
(``SelectorParser``).

    condition = compile_condition("a > 5 AND region = 'eu'")
    condition.matches({"a": "7", "region": "eu"})

``lexer`` reads the words of a text, ``parser`` makes a tree of ``nodes``, and ``values`` compares values. Length and depth of a
condition are limited.
"""

from __future__ import annotations

from .condition import MAX_LENGTH, Condition, compile_condition
from .errors import ConditionError, EvaluationError
from .nodes import MAX_DEPTH

__all__ = ["MAX_DEPTH", "MAX_LENGTH", "Condition", "ConditionError", "EvaluationError", "compile_condition"]
