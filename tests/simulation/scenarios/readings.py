"""Services that read a topic during sends, and compare each message with that of its broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from rmq_async.consumer import PullConsumer
from rmq_protocol.message import MessageExt, MessageQueue

from ..cluster import Cluster
from .services import serve

__all__ = ["Reading", "reading", "returning"]

TAG: Final = "a"
"""The tag of half of the messages of ``plain``."""
LONGEST: Final = 60.0
"""Seconds of one reading, at most."""
RESUMED: Final = 0.4
"""Share of the readings that continue where the one before ended."""


class Reading:
    """The progress of one reading of a topic.

    ``tag``: its tag; None for all messages. ``start``: offsets at which it began, by queue; None for the oldest messages.
    """

    def __init__(self, cluster: Cluster, tag: str | None, start: Mapping[MessageQueue, int] | None = None) -> None:
        self.next = dict(start or {})
        """The offset that comes next, by queue."""
        self._anywhere = start is not None
        """Whether the first offset of a queue that ``start`` does not name is left unchecked."""
        self._last: dict[MessageQueue, tuple[int, str]] = {}
        """Offset and unique id of the newest message of each queue."""
        self._cluster = cluster
        self._tag = tag

    def got(self, message: MessageExt) -> None:
        """Compares a message with those before it, and with the messages of its broker."""
        queue, offset = message.queue, message.queue_offset
        following = self.next.get(queue)
        if following is not None and offset < following:
            self._cluster.violation(f"reading: offset {offset} of {queue} came where {following} comes next")
        if self._tag not in (None, message.tags):
            self._cluster.violation(f"reading: offset {offset} of {queue} with tag {message.tags!r} came to {self._tag!r}")
        at = self._cluster.held(queue, offset)
        if at is not None and at.msg_id == message.msg_id:
            self._last_is_there(queue, offset)
        elif at is not None and offset > self._cluster.taken(queue):
            self._cluster.violation(f"reading: offset {offset} of {queue} came as {message.msg_id}, the broker has {at.msg_id}")
        self._passed(queue, offset)
        self.next[queue], self._last[queue] = offset + 1, (offset, message.msg_id)

    def over(self, ends: Mapping[MessageQueue, int]) -> None:
        """Reports messages, below the ends that the queues had at its beginning, that a finished reading left out."""
        for queue, end in ends.items():
            self._passed(queue, end)

    def _last_is_there(self, queue: MessageQueue, offset: int) -> None:
        """Reports a reader that continued behind a message which it had read, although the broker has lost that message and given
        its offset to another one."""
        before, msg_id = self._last.get(queue, (0, ""))
        there = self._cluster.held(queue, before)
        if msg_id and there is not None and there.msg_id != msg_id:
            self._cluster.violation(
                f"replaced: the reader went on to offset {offset} of {queue}, though it had read {msg_id} at {before}, where the "
                f"broker has {there.msg_id} now"
            )

    def _passed(self, queue: MessageQueue, end: int) -> None:
        """Reports messages below ``end`` that the broker has and the reading left out."""
        first = self.next.get(queue, end if self._anywhere else 0)
        for offset in range(max(first, self._cluster.oldest(queue), self._cluster.taken(queue) + 1), end):
            message = self._cluster.held(queue, offset)
            if message is not None and self._tag in (None, message.tags):
                self._cluster.violation(
                    f"gap: the reader passed over offset {offset} of {queue}, {message.msg_id}, up to {end}"
                )


async def reading(cluster: Cluster, until: float) -> None:
    """Follows a topic in readings of at most a minute, from the beginning or the last position, with a tag or without."""
    await _follow(cluster, until, "reading", "Plain")


async def returning(cluster: Cluster, until: float) -> None:
    """Follows a topic whose number of queues changes, as ``reading`` does."""
    await _follow(cluster, until, "returning", "Resized")


async def _follow(cluster: Cluster, until: float, group: str, topic: str) -> None:
    chance = cluster.generator(f"workload {group}")

    async def read(consumer: PullConsumer) -> None:
        before: Reading | None = None
        while cluster.now < until:
            tag = chance.choice((None, TAG))
            resumed = before is not None and before.next and chance.random() < RESUMED
            start = dict(before.next) if before is not None and resumed else None
            before = Reading(cluster, tag, start)
            try:
                async with asyncio.timeout(min(LONGEST, until - cluster.now)):
                    async for message in consumer.read(topic, start=start or "earliest", end=None, tags=tag or "*"):
                        before.got(message)
            except TimeoutError:
                pass

    async def afterwards(consumer: PullConsumer) -> None:
        for tag in (None, TAG):
            ends, last = cluster.held_to(topic), Reading(cluster, tag)
            async for message in consumer.read(topic, tags=tag or "*"):
                last.got(message)
            last.over(ends)

    await serve(cluster, until, partial(PullConsumer, group, namesrv=cluster.namesrv), read, afterwards)
