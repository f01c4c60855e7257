"""From single runs to medians, ratios per round, a table and a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from support.runs import MODES, RunResult

__all__ = ["LIMITS", "Limit", "over_limits", "summary", "table"]

Limit = tuple[float, float]
LIMITS: Final[Mapping[str, Limit]] = {
    # client CPU at most so many times the bare loop's, rate at least so many times its rate; medians of the rounds
    "depth-64": (1.25, 0.8),
    "batch-1": (1.3, 0.75),
    "batch-8": (1.6, 0.75),
    "adaptive-64": (1.3, 0.7),
    "adaptive-1024": (1.3, 0.8),
    "oneway": (1.3, 0.0),
}
_MEDIANS: Final = (
    "rate",
    "client_us",
    "client_user_us",
    "broker_us",
    "p50_us",
    "p99_us",
    "messages_per_write",
    "rss_mb",
    "client_cores",
    "broker_cores",
    "other_cores",
)


def summary(rounds: Sequence[Mapping[str, Mapping[str, RunResult]]], sides: tuple[str, str]) -> dict[str, Any]:
    """Per mode: each side's medians and counts, and the ratios first side / second side of each round.

    ``rounds``: one mapping per round, mode -> side -> run.
    """
    modes = list(dict.fromkeys(mode for each in rounds for mode in each))
    return {mode: _mode([each[mode] for each in rounds if mode in each], sides) for mode in modes}


def _mode(rounds: Sequence[Mapping[str, RunResult]], sides: tuple[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = {"rounds": len(rounds)}
    for side in sides:
        runs = [each[side] for each in rounds]
        result[side] = {name: _median(runs, name) for name in _MEDIANS}
        result[side]["acknowledged"] = sum(run.total for run in runs)
        counted = [run.stored for run in runs if run.stored is not None]
        result[side]["stored"] = sum(counted) if len(counted) == len(runs) else None
        failures: dict[str, int] = {}
        for run in runs:
            for text, number in run.failures.items():
                failures[text] = failures.get(text, 0) + number
        result[side]["failures"] = failures
    first, second = sides
    for name, field in (("client_cpu_ratio", "client_us"), ("rate_ratio", "rate")):
        ratios = [_ratio(getattr(each[first], field), getattr(each[second], field)) for each in rounds]
        result[name] = {"median": median(ratios), "min": min(ratios), "max": max(ratios), "rounds": ratios}
    return result


def _median(runs: Sequence[RunResult], name: str) -> float | None:
    values = [_other_cores(run) if name == "other_cores" else getattr(run, name) for run in runs]
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _other_cores(run: RunResult) -> float | None:
    """What the rest of the machine took during the window; None where the broker's share is not known."""
    return None if run.broker_cores is None else max(0.0, run.busy_cores - run.client_cores - run.broker_cores)


def _ratio(one: float, other: float) -> float:
    return one / other if other else float("nan")


def over_limits(modes: Mapping[str, Any]) -> list[str]:
    """One sentence per median beyond the limits the project holds itself to."""
    found = []
    for mode, (cpu, rate) in LIMITS.items():
        if mode not in modes:
            continue
        cpu_ratio, rate_ratio = (modes[mode][name]["median"] for name in ("client_cpu_ratio", "rate_ratio"))
        if not cpu_ratio <= cpu:
            found.append(f"{mode}: client CPU is {cpu_ratio:.2f} x the bare loop's, the limit is {cpu:g}")
        if not rate_ratio >= rate:
            found.append(f"{mode}: the rate is {rate_ratio:.2f} x the bare loop's, the limit is {rate:g}")
    return found


_HEADS: Final[tuple[str, ...]] = (
    "",
    "msg/s",
    "client us",
    "broker us",
    "p50 ms",
    "p99 ms",
    "msg/write",
    "RSS MB",
    "sent",
    "stored",
    "other cores",
)


def table(modes: Mapping[str, Any], sides: tuple[str, str]) -> str:
    """Plain text: per mode a line for each side and one for their ratio."""
    lines: list[tuple[str, ...]] = [_HEADS]
    for mode, figures in modes.items():
        lines.append((MODES[mode].title,) + ("",) * (len(_HEADS) - 1))
        lines += [_side(side, figures[side]) for side in sides]
        cpu, rate = figures["client_cpu_ratio"], figures["rate_ratio"]
        ratio = (f"  {sides[0]} / {sides[1]}", f"x {rate['median']:.2f}", f"x {cpu['median']:.2f}")
        lines.append((*ratio, *[""] * (len(_HEADS) - 3)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADS))]
    text = [_line(line, widths) for line in lines]
    for mode, figures in modes.items():
        cpu, rate = figures["client_cpu_ratio"], figures["rate_ratio"]
        text.append(f"{mode}: client CPU {_spread(cpu)}, rate {_spread(rate)}")
    return "\n".join(text)


def _side(side: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    def number(name: str, form: str, scale: int = 1) -> str:
        value = figures[name]
        return "-" if value is None else format(value / scale if scale > 1 else value, form)

    return (
        f"  {side}",
        number("rate", ",.0f"),
        number("client_us", ".2f"),
        number("broker_us", ".1f"),
        number("p50_us", ".2f", 1000),
        number("p99_us", ".2f", 1000),
        number("messages_per_write", ".1f"),
        number("rss_mb", ".0f"),
        number("acknowledged", ",d"),
        number("stored", ",d"),
        number("other_cores", ".2f"),
    )


def _line(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
    return "  ".join(cells).rstrip()


def _spread(ratio: Mapping[str, Any]) -> str:
    return f"x {ratio['median']:.2f} (rounds {' '.join(f'{each:.2f}' for each in ratio['rounds'])})"
