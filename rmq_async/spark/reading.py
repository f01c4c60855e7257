"""Batch reads and streaming reads: the two kinds of reader that Spark asks for.

Spark runs a reader in three kinds of processes: a planner that lives as long as the query, a short one that only makes the reader
to pickle it, and the tasks. So making one opens nothing, and nothing goes from the planner to a task but its ``Slice``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rmq_protocol.message import MessageQueue

from ..errors import RocketMQError
from .arrow import record_batches
from .cluster import Cluster
from .options import ReadOptions
from .plain import plainly, plainly_iterated
from .planning import EndOffset, Range, cut, find_losses, limited, raise_losses
from .positions import Times
from .pulling import Puller
from .worker import worker

__all__ = ["BatchReader", "RefusedStream", "Slice", "StreamReader"]

logger = logging.getLogger(__name__)


class Slice(InputPartition):
    """What one task reads. It holds no option: plans and logs may show it."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(tuple(map(tuple, ranges)))

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(Range(*fields) for fields in self.value)


class _Reader:
    """What both do in a task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @plainly_iterated
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        options = self._options
        context = TaskContext.get()
        again = context is not None and context.attemptNumber() > 0
        here = worker()
        reader = here.reader(options.access, options.group, fresh=again)
        return record_batches(Puller(here, reader, partition.ranges, options).batches(), options.columns)

    def _cut(self, ranges: Sequence[Range]) -> Sequence[InputPartition]:
        options = self._options
        slices = cut(ranges, at_least=options.min_partitions, at_most=options.max_partitions, max_records=options.max_records)
        return [Slice(part) for part in slices]

    def _start(self, cluster: Cluster, queues: tuple[MessageQueue, ...]) -> dict[MessageQueue, int]:
        options = self._options
        offsets = cluster.at(queues, options.start)
        if options.no_match_error and isinstance(options.start, int | Times):
            moment = f"timestamp {options.start}" if isinstance(options.start, int) else "its timestamp"
            cluster.check_matches(offsets, cluster.latest(queues), moment)
        return offsets


class BatchReader(_Reader, DataSourceReader):
    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = Cluster(options)
        queues = cluster.queues()
        start = self._start(cluster, queues)
        assert options.end is not None
        end = cluster.at(queues, options.end)
        earliest, latest = cluster.earliest(queues), cluster.latest(queues)
        losses = find_losses(start, end, earliest, latest)
        if options.fail_on_data_loss:
            raise_losses(losses)
        for loss in losses:
            logger.warning("data is lost, the query goes on: %s", loss)
        ranges = [Range(*queue, max(start[queue], earliest[queue]), min(end[queue], latest[queue])) for queue in queues]
        return self._cut(ranges)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are dicts of ``EndOffset``. The planner keeps the last answers; a restart begins with what the checkpoint says."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._initial: dict[str, Any] | None = None
        self._init: Mapping[MessageQueue, int] | None = None
        self._snapshot: dict[MessageQueue, int] | None = None
        self._reported: dict[str, Any] | None = None
        self._waiting_since: float | None = None

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._initial is None:
            cluster = Cluster(self._options)
            self._initial = EndOffset(self._start(cluster, cluster.queues())).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        cluster = Cluster(self._options)
        self._snapshot = cluster.latest(cluster.queues(), settled=True)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._reported

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = EndOffset.from_json(start)
        init = begin.init if begin.init is not None else begin.queues
        cluster = Cluster(self._options)
        latest = self._snapshot if self._snapshot is not None else cluster.latest(cluster.queues())
        self._reported = EndOffset(latest).to_json()
        starts = dict(begin.queues)
        new = [queue for queue in latest if queue not in starts]
        if new:
            starts |= cluster.earliest(new)
        if self._snapshot is None and not self._enough(starts, latest):
            return start if begin.init is not None else EndOffset(begin.queues, init).to_json()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        gone = {queue: offset for queue, offset in starts.items() if queue not in latest}
        return EndOffset(gone | limited(starts, latest, most), init).to_json()

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = EndOffset.from_json(end)
        first = EndOffset.from_json(start)
        # A start that was never written is what initialOffset says now; after a restart before the first commit that is later
        # than the end that was written. The end says what it was.
        starts = dict(first.queues if first.init is not None or last.init is None else last.init)
        cluster = Cluster(self._options)
        there = [queue for queue in cluster.queues() if queue in last.queues]
        earliest, latest = cluster.earliest(there), cluster.latest(there)
        for queue in last.queues:
            starts.setdefault(queue, earliest.get(queue, 0))
        losses = find_losses(starts, last.queues, earliest, latest)
        if self._options.fail_on_data_loss:
            raise_losses(losses)
        for loss in losses:
            logger.warning("data is lost, the query goes on: %s", loss)
        return self._cut(
            [Range(*queue, max(starts[queue], earliest[queue]), min(last.queues[queue], latest[queue])) for queue in there]
        )

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.commit:
            Cluster(self._options).commit(EndOffset.from_json(end).queues)

    def stop(self) -> None:
        """Nothing is held on a broker, and Spark does not call this when a query is stopped."""

    def _enough(self, starts: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int]) -> bool:
        """Whether ``minOffsetsPerTrigger`` and ``maxTriggerDelay`` let a micro-batch begin."""
        fewest = self._options.min_offsets
        if fewest is None:
            return True
        backlog = sum(max(latest[queue] - starts[queue], 0) for queue in latest)
        now = monotonic()
        since = self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if backlog < fewest and now - since < self._options.max_delay:
            return False
        self._waiting_since = now
        return True


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In place of a reader that cannot be made: says why at the first question. Were the making to fail, Spark would run into an
    error of its own and show that one."""

    def __init__(self, error: RocketMQError) -> None:
        self._error = error

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._error

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        raise self._error

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        raise self._error

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    @plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
