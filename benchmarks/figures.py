"""Pictures of what benchmarks measured, one look for all: each is written as SVG and as PNG, without dates or random names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

__all__ = ["COLOURS", "available", "new_figure", "save"]

COLOURS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#7f7f7f")
"""The first is ours."""
_SETTINGS: Final[dict[str, Any]] = {
    "svg.hashsalt": "rmq-async",
    "svg.fonttype": "none",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def available() -> bool:
    """Whether matplotlib is installed."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib Figure; inches. Without pyplot, so that no window and no global state comes of it."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(_SETTINGS)
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, directory: Path, name: str) -> list[Path]:
    """Writes NAME.svg and NAME.png; returns both paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{name}.svg", directory / f"{name}.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=110)
    return paths
