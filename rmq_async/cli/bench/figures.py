"""The counts of one process, and the sum over all processes.

The module has pure functions and records of numbers, which can be sent through pipes.

Latencies go into a histogram whose steps are 2 % wide: its size does not grow with the run, and the histograms of several
processes can be added. A percentile is the upper end of its step, or the largest value if that is lower. The largest value is
exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import ceil, log
from typing import Final

import msgspec

_LOWEST: Final = 1e-7
_STEP: Final = log(1.02)
_OTHERS: Final = "others"
_TEXTS: Final = 20
PERCENTILES: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}


class Histogram:
    """A histogram of latencies. ``add`` takes seconds.

    Attributes:
        longest: The longest latency, exact, in seconds.
    """

    __slots__ = ("counts", "longest")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        self.counts[int(log(max(seconds, _LOWEST) / _LOWEST) / _STEP)] += 1
        if seconds > self.longest:
            self.longest = seconds


class Part(msgspec.Struct):
    """The counts of one process.

    Attributes:
        messages: Number of messages sent in the measured window, which lasts ``seconds``.
        cpu: CPU seconds in the measured window.
        total: Number of messages sent in the whole run.
        failures: Number of failures in the whole run, by error message.
        latencies: Number of calls by step of the ``Histogram``.
    """

    messages: int
    seconds: float
    cpu: float
    total: int
    failures: dict[str, int]
    latencies: dict[int, int]
    longest: float


def failed(failures: dict[str, int], error: BaseException, number: int) -> None:
    """Count ``number`` failures under the message of ``error``. Count them under "others" if 20 other messages are already
    stored.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
    if text not in failures and len(failures) >= _TEXTS:
        text = _OTHERS
    failures[text] = failures.get(text, 0) + number


def merged(parts: Iterable[Part]) -> Part:
    """Add up the counts of processes that ran concurrently. ``seconds`` becomes that of the longest window."""
    whole = Part(0, 0.0, 0.0, 0, {}, {}, 0.0)
    failures: Counter[str] = Counter()
    latencies: Counter[int] = Counter()
    for part in parts:
        whole.messages += part.messages
        whole.seconds = max(whole.seconds, part.seconds)
        whole.cpu += part.cpu
        whole.total += part.total
        whole.longest = max(whole.longest, part.longest)
        failures.update(part.failures)
        latencies.update(part.latencies)
    whole.failures, whole.latencies = dict(failures.most_common()), dict(latencies)
    return whole


def percentiles(part: Part) -> dict[str, float | None]:
    """Return the latencies in milliseconds at ``PERCENTILES`` and the maximum, by name. They are None if no call was timed."""
    number = sum(part.latencies.values())
    if not number:
        return {**dict.fromkeys(PERCENTILES), "max": None}
    found: dict[str, float | None] = {}
    steps = sorted(part.latencies.items())
    for name, share in PERCENTILES.items():
        wanted, seen = ceil(number * share / 100), 0
        for step, count in steps:
            seen += count
            if seen >= wanted:
                found[name] = round(min(_LOWEST * 1.02 ** (step + 1), part.longest) * 1e3, 3)
                break
    return {**found, "max": round(part.longest * 1e3, 3)}
