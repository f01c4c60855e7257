"""The conditions of a ``where`` with which a batch read avoids reading messages (option ``filterPushdown``): tags, whole
queues, offsets, and store times.

Spark still applies the whole filter, so additional rows do no harm. If a broker's clock is set back, store times do not grow
with offsets. Therefore, a range of store times is extended by ``SLACK_MS`` on both sides, so that no row is missing unless the
clock was set back further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from rmq_protocol.errors import LocalProtocolError
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import parse_tags

from .positions import LAST_MOMENT

SLACK_MS: Final = 60_000


@dataclass(frozen=True)
class PushedFilters:
    """The conditions by which a read selects the messages that it pulls.

    Attributes:
        tags: The wanted tags. None stands for any tags.
        values: The wanted values, by column (topic, brokerName, queueId).
        offsets: The first and the last wanted offset. None stands for no bound.
        stored: The first and the last wanted store time (milliseconds since 1970). None stands for no bound.
    """

    tags: frozenset[str] | None = None
    values: Mapping[str, frozenset[object]] = field(default_factory=dict)
    offsets: tuple[int | None, int | None] = (None, None)
    stored: tuple[int | None, int | None] = (None, None)

    def wants(self, queue: MessageQueue) -> bool:
        place = {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
        return all(place[column] in wanted for column, wanted in self.values.items())

    def tags_with(self, option: str) -> str | None:
        """Return the expression for the tags that both ``option`` and these filters want. Return None if there are no such
        tags.
        """
        if self.tags is None:
            return option
        own = parse_tags(option)
        both = self.tags if own is None else self.tags & own
        return " || ".join(sorted(both)) or None

    def within(self, start: int, end: int) -> tuple[int, int]:
        low, high = self.offsets
        return start if low is None else max(start, low), end if high is None else min(end, high + 1)


def push_down(filters: Iterable[Filter]) -> PushedFilters:
    """Return the restrictions that follow from ``filters``, which Spark joins by AND. Other kinds of filters are ignored."""
    tags: frozenset[str] | None = None
    values: dict[str, frozenset[object]] = {}
    bounds: dict[str, tuple[int | None, int | None]] = {"offset": (None, None), "storeTimestamp": (None, None)}
    for each in filters:
        column = _column(each)
        if isinstance(each, EqualTo | In):
            wanted = frozenset((each.value,) if isinstance(each, EqualTo) else each.value)
            if column in ("topic", "brokerName", "queueId"):
                values[column] = values.get(column, wanted) & wanted
            elif column == "tags" and (plain := _plain_tags(wanted)) is not None:
                tags = plain if tags is None else tags & plain
        if column in bounds and (limits := _limits(each)) is not None:
            bounds[column] = _both(bounds[column], limits)
    low, high = bounds["storeTimestamp"]
    stored = (None if low is None else max(low - SLACK_MS, 0), None if high is None else min(high + SLACK_MS, LAST_MOMENT))
    return PushedFilters(tags, values, bounds["offset"], stored)


def _column(one: Filter) -> str:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _plain_tags(values: frozenset[object]) -> frozenset[str] | None:
    """Return the tags. Return None if one of them cannot be part of a tag expression."""
    try:
        if all(isinstance(value, str) and parse_tags(value) == frozenset((value,)) for value in values):
            return frozenset(map(str, values))
    except LocalProtocolError:
        pass
    return None


def _limits(one: Filter) -> tuple[int | None, int | None] | None:
    if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    value = one.value
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            return None
        value = int(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if isinstance(one, EqualTo):
        return value, value
    return (value, None) if isinstance(one, GreaterThan | GreaterThanOrEqual) else (None, value)


def _both(one: tuple[int | None, int | None], other: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    lows = [low for low, _ in (one, other) if low is not None]
    highs = [high for _, high in (one, other) if high is not None]
    return max(lows, default=None), min(highs, default=None)
