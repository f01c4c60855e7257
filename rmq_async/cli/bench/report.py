"""Formats the result of ``rmq bench`` as a JSON object or as lines of text, and determines the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..output import Output
from ..running import FAILED
from .figures import Part, percentiles
from .load import LoadSettings


@dataclass(frozen=True)
class BenchResult:
    """The result of a run.

    Attributes:
        whole: The counts of all processes, added up.
        stored: Number of messages that were added to the topic. None if the number is unknown.
    """

    settings: LoadSettings
    processes: int
    whole: Part
    stored: int | None

    @property
    def rate(self) -> float:
        return self.whole.messages / self.whole.seconds if self.whole.seconds else 0.0

    @property
    def cpu(self) -> float | None:
        """Microseconds of the client's CPU time per message. None if no message was sent."""
        return self.whole.cpu / self.whole.messages * 1e6 if self.whole.messages else None

    @property
    def failed(self) -> int:
        return sum(self.whole.failures.values())

    @property
    def missing(self) -> int:
        """Number of sent messages minus ``stored``, but at least 0. It is 0 if ``stored`` is unknown."""
        return 0 if self.stored is None else max(0, self.whole.total - self.stored)

    @property
    def exit_code(self) -> int:
        lost = self.missing > 0 and self.settings.mode != "oneway"
        return FAILED if self.failed or lost else 0

    def fields(self) -> dict[str, object]:
        settings, whole = self.settings, self.whole
        return {
            "type": "result",
            "topic": settings.topic,
            "mode": settings.mode,
            "in_flight": settings.in_flight,
            "batch": settings.batch if settings.mode == "batch" else None,
            "body": settings.body,
            "processes": self.processes,
            "seconds": round(whole.seconds, 3),
            "messages": whole.messages,
            "rate": round(self.rate, 1),
            "mb_per_s": round(self.rate * settings.body / 1e6, 3),
            "client_cpu_us": None if self.cpu is None else round(self.cpu, 3),
            "latency_ms": percentiles(whole),
            "sent": whole.total,
            "acknowledged": None if settings.mode == "oneway" else whole.total,
            "stored": self.stored,
            "failed": self.failed,
            "failures": whole.failures,
        }

    def lines(self) -> Iterator[str]:
        settings, whole, rate = self.settings, self.whole, self.rate
        yield f"{rate:,.0f} messages/s, {rate * settings.body / 1e6:,.1f} MB/s of bodies, over {whole.seconds:.1f} s"
        yield f"client CPU: {_two_decimals(self.cpu)} us a message"
        latencies = ", ".join(f"{name} {_two_decimals(value)}" for name, value in percentiles(whole).items())
        yield f"latency of a {'batch' if settings.mode == 'batch' else 'call'}, ms: {latencies}"
        stored = "unknown" if self.stored is None else f"{self.stored:,}"
        sent = "sent" if settings.mode == "oneway" else "acknowledged"
        yield f"{sent}: {whole.total:,}, stored: {stored}, failed: {self.failed:,}"
        for text, number in whole.failures.items():
            yield f"  {number:,} x {text}"
        yield f"The messages are still in {settings.topic}."


def print_result(output: Output, result: BenchResult) -> int:
    """Print the result and return the exit code."""
    output.record(result.fields())
    for line in result.lines():
        output.line(line)
    if result.missing:
        output.trouble(f"bench: {result.missing:,} of {result.whole.total:,} messages were not found in the topic")
    return result.exit_code


def _two_decimals(value: float | None) -> str:
    return "-" if value is None else format(value, ".2f")
