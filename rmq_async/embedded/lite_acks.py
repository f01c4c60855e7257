"""Serves what follows a pop of a lite topic: acks (200051) and changes of the invisible time (200053) with the field ``liteTopic``
(``AckMessageProcessor.ackLite``, ``ChangeInvisibleTimeProcessor.processChangeInvisibleTimeForLite``).

Their offset is the one in the light queue (INNER_MULTI_QUEUE_OFFSET).
"""

from __future__ import annotations

from rmq_protocol.constants import ResponseCode
from rmq_protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rmq_protocol.lite import lmq_name
from rmq_protocol.pop import ExtraInfo

from .clock import Clock
from .lite_events import LiteEvents
from .lite_topics import LiteTopics
from .ordered_pops import OrderedQueue, OrderedQueues
from .pops import ORDERED_REVIVE_QUEUE
from .service import Refused
from .state import BrokerState


class LiteAcks:
    """Acknowledges messages of lite topics and changes their invisible times."""

    def __init__(
        self, state: BrokerState, topics: LiteTopics, events: LiteEvents, ordered: OrderedQueues, clock: Clock
    ) -> None:
        self._state = state
        self._topics = topics
        self._events = events
        self._ordered = ordered
        self._clock = clock

    def check(self, header: AckMessageRequestHeader) -> None:
        """Check the group and the offset of an ack.

        Raises:
            Refused: With code 29 for a group that is bound to another topic; with code 208 for an offset beyond the queue.
        """
        if self._topics.bound_topic(header.consumerGroup) != header.topic:
            raise Refused(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        if header.offset > self._topics.queues.max_offset(_queue_of(header).topic):
            raise Refused(ResponseCode.NO_MESSAGE, "ack offset illegal.")

    def ack(self, header: AckMessageRequestHeader, info: ExtraInfo) -> None:
        """Acknowledge a message. If this frees its queue, dispatch the queue again.

        Raises:
            Refused: With code 29 if the request does not name queue 0 and the handle does not contain the number of ordered pops;
                with code 13 for an offset that the queue's last pop did not take.
        """
        if header.queueId != 0 or info.revive_qid != ORDERED_REVIVE_QUEUE:
            raise Refused(ResponseCode.INVALID_PARAMETER, "ack queue illegal.")
        queue, offsets = _queue_of(header), self._state.offsets
        if header.offset < offsets.find(*queue):
            return
        try:
            following = self._ordered.ack(queue, header.offset, info.pop_time)
        except LookupError:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "ack offset illegal.") from None
        if following is not None:
            offsets.commit(*queue, following)
            if not self._ordered.blocked(queue, None):
                self._events.dispatch(queue.topic, queue.group)

    def change(self, header: ChangeInvisibleTimeRequestHeader, info: ExtraInfo) -> ChangeInvisibleTimeResponseHeader:
        """Change the invisible time of a message. With ``suspend``, change it for all messages of the pop.

        Returns:
            The response header, with the time from the pop to the new end. The header is empty if the offset is below the
            committed one.
        """
        queue = _queue_of(header)
        if header.offset < self._state.offsets.find(*queue):
            return ChangeInvisibleTimeResponseHeader()
        visible_at = self._clock.now_ms() + header.invisibleTime
        if header.suspend:
            self._ordered.suspend(queue, info.pop_time, visible_at)
        else:
            self._ordered.change(queue, header.offset, info.pop_time, visible_at)
        return ChangeInvisibleTimeResponseHeader(
            popTime=info.pop_time, invisibleTime=visible_at - info.pop_time, reviveQid=info.revive_qid
        )

    def is_beyond(self, header: ChangeInvisibleTimeRequestHeader) -> bool:
        """Return whether the offset of a change is beyond the queue."""
        return header.offset > self._topics.queues.max_offset(_queue_of(header).topic)


def _queue_of(header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader) -> OrderedQueue:
    return OrderedQueue(header.consumerGroup, lmq_name(header.topic, header.liteTopic or ""), 0)
