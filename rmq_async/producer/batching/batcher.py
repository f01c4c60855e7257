"""Sends batches: schedules when gathered messages leave, starts their requests, and enforces the callers' deadlines.

A batch costs a callback of the loop, an encoding and a request; a Task only without a known route or an open connection, or for
further attempts. One timer serves the deadlines of all callers: when it fires, every waiting caller is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.properties import AFTER_ID, BEFORE_ID

from ... import machine
from ..._ordered import OrderedSet
from ...errors import ClientStateError
from ...tracebacks import own_copy
from ...transport import raise_soon
from ..calls import Call, Dispatch, broken_off
from ..config import Batching
from ..encoding import Encoder, Outgoing
from ..routing import Target, TopicQueues
from ..watching import Watchers
from .batch_request import BatchRequest
from .gathering import Entry, Gathering, Member, TopicGathering, alive
from .queue_gathering import QueueGathering

__all__ = ["Batcher"]

BLOCKED_AFTER: Final = 0.1
"""Seconds. The loop counts as blocked if the timer fires later than this after its time."""
GRACE: Final = 0.02
"""Seconds for socket reads after the loop was blocked, before deadlines are enforced."""

PLAIN_PROPERTIES: Final = len(BEFORE_ID + AFTER_ID)
"""Size in bytes of the properties of a message without any of its own, less its unique id."""

IDLE_KEPT: Final = 64
"""Maximum number of empty gatherings of queues that are kept to be used again."""

SHORTEST_LINGER: Final = 0.001
"""Seconds. uvloop's timers count milliseconds: below half a millisecond ``call_later`` returns a Handle without ``when()``."""


class Batcher:
    """The batches of one producer.

    ``alarm``: time (monotonic) of the next check of the callers' deadlines, infinity for none. ``linger``: seconds. ``fixed``:
    the gatherings, with messages or a request in flight, of queues that callers chose.
    """

    def __init__(self, dispatch: Dispatch, encoder: Encoder, watchers: Watchers, settings: Batching) -> None:
        config = dispatch.config
        self._dispatch = dispatch
        self._router = dispatch.router
        self._watchers = watchers
        self.timeout = config.timeout  # of the producer, in seconds
        self._retries = config.retries
        self._retries_in_order = config.retries if config.retry_same_queue else 0
        self._loop = asyncio.get_running_loop()
        self.linger = settings.linger
        self.queues_by_topic = dispatch.router.queues_by_topic
        self.encoder = encoder
        self.max_bytes = min(settings.max_bytes, config.max_message_size)
        self.max_messages = settings.max_messages
        self.lanes_per_broker = settings.lanes_per_broker
        self.plain_size = BATCH_OVERHEAD + PLAIN_PROPERTIES + encoder.ids.length
        """Size in bytes that a message with only a topic and a body takes in a batch, less its body."""
        self.stand_in = "0" * encoder.ids.length
        """A text of the length of a unique id, for messages that get theirs when their batch leaves."""
        self.after_id = len(BEFORE_ID) + encoder.ids.length
        """Index in the properties text at which the part after the unique id begins."""
        self.requests: OrderedSet[BatchRequest] = OrderedSet()
        self.alarm = inf
        self._timer: asyncio.TimerHandle | None = None
        self._grace = False  # the timer was postponed once, because the loop was blocked
        # Weak: the topic's queues, waiting calls, the loop's callbacks and requests in flight hold the gatherings.
        self._in_turn: WeakValueDictionary[tuple[str, bool], TopicGathering] = WeakValueDictionary()
        self.fixed: dict[MessageQueue, QueueGathering] = {}
        self._chosen: dict[MessageQueue, QueueGathering] = {}
        self._idle: dict[MessageQueue, QueueGathering] = {}
        self._idle_kept = IDLE_KEPT
        self._finding: dict[TopicGathering, asyncio.Task[None]] = {}
        self._left: set[Gathering] = set()  # with abandoned calls; their requests are to be checked
        self._context = Context()  # for hooks: a batch belongs to no single caller

    def __repr__(self) -> str:
        gathered = sum(len(members) for gathering in self._gatherings() for members in gathering.waiting())
        return f"<Batcher {gathered} messages gathered, {len(self.requests)} requests in flight>"

    @property
    def idle(self) -> int:
        """Number of empty gatherings that are kept."""
        return len(self._idle)

    # -- where messages gather

    def in_turn(self, topic: str, *, wait_store: bool) -> TopicGathering:
        """Returns the gathering of a topic and ``wait_store``, made if there is none.

        ``topic``: as the user writes it, with or without the namespace.
        """
        gathering = self._in_turn.get((topic, wait_store))
        if gathering is None:
            self._in_turn[topic, wait_store] = gathering = TopicGathering(self, topic)
        return gathering

    def in_order(self, topic_queues: TopicQueues, target: Target, *, fixed: bool) -> QueueGathering:
        """Returns the gathering of a queue, made if there is none; it then sends to ``target`` until the route changes.

        ``fixed``: the caller chose the queue, so no message may go to another one.
        """
        places = self.fixed if fixed else self._chosen
        gathering = places.get(target.queue)
        if gathering is None:
            gathering = self._idle.pop(target.queue, None) if fixed else None
            if gathering is None:
                gathering = QueueGathering(self, topic_queues, target, fixed=fixed)
            places[target.queue] = gathering
        gathering.topic_queues, gathering.target = topic_queues, target
        return gathering

    def forget(self, gathering: QueueGathering) -> None:
        """Removes an empty gathering; some of them are kept aside, because making one costs as much as a message."""
        places, queue = (self.fixed if gathering.fixed else self._chosen), gathering.queue
        if places.get(queue) is gathering:
            del places[queue]
            if gathering.fixed and len(self._idle) < self._idle_kept:
                self._idle[queue] = gathering

    def topic_queues(self, gathering: TopicGathering) -> TopicQueues | None:
        """Returns the topic's queues; None without a known route that has usable ones: then a look-up is in progress."""
        topic_queues = self._router.queues_by_topic.get(gathering.topic) or self._router.topics.now(gathering.topic)
        if topic_queues is None and gathering not in self._finding:
            task = self._finding[gathering] = self._loop.create_task(
                self._find(gathering), name="rmq_async route of a batch", context=Context()
            )
            task.add_done_callback(partial(self._found, gathering))
        return topic_queues

    async def _find(self, gathering: TopicGathering) -> None:
        await asyncio.sleep(0)  # lets all sends of this iteration join, also where Tasks start eagerly
        deadline = max([member[2] for members in gathering.waiting() for member in members], default=0.0)
        await self._router.topics.find(gathering.topic, deadline)

    def _found(self, gathering: TopicGathering, task: asyncio.Task[None]) -> None:
        """Removes the ended look-up. Sends the messages; fails them if the look-up failed or its Task was cancelled."""
        del self._finding[gathering]
        error = (
            task.exception()
            if not task.cancelled()
            else ClientStateError(
                f"the look-up of the route of topic {gathering.topic} was cancelled; the message was not sent, send it again"
            )
        )
        if error is not None:
            _fail_all(gathering.drop(), error)
        gathering.leave()

    def is_connected(self, target: Target) -> bool:
        return target.address in self._dispatch.connections

    def is_finding(self, gathering: TopicGathering) -> bool:
        """Returns whether the look-up of the topic's route is in progress."""
        return gathering in self._finding

    def by_now(self, topic: str, topic_queues: TopicQueues, target: Target) -> tuple[TopicQueues, Target]:
        """Returns the topic's current queues and the target in them; the given ones if no newer route has the queue."""
        newer = self._router.queues_by_topic.get(topic) or self._router.topics.now(topic)
        if newer is None or newer is topic_queues or not newer.knows(target.queue):
            return topic_queues, target
        return newer, newer.target(target.queue)

    def inviting(self, topic_queues: TopicQueues) -> Collection[str]:
        """Returns the topic's brokers that are not avoided at the moment, or all if every one is."""
        selection = self._router.selection
        avoided = () if selection is None else selection.avoided(topic_queues.brokers)
        return (topic_queues.brokers.difference(avoided) or topic_queues.brokers) if avoided else topic_queues.brokers

    def next_of(self, topic_queues: TopicQueues, brokers: Collection[str]) -> Target:
        """Returns the next queue of these brokers."""
        selection = self._router.selection
        return topic_queues.next_of(brokers) if selection is None else selection.next(topic_queues, frozenset(brokers))

    # -- leaving

    def soon(self, gathering: Gathering, deadline: float) -> None:
        """Schedules the departure, by ``call_soon`` or after lingering, and a check of the callers' deadlines."""
        if self.linger and not gathering.in_order:  # messages with the producer's timeout may join without a check
            deadline = min(deadline, machine.monotonic() + self.timeout)
        if deadline < self.alarm:
            self.watch_until(deadline)
        if self.linger:
            gathering.timer = self._loop.call_later(self._time_to_linger(deadline), gathering.leave)
        else:
            self._loop.call_soon(gathering.leave)

    def sooner(self, gathering: Gathering, deadline: float) -> None:
        """Moves the departure of lingering messages forward if a message that joined has less time."""
        timer = gathering.timer
        if timer is not None and timer.when() > self._loop.time() + (left := self._time_to_linger(deadline)):
            timer.cancel()
            gathering.timer = self._loop.call_later(left, gathering.leave)

    def _time_to_linger(self, deadline: float) -> float:
        """Returns the seconds to linger: ``linger``, but at most half of what remains of the message's time, and at least
        ``SHORTEST_LINGER``."""
        return max(SHORTEST_LINGER, min(self.linger, (deadline - machine.monotonic()) / 2))

    def hasten(self, gathering: Gathering) -> None:
        """Schedules the departure by ``call_soon`` if messages linger: a batch is complete."""
        if self.linger:
            self._loop.call_soon(gathering.leave)

    def hurry(self, *, for_good: bool = False) -> None:
        """Ends the lingering of all messages; they leave as far as the limits on requests in flight allow.

        ``for_good``: later messages do not linger either.
        """
        if self.linger:
            if for_good:
                self.linger = 0.0
            for gathering in self._gatherings():
                gathering.leave()

    def go(self, gathering: Gathering, entry: Entry, topic_queues: TopicQueues, target: Target, *, fixed: bool) -> None:
        """Starts one request with all its attempts; splits a batch that cannot be encoded.

        Errors go to the callers of its messages; one that ends the program, such as KeyboardInterrupt, is raised in the loop too.
        """
        try:
            entry, made = gathering.request(entry, target)
        except Exception as error:  # noqa: BLE001 - a message was changed after it was checked
            made = None
            if len(entry.members) > 1:
                self.split(gathering, entry, entry.ids)
            else:
                _fail_all(entry.members, error)
        if made is None:
            gathering.ended(target.broker)
            return
        members = entry.members  # max: calls that waited for credits are not in order; 30 us for 1024
        deadline = members[0][2] if len(members) == 1 else max([member[2] for member in members])
        retries = self._retries_in_order if fixed else self._retries
        call = Call(made.outgoing, made.read, machine.monotonic(), deadline, retries)
        request = BatchRequest(self, self._dispatch, gathering, entry, call, (topic_queues, target), fixed=fixed)
        self.requests[request] = None
        if request.makes_room_at < request.deadline:
            self.look_at(request.makes_room_at)
        try:
            request.start()
        except Exception as error:  # noqa: BLE001 - raised by a user's hook; the callers of the messages get it
            request.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - the same, and raised in the loop after the others have been sent
            request.set_exception(broken_off(error, maybe_stored=False))
            raise_soon(error)

    def show(self, outgoing: Outgoing, messages: Sequence[Message], read: Any) -> None:
        """Lets hooks see the attempts of an unordered request, those of a batch as a whole."""
        if self._watchers.active:
            shown = messages[0] if outgoing.batch_ids is None else tuple(messages)
            self._context.run(self._watchers.watch, outgoing, shown, "sync", read)

    def split(self, gathering: Gathering, entry: Entry, ids: tuple[str, ...] | None) -> None:
        """Sends a batch that was refused or cannot be encoded as two halves; repeated splits leave an invalid message alone in its
        request."""
        left = alive(msgspec.structs.replace(entry, ids=ids))
        if left is None:
            return
        half = (len(left.members) + 1) // 2
        parts = (slice(half), slice(half, None))
        halves = [Entry(left.members[part], ids=None if left.ids is None else left.ids[part]) for part in parts]
        gathering.again([each for each in halves if each.members])

    # -- abandoned calls

    def look_after(self, gathering: Gathering) -> None:
        """Schedules the end of the gathering's requests that no caller waits for: they would hold back later messages."""
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
        """Adjusts timers for a message that waited for credits or a route: ``add_plain`` assumes that deadlines arrive in order."""
        self.look_at(deadline)
        if self.linger:
            for gathering in self._gatherings():
                self.sooner(gathering, deadline)

    def look_at(self, time: float) -> None:
        """Schedules a check of the callers' deadlines at ``time`` (monotonic), unless one is scheduled by then."""
        if time < self.alarm:
            self.watch_until(time)

    def watch_until(self, deadline: float) -> None:
        """Sets the timer to check the callers' deadlines at ``deadline``."""
        if self._timer is not None:
            self._timer.cancel()
        self.alarm = deadline
        self._timer = self._loop.call_later(max(deadline - machine.monotonic(), 0.0), self._expire, context=Context())

    def _expire(self) -> None:
        now, earliest = machine.monotonic(), inf
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
        """Fails all messages that have not left, and ends look-ups and timers; ``ProducerCore`` ends the requests in flight."""
        for gathering in self._gatherings():
            for receiver, _, _ in gathering.drop():
                if not receiver.done():  # the callback of another receiver may have cancelled it
                    receiver.set_exception(error())
        self._idle_kept = 0  # they refer to the batcher: without the cycle, reference counting frees both
        self._idle.clear()
        for task in tuple(self._finding.values()):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _gatherings(self) -> list[Gathering]:
        return [*self._in_turn.values(), *self.fixed.values(), *self._chosen.values()]


def _expired(members: list[Member], now: float, gathering: Gathering) -> float:
    """Fails the members whose deadline is over; returns the earliest deadline of the others, infinity without others."""
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


def _fail_all(members: list[Member], error: BaseException) -> None:
    for receiver, _, _ in members:
        if not receiver.done():  # the callback of another receiver may have cancelled it
            receiver.set_exception(own_copy(error))
