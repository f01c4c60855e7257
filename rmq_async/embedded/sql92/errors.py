"""Errors of a condition: when it is parsed, and when it is evaluated."""

from __future__ import annotations

__all__ = ["ConditionError", "EvaluationError"]


class ConditionError(ValueError):
    """The text is no condition."""


class EvaluationError(Exception):
    """A comparison has no result for the properties of a message, which is then not delivered."""
