"""The reading of one pop: its queues, its offsets, and the fields of its answer (``popMsgFromQueue``,
``PopConsumerService``).
"""

from __future__ import annotations

from typing import Final

from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.pop import ExtraInfo, build_extra_info, pop_retry_topic, pop_retry_topic_v1, retry_flag
from rmq_protocol.properties import encode_properties

from .check_points import Handle
from .held_pops import Pop
from .offsets import OffsetTable
from .ordered_pops import OrderedQueue, OrderedQueues
from .pop_settings import PopSettings
from .records import pack_record, physical_offset, queue_offset, read_record, stored_ms
from .state import BrokerState
from .store import Queue
from .topics import Topic

__all__ = ["ORDERED_REVIVE_QUEUE", "PopReader", "Taken"]

MAX_BYTES: Final = 256 * 1024
"""Bytes of a read of one queue above which no further message is added (``maxTransferBytesOnMessageInMemory``)."""
REVIVE_QUEUES: Final = 8
"""Number of queues of the revive log, named in turn (``reviveQueueNum``)."""
ORDERED_REVIVE_QUEUE: Final = 999
"""Number in place of a revive queue in handles of ordered pops (``KeyBuilder.POP_ORDER_REVIVE_QUEUE``)."""
MOST_TURNS: Final = 4096
RETRIES_FIRST: Final = 5
"""Number of pops of which one, unless it is ordered or by priority, begins with retries (``popFromRetryProbability`` 20)."""


class Taken:
    """The messages of one pop, and the fields of its answer.

    Attributes:
        rest: The field restNum.
    """

    def __init__(self, pop_time: int, revive_queue: int) -> None:
        self.pop_time = pop_time
        self.revive_queue = revive_queue
        self.rest = 0
        self.records: list[bytes] = []
        self._starts: list[str] = []
        self._offsets: list[str] = []
        self._counts: list[str] = []

    def add(self, queue: Queue, start: int, offsets: list[int], records: list[bytes]) -> None:
        where = f"{retry_flag(queue.topic)} {queue.queue_id}"
        self._starts.append(f"{where} {start}")
        self._offsets.append(f"{where} {','.join(map(str, offsets))}")
        self.records += records

    def add_counts(self, queue: Queue, offsets: list[int], counts: dict[int, int]) -> None:
        """Add the numbers of earlier deliveries of a queue's messages.

        Args:
            counts: By offset, for messages that had any.
        """
        flag = retry_flag(queue.topic)
        self._counts += [f"{flag} qo{queue.queue_id}%{offset} {number}" for offset, number in counts.items()]
        fewest = min(counts.values()) if len(counts) == len(offsets) else 0
        self._counts.append(f"{flag} {queue.queue_id} {fewest}")

    @property
    def start_offset_info(self) -> str:
        return ";".join(self._starts)

    @property
    def msg_offset_info(self) -> str:
        return ";".join(self._offsets)

    @property
    def order_count_info(self) -> str:
        return ";".join(self._counts)


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
            Refused: 1 if the broker can keep no more offsets or queues.
        """
        taken = self.nothing(pop, now)
        number, self._number = self._number, self._number + 1
        # the very first pop begins with its queues with the revive log, and with retries with the key-value store
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
        tags (``NotificationProcessor``). Retries count for an ordered pop, too, which reads none.
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
        """Return the retry topics that a pop reads. With the revive log an answer has room for one of them; they take turns."""
        names = self._retry_names(topic, group)
        if self._in_store or len(names) == 1:
            return names
        if len(self._turns) >= MOST_TURNS:
            self._turns.clear()
        # one turn of all topics would leave one out
        turn = self._turns[topic, group] = 1 - self._turns.get((topic, group), 1)
        return [names[turn]]

    def _retry_names(self, topic: str, group: str) -> list[str]:
        old = pop_retry_topic_v1(topic, group)
        return [old, pop_retry_topic(topic, group)] if self._settings.retry_v2 else [old]

    def _take_queue(self, pop: Pop, topic: Topic, queue_id: int, taken: Taken, *, retries: bool = False) -> None:
        group, name = pop.key.group, topic.config.topic_name
        ordered = OrderedQueue(group, name, queue_id)
        queue, room = topic.queue(queue_id), pop.count - len(taken.records)
        full_store = self._in_store and room <= 0  # a full pop counts from the committed offset, -1 for none, and commits none
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
        """Return the offset to read from: that of a reset, the one after the last pop, or the first one of a new group.

        Not below the queue's minimum, nor above its maximum.
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

        A group that begins at the end reads a retry topic, and a queue without deleted messages, from the first message, any
        other queue from its newest.
        """
        low = queue.min_offset
        if pop.from_oldest or queue.topic.startswith(RETRY_TOPIC_PREFIX):
            return low
        return 0 if low == 0 else queue.max_offset - 1

    def _commit(self, pop: Pop, queue: Queue, start: int, end: int) -> None:
        """Commit the progress of a pop.

        With the key-value store, unless pops are ordered, the committed offset is the start of the last pop, and
        ``pop_offsets`` has the start of the next one.
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
        return pack_record(
            pop.key.topic,
            draft.queue_id,
            offset,
            physical_offset(record),
            draft.content(encode_properties(draft.properties)),
            stored_ms(record),
            self._state.address,
        )
