"""The library's own scenarios on a simulated cluster, and what checks them: ``python -m tests.simulation``."""

from __future__ import annotations

from .scenarios import SCENARIOS as SCENARIOS
from .scenarios import run_seed as run_seed

__all__ = ["SCENARIOS", "run_seed"]
