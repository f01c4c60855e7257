"""Pulls the messages of a group consumer: the limits of its buffer, the pulls of each queue, and offsets that a broker does not
hold."""

from __future__ import annotations

from .budget import Budget
from .illegal_offset import REPLACED, Asked, Cause, Move, find_move
from .looks import FirstLook, Looks, Seen, is_refused
from .pulling import Pulling, PullLimits
from .read_marks import REACH, UNWATCHED, ReadMarks

__all__ = [
    "REACH", "REPLACED", "UNWATCHED", "Asked", "Budget", "Cause", "FirstLook", "Looks", "Move", "PullLimits", "Pulling",
    "ReadMarks", "Seen", "find_move", "is_refused",
]  # fmt: skip
