"""Kills the driver of examples/spark_postgresql.py by SIGKILL, with its JVM, at drawn moments; then it goes on. By hand:

    python -m tests.spark.postgresql_kills [RUNS [SEED]]

Prints a line for each run: the seed, the moments at which drivers were killed, payments sent, and payments lost or counted twice.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import rmq_async
from rmq_async.testing._jars import find_maven
from rmq_async.testing.threaded import ThreadedRocketMQ

PROGRAM = Path(__file__).parents[2] / "examples" / "spark_postgresql.py"
DRIVER = "org.postgresql:postgresql:42.7.8"
SENT = 900
"""Payments, in three micro-batches."""
MOMENTS = ("while tasks write", "before the transaction", "in the transaction", "after the transaction")


def killed(totals: type[Any], moment: str, after: float) -> type[Any]:
    """Returns a sink that kills its process. ``after``: seconds from the start of the tasks, for the first moment."""

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Killed(totals):  # type: ignore[misc]
        def stage(self, *arguments: Any) -> None:
            if moment == MOMENTS[0]:
                threading.Timer(after, kill).start()
            super().stage(*arguments)

        async def move(self, *arguments: Any) -> None:
            if moment == MOMENTS[1]:
                kill()
            if moment == MOMENTS[2]:
                threading.Timer(after / 20, kill).start()
            await super().move(*arguments)
            if moment == MOMENTS[3]:
                kill()

    return Killed


def drive(given: dict[str, Any]) -> None:
    """One driver, to its end or until it is killed."""
    from pyspark.sql import SparkSession

    parts = runpy.run_path(str(PROGRAM), run_name="example")
    totals = parts["Totals"] if given["moment"] is None else killed(parts["Totals"], given["moment"], given["after"])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.jars": given["jar"],
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.warehouse.dir": f"{given['place']}/warehouse",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    parts["run"](session, given["namesrv"], totals(given["database"], "postgres", ""), f"{given['place']}/checkpoint")
    session.stop()


async def send(namesrv: str) -> None:
    async with rmq_async.Producer("payments", namesrv=namesrv) as producer:
        for number in range(SENT):
            await producer.send(rmq_async.Message("PaymentTopic", b"%d" % number, keys=f"customer-{number % 3}"))


def attempt(seed: int, jar: str, database: str) -> tuple[list[str], int, int]:
    """Returns the moments of the kills, payments lost and payments counted twice."""
    parts = runpy.run_path(str(PROGRAM), run_name="example")
    totals, drawn = parts["Totals"](database, "postgres", ""), random.Random(seed)
    moments = drawn.sample(MOMENTS, 3)
    kills: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rmq-kills-") as place, ThreadedRocketMQ() as server:
        rmq_async.run(parts["create_topic"](server.namesrv))
        rmq_async.run(totals.create_tables())
        rmq_async.run(send(server.namesrv))
        for moment in (*moments, None):
            given = {"moment": moment, "after": drawn.uniform(0.05, 1.0), "jar": jar, "place": place}
            given |= {"namesrv": server.namesrv, "database": database}
            command = [sys.executable, "-m", "tests.spark.postgresql_kills", "drive", json.dumps(given)]
            ended = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=300, check=False)
            if ended.returncode == -signal.SIGKILL:
                kills.append(str(moment))
            elif ended.returncode:
                raise RuntimeError(f"seed {seed}: a driver ended with {ended.returncode}")
    found = {customer: (payments, amount) for customer, payments, amount in rmq_async.run(totals.read())}
    lost = twice = 0
    for number in range(3):
        sent = range(number, SENT, 3)
        payments, amount = found.get(f"customer-{number}", (0, 0))
        lost += max(0, len(sent) - payments)
        twice += max(0, payments - len(sent))
        if payments == len(sent) and amount != sum(sent):
            raise RuntimeError(f"seed {seed}: another sum of customer {number}: {amount}")
    return kills, lost, twice


def main(runs: int, first: int) -> None:
    from ..postgres import postgres

    with tempfile.TemporaryDirectory() as place:
        goal = ["dependency:copy", f"-Dartifact={DRIVER}", f"-DoutputDirectory={place}"]
        subprocess.run([str(find_maven()), "-q", "-B", *goal], check=True, cwd=place)
        (jar,) = Path(place).glob("postgresql-*.jar")
        for seed in range(first, first + runs):
            with postgres(tcp=True) as url:
                kills, lost, twice = attempt(seed, str(jar), url.partition("@")[2])
            print(f"seed {seed}: killed {', '.join(kills)}; {SENT} sent, {lost} lost, {twice} twice", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        drive(json.loads(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
