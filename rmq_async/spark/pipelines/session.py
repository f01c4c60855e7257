"""Provides the Spark session in which a pipeline runs: the existing session of any thread, or a new session. The session is a
classic one or belongs to Spark Connect.

Spark looks for Python data sources only in the session that is active in the calling thread, and each Python thread begins
without an active session.
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
"""Number of rows of a range, which exceeds the number of cores of a cluster. Spark divides such a range into as many partitions
as tasks run at a time.
"""


def activate(spark: SparkSession) -> None:
    """Make ``spark`` the active session of this thread by creating a DataFrame."""
    if SparkSession.getActiveSession() is not spark:
        spark.createDataFrame([], "nothing int")


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at a time, as ``spark.default.parallelism`` says.

    With Spark Connect, this function counts the partitions of a DataFrame, which requires a job.
    """
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        return spark.range(_MANY).select(spark_partition_id()).distinct().count()


@contextmanager
def running_or(begin: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """Yield the session of this process, made active in this thread. If there is none, yield a session from ``begin`` and stop
    it at the end.
    """
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


# Keeps the output of a JVM that this process starts away from the terminal.
#
# Spark logs before its level can be set, the JVM itself warns, and workers inherit their stderr from it.

STDERR: Final = 2
KEPT: Final = 64 * 1024
"""Number of bytes of output that are kept."""
CHUNK: Final = 64 * 1024
LAST_WORDS: Final = 1.0
"""Seconds to wait for the last output of processes that are ending."""


class Said:
    """The output of a pipe. The first 64 KiB are kept, and further bytes are counted."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._kept = bytearray()
        self._left_out = 0
        self._thread = start_thread(self._read_all, "rmq_async stderr")

    def text(self) -> str:
        """Wait up to a second for the children to end. Return the kept output and, if bytes were left out, their number."""
        self._thread.join(LAST_WORDS)
        more = f"\n... and {self._left_out} more bytes\n" if self._left_out else ""
        return self._kept.decode(errors="replace") + more

    def _read_all(self) -> None:
        """Read until no process has the other end open, so that no process waits because the pipe is full."""
        while data := os.read(self._reader, CHUNK):
            room = data[: KEPT - len(self._kept)]
            self._kept += room
            self._left_out += len(data) - len(room)
        os.close(self._reader)


@contextmanager
def stderr_kept() -> Iterator[Said]:
    """Capture the output that this process writes to stderr in the block. Also capture the output of processes that are started
    in the block, even after the block.

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
    """Capture the output as ``stderr_kept`` does, if ``silent`` is True and the process has a stderr.

    If the block raises an error, print the beginning of the captured output.
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
