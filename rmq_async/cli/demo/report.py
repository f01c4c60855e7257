"""Evaluates a run: the figures of each mode, and the failures. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from rmq_async import SendResult

from .accounting import Account, account
from .messages import Key
from .modes import AT_ONCE, BATCH, BATCHES_AT_ONCE, ModeRun

__all__ = ["ModeReport", "percentile", "problems", "report_of", "table_of", "totals"]

ONEWAY: Final = "oneway"
NAMED: Final = 100
"""Maximum number of missing messages that the JSON summary names."""

LEGEND: Final = (
    f"awaited: {AT_ONCE} coroutines; async: callbacks, as many in flight as credits; batch: {BATCH} messages a request,",
    f"{BATCHES_AT_ONCE} requests at a time, p50 and p99 of a batch. stored: read back, body and properties checked.",
    "oneway: brokers acknowledge none of them, so lost means handed over and not found; p50 and p99 of the call.",
)


@dataclass(frozen=True)
class ModeReport:
    """The figures of one mode. ``sent``: messages whose call was begun. ``account``: a one-way message counts as
    acknowledged when its call returned, because it has no answer. ``rate``: acknowledged messages a second. ``p50``,
    ``p99``: seconds."""

    mode: str
    sent: int
    failed: int
    account: Account[Key]
    rate: float
    p50: float
    p99: float
    seconds: float
    cut_short: bool
    first_failure: BaseException | None
    acknowledged: dict[Key, SendResult]

    @property
    def lost(self) -> tuple[Key, ...]:
        return self.account.lost

    @property
    def acknowledged_count(self) -> int | None:
        """Number of acknowledged messages; None for a mode without acknowledgements."""
        return None if self.mode == ONEWAY else self.account.acknowledged

    def as_fields(self) -> dict[str, object]:
        """Returns the fields for ``--json``; ``p50_ms`` and ``p99_ms`` are milliseconds, ``seconds`` is the duration of the
        mode."""
        counts = self.account
        return {
            "type": "mode",
            "mode": self.mode,
            "sent": self.sent,
            "failed": self.failed,
            "acknowledged": self.acknowledged_count,
            "stored": counts.stored,
            "lost": len(self.lost),
            "stored_unacknowledged": len(counts.unacknowledged),
            "duplicated": counts.copies,
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate),
            "p50_ms": _milliseconds(self.p50),
            "p99_ms": _milliseconds(self.p99),
        }

    def named(self, key: Key) -> str:
        """Returns the text that names a message in a report."""
        result = self.acknowledged.get(key)
        if result is None:
            return str(key)
        queue = result.queue
        place = f"acknowledged at offset {result.queue_offset} of queue {queue.queue_id} on {queue.broker_name}"
        return f"{key} (msg_id {result.msg_id}, {place})"


def report_of(run: ModeRun, read: Sequence[Key]) -> ModeReport:
    """Makes the report of a mode. ``read``: the keys of this mode, once for each time that a message was read."""
    delivered = run.acknowledged if run.mode != ONEWAY else [key for key in run.attempted if key not in run.failures]
    counts = account(run.attempted, delivered, read)
    latencies = sorted(run.latencies)
    return ModeReport(
        mode=run.mode,
        sent=counts.attempted,
        failed=len(run.failures),
        account=counts,
        rate=counts.acknowledged / run.seconds if run.seconds else 0.0,
        p50=percentile(latencies, 50),
        p99=percentile(latencies, 99),
        seconds=run.seconds,
        cut_short=len(run.attempted) < run.wanted,
        first_failure=next(iter(run.failures.values()), None),
        acknowledged=run.acknowledged,
    )


def percentile(ordered: Sequence[float], per_cent: float) -> float:
    """Returns a percentile by nearest rank; NaN for no values."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(len(ordered) * per_cent / 100) - 1)]


def problems(
    reports: Sequence[ModeReport], damaged: Sequence[str], unknown: Sequence[Key], *, oneway_may_be_lost: bool
) -> list[str]:
    """Returns the reasons why the demo failed, a line each, the gravest first.

    ``oneway_may_be_lost``: a real broker may drop one-way messages, which alone is no failure.
    """
    found = []
    for report in reports:
        if report.lost and not (report.mode == ONEWAY and oneway_may_be_lost):
            what = "one-way" if report.mode == ONEWAY else "acknowledged"
            found.append(f"{_of(len(report.lost), f'{what} message')} missing, {report.named(report.lost[0])}")
    if damaged:
        found.append(f"{_of(len(damaged), 'message')} damaged, {damaged[0]}")
    if unknown:
        found.append(f"{_of(len(unknown), 'message')} not of those sent, {unknown[0]}")
    for report in reports:
        if report.first_failure is not None:
            first = f"{type(report.first_failure).__name__}: {report.first_failure}"
            found.append(f"{report.failed} of {report.sent} sends of mode {report.mode} failed, the first: {first}")
    return found


def _of(number: int, what: str) -> str:
    return f"{number} {what} is" if number == 1 else f"{number} {what}s are"


def totals(reports: Sequence[ModeReport]) -> dict[str, object]:
    """Returns the sums over the modes, and the keys and ids of up to ``NAMED`` missing messages."""
    missing = [
        {"key": str(key), "msg_id": result.msg_id if (result := report.acknowledged.get(key)) else None}
        for report in reports
        for key in report.lost
    ]
    return {
        "sent": sum(report.sent for report in reports),
        "acknowledged": sum(report.acknowledged_count or 0 for report in reports),
        "stored": sum(report.account.stored for report in reports),
        "lost": len(missing),
        "stored_unacknowledged": sum(len(report.account.unacknowledged) for report in reports),
        "duplicated": sum(report.account.copies for report in reports),
        "lost_messages": missing[:NAMED],
    }


def table_of(reports: Sequence[ModeReport]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("mode")
    for heading in ("sent", "acked", "stored", "lost", "dupl.", "msg/s", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for report in reports:
        table.add_row(
            report.mode,
            str(report.sent),
            "-" if report.acknowledged_count is None else str(report.acknowledged_count),
            str(report.account.stored),
            str(len(report.lost)),
            str(report.account.copies),
            f"{report.rate:,.0f}",
            _shown(report.p50),
            _shown(report.p99),
        )
    return table


def _milliseconds(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds * 1000, 3)


def _shown(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1000:.2f}"
