"""Evaluates the result files of a load: messages by outcome and percentiles of latencies for each mode and each second, and the
rate of each mode.

Result files hold counts by bucket: Spark adds them up and finds the buckets of the percentiles, and the driver collects the sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from rmq_async.errors import ConfigError
from rmq_async.spark.pipelines.latencies import highest_in
from rmq_async.spark.pipelines.load_tasks import ACKNOWLEDGED, ATTEMPTED, COLUMNS, HANDED_OVER, SCHEDULED, STORED

__all__ = ["PERCENTILES", "WHOLE", "Figures", "ModeReport", "RunReport", "read_results", "report"]

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
WHOLE: Final = -1
"""Stands for all seconds of a mode."""


@dataclass(frozen=True)
class Figures:
    """Counts of messages of one second or of a mode. ``done``: messages that were acknowledged or, if one-way, whose send did not
    fail. ``failed``: numbers by kind, which is the name of an error or of a status. ``latencies``: milliseconds of messages done,
    "p50" to "p99.9" and "max"; empty if there are none."""

    scheduled: int
    attempted: int
    done: int
    failed: Mapping[str, int]
    latencies: Mapping[str, float]

    @property
    def missed(self) -> int:
        """Number of messages that were due, less that of messages that were begun: of a mode, those not begun in time. Of a second
        it may be negative, because a send may begin later than it was due."""
        return self.scheduled - self.attempted

    @property
    def uncounted(self) -> int:
        """Number of attempted messages, less that of outcomes. Of a mode another number than 0 is a bug of the counting; of a
        second it is not, because a send may end in a later one."""
        return self.attempted - self.done - sum(self.failed.values())


@dataclass(frozen=True)
class ModeReport:
    """The figures of one mode. ``rate``: messages done per second, the sum over tasks, each over its own time. ``bytes``: of the
    bodies of messages done. ``stored``: growth of the topic; None if it could not be read. ``tasks_at_once``: the largest number
    of ``tasks`` that ran at the same time; if it is smaller, the load was not the requested one."""

    mode: str
    total: Figures
    by_second: Mapping[int, Figures]
    rate: float
    bytes: int
    stored: int | None
    tasks: int
    tasks_at_once: int

    @property
    def lost(self) -> int:
        """Number of messages done, less the growth of the topic; 0 if the growth is larger or ``stored`` is None."""
        return 0 if self.stored is None else max(self.total.done - self.stored, 0)

    def problems(self) -> list[str]:
        """Returns the reasons why the load failed, a sentence each."""
        found, total = [], self.total
        if self.lost and self.mode != "oneway":
            found.append(f"{self.lost} of {total.done} messages acknowledged in mode {self.mode} are not in the topic")
        if total.uncounted:
            found.append(f"{abs(total.uncounted)} messages of mode {self.mode} are not counted right: a bug")
        if total.failed:
            kinds = ", ".join(f"{number} {kind}" for kind, number in total.failed.items())
            found.append(f"{sum(total.failed.values())} of {total.attempted} messages of mode {self.mode} failed: {kinds}")
        if self.tasks_at_once < self.tasks:
            found.append(f"only {self.tasks_at_once} of {self.tasks} tasks of mode {self.mode} ran at the same time")
        return found

    def as_fields(self) -> dict[str, Any]:
        """Returns the fields for output; times are in milliseconds."""
        total = self.total
        return {
            "mode": self.mode,
            "attempted": total.attempted,
            "handed_over" if self.mode == "oneway" else "acknowledged": total.done,
            "failed": sum(total.failed.values()),
            "missed": total.missed,
            "stored": self.stored,
            "rate": round(self.rate),
            "MiB_per_second": round(self.rate * self.bytes / total.done / (1 << 20), 2) if total.done else 0.0,
            **{f"{name}_ms": round(value, 3) for name, value in total.latencies.items()},
            **({"failed_by_kind": dict(total.failed)} if total.failed else {}),
        }


@dataclass(frozen=True)
class RunReport:
    """The reports of one run: modes in the order of their beginnings."""

    run: str
    modes: Sequence[ModeReport]

    @property
    def attempted(self) -> int:
        return sum(mode.total.attempted for mode in self.modes)

    @property
    def acknowledged(self) -> int:
        return sum(mode.total.done for mode in self.modes if mode.mode != "oneway")

    @property
    def handed_over(self) -> int:
        return sum(mode.total.done for mode in self.modes if mode.mode == "oneway")

    @property
    def failed(self) -> int:
        return sum(sum(mode.total.failed.values()) for mode in self.modes)

    @property
    def missed(self) -> int:
        return sum(mode.total.missed for mode in self.modes)

    @property
    def lost(self) -> int:
        """The sum of ``lost`` of the modes other than one-way."""
        return sum(mode.lost for mode in self.modes if mode.mode != "oneway")

    def problems(self) -> list[str]:
        return [problem for mode in self.modes for problem in mode.problems()]


def read_results(spark: SparkSession, path: str) -> DataFrame:
    """Returns the rows of the result files at a path. Raises ConfigError if they lack a column; the errors of Spark if there is
    no Parquet file."""
    frame = spark.read.parquet(path)
    wanted = dict(part.strip().split(" ") for part in COLUMNS.split(", "))
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"{path!r} holds no results of rmq spark load: there is no column {missing[0]}; give the directory of --results"
        )
    return frame.select(*wanted)


def report(results: DataFrame) -> list[RunReport]:
    """Returns the reports of the runs in ``results``, the earliest first."""
    spans: dict[str, list[Any]] = defaultdict(list)
    for row in _spans(results):
        spans[row.run].append(row)
    counts: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in _counts(results):
        counts[row.run, row.mode][row.second][row.what] = row
    times = {(row.run, row.mode, row.second): _times(row) for row in _percentiles(results)}
    reports = []
    for run in sorted(spans, key=lambda run: min(row.began for row in spans[run])):
        by_mode: dict[str, list[Any]] = defaultdict(list)
        for row in sorted(spans[run], key=lambda row: row.began):
            by_mode[row.mode].append(row)
        modes = [_mode(mode, rows, counts[run, mode], times, run) for mode, rows in by_mode.items()]
        reports.append(RunReport(run, modes))
    return reports


# -- inside


def _spans(results: DataFrame) -> list[Any]:
    grouped = results.where(f.col("what") != STORED).groupBy("run", "mode", "task")
    done = f.sum(f.when(f.col("what").isin(ACKNOWLEDGED, HANDED_OVER), f.col("messages")).otherwise(0)).alias("done")
    return grouped.agg(f.min("began").alias("began"), f.max("ended").alias("ended"), done).collect()


def _counts(results: DataFrame) -> list[Any]:
    grouped = results.groupBy("run", "mode", "second", "what")
    sums = (f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"), f.max("longest").alias("longest"))
    return grouped.agg(*sums).collect()


def _percentiles(results: DataFrame) -> list[Any]:
    """Finds the buckets of the percentiles for each second and for each whole mode: the first bucket up to which there are
    enough messages."""
    done = results.where(f.col("what").isin(ACKNOWLEDGED, HANDED_OVER))
    buckets = done.select(
        "run",
        "mode",
        f.explode(f.array("second", f.lit(WHOLE))).alias("second"),
        f.map_entries("latencies").alias("entries"),
    ).select("run", "mode", "second", f.explode("entries").alias("entry"))
    summed = buckets.groupBy("run", "mode", "second", f.col("entry.key").alias("bucket")).agg(
        f.sum("entry.value").alias("messages")
    )
    place = Window.partitionBy("run", "mode", "second")
    reached = summed.withColumn("reached", f.sum("messages").over(place.orderBy("bucket"))).withColumn(
        "all", f.sum("messages").over(place)
    )
    firsts = [
        f.min(f.when(f.col("reached") >= f.ceil(f.col("all") * share), f.col("bucket"))).alias(name.replace(".", "_"))
        for name, share in PERCENTILES.items()
    ]
    return reached.groupBy("run", "mode", "second").agg(*firsts).collect()


def _times(row: Any) -> dict[str, float]:
    return {name: highest_in(row[name.replace(".", "_")]) * 1000 for name in PERCENTILES}


def _mode(
    mode: str,
    spans: Sequence[Any],
    counts: Mapping[int, Mapping[str, Any]],
    times: Mapping[tuple[str, str, int], Mapping[str, float]],
    run: str,
) -> ModeReport:
    by_second = {
        second: _figures(counts[second], times.get((run, mode, second), {})) for second in sorted(counts) if second != WHOLE
    }
    whole: dict[str, list[Any]] = defaultdict(list)
    for second in counts.values():
        for what, row in second.items():
            whole[what].append(row)
    totals = {what: _Sum(rows) for what, rows in whole.items()}
    done = totals.get(HANDED_OVER) or totals.get(ACKNOWLEDGED)
    return ModeReport(
        mode,
        _figures(totals, times.get((run, mode, WHOLE), {})),
        by_second,
        sum(row.done / max(row.ended - row.began, 1e-3) for row in spans),
        done.bytes if done is not None else 0,
        totals[STORED].messages if STORED in totals else None,
        len(spans),
        _at_once(spans),
    )


class _Sum:
    def __init__(self, rows: Sequence[Any]) -> None:
        self.messages: int = sum(row.messages for row in rows)
        self.bytes: int = sum(row.bytes for row in rows)
        self.longest: float = max(row.longest for row in rows)


def _figures(rows: Mapping[str, Any], times: Mapping[str, float]) -> Figures:
    def messages(what: str) -> int:
        return int(rows[what].messages) if what in rows else 0

    known = (SCHEDULED, ATTEMPTED, ACKNOWLEDGED, HANDED_OVER, STORED)
    longest = max((rows[what].longest * 1000 for what in (ACKNOWLEDGED, HANDED_OVER) if what in rows), default=0.0)
    return Figures(
        messages(SCHEDULED),
        messages(ATTEMPTED),
        messages(ACKNOWLEDGED) + messages(HANDED_OVER),
        {what: messages(what) for what in sorted(rows) if what not in known},
        {**{name: min(value, longest) for name, value in times.items()}, "max": longest} if times else {},
    )


def _at_once(spans: Sequence[Any]) -> int:
    """Returns the largest number of tasks that ran at the same time."""
    return max(len([other for other in spans if other.began <= row.began < other.ended]) for row in spans)
