"""Rebalance rounds, in which a member computes its share of the queues from the member lists of the brokers; and the queues that
are missing from the route of their topic.
"""

# Each member computes its share independently. The lists of two brokers differ as long as one of them has not seen a heartbeat or
# the end of a connection. A client with two connections is listed twice. While members disagree, ``handover`` decides which of
# them reads a queue.

# Routes look the same if name servers have forgotten a broker, if the broker is down, and if an operator has removed queues. So the
# number of unread messages is requested from brokers that can be reached, and a queue is reported for at most NAMED_FOR seconds.

# A round begins every ``rebalance_interval``, after a notification of a broker, after a change of a route, and 1 s after an
# incomplete round, but at most once per second. It requests the member list of each broker of the topics once. A member keeps its
# queues of a topic whose brokers do not respond. If brokers respond but do not list the member, it keeps them for 120 s, because
# a broker that has restarted lists the member again after its next heartbeat.

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import for_each
from ..._backoff import Backoff
from ..._text import printable
from ...client import ClientInstance, group_members, max_offset
from ...errors import QueueNotExistError, RocketMQError, TopicNotFoundError
from ..strategies import ANOTHER, Allocate
from .positions import start_offset

logger = logging.getLogger(__name__)

NAMED_FOR: Final = 3600.0
"""Maximum seconds for which a queue is reported as missing."""
MOST_NAMED: Final = 1024
SOUGHT_FOR: Final = 120.0
"""Seconds for which the routes of missing queues are requested often. A broker that restarts is usually back by then."""
FIRST_PAUSE: Final = 0.05
COUNT_EVERY: Final = 20.0
"""Maximum seconds between two requests for the offsets of missing queues. The first intervals are shorter, because a member commits
the last offset of a queue a moment after it has seen that the queue is gone."""
LONGEST_REQUEST: Final = 1.0
SPACING: Final = 1.0
"""Minimum seconds from the beginning of one round to the beginning of the next."""
LOOK_UP_EVERY: Final = 2.0
"""Seconds between two requests for the route of a topic that no name server knows, or whose route has lost queues lately."""
AT_ONCE: Final = 16
MOST_DEPARTED: Final = 64
UNLISTED_LIMIT: Final = 120.0
"""Seconds after which a member that no broker lists gives up its queues. Brokers remove a client that has sent nothing for the same
time."""
Apply = Callable[[dict[str, frozenset[MessageQueue]]], None]
"""A function that is called after a round with the share of each topic."""


def merged_members(lists: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], bool]:
    """Return the sorted client ids of all lists, and whether all lists have the same ids.

    An id occurs in the result as often as in the list that has it most often.
    """
    counts = [Counter(each) for each in lists]
    merged: Counter[str] = Counter()
    for count in counts:
        merged |= count
    return tuple(sorted(merged.elements())), all(count == merged for count in counts)


def share_of(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], allocate: Allocate
) -> frozenset[MessageQueue]:
    """Return the queues of ``client_id``.

    If ``members`` has the id more than once, it gets the shares of all these entries, because ``allocate`` finds only the first
    entry and no member would read the other shares.

    Args:
        queues: All queues, sorted.
        members: The client ids of all members, sorted.

    Raises:
        TypeError: If the result of ``allocate`` is not iterable, or has an unhashable item.
        ValueError: If the result has an item that is not in ``queues``. Errors of ``allocate`` also propagate.
    """
    found = set(allocate(client_id, queues, members))
    first = members.index(client_id) if client_id in members else 0
    for place in [index for index, member in enumerate(members) if member == client_id and index > first]:
        others = [
            f"{member}{ANOTHER}{index})" if member == client_id and index != place else member
            for index, member in enumerate(members)
        ]
        found.update(allocate(client_id, queues, others))
    if strange := found.difference(queues):
        text = ", ".join(sorted(map(shown, strange))[:3])
        raise ValueError(f"allocate must return only queues that it was given, not {text}")
    return frozenset(found)


class Missing(NamedTuple):
    """Queues of one topic and broker that disappeared from the route at the same time.

    Attributes:
        age: Seconds since that time.
        unread: Number of messages in these queues that the group has not read; None if it is not known.
    """

    queues: tuple[MessageQueue, ...]
    age: float
    unread: int | None


class MissingQueues:
    """The queues that the routes named since the start of this member but do not name now, up to MOST_NAMED queues.

    Args:
        group: Name of the group on the wire.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self.start: Callable[[MessageQueue], Awaitable[tuple[int, int | None]]] = partial(start_offset, instance, group)
        """Returns the offset of the next message to read in a queue, and the committed offset or None."""
        self._known: dict[str, frozenset[MessageQueue]] = {}
        self._since: dict[MessageQueue, float] = {}
        self._unread: dict[MessageQueue, int] = {}
        self._wake = asyncio.Event()
        self.left: Callable[[Iterable[MessageQueue]], object] = _nothing
        """A function that is called with the queues that have disappeared from a route since the last call of ``look``. There may
        be none."""

    def look(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Compare the queues that a topic's route names now with the queues at the last call."""
        now, present = machine.monotonic(), frozenset(queues)
        for queue, since in [*self._since.items()]:
            if queue in present or now - since >= NAMED_FOR:
                del self._since[queue]
                self._unread.pop(queue, None)
        gone = sorted(self._known.get(topic, frozenset()) - present)
        self.left(gone)
        for queue in gone:
            if len(self._since) < MOST_NAMED:
                self._since[queue] = now
                self._wake.set()
        self._known[topic] = present

    async def run(self) -> None:
        """Count unread messages while queues are missing. Never return."""
        while True:
            await self._wake.wait()
            pauses = Backoff(FIRST_PAUSE, COUNT_EVERY)
            while self._since:
                if self._wake.is_set():
                    self._wake.clear()
                    pauses = Backoff(FIRST_PAUSE, COUNT_EVERY)
                await for_each(sorted(self._since), self._count)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pauses.next()):
                        await self._wake.wait()
            self._wake.clear()

    def topics(self) -> tuple[str, ...]:
        """Return the topics of queues that have been missing for at most SOUGHT_FOR seconds."""
        since = machine.monotonic() - SOUGHT_FOR
        return tuple(dict.fromkeys(queue.topic for queue, at in self._since.items() if at >= since))

    def found(self) -> list[Missing]:
        """Return the missing queues that have, or may have, unread messages. May be called from any thread."""
        now, unread = machine.monotonic(), self._unread.copy()
        groups: defaultdict[tuple[str, str, float, bool], list[MessageQueue]] = defaultdict(list)
        for queue, since in list(self._since.items()):
            if unread.get(queue) != 0:
                groups[queue.topic, queue.broker_name, since, queue in unread].append(queue)
        return [
            Missing(tuple(queues), now - since, sum(unread[queue] for queue in queues) if counted else None)
            for (_, _, since, counted), queues in groups.items()
        ]

    async def _count(self, queue: MessageQueue) -> None:
        instance = self._instance
        timeout = min(instance.config.request_timeout, LONGEST_REQUEST)
        try:
            end = await max_offset(instance, queue, any_replica=False, timeout=timeout)
            next_offset, _ = await self.start(queue)
            unread = max(end - next_offset, 0)
        except (TopicNotFoundError, QueueNotExistError):
            unread = 0
        except RocketMQError:
            self._unread.pop(queue, None)
            return
        if queue in self._since:
            self._unread[queue] = unread


# Missing routes are requested before the next poll for two reasons. A member that starts while a name server has lost its routes
# must not wait for the poll, because the other members no longer read its share. And when a broker is back, all queues are
# distributed again, and a queue that one member gives up is not read until its next owner knows the route, too.


class Rebalance:
    """Computes, round by round, which queues this member gets.

    Args:
        group: Name of the group on the wire.
        topics: Names of the topics on the wire, including the retry topic.
        allocate: The strategy of the user.
        apply: Called after each round with the shares by topic, for the topics whose share is known.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        topics: Sequence[str],
        allocate: Allocate,
        apply: Apply,
    ) -> None:
        self._instance = instance
        self._group = group
        self._topics = tuple(topics)
        self._allocate = allocate
        self._apply = apply
        self._wake = asyncio.Event()
        self._unlisted_since: dict[str, float] = {}
        self._failed: set[str] = set()
        self._unknown: list[str] = []
        """Topics without a route."""
        self.missing = MissingQueues(instance, group)
        self._members: set[str] = set()
        self.left: Callable[[str, Iterable[MessageQueue]], object] = _nothing
        """A function that is called with the client id of a member that is no longer listed, and its former share."""
        self.listed_twice: Callable[[], object] = _nothing
        """A function that is called when a broker lists the id of this client more than once."""
        self.departed: dict[str, float] = {}
        """The last MOST_DEPARTED client ids that are no longer listed, with the monotonic time at which each was first missing.
        Crashed clients may still have locks."""
        self.count = 0
        """Number of rounds, including rounds that changed nothing."""
        self.problem: str | None = None
        """The reason why a share of the last round is unknown or uncertain; None if all shares are certain."""

    @property
    def others(self) -> list[str]:
        """The client ids of the other members according to the last lists of the brokers."""
        return sorted(self._members - {self._instance.client_id})

    def was_shared(self, seconds: float) -> bool:
        """Return whether there are other members, or were at any time in the last ``seconds``."""
        since = machine.monotonic() - seconds
        return bool(self.others) or any(left >= since for left in self.departed.values())

    def trigger(self) -> None:
        """Request a round soon."""
        self._wake.set()

    async def run(self, interval: float) -> None:
        """Run rounds, the first one at once. Never return."""
        while True:
            began = machine.monotonic()
            self._wake.clear()
            try:
                balanced = await self.round()
            except Exception:
                logger.exception(
                    "a rebalance round of group %s failed; the next round begins within %s s", self._group, SPACING
                )
                balanced = False
            await asyncio.sleep(max(began + SPACING - machine.monotonic(), 0.0))
            if balanced:
                await self._wait(began + interval)

    async def _wait(self, until: float) -> None:
        """Wait for ``trigger``, at most until the monotonic time ``until``. Request missing routes meanwhile."""
        while (left := until - machine.monotonic()) > 0 and not self._wake.is_set():
            try:
                async with asyncio.timeout(min(left, LOOK_UP_EVERY) if self._sought() else left):
                    await self._wake.wait()
            except TimeoutError:
                for topic in self._sought():
                    self._look_up(topic)

    def _sought(self) -> tuple[str, ...]:
        """Return the topics whose routes are requested before their next poll."""
        return (*self._unknown, *self.missing.topics())

    async def round(self) -> bool:
        """Compute the shares, and call ``apply``. Return whether the next round can wait for its interval.

        Return False if, for some topic, no broker returns a list of members, or the lists differ or do not have this member.
        """
        instance = self._instance
        self.count += 1
        balanced = True
        shares: dict[str, frozenset[MessageQueue]] = {}
        problem: str | None = None
        queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._unknown.clear()
        for topic in self._topics:
            route = instance.routes.cached(topic)
            if route is None or route.provisional:
                self._unknown.append(topic)
                self._look_up(topic)
                problem = problem or f"the name servers know no route of topic {topic}"
            else:
                queues[topic] = tuple(sorted(route.subscribe_queues))
                self.missing.look(topic, queues[topic])
        brokers = {topic: tuple(dict.fromkeys(map(instance.routes.broker_of, found))) for topic, found in queues.items()}
        lists = await self._lists(brokers)
        self._note_members(lists.values(), queues)
        for topic, found in queues.items():
            answers = [lists[name] for name in brokers[topic] if name in lists]
            try:
                share, sure, text = self._share(topic, found, answers)
            except Exception as error:  # noqa: BLE001 - a function of the user
                share, sure, text = None, True, f"allocate raised for topic {topic}: {printable(repr(error), 300)}"
                self._report(topic, text)
            problem = problem or text
            balanced = balanced and sure
            if share is not None:
                shares[topic] = share
        self.problem = problem
        self._apply(shares)
        return balanced

    def _note_members(self, lists: Collection[tuple[str, ...]], queues: Mapping[str, tuple[MessageQueue, ...]]) -> None:
        if any(members.count(self._instance.client_id) > 1 for members in lists):
            self.listed_twice()
        listed = {member for members in lists for member in members}
        if not listed:
            return  # no broker has responded, or one has restarted and will list its members soon
        for client_id in sorted(self._members - listed):
            self.departed[client_id] = machine.monotonic()
            self.left(client_id, self._former_share(client_id, queues))
        for client_id in listed:
            self.departed.pop(client_id, None)
        while len(self.departed) > MOST_DEPARTED:
            del self.departed[next(iter(self.departed))]
        self._members = listed

    def _former_share(self, client_id: str, queues: Mapping[str, tuple[MessageQueue, ...]]) -> list[MessageQueue]:
        members = sorted(self._members)
        try:
            return [queue for found in queues.values() for queue in share_of(client_id, found, members, self._allocate)]
        except Exception:  # noqa: BLE001 - a function of the user; the round reports its error
            return []

    async def _lists(self, brokers: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Return the client ids of the members by broker name. Brokers that do not respond have no entry.

        Args:
            brokers: Broker names by topic.
        """
        topics = {broker_name: topic for topic, names in brokers.items() for broker_name in names}
        lists: dict[str, tuple[str, ...]] = {}

        async def ask(broker_name: str) -> None:
            try:
                lists[broker_name] = await group_members(self._instance, self._group, broker_name, topics[broker_name])
            except RocketMQError as error:
                logger.debug("broker %s does not list the members of %s: %s", broker_name, self._group, printable(error, 300))

        await for_each(sorted(topics), ask, at_once=AT_ONCE)
        return lists

    def _share(
        self, topic: str, queues: tuple[MessageQueue, ...], answers: list[tuple[str, ...]]
    ) -> tuple[frozenset[MessageQueue] | None, bool, str | None]:
        """Return the share (None if the member keeps its queues), whether the share is certain, and the reason if it is not."""
        if not queues:
            return frozenset(), True, None
        if not answers:
            return None, False, f"no broker of topic {topic} lists the members of the group"
        members, equal = merged_members(answers)
        client_id = self._instance.client_id
        if client_id not in members:
            now = machine.monotonic()
            since = self._unlisted_since.setdefault(topic, now)
            self._instance.heartbeats.announce()
            text = f"no broker of topic {topic} lists this member"
            return (None if now - since < UNLISTED_LIMIT else frozenset()), False, text
        self._unlisted_since.pop(topic, None)
        share = share_of(client_id, queues, members, self._allocate)
        self._failed.discard(topic)
        return share, equal, None if equal else f"the brokers of topic {topic} list different members"

    def _look_up(self, topic: str) -> None:
        self._instance.routes.use.mark(topic)
        self._instance.routes.refresh_soon(topic)

    def _report(self, topic: str, text: str) -> None:
        if topic not in self._failed:
            self._failed.add(topic)
            logger.error("%s; the member keeps its queues of the topic until a call succeeds", text)


def _nothing(*_: object) -> None:
    """Do nothing. It is the default of the callbacks."""
