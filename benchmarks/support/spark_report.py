"""What ``spark.py`` has measured, as text: ratios within a round, what is beyond the project's limits, a table."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

__all__ = ["beyond_limits", "ratios", "table"]

LIMITS: Final = {
    "read, of the lower of generator and plain pull": 1.0,
    "narrowed read, of the read of all columns": 1.5,
    "write, of the plain process": 0.7,
}
"""At least; the generator counts half."""
EMPTY_TRIGGER_MS: Final = 300
WORKER_GROWTH_MIB: Final = 150


def ratios(figures: dict[str, list[float]]) -> dict[str, list[float]]:
    """By the names of ``LIMITS``, one for each round."""
    found: dict[str, list[float]] = {}
    if "read" in figures:
        lower = [min(0.5 * one, other) for one, other in zip(figures["generator"], figures["plain pull"], strict=True)]
        pairs = {
            "read, of the lower of generator and plain pull": (figures["read"], lower),
            "read, of the generator": (figures["read"], figures["generator"]),
            "read, of the plain pull": (figures["read"], figures["plain pull"]),
            "narrowed read, of the read of all columns": (figures["narrowed read"], figures["read"]),
        }
        found |= {name: [a / b for a, b in zip(*pair, strict=True)] for name, pair in pairs.items()}
    if "write" in figures:
        found["write, of the plain process"] = [a / b for a, b in zip(figures["write"], figures["plain send"], strict=True)]
    return found


def beyond_limits(result: dict[str, Any]) -> list[str]:
    found = [
        f"{name}: x {median(result['ratios'][name]):.2f}, at least {limit:g} is wanted"
        for name, limit in LIMITS.items()
        if name in result["ratios"] and median(result["ratios"][name]) < limit
    ]
    facts = result["facts"]
    idle = facts.get("empty trigger, ms")
    if idle is not None and idle > EMPTY_TRIGGER_MS:
        found.append(f"an empty trigger takes {idle:.0f} ms, at most {EMPTY_TRIGGER_MS} are wanted")
    if facts["worker growth, MiB"] > WORKER_GROWTH_MIB:
        found.append(f"a worker grew by {facts['worker growth, MiB']:.0f} MiB, at most {WORKER_GROWTH_MIB} are wanted")
    return found


def table(result: dict[str, Any]) -> str:
    lines = [f"{name:48} {median(rates):>12,.0f} /s   {spread(rates, ',.0f')}" for name, rates in result["rates"].items()]
    lines += [f"{name:48} {median(values):>14.2f}   {spread(values, '.2f')}" for name, values in result["ratios"].items()]
    lines += [f"{name:48} {value!s:>12}" for name, value in result["facts"].items()]
    return "\n".join(lines)


def spread(values: list[float], form: str) -> str:
    return "" if len(values) == 1 else f"rounds {' '.join(format(value, form) for value in values)}"
