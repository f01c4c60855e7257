"""Provides the Spark session a pipeline runs in: the existing one of any thread, or a new one; classic, or of Spark Connect.

Spark looks for data sources of Python only in the session that is active in the calling thread, and each Python thread begins
without one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from pyspark.errors import PySparkAttributeError, PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from rmq_async._threads import start_thread

_MANY: Final = 1 << 16
"""Rows of a range, more than a cluster has cores: Spark makes as many partitions of it as tasks run at a time."""


def activate(spark: SparkSession) -> None:
    """Make ``spark`` the active session of this thread, by creating a frame."""
    if SparkSession.getActiveSession() is not spark:
        spark.createDataFrame([], "nothing int")


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at a time, as ``spark.default.parallelism`` says.

    With Spark Connect it counts the partitions of a frame, which takes a job.
    """
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        return spark.range(_MANY).select(spark_partition_id()).distinct().count()


@contextmanager
def running_or(begin: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """Yield the session of this process, else one that ``begin`` makes and that ends here; active in this thread."""
    there = _running()
    spark = begin() if there is None else there
    try:
        activate(spark)
        yield spark
    finally:
        if there is None:
            spark.stop()


def _running() -> SparkSession | None:
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


# Keeps the output of a JVM that this process starts off the terminal.
#
# Spark logs before its level can be set, the JVM itself warns, and workers inherit their stderr from it.

STDERR: Final = 2
KEPT: Final = 64 * 1024
"""Bytes of output that are kept."""
CHUNK: Final = 64 * 1024
LAST_WORDS: Final = 1.0
"""Seconds to wait for the last output of processes that end."""


class Said:
    """The output of a pipe: the first 64 KiB are kept, the rest is counted."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._kept = bytearray()
        self._left_out = 0
        self._thread = start_thread(self._read_all, "rmq_async stderr")

    def text(self) -> str:
        """Return the first 64 KiB, and the number of bytes after them, when the children have ended or a second is over."""
        self._thread.join(LAST_WORDS)
        more = f"\n... and {self._left_out} bytes more\n" if self._left_out else ""
        return self._kept.decode(errors="replace") + more

    def _read_all(self) -> None:
        """Read until no process has the other end open, so that none waits for room in the pipe."""
        while data := os.read(self._reader, CHUNK):
            room = data[: KEPT - len(self._kept)]
            self._kept += room
            self._left_out += len(data) - len(room)
        os.close(self._reader)


@contextmanager
def stderr_kept() -> Iterator[Said]:
    """Keep off the terminal what this process writes to stderr in the block, and what processes that start in it write, also
    after the block.

    Raises:
        OSError: If this process has no stderr.
    """
    terminal = os.dup(STDERR)
    reader, writer = os.pipe()
    sys.stderr.flush()
    os.dup2(writer, STDERR)
    os.close(writer)
    try:
        yield Said(reader)
    finally:
        sys.stderr.flush()
        os.dup2(terminal, STDERR)
        os.close(terminal)


@contextmanager
def silent_start(silent: bool) -> Iterator[None]:
    """Keep stderr as ``stderr_kept`` does, if ``silent`` and if there is one.

    If the block raises, prints the beginning of the kept output.
    """
    said: Said | None = None
    with ExitStack() as stack:
        if silent:
            with suppress(OSError):
                said = stack.enter_context(stderr_kept())
        try:
            yield
        except BaseException:
            stack.close()
            if said is not None:
                sys.stderr.write(said.text())
            raise
