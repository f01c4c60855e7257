"""Drivers of an example that are killed with their JVM by SIGKILL, one after another, and the one that ends their work.

What postgresql_kills and delta_kills share; each of them says at which moments, and counts what is in its sink.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rmq_async

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SENT", "Found", "example", "kill_driver", "main", "quick_session", "run_drivers", "send"]

SENT = 900
"""Payments, in three micro-batches."""
KILLS = 3
"""Drivers that are killed in a run, each at another moment."""

TRIES = 20
"""Starts of a driver that fails by itself."""

Found = tuple[list[str], int, int]
"""The moments of the kills of a run, payments lost and payments counted twice."""


def example(name: str) -> dict[str, Any]:
    """Returns the names of a program of examples/."""
    return runpy.run_path(str(Path(__file__).parents[2] / "examples" / name), run_name="example")


def kill_driver() -> None:
    """Kills this driver and its JVM, which are a group of processes.

    A JVM whose Python is gone would end in order, and could commit until then.
    """
    os.killpg(os.getpgrp(), signal.SIGKILL)


def quick_session(place: str, jars: str, settings: dict[str, str] | None = None) -> SparkSession:
    """Starts a driver's session. ``jars``: paths, with commas between them."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{place}/warehouse",
        **(settings or {}),
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


async def send(namesrv: str) -> None:
    """Sends the payments of three customers."""
    async with rmq_async.Producer("payments", namesrv=namesrv) as producer:
        for number in range(SENT):
            await producer.send(rmq_async.Message("PaymentTopic", b"%d" % number, keys=f"customer-{number % 3}"))


def run_drivers(module: str, moments: Iterable[str], drawn: random.Random, given: dict[str, Any]) -> list[str]:
    """Runs drivers (``python -m module drive``) that are killed at some of the moments, and one to its end.

    Returns the moments at which drivers were killed. A driver that ends before its moment is none of them.
    """
    kills: list[str] = []
    for moment in (*drawn.sample(list(moments), KILLS), None):
        said = json.dumps({**given, "moment": moment, "after": drawn.uniform(0.05, 1.0)})
        if run_driver([sys.executable, "-m", module, "drive", said]) == -signal.SIGKILL and moment is not None:
            kills.append(moment)
    return kills


def run_driver(command: list[str]) -> int:
    """Runs a driver in a group of processes of its own; returns its exit code.

    One that fails is started again, as its supervisor would do: on a loaded machine Spark gives up on late Python workers.
    """
    for _ in range(TRIES):
        ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=900, check=False, start_new_session=True)
        if ended.returncode in (0, -signal.SIGKILL):
            return ended.returncode
        said = ended.stderr[-2000:].decode(errors="replace")
        print(f"a driver failed with {ended.returncode} and is started again: {said}", file=sys.stderr, flush=True)
    raise RuntimeError(f"a driver failed {TRIES} times; see its last lines:\n{said}")


def main(arguments: list[str], drive: Callable[[dict[str, Any]], None], attempt: Callable[[int], Found]) -> int:
    """Runs one driver, or as many runs as the arguments say; returns the exit code, 1 where any payment was lost or came twice."""
    if arguments[:1] == ["drive"]:
        drive(json.loads(arguments[1]))
        return 0
    runs, first = (int(arguments[0]) if arguments else 10), (int(arguments[1]) if len(arguments) > 1 else 1)
    kills = lost = twice = 0
    for seed in range(first, first + runs):
        moments, missing, again = attempt(seed)
        print(f"seed {seed}: killed {', '.join(moments)}; {SENT} sent, {missing} lost, {again} twice", flush=True)
        kills, lost, twice = kills + len(moments), lost + missing, twice + again
    print(f"{runs} runs, {kills} kills, {lost} lost, {twice} twice", flush=True)
    return 1 if lost or twice else 0
