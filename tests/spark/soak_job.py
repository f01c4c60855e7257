"""A driver for tests of the soak's cluster: ``python soak_job.py MASTER DIRECTORY`` does a job for each line of standard input.

Each job has two tasks that take a moment; it prints their sum and the addresses of the executors that the tasks ran on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

from pyspark import SparkConf, SparkContext

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def job(rows: Iterator[int]) -> Iterator[tuple[int, str]]:
    time.sleep(0.5)
    yield sum(rows), os.environ["SPARK_LOCAL_IP"]


def main(master: str, place: str) -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": f"{QUICK} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "100",
        "spark.locality.wait": "0",
        "spark.local.dir": f"{place}/local",
    }
    conf = SparkConf().setMaster(master).setAppName("job").setAll(list(settings.items()))
    with SparkContext(conf=conf) as context:
        context.setLogLevel("OFF")
        for _ in iter(sys.stdin.readline, ""):
            done = context.parallelize(range(100), 2).mapPartitions(job).collect()
            print(json.dumps({"sum": sum(part for part, _ in done), "hosts": sorted({host for _, host in done})}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
