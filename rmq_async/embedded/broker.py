"""One embedded broker: its state, the processors that serve it, and the heartbeats of its clients."""

from __future__ import annotations

from typing import Final

from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, RequestCode, ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.frame import Frame
from rmq_protocol.headers import UnregisterClientRequestHeader, from_ext
from rmq_protocol.heartbeat import IS_SUB_CHANGE, IS_SUPPORT_HEART_BEAT_V2, decode_heartbeat

from .faults import FailureScript
from .pulls import HeldPulls, PullMessageProcessor
from .queries import QueryProcessor
from .sends import SendMessageProcessor
from .server import Connection, Parts
from .service import BaseService, Refused
from .state import BrokerState
from .store import CommitLog

__all__ = ["Broker"]

_JSON: Final = 0


class Broker(BaseService):
    def __init__(self, name: str, log: CommitLog, failures: FailureScript, *, auto_create_topics: bool) -> None:
        super().__init__(name, failures)
        self.state = BrokerState(name, log, auto_create_topics=auto_create_topics)
        self.held = HeldPulls(self._reply)
        self._sends = SendMessageProcessor(self.state, self.held)
        self._fast_send = self._sends.fast
        self.handlers = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            **self._sends.handlers(),
            **PullMessageProcessor(self.state, self.held).handlers(),
            **QueryProcessor(self.state).handlers(),
        }

    async def start(self, host: str, port: int) -> None:
        """See ``Listener.start``."""
        await self.listener.start(host, port)
        self.state.address = self.listener.address()
        self._sends.listening()

    async def stop(self) -> None:
        self.held.close()
        await self.listener.stop()
        self.held.close()

    def serve(self, connection: Connection, frame: Frame) -> Parts | None:
        if frame.body and frame.serialize_type == _JSON and not self.failures.pending:
            served = self._fast_send(connection, frame)
            if served is not None:
                code, answer = served
                self.requests[code] += 1
                return None if answer is None else (answer,)
        return super().serve(connection, frame)

    def disconnected(self, connection: Connection) -> None:
        self.held.disconnected(connection)
        self.state.clients.disconnected(connection)

    def _reply(self, connection: Connection, command: RemotingCommand, response: RemotingCommand) -> None:
        connection.send(self.encode(command, response))

    def _heartbeat(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            data = decode_heartbeat(command.body)
        except RemoteProtocolError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        state, fingerprint = self.state, data.heartbeat_fingerprint
        changed = False
        for consumer in data.consumer_data_set:
            group = consumer.group_name
            try:
                state.use_group(group)
            except Refused:
                continue
            changed |= state.clients.fingerprint_changed(group, fingerprint)
            state.topics.ensure(RETRY_TOPIC_PREFIX + group)
            state.clients.add_consumer(
                consumer, data.client_id, connection, without_subscriptions=data.without_sub and fingerprint != 0
            )
        for producer in data.producer_data_set:
            state.clients.add_producer(producer.group_name, data.client_id, connection)
        ext: dict[str, str | None] = {
            IS_SUPPORT_HEART_BEAT_V2: "true",
            IS_SUB_CHANGE: "true" if changed or not fingerprint else "false",
        }
        return make_response(command, ResponseCode.SUCCESS, None, ext)

    def _unregister(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = from_ext(UnregisterClientRequestHeader, command.ext_fields, lenient=True)
        if header.producerGroup is not None:
            self.state.clients.remove_producer(header.producerGroup, header.clientID)
        if header.consumerGroup is not None:
            self.state.clients.remove_consumer(header.consumerGroup, header.clientID)
        return make_response(command, ResponseCode.SUCCESS, None, {})
