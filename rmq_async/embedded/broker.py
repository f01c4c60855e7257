"""One embedded broker: its state, the processors that serve it, and what it waits for of its clients."""

from __future__ import annotations

from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.frame import Frame

from .assignments import AssignmentProcessor
from .calls import ClientCalls
from .connections import ClientProcessor
from .faults import FailureScript
from .groups import GroupProcessor
from .locks import LockProcessor
from .progress import ProgressProcessor
from .pulls import HeldPulls, PullMessageProcessor
from .queries import QueryProcessor
from .relay import RelayProcessor
from .replies import ReplyProcessor
from .sends import SendMessageProcessor
from .server import Connection, Parts
from .service import BaseService
from .state import BrokerState
from .stats import StatisticsProcessor
from .store import CommitLog
from .topic_admin import TopicProcessor

__all__ = ["Broker"]

_JSON: Final = 0


class Broker(BaseService):
    def __init__(self, name: str, log: CommitLog, failures: FailureScript, *, auto_create_topics: bool) -> None:
        super().__init__(name, failures)
        self.state = BrokerState(name, log, auto_create_topics=auto_create_topics)
        self.held = HeldPulls(self._reply)
        self.calls = ClientCalls()
        self._clients = ClientProcessor(self.state, self.calls)
        self._sends = SendMessageProcessor(self.state, self.held)
        self._fast_send = self._sends.fast
        self.handlers = {
            **self._clients.handlers(),
            **self._sends.handlers(),
            **ReplyProcessor(self.state, self.calls, self._sends, self._reply).handlers(),
            **PullMessageProcessor(self.state, self.held).handlers(),
            **QueryProcessor(self.state).handlers(),
            **ProgressProcessor(self.state).handlers(),
            **GroupProcessor(self.state.groups, self.state.offsets).handlers(),
            **LockProcessor(self.state.locks).handlers(),
            **AssignmentProcessor(self.state).handlers(),
            **TopicProcessor(self.state, self.held).handlers(),
            **StatisticsProcessor(self.state).handlers(),
            **RelayProcessor(self.state, self.calls, self._reply).handlers(),
        }

    async def start(self, host: str, port: int) -> None:
        """See ``Listener.start``."""
        await self.listener.start(host, port)
        self.state.address = self.listener.address()
        self._sends.listening()

    async def stop(self) -> None:
        self._forget_waiting()
        await self.listener.stop()
        self._forget_waiting()

    def _forget_waiting(self) -> None:
        self.held.close()
        self.calls.close()
        self._clients.close()

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
        self.calls.disconnected(connection)
        self.state.clients.disconnected(connection)

    def answered(self, connection: Connection, response: RemotingCommand) -> None:
        self.calls.answered(connection, response)

    def tick(self) -> None:
        self.state.clients.expire()
        self.state.locks.expire()

    def _reply(self, connection: Connection, command: RemotingCommand, response: RemotingCommand) -> None:
        """The response to a request that was not answered at once."""
        if not command.is_oneway:
            connection.send(self.encode(command, response))
