"""The modes of consumption, pull or pop, of groups that ask the broker for their queues (400).

Requests set (401) and list them (402).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq_protocol.bodies import (
    MessageRequestModeSerializeWrapper,
    SetMessageRequestModeRequestBody,
    decode_body,
    encode_body,
)
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RETRY_TOPIC_PREFIX, RequestCode, ResponseCode

from .server import Connection
from .service import Handler, Refused
from .state import BrokerState

__all__ = ["POP", "PULL", "RequestModeProcessor", "mode_of"]

MAX_MODES: Final = 10_000
POP: Final = "POP"


class RequestMode(NamedTuple):
    """The mode of consumption of a group in a topic.

    Attributes:
        share: Number of other members whose queues a member pops too; 0 and less mean all queues.
    """

    mode: str
    share: int


PULL: Final = RequestMode("PULL", 0)


def mode_of(state: BrokerState, topic: str, group: str) -> RequestMode:
    """Return the mode in which the group is to consume the topic: ``PULL`` unless another was set."""
    return RequestMode(*state.disk.request_modes.get((topic, group), PULL))


class RequestModeProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.SET_MESSAGE_REQUEST_MODE: self.set, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all}

    def set(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        request = decode_body(SetMessageRequestModeRequestBody, command.body)
        topic, group, modes = request.topic, request.consumer_group, self._state.disk.request_modes
        if topic.startswith(RETRY_TOPIC_PREFIX):
            raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._state.topics.get(topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:160]}] not exist")
        if self._state.groups.find(group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if (topic, group) not in modes and len(modes) >= MAX_MODES:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"this broker has {MAX_MODES} modes, it takes no more; set those of fewer groups"
            )
        modes[topic, group] = (POP if request.mode == POP else PULL.mode, request.pop_share_queue_num)
        return make_response(command, ResponseCode.SUCCESS)

    def all(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        table: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
        for (topic, group), (mode, share) in self._state.disk.request_modes.items():
            table.setdefault(topic, {})[group] = SetMessageRequestModeRequestBody(topic, group, mode, share)
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(MessageRequestModeSerializeWrapper(table)))
