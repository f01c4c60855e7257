"""The light message queues of one broker (LMQ). A message in a light queue is also in a queue of its topic, and the log has it
once. The queue of a lite topic is a light queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmq_protocol.constants import DLQ_TOPIC_PREFIX, LMQ_PREFIX, RETRY_TOPIC_PREFIX, ResponseCode
from rmq_protocol.lite import MAX_LMQ_NAME_SIZE

from .service import Refused
from .store import Queue

MAX_NAMES: Final = 32
"""Maximum number of light queues of one message."""
_NOT_DISPATCHED: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX, "rmq_sys_")


class LightQueues:
    """The light queues by name.

    Attributes:
        enabled: Whether the broker serves light queues. If so, each name with the prefix of light queues is the name of a topic.
        limit: Number of queues from which on no further queue is created (``maxLmqConsumeQueueNum``).
    """

    def __init__(self, broker_name: str) -> None:
        self.enabled = True
        self.limit = 20_000
        self._broker_name = broker_name
        self._queues: dict[str, Queue] = {}
        self.find = self._queues.get

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def knows(self, name: str) -> bool:
        """Return whether a name is that of a light queue, which need not have messages."""
        return self.enabled and name.startswith(LMQ_PREFIX)

    def find_or_empty(self, name: str, queue_id: int = 0) -> Queue:
        """Return a light queue, or an empty queue that the broker does not keep."""
        found = self._queues.get(name) if queue_id == 0 else None
        return Queue(name, self._broker_name, queue_id) if found is None else found

    def max_offset(self, name: str) -> int:
        """Return the offset after the newest message. Return 0 for an unknown queue."""
        queue = self._queues.get(name)
        return 0 if queue is None else queue.max_offset

    def queues_for(self, names: tuple[str, ...]) -> tuple[Queue, ...]:
        """Return the queues with these names. Create missing queues.

        Raises:
            Refused: With code 2017 if the broker has the maximum number of light queues; no queue is created.
        """
        new = [name for name in dict.fromkeys(names) if name not in self._queues]
        if len(self._queues) + len(new) > self.limit:
            remark = "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded."
            raise Refused(ResponseCode.LMQ_QUOTA_EXCEEDED, remark)
        for name in new:
            self._queues[name] = Queue(name, self._broker_name, 0)
        return tuple(self._queues[name] for name in names)

    def delete(self, name: str) -> Queue | None:
        """Remove and return a queue. A later queue with the same name begins at offset 0."""
        return self._queues.pop(name, None)


def light_names(topic: str, dispatch: str) -> tuple[str, ...]:
    """Return the names of the light queues of a message.

    Args:
        dispatch: The property INNER_MULTI_DISPATCH: names of queues, separated by commas.

    Raises:
        Refused: With code 13 for more than ``MAX_NAMES`` names, and for a name that cannot be the name of a directory. A real
            broker responds with success and then dispatches no more messages.
    """
    if topic.startswith(_NOT_DISPATCHED) or topic == "SCHEDULE_TOPIC_XXXX":
        return ()
    names = tuple(dispatch.split(","))
    if len(names) > MAX_NAMES:
        remark = f"the message names {len(names)} queues, the limit is {MAX_NAMES}; send it several times"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    for name in names:
        if "/" in name or "\0" in name or len(name.encode(errors="replace")) > MAX_LMQ_NAME_SIZE:
            remark = f"{name[:160]!r} cannot be the name of a queue: it has a slash, or more than {MAX_LMQ_NAME_SIZE} bytes"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    return tuple(name if name.startswith(LMQ_PREFIX) else "" for name in names)
