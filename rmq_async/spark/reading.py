"""The readers for batch reads and streaming reads.

Spark runs a reader in three kinds of processes: a planner that runs as long as the query, a short-lived process that only
creates the reader to pickle it, and the tasks. Therefore, the constructor opens no connection, and a task gets only its
``Slice``, which is a list of ranges of offsets, from the planner.

The ranges of a stream come from the offsets in its checkpoint, so a new planner continues where the previous planner ended. A
queue without a route keeps its offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rmq_protocol.message import MessageQueue

from ..errors import ConfigError, RocketMQError
from . import planning
from .cluster import Cluster, Extents
from .options import ReadOptions, group_of_query
from .positions import Positions, Times, key_of
from .pushdown import PushedFilters, push_down
from .short_errors import short_errors, short_errors_iterated

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ASKED_FOR_TIMES: Final = 64
"""Maximum number of queues for which the store time of the oldest unread message is requested. The queues with the most unread
messages are used.
"""


def _of_query(options: ReadOptions, context: TaskContext | None) -> ReadOptions:
    """Return the options. In a task of a streaming query with ``group_prefix``, replace the group by that of the query."""
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if options.group_prefix is None or not query:
        return options
    return replace(options, group=group_of_query(options.group_prefix, query))


class Slice(InputPartition):
    """The ranges of one task. A slice holds no options, because plans and logs may show it."""

    def __init__(self, ranges: tuple[planning.Range, ...]) -> None:
        super().__init__(tuple(map(tuple, ranges)))

    @property
    def ranges(self) -> tuple[planning.Range, ...]:
        return tuple(planning.Range(*fields) for fields in self.value)


class _Reader:
    """The common part of all readers: reading in a task, the division into tasks, and the report of losses."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @short_errors_iterated
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .arrow import record_batches
        from .pulling import Puller
        from .worker import worker

        assert isinstance(partition, Slice)
        if not partition.ranges:
            return
        context = TaskContext.get()
        options = _of_query(self._options, context)
        again = context is not None and context.attemptNumber() > 0
        here = worker()
        reader = here.reader(options.access, options.group, fresh=again)
        with here.using(reader):
            yield from record_batches(Puller(here, reader, partition.ranges, options).batches(), options.columns)

    def _cut(self, ranges: Iterable[planning.Range]) -> list[InputPartition]:
        options = self._options
        slices = planning.cut(
            ranges, at_least=options.min_partitions, at_most=options.max_partitions, max_records=options.max_records
        )
        return [Slice(part) for part in slices]

    def _report_losses(self, losses: Sequence[planning.Loss]) -> None:
        """Raise OffsetRangeError for the first loss if losses fail the query. Otherwise, log each loss."""
        if self._options.fail_on_data_loss:
            planning.raise_losses(losses)
        for loss in losses:
            logger.warning("data is lost, the query continues: %s", loss)

    def _ranges(self, starts: planning.Offsets, ends: planning.Offsets, there: Extents) -> list[planning.Range]:
        """Return the existing parts of the ranges. The remaining parts count as lost.

        A range for which only a replica responded is not shortened, because the task waits for messages that the replica lacks.
        """
        self._report_losses(_losses(starts, ends, there))
        return [
            planning.Range(*queue, max(starts[queue], there.earliest[queue]), min(ends[queue], there.latest[queue]))
            if queue in there.proven
            else planning.Range(*queue, starts[queue], ends[queue])
            for queue in sorted(ends)
            if queue in there.latest
        ]


class BatchReader(_Reader, DataSourceReader):
    """The reader of a batch. It has no ``pushFilters``, because Spark raises an error for that method unless a setting of the
    session allows it.
    """

    _wanted = PushedFilters()

    @short_errors
    def partitions(self) -> Sequence[InputPartition]:
        wanted = self._wanted
        options = self._options
        tags = wanted.tags_with(options.tags)
        self._options = options = replace(options, tags=tags or options.tags)
        cluster = Cluster(options)
        there = cluster.extents(cluster.queues(), settled=True)
        starts = planning.starts_of_options(options, cluster, there.earliest, there.latest)
        ends = planning.ends_of_options(options, cluster, there.earliest, there.latest)
        if isinstance(options.start, int | Times):
            starts = {queue: min(start, there.latest[queue]) for queue, start in starts.items()}
        elif isinstance(options.start, Positions) and isinstance(options.end, Positions):
            _check_order(starts, ends)
        ranges = self._ranges(starts, ends, there)
        if tags is None:
            ranges = []
        slices = self._cut(_within(wanted, ranges, cluster))
        return slices or [Slice(())]  # without any partition, Spark would create one itself


class PushingReader(BatchReader):
    """The reader of a batch with the option ``filterPushdown``."""

    @short_errors
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._wanted = push_down(filters)
        return filters


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream. Its offsets are dicts as ``EndOffset.to_json`` returns them."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._cluster = Cluster(options)
        self._initial: dict[str, Any] | None = None
        self._snapshot: Extents | None = None
        self._reported: dict[str, Any] | None = None
        self._watch = _Watch(options)
        self._committed: planning.Offsets | None = None
        self._waiting_since: float | None = None

    @short_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offsets at which the stream begins. Later calls return the offsets of the first call."""
        if self._initial is None:
            cluster = self._cluster
            there = cluster.extents(cluster.queues(), settled=True)
            starts = planning.starts_of_options(self._options, cluster, there.earliest, there.latest)
            if isinstance(self._options.start, Positions) and not isinstance(self._options.start, Times):
                self._report_losses(_losses(starts, starts, there))
                starts = {
                    queue: min(start, there.latest[queue]) if queue in there.proven else start
                    for queue, start in starts.items()
                }
            self._initial = planning.EndOffset(starts).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._snapshot = self._cluster.newest(settled=True)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end offsets of the queues at the last trigger and, by topic, the store time of the oldest unread message
        if it is known. ``LagListener`` computes the lag from them. Return None before the first trigger.
        """
        return self._reported

    @short_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = planning.EndOffset.from_json(start)
        self._check_topics(begin)
        latest = self._latest(begin)
        self._reported = planning.EndOffset(latest).to_json()
        self._watch.look(begin, latest)
        odd = planning.find_odd(begin, latest)
        step = planning.advance(
            begin,
            latest,
            self._cluster.earliest(odd) if odd else {},
            limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            keep_init=self._options.commit,
        )
        if self._snapshot is None and not self._enough(step.backlog):
            return planning.EndOffset(begin.queues, begin.queues if begin.init is None else begin.init).to_json()
        self._report_losses(step.losses)
        self._reported |= self._oldest_unread(step.end.queues, latest)
        return step.end.to_json()

    def _oldest_unread(self, ends: planning.Offsets, latest: planning.Offsets) -> dict[str, Any]:
        """Return the store time of the oldest message that this micro-batch leaves unread, by topic. Reported offsets have it as
        ``t``. Messages of at most ``ASKED_FOR_TIMES`` queues are requested.
        """
        left = {queue: last - ends.get(queue, last) for queue, last in latest.items() if last > ends.get(queue, last)}
        most = sorted(left, key=lambda queue: -left[queue])[:ASKED_FOR_TIMES]
        times = self._cluster.store_times({queue: ends[queue] for queue in most}) if most else {}
        oldest: dict[str, int] = {}
        for queue, moment in times.items():
            oldest[queue.topic] = min(moment, oldest.get(queue.topic, moment))
        return {"t": oldest} if oldest else {}

    @short_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = planning.EndOffset.from_json(end)
        starts = planning.starts_of(planning.EndOffset.from_json(start), last)
        ends = {queue: offset for queue, offset in last.queues.items() if offset != starts[queue]}
        if not ends:
            return []
        _check_order(starts, ends)
        queues = [queue for queue in self._cluster.queues(begun=True, wanted=ends) if queue in ends]
        there = self._cluster.extents(queues)
        if _losses(starts, ends, there):  # a broker that has just started may not show all of its queues yet
            there = self._cluster.extents(queues, settled=True)
        return self._cut(self._ranges(starts, ends, there))

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets of ``end`` if the option ``commitOffsets`` is set.

        Spark reports a micro-batch as read when it plans the next one.

        Leave out queues whose offset has not changed since the last commit or, in the first commit, is still their start.
        Brokers know a group from its pulls, and nothing was pulled from these queues.
        """
        if self._options.commit:
            offset = planning.EndOffset.from_json(end)
            known = self._committed or offset.init or {}
            if self._cluster.commit({queue: at for queue, at in offset.queues.items() if known.get(queue) != at}):
                self._committed = offset.queues

    def stop(self) -> None:
        """Do nothing. Spark may end the process without this call."""

    def _latest(self, begin: planning.EndOffset) -> dict[MessageQueue, int]:
        """Return the ends of the queues. An end below the offset that was already read is used only if a second request
        confirms it.
        """
        cluster = self._cluster
        there = self._snapshot if self._snapshot is not None else cluster.newest()
        latest = dict(there.latest)
        if begin.init is None:  # from initialOffset, which may have requested the offsets a moment later
            return {queue: max(offset, begin.queues.get(queue, 0)) for queue, offset in latest.items()}
        if fallen := [queue for queue in planning.find_odd(begin, latest) if queue in begin.queues]:
            again = cluster.extents([queue for queue in fallen if queue in there.proven], settled=True)
            latest |= {queue: again.latest[queue] if queue in again.proven else begin.queues[queue] for queue in fallen}
        return latest

    def _check_topics(self, begin: planning.EndOffset) -> None:
        old, now = {queue.topic for queue in begin.queues}, self._options.topics
        if old and now and old.isdisjoint(now):
            raise ConfigError(
                f"the checkpoint belongs to topic {', '.join(sorted(old))}, but this query reads {', '.join(now)}; give the query "
                "its own checkpointLocation"
            )

    def _enough(self, backlog: int) -> bool:
        """Return whether ``minOffsetsPerTrigger`` and ``maxTriggerDelay`` let a micro-batch begin.

        The first micro-batch of a run may always begin, so that messages that arrived while no query ran are not delayed.
        """
        fewest = self._options.min_offsets
        if fewest is None:
            return True
        now, since = monotonic(), self._waiting_since
        if since is not None and backlog < fewest and (not backlog or now - since < self._options.max_delay):
            return False
        self._waiting_since = now
        return True


class _Watch:
    """Watches the queues of a stream that are missing from all routes. Queues with unread messages count as lost if they stay
    missing for longer than requests are repeated.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._patience = options.fetch_retries * options.fetch_interval
        self._fails = options.fail_on_data_loss
        self._seen: dict[MessageQueue, int] = {}
        self._absent: dict[MessageQueue, float] = {}

    def look(self, begin: planning.EndOffset, latest: Mapping[MessageQueue, int]) -> None:
        """Log the queues that are newly absent.

        Raises:
            OffsetRangeError: If losses fail the query, for a queue that has unread messages and was absent for longer than
                requests are repeated.
        """
        self._seen.update(latest)
        absent = [queue for queue in begin.queues if queue not in latest]
        self._absent = {queue: self._absent.get(queue, 0.0) for queue in absent}
        for queue in absent:
            at, seen = begin.queues[queue], self._seen.get(queue, 0)
            if not self._absent[queue]:
                self._absent[queue] = monotonic()
                unread = f"offsets {at} to {seen} have not been read" if seen > at else "its known messages have been read"
                logger.warning("queue %s is in no route now; %s; its offset, %d, is kept", key_of(queue), unread, at)
            elif self._fails and seen > at and monotonic() - self._absent[queue] > self._patience:
                planning.raise_losses([planning.Loss(queue, "the queue is gone", (at, seen), None)])


def _losses(starts: planning.Offsets, ends: planning.Offsets, there: Extents) -> list[planning.Loss]:
    """Return the losses, without those of queues for which only a replica responded, because its offsets do not prove a loss."""
    judged = {queue: end for queue, end in ends.items() if queue in there.proven or queue not in there.latest}
    return planning.find_losses(starts, judged, there.earliest, there.latest)


def _within(wanted: PushedFilters, ranges: Iterable[planning.Range], cluster: Cluster) -> list[planning.Range]:
    ranges = [each for each in ranges if wanted.wants(each.queue)]
    since, until = wanted.stored
    queues = [each.queue for each in ranges]
    low = {} if since is None else cluster.stored_at(dict.fromkeys(queues, since))
    high = {} if until is None else cluster.stored_at(dict.fromkeys(queues, until + 1))
    found = []
    for each in ranges:
        start, end = wanted.within(each.start, each.end)
        found.append(each._replace(start=max(start, low.get(each.queue, start)), end=min(end, high.get(each.queue, end))))
    return found


def _check_order(starts: planning.Offsets, ends: planning.Offsets) -> None:
    for queue, end in sorted(ends.items()):
        if starts[queue] > end:
            raise ConfigError(
                f"the end of {key_of(queue)}, offset {end}, is before its start, offset {starts[queue]}; give a later end"
            )


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Replaces a reader that cannot be created. Its methods that plan or read raise the error.

    Spark would replace an error of the constructor with its own error.
    """

    def __init__(self, error: RocketMQError) -> None:
        self._error = error

    @short_errors
    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self._error

    initialOffset = _refuse  # noqa: N815 - Spark's names
    latestOffset = _refuse  # noqa: N815
    prepareForTriggerAvailableNow = _refuse  # noqa: N815
    partitions = _refuse
    read = _refuse
