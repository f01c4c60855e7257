"""The lite topics of one consumer, and their subscriptions at the brokers.

A broker accepts the subscription to a lite topic only if the consistent hash of the name chooses it, or if it has messages of the
lite topic. So every change goes to every master of the topic, and all masters get the complete set every 30 s, which repairs what a
restart, a lost connection or another route has changed (the official clients do the same).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from rmq_protocol.errors import shown
from rmq_protocol.lite import LiteAction, LiteSubscription, OffsetOption, OffsetType, check_lite_topic

from ... import machine
from ..._asyncio import for_each
from ..._text import printable
from ...client import ClientInstance
from ...errors import BrokerError, ConfigError, RocketMQError
from ...transport import Connection
from .lite_requests import LiteRequests

logger = logging.getLogger(__name__)

SYNC_EVERY: Final = 30.0
"""Seconds between two complete sets, as in the official clients. A broker ends subscriptions 3 minutes after the last set."""
LOOK_EVERY: Final = 0.5
"""Seconds between two looks whether a broker has another connection, after which it has no subscriptions."""
PER_REQUEST: Final = 1000
"""Maximum number of lite topics in one partial change."""
FIRST_PAUSE: Final = 1.0


class Tail(msgspec.Struct, frozen=True):
    """The start at the newest ``count`` messages of a lite topic."""

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or isinstance(self.count, bool) or not 0 <= self.count < 2**31:
            raise ConfigError(f"the count of a Tail must be an integer from 0 to {2**31 - 1}, not {shown(self.count)}")


LiteStart = Literal["last", "earliest", "latest"] | int | datetime | Tail
"""The position at which a group begins in a lite topic: "last" for the group's offset (the first message in a new group),
"earliest" for the first message, "latest" for the end, an offset, an aware datetime for the first message stored then or later, or
a Tail."""


def checked_start(start: object) -> LiteStart:
    """Return a start position.

    Raises:
        ConfigError: For another value, a negative offset, and a datetime without a time zone.
    """
    if isinstance(start, Tail) or start in ("last", "earliest", "latest"):
        return start
    if isinstance(start, datetime):
        if start.utcoffset() is None:
            raise ConfigError(f"start must be an aware datetime, {start.isoformat()} has no time zone; give it one")
        return start
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < 2**63:
        return start
    raise ConfigError(
        f'start must be "last", "earliest", "latest", an offset of 0 or more, an aware datetime or a Tail, not {shown(start)}'
    )


class LiteSubscriptions:
    """The lite topics of one consumer.

    Args:
        brokers: Returns the names of the brokers with a master in the topic's route.

    Attributes:
        names: The lite topics, in the order of their subscriptions.
    """

    def __init__(
        self, instance: ClientInstance, group: str, topic: str, requests: LiteRequests, brokers: Callable[[], Iterable[str]]
    ) -> None:
        self._instance = instance
        self._group = group
        self._topic = topic
        self._requests = requests
        self._brokers = brokers
        self.names: dict[str, None] = {}
        self._version = 0
        self._synced: dict[str, tuple[Connection | None, float]] = {}
        """By broker: the connection over which it got the last complete set, and the monotonic time of that."""
        self.errors: dict[str, RocketMQError] = {}
        """By broker: the error of the last request, until one succeeds."""
        self._starts: dict[str, dict[str, LiteStart]] = {}
        """By broker: the starts of lite topics that it has not confirmed. A complete set contains no starts."""
        self._changing = asyncio.Lock()
        self._cleared = False

    async def add(self, names: Iterable[str], start: LiteStart) -> None:
        """Subscribe to lite topics at all brokers. A broker that does not respond gets them with the next complete set.

        Raises:
            InvalidMessageError: For an invalid name. Nothing is subscribed then.
            LiteSubscriptionQuotaError: If a broker refuses because of its limit. The new names are removed everywhere then.
            BrokerError: If a broker refuses for another reason. The same applies.
            ConfigError: For an invalid start.
        """
        checked = [check_lite_topic(self._topic, name) for name in names]
        start = checked_start(start)
        async with self._changing:
            if not checked:
                return
            if start != "last":  # a broker looks for messages from the new start on only at a new subscription
                await self._remove(self.forget(checked))
            new = [name for name in dict.fromkeys(checked) if name not in self.names]
            self.names |= dict.fromkeys(new)
            if not new:
                return
            brokers = [*self._brokers()]
            for broker in brokers:
                self._starts.setdefault(broker, {}).update(dict.fromkeys(new, start))
            outcomes = await for_each(brokers, self._add_at)
            if refused := [error for error in outcomes.values() if isinstance(error, BrokerError) and not error.retriable]:
                await self._remove(self.forget(new))
                raise refused[0]

    def forget(self, names: Iterable[str]) -> list[str]:
        """Remove names from ``names``, and return the removed names. ``remove`` ends their subscriptions."""
        gone = [name for name in dict.fromkeys(names) if name in self.names]
        for name in gone:
            del self.names[name]
            for waiting in self._starts.values():
                waiting.pop(name, None)
        return gone

    def withdraw(self, names: Iterable[str]) -> None:
        """Forget lite topics whose subscription was cut off. The next complete sets, which are due now, end them at the brokers."""
        self.forget(names)
        self._synced.clear()

    async def remove(self, names: list[str]) -> None:
        """End subscriptions at all brokers. A broker that does not respond ends them with the next complete set."""
        async with self._changing:
            await self._remove([name for name in names if name not in self.names])

    async def clear(self, timeout: float) -> None:
        """End all subscriptions, because the consumer stops. No complete set is sent afterwards.

        Errors are logged at DEBUG: a broker ends subscriptions minutes after the last complete set.
        """
        self._cleared = True
        self.names.clear()
        self._starts.clear()
        change = self._change(LiteAction.CLEAR, ())

        async def clear_at(broker: str) -> None:
            try:
                await self._requests.change_subscriptions(broker, change, timeout=timeout)
            except RocketMQError as error:
                logger.debug("subscriptions at broker %s were not ended: %s", broker, printable(error, 300))

        await for_each(self._brokers(), clear_at)

    async def run(self) -> None:
        """Send the complete set to each broker every SYNC_EVERY seconds, and after each new connection. Return after ``clear``."""
        while not self._cleared:
            await asyncio.sleep(LOOK_EVERY)
            self._forget_brokers()
            due = [broker for broker in self._brokers() if self._is_due(broker)]
            if due:
                async with self._changing:
                    await for_each([broker for broker in due if broker in self._starts], self._add_at)
                    await for_each(due, self.sync)

    def _forget_brokers(self) -> None:
        """Drop the times and errors of brokers that have left the route. Starts stay, because a broker may come back."""
        brokers = [*self._brokers()]
        for broker in [*self._synced, *self.errors]:
            if broker not in brokers:
                self._synced.pop(broker, None)
                self.errors.pop(broker, None)

    def _is_due(self, broker: str) -> bool:
        connection, at = self._synced.get(broker, (None, -SYNC_EVERY))
        pause = FIRST_PAUSE if broker in self.errors else SYNC_EVERY
        now = machine.monotonic()
        return now - at >= pause or (now - at >= FIRST_PAUSE and self._instance.open_connection(broker) is not connection)

    async def sync(self, broker: str) -> None:
        """Send the complete set to a broker. After ``clear``, do nothing."""
        if self._cleared:
            return
        self._version += 1
        waiting = self._starts.get(broker, {})
        change = self._change(LiteAction.SET, [name for name in self.names if name not in waiting])
        error = await self._send(broker, change)
        self._synced[broker] = self._instance.open_connection(broker), machine.monotonic()
        if error is not None:
            logger.debug("the lite topics were not sent to broker %s: %s", broker, printable(error, 300))

    async def _add_at(self, broker: str) -> RocketMQError | None:
        """Send the subscriptions that a broker has not confirmed. Return the first error; the others stay unconfirmed, too."""
        waiting = self._starts.get(broker, {})
        options: dict[OffsetOption | None, list[str]] = {}
        try:
            for name, start in waiting.items():
                options.setdefault(await self._option(broker, name, start), []).append(name)
        except RocketMQError as error:
            self.errors[broker] = error
            return error
        for option, names in options.items():
            for first in range(0, len(names), PER_REQUEST):
                some = names[first : first + PER_REQUEST]
                failure = await self._send(broker, self._change(LiteAction.ADD, some, option))
                if failure is not None:
                    return failure
                for name in some:
                    waiting.pop(name, None)
        if not waiting:
            self._starts.pop(broker, None)
        return None

    async def _option(self, broker: str, name: str, start: LiteStart) -> OffsetOption | None:
        """Return the option for a start. Offsets are computed here if brokers (5.5.0) do not support the option."""
        timeout = self._instance.config.request_timeout
        if start == "last":
            return None
        if start == "earliest" or start == "latest":
            return OffsetOption(OffsetType.POLICY, 1 if start == "earliest" else 2)
        if isinstance(start, int):
            return OffsetOption(OffsetType.OFFSET, start)
        found = (await self._requests.details(broker, name, timeout)).topic_offset
        if found is None or not found.max_offset:
            return OffsetOption(OffsetType.POLICY, 1)
        if isinstance(start, Tail):
            return OffsetOption(OffsetType.OFFSET, max(found.max_offset - start.count, found.min_offset))
        offset = await self._requests.offset_at(broker, name, round(start.timestamp() * 1000), timeout)
        return OffsetOption(OffsetType.OFFSET, offset)

    async def _remove(self, names: list[str]) -> None:
        if names:
            change = self._change(LiteAction.REMOVE, names)
            await for_each(self._brokers(), lambda broker: self._send(broker, change))

    def _change(self, action: LiteAction, names: Iterable[str], option: OffsetOption | None = None) -> LiteSubscription:
        return LiteSubscription(action, self._instance.client_id, self._group, self._topic, tuple(names), option, self._version)

    async def _send(self, broker: str, change: LiteSubscription) -> RocketMQError | None:
        try:
            await self._requests.change_subscriptions(broker, change, timeout=self._instance.config.request_timeout)
        except RocketMQError as error:
            self.errors[broker] = error
            return error
        self.errors.pop(broker, None)
        return None
