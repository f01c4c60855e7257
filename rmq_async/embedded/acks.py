"""Serves the requests that follow a pop: single acks (200051), batches of acks (200151), and changes of the invisible time
(200053).

A second ack for a message has no effect, but the broker responds with success. A change of the invisible time takes effect even
after an ack, unless the message was popped in order.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_protocol.bodies import BatchAck, BatchAckMessageRequestBody, decode_body, unpack_bits
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rmq_protocol.message import is_blank
from rmq_protocol.pop import ExtraInfo, parse_extra_info, real_topic

from .check_points import MAX_IN_FLIGHT, Handle
from .clock import Clock
from .faults import PopFaults
from .lite_acks import LiteAcks
from .ordered_pops import OrderedQueue, OrderedQueues
from .pops import ORDERED_REVIVE_QUEUE
from .server import Connection
from .service import NO_REMARK, Processor, Refused, fields_of, handles, header_of
from .state import BrokerState
from .topics import FAQ


class AckProcessor(Processor):
    """Serves acks and changes of invisible times.

    Args:
        lite: Serves the requests for messages of lite topics.

    Attributes:
        changed: Called when check points were added.
        freed: Called with a queue that ordered pops may read again.
    """

    def __init__(
        self, state: BrokerState, ordered: OrderedQueues, clock: Clock, faults: PopFaults, lite: LiteAcks | None = None
    ) -> None:
        self._state = state
        self._ordered = ordered
        self._lite = lite
        self._clock = clock
        self._faults = faults
        self.changed: Callable[[], object] = lambda: None
        self.freed: Callable[[OrderedQueue], object] = lambda queue: None

    @handles(RequestCode.ACK_MESSAGE)
    def ack(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(AckMessageRequestHeader, command)
        low, high = self._bounds(connection, header.topic, header.queueId)
        if self._lite is not None and _is_lite(header):
            self._lite.check(header)
            info = _extra_info(header.extraInfo)
            if not self._faults.take_lost_ack():
                self._lite.ack(header, info)
            return make_response(command, ResponseCode.SUCCESS)
        if not low <= header.offset <= high:
            remark = f"offset is illegal, key:{header.topic}@{header.queueId}, commit:{header.offset}, store:{low}~{high}"
            raise Refused(ResponseCode.NO_MESSAGE, remark)
        info = _extra_info(header.extraInfo)
        handle = _handle(header, info)
        if not self._faults.take_lost_ack():
            self._ack(connection, handle, header.offset, info.revive_qid)
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.BATCH_ACK_MESSAGE)
    def ack_batch(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Acknowledge many messages.

        Unknown queues and offsets below the minimum or above the maximum of their queue are ignored.
        """
        acks = decode_body(BatchAckMessageRequestBody, command.body).acks if command.body else ()
        if not acks:
            return make_response(command, ResponseCode.NO_MESSAGE)
        lost = self._faults.take_lost_ack()
        refusal: Refused | None = None
        for each in () if lost else acks:
            try:
                self._ack_queue(connection, each)
            except Refused as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(ChangeInvisibleTimeRequestHeader, command)
        empty = fields_of(ChangeInvisibleTimeResponseHeader())
        try:
            low, high = self._bounds(connection, header.topic, header.queueId)
        except Refused as refusal:
            refusal.ext_fields = empty
            raise
        lite = self._lite if _is_lite(header) else None
        if lite is not None:
            if lite.is_beyond(header):
                return make_response(command, ResponseCode.NO_MESSAGE, NO_REMARK, empty)
            answer = lite.change(header, _extra_info(header.extraInfo))
            return make_response(command, ResponseCode.SUCCESS, NO_REMARK, fields_of(answer))
        if not low <= header.offset < high:
            return make_response(command, ResponseCode.NO_MESSAGE, NO_REMARK, empty)
        info = _extra_info(header.extraInfo)
        if info.revive_qid == ORDERED_REVIVE_QUEUE:
            answer = self._change_ordered(header, info)
        else:
            answer = self._change(header, info)
        return make_response(command, ResponseCode.SUCCESS, NO_REMARK, fields_of(answer))

    def _bounds(self, connection: Connection, name: str, queue_id: int) -> tuple[int, int]:
        """Return the minimum and maximum offset of a queue.

        Raises:
            Refused: With code 17 for an unknown topic, and with code 13 for a queue id that the topic does not have.
        """
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:160]}] not exist, apply first please! \n{FAQ}")
        count = topic.config.read_queue_nums
        if not 0 <= queue_id < count:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{count}] "
                f"consumer:[/{connection.remote}]",
            )
        queue = topic.find(queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _ack(self, connection: Connection, handle: Handle, offset: int, revive_queue: int) -> None:
        if revive_queue == ORDERED_REVIVE_QUEUE:
            self._ack_ordered(connection, handle, offset)
        else:
            self._state.check_points.ack(handle, offset)

    def _ack_queue(self, connection: Connection, ack: BatchAck) -> None:
        """Acknowledge messages of one queue.

        Raises:
            Refused: With code 1 for an invalid retry flag, and with code 13 for an ordered message that the last pop did not
                take.
        """
        try:
            topic = real_topic(ack.retry, ack.topic, ack.consumer_group)
        except RemoteProtocolError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        queue = self._state.topics.find_queue(topic, ack.queue_id)
        if queue is None:
            return
        handle = Handle(ack.consumer_group, topic, ack.queue_id, ack.start_offset, ack.pop_time, ack.invisible_time)
        for bit in unpack_bits(ack.bit_set):
            if queue.min_offset <= ack.start_offset + bit <= queue.max_offset:
                self._ack(connection, handle, ack.start_offset + bit, ack.revive_queue_id)

    def _ack_ordered(self, connection: Connection, handle: Handle, offset: int) -> None:
        """Acknowledge a message of an ordered pop.

        Raises:
            Refused: With code 13 for a message that the queue's last pop did not take.
        """
        queue = OrderedQueue(handle.group, handle.topic, handle.queue_id)
        offsets = self._state.offsets
        committed = offsets.find(*queue)
        if offset < committed:
            return
        try:
            following = self._ordered.ack(queue, offset, handle.pop_time)
        except LookupError:
            key = f"{handle.topic}@{handle.group}@{handle.queue_id}"
            if self._state.check_points.single:
                key = f"{handle.group} {handle.topic} {handle.queue_id}"
            remark = f"offset is illegal, key:{key}, old:{committed}, commit:{offset}, next:-1, /{connection.remote}"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark) from None
        if following is not None:
            offsets.commit(*queue, following)
            if not self._ordered.blocked(queue, None):
                self.freed(queue)

    def _change(self, header: ChangeInvisibleTimeRequestHeader, info: ExtraInfo) -> ChangeInvisibleTimeResponseHeader:
        """Replace the check point of a message with a check point that has the new invisible time.

        If the group does not exist, only remove the old check point.

        Raises:
            Refused: With code 1 if the broker has the maximum number of messages without an ack.
        """
        points = self._state.check_points
        now = max(self._clock.now_ms(), info.pop_time + 1)  # a different pop time makes the old handle void
        self._state.check_points.ack(_handle(header, info), header.offset)
        if points.messages >= MAX_IN_FLIGHT:
            remark = f"this broker has {MAX_IN_FLIGHT} popped messages without an ack, the maximum; acknowledge some first"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        if self._state.groups.get(header.consumerGroup) is not None:
            new = Handle(header.consumerGroup, header.topic, header.queueId, header.offset, now, header.invisibleTime)
            points.add(new, [header.offset], suspended=header.suspend)
            self.changed()
        return ChangeInvisibleTimeResponseHeader(popTime=now, invisibleTime=header.invisibleTime, reviveQid=info.revive_qid)

    def _change_ordered(self, header: ChangeInvisibleTimeRequestHeader, info: ExtraInfo) -> ChangeInvisibleTimeResponseHeader:
        """Change the invisible time of an ordered message.

        Returns:
            The response header, whose ``invisibleTime`` is the time from the pop to the new end of the invisible time. The
            header is empty if the message's offset is below the committed offset.
        """
        queue = OrderedQueue(header.consumerGroup, header.topic, header.queueId)
        if header.offset < self._state.offsets.find(*queue):
            return ChangeInvisibleTimeResponseHeader()
        visible_at = self._clock.now_ms() + header.invisibleTime
        self._ordered.change(queue, header.offset, info.pop_time, visible_at)
        return ChangeInvisibleTimeResponseHeader(
            popTime=info.pop_time, invisibleTime=visible_at - info.pop_time, reviveQid=info.revive_qid
        )


def _is_lite(header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader) -> bool:
    return header.liteTopic is not None and not is_blank(header.liteTopic)


def _extra_info(text: str) -> ExtraInfo:
    """Parse the text of a handle.

    Raises:
        Refused: With code 1 for an invalid handle.
    """
    try:
        return parse_extra_info(text)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"java.lang.IllegalArgumentException: {error}") from None


def _handle(header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader, info: ExtraInfo) -> Handle:
    return Handle(header.consumerGroup, header.topic, header.queueId, info.ck_queue_offset, info.pop_time, info.invisible_time)
