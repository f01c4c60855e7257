"""Passes popped messages to their subscriptions, back to their brokers, or to the dead-letter topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

import msgspec

from rmq_protocol.message import MessageExt
from rmq_protocol.subscription import SUB_ALL, parse_tags

from ..._ordered import OrderedSet
from ..._text import printable
from ...client import Names
from ..handling import Dispatcher
from ..outcome import Outcome
from ..subscription import Subscription
from .acks import Lease
from .core import PopCore
from .pop_redelivery import PopOutcomes
from .pop_requests import Popped
from .sources import Source

logger = logging.getLogger(__name__)

BACK_WITHIN: Final = 0.5
"""Maximum random ``delay`` for ``PopCore.nack``, in seconds, for a message that is given back without a handler call."""


class Arrivals:
    """Passes popped messages to their subscriptions.

    Args:
        limit_of: Returns the maximum number of attempts of a message after the first one.
        free: Gives back the credit (``Credits``) of a message.
        may_hold: Returns whether a source is not paused and the consumer is not stopping.

    Attributes:
        corrupt: Number of records that could not be read.
        without_handle: Number of messages that were not handled because they had no handle and could not be acknowledged.
    """

    def __init__(
        self,
        core: PopCore,
        outcomes: PopOutcomes,
        dispatcher: Dispatcher,
        names: Names,
        limit_of: Callable[[Subscription], int],
        free: Callable[[Lease], None],
        may_hold: Callable[[Source], bool],
    ) -> None:
        self._core = core
        self._outcomes = outcomes
        self._dispatcher = dispatcher
        self._names = names
        self._limit_of = limit_of
        self._free = free
        self._may_hold = may_hold
        self._tags: dict[Subscription, frozenset[str]] = {}
        self._returning: OrderedSet[asyncio.Task[Any]] = OrderedSet()
        self.corrupt = self.without_handle = 0

    def accept(self, source: Source, popped: Popped) -> None:
        """Buffer the messages of a response.

        Messages that the subscription does not match are acknowledged instead, and messages whose attempts are used up are
        dead-lettered. If the source is paused or the consumer is stopping, all matching messages are given back.
        """
        found = self._leases(source, popped)
        subscription = source.subscription
        if subscription.tags != SUB_ALL:
            found = self._wanted(subscription, found)
        source.credits.take([len(lease.message.body) for lease in found])
        if not self._may_hold(source):
            for lease in found:
                self._free(lease)
            self.give_back(found)
            return
        topic, limit = subscription.topic, self._limit_of(subscription)
        fresh: list[Lease] = []
        for lease in found:
            if lease.message.topic != topic:
                lease.message = self._renamed(source, lease.message, topic)
            if lease.attempt <= limit + 1:
                fresh.append(lease)
            else:
                self._dead_letter(subscription, lease, limit)
        self._dispatcher.add_items(source.held, subscription, fresh)
        self._dispatcher.pump()

    def _leases(self, source: Source, popped: Popped) -> list[Lease]:
        """Return the leases of a response. Log corrupt records, and messages without a handle, which have no lease."""
        shown = source.held.shown
        for corrupt in popped.corrupt:
            self.corrupt += 1
            logger.error("a record of %s cannot be read and is left out: %s", shown, printable(corrupt, 300))
        self._end_unread(source, popped)
        leases = self._core.leases(source.held, source.topic, popped)
        found = [lease for lease in leases if lease is not None]
        if missing := len(leases) - len(found):
            self.without_handle += missing
            logger.error(
                "%d messages of %s came without a handle; they are not handled, and are delivered again", missing, shown
            )
        return found

    def _end_unread(self, source: Source, popped: Popped) -> None:
        """Acknowledge corrupt records, which would otherwise be delivered for ever.

        If messages of the response were left out (``Popped.is_partial``), give back all these messages and records instead.
        """
        unread = self._core.unread(source.held, source.topic, popped)
        if popped.is_partial:
            self.give_back(unread)
            return
        for lease in unread:
            self._core.ack(lease)

    def give_back(self, leases: Collection[Lease], delay: float = BACK_WITHIN, *, suspend: bool = True) -> None:
        """Give messages back for other members, as ``PopCore.nack_all`` does.

        Args:
            suspend: Whether the broker should not count an attempt.
        """
        if leases:
            self._return(f"{len(leases)} messages back", self._core.nack_all(leases, delay, suspend=suspend))

    async def all_given_back(self) -> None:
        """Wait until all messages that are being given back or dead-lettered have been accepted or abandoned."""
        while self._returning:
            await asyncio.wait([*self._returning])
        await self._outcomes.give_backs.until_empty()

    def _return(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._core.spawn(name, work)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    def _wanted(self, subscription: Subscription, leases: list[Lease]) -> list[Lease]:
        """Return the messages with tags of the subscription, and acknowledge the others. Brokers also return messages with other
        tags, because they compare only the hash codes of tags.
        """
        tags = self._tags.get(subscription)
        if tags is None:
            tags = self._tags[subscription] = frozenset(parse_tags(subscription.tags) or ())
        if not tags:
            return leases
        wanted: list[Lease] = []
        for lease in leases:
            if lease.message.tags in tags:
                wanted.append(lease)
            else:
                self._core.ack(lease)
        return wanted

    def _renamed(self, source: Source, message: MessageExt, topic: str) -> MessageExt:
        """Return the message with the subscribed topic as the user names it. A retried message may have the group's retry topic,
        and names on the wire have the namespace.
        """
        queue = self._names.shown_queue(message.queue)
        if message.topic == source.topic:
            queue = queue._replace(topic=topic)
        return msgspec.structs.replace(message, topic=topic, queue=queue)

    def _dead_letter(self, subscription: Subscription, lease: Lease, limit: int) -> None:
        """Dead-letter a message whose attempts are used up. This happens, for example, if the member that made the last attempt
        crashed, or the lease of that attempt ended.
        """
        message = lease.message
        logger.error(
            "dead-lettered: message %s of %s (%s, offset %d) came for attempt %d, but only %d are allowed",
            message.msg_id,
            message.topic,
            message.queue,
            message.queue_offset,
            lease.attempt,
            limit + 1,
        )

        def report(outcome: Outcome) -> None:
            if outcome is Outcome.ABANDONED:
                self._core.let_go(lease)

        self._outcomes.dead_letter(subscription, lease, report)
