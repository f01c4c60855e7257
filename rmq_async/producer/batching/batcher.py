"""Gathers messages for a topic or a queue, sends them as batches, and enforces the callers' deadlines.

The states of a gathering (a ``Gathering`` has the messages of one topic or queue that wait to be sent):

              add                        depart: all messages are sent
    EMPTY ------------> SCHEDULED ------------------------------------------> EMPTY
                         |     ^
      depart: no room,   |     | add, unless the request of an ordered queue is in flight
      or no route        v     |
                         WAITING ---- a request has ended, the route is found: depart ----> EMPTY or WAITING

In state SCHEDULED, ``due`` is true: the departure (the sending of the messages) is a callback of the next loop iteration, or a
``timer`` while messages linger. ``schedule`` can only make the departure earlier. There is room while a broker has fewer than
``lanes_per_broker`` requests of a topic in flight, or while an ordered queue has no request in flight.

A batch costs a callback of the loop, an encoding and a request. It needs a task only if no route is known or no connection is open,
or for further attempts. One timer serves the deadlines of all callers: when it fires, every waiting caller is checked.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, Final, cast
from weakref import WeakValueDictionary

import msgspec

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.properties import AFTER_ID, BEFORE_ID

from ... import machine
from ..._ordered import OrderedSet
from ...errors import ClientStateError, RequestTimeoutError
from ...tracebacks import own_copy
from ...transport import Receiver, raise_soon
from ..calls import Call, Dispatch, broken_off
from ..config import Batching
from ..encoding import BatchItem, Encoder, Outgoing, stored_batch, stored_message
from ..routing import Target, TopicQueues
from ..watching import Watchers
from .batch_request import BatchOwner, BatchRequest, Entry, Member
from .batch_watch import BatchWatch, begin_watched

SHARE: Final = 64
"""If several requests may be sent, the messages of a topic are divided among them, in parts of about this many messages or more:
the client encodes one part while the broker stores another."""
BLOCKED_AFTER: Final = 0.1
"""The event loop is considered blocked if the timer fires more than this many seconds late."""
GRACE: Final = 0.02
"""Seconds that the event loop gets to read from sockets after it was blocked, before deadlines are enforced."""

PLAIN_PROPERTIES: Final = len(BEFORE_ID + AFTER_ID)
"""Bytes of the properties of a message that has no properties of its own, without its unique id."""

IDLE_KEPT: Final = 64
"""Maximum number of empty gatherings of queues that are kept for reuse."""

SHORTEST_LINGER: Final = 0.001
"""Minimum seconds for which messages linger. uvloop's timers count milliseconds, and below half a millisecond its ``call_later``
returns a Handle without ``when()``."""


class Batcher:
    """The gatherings (messages that wait to be sent) of one producer, their shared state, and the timer for the deadlines of all
    callers.
    """

    def __init__(self, dispatch: Dispatch, encoder: Encoder, watchers: Watchers, settings: Batching) -> None:
        self.dispatch = dispatch
        self.router = dispatch.router
        self.queues_by_topic = dispatch.router.queues_by_topic
        self.encoder = encoder
        self.loop = asyncio.get_running_loop()
        self.timeout = dispatch.config.timeout
        """The timeout of the producer in seconds."""
        self.linger = settings.linger
        """The linger time in seconds."""
        self.max_bytes = min(settings.max_bytes, dispatch.config.max_message_size)
        self.max_messages = settings.max_messages
        self.lanes_per_broker = settings.lanes_per_broker
        self.plain_size = BATCH_OVERHEAD + PLAIN_PROPERTIES + encoder.ids.length
        """Bytes that a message with only a topic and a body takes in a batch, without its body."""
        self.stand_in = "0" * encoder.ids.length
        """A string of the length of a unique id, used to compute sizes for messages that get their id when their batch is sent."""
        self.after_id = len(BEFORE_ID) + encoder.ids.length
        """Index in the properties string at which the part after the unique id begins."""
        self.requests: OrderedSet[BatchRequest] = OrderedSet()
        """The requests in flight."""
        self.alarm = inf
        """Monotonic time of the next check of the callers' deadlines; infinity if no check is scheduled."""
        self.fixed: dict[MessageQueue, QueueGathering] = {}
        """The gatherings of queues that callers chose, while they have messages or a request in flight."""
        self._chosen: dict[MessageQueue, QueueGathering] = {}
        """The gatherings of queues that the producer's ``queue_selector`` chose, while they have messages or a request in
        flight."""
        self._idle: dict[MessageQueue, QueueGathering] = {}
        self._idle_kept = IDLE_KEPT
        # Weak references: the topic's queues, waiting calls, callbacks of the loop and requests in flight keep a gathering alive.
        self._in_turn: WeakValueDictionary[tuple[str, bool], TopicGathering] = WeakValueDictionary()
        self._timer: asyncio.TimerHandle | None = None
        self._grace = False  # the timer was postponed once, because the loop was blocked
        self._abandoned: set[Gathering] = set()
        """Gatherings with calls that have stopped waiting; their requests must be checked."""
        self._watchers = watchers
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
        """Return the gathering for ``topic`` and ``wait_store``. Create it if it does not exist.

        Args:
            topic: The topic as the user writes it, with or without the namespace.
        """
        gathering = self._in_turn.get((topic, wait_store))
        if gathering is None:
            self._in_turn[topic, wait_store] = gathering = TopicGathering(self, topic)
        return gathering

    def in_order(self, topic_queues: TopicQueues, target: Target, *, fixed: bool) -> QueueGathering:
        """Return the gathering for the queue of ``target``. Create it if it does not exist. It sends to ``target`` until the route
        changes.

        Args:
            fixed: Whether the caller chose the queue, so that no message may go to another queue.
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
        """Remove an empty gathering. Some are kept for reuse, because making a gathering costs as much as sending a message."""
        places, queue = (self.fixed if gathering.fixed else self._chosen), gathering.queue
        if places.get(queue) is gathering:
            del places[queue]
            if gathering.fixed and len(self._idle) < self._idle_kept:
                self._idle[queue] = gathering

    def _gatherings(self) -> list[Gathering]:
        return [*self._in_turn.values(), *self.fixed.values(), *self._chosen.values()]

    def show(self, outgoing: Outgoing, messages: Sequence[Message], read: Any) -> None:
        """Let hooks see the attempts of an unordered request. For a batch, they are called once with all its messages."""
        if self._watchers.active:
            shown = messages[0] if outgoing.batch_ids is None else tuple(messages)
            self._context.run(self._watchers.watch, outgoing, shown, "sync", read)

    # -- the callers' deadlines

    def waited(self, deadline: float) -> None:
        """Schedule a check of the deadline of a message that waited for credits or a route.

        ``add_plain`` assumes that each message has a later deadline than the previous one. For such a message, this may not be
        true.
        """
        self.check_at(deadline)
        if self.linger:
            for gathering in self._gatherings():
                if gathering.due:
                    gathering.schedule(deadline)

    def check_at(self, time: float) -> None:
        """Schedule a check of the callers' deadlines at ``time`` (monotonic), unless a check is scheduled for an earlier time."""
        if time < self.alarm:
            if self._timer is not None:
                self._timer.cancel()
            self.alarm = time
            self._timer = self.loop.call_later(max(time - machine.monotonic(), 0.0), self._expire, context=Context())

    def _expire(self) -> None:
        now = machine.monotonic()
        if now - self.alarm > BLOCKED_AFTER and not self._grace:  # the loop was blocked: responses may be in the socket
            self._grace = True
            self._timer = self.loop.call_later(GRACE, self._expire)
            return
        self._timer, self._grace, self.alarm = None, False, inf
        earliest = min([gathering.expire(now) for gathering in self._gatherings()], default=inf)
        for request in tuple(self.requests):
            earliest = min(earliest, request.expire(now))
            if request.unwanted:
                request.give_up()
        self.check_at(earliest)

    def end_unwanted(self, gathering: Gathering) -> None:
        """Schedule the end of the gathering's requests for which no caller waits, because they would hold back later messages."""
        if not self._abandoned:
            self.loop.call_soon(self._end_unwanted)
        self._abandoned.add(gathering)

    def _end_unwanted(self) -> None:
        abandoned, self._abandoned = self._abandoned, set()
        for request in tuple(self.requests):
            if request.gathering in abandoned and request.unwanted:
                request.give_up()

    # -- the end

    def hurry(self, *, for_good: bool = False) -> None:
        """Stop the lingering of all messages. Send as many as the limits on requests in flight allow.

        Args:
            for_good: Whether later messages do not linger, either.
        """
        if self.linger:
            if for_good:
                self.linger = 0.0
            for gathering in self._gatherings():
                gathering.depart()

    def end(self, error: Callable[[], RocketMQError]) -> None:
        """Fail all messages that have not been sent, and cancel lookups and timers. ``ProducerCore`` ends the requests in
        flight.
        """
        for gathering in self._gatherings():
            gathering.fail(error)
        self._idle_kept = 0  # idle gatherings refer to the batcher: without this cycle, reference counting frees both
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Gathering(BatchOwner):
    """Messages that wait to be sent as batches. The docstring of the module describes the states."""

    __slots__ = ("_batcher", "_departing", "_most", "_room", "_sealed", "due", "members", "stale", "timer")

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._room = batcher.max_bytes
        """Bytes that the current batch may still take."""
        self._most = batcher.max_messages
        self._sealed: deque[Entry] = deque()
        """Complete batches that have not been sent."""
        self._departing = False
        self.members: list[Member] = []
        """The current batch."""
        self.due = False
        """Whether the messages are scheduled to be sent."""
        self.stale = False
        """Whether some callers may have stopped waiting."""
        self.timer: asyncio.TimerHandle | None = None
        """The timer that ends the lingering."""

    # -- when they leave

    def schedule(self, deadline: float = inf, *, at_once: bool = False) -> None:
        """Schedule the sending of the messages or make it earlier, and schedule a check of the callers' deadlines.

        Args:
            deadline: The deadline of the caller (monotonic). A message lingers for at most half of its remaining time.
            at_once: Whether to send in the next loop iteration, without lingering.
        """
        batcher = self._batcher
        lingers = batcher.linger and not at_once
        if self.due:
            if deadline < batcher.alarm:
                batcher.check_at(deadline)
            if self.timer is None or (lingers and self.timer.when() <= batcher.loop.time() + self._time_to_linger(deadline)):
                return
            self.timer.cancel()
        else:
            self.due = True
            if lingers and not self.in_order:  # messages with the producer's timeout may join without a check
                deadline = min(deadline, machine.monotonic() + batcher.timeout)
            if deadline < batcher.alarm:
                batcher.check_at(deadline)
        if lingers:
            self.timer = batcher.loop.call_later(self._time_to_linger(deadline), self.depart)
        else:
            self.timer = None
            batcher.loop.call_soon(self.depart)

    def _time_to_linger(self, deadline: float) -> float:
        return max(SHORTEST_LINGER, min(self._batcher.linger, (deadline - machine.monotonic()) / 2))

    def depart(self) -> None:
        """Send as many gathered messages as the limits on requests in flight allow."""
        self.due = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self._departing:  # a request that fails at once ends inside ``_send_ready`` and calls this again
            return
        self._departing = True
        try:
            self._send_ready()
        finally:
            self._departing = False

    @abstractmethod
    def _send_ready(self) -> None: ...

    # -- what leaves

    def take(self) -> list[Member]:
        """Remove and return the messages of the current batch. If ``stale``, leave out those whose callers have stopped waiting."""
        members, self.members, self._room = self.members, [], self._batcher.max_bytes
        if self.stale:
            self.stale = False
            members = [member for member in members if not member[0].done()]
        return members

    @abstractmethod
    def encode(self, entry: Entry, target: Target) -> tuple[Entry, Outgoing | None, Any]:
        """Return the entry without the messages that hooks refused, its request, and the function that makes the result from the
        response.

        The request is None if hooks refused all messages of the batch.
        """

    def start(self, entry: Entry, topic_queues: TopicQueues, target: Target) -> None:
        """Start one request with all its attempts. Split a batch that cannot be encoded.

        Errors are passed to the callers of the messages. An error that ends the program, such as KeyboardInterrupt, is also raised
        out of the event loop.
        """
        outgoing: Outgoing | None = None
        read: Any = None
        try:
            entry, outgoing, read = self.encode(entry, target)
        except Exception as error:  # noqa: BLE001 - a message was changed after it was checked
            if len(entry.members) > 1:
                self.split(entry, entry.ids)
            else:
                _fail_all(entry.members, partial(own_copy, error))
        if outgoing is None:
            self.ended(target.broker)
            return
        members = entry.members  # max(): deadlines of calls that waited for credits are not in order; 1024 take 30 us
        deadline = members[0][2] if len(members) == 1 else max([member[2] for member in members])
        batcher, dispatch = self._batcher, self._batcher.dispatch
        retries = dispatch.config.retries if not self.fixed or dispatch.config.retry_same_queue else 0
        call = Call(outgoing, read, machine.monotonic(), deadline, retries)
        request = BatchRequest(self, batcher.requests, dispatch, entry, call, topic_queues, target)
        batcher.requests[request] = None
        if request.makes_room_at < request.deadline:
            batcher.check_at(request.makes_room_at)
        try:
            request.start()
        except Exception as error:  # noqa: BLE001 - raised by a user's hook; the callers of the messages get it
            request.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - also raised in the loop, after the other messages have been sent
            request.set_exception(broken_off(error, maybe_stored=False))
            raise_soon(error)

    # -- members that are removed without a request

    def left(self) -> None:
        """Record that a caller no longer waits, because its receiver is done (cancelled or failed).

        Its message is left out when the batch is built, and a request for which no caller waits is ended.
        """
        self.stale = True
        self._batcher.end_unwanted(self)

    def waiting(self) -> list[list[Member]]:
        """Return the messages that have not been sent, as one list per batch."""
        return [self.members, *[entry.members for entry in self._sealed]]

    def expire(self, now: float) -> float:
        """Fail the messages whose deadline has passed. Return the earliest deadline of the others, or infinity if there are
        none.
        """
        earliest = inf
        for members in self.waiting():
            for receiver, _, deadline in members:
                if receiver.done():
                    continue
                if deadline <= now:
                    self.stale = True
                    receiver.set_exception(self._not_sent())
                elif deadline < earliest:
                    earliest = deadline
        return earliest

    @abstractmethod
    def _not_sent(self) -> RequestTimeoutError:
        """Return the error for a message that has not been sent by its deadline."""

    def fail(self, error: Callable[[], BaseException]) -> None:
        """Fail all messages that have not been sent."""
        members = [member for each in self.waiting() for member in each]
        self._sealed.clear()
        self.take()
        self.due = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        _fail_all(members, error)


class TopicGathering(Gathering):
    """The messages of one topic and ``wait_store`` that wait to be sent. Each request goes to the next queue, with a limit for each
    broker.
    """

    __slots__ = ("__weakref__", "_finding", "_plain", "_under_way", "topic")

    def __init__(self, batcher: Batcher, topic: str) -> None:
        super().__init__(batcher)
        self.topic = topic
        self._plain = True
        """Whether all messages have only a topic and a body."""
        self._under_way: dict[str, int] = {}
        """Number of requests in flight, by broker."""
        self._finding: asyncio.Task[None] | None = None
        """The task that looks up the topic's route."""

    # -- entering

    def add_plain(self, receiver: Receiver, message: BatchItem, size: int, deadline: float, *, plain: bool = True) -> None:
        """Add a message whose deadline results from the producer's ``timeout``.

        Later messages have later deadlines, so only the deadline of the first message of an iteration is compared with the timer.

        Args:
            size: The bytes of the message in a batch; a batch takes at most ``max_bytes``.
            plain: Whether the message has only a topic and a body.
        """
        room, members = self._room - size, self.members
        if room < 0 or len(members) >= self._most:
            if (entry := self._take_entry()).members:
                self.requeue([entry])
            room, members = self._room - size, self.members
        self._room = room
        if not plain:
            self._plain = False
        members.append((receiver, message, deadline))
        if not self.due:
            self.schedule(deadline)

    def add(self, receiver: Receiver, message: Message, size: int, deadline: float) -> None:
        """Add a message with any deadline.

        Args:
            size: The bytes of the message in a batch; a batch takes at most ``max_bytes``.
        """
        was_due = self.due
        self.add_plain(receiver, message, size, deadline, plain=False)
        if was_due:
            self.schedule(deadline)

    # -- leaving

    def _send_ready(self) -> None:
        while self._sealed:
            if (topic_queues := self._topic_queues()) is None:
                return  # the end of the lookup calls this again
            if (entry := self._sealed.popleft().alive()) is not None:
                self._send(entry, topic_queues)
        if not self.members or (topic_queues := self._topic_queues()) is None:
            return
        free = self._free(topic_queues)
        if free <= 0:
            return
        entry = self._take_entry()
        number = len(entry.members)
        if number < 2 * SHARE or free == 1:
            if number:
                self._send(entry, topic_queues)
            return
        share = -(-number // min(free, number // SHARE))
        for start in range(0, number, share):
            self._send(Entry(entry.members[start : start + share], entry.plain), topic_queues)

    def _take_entry(self) -> Entry:
        plain, self._plain = self._plain, True
        return Entry(self.take(), plain)

    def _send(self, entry: Entry, topic_queues: TopicQueues) -> None:
        target = topic_queues.next()
        if len(topic_queues.brokers) > 1 and self._under_way.get(target.broker, 0) >= self._batcher.lanes_per_broker:
            target = self._elsewhere(topic_queues, target)
        self._under_way[target.broker] = self._under_way.get(target.broker, 0) + 1
        self.start(entry, topic_queues, target)

    def encode(self, entry: Entry, target: Target) -> tuple[Entry, Outgoing | None, Any]:
        messages = [member[1] for member in entry.members]
        outgoing = self._batcher.encoder.encode_gathered(messages, entry.ids, plain=entry.plain)
        first = messages[0]
        if outgoing.message is None and first.__class__ is not Outgoing:
            outgoing.message = first[0] if first.__class__ is tuple else first
        read = stored_message if outgoing.batch_ids is None else stored_batch
        self._batcher.show(outgoing, messages, read)
        return entry, outgoing, read

    def can_shrink(self, outgoing: Outgoing) -> bool:
        return outgoing.watch is None  # hooks saw the whole batch

    def shrink(self, outgoing: Outgoing, entry: Entry) -> None:
        messages = [member[1] for member in entry.members]
        _replace(outgoing, self._batcher.encoder.batch_of(messages, entry.ids, plain=entry.plain))

    def requeue(self, entries: Sequence[Entry]) -> None:
        topic_queues = self._topic_queues()
        for entry in entries:
            if topic_queues is None:
                self._sealed.append(entry)
            else:
                self._send(entry, topic_queues)

    def ended(self, broker: str) -> None:
        self._under_way[broker] -= 1
        if not self.due:
            self.depart()

    def _not_sent(self) -> RequestTimeoutError:
        if self._finding is not None:
            why = "the route of the topic was not found in time; use a longer timeout"
        else:
            why = (
                "it waited in the client for earlier messages until its timeout; send fewer at a time, or use a longer timeout"
            )
        return RequestTimeoutError(f"the message for topic {self.topic} was not sent: {why}", maybe_stored=False)

    # -- brokers with room

    def _free(self, topic_queues: TopicQueues) -> int:
        """Return the number of further requests of the topic that may be sent now. The number can be below 0."""
        limit, under_way = self._batcher.lanes_per_broker, self._under_way
        if len(topic_queues.brokers) == 1:
            return limit - under_way.get(next(iter(topic_queues.brokers)), 0)
        return sum([max(0, limit - under_way.get(broker, 0)) for broker in self._preferred(topic_queues)])

    def _elsewhere(self, topic_queues: TopicQueues, target: Target) -> Target:
        """Return the next queue of a broker with fewer than ``lanes_per_broker`` requests in flight. Return ``target`` if there is
        none.
        """
        limit, selection = self._batcher.lanes_per_broker, self._batcher.router.selection
        free = [broker for broker in self._preferred(topic_queues) if self._under_way.get(broker, 0) < limit]
        if not free:
            return target
        return topic_queues.next_of(free) if selection is None else selection.next(topic_queues, frozenset(free))

    def _preferred(self, topic_queues: TopicQueues) -> Collection[str]:
        """Return the topic's brokers that are not avoided at the moment. If all are avoided, return all brokers."""
        selection = self._batcher.router.selection
        avoided = () if selection is None else selection.avoided(topic_queues.brokers)
        return (topic_queues.brokers.difference(avoided) or topic_queues.brokers) if avoided else topic_queues.brokers

    # -- the route

    def _topic_queues(self) -> TopicQueues | None:
        """Return the topic's queues. If no route with usable queues is known, start a lookup and return None."""
        router = self._batcher.router
        topic_queues = router.queues_by_topic.get(self.topic) or router.topics.now(self.topic)
        if topic_queues is None and self._finding is None:
            self._finding = self._batcher.loop.create_task(self._find(), name="rmq_async route of a batch", context=Context())
            self._finding.add_done_callback(self._found)
        return topic_queues

    async def _find(self) -> None:
        await asyncio.sleep(0)  # lets all sends of this iteration join, even if tasks start eagerly
        deadline = max([member[2] for members in self.waiting() for member in members], default=0.0)
        await self._batcher.router.topics.find(self.topic, deadline)

    def _found(self, task: asyncio.Task[None]) -> None:
        """Send the messages after the route lookup. Fail them if the lookup failed or its task was cancelled."""
        self._finding = None
        error = (
            task.exception()
            if not task.cancelled()
            else ClientStateError(
                f"the lookup of the route of topic {self.topic} was cancelled; the message was not sent, send it again"
            )
        )
        if error is not None:
            self.fail(partial(own_copy, error))
        self.depart()

    def fail(self, error: Callable[[], BaseException]) -> None:
        if self._finding is not None:
            self._finding.cancel()
        super().fail(error)


class QueueGathering(Gathering):
    """Ordered messages of one queue. Its requests (batches or single sends) are sent one at a time, in the order of the calls.

    Each message is encoded before it is added.
    """

    in_order = True

    __slots__ = ("_busy", "_topic", "_wait_store", "fixed", "queue", "target", "topic_queues")

    def __init__(self, batcher: Batcher, topic_queues: TopicQueues, target: Target, *, fixed: bool) -> None:
        super().__init__(batcher)
        self.topic_queues = topic_queues
        """The queues of the topic at the last call or request."""
        self.target = target
        self.queue: MessageQueue = target.queue
        """The queue, with the topic without its namespace prefix."""
        self.fixed = fixed
        """Whether no message may go to another queue."""
        self._busy = False
        """Whether a request is in flight, or a caller that sends by itself has its turn."""
        self._wait_store = True
        self._topic = ""  # as the user wrote it, with or without the namespace

    # -- entering

    def add(self, receiver: Receiver, outgoing: Outgoing, size: int, deadline: float, *, wait_store: bool) -> None:
        """Add a message.

        Args:
            size: The bytes of the message in a batch; a batch takes at most ``max_bytes``.
        """
        if wait_store is not self._wait_store or outgoing.topic != self._topic:
            if self.members:
                self._seal()
            self._wait_store, self._topic = wait_store, outgoing.topic
        room, members = self._room - size, self.members
        if room < 0 or len(members) >= self._most:
            self._seal()
            room, members = self._room - size, self.members
        self._room = room
        members.append((receiver, outgoing, deadline))
        if self._busy and not self.due and not self._batcher.linger:  # it is sent when the request in flight has ended
            if deadline < self._batcher.alarm:
                self._batcher.check_at(deadline)
        else:
            self.schedule(deadline)

    def add_alone(self, receiver: Receiver, outgoing: Outgoing, read: Any, deadline: float) -> None:
        """Add a request that is sent in order, but not in a batch. It does not linger, and messages before it stop lingering."""
        self._add_entry(Entry([(receiver, outgoing, deadline)], read=read), deadline)

    def begin_at_once(self) -> bool:
        """Return True if no message waits or is in flight, so that the caller may send by itself. Its turn lasts until ``ended`` is
        called.
        """
        if self._busy or self.members or self._sealed:
            return False
        self._busy = True
        return True

    def add_turn(self, receiver: Receiver, outgoing: Outgoing, deadline: float) -> None:
        """Add a turn, in which the caller sends by itself. The receiver gets a result when the turn begins; the turn lasts until
        ``ended``.
        """
        self._add_entry(Entry([(receiver, outgoing, deadline)], turn=True), deadline)

    def _add_entry(self, entry: Entry, deadline: float) -> None:
        self._seal()
        self._sealed.append(entry)
        self.schedule(deadline, at_once=True)

    def _seal(self) -> None:
        """Complete the current batch, which then does not linger. Later messages go into a new batch."""
        if self.members and (members := self.take()):
            self._sealed.append(Entry(members))
            if self._batcher.linger:
                self.schedule(at_once=True)

    # -- leaving

    def depart(self) -> None:
        if self._busy and self.timer is None:
            self.due = False
        elif self._sealed or self.stale or self._departing or self.timer is not None or not self.members:
            super().depart()
        else:  # nearly always, ``_send_ready`` would do only this
            self.due, self._departing, self._busy = False, True, True
            members, self.members, self._room = self.members, [], self._batcher.max_bytes
            try:
                if self._batcher.queues_by_topic.get(self._topic) is not self.topic_queues:
                    self._follow_route(self._topic)
                self.start(Entry(members), self.topic_queues, self.target)
                if not self._busy:
                    self._send_ready()
            finally:
                self._departing = False

    def _follow_route(self, topic: str) -> None:
        """Use the newest known queues of the topic, if they contain the queue of this gathering."""
        newer = self._batcher.queues_by_topic.get(topic) or self._batcher.router.topics.now(topic)
        if newer is not None and newer is not self.topic_queues and newer.knows(self.target.queue):
            self.topic_queues, self.target = newer, newer.target(self.target.queue)

    def _send_ready(self) -> None:
        while not self._busy and (entry := self._next()) is not None:
            self._busy = True
            if entry.turn:
                entry.members[0][0].set_result(None)
                return
            self._follow_route(entry.members[0][1].topic)
            self.start(entry, self.topic_queues, self.target)
        if not (self._busy or self.members or self._sealed):
            self._batcher.forget(self)

    def _next(self) -> Entry | None:
        while self._sealed:
            if (entry := self._sealed.popleft().alive()) is not None:
                return entry
        if self.members and (members := self.take()):
            return Entry(members)
        return None

    def encode(self, entry: Entry, target: Target) -> tuple[Entry, Outgoing | None, Any]:
        if len(entry.members) == 1:
            return entry, entry.members[0][1], entry.read or stored_message
        watch = None
        if entry.members[0][1].watch is not None:
            entry, watch = begin_watched(entry, target)
        together = [cast(Outgoing, member[1]) for member in entry.members]
        if len(together) > 1:
            outgoing = self._batcher.encoder.together(together)
            outgoing.watch, outgoing.message = watch, together[0].message
            return entry, outgoing, stored_batch
        return entry, msgspec.structs.replace(together[0], watch=watch) if together else None, stored_message

    def can_shrink(self, outgoing: Outgoing) -> bool:
        return True

    def shrink(self, outgoing: Outgoing, entry: Entry) -> None:
        together = [cast(Outgoing, member[1]) for member in entry.members]
        _replace(outgoing, self._batcher.encoder.together(together))
        if isinstance(outgoing.watch, BatchWatch):
            outgoing.watch.keep(together)

    def requeue(self, entries: Sequence[Entry]) -> None:
        self._sealed.extendleft(reversed(entries))

    def ended(self, broker: str) -> None:
        self._busy = False
        if self.due:
            return
        if self.members or self._sealed:
            self.depart()
        else:
            self._batcher.forget(self)

    def _not_sent(self) -> RequestTimeoutError:
        topic, broker, number = self.queue
        if self.target.address in self._batcher.dispatch.connections:
            why = "it waited in the client for earlier messages to that queue until its timeout; use a longer timeout"
        else:
            why = f"there was no connection to {self.target.address} within its timeout; use a longer timeout"
        text = f"the message for queue {number} of topic {topic} on {broker} was not sent: {why}"
        return RequestTimeoutError(text, maybe_stored=False, broker=broker, address=self.target.address)


def _replace(outgoing: Outgoing, other: Outgoing) -> None:
    """Replace the content of ``outgoing`` with that of ``other``."""
    outgoing.unique_id, outgoing.properties, outgoing.body = other.unique_id, other.properties, other.body
    outgoing.batch_ids = other.batch_ids


def _fail_all(members: Sequence[Member], error: Callable[[], BaseException]) -> None:
    for receiver, _, _ in members:
        if not receiver.done():  # the callback of another receiver may have cancelled it
            receiver.set_exception(error())
