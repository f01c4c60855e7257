"""Runs a program of ``benchmarks/`` as its users do, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

__all__ = ["BENCHMARKS", "run"]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


async def run(script: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    # As tox sets it; a warning in the benchmark or in the process it measures is an error.
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "error"}
    environment.pop("NAMESRV_ADDR", None)
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    try:
        out, error = await asyncio.wait_for(process.communicate(), 120)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()
