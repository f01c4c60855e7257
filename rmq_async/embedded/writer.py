"""Stores messages: packs the record, appends it to the queue and the log, and wakes the pulls and pops that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from rmq_protocol.constants import MAX_BODY_SIZE, MAX_PROPERTIES_SIZE, RETRY_TOPIC_PREFIX, ResponseCode
from rmq_protocol.properties import properties_text

from .held_pops import HeldPops
from .light_queues import light_names
from .pulls import HeldPulls
from .records import Draft, pack_record
from .service import Refused
from .state import BrokerState
from .store import Queue, tag_code
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
    """Stores messages.

    Args:
        has_light: Whether messages are also stored in light queues (``enableLmq``, ``enableMultiDispatch``).

    Attributes:
        light_arrived: Called with the name of a light queue in which a message was stored.
    """

    def __init__(self, state: BrokerState, held: HeldPulls, held_pops: HeldPops, *, has_light: bool = True) -> None:
        self._state = state
        self._held = held
        self._held_pops = held_pops
        self._has_light = has_light
        self.light_arrived: Callable[[str], object] = lambda name: None

    def put(self, draft: Draft) -> Place:
        """Store a draft. Create the group's retry topic again if it was deleted.

        Also raises the errors of ``append``, ``TopicTable.ensure``, ``light_names`` and ``LightQueues.queues_for``.

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
        dispatch = properties.get("INNER_MULTI_DISPATCH", "")
        names = light_names(draft.topic, dispatch) if self._has_light and dispatch.strip() else ()
        light = self._state.topics.light
        if names:
            ends = {name: str(light.max_offset(name)) for name in names if name}
            properties["INNER_MULTI_QUEUE_OFFSET"] = ",".join(ends.get(name, "") for name in names)
        encoded = utf8(properties_text(properties))
        if len(encoded) > MAX_PROPERTIES_SIZE:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
        queues = light.queues_for(tuple(ends)) if names else ()
        return Place(*self.append(topic, draft, encoded, properties.get("TAGS"), queues))

    def append(
        self, topic: Topic, draft: Draft, properties: bytes, tags: str | None, light: tuple[Queue, ...] = ()
    ) -> tuple[int, int]:
        """Store a message with these ``properties`` in the draft's queue of its topic and in light queues. Return the fields of
        its Place.

        Raises:
            ProtocolError: For values that do not fit their fields. Nothing is stored in this case.
            Refused: With code 1 if the broker has the maximum number of queues. Nothing is stored in this case.
        """
        state = self._state
        log = state.log
        queue = topic.queue(draft.queue_id)
        offset, position, now = queue.max_offset, log.end, log.now()
        record = pack_record(draft, properties, offset, position, now, state.address)
        log.append(queue, record, tag_code(tags) if tags else 0, now, light)
        if queue.waiting:
            self._held.arrived(queue)
        for each in light:
            if each.waiting:
                self._held.arrived(each)
            self.light_arrived(each.topic)
        if draft.topic in self._held_pops.topics:
            self._held_pops.arrived(draft.topic, draft.queue_id)
        return offset, position


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        remark = f"the properties have no UTF-8 form: {error.reason}; remove the lone surrogate"
        raise Refused(ResponseCode.SYSTEM_ERROR, remark) from None
