"""The parts of a broker that serve pops: requests, held pops, and the redelivery of messages."""

from __future__ import annotations

from typing import NamedTuple

from rmq_protocol.message import MessageExt
from rmq_protocol.pop import pop_retry_topic, pop_retry_topic_v1
from rmq_protocol.stored import decode_messages

from .acks import AckProcessor
from .clock import Clock
from .faults import PopFaults, PopSettings
from .held_pops import ANY_QUEUE, HeldPops, PopKey
from .lite_acks import LiteAcks
from .ordered_pops import OrderedQueue, OrderedQueues
from .pops import PopProcessor, PopReader
from .revival import Revival
from .service import Handler
from .state import BrokerState
from .writer import MessageWriter


class PopServing(NamedTuple):
    """What pops of a broker share with other parts.

    Attributes:
        held: The pops that wait for messages.
        faults: The faults of the next pops, and of pops of lite topics.
        lite: Serves acks and changes for messages of lite topics.
    """

    held: HeldPops
    faults: PopFaults
    lite: LiteAcks


class Popping:
    """The parts of a broker that serve pops.

    Args:
        writer: Stores redelivered messages.

    Attributes:
        held: The pops that wait for messages.
        faults: The faults of the next pops.
    """

    def __init__(
        self,
        state: BrokerState,
        writer: MessageWriter,
        serving: PopServing,
        clock: Clock,
        settings: PopSettings,
        *,
        property_filter: bool,
    ) -> None:
        self._state = state
        self.held, self.faults, lite = serving
        self._ordered = OrderedQueues(clock, self._freed)
        reader = PopReader(state, self._ordered, settings)
        self._pops = PopProcessor(state, reader, self.held, clock, self.faults, property_filter=property_filter)
        self._acks = AckProcessor(state, self._ordered, clock, self.faults, lite)
        self._acks.freed = self._freed
        self._revival = Revival(state, writer, clock, settings, self.faults, self._revived)
        self._pops.popped = self._acks.changed = self._revival.arm
        self.revived = 0
        """Number of copies of popped messages that were stored for redelivery."""

    def handlers(self) -> dict[int, Handler]:
        return {**self._pops.handlers(), **self._acks.handlers()}

    def start(self) -> None:
        self._ordered.start()
        self._revival.start()

    def stop(self) -> None:
        self._ordered.stop()
        self._revival.stop()

    def delay_revival(self, seconds: float) -> None:
        """Implement ``EmbeddedRocketMQ.delay_revival``."""
        self.faults.late_ms = round(1000 * seconds)
        self._revival.arm()

    def deleted(self, topic: str) -> None:
        """Remove the start offsets of pops, the check points and the ordered batches of a deleted topic."""
        self._state.pop_offsets.forget_topic(topic)
        self._state.check_points.forget(lambda handle, offset: handle.topic == topic)
        self._ordered.forget(lambda queue: queue.topic == topic)

    def in_flight(self, group: str) -> list[MessageExt]:
        """Implement ``EmbeddedRocketMQ.in_flight``."""
        found: list[MessageExt] = []
        for handle, offset in self._state.check_points.of_group(group):
            queue = self._state.topics.find_queue(handle.topic, handle.queue_id)
            record = None if queue is None else queue.record(offset)
            if record is not None:
                found += decode_messages(record, topic_queue_broker=self._state.name).messages
        return found

    def retry_topics(self, group: str) -> list[str]:
        """Return the names of the existing retry topics of the group's pops."""
        topics = self._state.topics
        names = [topic.config.topic_name for topic in topics]
        return [
            name
            for each in names
            for name in (pop_retry_topic_v1(each, group), pop_retry_topic(each, group))
            if topics.get(name)
        ]

    def _freed(self, queue: OrderedQueue) -> None:
        for asked in (ANY_QUEUE, queue.queue_id):
            self.held.notify(PopKey(queue.topic, queue.group, asked))

    def _revived(self, group: str, topic: str) -> None:
        """Count a copy and wake one waiting pop of the topic and the group. Prefer a pop for any queue to a pop for a specific
        queue.
        """
        self.revived += 1
        for asked in (ANY_QUEUE, *range(self._queues(topic))):
            if self.held.number_of(PopKey(topic, group, asked)):
                self.held.notify(PopKey(topic, group, asked))
                return

    def _queues(self, topic: str) -> int:
        found = self._state.topics.get(topic)
        return 0 if found is None else found.config.read_queue_nums
