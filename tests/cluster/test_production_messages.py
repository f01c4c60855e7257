"""Production messages of ``benchmarks/compare.py`` on a real broker with ACL: ours alone, one short round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..support.benchmark_runs import run


@pytest.mark.deep
async def test_production_mode_measures_signed_messages(tmp_path: Path) -> None:
    given = (
        "--small-servers",
        "--modes",
        "production-64",
        "--peers",
        "none",
        "--rounds",
        "1",
        "--seconds",
        "0.5",
        "--warm-up",
        "0.5",
    )
    file = tmp_path / "figures.json"
    code, out, error = await run("compare.py", *given, "--json", str(file))
    assert code == 0, error
    assert "all as they were to be" in out
    assert "a send without a signature is refused: 16 " in error
    found = json.loads(file.read_bytes())["sides"]["ours:production-64"]
    assert found["rounds"] == 1
    assert found["rate"]["median"] > 0
