"""A server of Spark Connect on a cluster of processes: ``python connect_server.py PLACE PORT``; prints "ready", ends with stdin.

``PLACE``: a directory for its files. The executor of the one worker is a JVM of its own.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(place: str, port: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local-cluster[1,2,1024]")
    for name, value in {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{QUICK} -Dderby.system.home={place}",
        "spark.executor.extraJavaOptions": f"{QUICK} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": f"{place}/warehouse",
        "spark.local.dir": f"{place}/local",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    print("ready", flush=True)
    sys.stdin.read()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
