"""Plans the next read: the ends of micro-batches, the ranges of offsets, their division into partitions, and losses.

The functions are pure. ``Offsets`` are resolved offsets: integers by queue. The end of a range is exclusive.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from ..errors import ConfigError, OffsetRangeError
from .options import ReadOptions
from .positions import EARLIEST, LATEST, Positions, Start, Times, key_of, named_queues, queue_of

Offsets = Mapping[MessageQueue, int]
VERSION = 1


class Range(NamedTuple):
    """Offsets [start, end) of one queue."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue_id)

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


@dataclass(frozen=True)
class EndOffset:
    """The content of a checkpoint: the end offsets of a micro-batch, and the starts that differ from the end of the previous
    micro-batch.

    Attributes:
        init: For the first micro-batch, the starts of all queues. For a later micro-batch, the starts of queues that were added
            or created again, and earlier starts that ``advance`` keeps. None for the result of ``initialOffset``, which Spark
            has not written.
    """

    queues: Offsets
    init: Offsets | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark stores: a dict that ``json.dumps`` accepts."""
        data: dict[str, Any] = {"v": VERSION, "q": _written(self.queues)}
        if self.init is not None:
            data["init"] = _written(self.init)
        return data

    @classmethod
    def from_json(cls, data: Any) -> EndOffset:
        """Parse the form of ``to_json``.

        Raises:
            ConfigError: For a checkpoint of another source or version, and for offsets that cannot be read.
        """
        if not isinstance(data, dict) or not isinstance(data.get("q"), dict):
            raise ConfigError(f"the checkpoint holds no offsets of this source: {shown(json.dumps(data))}; use a new one")
        if data.get("v") != VERSION:
            raise ConfigError(
                f"the checkpoint has version {data.get('v')!r}, not {VERSION}; use the release that wrote it, or a new checkpoint"
            )
        init = data.get("init")
        return cls(_read(data["q"]), None if init is None else _read(init))


def _written(offsets: Offsets) -> dict[str, int]:
    return {key_of(queue): offset for queue, offset in sorted(offsets.items())}


def _read(data: Mapping[str, Any]) -> dict[MessageQueue, int]:
    try:
        return {queue_of(key): int(offset) for key, offset in data.items()}
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"the checkpoint's offsets cannot be read: {error}; use a new checkpoint") from None


def limited(start: Offsets, latest: Offsets, limit: int | None) -> dict[MessageQueue, int]:
    """Return the end of a micro-batch of at most ``limit`` offsets (None: no limit), divided by backlog.

    Every queue with a backlog advances, however large the backlogs of other queues are. If there are more such queues than
    ``limit``, some of them advance in this micro-batch and the others in later ones. ``start`` has every queue of ``latest``.
    No end is below its start.
    """
    backlog = {queue: latest[queue] - start[queue] for queue in latest if latest[queue] > start[queue]}
    ends = {queue: max(offset, start[queue]) for queue, offset in latest.items()}
    if limit is None or sum(backlog.values()) <= limit:
        return ends
    return ends | {queue: start[queue] + share for queue, share in _shares(start, backlog, limit).items()}


def _shares(start: Offsets, backlog: Offsets, limit: int) -> dict[MessageQueue, int]:
    """Divide ``limit``, which is less than the sum of all backlogs. Each queue gets one offset (only some queues do if
    ``limit`` is less than their number), and the rest is divided in proportion to the backlogs.
    """
    queues = sorted(backlog)
    if limit < len(queues):
        # The sum of the starts grows by the number of offsets read, so the next micro-batch continues with the next queues.
        first = sum(start[queue] for queue in queues) % len(queues)
        chosen = (queues + queues)[first : first + limit]
        return {queue: int(queue in chosen) for queue in queues}
    left = limit - len(queues)
    total = sum(backlog.values()) - len(queues)
    shares = {queue: 1 + (backlog[queue] - 1) * left // total for queue in queues}
    queues.sort(key=lambda queue: -((backlog[queue] - 1) * left % total))
    for queue in queues[: limit - sum(shares.values())]:
        shares[queue] += 1
    return shares


class Step(NamedTuple):
    """The end of the next micro-batch.

    Attributes:
        backlog: Number of offsets that were available to the micro-batch.
    """

    end: EndOffset
    backlog: int
    losses: list[Loss]


def find_odd(begin: EndOffset, latest: Offsets) -> list[MessageQueue]:
    """Return the queues that cannot continue at their offset in ``begin``: new queues, and queues that end before that
    offset.
    """
    return [queue for queue, last in latest.items() if last < begin.queues.get(queue, last + 1)]


def advance(begin: EndOffset, latest: Offsets, earliest: Offsets, limit: int | None, *, keep_init: bool = False) -> Step:
    """Return the end of the micro-batch that begins at ``begin`` and reads as far as ``latest`` and ``limit`` allow.

    Queues that do not exist now keep their offsets.

    Args:
        earliest: First offsets of the queues that ``find_odd`` returned. These queues are read from these offsets, which become
            their ``init``.
        keep_init: True also keeps the ``init`` of ``begin``. False drops it once an end moves, because it would take half of
            the size of checkpoints and progress.
    """
    init = dict(begin.queues) if begin.init is None else dict(begin.init) if keep_init else {}
    starts = dict(begin.queues)
    losses = []
    for queue, first in sorted(earliest.items()):
        there = (first, max(first, latest[queue]))
        if queue in starts:
            losses.append(Loss(queue, "the queue was created again or has lost its end", (starts[queue], starts[queue]), there))
        elif first > 0:
            losses.append(Loss(queue, "the queue is new and its first messages were deleted already", (0, first), there))
        init[queue] = starts[queue] = first
    absent = {queue: offset for queue, offset in starts.items() if queue not in latest}
    backlog = sum(max(last - starts[queue], 0) for queue, last in latest.items())
    ends = absent | limited(starts, latest, limit)
    if ends == begin.queues and not earliest and begin.init is not None:
        return Step(begin, backlog, losses)  # must be the same offset, because Spark compares the text of offsets
    return Step(EndOffset(ends, init), backlog, losses)


def starts_of(first: EndOffset, last: EndOffset) -> dict[MessageQueue, int]:
    """Return the start of a micro-batch in each queue of its end ``last``.

    Spark does not store the result of ``initialOffset``. After a restart before the first commit, it calls that method again, and
    the new result may be later than the stored ``last``. Therefore, if ``first`` is such a result, the starts come from
    ``last.init``. They also come from there for queues that ``first`` lacks, and for queues that were created again and whose
    offsets decreased.
    """
    init = last.init if last.init is not None else {}
    if first.init is None and last.init is not None:
        return {queue: init.get(queue, end) for queue, end in last.queues.items()}
    return {
        queue: start if (start := first.queues.get(queue)) is not None and start <= end else init.get(queue, end)
        for queue, end in last.queues.items()
    }


def cut(
    ranges: Iterable[Range], *, at_least: int | None = None, at_most: int | None = None, max_records: int | None = None
) -> list[tuple[Range, ...]]:
    """Divide ranges into partitions.

    Each partition has one range. Ranges are cut until none exceeds ``max_records`` and there are at least ``at_least``
    partitions, or until no range can be cut further. If there would be more than ``at_most`` partitions, several ranges share
    one. Empty ranges are left out.
    """
    pieces = [piece for whole in ranges if whole.size for piece in _pieces(whole, max_records)]
    if at_least is not None and len(pieces) < at_least:
        pieces = _cut_further(pieces, at_least)
    if at_most is not None and len(pieces) > at_most:
        return _packed(pieces, at_most)
    return [(piece,) for piece in pieces]


def _cut_further(pieces: Sequence[Range], at_least: int) -> list[Range]:
    """Cut each range into a number of parts that is proportional to its share of all offsets."""
    total = sum(piece.size for piece in pieces)
    return [part for piece in pieces for part in _parts(piece, max(1, -(-piece.size * at_least // total)))]


def _packed(pieces: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """Put ranges into ``count`` partitions. The largest ranges come first, and each range goes into the smallest partition."""
    bins: list[tuple[int, int, list[Range]]] = [(0, number, []) for number in range(count)]
    for piece in sorted(pieces, key=lambda piece: (-piece.size, piece)):
        size, number, content = heapq.heappop(bins)
        content.append(piece)
        heapq.heappush(bins, (size + piece.size, number, content))
    return [tuple(sorted(content)) for _, _, content in sorted(bins, key=lambda item: item[1])]


def _pieces(whole: Range, max_records: int | None) -> list[Range]:
    return [whole] if max_records is None else _parts(whole, -(-whole.size // max_records))


def _parts(whole: Range, count: int) -> list[Range]:
    size = whole.size
    count = min(count, size)
    edges = [whole.start + size * number // count for number in range(count + 1)]
    return [whole._replace(start=first, end=last) for first, last in pairwise(edges)]


class Loss(NamedTuple):
    """A planned range that cannot be read completely.

    Attributes:
        why: The reason, as a part of a sentence.
        wanted: First offset and end of the planned range.
        available: First offset and end of the range that can be read. None if nothing is available.
    """

    queue: MessageQueue
    why: str
    wanted: tuple[int, int]
    available: tuple[int, int] | None

    def __str__(self) -> str:
        there = (
            "nothing is available" if self.available is None else f"available are {self.available[0]} to {self.available[1]}"
        )
        return f"{key_of(self.queue)}: {self.why}; offsets {self.wanted[0]} to {self.wanted[1]} were to be read, {there}"


def find_losses(start: Offsets, end: Offsets, earliest: Offsets, latest: Offsets) -> list[Loss]:
    """Return a loss for each planned range of which a part is missing. Also return a loss for each range, even an empty one,
    that begins above the end of its queue.

    Args:
        earliest: First offsets of the queues that exist now.
        latest: Ends of the queues that exist now.
    """
    losses = []
    for queue in sorted(end):
        first, last = start.get(queue, end[queue]), end[queue]
        if queue not in latest:
            if last > first:
                losses.append(Loss(queue, "the queue is gone", (first, last), None))
            continue
        there = (earliest[queue], latest[queue])
        if latest[queue] < first:
            losses.append(Loss(queue, "the start is beyond the last message", (first, last), there))
        elif first < earliest[queue] and last > first:
            losses.append(Loss(queue, "messages were deleted before they were read", (first, last), there))
        elif last > latest[queue]:
            losses.append(Loss(queue, "the end is beyond the last message", (first, last), there))
    return losses


def raise_losses(losses: Sequence[Loss]) -> None:
    """Raise OffsetRangeError for the first loss, with the number of further losses. Do nothing if there are no losses."""
    if losses:
        more = f" (and {len(losses) - 1} more)" if len(losses) > 1 else ""
        raise OffsetRangeError(
            f"data is lost: {losses[0]}{more}; with failOnDataLoss=false the query continues with the existing messages",
            min_offset=losses[0].available[0] if losses[0].available else 0,
            max_offset=losses[0].available[1] if losses[0].available else 0,
            broker=losses[0].queue.broker_name,
        )


# Resolves the bounds of a read, which its options give, to offsets of the existing queues.


class OffsetLookup(Protocol):
    """The requests to the cluster that resolve moments (milliseconds since 1970)."""

    def stored_at(self, moments: Offsets) -> dict[MessageQueue, int]: ...

    def latest(self, queues: tuple[MessageQueue, ...]) -> dict[MessageQueue, int]: ...


def starts_of_options(
    options: ReadOptions, lookup: OffsetLookup, earliest: Offsets, latest: Offsets
) -> dict[MessageQueue, int]:
    """Return the start offset of every queue of ``latest``.

    Raises:
        ConfigError: If an option names a queue or topic that is not read. If an option by queue does not name a queue, unless
            ``startingOffsets.default`` sets its start. If a queue has no message at or after the moment, unless
            ``startingOffsetsByTimestampStrategy`` is "latest".
    """
    bound = options.start
    if options.start_default == "error":
        _check_all_named(bound, latest)
    default = latest if options.start_default == "latest" else earliest
    starts = _resolve(bound, "starting", lookup, earliest, latest, default)
    if options.no_match_error and isinstance(bound, int | Times):
        named = tuple(queue for queue in starts if not isinstance(bound, Times) or bound.of(queue) is not None)
        # requested after the search, which may have found a message that was stored in the meantime
        ends = lookup.latest(named)
        for queue in sorted(named):
            if starts[queue] >= ends[queue]:
                moment = bound.of(queue) if isinstance(bound, Times) else bound
                raise ConfigError(
                    f"{key_of(queue)} has no message stored at timestamp {moment} or later; "
                    "startingOffsetsByTimestampStrategy=latest begins at its end"
                )
    return starts


def ends_of_options(options: ReadOptions, lookup: OffsetLookup, earliest: Offsets, latest: Offsets) -> dict[MessageQueue, int]:
    """Return the exclusive ends of a batch read. A queue that the options do not name is read up to its last message.

    Raises:
        ConfigError: For an option that names a queue or topic which is not read.
    """
    assert options.end is not None
    ends = _resolve(options.end, "ending", lookup, earliest, latest, latest)
    if isinstance(options.end, int | Times):  # messages that were stored after ``latest`` was requested are not read
        ends = {queue: min(end, latest[queue]) for queue, end in ends.items()}
    return ends


def _resolve(
    bound: Start,
    side: Literal["starting", "ending"],
    lookup: OffsetLookup,
    earliest: Offsets,
    latest: Offsets,
    default: Offsets,
) -> dict[MessageQueue, int]:
    """Return the offset that ``bound``, the start or the end of a read, stands for in each queue.

    Args:
        default: The offsets for queues that a bound by queue does not name.
    """
    if bound == "earliest":
        return dict(earliest)
    if bound == "latest":
        return dict(latest)
    if isinstance(bound, int):
        return lookup.stored_at(dict.fromkeys(latest, bound))
    assert isinstance(bound, Positions)
    by_time = isinstance(bound, Times)
    _check_names(bound, _option(bound, side), latest)
    given = {queue: value for queue in latest if (value := bound.of(queue)) is not None}
    if by_time:
        return {**default, **lookup.stored_at(given)}
    words = {EARLIEST: earliest, LATEST: latest}
    return {**default, **{queue: words[value][queue] if value in words else value for queue, value in given.items()}}


def _option(bound: Positions, side: str) -> str:
    return f"{side}OffsetsByTimestamp" if isinstance(bound, Times) else f"{side}Offsets"


def _check_all_named(bound: Start, latest: Offsets) -> None:
    """Raise ConfigError for queues that a start by queue does not name."""
    if isinstance(bound, Positions) and (unnamed := [queue for queue in sorted(latest) if bound.of(queue) is None]):
        them = "it" if len(unnamed) == 1 else "them"
        raise ConfigError(
            f"option {_option(bound, 'starting')} does not name {named_queues(unnamed)}; name {them}, or set "
            "startingOffsets.default=earliest or latest for all queues without a name here"
        )


def _check_names(bound: Positions, option: str, latest: Offsets) -> None:
    """Raise ConfigError for a queue or topic of the option that is not read."""
    topics = {queue.topic for queue in latest}
    strange = [key_of(queue) for queue in bound.queues if queue not in latest]
    strange += [topic for topic in bound.topics if topic not in topics]
    if strange:
        raise ConfigError(
            f"option {option} names {strange[0]}, which is not read; name only queues that are read: {named_queues(latest)}"
        )
