"""The picture of a comparison: for each table a row of three charts, messages/s, client CPU a message, p99; medians, and the
lowest and the highest round as a line. Hatched bars are of clients that were acknowledged more than was stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from compare_peers import PEERS
from compare_report import sections_of, title_of
from figures import COLOURS, new_figure, save

__all__ = ["plot"]

CHARTS: Final = (("rate", "messages/s", 1.0), ("client_us", "client CPU, us a message", 1.0), ("p99_us", "p99, ms", 1000.0))
SIDES: Final = ("ours", *PEERS)


def plot(found: Mapping[str, Any], directory: Path, name: str = "compare") -> list[Path]:
    """Writes NAME.svg and NAME.png; nothing where no run has figures."""
    rows = []
    for title, keys, _ in sections_of(found):
        if usable := [key for key in keys if found["sides"][key]["rounds"]]:
            rows.append((title, usable))
    if not rows:
        return []
    bars = sum(len(keys) for _, keys in rows)
    figure = new_figure(13, 1.0 + 0.75 * len(rows) + 0.27 * bars)
    axes = figure.subplots(len(rows), len(CHARTS), squeeze=False, height_ratios=[len(keys) + 1.5 for _, keys in rows])
    for row, (title, keys) in enumerate(rows):
        for column, (figure_name, label, scale) in enumerate(CHARTS):
            axis = axes[row][column]
            _bars(axis, [found["sides"][key] for key in keys], figure_name, keys, scale)
            axis.set_title(f"{title}: {label}" if column == 0 else label, fontsize=9, loc="left")
            axis.set_yticks(range(len(keys)), [title_of(key) for key in keys] if column == 0 else [""] * len(keys))
            axis.invert_yaxis()
            axis.grid(visible=False, axis="y")
    return save(figure, directory, name)


def _bars(axis: Any, sides: list[Any], name: str, keys: list[str], scale: float) -> None:
    """Hatched: not all that was acknowledged was stored."""
    for place, (key, side) in enumerate(zip(keys, sides, strict=True)):
        if side[name] is None:
            continue
        middle, low, high = (side[name][each] / scale for each in ("median", "min", "max"))
        colour = COLOURS[SIDES.index(key.partition(":")[0]) % len(COLOURS)]
        lost = {"fill": False, "hatch": "///", "edgecolor": colour} if side["lost"] else {"color": colour}
        axis.barh(place, middle, height=0.7, **lost)
        axis.plot([low, high], [place, place], color="black", linewidth=1)
        axis.annotate(f" {middle:,.0f}" if middle >= 100 else f" {middle:.2g}", (high, place), va="center", fontsize=7)
    axis.margins(x=0.15)
    axis.locator_params(axis="x", nbins=5)
    axis.set_xlim(left=0)
