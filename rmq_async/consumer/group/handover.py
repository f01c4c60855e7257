"""Takes over queues from other members, with locks at the brokers and the committed offsets.

In some cases, other members are asked which queues they hold (GET_CONSUMER_RUNNING_INFO, 307, which a broker relays).
"""

# A member may not know yet that a queue now belongs to another member: the notification of the broker was lost, or notifications
# are switched off for the group, and the member reads the member list only after its ``rebalance_interval``. Until then it renews
# its locks. The lock of a crashed member also stays for a minute, so the two cases look the same. Therefore the members are asked
# before a lock is seized or a queue is read without its lock, and when a lock was granted late. They are not asked at other
# times, because the relay blocks a thread of the broker.

# Members compute their shares independently, and the protocol does not tell when a former owner has finished. So each held queue
# is locked at its broker (LOCK_BATCH_MQ, 41) under a name that only handovers use (``handover_group``); a queue of an ordered
# topic is locked under the group's own name. A member that gives up a queue drains it, commits, and unlocks it. The next owner
# requests the lock every 100 ms (every 500 ms after 2 s), then reads the committed offset and pulls.
#
# The lock of a crashed member stays for 60 s. Members that have seen the crashed member in the list free its locks after
# ``handover_timeout`` plus 2 s. If a lock is still not granted 2 s later, the queue is taken without it. No queue is taken
# without its lock while another member reports that it holds the queue, because that member does not know the new share yet.
#
# A lock that is granted only after 2 s does not prove that the queue is free: the lock of a crashed member may just have expired,
# while another member, which took the queue without its lock, still drains it. So the other members are asked in this case, too. To
# keep the order, a queue of an ordered topic is never taken without its lock, even if that takes 60 s after a crash.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from rmq_protocol.bodies import ConsumerRunningInfo, decode_body
from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import ProtocolError
from rmq_protocol.headers import GetConsumerRunningInfoRequestHeader, request_of
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import for_each
from ..._text import printable
from ...client import ClientInstance, group_members, max_offset
from ...errors import ConnectError, RocketMQError
from ...reading import FirstLook, is_refused
from .member_locks import MemberLocks
from .positions import start_offset

logger = logging.getLogger(__name__)

ANSWER_TIME: Final = 3.0
"""Maximum seconds for all responses together, because the takeover of other queues waits meanwhile."""
ASKED_AT_ONCE: Final = 8
ASK_EVERY: Final = 0.1
ASK_LATER_EVERY: Final = 0.5
"""Seconds between two requests for locks if all of them have been wanted for longer than ASK_LATER_AFTER. The interval is longer
because brokers log each refusal."""
ASK_LATER_AFTER: Final = 2.0
OFFSET_PAUSE: Final = 1.0
"""Seconds after a failed request for the committed offset of a queue before the next request."""
OFFSET_PATIENCE: Final = 5.0
"""Seconds for which a queue that has messages but no offset is left to its former owner. A new master has no locks and no
offsets, so the next owner gets the lock at once, while the former owner may still be about to commit."""
LOOK_PATIENCE: Final = 10.0
"""Seconds for which a queue is not read if the broker does not respond to the check before the first pull."""
CRASH_MARGIN: Final = 2.0
FREED_WITHIN: Final = 2.0
"""Seconds, in addition to ``handover_timeout`` and CRASH_MARGIN, before a queue is read without its lock. A member that joined
after a crash does not know the crashed member; during this time, other members free the lock."""
ASK_HOLDERS_EVERY: Final = 5.0
"""Seconds between two requests to the other members about queues that were not unlocked in time."""
DOUBTED_FOR: Final = 60.0
"""Seconds for which a queue whose lock was granted late is left to another member that reports that it holds the queue."""
ASK_DOUBTED_EVERY: Final = 1.0
DOUBT_TIME: Final = 1.0
"""Maximum seconds for the responses about queues whose locks were granted late, so that a member that does not respond
delays the handover only a little."""
SILENT_LIMIT: Final = 20.0
"""Seconds for which a queue that was not unlocked in time is left to members that do not respond. By then, with the default
``rebalance_interval``, these members have read the member list again and given up the queue."""
AT_ONCE: Final = 16
Open = Callable[[MessageQueue, int, int | None, FirstLook | None], None]
"""A function that is called with a queue that now belongs to this member, the start offset, the stored position or None, and the
result of the check before the first pull or None."""


class Holders(NamedTuple):
    """The queues that other members report.

    Attributes:
        held: Queues that another member holds or drains.
        silent: Client ids of members that did not respond.
    """

    held: frozenset[MessageQueue]
    silent: frozenset[str]


async def find_holders(
    instance: ClientInstance, group: str, queues: Iterable[MessageQueue], members: Iterable[str], within: float = ANSWER_TIME
) -> Holders:
    """Ask each member which of ``queues`` it holds. The brokers of the queues are tried one after another until the member
    responds.

    Errors are not raised; a member whose requests fail is listed in ``silent``.

    Args:
        members: Client ids of the members.
        within: Maximum seconds for all responses. A member that has not responded by then is listed in ``silent``.
    """
    wanted = frozenset(queues)
    deadline = machine.monotonic() + within
    brokers = {instance.routes.broker_of(each): each.topic for each in sorted(wanted)}

    async def ask(client_id: str) -> frozenset[MessageQueue] | None:
        header = GetConsumerRunningInfoRequestHeader(consumerGroup=group, clientId=client_id)
        for broker_name, topic in brokers.items():
            timeout = min(instance.config.request_timeout, deadline - machine.monotonic())
            if timeout <= 0:
                break
            command = request_of(header)
            try:
                response, _ = await instance.ask_broker(broker_name, topic, command, timeout)
                if response.code == ResponseCode.SUCCESS:
                    return wanted.intersection(decode_body(ConsumerRunningInfo, response.body).mq_table)
            except (RocketMQError, ProtocolError):
                continue
        return None

    answers = await for_each(members, ask, at_once=ASKED_AT_ONCE)
    held = frozenset(queue for found in answers.values() if found is not None for queue in found)
    return Holders(held, frozenset(client_id for client_id, found in answers.items() if found is None))


NO_HOLDERS: Final = Holders(frozenset(), frozenset())


class Takeover:
    """Takes over the queues of this member's share that it does not hold yet.

    Args:
        group: Name of the group on the wire.
        locks: The locks of this member.
        patience: Maximum seconds that a former owner may take to unlock a queue; CRASH_MARGIN is added.
        open: Called with a queue, its start offset, the committed offset or None, and the result of ``look``.
        departed: Returns the client ids of former members, with the monotonic times at which they left the member list.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        locks: MemberLocks,
        patience: float,
        open: Open,
        departed: Callable[[], Mapping[str, float]] = lambda: MappingProxyType({}),
    ) -> None:
        self._instance = instance
        self._group = group
        self._locks = locks
        self._patience = patience + CRASH_MARGIN
        self._open = open
        self._departed = departed
        self.start: Callable[[MessageQueue], Awaitable[tuple[int, int | None]]] = partial(start_offset, instance, group)
        """Returns the start offset of a queue, and the committed offset, which is None if there is none."""
        self.look: Callable[[MessageQueue, int], Awaitable[FirstLook | None]] = _no_look
        """Checks a queue with a committed offset before it is read. The result shows whether the queue ends below that offset; if
        it does, messages that are stored from then on are not skipped."""
        self._looking: dict[MessageQueue, float] = {}
        """Queues whose check had no response, with the monotonic time of the first check."""
        self.is_refused = False
        """Whether a broker refused a lock at the last request, because another member may have the queue."""
        self._waiting: dict[MessageQueue, float] = {}
        """Queues whose lock is wanted, with the monotonic time at which it was first wanted."""
        self._ready: dict[MessageQueue, float] = {}
        """Queues that are taken and whose offset is wanted, with the monotonic time of the next request for the offset."""
        self._late: dict[MessageQueue, tuple[float, float]] = {}
        """Queues that were not unlocked in time, with the monotonic times of the first and of the next request to the other
        members."""
        self._doubted: dict[MessageQueue, tuple[float, float]] = {}
        """Queues that this member has locked although another member holds them, with two monotonic times: when this became known,
        and when the other members are asked next."""
        self.holders: Callable[[Iterable[MessageQueue], float], Awaitable[Holders]] = _no_other
        """Asks the other members which of these queues they hold. The second argument is the maximum number of seconds to wait."""
        self.is_shared: Callable[[], bool] = lambda: False
        """Returns whether the group has other members, or had other members until recently."""
        self._without: dict[MessageQueue, float] = {}
        """Queues of this member for which the broker has no offset, with the monotonic time at which this became known."""
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        """An event that is set while there is no queue to take over."""
        self.idle.set()
        self.errors: dict[MessageQueue, str] = {}
        """Queues whose offset is not known yet, with the error of the last request."""

    def __contains__(self, queue: object) -> bool:
        return queue in self._waiting or queue in self._ready

    @property
    def queues(self) -> frozenset[MessageQueue]:
        return frozenset((*self._waiting, *self._ready))

    def locked_out(self) -> dict[MessageQueue, float]:
        """Return the ordered queues whose locks are not granted yet, with the seconds for which the locks have been wanted.

        May be called from any thread.
        """
        now = machine.monotonic()
        return {queue: now - since for queue, since in [*self._waiting.items()] if self._locks.is_ordered(queue)}

    def want(self, queues: Iterable[MessageQueue]) -> None:
        """Add queues of a new share."""
        now = machine.monotonic()
        for queue in queues:
            if queue not in self:
                self._waiting[queue] = now
                self._wake.set()
                self.idle.clear()

    def unwant(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Remove queues that are no longer in the share.

        Return the queues whose locks may have been requested. The caller must unlock them, because a request may be in flight.
        """
        removed = []
        for queue in queues:
            waited, locked = self._waiting.pop(queue, None), self._ready.pop(queue, None)
            self._late.pop(queue, None)
            self._doubted.pop(queue, None)
            self._forget_offset(queue)
            if waited is not None or locked is not None:
                removed.append(queue)
        self._check_idle()
        return removed

    async def free(self, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock the queues of a member that has left the list, except ordered queues. Before that, wait for as long as the member
        may take to unlock them itself.

        Do nothing if a broker lists the member again or does not respond.
        """
        # Members that have joined since do not know the former member. They would have to take its queues without locks, and could
        # not hand the queues over before the locks of the former member expire.
        await asyncio.sleep(self._patience)
        for left in await self._gone(queues):
            if left == client_id:
                await self._locks.unlock_for(client_id, queues)

    def lose(self, queue: MessageQueue) -> None:
        """Request the lock of a queue again if the lock was lost before the offset of the queue was known."""
        if self._ready.pop(queue, None) is not None:
            self._forget_offset(queue)
            self._waiting[queue] = machine.monotonic()

    async def run(self) -> None:
        """Take over queues. Never return."""
        while True:
            if not self._waiting and not self._ready:
                self._wake.clear()
                await self._wake.wait()
            began = machine.monotonic()
            await self._lock()
            await self._read_offsets()
            if self._waiting or self._ready:
                await asyncio.sleep(max(began + self._pause() - machine.monotonic(), ASK_EVERY / 10))

    def _forget_offset(self, queue: MessageQueue) -> None:
        """Remove the notes about a queue whose offset was being requested."""
        for noted in (self._without, self._looking, self.errors):
            noted.pop(queue, None)

    def _check_idle(self) -> None:
        if not self._waiting and not self._ready:
            self.idle.set()

    def _pause(self) -> float:
        """Return the seconds between two rounds of requests."""
        if self._ready:
            return ASK_EVERY
        newest = max(self._waiting.values(), default=0.0)
        return ASK_EVERY if machine.monotonic() - newest < ASK_LATER_AFTER else ASK_LATER_EVERY

    async def _lock(self) -> None:
        if not self._waiting:
            return
        asked = tuple(self._waiting)
        granted = await self._locks.lock(asked)
        self.is_refused = self._is_refused([queue for queue in asked if queue not in granted])
        now = machine.monotonic()
        dropped = []
        doubtful = []
        for queue in sorted(granted):  # the iteration order of a set differs between processes
            self._late.pop(queue, None)
            since = self._waiting.get(queue)
            if since is None:
                dropped.append(queue)  # no longer wanted since this round began
            elif now - since >= ASK_LATER_AFTER and not self._locks.is_ordered(queue):
                doubtful.append(queue)
            else:
                self._begin(queue)
        if dropped:
            await self._locks.unlock(dropped)
        late = [
            queue
            for queue, since in self._waiting.items()
            if queue not in granted
            and now >= max(since + self._patience, self._next_question(queue))
            and not self._locks.is_ordered(queue)
        ]
        self._forget_doubts(granted)
        if doubtful:
            await self._take_granted(doubtful)
        if late:
            await self._take_late(late)

    def _is_refused(self, queues: Collection[MessageQueue]) -> bool:
        """Return whether brokers have refused the lock of at least one of ``queues``. A missing response does not count as a
        refusal.
        """
        if not queues:
            return False
        errors, broker_of = self._locks.errors_of(queues), self._instance.routes.broker_of
        failed = {broker for broker, error in errors.items() if not is_refused(error)}
        return any(broker_of(queue) not in failed for queue in queues)

    def _forget_doubts(self, granted: Collection[MessageQueue]) -> None:
        """Remove the entries of ``_doubted`` whose locks are not granted now."""
        self._doubted = {queue: times for queue, times in self._doubted.items() if queue in granted}

    def _begin(self, queue: MessageQueue) -> None:
        """Note that this member has taken a queue. Its offset is requested next."""
        del self._waiting[queue]
        self._doubted.pop(queue, None)
        self._ready[queue] = machine.monotonic()

    async def _take_granted(self, queues: list[MessageQueue]) -> None:
        """Take queues whose locks were granted late.

        Leave queues to another member that reports that it holds them, for up to DOUBTED_FOR seconds.
        """
        now = machine.monotonic()
        asked = [queue for queue in queues if now >= self._doubted.get(queue, (0.0, 0.0))[1]]
        found = await self.holders(asked, DOUBT_TIME) if asked else NO_HOLDERS
        now = machine.monotonic()
        for queue in asked:
            if queue not in self._waiting:
                continue  # no longer wanted
            since, _ = self._doubted.get(queue, (now, now))
            if queue not in found.held or now - since >= DOUBTED_FOR:
                self._begin(queue)
            else:
                self._doubted[queue] = since, now + ASK_DOUBTED_EVERY

    async def _take_late(self, late: list[MessageQueue]) -> None:
        """Seize the locks of queues that were not unlocked in time. FREED_WITHIN seconds later, take the queues without their
        locks.

        Leave out queues that another member holds or may hold.
        """
        # A member that joined after the owner had left cannot free the lock, and may read the queue without it. So the other
        # members are also asked before a lock is seized.
        held, unsure = await self._elsewhere(late)
        free = [queue for queue in late if queue not in held]
        seized = await self._locks.seize(free, await self._gone(free))
        elsewhere = held | (unsure - seized)
        patient = machine.monotonic() - self._patience - FREED_WITHIN
        for queue in late:
            if queue not in seized and self._waiting.get(queue, 0.0) > patient:
                continue
            if queue in elsewhere or (since := self._waiting.pop(queue, None)) is None:  # None: no longer wanted
                continue
            self._late.pop(queue, None)
            self._ready[queue] = machine.monotonic()
            if queue not in seized:
                self._locks.assume([queue])
            how = "a member that is gone" if queue in seized else "another client, and is read without its lock"
            late_by = machine.monotonic() - since
            logger.warning("queue %s is taken over %.1f s late, because it was locked by %s", queue, late_by, how)
        await self._locks.unlock(sorted(seized - self._ready.keys()))

    async def _gone(self, queues: Iterable[MessageQueue]) -> list[str]:
        """Return the former members that have had the time to unlock their queues, and that no broker of ``queues`` lists.

        A broker that does not respond counts as listing all former members.
        """
        # A member that has left and joined again may have the same client id, so the brokers are asked again.
        before = machine.monotonic() - self._patience
        departed = [client_id for client_id, since in self._departed().items() if since <= before]
        topics = {self._instance.routes.broker_of(queue): queue.topic for queue in sorted(queues)}
        if not departed or not topics:
            return []
        listed: set[str] = set()

        async def look(broker_name: str) -> None:
            try:
                listed.update(await group_members(self._instance, self._group, broker_name, topics[broker_name]))
            except RocketMQError as error:
                logger.debug("broker %s does not list the members of the group: %s", broker_name, printable(error, 300))
                listed.update(departed)

        await for_each(topics, look, at_once=AT_ONCE)
        return [client_id for client_id in departed if client_id not in listed]

    def _next_question(self, queue: MessageQueue) -> float:
        return self._late[queue][1] if queue in self._late else 0.0

    async def _elsewhere(self, late: list[MessageQueue]) -> tuple[frozenset[MessageQueue], frozenset[MessageQueue]]:
        """Return two sets: the queues of ``late`` that other members hold, and the queues that members without a response may hold.

        If a member does not respond, the second set has all queues of ``late`` for SILENT_LIMIT seconds.
        """
        found = await self.holders(late, ANSWER_TIME)
        now = machine.monotonic()
        for queue in late:
            if queue in self._waiting:
                since, _ = self._late.get(queue, (now, now))
                without_lock = self._waiting[queue] + self._patience + FREED_WITHIN
                self._late[queue] = since, without_lock if now < without_lock else now + ASK_HOLDERS_EVERY
        unsure = [queue for queue in late if found.silent and now - self._late.get(queue, (now, now))[0] < SILENT_LIMIT]
        return found.held, frozenset(unsure)

    async def _read_offsets(self) -> None:
        now = machine.monotonic()

        async def read(queue: MessageQueue) -> None:
            try:
                offset, committed = await self.start(queue)
                look = await self._first_look(queue, offset) if committed else None
                early = committed is None and await self._may_be_early(queue, offset)
            except RocketMQError as error:
                if queue in self._ready:
                    self._ready[queue] = machine.monotonic() + OFFSET_PAUSE
                    self.errors[queue] = printable(error, 300)
                return
            if early:
                if queue in self._ready:
                    self._ready[queue] = machine.monotonic() + OFFSET_PAUSE
            elif self._ready.pop(queue, None) is not None:
                self._forget_offset(queue)
                self._open(queue, offset, committed, look)
                self._check_idle()

        await for_each([queue for queue, at in self._ready.items() if at <= now], read, at_once=AT_ONCE)

    async def _first_look(self, queue: MessageQueue, offset: int) -> FirstLook | None:
        """Check a queue before it is read.

        Return None if the broker refuses the check or cannot be connected to, and LOOK_PATIENCE seconds after the first error. The
        first pull then fails with the same error. Other errors propagate.
        """
        now = machine.monotonic()
        since = self._looking.setdefault(queue, now)
        try:
            return await self.look(queue, offset)
        except RocketMQError as error:
            if (
                error.retriable
                and not is_refused(error)
                and not isinstance(error, ConnectError)
                and now - since < LOOK_PATIENCE
            ):
                raise
            shown = self._instance.names.shown_queue(queue)
            logger.debug("%s could not be checked before its first pull: %s", shown, printable(error, 300))
            return None

    async def _may_be_early(self, queue: MessageQueue, first: int) -> bool:
        """Return whether to wait for a former owner, who may still commit an offset for a queue without one.

        The error of the request propagates.

        Args:
            first: The offset at which this member begins if there is no committed offset.
        """
        now = machine.monotonic()
        if not self.is_shared() or now - self._without.setdefault(queue, now) >= OFFSET_PATIENCE:
            return False
        return await max_offset(self._instance, queue, any_replica=False) > first


async def _no_other(_: Iterable[MessageQueue], within: float) -> Holders:
    """Return that no other member holds a queue. It is the default of ``holders``."""
    return NO_HOLDERS


async def _no_look(queue: MessageQueue, offset: int) -> None:
    """Check nothing. It is the default of ``look``."""
