"""Serves queries, commits and resets of the committed offsets of groups (14, 15, 43, 222)."""

from __future__ import annotations

from rmq_protocol import bodies, headers
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import LanguageCode, RequestCode, ResponseCode
from rmq_protocol.lite import lmq_name
from rmq_protocol.message import MessageQueue, is_blank

from .calls import ClientCalls
from .faults import Gate
from .server import Connection
from .service import Processor, Refused, handles, header_of
from .state import BrokerState


class ProgressProcessor(Processor):
    """Serves requests about the offsets of groups.

    Args:
        by_server: Whether resets wait at the broker (``useServerSideResetOffset``). If False, resets are sent to the members.
        gate: The gate of the server. While it serves requests in random order, concurrent first commits of a group may be lost,
            as in the threads of a real broker.
    """

    def __init__(self, state: BrokerState, calls: ClientCalls, *, by_server: bool = True, gate: Gate | None = None) -> None:
        self._state = state
        self._calls = calls
        self._by_server = by_server
        self._gate = Gate() if gate is None else gate
        self._first = ("", "", -1)
        """Group and topic of the last commit that created a table of offsets, and the value of ``Gate.turn`` when it arrived."""

    @handles(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the committed offset.

        For a group without a committed offset, return 0 if the queue was used, its minimum offset is 0 and the request does not
        exclude that (``setZeroIfNotFound`` false). Otherwise, respond with code 22.
        """
        header = header_of(headers.QueryConsumerOffsetRequestHeader, command)
        offset = self._state.offsets.find(header.consumerGroup, header.topic, header.queueId)
        if offset < 0:
            queue = self._state.topics.find_queue(header.topic, header.queueId)
            if header.setZeroIfNotFound is False:
                raise Refused(ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first", {})
            if queue is None or queue.min_offset > 0 or queue.max_offset == 0:
                raise Refused(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first", {}
                )
            offset = 0
        return make_response(command, ResponseCode.SUCCESS, None, {"offset": str(offset)})

    @handles(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.UpdateConsumerOffsetRequestHeader, command)
        group, topic = header.consumerGroup, header.topic
        if self._state.groups.get(group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group[:160]} not exist!", {})
        if self._state.topics.get(topic) is None and not self._state.topics.light.knows(topic):
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic[:160]} not exist!", {})
        if self._loses(group, topic, header.queueId):
            return make_response(command, ResponseCode.SUCCESS)
        taken = self._state.offsets.commit(group, topic, header.queueId, header.commitOffset)
        return make_response(command, ResponseCode.SUCCESS, None if taken else "Offset has been previously reset", {})

    def _loses(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether the commit is lost, as may happen on a real broker.

        If two concurrent commits find no table of the group's offsets in the topic, each of them creates a table, and one table
        replaces the other (``ConsumerOffsetManager.commitOffset``).
        """
        if self._gate.chance is None:
            return False
        this = (group, topic, self._gate.turn)
        if topic not in self._state.offsets.topics_of(group):
            self._first = this
            return False
        is_new = self._state.offsets.find(group, topic, queue_id) < 0
        return is_new and self._first == this and self._gate.chance.random() < 0.5

    @handles(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def all(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        body = bodies.encode_body(bodies.ConsumerOffsetSerializeWrapper(self._state.offsets.all()), standard=False)
        return make_response(command, ResponseCode.SUCCESS, body=body)

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Reset the group's offsets, either at this broker or through the members."""
        header = header_of(headers.ResetOffsetRequestHeader, command)
        topic = self._state.topics.get(header.topic)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic[:160]} does not exist")
        if not self._by_server:
            return self._reset_members(header, command, topic.config.write_queue_nums)
        if self._state.groups.get(header.group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group[:160]} does not exist")
        if header.queueId < 0:
            offsets = {queue_id: self._offset_at(header, queue_id) for queue_id in range(topic.config.read_queue_nums)}
        else:
            offsets = {header.queueId: self._target(header)}
        if not offsets:
            raise Refused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in offsets.items():
            self._state.offsets.reset(header.group, header.topic, queue_id, offset)
        table = {MessageQueue(header.topic, self._state.name, queue_id): offset for queue_id, offset in offsets.items()}
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(bodies.ResetOffsetBody(table)))

    def _reset_members(
        self, header: headers.ResetOffsetRequestHeader, command: RemotingCommand, queues: int
    ) -> RemotingCommand:
        """Send the offsets of all queues to the members (220), as brokers of 4.9 do.

        Raises:
            Refused: With code 1 if the group has no committed offset in a queue; with code 206 if the group has no members.
        """
        table: dict[MessageQueue, int] = {}
        for queue_id in range(queues):
            committed = self._state.offsets.find(header.group, header.topic, queue_id)
            if committed < 0:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group[:160]}> not exist")
            offset = self._offset_at(header, queue_id)
            forced = header.isForce or offset < committed
            table[MessageQueue(header.topic, self._state.name, queue_id)] = offset if forced else committed
        members = self._state.clients.consumers.get(header.group)
        if members is None:
            where = f"Group: {header.group[:160]} Topic: {header.topic} Timestamp: {header.timestamp}"
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"Consumer not online, so can not reset offset, {where}")
        listed = tuple(bodies.MessageQueueForC(*queue, offset) for queue, offset in table.items())
        body = bodies.encode_body(
            bodies.ResetOffsetBodyForC(listed) if command.language == LanguageCode.CPP else bodies.ResetOffsetBody(table)
        )
        ext = {"group": header.group, "topic": header.topic, "timestamp": str(header.timestamp), "isForce": "false"}
        for connection in dict.fromkeys(member.connection for member in members.members.values()):
            self._calls.oneway(connection, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(bodies.ResetOffsetBody(table)))

    def _target(self, header: headers.ResetOffsetRequestHeader) -> int:
        if header.offset is None or header.offset == -1:
            return self._offset_at(header, header.queueId)
        queue = self._state.topics.find_queue(header.topic, header.queueId)
        low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
        if not low <= header.offset <= high + 1:
            remark = f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        return header.offset

    def _offset_at(self, header: headers.ResetOffsetRequestHeader, queue_id: int) -> int:
        queue = self._state.topics.find_queue(header.topic, queue_id)
        if queue is None:
            return 0
        return queue.max_offset if header.timestamp < 0 else queue.offset_at(header.timestamp, upper=False)


# Queries of the offsets and times of queues (29-32), and of messages by physical offset (33).


class QueryProcessor(Processor):
    """Serves queries of offsets and messages.

    The offsets of a queue that was never used, or does not exist, are 0, as on a real broker.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    @handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.SearchOffsetRequestHeader, command)
        lite = header.liteTopic is not None and not is_blank(header.liteTopic)
        topic = lmq_name(header.topic, header.liteTopic or "") if lite else header.topic
        queue = self._state.topics.find_queue(topic, header.queueId)
        if queue is None or queue.max_offset == queue.min_offset:
            return _offset(command, queue.min_offset if queue else 0)
        return _offset(command, queue.offset_at(header.timestamp, upper=header.boundaryType is headers.BoundaryType.UPPER))

    @handles(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.GetMaxOffsetRequestHeader, command)
        queue = self._state.topics.find_queue(header.topic, header.queueId)
        return _offset(command, queue.max_offset if queue else 0)

    @handles(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.GetMinOffsetRequestHeader, command)
        queue = self._state.topics.find_queue(header.topic, header.queueId)
        return _offset(command, queue.min_offset if queue else 0)

    @handles(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_store_time(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.GetMinOffsetRequestHeader, command)
        queue = self._state.topics.find_queue(header.topic, header.queueId)
        stored_ms = queue.stored_ms(queue.min_offset) if queue else None
        ext: dict[str, str | None] = {"timestamp": str(-1 if stored_ms is None else stored_ms)}
        return make_response(command, ResponseCode.SUCCESS, None, ext)

    @handles(RequestCode.VIEW_MESSAGE_BY_ID)
    def view_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        offset = header_of(headers.ViewMessageRequestHeader, command).offset
        found = self._state.log.view(offset)
        if found is None or found[1].broker_name != self._state.name:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return make_response(command, ResponseCode.SUCCESS, body=found[0])


def _offset(command: RemotingCommand, offset: int) -> RemotingCommand:
    return make_response(command, ResponseCode.SUCCESS, None, {"offset": str(offset)})
