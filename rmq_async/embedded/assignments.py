"""Queues allocated to consumers by the broker (400): the strategies AVG and AVG_BY_CIRCLE over the queues of all brokers."""

from __future__ import annotations

from typing import Final

from rmq_protocol.allocation import allocate_averagely, allocate_by_circle
from rmq_protocol.bodies import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    decode_body,
    encode_body,
)
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import Perm, RequestCode, ResponseCode
from rmq_protocol.heartbeat import MessageModel
from rmq_protocol.message import MessageQueue

from .server import Connection
from .service import Handler
from .state import BrokerState

__all__ = ["AssignmentProcessor", "allocate"]

_LEAVE_AS_IT_IS: Final = b"{}"
"""Unlike an empty list it makes the client keep its queues."""
_STRATEGIES: Final = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}


class AssignmentProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_ASSIGNMENT: self.assign}

    def assign(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        request = decode_body(QueryAssignmentRequestBody, command.body)
        queues: list[MessageQueue] | None = self._queues(request.topic)
        if queues and request.message_model == MessageModel.CLUSTERING:
            group = self._state.clients.consumers.get(request.consumer_group)
            clients = [] if group is None else sorted(group.ids())
            queues = allocate(request.strategy_name or "", queues, clients, request.client_id) if clients else None
        if not queues and queues != []:
            return make_response(command, ResponseCode.SUCCESS, body=_LEAVE_AS_IT_IS)
        body = QueryAssignmentResponseBody(tuple(MessageQueueAssignment(queue) for queue in queues or ()))
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(body))

    def _queues(self, name: str) -> list[MessageQueue] | None:
        """All readable ones; None for a topic that no broker has."""
        found: list[MessageQueue] | None = None
        for broker in self._state.peers:
            topic = broker.topics.get(name)
            if topic is None:
                continue
            count = topic.config.read_queue_nums if topic.config.perm & Perm.READ else 0
            found = (found or []) + [MessageQueue(name, broker.name, queue_id) for queue_id in range(count)]
        return found


def allocate(strategy: str, queues: list[MessageQueue], clients: list[str], client_id: str) -> list[MessageQueue] | None:
    """The client's share of ``queues``, both in the order all use; None for a strategy that is not known."""
    share = _STRATEGIES.get(strategy)
    return None if share is None else list(share(client_id, queues, clients))
