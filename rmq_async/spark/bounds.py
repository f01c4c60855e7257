"""Resolves the bounds of a read: from its options to the offsets of the existing queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from rmq_protocol.message import MessageQueue

from ..errors import ConfigError
from .options import ReadOptions
from .positions import EARLIEST, LATEST, Positions, Start, Times, key_of, named_queues

__all__ = ["OffsetLookup", "ends_of_options", "starts_of_options"]

Offsets = Mapping[MessageQueue, int]


class OffsetLookup(Protocol):
    """The requests to the cluster that resolve moments (milliseconds since 1970)."""

    def stored_at(self, moments: Offsets) -> dict[MessageQueue, int]: ...

    def latest(self, queues: tuple[MessageQueue, ...]) -> dict[MessageQueue, int]: ...


def starts_of_options(
    options: ReadOptions, lookup: OffsetLookup, earliest: Offsets, latest: Offsets
) -> dict[MessageQueue, int]:
    """Return the start offset of every queue of ``latest``.

    Raises:
        ConfigError: For an option that names a queue or topic which is not read; for a queue that an option by queue does not
            name, unless ``startingOffsets.default`` says where it begins; and for a queue without a message at or after the
            moment, unless ``startingOffsetsByTimestampStrategy`` is "latest".
    """
    bound = options.start
    if options.start_default == "error":
        _check_all_named(bound, latest)
    default = latest if options.start_default == "latest" else earliest
    starts = _resolve(bound, "starting", lookup, earliest, latest, default)
    if options.no_match_error and isinstance(bound, int | Times):
        named = tuple(queue for queue in starts if not isinstance(bound, Times) or bound.of(queue) is not None)
        ends = lookup.latest(named)  # after the search, which may have found a message that was stored meanwhile
        for queue in sorted(named):
            if starts[queue] >= ends[queue]:
                moment = bound.of(queue) if isinstance(bound, Times) else bound
                raise ConfigError(
                    f"{key_of(queue)} holds nothing stored at timestamp {moment} or later; "
                    "startingOffsetsByTimestampStrategy=latest begins at its end"
                )
    return starts


def ends_of_options(options: ReadOptions, lookup: OffsetLookup, earliest: Offsets, latest: Offsets) -> dict[MessageQueue, int]:
    """Return the exclusive ends of a batch read; a queue that the options do not name ends with its last message.

    Raises:
        ConfigError: For an option that names a queue or topic which is not read.
    """
    assert options.end is not None
    ends = _resolve(options.end, "ending", lookup, earliest, latest, latest)
    if isinstance(options.end, int | Times):  # messages that were stored after ``latest`` was asked for are not read
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
    """Return offsets by queue.

    Args:
        default: The bound of queues that a bound by queue does not name.
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
            f"option {_option(bound, 'starting')} does not name {named_queues(unnamed)}; name {them}, or say where queues that are "
            "not named begin: startingOffsets.default=earliest or latest"
        )


def _check_names(bound: Positions, option: str, latest: Offsets) -> None:
    """Raise ConfigError for a queue or topic of the option that is not read."""
    topics = {queue.topic for queue in latest}
    strange = [key_of(queue) for queue in bound.queues if queue not in latest]
    strange += [topic for topic in bound.topics if topic not in topics]
    if strange:
        raise ConfigError(
            f"option {option} names {strange[0]}, which is not read; name only queues that are: {named_queues(latest)}"
        )
