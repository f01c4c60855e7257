"""``rmq server`` under more than it can keep; benchmarks/flood.py says what is looked at, and does the same at full length."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from .support import Ended, end, environment

FLOOD = Path(__file__).parents[2] / "benchmarks" / "flood.py"


async def flood(*arguments: str) -> Ended:
    command = [sys.executable, "-W", "error", str(FLOOD), *arguments]
    pipe = asyncio.subprocess.PIPE
    return await end(await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment()), 60)


async def test_a_flood_stays_within_bounds_loses_nothing_within_them_and_ends_by_either_signal_within_a_second() -> None:
    ended = await flood("--max-memory", "16", "--body", "400", "--batches", "600", "--oneway", "12000", "--json", "-")
    assert (ended.code, ended.err) == (0, "")
    (run,) = json.loads(ended.out)["runs"]
    assert (run["batched"], run["oneway"]) == (19_200, 12_000)
    assert 0 < run["kept"] < 31_200  # so the bound was reached
    assert run["most_rss_mb"] <= 16 * 1.25 + 64
    assert run["sigterm_s"] < 1
    assert run["sigint_s"] < 1


async def test_wrong_numbers_are_wrong_use() -> None:
    for wrong in (("--max-memory", "x"), ("--body", "3")):
        ended = await flood(*wrong)
        assert (ended.code, ended.out) == (2, "")
        assert wrong[0] in ended.err
