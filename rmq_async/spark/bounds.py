"""Where a read begins and ends: what its options say, made numbers for the queues that are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from rmq_protocol.message import MessageQueue

from ..errors import ConfigError
from .options import ReadOptions
from .positions import EARLIEST, LATEST, Positions, Start, Times, key_of

__all__ = ["Asked", "ends_of_options", "starts_of_options"]

Offsets = Mapping[MessageQueue, int]


class Asked(Protocol):
    """What is asked of the cluster where a bound is a moment."""

    def stored_at(self, moments: Offsets) -> dict[MessageQueue, int]: ...

    def latest(self, queues: tuple[MessageQueue, ...]) -> dict[MessageQueue, int]: ...


def starts_of_options(options: ReadOptions, asked: Asked, earliest: Offsets, latest: Offsets) -> dict[MessageQueue, int]:
    """Of every queue of ``latest``; one that the options do not name begins at its earliest offset.

    Raises ConfigError for an option that names a queue which is not read, and where a queue holds nothing that young, unless the
    strategy is to take its end.
    """
    bound = options.start
    starts = _resolved(bound, "starting", asked, earliest, latest, dict(earliest))
    if options.no_match_error and isinstance(bound, int | Times):
        named = tuple(queue for queue in starts if not isinstance(bound, Times) or bound.of(queue) is not None)
        ends = asked.latest(named)  # asked after the search: what came meanwhile may be what was found
        for queue in sorted(named):
            if starts[queue] >= ends[queue]:
                moment = bound.of(queue) if isinstance(bound, Times) else bound
                raise ConfigError(
                    f"{key_of(queue)} holds nothing stored at timestamp {moment} or later; "
                    "startingOffsetsByTimestampStrategy=latest begins at its end"
                )
    return starts


def ends_of_options(options: ReadOptions, asked: Asked, earliest: Offsets, latest: Offsets) -> dict[MessageQueue, int]:
    """Of a batch read, exclusive; a queue that the options do not name ends with its last message. Raises ConfigError."""
    assert options.end is not None
    ends = _resolved(options.end, "ending", asked, earliest, latest, dict(latest))
    if isinstance(options.end, int | Times):  # what came since ``latest`` was asked for is not waited for
        ends = {queue: min(end, latest[queue]) for queue, end in ends.items()}
    return ends


def _resolved(
    bound: Start,
    side: Literal["starting", "ending"],
    asked: Asked,
    earliest: Offsets,
    latest: Offsets,
    unnamed: dict[MessageQueue, int],
) -> dict[MessageQueue, int]:
    if bound == "earliest":
        return dict(earliest)
    if bound == "latest":
        return dict(latest)
    if isinstance(bound, int):
        return asked.stored_at(dict.fromkeys(latest, bound))
    assert isinstance(bound, Positions)
    by_time = isinstance(bound, Times)
    option = f"{side}OffsetsByTimestamp" if by_time else f"{side}Offsets"
    topics = {queue.topic for queue in latest}
    for strange in [key_of(queue) for queue in bound.queues if queue not in latest] + [
        topic for topic in bound.topics if topic not in topics
    ]:
        raise ConfigError(f"option {option} names {strange}, which is not read; {_some(latest)} are")
    given = {queue: value for queue in latest if (value := bound.of(queue)) is not None}
    if by_time:
        return unnamed | asked.stored_at(given)
    words = {EARLIEST: earliest, LATEST: latest}
    return unnamed | {queue: words[value][queue] if value in words else value for queue, value in given.items()}


def _some(queues: Offsets) -> str:
    names = [key_of(queue) for queue in sorted(queues)]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
