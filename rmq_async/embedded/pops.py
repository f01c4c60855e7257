"""Serves POP_MESSAGE (200050) and two requests that take no messages, NOTIFICATION (200054) and POLLING_INFO (200055)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmq_protocol import headers
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, Perm, RequestCode, ResponseCode
from rmq_protocol.pop import ExtraInfo, build_extra_info, pop_retry_topic, pop_retry_topic_v1, retry_flag
from rmq_protocol.pop_handles import MAX_POP_SIZE
from rmq_protocol.properties import encode_properties
from rmq_protocol.subscription import TAG

from .check_points import MAX_IN_FLIGHT, Handle
from .clock import Clock
from .faults import PopFaults, PopSettings
from .filters import Filter, check_condition, filter_of
from .held_pops import HeldPops, Pop, PopKey
from .offsets import OffsetTable
from .ordered_pops import OrderedQueue, OrderedQueues
from .records import pack_record, physical_offset, queue_offset, read_record, stored_ms
from .server import Connection
from .service import Processor, Refused, fields_of, handles, header_of, without_content
from .state import BrokerState
from .store import Queue
from .topics import FAQ, Topic

# How one pop reads: its queues, its offsets, and the fields of its response (``popMsgFromQueue``, ``PopConsumerService``).

MAX_BYTES: Final = 256 * 1024
"""Number of bytes above which a read of one queue adds no further messages (``maxTransferBytesOnMessageInMemory``)."""
REVIVE_QUEUES: Final = 8
"""Number of queues of the revive log (``reviveQueueNum``). The handles of successive pops contain these queues in turn."""
ORDERED_REVIVE_QUEUE: Final = 999
"""Queue number that handles of ordered pops contain in place of a revive queue (``KeyBuilder.POP_ORDER_REVIVE_QUEUE``)."""
MOST_TURNS: Final = 4096
RETRIES_FIRST: Final = 5
"""One in this many pops reads retries first, unless the pop is ordered or by priority (``popFromRetryProbability`` 20)."""


class Taken:
    """The messages of one pop, and the fields of its response.

    Attributes:
        rest: The value of the field restNum.
        starts: The parts of the field startOffsetInfo.
        offsets: The parts of the field msgOffsetInfo.
        counts: The parts of the field orderCountInfo.
    """

    def __init__(self, pop_time: int, revive_queue: int) -> None:
        self.pop_time = pop_time
        self.revive_queue = revive_queue
        self.rest = 0
        self.records: list[bytes] = []
        self.starts: list[str] = []
        self.offsets: list[str] = []
        self.counts: list[str] = []

    def add(self, queue: Queue, start: int, offsets: list[int], records: list[bytes]) -> None:
        where = f"{retry_flag(queue.topic)} {queue.queue_id}"
        self.starts.append(f"{where} {start}")
        self.offsets.append(f"{where} {','.join(map(str, offsets))}")
        self.records += records

    def add_counts(self, queue: Queue, offsets: list[int], counts: dict[int, int]) -> None:
        """Add the numbers of earlier deliveries of a queue's messages.

        Args:
            counts: Number of earlier deliveries by offset, for messages that were delivered before.
        """
        flag = retry_flag(queue.topic)
        self.counts += [f"{flag} qo{queue.queue_id}%{offset} {number}" for offset, number in counts.items()]
        fewest = min(counts.values()) if len(counts) == len(offsets) else 0
        self.counts.append(f"{flag} {queue.queue_id} {fewest}")


class PopReader:
    def __init__(self, state: BrokerState, ordered: OrderedQueues, settings: PopSettings) -> None:
        self._state = state
        self._ordered = ordered
        self._settings = settings
        self._in_store = settings.store == "kv"
        self._number = 0
        self._turns: dict[tuple[str, str], int] = {}
        """The retry topic that was read last, by topic and group."""
        self._revive_queue = 0

    def nothing(self, pop: Pop, now: int) -> Taken:
        """Return the result of a pop without messages."""
        if pop.ordered:
            return Taken(now, ORDERED_REVIVE_QUEUE)
        if self._in_store:
            return Taken(now, 0)
        self._revive_queue = (self._revive_queue + 1) % REVIVE_QUEUES
        return Taken(now, self._revive_queue)

    def take(self, pop: Pop, topic: Topic, now: int) -> Taken:
        """Take the messages of a pop.

        Raises:
            Refused: With code 1 if the broker cannot store more offsets or queues.
        """
        taken = self.nothing(pop, now)
        number, self._number = self._number, self._number + 1
        # with the revive log, the very first pop begins with its queues; with the key-value store, it begins with retries
        by_priority = topic.is_by_priority and not pop.ordered
        early = not pop.ordered and not by_priority and (number % RETRIES_FIRST == (0 if self._in_store else RETRIES_FIRST - 1))
        if early:
            self._take_retries(pop, taken)
        count, asked = topic.config.read_queue_nums, pop.key.queue_id
        for at in range(count) if asked < 0 else ():
            self._take_queue(pop, topic, count - 1 - at if by_priority else (number - at) % count, taken)
        if asked >= 0:
            self._take_queue(pop, topic, asked, taken)
        if not early and not pop.ordered and (asked < 0 or not self._in_store):
            self._take_retries(pop, taken)
        return taken

    def has_messages(self, pop: Pop, topic: Topic) -> bool:
        """Return whether a queue of the pop, or queue 0 of a retry topic, has messages from the group's offset on, with any
        tags (``NotificationProcessor``). Retries also count for an ordered pop, although it does not read them.
        """
        name, group, asked = pop.key
        offsets = self._pop_offsets(pop)
        places = [(topic, each) for each in (range(topic.config.read_queue_nums) if asked < 0 else (asked,))]
        places += [(retries, 0) for each in self._retry_names(name, group) if (retries := self._state.topics.get(each))]
        for each, queue_id in places:
            queue, found = each.find(queue_id), each.config.topic_name
            if pop.ordered and self._ordered.blocked(OrderedQueue(group, found, queue_id), pop.attempt):
                continue
            if queue is not None and queue.max_offset > max(offsets.find(group, found, queue_id), queue.oldest):
                return True
        return False

    def _take_retries(self, pop: Pop, taken: Taken) -> None:
        for name in self._retry_topics(pop.key.topic, pop.key.group):
            topic = self._state.topics.get(name)
            if topic is not None:
                for queue_id in range(topic.config.read_queue_nums):
                    self._take_queue(pop, topic, queue_id, taken, retries=True)

    def _retry_topics(self, topic: str, group: str) -> list[str]:
        """Return the retry topics that a pop reads. With the revive log, the response can contain only one of them, so the
        retry topics take turns.
        """
        names = self._retry_names(topic, group)
        if self._in_store or len(names) == 1:
            return names
        if len(self._turns) >= MOST_TURNS:
            self._turns.clear()
        # if all topics shared one turn, a topic could always miss one of its retry topics
        turn = self._turns[topic, group] = 1 - self._turns.get((topic, group), 1)
        return [names[turn]]

    def _retry_names(self, topic: str, group: str) -> list[str]:
        old = pop_retry_topic_v1(topic, group)
        return [old, pop_retry_topic(topic, group)] if self._settings.retry_v2 else [old]

    def _take_queue(self, pop: Pop, topic: Topic, queue_id: int, taken: Taken, *, retries: bool = False) -> None:
        group, name = pop.key.group, topic.config.topic_name
        ordered = OrderedQueue(group, name, queue_id)
        queue, room = topic.queue(queue_id), pop.count - len(taken.records)
        full_store = self._in_store and room <= 0  # a full pop counts from the committed offset (or -1) and does not commit
        start = self._state.offsets.find(group, name, queue_id) if full_store else self._start(pop, queue)
        if pop.ordered and self._ordered.blocked(ordered, pop.attempt):
            return
        if room <= 0:
            taken.rest += queue.max_offset - start
            return
        wanted = pop.filter
        accepts = None if wanted.condition is None else wanted.accepts
        records, end = queue.read(start, room, MAX_BYTES, wanted.scan, wanted.codes, accepts)
        offsets = [queue_offset(record) for record in records]
        if records:
            if pop.ordered:
                counts = self._ordered.popped(ordered, pop.attempt, taken.pop_time, pop.invisible_time, offsets)
                taken.add_counts(queue, offsets, counts)
            else:
                self._state.check_points.add(Handle(group, name, queue_id, start, taken.pop_time, pop.invisible_time), offsets)
            if retries and not self._in_store:
                records = [self._with_handle(pop, record, start, taken) for record in records]
            taken.add(queue, start, offsets, records)
        if not pop.ordered or not records:
            self._commit(pop, queue, start, end)
        taken.rest += queue.max_offset - end

    def _start(self, pop: Pop, queue: Queue) -> int:
        """Return the offset to read from. It is the offset of a pending reset, else the offset after the last pop, else the
        first offset of a new group.

        The offset is limited to the queue's minimum and maximum offset.
        """
        group, name, queue_id = pop.key.group, queue.topic, queue.queue_id
        offsets = self._pop_offsets(pop)
        reset = self._state.offsets.take_reset(group, name, queue_id)
        start = offsets.find(group, name, queue_id) if reset is None else reset
        if reset is not None:
            self._ordered.clear(OrderedQueue(group, name, queue_id))
            offsets.commit(group, name, queue_id, reset)
        if start < 0:
            start = self._first(pop, queue)
            self._state.offsets.commit(group, name, queue_id, start)
        return min(max(start, queue.min_offset), queue.max_offset)

    @staticmethod
    def _first(pop: Pop, queue: Queue) -> int:
        """Return the first offset of a new group.

        A group that begins at the end reads a retry topic, or a queue without deleted messages, from its first message. It
        reads any other queue from its newest message.
        """
        low = queue.min_offset
        if pop.from_oldest or queue.topic.startswith(RETRY_TOPIC_PREFIX):
            return low
        return 0 if low == 0 else queue.max_offset - 1

    def _commit(self, pop: Pop, queue: Queue, start: int, end: int) -> None:
        """Commit the progress of a pop.

        With the key-value store, unless the pop is ordered, the committed offset is the start of the last pop, and
        ``pop_offsets`` has the start of the next pop.
        """
        group, name, queue_id = pop.key.group, queue.topic, queue.queue_id
        if self._in_store and not pop.ordered:
            self._state.pop_offsets.commit(group, name, queue_id, end)
            end = start
        if self._state.offsets.find(group, name, queue_id) != end:
            self._state.offsets.commit(group, name, queue_id, end)

    def _pop_offsets(self, pop: Pop) -> OffsetTable:
        return self._state.pop_offsets if self._in_store and not pop.ordered else self._state.offsets

    def _with_handle(self, pop: Pop, record: bytes, start: int, taken: Taken) -> bytes:
        """Return the record of a retried message with the topic that was requested, and with its handle (POP_CK)."""
        draft = read_record(record)
        offset = queue_offset(record)
        info = ExtraInfo(
            start,
            taken.pop_time,
            pop.invisible_time,
            taken.revive_queue,
            retry_flag(draft.topic),
            self._state.name,
            draft.queue_id,
            offset,
        )
        draft.properties.setdefault("POP_CK", build_extra_info(info))
        draft.topic = pop.key.topic
        properties = encode_properties(draft.properties)
        return pack_record(draft, properties, offset, physical_offset(record), stored_ms(record), self._state.address)


LATE_MS: Final = 500
"""A pop is refused if it arrives more than this number of milliseconds after its bornTime plus pollTime."""
_FROM_OLDEST: Final = 0
_READ: Final = int(Perm.READ)


class PopProcessor(Processor):
    """Serves pops.

    Attributes:
        popped: Called when messages were taken.
    """

    def __init__(
        self,
        state: BrokerState,
        reader: PopReader,
        held: HeldPops,
        clock: Clock,
        faults: PopFaults,
        *,
        property_filter: bool,
    ) -> None:
        self._state = state
        self._reader = reader
        self._held = held
        self._clock = clock
        self._faults = faults
        self._property_filter = property_filter
        self.popped: Callable[[], object] = lambda: None
        held.serve = self._serve

    @handles(RequestCode.POP_MESSAGE)
    def pop(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = header_of(headers.PopMessageRequestHeader, command)
        key = PopKey(header.topic, header.consumerGroup, max(header.queueId, -1))
        pop = Pop(connection, without_content(command), key)
        now = self._clock.now_ms()
        if header.bornTime and now - header.bornTime - header.pollTime > LATE_MS:
            remark = f"the broker[{self._state.ip}] pop message is timeout too much"
            return make_response(command, ResponseCode.POLLING_TIMEOUT, remark, fields_of(headers.PopMessageResponseHeader()))
        if header.maxMsgNums > MAX_POP_SIZE:
            remark = f"the broker[{self._state.ip}] pop message's num is greater than {MAX_POP_SIZE}"
            return make_response(command, ResponseCode.INVALID_PARAMETER, remark, fields_of(headers.PopMessageResponseHeader()))
        pop.count, pop.invisible_time, pop.poll_time = header.maxMsgNums, header.invisibleTime, header.pollTime
        pop.deadline = (header.bornTime or now) + header.pollTime if header.pollTime > 0 else 0
        pop.from_oldest, pop.ordered = header.initMode == _FROM_OLDEST, bool(header.order)
        pop.attempt = header.attemptId
        return self._begin(pop, command, header.exp or "", header.expType or TAG)

    @handles(RequestCode.NOTIFICATION)
    def notification(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = header_of(headers.NotificationRequestHeader, command)
        key = PopKey(header.topic, header.consumerGroup, max(header.queueId, -1))
        pop = Pop(connection, without_content(command), key)
        pop.notified = True
        pop.poll_time, pop.ordered, pop.attempt = header.pollTime, bool(header.order), header.attemptId
        pop.deadline = (header.bornTime or self._clock.now_ms()) + header.pollTime if header.pollTime > 0 else 0
        return self._begin(pop, command, header.exp or "", header.expType or TAG)

    @handles(RequestCode.POLLING_INFO)
    def polling_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.PollingInfoRequestHeader, command)
        number = self._held.number_of(PopKey(header.topic, header.consumerGroup, header.queueId))
        return make_response(
            command, ResponseCode.SUCCESS, None, fields_of(headers.PollingInfoResponseHeader(pollingNum=number))
        )

    def _begin(self, pop: Pop, command: RemotingCommand, expression: str, kind: str) -> RemotingCommand | None:
        """Respond to the pop or hold it."""
        try:
            self._topic(pop)
            pop.filter = self._filter(expression, kind)
        except Refused as refusal:
            return self._refuse(pop, refusal)
        response = self._serve(pop, command.is_oneway)
        if response is None:
            self._held.hold(pop)
        return response

    def _topic(self, pop: Pop) -> Topic:
        """Return the topic of a valid pop.

        Raises:
            Refused: With code 17 for an unknown topic; with code 16 for a topic without permission to read, and for a group
                that may not consume; with code 29 for a queue id that the topic does not have; with code 26 if the group does
                not exist and is not created.
        """
        name, group, queue_id = pop.key
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:160]}] not exist, apply first please! \n{FAQ}")
        if not topic.config.perm & _READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden")
        if queue_id >= topic.config.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.config.read_queue_nums}] "
                f"consumer:[/{pop.connection.remote}]",
            )
        if not self._state.groups.use(group).consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return topic

    def _filter(self, expression: str, kind: str) -> Filter:
        """Return the filter of a pop.

        Raises:
            Refused: With code 23 for invalid tags and conditions; with code 1 for any condition if the broker does not filter
                by conditions.
        """
        if not expression:
            return Filter()
        if kind != TAG:
            try:
                check_condition(expression, kind, property_filter=self._property_filter)
            except Refused as refusal:
                if refusal.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                    raise
                raise Refused(refusal.code, "parse the consumer's subscription failed") from None
        return filter_of(expression, kind, property_filter=self._property_filter, brought=True)

    def _serve(self, pop: Pop, last: bool) -> RemotingCommand | None:
        try:
            topic = self._topic(pop)
            if pop.notified:
                return self._notify(pop, topic, last)
            return self._pop(pop, topic, last)
        except Refused as refusal:
            return self._refuse(pop, refusal)

    def _pop(self, pop: Pop, topic: Topic, last: bool) -> RemotingCommand | None:
        """Return the response. Return None for a pop that is to be held.

        Raises:
            Refused: With code 2 if the broker has too many messages without an ack; with code 1 if it cannot store more offsets
                or queues.
        """
        now = self._clock.now_ms()
        if self._faults.take_empty():
            return self._answer(pop, ResponseCode.POLLING_TIMEOUT, self._reader.nothing(pop, now))
        if (number := self._state.check_points.messages) > MAX_IN_FLIGHT - MAX_POP_SIZE:
            remark = (
                f"this broker has {number} popped messages without an ack, and serves pops up to {MAX_IN_FLIGHT - MAX_POP_SIZE}; "
                "acknowledge some first"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        taken = self._reader.take(pop, topic, now)
        if taken.records:
            self.popped()
            if taken.rest > 0:
                self._held.notify(pop.key)
            return self._answer(pop, ResponseCode.SUCCESS, taken)
        code = self._unheld(pop, last)
        return None if code is None else self._answer(pop, code, taken)

    def _notify(self, pop: Pop, topic: Topic, last: bool) -> RemotingCommand | None:
        found = self._reader.has_messages(pop, topic)
        code = None if found else self._unheld(pop, last)
        if not found and code is None:
            return None
        header = headers.NotificationResponseHeader(hasMsg=found, pollingFull=code == ResponseCode.POLLING_FULL)
        return make_response(pop.command, ResponseCode.SUCCESS, None, fields_of(header))

    def _unheld(self, pop: Pop, last: bool) -> ResponseCode | None:
        """Return the response code for a pop that finds no messages. Return None if the pop is to be held."""
        if last or not pop.deadline or pop.deadline <= self._clock.now_ms():
            return ResponseCode.POLLING_TIMEOUT
        return None if self._held.has_room(pop.key) else ResponseCode.POLLING_FULL

    def _answer(self, pop: Pop, code: ResponseCode, taken: Taken) -> RemotingCommand:
        in_store = self._state.check_points.single
        header = headers.PopMessageResponseHeader(
            popTime=taken.pop_time,
            invisibleTime=pop.invisible_time,
            reviveQid=taken.revive_queue,
            restNum=taken.rest,
            startOffsetInfo=";".join(taken.starts),
            msgOffsetInfo=";".join(taken.offsets),
            orderCountInfo=";".join(taken.counts) if pop.ordered and (taken.records or not in_store) else None,
        )
        remark = "FOUND" if code == ResponseCode.SUCCESS else "NO_MESSAGE_IN_QUEUE"
        return make_response(pop.command, code, remark, fields_of(header), b"".join(taken.records))

    @staticmethod
    def _refuse(pop: Pop, refusal: Refused) -> RemotingCommand:
        header = headers.NotificationResponseHeader() if pop.notified else headers.PopMessageResponseHeader()
        return make_response(pop.command, refusal.code, refusal.remark, fields_of(header))
