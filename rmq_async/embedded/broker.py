"""One embedded broker: its state, the processors that serve it, and what it waits for of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode
from rmq_protocol.frame import Frame

from .assignments import AssignmentProcessor
from .calls import ClientCalls
from .clock import Clock
from .connections import ClientProcessor
from .faults import FailureScript
from .groups import GroupProcessor
from .locks import LockProcessor
from .lookups import LookupProcessor
from .progress import ProgressProcessor
from .pulls import HeldPulls, PullMessageProcessor
from .queries import QueryProcessor
from .recalls import RecallProcessor
from .relay import RelayProcessor
from .replies import ReplyProcessor
from .schedule import Schedule
from .send_back import SendBackProcessor
from .sends import SendMessageProcessor
from .server import Connection, Parts
from .service import BaseService, not_supported
from .state import BrokerState
from .stats import StatisticsProcessor
from .store import CommitLog
from .topic_admin import TopicProcessor
from .transactions import CheckSettings, Transactions
from .writer import MessageWriter

__all__ = ["Broker", "BrokerSettings"]

_JSON: Final = 0
_FIRST_PORT_ONLY: Final = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})
"""What the second port does not serve, so that those who read are not in the way of those who send."""


class BrokerSettings(NamedTuple):
    """Settings that the brokers of one server share; see ``EmbeddedRocketMQ``. Times are seconds."""

    clock: Clock
    auto_create_topics: bool
    delay_levels: Sequence[float]
    checks: CheckSettings


class Broker(BaseService):
    def __init__(self, name: str, log: CommitLog, failures: FailureScript, settings: BrokerSettings) -> None:
        super().__init__(name, failures)
        self.state = BrokerState(name, log, auto_create_topics=settings.auto_create_topics)
        self.held = HeldPulls(self._reply)
        self.calls = ClientCalls()
        self._clients = ClientProcessor(self.state, self.calls)
        writer = MessageWriter(self.state, self.held)
        self._schedule = Schedule(self.state, writer, settings.clock, settings.delay_levels)
        self._transactions = Transactions(
            self.state,
            writer,
            self._schedule,
            self.calls,
            settings.clock,
            settings.checks,
        )
        self._lookups = LookupProcessor(self.state, self._reply)
        send_back = SendBackProcessor(self.state, self._schedule)
        self._sends = SendMessageProcessor(self.state, writer, self._schedule, self._transactions, send_back)
        self._fast_send = self._sends.fast
        self.handlers = {
            **self._clients.handlers(),
            **self._sends.handlers(),
            **send_back.handlers(),
            **self._transactions.handlers(),
            **RecallProcessor(self.state, self._schedule).handlers(),
            **self._lookups.handlers(),
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
        """See ``Listener.start``; brokers have a second port."""
        await self.listener.start(host, port, second=True)
        self.state.address = self.listener.address()
        self._sends.listening()
        self._schedule.start()
        self._transactions.start()

    async def stop(self) -> None:
        self._schedule.stop()
        self._transactions.stop()
        self._forget_waiting()
        await self.listener.stop()
        self._forget_waiting()

    def _forget_waiting(self) -> None:
        self.held.close()
        self.calls.close()
        self._clients.close()
        self._lookups.close()

    def serve(self, connection: Connection, frame: Frame) -> Parts | None:
        if frame.body and frame.serialize_type == _JSON and not self.failures.pending:
            served = self._fast_send(connection, frame)
            if served is not None:
                code, answer = served
                self.requests[code] += 1
                return None if answer is None else (answer,)
        return super().serve(connection, frame)

    def respond(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        if connection.second and command.code in _FIRST_PORT_ONLY:
            return not_supported(command)
        return super().respond(connection, command)

    def disconnected(self, connection: Connection) -> None:
        self.held.disconnected(connection)
        self.calls.disconnected(connection)
        self.state.clients.disconnected(connection)

    def resumed(self, connection: Connection) -> None:
        self.held.resumed(connection)

    def answered(self, connection: Connection, response: RemotingCommand) -> None:
        self.calls.answered(connection, response)

    def tick(self) -> None:
        self.state.clients.expire()
        self.state.locks.expire()
        self._schedule.sweep()

    def _reply(self, connection: Connection, command: RemotingCommand, response: RemotingCommand) -> None:
        """The response to a request that was not answered at once; lost on a peer that does not read."""
        if not command.is_oneway and not connection.congested:
            connection.send(self.encode(command, response))
