"""Storing a message: its record, its place in queue and log, its keys in the index, and word to the pulls that wait for it."""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq_protocol.constants import MAX_BODY_SIZE, MAX_PROPERTIES_SIZE, RETRY_TOPIC_PREFIX, ResponseCode
from rmq_protocol.properties import properties_text

from .pulls import HeldPulls
from .records import Draft, pack_record
from .service import Refused
from .state import BrokerState
from .store import tag_code
from .topics import FAQ, Topic

__all__ = ["ILLEGAL", "MessageWriter", "Place", "utf8"]

ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. "
    f"msg body length limit {MAX_BODY_SIZE}B, msg properties length limit 32KB."
)


class Place(NamedTuple):
    """Where a message is now: offset in its queue, physical offset in the log."""

    offset: int
    position: int


class MessageWriter:
    def __init__(self, state: BrokerState, held: HeldPulls) -> None:
        self._state = state
        self._held = held

    def put(self, draft: Draft) -> Place:
        """Raises Refused (17, 13) where the topic is gone, or the properties are too long. A group's retry topic comes back."""
        topic = self._state.topics.get(draft.topic)
        if topic is None and draft.topic.startswith(RETRY_TOPIC_PREFIX):
            topic = self._state.topics.ensure(draft.topic, draft.queue_id + 1)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{draft.topic}] not exist, apply first please!\n{FAQ}")
        properties = draft.properties
        encoded = utf8(properties_text(properties))
        if len(encoded) > MAX_PROPERTIES_SIZE:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
        placed = self.append(
            topic,
            draft.queue_id,
            draft.body,
            encoded,
            draft.flag,
            draft.sys_flag,
            draft.born_time_ms,
            draft.born_host,
            draft.reconsume_times,
            properties.get("TAGS"),
            draft.prepared_offset,
        )
        return Place(*placed)

    def append(
        self,
        topic: Topic,
        queue_id: int,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: str,
        reconsume_times: int,
        tags: str | None,
        prepared_offset: int = 0,
    ) -> tuple[int, int]:
        """As a Place. Raises ProtocolError for values that do not fit their fields, and then nothing is stored."""
        state = self._state
        log, name = state.log, topic.config.topic_name
        queue = topic.queue(queue_id)
        offset, position, now = queue.max_offset, log.end, log.now()
        record = pack_record(
            name,
            queue_id,
            offset,
            position,
            body,
            properties,
            flag,
            sys_flag,
            born_time_ms,
            born_host,
            now,
            state.address,
            reconsume_times,
            prepared_offset,
        )
        log.append(queue, record, tag_code(tags) if tags else 0, now)
        if queue.waiting:
            self._held.arrived(queue)
        return offset, position


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the properties have no UTF-8 form: {error.reason}") from None
