"""Admission of calls: order, credits, and the choice of a queue."""

from __future__ import annotations

from .admission import Admission, Admitted
from .credits import Credits, Epoch, finished
from .ordering import Lines

__all__ = ["Admission", "Admitted", "Credits", "Epoch", "Lines", "finished"]
