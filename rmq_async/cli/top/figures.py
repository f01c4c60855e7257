"""Computes rates from two overviews, and the rows of the tables.

This module does no I/O.

A rate counts only queues that both overviews have and whose offset has not decreased, so a broker that joins or leaves causes
no peak. The outgoing rate of a topic is the rate at which groups commit messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from rmq_async.admin import BrokerOverview, Overview
from rmq_protocol.message import MessageQueue

GONE: Final = "no name server knows it any more"
MOST_KNOWN: Final = 1000
"""Number of known brokers above which further brokers are not remembered."""


@dataclass(frozen=True)
class TopicRow:
    """The figures of one topic.

    Attributes:
        in_rate: Messages that are stored per second. None while the rate is unknown.
        out_rate: Messages that groups commit per second. None while the rate is unknown.
        messages: Number of stored messages. None if a broker refused the topic's offsets.
        queues: Number of queues. None if a broker refused the topic's offsets.
        groups: Number of groups that have offsets for the topic.
    """

    topic: str
    in_rate: float | None
    out_rate: float | None
    messages: int | None
    queues: int | None
    groups: int


@dataclass(frozen=True)
class GroupRow:
    """The figures of one group.

    Attributes:
        rate: Messages that are committed per second, without retries. None while the rate is unknown.
        lag: Number of uncommitted messages. None if a broker refused the request.
        retries: Number of uncommitted retries. None if a broker refused the request.
        members: Number of members. None if a broker refused the request.
        oldest: Seconds since the store time of the oldest uncommitted message that was found. None if it is unknown.
    """

    group: str
    lag: int | None
    retries: int | None
    rate: float | None
    members: int | None
    oldest: float | None


@dataclass(frozen=True)
class BrokerRow:
    """The figures of one broker.

    Attributes:
        state: "up", or "away" if there is a ``problem``.
        in_rate: Messages of the requested topics that are stored per second. None while the rate is unknown.
        out_rate: Messages of the requested topics that groups commit per second. None while the rate is unknown.
        disk_used: The used share of the disk that holds the commit log, from 0 to 1. None if it is unknown.
        problem: The reason why the broker is away. None if it responds.
    """

    broker: str
    state: str
    in_rate: float | None
    out_rate: float | None
    disk_used: float | None
    version: str
    address: str
    replicas: int
    cluster: str
    problem: str | None


@dataclass(frozen=True)
class Figures:
    """The figures of one interval.

    Attributes:
        time_ms: Time at which the figures were read, epoch ms.
        seconds: Seconds between the two overviews. None for the first overview.
        problem: The reason why newer figures could not be read. None if these are the newest figures.
    """

    time_ms: int
    seconds: float | None
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]
    brokers: tuple[BrokerRow, ...]
    problem: str | None = None

    @property
    def away(self) -> tuple[str, ...]:
        return tuple(each.broker for each in self.brokers if each.state == "away")

    def fields(self) -> dict[str, object]:
        """Return the fields for ``--json``."""
        return asdict(self)


class Watch:
    """Computes figures from successive overviews."""

    def __init__(self) -> None:
        self._last: Overview | None = None
        self._at = 0.0
        self._known: dict[str, BrokerOverview] = {}

    def figures(self, found: Overview, at: float, time_ms: int, patterns: Collection[str] = ("*",)) -> Figures:
        """Return the figures for the time since the previous call.

        Args:
            at: Monotonic seconds.
            time_ms: Time of the figures, epoch ms.
            patterns: Patterns of the groups to show. A group is shown if a pattern matches its name or the name of one of its
                topics.
        """
        last = self._last or Overview({}, {}, {})
        seconds = None if self._last is None else max(at - self._at, 1e-3)
        self._last, self._at = found, at
        came, went = _moved(_stored(last), _stored(found)), _moved_by_group(last, found)
        out = {queue: count for queue, count in _sum(went.values()).items() if queue.topic in found.topics}
        gaps = _Gaps(last, found)
        up = {name for name, each in last.brokers.items() if each.problem is None}
        by_topic = _Rates(came, out, "topic", seconds, last.topics.keys() - gaps.topics, last.topics.keys() - gaps.read_topics)
        topics = _topic_rows(found, by_topic)
        rated = last.groups.keys() - gaps.groups
        rates = {name: sum(went[name].values()) / seconds for name in went if seconds is not None and name in rated}
        groups = _group_rows(found, rates, patterns)
        by_broker = _Rates(came, out, "broker_name", seconds, up - gaps.storing, up - gaps.reading)
        brokers = self._brokers(found.brokers, by_broker)
        return Figures(time_ms, seconds, topics, groups, brokers)

    def _brokers(self, found: Mapping[str, BrokerOverview], rates: _Rates) -> tuple[BrokerRow, ...]:
        """Return the rows of the brokers that name servers know now or knew before."""
        rows = []
        for name, each in {**self._known, **found}.items():
            seen = each if name in found else msgspec.structs.replace(each, disk_used=None, problem=GONE)
            up = seen.problem is None
            rate_in, rate_out = rates.of(name) if up else (None, None)
            row = BrokerRow(
                broker=name,
                state="up" if up else "away",
                in_rate=rate_in,
                out_rate=rate_out,
                disk_used=seen.disk_used,
                version=seen.version,
                address=seen.address,
                replicas=seen.replicas,
                cluster=seen.cluster,
                problem=seen.problem,
            )
            rows.append(row)
        if len(self._known) < MOST_KNOWN:
            self._known.update(found)
        return tuple(sorted(rows, key=lambda row: row.broker))


class _Gaps:
    """The figures that brokers refused in at least one of two overviews.

    Attributes:
        topics: Names of topics whose offsets were refused.
        groups: Names of groups whose offsets were refused.
        read_topics: Topics that those groups read.
        storing: Brokers that refused offsets of topics.
        reading: Brokers that refused offsets of groups.
    """

    def __init__(self, *overviews: Overview) -> None:
        refused = [(name, group) for each in overviews for name, group in each.groups.items() if group.lag_unknown]
        self.topics = {name for each in overviews for name in each.topics_unknown}
        self.groups = {name for name, _ in refused}
        self.read_topics = {
            queue.topic
            for each in overviews
            for name in self.groups & each.groups.keys()
            for queue in each.groups[name].lag.queues
        }
        self.storing = {broker for each in overviews for brokers in each.topics_unknown.values() for broker in brokers}
        self.reading = {broker for _, group in refused for broker in group.lag_unknown}


class _Rates:
    """Messages per second, by topic or by broker.

    Args:
        came: Number of messages that were stored in the last ``seconds``, by queue.
        went: Number of messages that were committed in the last ``seconds``, by queue.
        part: The field of MessageQueue to sum by, "topic" or "broker_name".
        came_to: Topics or brokers with a known rate of stored messages.
        went_from: Topics or brokers with a known rate of committed messages.
    """

    def __init__(
        self,
        came: Mapping[MessageQueue, int],
        went: Mapping[MessageQueue, int],
        part: str,
        seconds: float | None,
        came_to: Collection[str],
        went_from: Collection[str],
    ) -> None:
        self._seconds = seconds
        self._known = came_to, went_from
        self._sums: list[Counter[str]] = [Counter(), Counter()]
        for sums, moved in zip(self._sums, (came, went), strict=True):
            for queue, count in moved.items():
                sums[getattr(queue, part)] += count

    def of(self, name: str) -> tuple[float | None, float | None]:
        """Return the rates of stored and of committed messages of a topic or broker. A rate that is unknown is None."""
        if self._seconds is None:
            return None, None
        came, went = (
            sums[name] / self._seconds if name in known else None for sums, known in zip(self._sums, self._known, strict=True)
        )
        return came, went


def _topic_rows(found: Overview, rates: _Rates) -> tuple[TopicRow, ...]:
    groups = Counter(topic for each in found.groups.values() for topic in {queue.topic for queue in each.lag.queues})
    rows = []
    for name, queues in sorted(found.topics.items()):
        rate_in, rate_out = rates.of(name)
        known = name not in found.topics_unknown
        messages = sum(max(each.max_offset - each.min_offset, 0) for each in queues.values()) if known else None
        rows.append(TopicRow(name, rate_in, rate_out, messages, len(queues) if known else None, groups[name]))
    return tuple(rows)


def _group_rows(found: Overview, rates: Mapping[str, float], patterns: Collection[str]) -> tuple[GroupRow, ...]:
    rows = []
    for name, each in sorted(found.groups.items()):
        if _passes({name, *(queue.topic for queue in each.lag.queues)}, patterns):
            members = None if each.members is None else len(each.members)
            lag, retries = (None, None) if each.lag_unknown else (each.lag.messages, each.lag.retries)
            rows.append(GroupRow(name, lag, retries, rates.get(name), members, each.oldest_age))
    return tuple(rows)


def _stored(found: Overview) -> dict[MessageQueue, int]:
    return {queue: each.max_offset for queues in found.topics.values() for queue, each in queues.items()}


def _moved_by_group(last: Overview, found: Overview) -> dict[str, dict[MessageQueue, int]]:
    def committed(overview: Overview, group: str) -> dict[MessageQueue, int]:
        seen = overview.groups.get(group)
        return {} if seen is None else {queue: each.committed for queue, each in seen.lag.queues.items()}

    return {group: _moved(committed(last, group), committed(found, group)) for group in found.groups}


def _moved(before: Mapping[MessageQueue, int], after: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    return {queue: max(offset - before[queue], 0) for queue, offset in after.items() if queue in before}


def _sum(moved: Iterable[Mapping[MessageQueue, int]]) -> Counter[MessageQueue]:
    total: Counter[MessageQueue] = Counter()
    for each in moved:
        total.update(each)
    return total


def _passes(names: Iterable[str], patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
