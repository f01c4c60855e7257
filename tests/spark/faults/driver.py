"""A driver to be killed: ``python driver.py LOGGING FAULTS DIRECTORY...`` starts the queries of all these runs in one session.

``LOGGING``: a configuration of Log4j. ``FAULTS``: "faults", and then it runs until it is killed; or "none": it goes on where the
checkpoints are, and ends when everything is read.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = "faults"

from pyspark.sql import SparkSession

from .history import Run, ticks
from .queries import finish, register, start


AT_ONCE = 3


def _is_starting(run: Run, query: Any) -> bool:
    """Whether the newest start of its query has not come to its micro-batches yet."""
    events = [event["event"] for event in run.history() if event["event"] in ("start", "initial")]
    return bool(query.isActive) and events[-1] == "start"


def main(logging: str, what: str, directories: list[str]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[64,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{directories[0]}/warehouse")
        .config("spark.local.dir", f"{directories[0]}/local")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging}")
        .getOrCreate()
    )
    register(session)
    runs = [Run.from_json((Path(directory) / "run.json").read_text()) for directory in directories]
    queries: list[Any] = []
    for run in runs:
        # Spark gives a planner 10 s to connect back; many that start at once on a small machine are later than that.
        for _ in ticks("queries did not come up"):
            if sum(_is_starting(*pair) for pair in zip(runs, queries, strict=False)) < AT_ONCE:
                break
        queries.append(start(session, run, faults=what == "faults", available_now=what == "none"))
    while what == "faults":
        for run, query in zip(runs, queries, strict=True):
            if (error := query.exception()) and not run.history("failed"):
                run.note("failed", error=str(error))
        time.sleep(0.2)
    for run, query in zip(runs, queries, strict=True):
        finish(run, query)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
