"""Relays requests of admins to clients: requests for running information (307), requests to consume a message now (309), and
requests for offsets in memory (223, which clients receive as 221).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from rmq_protocol import headers
from rmq_protocol.bodies import GetConsumerStatusBody, decode_body, encode_body
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.errors import ProtocolError
from rmq_protocol.ids import unpack_offset_id
from rmq_protocol.message import MessageQueue

from .calls import ClientCalls, Failure
from .server import Connection
from .service import ExtFields, Processor, Refused, Reply, handles, header_of, without_content
from .state import BrokerState

_FIRST_VERSION: Final = 62
"""``MQVersion.V3_1_8_SNAPSHOT``. Older clients do not know these requests."""


class RelayProcessor(Processor):
    """Relays requests to clients.

    A client's response to 307 or 309 is passed to the requester unchanged when it arrives. The responses to 221 are merged into
    one.
    """

    def __init__(self, state: BrokerState, calls: ClientCalls, reply: Reply) -> None:
        self._state = state
        self._calls = calls
        self._reply = reply

    @handles(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, connection: Connection, command: RemotingCommand) -> None:
        header = header_of(headers.GetConsumerRunningInfoRequestHeader, command)
        self._pass_on(connection, command, header.consumerGroup, header.clientId, command.ext_fields or {}, command.body)

    @handles(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, connection: Connection, command: RemotingCommand) -> None:
        header = header_of(headers.ConsumeMessageDirectlyResultRequestHeader, command)
        ext = {**(command.ext_fields or {}), "brokerName": self._state.name}
        topic = self._state.topics.get(header.topic or "")
        if topic is not None:
            ext["topicSysFlag"] = str(topic.config.topic_sys_flag)
        group = self._state.groups.find(header.consumerGroup)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        record = self._record(header.msgId or "")
        self._pass_on(connection, command, header.consumerGroup, header.clientId or "", ext, record)

    @handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def consumer_status(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Send the request to all members of the group, or to the member whose id is ``clientAddr``, and merge their responses."""
        header = header_of(headers.GetConsumerStatusRequestHeader, command)
        group = self._state.clients.consumers.get(header.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group[:160]}]"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        asked = [client for client in group.members.values() if header.clientAddr in (None, "", client.client_id)]
        request, table, left = without_content(command), dict[str, dict[MessageQueue, int]](), len(asked)

        def response() -> RemotingCommand:
            body = encode_body(GetConsumerStatusBody(consumer_table=table), standard=False)
            return make_response(request, ResponseCode.SUCCESS, body=body)

        def answered(client_id: str, answer: RemotingCommand | Failure) -> None:
            nonlocal left
            left -= 1
            if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS and answer.body:
                with suppress(ProtocolError):
                    table[client_id] = decode_body(GetConsumerStatusBody, answer.body).message_queue_table
            if not left:
                self._reply(connection, request, response())

        ext = {"topic": header.topic, "group": header.group}
        for client in asked:
            on_answer = partial(answered, client.client_id)
            self._calls.call(client.connection, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext, b"", on_answer)
        return None if asked else response()

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
        client = None if consumers is None else consumers.find(client_id)
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
