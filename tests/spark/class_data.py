"""Spark's classes, kept for the JVMs that start later: each takes 5 s of a processor instead of 9.5 s until its first query.

The archive lies beside Spark's jars, so a new environment makes a new one. A JVM whose class path begins with other entries starts
without it.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_async.testing._jars import ClassData, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["keep_classes", "submit_options"]

_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Of an archive that does not fit, Java would write to the standard output."""


def submit_options() -> dict[str, str]:
    """Returns the environment in which ``spark-submit`` uses the archive, or can make it; empty where neither is possible."""
    data = _class_data()
    options = () if data is None else data.options()
    return {"SPARK_SUBMIT_OPTS": " ".join((*options, *_QUIET))} if options else {}


def keep_classes(session: SparkSession) -> None:
    """Makes the archive of what the session's JVM has loaded after a query and a stream, if there is none."""
    data = _class_data()
    if data is None or not data.wanted:
        return
    session.range(100).selectExpr("id", "id % 7 AS k").groupBy("k").count().collect()
    stream = session.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True).start()
    stream.awaitTermination(30)
    for listed in Path("/proc/self/task").glob("*/children"):
        for pid in listed.read_text().split():
            if b"SparkSubmit" in Path("/proc", pid, "cmdline").read_bytes():
                data.write(int(pid))


def _class_data() -> ClassData | None:
    spark, java = find_spec("pyspark"), find_java()
    if spark is None or spark.origin is None or java is None:
        return None
    jars = sorted(str(jar) for jar in Path(spark.origin).with_name("jars").glob("*.jar"))
    return ClassData(java, "org.apache.spark.deploy.SparkSubmit", os.pathsep.join(jars), static=False) if jars else None
