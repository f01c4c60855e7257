"""Checks single messages of a queue, to find out whether it still has the messages that were read, and where to continue if it has
other messages.

A message is recognized by its place: offset, store time and id.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from rmq_protocol.message import MessageExt, MessageQueue

from .. import errors, machine
from .._ordered import OrderedSet
from .._text import printable
from ..client import ClientInstance, end_in, has_master, next_offset_in, search_offset
from ..results import PullResult, PullStatus
from ..transport import Connection
from .pull import PullRequest, pull_once

CLOCKS_DIFFER: Final = 10.0
"""Maximum seconds by which the clocks of brokers and clients are assumed to differ."""


class Place(NamedTuple):
    """The offset, store time and id of a message, which identify it.

    Attributes:
        stored: The store time, in milliseconds since the epoch.
        unique_id: The unique id; None if the message has none.
        position: The commit log offset. It identifies a message without an id, because keeping whole messages could take megabytes
            for each queue.
    """

    offset: int
    stored: int
    unique_id: str | None
    position: int


def place_of(message: MessageExt) -> Place:
    unique_id = message.properties.get("UNIQ_KEY")
    place = (message.queue_offset, message.store_time_ms, unique_id, message.commit_log_offset)
    return tuple.__new__(Place, place)  # once for each pull; Place() would add a call of a Python function


def is_at(message: MessageExt, place: Place) -> bool:
    """Return whether a message is the message of ``place``.

    The id alone is not sufficient: copies that a retry has stored share it, and messages of old clients have none.
    """
    return (
        (message.queue_offset, message.store_time_ms) == place[:2]
        and message.unique_id == place.unique_id
        and (place.unique_id is not None or message.commit_log_offset == place.position)
    )


class Seen(Enum):
    """The result of a check whether a queue still has the message of a mark (``ReadMarks``).

    Attributes:
        ALL: Like SAME, and the queue reaches the expected offset.
        SAME: The message of the mark is there, or was deleted because it was old.
        OTHER: Another message is there.
        GONE: The queue ends at or below the offset.
    """

    ALL = "the message of the mark, and what followed"
    SAME = "the message of the mark, or none since it is deleted"
    OTHER = "another message"
    GONE = "no message yet"


class FirstLook(NamedTuple):
    """The result of the check of a queue before its first pull.

    Attributes:
        end: The end of the queue.
        mark: The message before the start offset; None if the queue ends below the start offset.
        connection: The connection to the broker; None if it has changed meanwhile.
    """

    end: int
    mark: Place | None
    connection: Connection | None


class Looks:
    """Checks queues with small pulls.

    Args:
        group: Name of the group on the wire.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self.instance = instance
        self._group = group

    async def first(self, queue: MessageQueue, start: int) -> FirstLook:
        """Check the message before ``start``, which must be above 0.

        Raises:
            BrokerNotFoundError: If the message is not there and the broker has no master. The errors of a pull also propagate.
        """
        instance = self.instance
        broker_name = instance.routes.broker_of(queue)
        before = instance.open_connection(broker_name)
        message, result = await self._message(queue, start - 1)
        connection = instance.open_connection(broker_name)
        end = result.max_offset
        mark = None
        if message is not None:
            mark, end = place_of(message), max(end, start)
        else:
            await self._believe(queue, start - 1)
        if mark is None and end >= start:  # the message was deleted; a message that is found there later is another one
            mark = Place(start - 1, round(machine.time() * 1000), None, -1)
        return FirstLook(end, mark, connection if connection is before else None)

    async def at(self, queue: MessageQueue, mark: Place, reaches: int | None = None) -> Seen:
        """Check the queue at the offset of a mark. Any replica may confirm that the message is there.

        Args:
            reaches: The offset that the queue must reach for ``Seen.ALL``; None if ``Seen.SAME`` is sufficient.

        Raises:
            BrokerNotFoundError: Instead of OTHER or GONE, if the broker has no master. The errors of a pull also propagate.
        """
        message, result = await self._message(queue, mark.offset)
        if (message is None and result.max_offset > mark.offset) or (message is not None and is_at(message, mark)):
            return Seen.ALL if reaches is not None and result.max_offset >= reaches else Seen.SAME
        await self._believe(queue, mark.offset)
        return Seen.GONE if message is None else Seen.OTHER

    async def _believe(self, queue: MessageQueue, offset: int) -> None:
        if not await has_master(self.instance, queue):
            shown = self.instance.names.shown_queue(queue)
            raise errors.BrokerNotFoundError(
                f"the broker of {printable(str(shown), 300)} has no master now, and its replica does not have the message at "
                f"offset {offset}, which was there before; reading continues when the broker has a master",
                broker=queue.broker_name,
            )

    async def first_new(self, queue: MessageQueue, marks: Sequence[Place]) -> int:
        """Return the offset of the first message stored after the last mark. It is exact only if the clocks of brokers agree."""
        since = datetime.fromtimestamp((marks[-1].stored + 1) / 1000, UTC)
        return await search_offset(self.instance, queue, since, any_replica=False)

    async def goes_on_at(self, queue: MessageQueue, marks: Sequence[Place], lowest: int | None) -> int:
        """Return the offset from which a queue may have messages that were not read, if the message of its last mark is gone.

        This is the offset after the highest mark whose message still exists. If there is none, it is the offset of the first
        message stored after the last mark's time minus CLOCKS_DIFFER, but not above ``lowest``. The errors of the requests
        propagate.

        Args:
            lowest: The lowest observed end; None if there is none.
        """
        low, high = 0, len(marks) - 1  # messages of marks below ``low`` are there, messages of marks from ``high`` on are not
        while low < high:
            middle = (low + high) // 2
            if await self.at(queue, marks[middle]) is Seen.SAME:
                low = middle + 1
            else:
                high = middle
        if low:
            return marks[low - 1].offset + 1
        since = datetime.fromtimestamp(marks[-1].stored / 1000 - CLOCKS_DIFFER, UTC)
        found = await search_offset(self.instance, queue, since, any_replica=False)
        return found if lowest is None else min(found, lowest)

    async def _message(self, queue: MessageQueue, offset: int) -> tuple[MessageExt | None, PullResult]:
        """Pull one message. Return None as the message if there is none at the offset, or if its response is above
        ``max_frame_size``.
        """
        request = PullRequest(self._group, queue, offset, 1, "*", 0.0, self.instance.config.request_timeout)
        try:
            result = await pull_once(self.instance, request, OrderedSet())
        except errors.FrameTooLargeError as error:
            after, end = next_offset_in(error), end_in(error)
            if after is None or end is None:
                raise
            return None, PullResult(PullStatus.FOUND, (), after, offset, end)
        if result.status is not PullStatus.FOUND:
            return None, result
        return next((message for message in result.messages if message.queue_offset == offset), None), result


def is_refused(error: errors.RocketMQError) -> bool:
    """Return whether the error of a check means that the queue cannot be read. False if its broker is busy or does not respond."""
    busy = errors.SystemBusyError | errors.FlowControlError | errors.ServiceNotAvailableError | errors.GoAwayError
    return isinstance(error, errors.BrokerError) and not isinstance(error, busy)
