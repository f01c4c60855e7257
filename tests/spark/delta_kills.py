"""Kills the driver of examples/spark_delta.py by SIGKILL, with its JVM, at drawn moments; then it goes on. With PySpark 4.2:

    python -m tests.spark.delta_kills [RUNS [SEED]]

Prints a line for each run: the seed, the moments at which drivers were killed, payments sent, and payments lost or twice in the
table, by what is in the topic; then their sums. Exits with 1 where any was lost or is there twice.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rmq_async
from rmq_async.testing.threaded import ThreadedRocketMQ

from . import jars, kills

MOMENTS = ("while tasks write", "with files and no commit", "as the commit is there", "after the commit")
Row = tuple[str, int, int, str, int]
"""Broker, queue, offset, customer, amount."""


def when_there(table: Path, pattern: str) -> None:
    """Kills the driver as soon as the table has another file of a kind. Returns at once."""
    before = set(table.glob(pattern))

    def watch() -> None:
        while set(table.glob(pattern)) <= before:
            time.sleep(0.001)
        kills.kill_driver()

    threading.Thread(target=watch, daemon=True).start()


def killed(payments: type[Any], moment: str, after: float) -> type[Any]:
    """Returns a sink that kills its process. ``after``: seconds from the start of the write, for the first moment."""

    class Killed(payments):  # type: ignore[misc]
        def write(self, *arguments: Any) -> None:
            if moment == MOMENTS[0]:
                threading.Timer(after, kills.kill_driver).start()
            if moment == MOMENTS[1]:
                when_there(Path(self.table), "part-*.parquet")
            if moment == MOMENTS[2]:
                when_there(Path(self.table), "_delta_log/[0-9]*.json")
            super().write(*arguments)
            if moment == MOMENTS[3]:
                kills.kill_driver()

    return Killed


def drive(given: dict[str, Any]) -> None:
    """One driver, to its end or until it is killed; one that ends writes the rows of the table into a file."""
    parts = kills.example("spark_delta.py")
    sink = parts["Payments"] if given["moment"] is None else killed(parts["Payments"], given["moment"], given["after"])
    # a table of three micro-batches: 50 tasks for its state, as Delta has them, are 50 times as slow
    settings = {name: value for name, value in parts["SETTINGS"].items() if not name.startswith("spark.jars.")}
    settings |= {"spark.databricks.delta.snapshotPartitions": "1"}
    session = kills.quick_session(given["place"], given["jars"], settings)
    payments, place = sink(f"{given['place']}/table"), Path(given["place"])
    parts["run"](session, given["namesrv"], payments, str(place / "checkpoint"))
    (place / "rows.json").write_text(json.dumps([tuple(row) for row in payments.read(session).collect()]))
    session.stop()


async def sent(namesrv: str) -> list[Row]:
    """Returns what is in the topic, as rows of the table."""
    async with rmq_async.PullConsumer("counts", namesrv=namesrv) as consumer:
        return [
            (message.queue.broker_name, message.queue.queue_id, message.queue_offset, " ".join(message.keys), int(message.body))
            async for message in consumer.read("PaymentTopic")
        ]


def compare(truth: Iterable[Row], table: Iterable[Row]) -> tuple[int, int]:
    """Returns how many rows are missing in the table, and how many are too many, copies or others."""
    wanted, there = Counter(truth), Counter(table)
    return (wanted - there).total(), (there - wanted).total()


def attempt(seed: int) -> kills.Found:
    """Runs the drivers of a seed on a table and a broker of their own."""
    parts = kills.example("spark_delta.py")
    with tempfile.TemporaryDirectory(prefix="rmq-kills-") as place, ThreadedRocketMQ() as server:
        rmq_async.run(parts["create_topic"](server.namesrv))
        rmq_async.run(kills.send(server.namesrv))
        truth = rmq_async.run(sent(server.namesrv))
        if len(truth) != kills.SENT:
            raise RuntimeError(f"seed {seed}: {len(truth)} messages are in the topic, and {kills.SENT} were sent")
        found = jars.delta_jars(Path(place))
        given = {"jars": ",".join(map(str, found)), "place": place, "namesrv": server.namesrv}
        moments = kills.run_drivers("tests.spark.delta_kills", MOMENTS, random.Random(seed), given)
        table = [tuple(row) for row in json.loads(Path(place, "rows.json").read_text())]
    lost, twice = compare(truth, table)
    return moments, lost, twice


if __name__ == "__main__":
    if sys.argv[1:2] != ["drive"] and (reason := jars.delta_missing()):
        sys.exit(reason)
    sys.exit(kills.main(sys.argv[1:], drive, attempt))
