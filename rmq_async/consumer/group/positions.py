"""The offset at which a group starts in a queue: the committed one.

``start_from`` for a group without any committed offset for the topic; the first message of a queue that is new to the group.
"""

# A queue with a committed offset starts there. A group without any committed offset for a topic starts at ``start_from``, which
# is looked up before the first heartbeat and stored at once, so that messages sent after ``start()`` has returned are
# delivered. In a topic for which the group has offsets, a queue without one is new and starts at its first message; so does the
# retry topic.
#
# A start that fails half-way leaves some positions stored, and the next start must not take the other queues for new ones, or
# it would replay all of their messages. So the first queue of each broker is stored last: a broker has its queue 0 from the
# beginning, so if only other queues of a topic are stored, the start was not finished. This does not work for a topic with one
# queue on each broker, nor for a broker before 5.0 that answers 0 for a queue without an offset: there requests that fail are
# repeated, and if that does not help, such queues start at their first message.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeVar

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import for_each
from ..._backoff import Backoff
from ..._text import printable
from ...client import ClientInstance, commit_offset, committed_offset, max_offset, min_offset, search_offset
from ...errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    FlowControlError,
    RequestTimeoutError,
    RocketMQError,
    SystemBusyError,
)

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0
UNANSWERED: Final = (ConnectError, ConnectionLostError, RequestTimeoutError, SystemBusyError, FlowControlError)
"""Errors of brokers that do not answer, or with nothing but that they are busy."""
MOST_NAMED: Final = 16
"""Queues that one line of the log names."""
T = TypeVar("T")
StartFrom = Literal["latest", "earliest"] | datetime


async def first_positions(
    instance: ClientInstance, group: str, queues: Sequence[MessageQueue], start_from: StartFrom
) -> dict[MessageQueue, int]:
    """Return the offsets at which a group starts in the ``queues`` (all of one topic) whose first offsets are still to be
    stored (``_unfinished``).

    Leave out the queues of brokers that do not answer, if others have offsets of the group, or ``start_from`` is "earliest":
    such a queue starts at the group's offset when its broker answers, or at its first message. Raise the other errors of
    requests.
    """
    committed, silent = await from_brokers(queues, lambda queue: committed_offset(instance, group, queue, any_replica=False))
    stored = frozenset(queue for queue, offset in committed.items() if offset is not None)
    if silent:
        if not stored and start_from != "earliest":
            raise silent.popitem()[1]
        warn_of_silent(instance, queues[0].topic, silent)
    without = [queue for queue in committed if queue not in stored]
    queues = _unfinished([*committed], stored)
    if stored and without:
        _warn(instance, group, without, frozenset(queues), start_from)
    if isinstance(start_from, datetime):
        return await for_each(queues, lambda queue: search_offset(instance, queue, start_from, any_replica=False))
    find = max_offset if start_from == "latest" else min_offset
    return await for_each(queues, lambda queue: find(instance, queue, any_replica=False))


async def from_brokers(
    queues: Sequence[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
) -> tuple[dict[MessageQueue, T], dict[str, RocketMQError]]:
    """Return what ``ask`` returns for each queue, without queues at brokers that do not answer or stay busy, and the errors of
    these brokers. Raise the other errors of ``ask``.
    """
    found: dict[MessageQueue, T] = {}
    silent: dict[str, RocketMQError] = {}

    async def ask_one(queue: MessageQueue) -> None:
        if queue.broker_name in silent:
            return
        try:
            found[queue] = await ask(queue)
        except UNANSWERED as error:
            silent[queue.broker_name] = error.with_traceback(None)

    await for_each(queues, ask_one)
    return {queue: found[queue] for queue in queues if queue.broker_name not in silent}, silent


def warn_of_silent(instance: ClientInstance, topic: str, silent: Mapping[str, RocketMQError]) -> None:
    """Log that a member starts without the queues of some brokers.

    Args:
        topic: Name on the wire.
    """
    logger.warning(
        "the queues of topic %s at brokers that do not answer are read when they do: %s",
        printable(instance.names.display_name(topic)),
        printable("; ".join(f"{broker}: {error}" for broker, error in sorted(silent.items())), 500),
    )


def _warn(
    instance: ClientInstance,
    group: str,
    without: Sequence[MessageQueue],
    unfinished: Collection[MessageQueue],
    start_from: StartFrom,
) -> None:
    """Log where queues without an offset start, in a group that has offsets on other queues of their topic."""
    for where, queues in (
        (f"start_from={start_from!s}", [queue for queue in without if queue in unfinished]),
        ("their first message", [queue for queue in without if queue not in unfinished]),
    ):
        if queues:
            names = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues[:MOST_NAMED])
            logger.warning(
                "group %s has offsets in topic %s, but none of %d of its queues (%s), which start at %s: they are new, an earlier "
                "start did not end, or the broker has a new master that did not copy the group's offsets; then messages are %s",
                printable(instance.names.display_name(group)), printable(instance.names.display_name(queues[0].topic)),
                len(queues), printable(names) + (", ..." if len(queues) > MOST_NAMED else ""), where,
                "repeated" if where == "their first message" or start_from == "earliest" else "passed over or repeated",
            )  # fmt: skip


async def store_positions(instance: ClientInstance, group: str, positions: dict[MessageQueue, int]) -> None:
    """Commit the first positions of a topic, the first queue of each broker last.

    Temporary errors are retried for ``request_timeout``, and then raised; others are raised at once. A commit that a broker has
    confirmed but does not show is repeated as long, and then logged: where two members start at the same time, the first commit
    of one can replace that of the other (``client.first_commits``).
    """
    deadline = machine.monotonic() + instance.config.request_timeout

    async def store(queue: MessageQueue) -> bool:
        """Commit the offset of a queue; return whether the broker shows it."""
        await _repeat(lambda: commit_offset(instance, group, queue, positions[queue]), deadline)
        offset = await _repeat(lambda: committed_offset(instance, group, queue, any_replica=False), deadline)
        return offset is not None and offset >= positions[queue]

    async def store_all(queues: Sequence[MessageQueue]) -> None:
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while queues:
            shows = await for_each(queues, store)
            queues = [queue for queue in queues if not shows[queue]]
            pause = pauses.next()
            if queues and machine.monotonic() + pause > deadline:
                brokers = printable(", ".join(sorted({queue.broker_name for queue in queues})))
                logger.warning(
                    "group %s: brokers %s confirmed the first offsets of %d queues and do not return them; until the next "
                    "commit, a member that takes one of these queues over reads it from its first message on",
                    printable(instance.names.display_name(group)), brokers, len(queues),
                )  # fmt: skip
                return
            if queues:
                await asyncio.sleep(pause)

    last = _first_queues(positions)
    await store_all([queue for queue in positions if queue not in last])
    await store_all(last)


async def _repeat(request: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Await the request, again after each error that may pass, until ``deadline``. Raise the last error."""
    pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        try:
            return await request()
        except RocketMQError as error:
            pause = pauses.next()
            if not error.retriable or machine.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)


def _unfinished(queues: Sequence[MessageQueue], stored: frozenset[MessageQueue]) -> list[MessageQueue]:
    """Return the queues whose first offsets are still to be stored: all for a group without offsets, for another group the queues
    that a start which failed half-way has left.
    """
    last = _first_queues(queues)
    if not stored.intersection(last):
        return [queue for queue in queues if queue not in stored]
    begun = {queue.broker_name for queue in stored}
    return [queue for queue in last if queue not in stored and queue.broker_name in begun]


def _first_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queue with the lowest number of each broker."""
    first: dict[str, MessageQueue] = {}
    for queue in sorted(queues):
        first.setdefault(queue.broker_name, queue)
    return list(first.values())


async def start_offset(instance: ClientInstance, group: str, queue: MessageQueue) -> tuple[int, int | None]:
    """Return the offset at which a member takes the queue over, and the committed offset or None.

    Raise the errors of the requests.
    """
    committed = await committed_offset(instance, group, queue, any_replica=False)
    if committed is not None:
        return committed, committed
    return await min_offset(instance, queue, any_replica=False), None


async def offset_at(instance: ClientInstance, queue: MessageQueue, to: object) -> int:
    """Return ``to`` if it is an offset of the queue or the queue's end.

    Otherwise the offset that "earliest", "latest" or an aware datetime stands for.

    Raises the errors of the requests, too.

    Raises:
        ConfigError: For anything else.
    """
    if to == "earliest":
        return await min_offset(instance, queue, any_replica=False)
    if to == "latest":
        return await max_offset(instance, queue, any_replica=False)
    if isinstance(to, datetime):
        return await search_offset(instance, queue, to, any_replica=False)
    if not isinstance(to, int) or isinstance(to, bool):
        raise ConfigError(f'a position must be an offset, "earliest", "latest" or an aware datetime, not {shown(to)}')
    low = await min_offset(instance, queue, any_replica=False)
    high = await max_offset(instance, queue, any_replica=False)
    if not low <= to <= high:
        raise ConfigError(
            f"offset {to} is outside {instance.names.shown_queue(queue)}, whose offsets are {low} to {high}; give one of these"
        )
    return int(to)
