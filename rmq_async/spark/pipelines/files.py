"""Reads files where Spark keeps them (local, HDFS, object stores) by Hadoop's file systems, as the session has them set up."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

__all__ = ["Files"]


class Files:
    """The file systems of a session. Needs a classic one: a session of Spark Connect has no JVM to ask."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._settings: Any = spark._jsc.hadoopConfiguration()

    def names(self, path: str) -> list[str] | None:
        """Returns the names in a directory, sorted; None if it does not exist."""
        place, system = self._at(path)
        if not system.exists(place) or not system.getFileStatus(place).isDirectory():
            return None
        return sorted(str(status.getPath().getName()) for status in system.listStatus(place))

    def text(self, path: str) -> str:
        place, system = self._at(path)
        stream = system.open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place, place.getFileSystem(self._settings)
