"""Stores messages: packs the record, appends it to the queue and the log, and wakes the pulls and pops that wait for it."""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq_protocol.constants import MAX_BODY_SIZE, MAX_PROPERTIES_SIZE, RETRY_TOPIC_PREFIX, ResponseCode
from rmq_protocol.properties import properties_text

from .held_pops import HeldPops
from .pulls import HeldPulls
from .records import Draft, pack_record
from .service import Refused
from .state import BrokerState
from .store import tag_code
from .topics import FAQ, Topic

ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. "
    f"msg body length limit {MAX_BODY_SIZE}B, msg properties length limit 32KB."
)


class Place(NamedTuple):
    """The place of a stored message: its offset in the queue and its physical offset in the log."""

    offset: int
    position: int


class MessageWriter:
    def __init__(self, state: BrokerState, held: HeldPulls, held_pops: HeldPops) -> None:
        self._state = state
        self._held = held
        self._held_pops = held_pops

    def put(self, draft: Draft) -> Place:
        """Store a draft. Create the group's retry topic again if it was deleted.

        Also raises the errors of ``append`` and ``TopicTable.ensure``.

        Raises:
            Refused: With code 17 for any other topic that does not exist; with code 13 for properties that are too long; with
                code 1 for properties that cannot be encoded in UTF-8.
        """
        topic = self._state.topics.get(draft.topic)
        if topic is None and draft.topic.startswith(RETRY_TOPIC_PREFIX):
            topic = self._state.topics.ensure(draft.topic, draft.queue_id + 1)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{draft.topic}] not exist, apply first please!\n{FAQ}")
        properties = draft.properties
        encoded = utf8(properties_text(properties))
        if len(encoded) > MAX_PROPERTIES_SIZE:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
        return Place(*self.append(topic, draft, encoded, properties.get("TAGS")))

    def append(self, topic: Topic, draft: Draft, properties: bytes, tags: str | None) -> tuple[int, int]:
        """Store a message with these ``properties`` in the draft's queue of its topic. Return the fields of its Place.

        Raises:
            ProtocolError: For values that do not fit their fields. Nothing is stored in this case.
            Refused: With code 1 if the broker has the maximum number of queues. Nothing is stored in this case.
        """
        state = self._state
        log = state.log
        queue = topic.queue(draft.queue_id)
        offset, position, now = queue.max_offset, log.end, log.now()
        record = pack_record(draft, properties, offset, position, now, state.address)
        log.append(queue, record, tag_code(tags) if tags else 0, now)
        if queue.waiting:
            self._held.arrived(queue)
        if draft.topic in self._held_pops.topics:
            self._held_pops.arrived(draft.topic, draft.queue_id)
        return offset, position


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        remark = f"the properties have no UTF-8 form: {error.reason}; remove the lone surrogate"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark) from None
