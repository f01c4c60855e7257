"""Shares of queues that the strategies of Java's client compute:
``python -m tests.support.java.allocations`` writes the golden vectors.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from .program import started

VECTORS = Path(__file__).parents[2] / "consumer" / "group" / "allocations.json"


async def computed() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as home:
        async with started(Path(home), "Allocations") as process:
            output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode(errors="replace")[-4000:]
    return [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")]


def main() -> None:
    lines = [json.dumps(case, separators=(",", ":")) for case in asyncio.run(computed())]
    VECTORS.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
