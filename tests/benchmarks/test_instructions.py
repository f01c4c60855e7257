"""The count of bytecodes and instructions per message: one small run, and that a run repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.benchmark_runs import BENCHMARKS, run


@pytest.mark.parametrize("kind", ["plain", "real", "batches"])
def test_bytecodes_of_a_send_are_counted_by_function(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import instructions

    counts = instructions.bytecodes(BENCHMARKS.parent, kind, 640)
    entry = "RequestTable.start_send" if kind == "batches" else "RequestTable.enter_single"
    assert counts["Message.__post_init__"] > 20
    assert counts[entry] > 1
    assert 100 < sum(counts.values()) < 1500


async def test_wrong_options_of_instructions_are_refused(tmp_path: Path) -> None:
    for options, text in ((("--messages", "100"), "multiple of 64, not 100"), ((str(tmp_path),), "has no folder rmq_async")):
        code, out, error = await run("instructions.py", *options)
        assert (code, out) == (2, "")
        assert text in error
