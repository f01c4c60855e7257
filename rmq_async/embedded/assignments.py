"""Allocates queues to consumers at the broker (request code 400), with the strategies AVG and AVG_BY_CIRCLE over the queues of
all brokers. The module also serves the requests that set (401) and list (402) the mode of a topic and group, pull or pop.
"""

from __future__ import annotations

from typing import Final

from rmq_protocol import bodies
from rmq_protocol.allocation import allocate_averagely, allocate_by_circle
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, Perm, RequestCode, ResponseCode
from rmq_protocol.heartbeat import MessageModel
from rmq_protocol.message import MessageQueue

from .held_pops import ANY_QUEUE
from .server import Connection
from .service import Processor, Refused, handles
from .state import BrokerState

MAX_MODES: Final = 10_000
PULL: Final = "PULL"
POP: Final = "POP"
_LEAVE_AS_IT_IS: Final = b"{}"
"""The body of a response that makes the client keep its queues. An empty list would make the client release them."""
_STRATEGIES: Final = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}


class AssignmentProcessor(Processor):
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    @handles(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        request = bodies.decode_body(bodies.SetMessageRequestModeRequestBody, command.body)
        topic, group, modes = request.topic, request.consumer_group, self._state.disk.request_modes
        if topic.startswith(RETRY_TOPIC_PREFIX):
            raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._state.topics.get(topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:160]}] not exist")
        if self._state.groups.find(group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if (topic, group) not in modes and len(modes) >= MAX_MODES:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"this broker has {MAX_MODES} modes, the maximum; set modes for fewer groups"
            )
        modes[topic, group] = (POP if request.mode == POP else PULL, request.pop_share_queue_num)
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def all(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        table: dict[str, dict[str, bodies.SetMessageRequestModeRequestBody]] = {}
        for (topic, group), (mode, share) in self._state.disk.request_modes.items():
            table.setdefault(topic, {})[group] = bodies.SetMessageRequestModeRequestBody(topic, group, mode, share)
        return make_response(
            command, ResponseCode.SUCCESS, body=bodies.encode_body(bodies.MessageRequestModeSerializeWrapper(table))
        )

    @handles(RequestCode.QUERY_ASSIGNMENT)
    def assign(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        request = bodies.decode_body(bodies.QueryAssignmentRequestBody, command.body)
        mode, share = self._state.disk.request_modes.get((request.topic, request.consumer_group), (PULL, 0))
        queues: list[MessageQueue] | None = self._queues(request.topic)
        if queues and request.message_model == MessageModel.CLUSTERING:
            group = self._state.clients.consumers.get(request.consumer_group)
            clients = [] if group is None else sorted(group.ids())
            strategy, client_id = request.strategy_name or "", request.client_id
            if not clients:
                queues = None
            elif mode == PULL:
                queues = allocate(strategy, queues, clients, client_id)
            else:
                queues = allocate_for_pops(strategy, queues, clients, client_id, share)
        if not queues and queues != []:
            return make_response(command, ResponseCode.SUCCESS, body=_LEAVE_AS_IT_IS)
        body = bodies.QueryAssignmentResponseBody(tuple(bodies.MessageQueueAssignment(queue, mode) for queue in queues or ()))
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(body))

    def _queues(self, name: str) -> list[MessageQueue] | None:
        """Return the readable queues of the topic on all brokers. Return None if no broker has the topic."""
        found: list[MessageQueue] | None = None
        for broker in self._state.peers:
            topic = broker.topics.get(name)
            if topic is None:
                continue
            count = topic.config.read_queue_nums if topic.config.perm & Perm.READ else 0
            found = (found or []) + [MessageQueue(name, broker.name, queue_id) for queue_id in range(count)]
        return found


def allocate(strategy: str, queues: list[MessageQueue], clients: list[str], client_id: str) -> list[MessageQueue] | None:
    """Return the client's share of ``queues``. Return None for an unknown strategy.

    The order of ``queues`` and ``clients`` must be the same in the calls for all clients.
    """
    share = _STRATEGIES.get(strategy)
    return None if share is None else list(share(client_id, queues, clients))


def allocate_for_pops(
    strategy: str, queues: list[MessageQueue], clients: list[str], client_id: str, share: int
) -> list[MessageQueue] | None:
    """Return the queues of a client that pops (``QueryAssignmentProcessor.allocate4Pop``). Return None for an unknown strategy.

    If ``share`` is 0 or less, or not less than the number of other clients, the client pops from any queue of each broker
    (``ANY_QUEUE``). Otherwise, the client pops from no queue if it is not one of ``clients``, from one queue if there are more
    clients than queues, and otherwise from its own queues and the queues of the next ``share`` clients.
    """
    if strategy not in _STRATEGIES:
        return None
    if share <= 0 or share >= len(clients) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=ANY_QUEUE) for queue in queues))
    if client_id not in clients:
        return []
    at = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[at % len(queues)]]
    ring = [clients[(at + step) % len(clients)] for step in range(share + 1)]
    return [queue for each in ring for queue in allocate(strategy, queues, clients, each) or ()]
