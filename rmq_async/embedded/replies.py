"""Serves replies to requests between clients (324, 325). A reply is stored and then pushed (326) to the producer whose client
id is in the property REPLY_TO_CLIENT. The response to the sender reports whether that producer has accepted the reply.
"""

from __future__ import annotations

from rmq_protocol import headers
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.properties import decode_properties, properties_text

from .calls import ClientCalls, Failure
from .sends import SendMessageProcessor, send_header_of
from .server import Connection
from .service import ExtFields, Processor, Reply, fields_of, handles, without_content
from .state import REGION, BrokerState


class ReplyProcessor(Processor):
    def __init__(self, state: BrokerState, calls: ClientCalls, sends: SendMessageProcessor, reply: Reply) -> None:
        self._state = state
        self._calls = calls
        self._sends = sends
        self._reply = reply

    @handles(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    def push(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Store the reply and push it. A reply that cannot be stored is refused like any other send."""
        header = send_header_of(command)
        ext = self._sends.store(connection, header, command.body)
        ext.pop("transactionId", None)
        properties = decode_properties(header.i or "")
        client_id = properties.get("REPLY_TO_CLIENT")
        if client_id is None:
            return make_response(command, ResponseCode.SYSTEM_ERROR, "reply message properties[REPLY_TO_CLIENT] is null", ext)
        client = self._state.clients.find_producer(client_id)
        if client is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            return make_response(command, ResponseCode.SYSTEM_ERROR, remark, ext)
        request = without_content(command)
        self._calls.call(
            client.connection,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            fields_of(self._pushed(connection, header, properties)),
            command.body,
            lambda answer: self._reply(connection, request, _outcome(request, ext, client_id, answer)),
        )
        return None

    def _pushed(
        self, connection: Connection, header: headers.SendMessageRequestHeaderV2, properties: dict[str, str]
    ) -> headers.ReplyMessageRequestHeader:
        now = self._state.log.now()
        properties |= {"PUSH_REPLY_TIME": str(now), "MSG_REGION": REGION, "TRACE_ON": "true"}
        fields = {
            **fields_of(headers.send_header_v1(header)),
            "bname": None,
            "properties": properties_text(properties),
            "bornHost": connection.remote,
            "storeHost": self._state.address,
            "storeTimestamp": str(now),
        }
        return headers.from_ext(headers.ReplyMessageRequestHeader, fields)


def _outcome(command: RemotingCommand, ext: ExtFields, client_id: str, answer: RemotingCommand | Failure) -> RemotingCommand:
    if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS:
        return make_response(command, ResponseCode.SUCCESS, None, ext)
    return make_response(command, ResponseCode.SYSTEM_ERROR, f"push reply message to {client_id}fail.", ext)
