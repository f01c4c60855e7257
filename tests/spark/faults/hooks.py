"""``format("rocketmq_faults")``: our data source with faults at chosen places of its readers and writers.

It passes everything on to the readers and writers of ``format("rocketmq")``, in whichever process Spark runs them, and takes one
option of its own, ``faults``: the run as JSON. Each fault that strikes is written to the run's history first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from time import sleep
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rmq_async.spark import RocketMQDataSource

from .history import Fault, Run, batches

SETTLING = 0.4
"""Seconds between handing rows to the sink and the fault, so that brokers have answered them."""


class InjectedError(RuntimeError):
    """What a task raises."""


class Strikes:
    """The faults of a run, in one process."""

    def __init__(self, text: str) -> None:
        self.run = Run.from_json(text)

    def find(self, place: str, batch: int, number: int = 0) -> Fault | None:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            return None
        for fault in self.run.faults:
            if (fault.place, fault.batch, fault.number) == (place, batch, number):
                return fault
        return None

    def strike(self, fault: Fault, rows: int = 0) -> None:
        context = TaskContext.get()
        self.run.note(
            "fired", place=fault.place, action=fault.action, batch=fault.batch, number=fault.number, rows=rows, pid=os.getpid(),
            task=context is not None,
        )  # fmt: skip
        if fault.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.action == "raise":
            raise InjectedError(f"injected at row {rows}")
        self.run.wait_signal(fault.go)

    def cut(self, rows: Iterator[pa.RecordBatch], fault: Fault, settling: float = 0.0) -> Iterator[pa.RecordBatch]:
        """``rows``, and the fault between row ``fault.row`` and the next."""
        seen, struck = 0, False
        if fault.row == 0:
            self.strike(fault)
            yield from rows
            return
        for batch in rows:
            if not struck and seen + batch.num_rows >= fault.row:
                yield batch.slice(0, fault.row - seen)
                sleep(settling)
                struck = True
                self.strike(fault, fault.row)
                if fault.row - seen < batch.num_rows:
                    yield batch.slice(fault.row - seen)
            else:
                yield batch
            seen += batch.num_rows


class FaultyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, inner: Any, text: str) -> None:
        self._inner = inner
        self._text = text
        self._asked = False

    @property
    def _strikes(self) -> Strikes:
        return Strikes(self._text)

    def initialOffset(self) -> dict[str, Any]:
        offset: dict[str, Any] = self._inner.initialOffset()
        if not self._asked:
            self._asked = True
            self._strikes.run.note("initial", offsets=offset)
        return offset

    def prepareForTriggerAvailableNow(self) -> None:
        strikes = self._strikes
        if not strikes.run.history("fed") and not batches(strikes.run.checkpoint / "offsets"):
            self.initialOffset()
            strikes.run.wait_event("fed")  # "latest" is resolved, and only then are there messages
        self._inner.prepareForTriggerAvailableNow()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit: ReadLimit = self._inner.getDefaultReadLimit()
        return limit

    def reportLatestOffset(self) -> dict[str, Any] | None:
        offset: dict[str, Any] | None = self._inner.reportLatestOffset()
        return offset

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        strikes = self._strikes
        strikes.run.wait_event("fed")
        offset: dict[str, Any] = self._inner.latestOffset(start, limit)
        planned = batches(strikes.run.checkpoint / "offsets")
        fault = strikes.find("latest", planned[-1] + 1 if planned else 0)
        if fault is not None and offset != start:
            strikes.strike(fault)
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        strikes = self._strikes
        fault = strikes.find("partitions", batches(strikes.run.checkpoint / "offsets")[-1])
        if fault is not None:
            strikes.strike(fault)
        slices: Sequence[InputPartition] = self._inner.partitions(start, end)
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        strikes = self._strikes
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        rows: Iterator[pa.RecordBatch] = self._inner.read(partition)
        fault = strikes.find("read", batch, partition.value[0][2]) if partition.value else None
        return rows if fault is None else strikes.cut(rows, fault)

    def commit(self, end: dict[str, Any]) -> None:
        self._inner.commit(end)

    def stop(self) -> None:
        self._inner.stop()


class FaultyWriter(DataSourceStreamArrowWriter):
    def __init__(self, inner: Any, text: str) -> None:
        self._inner = inner
        self._text = text

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        strikes = Strikes(self._text)
        context = TaskContext.get()
        assert context is not None
        batch, partition = int(context.getLocalProperty("streaming.sql.batchId") or -1), context.partitionId()
        counted = [0]

        def rows() -> Iterator[pa.RecordBatch]:
            for each in iterator:
                counted[0] += each.num_rows
                yield each

        fault = strikes.find("write", batch, partition)
        given = rows() if fault is None else strikes.cut(rows(), fault, SETTLING)
        message: WriterCommitMessage = self._inner.write(given)
        if fault := strikes.find("written", batch, partition):
            strikes.strike(fault, counted[0])
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        strikes = Strikes(self._text)
        if fault := strikes.find("commit", batchId):
            strikes.strike(fault)
        self._inner.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.abort(messages, batchId)


class FaultyDataSource(RocketMQDataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options.items())
        self._run = given.pop("faults")
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "rocketmq_faults"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FaultyReader(super().streamReader(schema), self._run)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return FaultyWriter(super().streamWriter(schema, overwrite), self._run)
