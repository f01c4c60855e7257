"""Determines the offset at which a group starts to read a queue.

It is the committed offset, if there is one. Otherwise it is ``start_from`` for a group that has no committed offset for the topic
at all, or the first message of a queue that is new to the group.
"""

# ``start_from`` is looked up before the first heartbeat and stored at once, so messages that are sent after ``start()`` has
# returned are delivered. If the group has offsets for a topic, a queue of the topic without an offset is new and starts at its
# first message. Queues of the retry topic also start at their first message.
#
# A start that fails half-way leaves some positions stored. The next start must not treat the other queues as new, because it
# would replay all their messages. So the first queue of each broker is stored last: a broker has its queue 0 from the beginning,
# so if only other queues of a topic are stored, the start was not finished. This does not work for a topic with one queue on each
# broker, nor for a broker before version 5.0 that returns 0 for a queue without an offset. There, failed requests are repeated;
# if that does not help, such queues start at their first message.

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
"""Errors of brokers that do not respond, or only respond that they are busy."""
MOST_NAMED: Final = 16
"""Maximum number of queues that a log message names."""
T = TypeVar("T")
StartFrom = Literal["latest", "earliest"] | datetime


async def first_positions(
    instance: ClientInstance, group: str, queues: Sequence[MessageQueue], start_from: StartFrom
) -> dict[MessageQueue, int]:
    """Return the offsets at which a group starts, for the ``queues`` whose first offsets must still be stored (``_unfinished``).

    Queues of brokers that do not respond are left out if other queues have offsets of the group or ``start_from`` is "earliest".
    When the broker responds, such a queue starts at the group's offset, or at its first message. Other errors of requests
    propagate.

    Args:
        queues: Queues of one topic.
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
    """Return the results of ``ask`` by queue, and the errors of brokers that do not respond or are busy, by broker name.

    Queues of brokers with such an error have no result. Other errors of ``ask`` propagate.
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
        topic: Name of the topic on the wire.
        silent: The errors by broker name.
    """
    logger.warning(
        "the queues of topic %s at brokers that do not respond are read as soon as the brokers respond: %s",
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
    """Log where queues without an offset start, for a group that has offsets for other queues of their topic."""
    for where, queues in (
        (f"start_from={start_from!s}", [queue for queue in without if queue in unfinished]),
        ("their first message", [queue for queue in without if queue not in unfinished]),
    ):
        if queues:
            names = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues[:MOST_NAMED])
            logger.warning(
                "group %s has offsets in topic %s, but none for %d of its queues (%s), which start at %s: they are new, an earlier "
                "start did not finish, or the broker has a new master that did not copy the group's offsets; in the latter case, "
                "messages are %s",
                printable(instance.names.display_name(group)), printable(instance.names.display_name(queues[0].topic)),
                len(queues), printable(names) + (", ..." if len(queues) > MOST_NAMED else ""), where,
                "repeated" if where == "their first message" or start_from == "earliest" else "skipped or repeated",
            )  # fmt: skip


async def store_positions(instance: ClientInstance, group: str, positions: dict[MessageQueue, int]) -> None:
    """Commit the first positions of a topic. The first queue of each broker is committed last.

    Requests with temporary errors are repeated for ``request_timeout``, and then the error is raised; other errors are raised at
    once. If a broker has confirmed a commit but does not return the offset, the commit is repeated for the same time, and then
    this is logged. That can happen if two members start at the same time, because the first commit of one can replace the first
    commit of the other (``client.first_commits``).
    """
    deadline = machine.monotonic() + instance.config.request_timeout

    async def store(queue: MessageQueue) -> bool:
        """Commit the offset of a queue; return whether the broker returns it afterwards."""
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
                    "group %s: brokers %s confirmed the first offsets of %d queues but do not return them; until the next "
                    "commit, a member that takes over one of these queues reads it from its first message on",
                    printable(instance.names.display_name(group)), brokers, len(queues),
                )  # fmt: skip
                return
            if queues:
                await asyncio.sleep(pause)

    last = _first_queues(positions)
    await store_all([queue for queue in positions if queue not in last])
    await store_all(last)


async def _repeat(request: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Await the request. Repeat it after temporary errors until ``deadline``, then raise the last error."""
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
    """Return the queues whose first offsets must still be stored. For a group without offsets, these are all queues; for another
    group, they are the queues that an unfinished start left over.
    """
    last = _first_queues(queues)
    if not stored.intersection(last):
        return [queue for queue in queues if queue not in stored]
    begun = {queue.broker_name for queue in stored}
    return [queue for queue in last if queue not in stored and queue.broker_name in begun]


def _first_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queue with the lowest id of each broker."""
    first: dict[str, MessageQueue] = {}
    for queue in sorted(queues):
        first.setdefault(queue.broker_name, queue)
    return list(first.values())


async def start_offset(instance: ClientInstance, group: str, queue: MessageQueue) -> tuple[int, int | None]:
    """Return the offset at which a member that takes over the queue begins, and the committed offset or None.

    The errors of the requests propagate.
    """
    committed = await committed_offset(instance, group, queue, any_replica=False)
    if committed is not None:
        return committed, committed
    return await min_offset(instance, queue, any_replica=False), None


async def offset_at(instance: ClientInstance, queue: MessageQueue, to: object) -> int:
    """Return the offset for a position. The errors of the requests propagate.

    Args:
        to: An offset of the queue or its end, "earliest", "latest" or an aware datetime.

    Raises:
        ConfigError: For any other value.
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
        raise ConfigError(f"offset {to} is outside {instance.names.shown_queue(queue)}; give an offset from {low} to {high}")
    return int(to)
