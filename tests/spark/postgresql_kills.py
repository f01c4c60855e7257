"""Kills the driver of examples/spark_postgresql.py by SIGKILL, with its JVM, at drawn moments; then it goes on. By hand:

    python -m tests.spark.postgresql_kills [RUNS [SEED]]

Prints a line for each run: the seed, the moments at which drivers were killed, payments sent, and payments lost or counted twice.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import rmq_async
from rmq_async.testing.threaded import ThreadedRocketMQ

from . import jars, kills

MOMENTS = ("while tasks write", "before the transaction", "in the transaction", "after the transaction")


def killed(totals: type[Any], moment: str, after: float) -> type[Any]:
    """Returns a sink that kills its process. ``after``: seconds from the start of the tasks, for the first moment."""

    class Killed(totals):  # type: ignore[misc]
        def stage(self, *arguments: Any) -> None:
            if moment == MOMENTS[0]:
                threading.Timer(after, kills.kill_driver).start()
            super().stage(*arguments)

        async def move(self, *arguments: Any) -> None:
            if moment == MOMENTS[1]:
                kills.kill_driver()
            if moment == MOMENTS[2]:
                threading.Timer(after / 20, kills.kill_driver).start()
            await super().move(*arguments)
            if moment == MOMENTS[3]:
                kills.kill_driver()

    return Killed


def drive(given: dict[str, Any]) -> None:
    """One driver, to its end or until it is killed."""
    parts = kills.example("spark_postgresql.py")
    totals = parts["Totals"] if given["moment"] is None else killed(parts["Totals"], given["moment"], given["after"])
    session = kills.quick_session(given["place"], given["jars"])
    parts["run"](session, given["namesrv"], totals(given["database"], "postgres", ""), f"{given['place']}/checkpoint")
    session.stop()


def attempt(seed: int) -> kills.Found:
    """Runs the drivers of a seed on a database and a broker of their own."""
    from ..support.postgres import postgres

    parts = kills.example("spark_postgresql.py")
    with tempfile.TemporaryDirectory(prefix="rmq-kills-") as place, postgres(tcp=True) as url, ThreadedRocketMQ() as server:
        database = url.partition("@")[2]
        totals = parts["Totals"](database, "postgres", "")
        rmq_async.run(parts["create_topic"](server.namesrv))
        rmq_async.run(totals.create_tables())
        rmq_async.run(kills.send(server.namesrv))
        (jar,) = jars.copy_jars(jars.POSTGRESQL, Path(place))
        given = {"jars": str(jar), "place": place, "namesrv": server.namesrv, "database": database}
        moments = kills.run_drivers("tests.spark.postgresql_kills", MOMENTS, random.Random(seed), given)
        found = {customer: (payments, amount) for customer, payments, amount in rmq_async.run(totals.read())}
    lost = twice = 0
    for number in range(3):
        sent = range(number, kills.SENT, 3)
        payments, amount = found.get(f"customer-{number}", (0, 0))
        lost += max(0, len(sent) - payments)
        twice += max(0, payments - len(sent))
        if payments == len(sent) and amount != sum(sent):
            raise RuntimeError(f"seed {seed}: another sum of customer {number}: {amount}")
    return moments, lost, twice


if __name__ == "__main__":
    sys.exit(kills.main(sys.argv[1:], drive, attempt))
