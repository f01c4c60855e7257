"""Reads and moves files in the stores that Spark uses (local, HDFS, object stores), through Hadoop's file systems as the
session configures them.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from rmq_async.errors import ConfigError


class Files:
    """The file systems of a session.

    Raises:
        ConfigError: For a session of Spark Connect, because it has no JVM in this process.
    """

    def __init__(self, spark: SparkSession) -> None:
        try:
            self._jvm: Any = spark._jvm
        except PySparkAttributeError:
            raise ConfigError(
                "this pipeline accesses files through the JVM of a classic session, but this session is one of Spark Connect; run "
                "the pipeline with spark-submit"
            ) from None
        self._gateway: Any = spark.sparkContext._gateway
        self._settings: Any = spark._jsc.hadoopConfiguration()

    def names(self, path: str) -> list[str] | None:
        """Return the sorted names in a directory. Return None if the directory does not exist."""
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

    def scheme(self, path: str) -> str:
        """Return the kind of store that holds ``path``: file, hdfs, s3a and so on."""
        _, system = self._at(path)
        return str(system.getUri().getScheme() or "")

    def plain(self, uri: str) -> str:
        """Return the path that a URI in a log of Spark encodes."""
        return str(self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(uri)).toString())

    def size_and_time(self, path: str) -> tuple[int, int]:
        """Return the size of a file in bytes, and the time of its last change in milliseconds since 1970."""
        place, system = self._at(path)
        status = system.getFileStatus(place)
        return int(status.getLen()), int(status.getModificationTime())

    def parquet_below(self, path: str) -> dict[str, int]:
        """Return the Parquet files in the partition directories below ``path``, each with the time of its last change in
        milliseconds since 1970.
        """
        place, system = self._at(path)
        found = {}
        remaining = [place]
        while remaining:
            for status in system.listStatus(remaining.pop()):
                below = status.getPath()
                if below.getName().startswith(("_", ".")):
                    continue
                if status.isDirectory():
                    remaining.append(below)
                elif below.getName().endswith(".parquet"):
                    found[str(below.toString())] = int(status.getModificationTime())
        return found

    def move(self, path: str, to: str) -> None:
        """Rename a file.

        Raises:
            OSError: If the store refuses to rename the file, as HDFS does if the target exists.
        """
        place, system = self._at(path)
        if not system.rename(place, self._jvm.org.apache.hadoop.fs.Path(to)):
            raise OSError(
                f"{path} could not be renamed to {to}; check that its directory exists, and that no file has that name"
            )

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its contents."""
        place, system = self._at(path)
        system.delete(place, True)

    def replace(self, path: str, text: str) -> None:
        """Replace the content of a file with one rename. See ``compaction`` for the stores that rename atomically."""
        place, system = self._at(path)
        new = self._jvm.org.apache.hadoop.fs.Path(place.getParent(), f".{place.getName()}.{uuid4().hex}.tmp")
        stream = system.create(new, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        over = self._gateway.new_array(rename, 1)
        over[0] = rename.OVERWRITE
        self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(system.getUri(), self._settings).rename(new, place, over)

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place, place.getFileSystem(self._settings)
