"""The acting part of batching: when gatherings leave, what they leave as, and who has waited for too long.

Per message nothing is done here. Per batch: one callback of the loop, one encoding, one request; no Task while nothing fails.
Callers' deadlines are watched by one timer for all of them, set for the earliest. It looks at everybody who waits, which takes
some milliseconds with 65,535 of them; where time-outs are equal that happens once per time-out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import Message, MessageQueue

from ...errors import ClientStateError, own_copy
from ...transport import raise_soon
from ..first_attempt import broken_off
from ..lanes import Lane, Target
from ..outgoing import Outgoing
from .gathering import Entry, Gathering, InTurn, Member, alive
from .in_order import InOrder
from .settings import Batching
from .under_way import UnderWay

if TYPE_CHECKING:
    from ..sender import Sender

__all__ = ["Batcher"]

BLOCKED_AFTER: Final = 0.1
GRACE: Final = 0.02
"""Seconds for reads after the loop was blocked for so long."""

PLAIN_PROPERTIES: Final = len("UNIQ_KEY\x01\x02WAIT\x01true\x02")
"""Bytes that a message's properties take besides its unique id, where there are no others."""

SHORTEST_LINGER: Final = 0.001
"""Seconds. uvloop's timers count milliseconds: below half of one ``call_later`` makes a plain Handle, which has no ``when()``."""


class Batcher:
    """Of one sender. ``alarm``: when callers' deadlines are looked at next."""

    def __init__(self, sender: Sender, settings: Batching) -> None:
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._linger = settings.linger
        self.encoder = sender.encoder
        self.max_bytes = min(settings.max_bytes, sender.config.max_message_size)
        self.max_messages = settings.max_messages
        self.lanes_per_broker = settings.lanes_per_broker
        self.plain_size = BATCH_OVERHEAD + PLAIN_PROPERTIES + sender.ids.length
        """Bytes in a batch of a message that has nothing but a body, besides that."""
        self.requests: set[UnderWay] = set()
        self.alarm = inf
        self._timer: asyncio.TimerHandle | None = None
        self._grace = False
        """Reads have been let pass after the loop was blocked."""
        self._in_turn: WeakValueDictionary[tuple[str, bool], InTurn] = WeakValueDictionary()
        """Held by their lanes, by those who wait in them, by the loop when they are due to leave, and by their requests."""
        self._in_order: dict[tuple[MessageQueue, bool], InOrder] = {}
        self._finding: dict[InTurn, asyncio.Task[None]] = {}
        self._left: set[Gathering] = set()
        """Those of which somebody waits no longer, until their requests have been looked at."""
        self._context = Context()
        """What hooks run in: a batch is no single caller's."""

    def __repr__(self) -> str:
        gathered = sum(len(members) for gathering in self._gatherings() for members in gathering.waiting())
        return f"<Batcher {gathered} messages gathered, {len(self.requests)} requests under way>"

    # -- where messages gather

    def in_turn(self, topic: str, *, wait_store: bool) -> InTurn:
        """``topic``: as users write it."""
        gathering = self._in_turn.get((topic, wait_store))
        if gathering is None:
            self._in_turn[topic, wait_store] = gathering = InTurn(self, topic)
        return gathering

    def in_order(self, lane: Lane, target: Target, *, fixed: bool) -> InOrder:
        """``fixed``: the caller chose the queue, and nothing may go to another one."""
        gathering = self._in_order.get((target.queue, fixed))
        if gathering is None:
            gathering = self._in_order[target.queue, fixed] = InOrder(self, lane, target, fixed=fixed)
        else:
            gathering.aim(lane, target)
        return gathering

    def forget(self, gathering: InOrder) -> None:
        """Nothing is left in it."""
        key = gathering.queue, gathering.fixed
        if self._in_order.get(key) is gathering:
            del self._in_order[key]

    def lane(self, gathering: InTurn) -> Lane | None:
        """The topic's lane; None where its route must be asked for first, which is then on its way."""
        lane = self._sender.lanes.get(gathering.topic) or self._sender.topics.now(gathering.topic)
        if lane is None and gathering not in self._finding:
            task = self._finding[gathering] = self._loop.create_task(
                self._find(gathering), name="rmq_async route of a batch", context=Context()
            )
            task.add_done_callback(partial(self._found, gathering))
        return lane

    async def _find(self, gathering: InTurn) -> None:
        await asyncio.sleep(0)  # all who wait are there by then, also where Tasks begin at once
        deadline = max([member[2] for members in gathering.waiting() for member in members], default=0.0)
        await self._sender.topics.lane(gathering.topic, deadline)

    def _found(self, gathering: InTurn, task: asyncio.Task[None]) -> None:
        """Or not: also of a Task that others cancelled before it had begun."""
        del self._finding[gathering]
        error = ClientStateError("the search for the route was cancelled") if task.cancelled() else task.exception()
        if error is not None:
            _tell(gathering.drop(), error)
        gathering.leave()

    def is_connected(self, target: Target) -> bool:
        return target.address in self._sender.connections

    def is_finding(self, gathering: InTurn) -> bool:
        """Whether the gathering waits for the route of its topic."""
        return gathering in self._finding

    def by_now(self, topic: str, lane: Lane, target: Target) -> tuple[Lane, Target]:
        """The same queue as the topic's route has it at this moment."""
        newer = self._sender.lanes.get(topic) or self._sender.topics.now(topic)
        if newer is None or newer is lane or not newer.knows(target.queue):
            return lane, target
        return newer, newer.target(target.queue)

    def inviting(self, lane: Lane) -> Collection[str]:
        """The brokers of the lane that are not left alone at the moment, or all."""
        selection = self._sender.selection
        avoided = () if selection is None else selection.avoided(lane.brokers)
        return (lane.brokers.difference(avoided) or lane.brokers) if avoided else lane.brokers

    def next_of(self, lane: Lane, brokers: Collection[str]) -> Target:
        """The next queue of these brokers."""
        selection = self._sender.selection
        return lane.next_of(brokers) if selection is None else selection.next(lane, frozenset(brokers))

    # -- leaving

    def soon(self, gathering: Gathering, deadline: float) -> None:
        """Has it leave at the end of this iteration of the loop, or when messages have lingered; ``deadline``: of the first."""
        if self._linger and not gathering.in_order:  # plain messages may join, which have no more time and do not ask
            deadline = min(deadline, monotonic() + self._sender.timeout)
        if deadline < self.alarm:
            self.watch_until(deadline)
        if self._linger:
            gathering.timer = self._loop.call_later(self._time_to_linger(deadline), gathering.leave)
        else:
            self._loop.call_soon(gathering.leave)

    def sooner(self, gathering: Gathering, deadline: float) -> None:
        """Another message has joined those that linger, and has perhaps less time than they have."""
        timer = gathering.timer
        if timer is not None and timer.when() > self._loop.time() + (left := self._time_to_linger(deadline)):
            timer.cancel()
            gathering.timer = self._loop.call_later(left, gathering.leave)

    def _time_to_linger(self, deadline: float) -> float:
        """Half of what is left to the message, at most: what lingers until its time is over is not sent."""
        return max(SHORTEST_LINGER, min(self._linger, (deadline - monotonic()) / 2))

    def hasten(self, gathering: Gathering) -> None:
        """Something is complete: to linger brings nothing more."""
        if self._linger:
            self._loop.call_soon(gathering.leave)

    def hurry(self, *, for_good: bool = False) -> None:
        """Nothing that is here lingers any longer; ``for_good``: nor does what comes."""
        if self._linger:
            if for_good:
                self._linger = 0.0
            for gathering in self._gatherings():
                gathering.leave()

    def go(self, gathering: Gathering, entry: Entry, lane: Lane, target: Target, *, fixed: bool) -> None:
        """One request with all its attempts. A failure is raised to those who wait for it."""
        sender = self._sender
        try:
            entry, made = gathering.request(entry, target)
        except Exception as error:  # noqa: BLE001 - of a message that is not what it was when it was found good
            made = None
            if len(entry.members) > 1:
                self.split(gathering, entry, entry.ids)
            else:
                _tell(entry.members, error)
        if made is None:
            gathering.ended(target.broker)
            return
        retries = sender.retries_in_order if fixed else sender.retries
        request = UnderWay(
            sender, self, gathering, entry, made, lane, target, fixed=fixed, retries=retries, started=monotonic()
        )
        self.requests.add(request)
        if request.makes_room_at < request.deadline:
            self.look_at(request.makes_room_at)
        try:
            request.start()
        except Exception as error:  # noqa: BLE001 - of a user's hook: those whose messages these are must hear of it
            request.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - the same, and it leaves the loop when all others are on their way
            request.set_exception(broken_off(error, maybe_stored=False))
            raise_soon(error)

    def show(self, outgoing: Outgoing, messages: Sequence[Message], read: Any) -> None:
        """Lets hooks, where there are any, see the attempts of a batch of messages that carry no order, as a whole."""
        if self._sender.watched:
            shown = messages[0] if outgoing.batch_ids is None else tuple(messages)
            self._context.run(self._sender.watch, outgoing, shown, "sync", read)

    def split(self, gathering: Gathering, entry: Entry, ids: tuple[str, ...] | None) -> None:
        """Sends a batch that was refused in two halves, until the message that is refused is by itself."""
        left = alive(entry._replace(ids=ids))
        if left is None:
            return
        half = (len(left.members) + 1) // 2
        parts = (slice(half), slice(half, None))
        halves = [Entry(left.members[part], ids=None if left.ids is None else left.ids[part]) for part in parts]
        gathering.again([each for each in halves if each.members])

    # -- those who wait no longer

    def look_after(self, gathering: Gathering) -> None:
        """Soon ends those of its requests that no caller waits for: they would be in the way of others."""
        if not self._left:
            self._loop.call_soon(self._end_unwanted)
        self._left.add(gathering)

    def _end_unwanted(self) -> None:
        left, self._left = self._left, set()
        for request in tuple(self.requests):
            if request.gathering in left and request.unwanted:
                request.give_up()

    # -- deadlines

    def waited(self, deadline: float) -> None:
        """A plain message comes later than others of its age did, which ``add_plain`` does not reckon with."""
        self.look_at(deadline)
        if self._linger:
            for gathering in self._gatherings():
                self.sooner(gathering, deadline)

    def look_at(self, time: float) -> None:
        """Looks at everybody's time then, or before."""
        if time < self.alarm:
            self.watch_until(time)

    def watch_until(self, deadline: float) -> None:
        """Looks at everybody's time at the deadline, or before."""
        if self._timer is not None:
            self._timer.cancel()
        self.alarm = deadline
        self._timer = self._loop.call_later(max(deadline - monotonic(), 0.0), self._expire, context=Context())

    def _expire(self) -> None:
        now, earliest = monotonic(), inf
        if now - self.alarm > BLOCKED_AFTER and not self._grace:  # the loop was blocked: answers may wait in the socket
            self._grace = True
            self._timer = self._loop.call_later(GRACE, self._expire)
            return
        self._timer, self._grace, self.alarm = None, False, inf
        for gathering in self._gatherings():
            for members in gathering.waiting():
                earliest = min(earliest, _expired(members, now, gathering))
        for request in tuple(self.requests):
            earliest = min(earliest, request.expire(now))
            if request.unwanted:
                request.give_up()
        self.look_at(earliest)

    # -- the end

    def end(self, error: Callable[[], RocketMQError]) -> None:
        """Ends all that has not gone; what is under way is ended where it is."""
        for gathering in self._gatherings():
            for receiver, _, _ in gathering.drop():
                if not receiver.done():  # the callback of another one may have cancelled it
                    receiver.set_exception(error())
        for task in tuple(self._finding.values()):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _gatherings(self) -> list[Gathering]:
        return [*self._in_turn.values(), *self._in_order.values()]


def _expired(members: list[Member], now: float, gathering: Gathering) -> float:
    """Ends the wait of those whose time is over; returns the earliest deadline of the others."""
    earliest = inf
    for receiver, _, deadline in members:
        if receiver.done():
            continue
        if deadline <= now:
            gathering.stale = True
            receiver.set_exception(gathering.not_sent())
        elif deadline < earliest:
            earliest = deadline
    return earliest


def _tell(members: list[Member], error: BaseException) -> None:
    for receiver, _, _ in members:
        if not receiver.done():  # the callback of another one may have cancelled it
            receiver.set_exception(own_copy(error))
