"""Serves queries of the offsets and times of queues (29-32), and of messages by physical offset (33)."""

from __future__ import annotations

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import (
    BoundaryType,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)

from .server import Connection
from .service import Handler, Refused, header_of
from .state import BrokerState

__all__ = ["QueryProcessor"]


class QueryProcessor:
    """Serves queries of offsets and messages.

    The offsets of a queue that was never used, or does not exist, are 0, as on a real broker.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
        }

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
