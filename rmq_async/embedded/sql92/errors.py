"""Errors of a condition: when it is parsed, and when it is evaluated."""

from __future__ import annotations

__all__ = ["ConditionError", "EvaluationError"]


class ConditionError(ValueError):
    """The error of a text that is no condition, or of one that is too long or too deep."""


class EvaluationError(Exception):
    """The error of a comparison that has no result for the properties of a message, which is not delivered then."""
