"""Compares a member's subscriptions, mode and client id with those of the other members. New conflicts are logged, and recent
conflicts are kept.

Brokers list a member once for each of its connections, with the address from which they see the connection. An entry with this
member's id that matches none of its connections may be a former connection. A broker that has not noticed the end of a connection
lists it for up to 130 s: 120 s without a heartbeat, and up to 10 s until the broker checks. So an entry counts only after it has
been listed for longer, or at once if its process responds. To find that out, the member sends a request for running information
(307), which the broker forwards to one of the connections with the id. If the request is answered but did not arrive at this
process, another process has answered it. If a request arrives here with a mark that this process has not made, another process
has sent it.

Behind NAT, a broker may see this member's own connection under another address, so entries cannot be matched. Then a conflict
counts if there have been more entries than connections for 130 s, while the connections stayed the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.heartbeat import ConsumerData, ConsumeType, MessageModel

from ... import machine
from ..._text import printable
from ...client import ClientInstance, vip_address
from ...errors import RocketMQError, SubscriptionConflictError
from ...transport import Connection
from .subscription_check import GroupView, SubscriptionConflict, group_view

logger = logging.getLogger(__name__)

LISTED_FOR: Final = 130.0
"""Seconds for which a broker may list a connection after its end."""
ANSWERED_FOR: Final = 75.0
"""Maximum seconds between two responses of a broker. After a longer gap, earlier times do not count, because the broker or this
process may have been paused."""
CONFIRMED_AFTER: Final = 15.0
CONFIRMED_WITHIN: Final = 45.0
"""Minimum and maximum seconds from the check that finds an entry listed for too long to the check that confirms it. A broker that
was paused meanwhile lists the entry until its own next check."""
ASKED_EVERY: Final = 60.0
"""Minimum seconds between two requests by which this member looks for another process."""
MARK: Final = "rmqAsyncMark"
"""The header field with the mark of the requesting process."""
ANY: Final = ""
"""The address of an entry that cannot be distinguished from this member's own connections."""
UNTIL_NEXT: Final = 0.0
LOOK_EVERY: Final = 60.0
"""Mean seconds between two checks. Checks are repeated because a broker keeps only the subscriptions of the last heartbeat."""
SPACING: Final = 5.0
"""Minimum seconds between two checks."""


class _Listed:
    """The entries of one broker with this member's id.

    Attributes:
        at: Time of the last response.
        ours: This member's own connections at the last response.
        strangers: The addresses of other entries, with the times since which they have been listed.
        long_at: Time at which an address was first found listed for too long; None if there is none.
        is_sure: Whether such an address was still listed at a later check.
    """

    def __init__(self) -> None:
        self.at = 0.0
        self.long_at: float | None = None
        self.is_sure = False
        self.ours: tuple[Connection, ...] = ()
        self.former: dict[str, None] = {}
        """Addresses of this member's own connections that have ended but are still listed."""
        self.strangers: dict[str, float] = {}

    def update(self, places: Collection[str], others: Iterable[str], ours: tuple[Connection, ...], now: float) -> bool:
        """Note a response of the broker.

        Args:
            places: The addresses of all entries with the id.
            others: The addresses of entries that do not belong to ``ours``.
            ours: This member's connections.
            now: The current monotonic time.

        Returns:
            Whether an entry certainly belongs to none of this member's current and former connections.
        """
        known = dict.fromkeys([*self.former, *[each.local_address for each in self.ours]])
        self.former = {each: None for each in known if each in places}
        before = self.strangers if now - self.at <= ANSWERED_FOR else {}
        self.strangers = {place: before.get(place, now) for place in others}
        self.at, self.ours = now, ours
        self.confirm()
        return any(place != ANY and place not in self.former for place in self.strangers)

    def long(self) -> list[str]:
        """Return the strangers that had been listed for too long at the last response."""
        return [place for place, since in self.strangers.items() if self.at - since > LISTED_FOR]

    def confirm(self) -> None:
        """Note, after a response, whether strangers were listed for too long at two checks in a row."""
        if not self.long():
            self.long_at, self.is_sure = None, False
        elif self.long_at is None or (not self.is_sure and self.at - self.long_at > CONFIRMED_WITHIN):
            self.long_at = self.at
        elif self.at - self.long_at >= CONFIRMED_AFTER:
            self.is_sure = True

    def due(self) -> float | None:
        """Return the monotonic time from which the next check can find, or confirm, a stranger that is listed for too long. Return
        None if there are no strangers, or ``is_sure``.
        """
        if not self.strangers or self.is_sure:
            return None
        return self.long_at + CONFIRMED_AFTER if self.long_at is not None else min(self.strangers.values()) + LISTED_FOR


class Namesakes:
    """Finds other processes with this member's client id.

    Args:
        ours: The heartbeat of this member.
        wake: Requests a check soon.
    """

    def __init__(self, instance: ClientInstance, ours: ConsumerData, wake: Callable[[], object]) -> None:
        self._instance = instance
        self._ours = ours
        self._wake = wake
        self._mark = ""
        """A string that is unique to this process; "" until the first request that carries it."""
        self._came_here = False
        self._listed: dict[str, _Listed] = {}
        self._met_at: float | None = None
        """Monotonic time at which another process last responded or sent a request; None if none is listed any longer."""
        self._asked_at: float | None = None
        self._reported = False

    @property
    def found(self) -> str | None:
        """A text about another process with the id; None if there is none. May be read from any thread."""
        sure = [
            place for broker, listed in [*self._listed.items()] if listed.is_sure for place in _shown(broker, listed.long())
        ]
        if self._met_at is None and not sure:
            return None
        places = sure or [place for broker, listed in [*self._listed.items()] for place in _shown(broker, [*listed.strangers])]
        where = f" ({', '.join(places[:3])})" if places else ""
        return (
            f"client id {self._instance.client_id} of group {self._ours.group_name} is also used by another process{where}: "
            f"{self._effect}; give each process its own instance_name, or leave out instance_name"
        )

    @property
    def due(self) -> float | None:
        """The monotonic time at which the next check can find a conflict; None if there is no such time."""
        return min([due for listed in self._listed.values() if (due := listed.due()) is not None], default=None)

    def heard(self, command: RemotingCommand) -> None:
        """Note a request of a broker if it carries the mark of this process, or of another process with the id."""
        mark = (command.ext_fields or {}).get(MARK)
        if mark == self._mark:
            self._came_here = True
        elif mark is not None:
            self._met_at = machine.monotonic()
            self._wake()

    async def look(self, view: GroupView, *, joined: bool, ask: bool = True) -> None:
        """Compare the entries that brokers list with this member's connections.

        Args:
            view: The group as the brokers see it.
            joined: Whether the heartbeats of this client name the group.
            ask: Whether to send a request if an entry certainly does not belong to this member.
        """
        now = machine.monotonic()
        self._listed = {
            broker: each for broker, each in self._listed.items() if broker in view.own or broker in view.unanswered
        }
        unknown = sorted(broker for broker, places in view.own.items() if self._compare(broker, places, now, joined=joined))
        if not any(each.strangers for each in self._listed.values()):
            if view.own and (self._met_at is None or now - self._met_at > ANSWERED_FOR):
                self._met_at = None
                self._reported = False
        elif ask and unknown:
            await self._ask(unknown, now)
        text = self.found
        if text is not None and not self._reported:
            self._reported = True
            logger.warning("%s", text)

    def _compare(self, broker: str, places: Collection[str], now: float, *, joined: bool) -> bool:
        """Update the entries of a broker. Return whether an entry certainly belongs to none of this member's current and former
        connections.
        """
        listed = self._listed.setdefault(broker, _Listed())
        ours = self._connections(broker) if joined else ()
        own = {connection.local_address for connection in ours}
        if not joined or not own.isdisjoint(places):
            others = [place for place in places if place not in own]
        else:
            others = [ANY] if len(places) > len(ours) and ours == listed.ours else []
        return listed.update(places, others, ours, now)

    async def _ask(self, brokers: Iterable[str], now: float) -> None:
        """Send the request to the brokers, one after the other, until another process responds. Do so at most every ASKED_EVERY
        seconds.
        """
        if self._asked_at is not None and now - self._asked_at < ASKED_EVERY:
            return
        self._asked_at = now
        for broker in brokers:
            if await self._is_answered(broker):
                self._met_at = machine.monotonic()
                return

    def _connections(self, broker: str) -> tuple[Connection, ...]:
        pool = self._instance.pool
        found = [pool.get(address) for address in (broker, vip_address(broker))]
        return tuple([connection for connection in found if connection is not None])

    async def _is_answered(self, broker: str) -> bool:
        """Request the running information of this member. Return whether another process has responded."""
        self._came_here = False
        self._mark = self._mark or f"{machine.entropy.getrandbits(64):016x}"
        fields: dict[str, str | None] = {
            "consumerGroup": self._ours.group_name,
            "clientId": self._instance.client_id,
            "jstackEnable": "false",
            MARK: self._mark,
        }
        command = RemotingCommand(code=RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=fields)
        try:
            response = await self._instance.pool.request(broker, command, self._instance.config.request_timeout)
        except RocketMQError as error:
            logger.debug("no running info of client id %s from %s: %s", self._instance.client_id, broker, printable(error))
            return False
        return response.code == ResponseCode.SUCCESS and not self._came_here

    @property
    def _effect(self) -> str:
        if self._ours.message_model == MessageModel.BROADCASTING:
            return "requests of brokers and tools reach only one of them"
        if self._ours.consume_type == ConsumeType.CONSUME_POP:
            return "requests of brokers and tools reach only one of them, and the group looks smaller than it is"
        return "both take the same queues under the same locks, handle the same messages, and overwrite each other's offsets"


def _shown(broker: str, places: Iterable[str]) -> list[str]:
    return [f"{printable(place)} at {broker}" if place else f"seen by {broker}" for place in sorted(places)]


class Conflicts:
    """The conflicts with other members of the group.

    Args:
        ours: The subscriptions in the heartbeats of this client.
        kept_for: Seconds for which a conflict counts after it was last seen; UNTIL_NEXT until the next comparison.
        spread: Maximum fraction by which the time between two checks is varied at random.
    """

    def __init__(self, instance: ClientInstance, ours: ConsumerData, kept_for: float = UNTIL_NEXT, spread: float = 0.0) -> None:
        self._instance = instance
        self._ours = ours
        self._kept_for = kept_for
        self._spread = spread
        self._seen: dict[SubscriptionConflict, float] = {}
        """The conflicts, with the monotonic time at which each was last seen."""
        self._woken = asyncio.Event()
        self.namesakes = Namesakes(instance, ours, self._woken.set)

    @property
    def found(self) -> list[SubscriptionConflict]:
        """The conflicts that count now. May be read from any thread."""
        since = machine.monotonic() - self._kept_for
        return [conflict for conflict, at in [*self._seen.items()] if not self._kept_for or at > since]

    async def look_first(self, on_conflict: str) -> None:
        """Check for conflicts before the member joins.

        Raises:
            SubscriptionConflictError: For a conflict, if ``on_conflict`` is "raise".
        """
        strict = on_conflict == "raise"
        await self.look(joined=False, ask=strict)
        if self._seen and strict:
            raise SubscriptionConflictError(f"group {self._ours.group_name}: {next(iter(self._seen))}")
        self._check_id(on_conflict)

    async def look_joined(self, on_conflict: str) -> None:
        """Check for another process with the client id after the member has joined. A process that starts at the same time was not
        listed before.

        Raises:
            SubscriptionConflictError: If there is another process, and ``on_conflict`` is "raise".
        """
        if on_conflict == "raise":
            await self.look()
            self._check_id(on_conflict)

    def _check_id(self, on_conflict: str) -> None:
        if on_conflict == "raise" and (text := self.namesakes.found) is not None:
            raise SubscriptionConflictError(text)

    def wake(self) -> None:
        """Request a check soon."""
        self._woken.set()

    async def run(self) -> None:
        """Check for conflicts periodically. Never return."""
        while True:
            await self.wait()
            await self.look()

    async def wait(self) -> None:
        """Wait until the next check is due."""
        began = machine.monotonic()
        spread = machine.random.uniform(-self._spread, self._spread) if self._spread else 0.0
        until = began + LOOK_EVERY * (1 + spread)
        if (due := self.namesakes.due) is not None:
            until = min(until, max(due, began) + 1.0)
        await asyncio.sleep(SPACING)
        while (left := until - machine.monotonic()) > 0 and not self._woken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._woken.wait()
        self._woken.clear()

    async def look(self, *, joined: bool = True, ask: bool = True) -> None:
        """Compare this member with the other members. If no broker lists this client, the known conflicts stay.

        Args:
            joined: Whether this client is a member; see ``group_view``.
            ask: Whether to send requests for another process with the id; see ``Namesakes.look``.
        """
        view = await group_view(self._instance, self._ours, self._instance.config.request_timeout, joined=joined)
        await self.namesakes.look(view, joined=joined, ask=ask)
        if not view.listed_by:
            return
        now, before = machine.monotonic(), self._seen
        for conflict in view.conflicts:
            if conflict not in before:
                logger.warning("group %s: %s", self._ours.group_name, conflict)
        kept = {conflict: at for conflict, at in before.items() if now - at < self._kept_for}
        self._seen = kept | dict.fromkeys(view.conflicts, now)
