"""A driver to be killed: ``python driver.py LOGGING FAULTS DIRECTORY...`` starts the queries of all these runs in one session.

``LOGGING``: a configuration of Log4j. ``FAULTS``: "faults", and then it runs until it is killed; or "none": it goes on where the
checkpoints are, and ends when everything is read.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = "faults"

from pyspark.sql import SparkSession

from .history import LATE, PATIENCE, Run, ticks
from .queries import register, start


def main(logging: str, what: str, directories: list[str]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[64,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{directories[0]}/warehouse")
        .config("spark.local.dir", f"{directories[0]}/local")
        .config("spark.sql.codegen.wholeStage", "false")
        .config(
            "spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={logging}"
        )
        .getOrCreate()
    )
    register(session)
    for directory in directories:
        run = Run.from_json((Path(directory) / "run.json").read_text())
        go_on(session, run) if what == "none" else hold(session, run)
    while what == "faults":
        time.sleep(1)
    session.stop()


def hold(session: SparkSession, run: Run) -> None:
    """Starts it, to be at its point some time later. Where a process of Spark was late it is started again."""
    until = time.monotonic() + PATIENCE
    while True:
        query = start(session, run, available_now=False)
        for _ in ticks(f"{run.case}: it did not come up"):
            if run.history("initial"):
                return
            if not query.isActive:
                break
        error = str(query.exception())
        if LATE not in error or time.monotonic() > until:
            run.fail(error)
            return


def go_on(session: SparkSession, run: Run) -> None:
    """To the end of what there is. Where a process of Spark was late it is started again."""
    until = time.monotonic() + PATIENCE
    while True:
        query = start(session, run, faults=False)
        for _ in ticks(f"{run.case}: the query did not end"):
            if not query.isActive:
                break
        error = str(query.exception() or "")
        if LATE not in error or time.monotonic() > until:
            if error:
                run.fail(error)
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
