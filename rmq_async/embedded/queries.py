"""Offsets, times and single messages (14, 15, 29-33), and topics (17): the small requests of a broker."""

from __future__ import annotations

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import (
    BoundaryType,
    CreateTopicRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)

from .server import Connection
from .service import Handler, Refused, header_of
from .state import BrokerState

__all__ = ["QueryProcessor"]


class QueryProcessor:
    """A queue that was never written has offsets 0; so has one that does not exist, as on a real broker."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create_topic,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
        }

    def consumer_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(QueryConsumerOffsetRequestHeader, command)
        offset = self._state.offsets.get((header.consumerGroup, header.topic, header.queueId), -1)
        if offset < 0:
            queue = self._state.topics.find_queue(header.topic, header.queueId)
            if header.setZeroIfNotFound is False:
                raise Refused(ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first", {})
            if queue is None or queue.min_offset > 0 or queue.max_offset == 0:
                raise Refused(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first", {}
                )
            offset = 0
        return _offset(command, offset)

    def update_consumer_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(UpdateConsumerOffsetRequestHeader, command)
        self._state.use_group(header.consumerGroup)
        if self._state.topics.get(header.topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!", {})
        self._state.commit(header.consumerGroup, header.topic, header.queueId, header.commitOffset)
        return make_response(command, ResponseCode.SUCCESS, None, {})

    def create_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._state.topics.create(header_of(CreateTopicRequestHeader, command))
        return make_response(command, ResponseCode.SUCCESS)

    def search_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(SearchOffsetRequestHeader, command)
        queue = self._state.topics.find_queue(header.topic, header.queueId)
        if queue is None or queue.max_offset == queue.min_offset:
            return _offset(command, queue.min_offset if queue else 0)
        return _offset(command, queue.offset_at(header.timestamp, upper=header.boundaryType is BoundaryType.UPPER))

    def max_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(GetMaxOffsetRequestHeader, command)
        queue = self._state.topics.find_queue(header.topic, header.queueId)
        return _offset(command, queue.max_offset if queue else 0)

    def min_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(GetMinOffsetRequestHeader, command)
        queue = self._state.topics.find_queue(header.topic, header.queueId)
        return _offset(command, queue.min_offset if queue else 0)

    def earliest_store_time(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(GetMinOffsetRequestHeader, command)
        queue = self._state.topics.find_queue(header.topic, header.queueId)
        stored_ms = queue.stored_ms(queue.min_offset) if queue else None
        ext: dict[str, str | None] = {"timestamp": str(-1 if stored_ms is None else stored_ms)}
        return make_response(command, ResponseCode.SUCCESS, None, ext)

    def view_message(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        offset = header_of(ViewMessageRequestHeader, command).offset
        found = self._state.log.view(offset)
        if found is None or found[1].broker_name != self._state.name:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return make_response(command, ResponseCode.SUCCESS, body=found[0])


def _offset(command: RemotingCommand, offset: int) -> RemotingCommand:
    return make_response(command, ResponseCode.SUCCESS, None, {"offset": str(offset)})
