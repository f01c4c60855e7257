"""Messages that wait for their delivery: delay levels (DELAY, ``ScheduleMessageService``) and timers (TIMER_*,
``TimerMessageStore``).

As on a real broker, a waiting message is stored twice: first in a system topic with REAL_TOPIC and REAL_QID, and then, when it
is due, in its real topic. Waiting messages are therefore in the log and are deleted with the log. This module holds no
messages.

All messages in the queue of a level wait equally long, so the oldest message is due next and one offset per level is enough.
Timers are due in any order, so they are stored in a heap of numbers, with the due time in the high bits and the queue offset in
the low bits. One alarm serves levels and timers.

The recall of a timer also stores a message, with the property TIMER_DEL_UNIQKEY. It is due in the same second as the timer,
before the messages of that second.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import msgspec

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from rmq_protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader, to_ext
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.recall import RecallHandle, decode_recall_handle, encode_recall_handle
from rmq_protocol.stored import decode_messages

from .clock import Alarm, Clock
from .disk import ScheduleProgress
from .records import Draft, read_record
from .server import Connection
from .service import Processor, Refused, handles, header_of
from .state import REGION, BrokerState
from .writer import MessageWriter, Place

logger = logging.getLogger("rmq_async.embedded")

DELAY_LEVELS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Delays in seconds of the levels 1 to 18 (``messageDelayLevel``)."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
MAX_DELAY_MS: Final = 3 * 24 * 3600 * 1000
"""Maximum delay of a timer in milliseconds (``timerMaxDelaySec``)."""
PRECISION_MS: Final = 1000
"""The time of a timer is rounded up to a multiple of this number of milliseconds (``timerPrecisionMs``)."""
_RELATIVE: Final = {"TIMER_DELAY_SEC": 1000, "TIMER_DELAY_MS": 1}
_TIMERS: Final = (*_RELATIVE, "TIMER_DELIVER_MS")
DELAY_NAMES: Final = frozenset({"DELAY", *_TIMERS})
_JAVA_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_ILLEGAL_TIMER: Final = (
    f"timer message illegal, the delay time should not be bigger than the max delay {MAX_DELAY_MS}ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)
_BATCH: Final = 256
"""Number of messages of levels, and of timers, that are delivered before the event loop serves other requests."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Number of bytes of these messages after which the event loop serves other requests."""
_OFFSET_BITS: Final = 40
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_MESSAGE: Final = 1 << _OFFSET_BITS
"""Bit of a heap entry that is 1 for a message and 0 for a recall, so that a recall comes before the messages of its second."""
_DUE_SHIFT: Final = _OFFSET_BITS + 1
_RECALLS: Final = "TIMER_DEL_UNIQKEY"
_SWEEP_FROM: Final = 1024


class Schedule:
    """The messages that wait for a delay.

    Args:
        delays: The delays of the levels in seconds.
    """

    def __init__(self, state: BrokerState, writer: MessageWriter, clock: Clock, delays: Sequence[float]) -> None:
        self._state = state
        self._writer = writer
        self._clock = clock
        self._delays = [round(seconds * 1000) for seconds in delays]
        self._levels = state.topics.ensure(SCHEDULE_TOPIC, len(self._delays))
        self._timers = state.topics.ensure(TIMER_TOPIC).queue(0)
        done = state.disk.schedule
        self._next = [0] * len(self._delays)
        self._next[: len(done.levels)] = done.levels[: len(self._delays)]
        self._heap = self._waiting_timers(done)
        self._second = done.timers - 1
        """Due time of the timer that came due last. Before the first timer comes due, it is a time that no waiting timer has."""
        self._recalled: set[int] = set()
        """Hashes of the topic and the unique id of each message that was recalled in the second ``_second``."""
        self._alarm = Alarm(clock, self._ring)
        self.truncated()

    def progress(self) -> ScheduleProgress:
        """Return the progress of deliveries, as the disk stores it.

        If only some timers of a second have been delivered, all timers of that second are delivered again after a crash.
        """
        over = not self._heap or self._heap[0] >> _DUE_SHIFT > self._second
        return ScheduleProgress(tuple(self._next), self._second + over, self._timers.max_offset)

    def truncated(self) -> None:
        """Remove the waiting messages that were truncated from the end of the log."""
        self._next = [min(at, self._levels.queue(index).max_offset) for index, at in enumerate(self._next)]
        end = self._timers.max_offset
        self._heap = [entry for entry in self._heap if entry & _OFFSET_MASK < end]
        heapq.heapify(self._heap)

    def start(self) -> None:
        """Start deliveries, including messages that became due while the broker was down."""
        self._alarm.start()
        self._arm()

    def stop(self) -> None:
        self._alarm.stop()

    def put(self, draft: Draft) -> Place:
        """Store the message in its topic. If the message has a delay, store it in the topic where it waits, and set the topic
        of ``draft`` to that topic.

        Raises Refused as ``_timer_out`` and ``MessageWriter.put`` do, and with code 1 for a DELAY that is not a Java int.
        """
        properties = draft.properties
        level = _java_int(properties.get("DELAY", "0"))
        if level > 0:
            level = min(level, len(self._delays))
            for name in _TIMERS:
                properties.pop(name, None)
            properties["DELAY"] = str(level)
            _hide(draft, SCHEDULE_TOPIC, level - 1)
            place = self._writer.put(draft)
            self._alarm.by(self._due(level - 1, place.offset))
            return place
        out = self._timer_out(properties)
        if out is None:
            return self._writer.put(draft)
        properties["TIMER_OUT_MS"] = str(out)
        _hide(draft, TIMER_TOPIC, 0)
        place = self._writer.put(draft)
        self.sweep()
        kind = 0 if _RECALLS in properties else _MESSAGE
        heapq.heappush(self._heap, (out + PRECISION_MS) << _DUE_SHIFT | kind | place.offset)
        self._alarm.by(out + PRECISION_MS)
        return place

    def recall(self, topic: str, unique_id: str, when_ms: int, client: str) -> None:
        """Recall the timer messages for ``topic`` that have this id and are due in the second of ``when_ms``.

        Raises the errors of ``put``.

        Args:
            client: "ip:port" of the requesting client.
        """
        properties = {"UNIQ_KEY": unique_id, _RECALLS: unique_id, "TIMER_DELIVER_MS": str(when_ms)}
        self.put(Draft(topic, 0, b"0", properties, 0, 0, self._clock.now_ms(), client))

    def waiting(self, topic: str) -> list[MessageExt]:
        """Return the messages for ``topic`` that wait for their delay level, soonest first, with queue offset -1."""
        found: list[tuple[int, int, MessageExt]] = []
        for index, at in enumerate(self._heads()):
            queue = self._levels.queue(index)
            for offset in range(at, queue.max_offset):
                record = queue.record(offset)
                messages = () if record is None else decode_messages(record).messages
                found += [
                    (self._due(index, offset), index, self._as_delivered(message))
                    for message in messages
                    if message.properties.get("REAL_TOPIC") == topic
                ]
        return [message for _, _, message in sorted(found, key=itemgetter(0, 1))]

    def _as_delivered(self, message: MessageExt) -> MessageExt:
        properties = message.properties
        queue = MessageQueue(properties["REAL_TOPIC"], self._state.name, int(properties["REAL_QID"]))
        return msgspec.structs.replace(message, topic=queue.topic, queue=queue, queue_offset=-1)

    def sweep(self) -> None:
        """Remove the timers whose messages were deleted because of ``max_memory``, if there are many such timers."""
        oldest = self._timers.min_offset
        if len(self._heap) > _SWEEP_FROM + 2 * (self._timers.max_offset - oldest):
            self._heap = [entry for entry in self._heap if entry & _OFFSET_MASK >= oldest]
            heapq.heapify(self._heap)

    def _timer_out(self, properties: dict[str, str]) -> int | None:
        """Return the second, in epoch ms, after which the message is delivered. Return None if the message has no timer, if its
        timer has passed, or if it already has TIMER_OUT_MS.

        Raises:
            Refused: With code 13 for an invalid timer, for a timer beyond ``MAX_DELAY_MS``, and for a recall of a timer that
                has passed.
        """
        name = next((name for name in _TIMERS if name in properties), None)
        if name is None or "TIMER_OUT_MS" in properties:
            return None
        if not _JAVA_NUMBER.fullmatch(properties[name]):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL_TIMER)
        now, value = self._clock.now_ms(), int(properties[name])
        when = now + value * _RELATIVE[name] if name in _RELATIVE else value
        if when > now + MAX_DELAY_MS or (when <= now and _RECALLS in properties):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL_TIMER)
        return (when - 1) // PRECISION_MS * PRECISION_MS if when > now else None

    def _waiting_timers(self, done: ScheduleProgress) -> list[int]:
        """Return the heap entries of the timers in the log that have not been delivered.

        As on a real broker (5.5.0), timers that were added after the last save exist twice after a crash. They are in the timer
        wheel, whose file the kernel has kept, and they are added again.
        """
        found: list[int] = []
        for offset in range(self._timers.oldest, self._timers.max_offset):
            record = self._timers.record(offset)
            if record is not None:
                properties = read_record(record).properties
                due = int(properties["TIMER_OUT_MS"]) + PRECISION_MS
                if due >= done.timers:
                    entry = due << _DUE_SHIFT | (0 if _RECALLS in properties else _MESSAGE) | offset
                    found += [entry] if offset < done.entered else [entry, entry]
        return found

    # ------------------------------------------------------------------------------------------------------------ delivery

    def _ring(self) -> None:
        now = self._clock.now_ms()
        lost: list[str] = []
        room, room_bytes = _BATCH, _BATCH_BYTES
        for index, at in enumerate(self._heads()):
            queue = self._levels.queue(index)
            while room and room_bytes > 0 and at < queue.max_offset and self._due(index, at) <= now:
                record = queue.record(at)
                if record is not None:
                    self._deliver(read_record(record), {}, lost)
                    room_bytes -= len(record)
                at, room = max(at + 1, queue.min_offset), room - 1
            self._next[index] = at
        room, room_bytes = _BATCH, _BATCH_BYTES
        while room and room_bytes > 0 and self._heap and self._heap[0] >> _DUE_SHIFT <= now:
            room_bytes -= self._timer_due(heapq.heappop(self._heap), now, lost)
            room -= 1
        if lost:
            logger.warning(
                "%s: %d due messages could not be stored and are lost, last %s", self._state.name, len(lost), lost[-1]
            )
        self._arm()

    def _timer_due(self, entry: int, now: int, lost: list[str]) -> int:
        """Deliver a timer. Return the number of bytes of the message. The recalls of a second are handled before its messages."""
        if self._second != entry >> _DUE_SHIFT:
            self._second = entry >> _DUE_SHIFT
            self._recalled = set()
        offset = entry & _OFFSET_MASK
        record = self._timers.record(offset)
        if record is None:
            return 0
        draft = read_record(record)
        properties = draft.properties
        if not entry & _MESSAGE:
            self._recalled.add(hash((properties.get("REAL_TOPIC"), properties.get(_RECALLS))))
        elif not self._recalled or hash((properties["REAL_TOPIC"], properties.get("UNIQ_KEY"))) not in self._recalled:
            enqueued = self._timers.stored_ms(offset)
            self._deliver(draft, {"TIMER_ENQUEUE_MS": str(enqueued), "TIMER_DEQUEUE_MS": str(now)}, lost)
        return len(record)

    def _deliver(self, draft: Draft, added: dict[str, str], lost: list[str]) -> None:
        """Store a due message in its real topic. If that is impossible, append the topic and the reason to ``lost``."""
        draft.topic = draft.properties["REAL_TOPIC"]
        draft.queue_id = int(draft.properties["REAL_QID"])
        plain = draft.properties
        draft.properties = {**plain, **added}
        try:
            try:
                self._writer.put(draft)
            except Refused as refusal:
                if not added or refusal.code != ResponseCode.MESSAGE_ILLEGAL:
                    raise
                draft.properties = plain  # with the added times, the properties are too large
                self._writer.put(draft)
        except (Refused, ProtocolError) as error:
            lost.append(f"{draft.topic}: {error}")

    def _arm(self) -> None:
        """Set the alarm to the next due time."""
        waiting = [self._due(index, at) for index, at in enumerate(self._heads()) if at < self._levels.queue(index).max_offset]
        if self._heap:
            waiting.append(self._heap[0] >> _DUE_SHIFT)
        if waiting:
            self._alarm.by(min(waiting))

    def _heads(self) -> list[int]:
        """Return, for each level, the offset of its oldest waiting message, or the maximum offset if no message waits."""
        return [max(at, self._levels.queue(index).min_offset) for index, at in enumerate(self._next)]

    def _due(self, index: int, offset: int) -> int:
        stored = self._levels.queue(index).stored_ms(offset)
        return 0 if stored is None else stored + self._delays[index]


def _hide(draft: Draft, topic: str, queue_id: int) -> None:
    draft.properties["REAL_TOPIC"] = draft.topic
    draft.properties["REAL_QID"] = str(draft.queue_id)
    draft.topic, draft.queue_id = topic, queue_id


def _java_int(text: str) -> int:
    """Parse the text of a Java int.

    Raises:
        Refused: With code 1 for any other text, because a real broker responds with Java's exception.
    """
    if not _JAVA_NUMBER.fullmatch(text) or not -0x80000000 <= int(text) <= 0x7FFFFFFF:
        raise Refused(ResponseCode.SYSTEM_ERROR, f'java.lang.NumberFormatException: For input string: "{text[:60]}"')
    return int(text)


# RECALL_MESSAGE (370) recalls a timer message before its delivery. The client sends the handle from the response to the send.
#
# A stock broker refuses the request (``recallMessageEnable`` is false); this broker serves it. As on a real broker, the
# response is success even if the message does not exist.


def recall_handle(topic: str, broker: str, out_ms: int, unique_id: str) -> str | None:
    """Return the recall handle of a timer message. Return None for a unique id that a handle cannot contain.

    Args:
        out_ms: TIMER_OUT_MS of the message.
    """
    try:
        return encode_recall_handle(RecallHandle(topic, broker, str(out_ms + 1), unique_id))
    except LocalProtocolError:
        return None


class RecallProcessor(Processor):
    def __init__(self, state: BrokerState, schedule: Schedule) -> None:
        self._state = state
        self._schedule = schedule

    @handles(RequestCode.RECALL_MESSAGE)
    def recall(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(RecallMessageRequestHeader, command)
        ext: dict[str, str | None] = {"MSG_REGION": REGION}
        if self._state.topics.get(header.topic) is None:
            remark = f"recall failed, the topic[{header.topic[:160]}] not exist"
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark, ext)
        try:
            handle = decode_recall_handle(header.recallHandle)
        except RemoteProtocolError:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", ext) from None
        now, due = self._state.log.now(), handle.timestamp
        left = int(due) - now if due.isascii() and due.isdecimal() and len(due) < 19 else -1
        if handle.topic != header.topic:
            remark = "recall failed, topic not match"
        elif handle.broker_name != self._state.name:
            remark = "recall failed, broker service not available"
        elif not 0 < left < MAX_DELAY_MS:
            remark = "recall failed, timestamp invalid"
        else:
            self._schedule.recall(handle.topic, handle.message_id, int(due), connection.remote)
            reply = to_ext(RecallMessageResponseHeader(msgId=handle.message_id))
            return make_response(command, ResponseCode.SUCCESS, None, {**reply, **ext})
        raise Refused(ResponseCode.ILLEGAL_OPERATION, remark, ext)
