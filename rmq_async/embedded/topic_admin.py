"""Serves admin requests to create, change, show and delete topics (17, 18, 21, 215, 305, 351)."""

from __future__ import annotations

from rmq_protocol import bodies
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.headers import CreateTopicRequestHeader, DeleteTopicRequestHeader, GetTopicConfigRequestHeader
from rmq_protocol.topics import TopicConfig, encode_topic_config

from .lite_serving import LiteServing
from .popping import Popping
from .pulls import HeldPulls
from .server import Connection
from .service import Processor, Refused, handles, header_of
from .state import BrokerState


class TopicProcessor(Processor):
    def __init__(self, state: BrokerState, held: HeldPulls, popping: Popping, lite: LiteServing) -> None:
        self._state = state
        self._held = held
        self._popping = popping
        self._lite = lite

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def create(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._state.topics.create(header_of(CreateTopicRequestHeader, command))
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def create_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Create or change the topics in the list. If ``TopicTable.check`` refuses one topic, no topic is created or changed."""
        # As on a real broker (5.5.0: TopicConfigManager.updateTopicConfigList), attributes are checked one topic at a time, so
        # the topics before a refused topic stay changed.
        configs = bodies.decode_body(bodies.CreateTopicListRequestBody, command.body).topic_config_list
        topics = self._state.topics
        for config in configs:
            topics.check(config)
        for config in configs:
            topics.put(config, _as_change(config))
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topics = self._state.topics
        table = {topic.config.topic_name: topic.config for topic in topics}
        body = bodies.encode_body(bodies.TopicConfigSerializeWrapper(table, bodies.DataVersion(0, 0, topics.changes)))
        return make_response(command, ResponseCode.SUCCESS, None, {"totalTopicNum": str(len(topics))}, body)

    @handles(RequestCode.GET_TOPIC_CONFIG)
    def one(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = header_of(GetTopicConfigRequestHeader, command).topic
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name[:160]}")
        return make_response(command, ResponseCode.SUCCESS, body=encode_topic_config(topic.config))

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Delete a topic with its messages and committed offsets, and respond to the pulls that wait for the topic."""
        name = header_of(DeleteTopicRequestHeader, command).topic
        topic = self._state.topics.delete(name)
        if topic is not None:
            queues = topic.queues()
            self._state.offsets.forget_topic(name)
            self._popping.deleted(name)
            self._lite.deleted(topic)
            self._state.log.drop(queues)
            self._held.dropped(queues)
        return make_response(command, ResponseCode.SUCCESS)

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        body = bodies.encode_body(bodies.TopicList(tuple(self._state.topics.system_topics())))
        return make_response(command, ResponseCode.SUCCESS, body=body)


def _as_change(config: TopicConfig) -> str:
    """Return the attributes of a topic in a list, in the text form that a request for a single topic uses. In a list, the signs
    of the keys may be missing.
    """
    return ",".join(
        f"{key if key.startswith(('+', '-')) else '+' + key}" + ("" if key.startswith("-") else f"={value}")
        for key, value in config.attributes.items()
    )
