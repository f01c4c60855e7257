"""What a comparison found: medians, ratios within a round, tables in plain text, one JSON document.

A round maps keys ("ours:depth-64", "java:sync-64") to runs. Ratios are ours / theirs, taken within a round, of rounds in which both
have figures; their median counts, their spread is the lowest and the highest round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from support.compare_peers import CONTENDERS, PEERS, SECTIONS
from support.compare_runs import Run
from support.runs import MODES

__all__ = ["RATIOS", "ratios_of", "sections_of", "spread", "summary", "table", "title_of"]

Rounds = Sequence[Mapping[str, Run]]
FIGURES: Final = (
    "rate",
    "visible_rate",
    "client_us",
    "broker_us",
    "proxy_us",
    "p50_us",
    "p99_us",
    "p999_us",
    "rss_mb",
    "other_cores",
)
RATIOS: Final = ("rate", "visible_rate", "client_us", "p99_us")
OURS: Final = "ours:"


def title_of(key: str) -> str:
    side, _, mode = key.partition(":")
    return f"ours: {MODES[mode].title}" if side == "ours" else PEERS[side].modes[mode].title


def summary(rounds: Rounds) -> dict[str, Any]:
    """``sides``: by key, figures and counts. ``ratios``: by our mode and the other's key, by figure."""
    keys = list(dict.fromkeys(key for each in rounds for key in each))
    ours = [key.removeprefix(OURS) for key in keys if key.startswith(OURS)]
    return {
        "sides": {key: _side([each[key] for each in rounds if key in each]) for key in keys},
        "ratios": {
            mode: {
                other: {name: found for name in RATIOS if (found := ratios_of(rounds, OURS + mode, other, name))}
                for other in CONTENDERS[mode]
                if other in keys
            }
            for mode in ours
        },
    }


def _side(runs: Sequence[Run]) -> dict[str, Any]:
    usable = [run for run in runs if run.usable]
    found: dict[str, Any] = {"rounds": len(usable)}
    for name in FIGURES:
        values = [value for run in usable if (value := getattr(run, name)) is not None]
        found[name] = spread(values) if values else None
    found["acknowledged"] = sum(run.total for run in usable)
    counted = [run.stored for run in usable if run.stored is not None]
    found["stored"] = sum(counted) if counted and len(counted) == len(usable) else None
    found["lost"] = sum(run.lost for run in usable)
    looked_at = [run.read_back for run in runs if run.read_back is not None]
    found["read_back"] = sum(looked_at) if looked_at else None
    failures: dict[str, int] = {}
    for run in runs:
        for text, number in run.failures.items():
            failures[text] = failures.get(text, 0) + number
    found["failures"] = failures
    found["errors"] = list(dict.fromkeys(run.error for run in runs if run.error))
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": median(values), "min": min(values), "max": max(values), "rounds": list(values)}


def ratios_of(rounds: Rounds, ours: str, other: str, name: str) -> dict[str, Any] | None:
    """Ours / the other's of each round that has both."""
    found = []
    for each in rounds:
        one, two = each.get(ours), each.get(other)
        if one is None or two is None or not (one.usable and two.usable):
            continue
        top, bottom = getattr(one, name), getattr(two, name)
        if top is not None and bottom:
            found.append(top / bottom)
    return spread(found) if found else None


# -- tables

_HEADS: Final = (
    "",
    "msg/s",
    "visible/s",
    "client us",
    "broker us",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "RSS MB",
    "acknowledged",
    "stored",
)


def sections_of(found: Mapping[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    """Title, keys of the sides, our modes; of what has been run."""
    sections = []
    for title, modes in SECTIONS.items():
        ours = [mode for mode in modes if OURS + mode in found["sides"]]
        others = dict.fromkeys(key for mode in ours for key in CONTENDERS[mode] if key in found["sides"])
        if ours:
            sections.append((title, [*(OURS + mode for mode in ours), *others], ours))
    return sections


def _cells(key: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    if not figures["rounds"]:
        return (title_of(key), *["-"] * (len(_HEADS) - 1))

    def number(name: str, form: str, scale: float = 1.0) -> str:
        value = figures[name]
        return "-" if value is None else format(value["median"] / scale, form)

    stored = "-" if figures["stored"] is None else f"{figures['stored']:,}"
    return (
        title_of(key),
        number("rate", ",.0f"),
        number("visible_rate", ",.0f"),
        number("client_us", ".1f"),
        number("broker_us", ".1f"),
        number("p50_us", ".2f", 1000),
        number("p99_us", ".2f", 1000),
        number("p999_us", ".1f", 1000),
        number("rss_mb", ".0f"),
        f"{figures['acknowledged']:,}",
        f"{stored} (!)" if figures["lost"] else stored,
    )


def _ratio_cells(mode: str, other: str, ratios: Mapping[str, Any]) -> tuple[str, ...]:
    def of(name: str) -> str:
        found = ratios.get(name)
        return "-" if found is None else f"x {found['median']:.2f} ({found['min']:.2f} - {found['max']:.2f})"

    return (f"{mode} / {title_of(other)}", *map(of, RATIOS))


_RATIO_HEADS: Final = ("ours / theirs: median (lowest - highest round)", "msg/s", "visible/s", "client us", "p99")


def notes(found: Mapping[str, Any], builds: Mapping[str, str]) -> list[str]:
    """What the tables cannot show: who is missing and why, who was acknowledged more than was stored, what failed."""
    said = [f"{PEERS[name].title} {PEERS[name].version} is left out: {reason}" for name, reason in builds.items() if reason]
    for key, figures in found["sides"].items():
        said += [f"{title_of(key)}: a run without figures: {error}" for error in figures["errors"]]
        if figures["lost"]:
            share = figures["lost"] / figures["acknowledged"]
            said.append(
                f"{title_of(key)}: {figures['acknowledged']:,} acknowledged, {figures['lost']:,} of them ({share:.0%}) not stored; "
                "its rate is of what was acknowledged, see visible/s"
            )
        said += [f"{title_of(key)}: failed: {number:,} x {text}" for text, number in figures["failures"].items()]
        if figures["read_back"] and figures["rounds"]:
            said.append(f"{title_of(key)}: {figures['read_back']:,} stored messages were read back, all as they were to be")
        if figures["proxy_us"]:
            said.append(f"{title_of(key)}: the proxy takes {figures['proxy_us']['median']:.0f} us a message besides")
        other = figures["other_cores"]
        if other and other["median"] > 0.3:
            said.append(f"{title_of(key)}: the rest of the machine took {other['median']:.2f} cores meanwhile")
    return said


def table(found: Mapping[str, Any], builds: Mapping[str, str], criteria: Sequence[str] = ()) -> str:
    lines: list[str] = []
    sections = sections_of(found)
    sides = [_HEADS, *(_cells(key, found["sides"][key]) for _, keys, _ in sections for key in keys)]
    widths = [max(len(line[column]) for line in sides) for column in range(len(_HEADS))]
    for title, keys, modes in sections:
        lines += ["", title, _line(_HEADS, widths)]
        lines += [_line(_cells(key, found["sides"][key]), widths) for key in keys]
        ratios = [_ratio_cells(mode, other, each) for mode in modes for other, each in found["ratios"][mode].items() if each]
        if ratios:
            own = [max(len(line[column]) for line in [_RATIO_HEADS, *ratios]) for column in range(len(_RATIO_HEADS))]
            lines += [_line(line, own) for line in [_RATIO_HEADS, *ratios]]
    for said in (notes(found, builds), criteria):
        if said:
            lines += ["", *said]
    return "\n".join(lines[1:])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))]
    return "  ".join(padded).rstrip()
