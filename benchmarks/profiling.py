"""Profiles one run in this process, in one of two ways.

``sample`` interrupts the process 250 times per second of its CPU time and notes the line that runs; it costs nothing
between samples, and time inside C (encoding, the loop, system calls) stands at the line that called it. ``calls`` is cProfile:
exact counts, but each call is dearer by 0.1-0.3 us, so small functions look worse than they are. The side's own figures
are printed with both; only those of ``sample`` resemble an unprofiled run.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import signal
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from one_run import run_on_loop
from runs import RunResult, RunSpec

__all__ = ["Sampler", "profile"]

INTERVAL: Final = 0.004
SHOWN: Final = 40


class Sampler:
    """Counts, per sample, the line on top of the stack and every function in it once."""

    def __init__(self) -> None:
        self.lines: Counter[tuple[CodeType, int]] = Counter()
        self.own: Counter[CodeType] = Counter()
        self.within: Counter[CodeType] = Counter()
        self.samples = 0

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self.samples += 1
        self.lines[frame.f_code, frame.f_lineno] += 1
        self.own[frame.f_code] += 1
        seen = set()
        while frame is not None:
            seen.add(frame.f_code)
            frame = frame.f_back
        self.within.update(seen)

    def text(self) -> str:
        """Shares of all samples: per function, alone and with what it calls; then per line."""
        out = [f"{self.samples} samples", "  own  with callees  function"]
        for code, number in self.own.most_common(SHOWN):
            out.append(f"{self._share(number)}       {self._share(self.within[code])}  {_name(code)}")
        out.append("  own  line")
        for (code, line), number in self.lines.most_common(SHOWN):
            out.append(f"{self._share(number)}  {_name(code)}:{line}  {_source(code, line)}")
        return "\n".join(out)

    def _share(self, number: int) -> str:
        return f"{100 * number / max(self.samples, 1):5.1f}"


def profile(spec: RunSpec, how: str = "sample", directory: str | None = None) -> None:
    """Runs ``spec`` in this process and prints; ``directory`` keeps cProfile's data for other viewers."""
    print(f"\n=== {spec.mode}, {spec.side}, {how}", flush=True)
    if how == "sample":
        sampler = Sampler()
        sampler.start()
        try:
            result = run_on_loop(spec)
        finally:
            sampler.stop()
        _figures(result)
        print(sampler.text())
        return
    profiler = cProfile.Profile()
    result = profiler.runcall(run_on_loop, spec)
    _figures(result)
    if directory is not None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        profiler.dump_stats(Path(directory) / f"{spec.side}-{spec.mode}.prof")
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(SHOWN)
    print(text.getvalue())


def _figures(result: RunResult) -> None:
    print(f"{result.rate:,.0f} messages/s, {result.client_us:.2f} us client CPU per message")


def _name(code: CodeType) -> str:
    return f"{Path(code.co_filename).name}:{code.co_qualname}"


def _source(code: CodeType, line: int) -> str:
    try:
        return Path(code.co_filename).read_text().splitlines()[line - 1].strip()[:80]
    except (OSError, IndexError):
        return ""
