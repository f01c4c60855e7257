"""Checks that a queue still holds the message that was read last."""

# A broker that loses power, or a replica that is behind and becomes the master, gives offsets out again. Once new messages have
# filled the queue past the position of a reading, the next pull looks like any other, and new messages below the position would
# never be read. So after a new connection, an error, or an offset above the end of the queue, one small pull asks for the last
# message that was read.
#
# With tags a reading may be past offsets behind the last message that it received; it does not notice if these offsets are
# given out again.

from __future__ import annotations

import asyncio
from typing import Final

from ...client import ClientInstance, has_master
from ...errors import BrokerNotFoundError, OffsetRangeError
from ...results import PullResult
from ..place import is_at
from ..pulling import Calls, PullRequest, pull_once
from .backoff import FIRST_REST
from .cursor import Cursor

__all__ = ["AHEAD_PATIENCE", "believe", "check_last", "range_error"]

AHEAD_PATIENCE: Final = 1.0
"""Seconds to wait at an offset that the broker says is above its highest one: a stored message becomes readable a moment
later."""


async def check_last(instance: ClientInstance, group: str, cursor: Cursor, calls: Calls) -> OffsetRangeError | None:
    """Compares the message that was read last with the one that the queue has at its offset. Returns an error if that is
    another one, or if the queue ends below the offset for longer than AHEAD_PATIENCE; None otherwise.

    A message that was deleted because it was the oldest one is no reason for an error. Raises the errors of a pull, and as
    ``believe`` does.
    """
    last = cursor.last
    while last is not None:
        offset = last.offset
        request = PullRequest(group, cursor.queue, offset, 1, "*", 0.0, instance.config.request_timeout)
        result = await pull_once(instance, request, calls)
        found = next((message for message in result.messages if message.queue_offset == offset), None)
        below = found is None and result.max_offset <= offset
        if below:
            await believe(instance, cursor)
            if cursor.is_ahead_for() > AHEAD_PATIENCE:
                return range_error(instance, cursor, result)
            await asyncio.sleep(FIRST_REST)
            continue
        if found is not None and not is_at(found, last):
            await believe(instance, cursor)
            what = f"{last.unique_id or f'a message stored at {last.stored} ms'!r} was read, and {found.msg_id!r} is there now"
            return _replaced(instance, cursor, result, what)
        break
    cursor.recheck = False
    return None


def _replaced(instance: ClientInstance, cursor: Cursor, result: PullResult, what: str) -> OffsetRangeError:
    offset = cursor.offset if cursor.last is None else cursor.last.offset
    return OffsetRangeError(
        f"{instance.names.shown_queue(cursor.queue)} has lost messages that were read and gives their offsets out again: "
        f"at offset {offset} {what}; start a new reading to get the new ones",
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        request="PULL_MESSAGE",
        broker=cursor.queue.broker_name,
    )


def range_error(instance: ClientInstance, cursor: Cursor, result: PullResult, lost: tuple[range, ...] = ()) -> OffsetRangeError:
    queue = instance.names.shown_queue(cursor.queue)
    return OffsetRangeError(
        f"offset {cursor.offset} of {queue} is outside {result.min_offset}..{result.max_offset}; "
        "start a new reading in this range",
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        lost=lost,
        request="PULL_MESSAGE",
        broker=cursor.queue.broker_name,
    )


async def believe(instance: ClientInstance, cursor: Cursor) -> None:
    """Raises BrokerNotFoundError while the broker has no master: a replica may lack messages, or have deleted more."""
    if not await has_master(instance, cursor.queue):
        queue = instance.names.shown_queue(cursor.queue)
        raise BrokerNotFoundError(
            f"the broker of {queue} has no master now, and its replica may lack messages at offset {cursor.offset}; try again when "
            "it has one",
            broker=cursor.queue.broker_name,
        )
