"""Draws a load over the seconds of each mode: messages per second above, latencies below."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from rmq_async.errors import ConfigError
from rmq_async.spark.pipelines.load_report import Figures, RunReport

__all__ = ["needs_matplotlib", "plot"]

LINES: Final = ("p50", "p99", "max")


def needs_matplotlib() -> None:
    """Raises ConfigError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ConfigError("a plot needs matplotlib, which is not installed; run pip install 'rmq-async[bench]'")


def plot(run: RunReport, path: str) -> None:
    """Writes a picture in the format that the path's ending names, such as PNG, SVG or PDF. Raises ConfigError for an unknown
    format and where matplotlib is not installed, OSError if the file cannot be written."""
    needs_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * max(len(run.modes), 2), 6.0), layout="constrained")
    kinds = FigureCanvasAgg(figure).get_supported_filetypes()
    ending = path.rpartition(".")[2].lower()
    if ending not in kinds:
        raise ConfigError(f"a plot cannot be written to {path!r}: its ending must be one of {', '.join(sorted(kinds))}")
    axes = figure.subplots(2, max(len(run.modes), 1), squeeze=False, sharex="col", sharey="row")
    for column, mode in enumerate(run.modes):
        _rates(axes[0][column], mode.by_second)
        _latencies(axes[1][column], mode.by_second)
        axes[0][column].set_title(f"{mode.mode}: {mode.rate:,.0f} messages/s")
        axes[1][column].set_xlabel("second")
        axes[1][column].xaxis.get_major_locator().set_params(integer=True)
    axes[0][0].set_ylabel("messages a second")
    axes[1][0].set_ylabel("latency, ms")
    figure.savefig(path, dpi=100)


def _rates(axis: Any, by_second: Mapping[int, Figures]) -> None:
    seconds = list(by_second)
    axis.step(seconds, [each.scheduled for each in by_second.values()], where="mid", color="0.8", linewidth=4, label="due")
    axis.step(seconds, [each.done for each in by_second.values()], where="mid", color="tab:blue", label="done")
    if any(each.failed for each in by_second.values()):
        failed = [sum(each.failed.values()) for each in by_second.values()]
        axis.step(seconds, failed, where="mid", color="tab:red", label="failed")
    axis.set_ylim(bottom=0)
    axis.legend(loc="best", fontsize="small")
    axis.grid(alpha=0.3)


def _latencies(axis: Any, by_second: Mapping[int, Figures]) -> None:
    timed = {second: each.latencies for second, each in by_second.items() if each.latencies}
    for name in LINES if timed else ():
        axis.plot(list(timed), [each[name] for each in timed.values()], marker=".", label=name)
    if timed:
        axis.set_yscale("log")
        axis.legend(loc="best", fontsize="small")
    axis.grid(alpha=0.3, which="both")
