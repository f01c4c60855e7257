"""Reports the lag of streaming queries as OpenTelemetry gauges and log lines, from the progress that Spark reports.

All figures come from the progress. Therefore, a listener sends no requests to brokers, and one listener serves all queries of a
session that read RocketMQ. The ``StreamReader`` of a query reports the ends of the queues at the last trigger, and the store time
of the oldest message that the micro-batch leaves unread. For the store time, at each trigger that leaves messages unread, it
requests one message from each of up to 64 queues, even without a listener.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from .._text import printable
from .short_errors import sentence

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, Observation
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

logger = logging.getLogger(__name__)

METER: Final = "rmq_async.spark"


@dataclass(frozen=True)
class TopicLag:
    """The lag of one query in one topic after a micro-batch.

    Attributes:
        behind: Number of existing offsets that are not read. None if it is unknown, because the progress contains no end of a
            queue of the topic.
        read: Number of offsets in the micro-batch.
        oldest: Store time of the oldest unread message, in seconds since 1970 by the driver's clock. None if all messages are
            read or the time is unknown.
    """

    topic: str
    behind: int | None
    read: int
    oldest: float | None

    def seconds_behind(self, now: float) -> float | None:
        """Return the age of the oldest unread message at ``now`` in seconds. Return 0 if all messages are read, and None if the
        age is unknown.
        """
        if self.oldest is None:
            return 0.0 if self.behind == 0 else None
        return max(now - self.oldest, 0.0)


@dataclass(frozen=True)
class QueryLag:
    """The lag of one query after a micro-batch.

    Attributes:
        name: Name of the query, or its id if it has no name.
        duration: Duration of the micro-batch in seconds.
        at: Monotonic time of the last event of the query that the listener received.
    """

    name: str
    batch: int
    duration: float
    topics: tuple[TopicLag, ...]
    at: float = 0.0

    def rate(self, topic: TopicLag) -> float:
        """Return the number of offsets of ``topic`` that were read per second of the micro-batch. Return 0 if the duration is
        0.
        """
        return topic.read / self.duration if self.duration > 0 else 0.0

    def text(self, now: float) -> str:
        """Return the log line.

        Args:
            now: Seconds since 1970.
        """
        topics = "; ".join(
            f"{printable(each.topic)}: {_lag_text(each, now)}, {self.rate(each):,.0f} read per second" for each in self.topics
        )
        return f"query {printable(self.name)}, micro-batch {self.batch} of {self.duration:.3g} s: {topics}"


def _lag_text(topic: TopicLag, now: float) -> str:
    if topic.behind is None:
        return "lag unknown"
    seconds = topic.seconds_behind(now)
    return f"{topic.behind:,} offsets, {'age unknown' if seconds is None else f'{seconds:,.1f} s behind'}"


def lag_of(progress: StreamingQueryProgress, at: float = 0.0) -> QueryLag | None:
    """Return the lag that Spark's progress of a query shows. Return None if no source in it has an end offset of RocketMQ queues.

    Args:
        at: Monotonic time of the progress.
    """
    found: dict[str, TopicLag] = {}
    for source in progress.sources:
        start, end, latest = (_offsets(text) for text in (source.startOffset, source.endOffset, source.latestOffset))
        if end is None:
            continue
        for each in _topics(start, end, latest):
            before = found.get(each.topic)
            found[each.topic] = each if before is None else _together(before, each)
    if not found:
        return None
    duration = progress.durationMs.get("triggerExecution", 0) / 1000
    topics = tuple(found[topic] for topic in sorted(found))
    return QueryLag(progress.name or str(progress.id), progress.batchId, duration, topics, at)


class _Offsets(NamedTuple):
    """The content of an offset in a progress (``EndOffset.to_json``).

    Attributes:
        queues: The offsets, by queue.
        init: The starts, by queue.
        oldest: Store time of the oldest unread message in epoch ms, by topic.
    """

    queues: Mapping[str, int]
    init: Mapping[str, int]
    oldest: Mapping[str, int]


def _offsets(text: object) -> _Offsets | None:
    """Parse the text of ``EndOffset.to_json``. Return None for anything else, such as the offset of another source."""
    try:
        data = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if not isinstance(data, dict) or data.get("v") != 1 or not isinstance(data.get("q"), dict):
        return None
    return _Offsets(data["q"], data.get("init") or {}, data.get("t") or {})


def _topics(start: _Offsets | None, end: _Offsets, latest: _Offsets | None) -> Iterator[TopicLag]:
    topics: dict[str, _Sums] = {}
    for queue, offset in end.queues.items():
        first = (start.queues if start is not None else {}).get(queue, end.init.get(queue, offset))
        if first > offset:  # the queue was created again
            first = end.init.get(queue, offset)
        sums = topics.setdefault(queue.partition("/")[0], _Sums())
        sums.read += offset - first
        # otherwise the queue is missing from all routes, so nothing can be read from it
        if latest is not None and queue in latest.queues:
            sums.behind = (sums.behind or 0) + max(latest.queues[queue] - offset, 0)
    for topic, sums in topics.items():
        moment = latest.oldest.get(topic) if latest is not None and sums.behind else None
        yield TopicLag(topic, sums.behind, sums.read, None if moment is None else moment / 1000)


@dataclass
class _Sums:
    """Sums over the queues of a topic, as in ``TopicLag``."""

    behind: int | None = None
    read: int = 0


def _together(one: TopicLag, other: TopicLag) -> TopicLag:
    """Return the sum for a topic that two sources of a query read. A figure is None if it is unknown for one of the sources."""
    moments = [each.oldest for each in (one, other) if each.oldest is not None]
    known = all(each.oldest is not None for each in (one, other) if each.behind != 0)
    behind = None if one.behind is None or other.behind is None else one.behind + other.behind
    return TopicLag(one.topic, behind, one.read + other.read, min(moments, default=None) if known else None)


_java_name: Final = re.compile(r"^(?:[\w$]+\.)+[\w$]+: ")
_raised: Final = re.compile(r"Traceback .*\n(?:[ \t].*\n)+(\S.*)")
"""Matches the line of a Python traceback that contains the error. The lines of the frames are indented."""


def _error_text(text: str) -> str:
    """Return one line about the error that ended a query.

    Args:
        text: Spark's text of the error, with tracebacks of Java and Python.
    """
    if (ours := sentence(RuntimeError(text))) is not None:
        return ours
    message = text.partition("\n\tat ")[0]
    found = _raised.findall(message)
    line = found[-1] if found else _java_name.sub("", message).partition("\n")[0]
    return line.strip()


class LagListener(StreamingQueryListener):
    """Reports how far the streaming queries of a session are behind in the topics that they read, and logs errors that end
    queries.

    It adds itself to ``spark.streams``; ``close`` removes it.

    Args:
        meter: An OpenTelemetry Meter for the gauges. If None, the meter of the global provider is used; without OpenTelemetry,
            no gauges are created.
        interval: Minimum seconds between two log lines (INFO) about a query. With 0, each micro-batch is logged.

    Raises:
        ValueError: For an interval below 0 and for NaN.
    """

    def __init__(self, spark: SparkSession, *, meter: Meter | None = None, interval: float = 10.0) -> None:
        if not interval >= 0:
            raise ValueError(f"interval must be 0 or more seconds, not {interval}")
        self._streams = spark.streams
        self._interval = interval
        self._names: dict[str, str] = {}
        self._lags: dict[str, QueryLag] = {}
        self._logged: dict[str, float] = {}
        self._lock = threading.Lock()
        if (meter := meter or _global_meter()) is not None:
            self._make_gauges(meter)
        self._streams.addListener(self)

    @property
    def lags(self) -> dict[str, QueryLag]:
        """The lag at the last micro-batch of each running query that reads RocketMQ, by the id of its run.

        A query is absent until its first progress.
        """
        with self._lock:
            return dict(self._lags)

    def close(self) -> None:
        """Remove the listener from the session. Its gauges then report no values."""
        self._streams.removeListener(self)
        with self._lock:
            self._names.clear()
            self._lags.clear()

    # -- what Spark calls

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Record the query's name for the log of an error that ends the query before its first progress event."""
        with self._lock:
            self._names[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Record the lag in a query's progress, and log it at most once per ``interval`` for each query.

        Ignore a query that does not read RocketMQ.
        """
        lag = lag_of(event.progress, monotonic())
        if lag is None:
            return
        run = str(event.progress.runId)
        with self._lock:
            self._lags[run] = lag
            due = lag.at - self._logged.get(run, -self._interval) >= self._interval
            if due:
                self._logged[run] = lag.at
        if due:
            logger.info("%s", lag.text(time()))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Record that the query runs and has nothing to read. Its last lag is still valid and is now up to date."""
        run = str(event.runId)
        with self._lock:
            if (lag := self._lags.get(run)) is not None:
                self._lags[run] = replace(lag, at=monotonic())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Remove the query from ``lags``, and log an error that ended it at ERROR.

        The error is logged whether the query reads RocketMQ or not, because a query that fails in its first micro-batch has no
        progress. If a query that read RocketMQ ends without an error, its end is logged at INFO.
        """
        run = str(event.runId)
        with self._lock:
            name = self._names.pop(run, None)
            lag = self._lags.pop(run, None)
            self._logged.pop(run, None)
        if name is None:  # the query was started before the listener was added
            name = str(event.id) if lag is None else lag.name
        if event.exception is not None:
            logger.error("query %s ended with an error: %s", printable(name), printable(_error_text(event.exception), 500))
        elif lag is not None:
            logger.info("query %s ended", printable(name))

    # -- gauges

    def _make_gauges(self, meter: Meter) -> None:
        from opentelemetry.metrics import Observation

        def by_topic(value: Callable[[QueryLag, TopicLag], float | None]) -> Iterator[Observation]:
            for lag in self.lags.values():
                for topic in lag.topics:
                    if (found := value(lag, topic)) is not None:
                        yield Observation(found, {"query": lag.name, "topic": topic.topic})

        def by_query(value: Callable[[QueryLag], float]) -> Iterator[Observation]:
            for lag in self.lags.values():
                yield Observation(value(lag), {"query": lag.name})

        def gauge(name: str, unit: str, text: str, values: Callable[[], Iterable[Observation]]) -> None:
            meter.create_observable_gauge(f"rmq.spark.{name}", [lambda _: values()], unit=unit, description=text)

        gauge("lag.offsets", "{offset}", "Offsets that are not read yet.", lambda: by_topic(lambda _, topic: topic.behind))
        age = "Age of the oldest message that is not read yet."
        gauge("lag.time", "s", age, lambda: by_topic(lambda _, topic: topic.seconds_behind(time())))
        rate = "Offsets read per second of the last micro-batch."
        gauge("read.rate", "{offset}/s", rate, lambda: by_topic(QueryLag.rate))
        gauge("batch.duration", "s", "Duration of the last micro-batch.", lambda: by_query(lambda query: query.duration))
        since = "Time since the last progress, or since the query said that it is idle."
        gauge("progress.age", "s", since, lambda: by_query(lambda query: monotonic() - query.at))


def _global_meter() -> Meter | None:
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        return None
    return get_meter(METER)
