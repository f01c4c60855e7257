"""Relays requests of admins to clients: running information (307), consume a message now (309)."""

from __future__ import annotations

from typing import Final

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import ProtocolError
from rmq_protocol.headers import ConsumeMessageDirectlyResultRequestHeader, GetConsumerRunningInfoRequestHeader
from rmq_protocol.ids import unpack_offset_id

from .calls import ClientCalls, Failure
from .server import Connection
from .service import ExtFields, Handler, Refused, Reply, header_of, without_content
from .state import BrokerState

__all__ = ["RelayProcessor"]

_FIRST_VERSION: Final = 62
"""``MQVersion.V3_1_8_SNAPSHOT``: older clients do not know these requests."""


class RelayProcessor:
    """Passes the client's response to the requester as it is, when it arrives."""

    def __init__(self, state: BrokerState, calls: ClientCalls, reply: Reply) -> None:
        self._state = state
        self._calls = calls
        self._reply = reply

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def running_info(self, connection: Connection, command: RemotingCommand) -> None:
        header = header_of(GetConsumerRunningInfoRequestHeader, command)
        self._pass_on(connection, command, header.consumerGroup, header.clientId, command.ext_fields or {}, command.body)

    def consume_directly(self, connection: Connection, command: RemotingCommand) -> None:
        header = header_of(ConsumeMessageDirectlyResultRequestHeader, command)
        ext = {**(command.ext_fields or {}), "brokerName": self._state.name}
        topic = self._state.topics.get(header.topic or "")
        if topic is not None:
            ext["topicSysFlag"] = str(topic.config.topic_sys_flag)
        group = self._state.groups.find(header.consumerGroup)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        record = self._record(header.msgId or "")
        self._pass_on(connection, command, header.consumerGroup, header.clientId or "", ext, record)

    def _record(self, msg_id: str) -> bytes:
        try:
            offset = unpack_offset_id(msg_id).offset
        except ProtocolError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        found = self._state.log.view(offset)
        if found is None or found[1].broker_name != self._state.name:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return found[0]

    def _pass_on(
        self, connection: Connection, command: RemotingCommand, group: str, client_id: str, ext: ExtFields, body: bytes
    ) -> None:
        consumers = self._state.clients.consumers.get(group)
        client = None if consumers is None else consumers.members.get(client_id)
        if client is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group[:160]}> <{client_id[:160]}> not online")
        if client.version < _FIRST_VERSION:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
            )

        request = without_content(command)

        def answered(answer: RemotingCommand | Failure) -> None:
            if isinstance(answer, RemotingCommand):
                response = make_response(request, answer.code, answer.remark, answer.ext_fields, answer.body)
            elif answer is Failure.TIMEOUT:
                remark = f"consumer <{group}> <{client_id}> Timeout: {answer.value}"
                response = make_response(request, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
            else:
                remark = f"invoke consumer <{group}> <{client_id}> Exception: {answer.value}"
                response = make_response(request, ResponseCode.SYSTEM_ERROR, remark)
            self._reply(connection, request, response)

        self._calls.call(client.connection, command.code, ext, body, answered)
