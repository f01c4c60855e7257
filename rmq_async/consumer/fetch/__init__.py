"""Pulls the messages of a group consumer: the limits of its buffer, the pulls of each queue, and offsets that a broker does not
hold."""

from __future__ import annotations

from .budget import Budget
from .illegal_offset import Cause, Move, find_move
from .pulling import Pulling, PullLimits
from .read_marks import ReadMarks

__all__ = ["Budget", "Cause", "Move", "PullLimits", "Pulling", "ReadMarks", "find_move"]
