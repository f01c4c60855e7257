"""SQL92 conditions over the properties of messages, with the results of the classes that Java brokers use
(``SelectorParser``).

    condition = compile_condition("a > 5 AND region = 'eu'")
    condition.matches({"a": "7", "region": "eu"})

Text becomes words (``lexer``), words a tree (``parser``, ``nodes``) that is evaluated (``values``): pure functions, of bounded
length and depth.
"""

from __future__ import annotations

from .condition import MAX_LENGTH, Condition, compile_condition
from .errors import ConditionError, EvaluationError
from .nodes import MAX_DEPTH

__all__ = ["MAX_DEPTH", "MAX_LENGTH", "Condition", "ConditionError", "EvaluationError", "compile_condition"]
