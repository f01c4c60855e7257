"""Errors of a condition: when it is parsed, and when it is evaluated."""

from __future__ import annotations

__all__ = ["ConditionError", "EvaluationError"]


class ConditionError(ValueError):
    """Raised for a text that is no condition."""


class EvaluationError(Exception):
    """Raised for a comparison that has no result for the properties of a message, which is not delivered then."""
