"""The redelivery of popped messages that were not acknowledged in time. Each message is copied to a retry topic of its topic
and group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.errors import ProtocolError
from rmq_protocol.pop import pop_retry_topic, pop_retry_topic_v1
from rmq_protocol.pop_handles import plain_topic

from .check_points import CheckPoint, Handle
from .clock import Alarm, Clock
from .faults import PopFaults, PopSettings
from .records import read_record
from .service import Refused
from .state import BrokerState
from .writer import MessageWriter

logger = logging.getLogger("rmq_async.embedded")

_BATCH: Final = 256
"""Maximum number of check points that are handled before the event loop serves other requests."""
_MAX_INT: Final = 0x7FFFFFFF


class Revival:
    """The redelivery of popped messages without an ack.

    Args:
        revived: Called after a message was copied, with the group and the requested topic of the pop.
    """

    def __init__(
        self,
        state: BrokerState,
        writer: MessageWriter,
        clock: Clock,
        settings: PopSettings,
        faults: PopFaults,
        revived: Callable[[str, str], object],
    ) -> None:
        self._state = state
        self._writer = writer
        self._clock = clock
        self._settings = settings
        self._faults = faults
        self._revived = revived
        self._alarm = Alarm(clock, self._ring)

    def start(self) -> None:
        """Start the redelivery, including messages that became due while the broker was down."""
        self._alarm.start()
        self.arm()

    def stop(self) -> None:
        self._alarm.stop()

    def arm(self) -> None:
        """Set the alarm to the end of the next check point."""
        end = self._state.check_points.next_end()
        if end is not None:
            self._alarm.by(end + self._delay_ms)

    @property
    def _delay_ms(self) -> int:
        return self._settings.delay_ms + self._faults.late_ms

    def _ring(self) -> None:
        for point in self._state.check_points.take(self._clock.now_ms() - self._delay_ms, _BATCH):
            for offset in point.left:
                for _ in range(self._faults.copies):
                    self._revive(point, offset)
        self.arm()

    def _revive(self, point: CheckPoint, offset: int) -> None:
        """Store a copy of the message, unless the message, its topic or its group was deleted. Log a failure."""
        state, handle = self._state, point.handle
        queue = state.topics.find_queue(handle.topic, handle.queue_id)
        record = None if queue is None else queue.record(offset)
        if record is None or state.groups.get(handle.group) is None:
            return
        draft = read_record(record)
        properties = draft.properties
        if draft.reconsume_times == 0 or "1ST_POP_TIME" not in properties:
            properties["1ST_POP_TIME"] = str(handle.pop_time)
        properties["ORIGIN_GROUP"] = handle.group
        draft.topic, draft.queue_id = self._retry_topic(handle), 0
        draft.reconsume_times = min(draft.reconsume_times + (not point.suspended), _MAX_INT)
        draft.born_host = state.address
        draft.prepared_offset = 0
        try:
            if state.topics.get(draft.topic) is None:
                state.topics.ensure(draft.topic)
                state.offsets.commit(handle.group, draft.topic, 0, 0)
            self._writer.put(draft)
        except (Refused, ProtocolError) as error:
            where = f"{handle.topic}, queue {handle.queue_id}, offset {offset}"
            logger.warning("%s: a popped message cannot be delivered again (%s): %s", state.name, where, error)
            return
        self._revived(handle.group, plain_topic(handle.topic, handle.group))

    def _retry_topic(self, handle: Handle) -> str:
        if handle.topic.startswith(RETRY_TOPIC_PREFIX):
            return handle.topic
        name = pop_retry_topic if self._settings.retry_v2 else pop_retry_topic_v1
        return name(handle.topic, handle.group)
