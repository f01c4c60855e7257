"""The topics of one broker: their settings, their queues, and who may make new ones.

Queues come into being when first written or asked for, so a topic of many queues costs nothing. The number of topics and of
queues is bounded: names come from the network.
"""

from __future__ import annotations

from typing import Final

from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, Perm, ResponseCode
from rmq_protocol.headers import CreateTopicRequestHeader
from rmq_protocol.topics import TopicConfig
from rmq_protocol.validation import broker_topic_remark, is_not_allowed_send_topic, is_system_topic

from .service import Refused
from .store import Queue

__all__ = ["MAX_QUEUES", "MAX_TOPICS", "Topic", "TopicTable", "describe"]

MAX_TOPICS: Final = 10_000
MAX_QUEUES: Final = 16_384
"""Queues of one topic on one broker."""
DEFAULT_QUEUES: Final = 8
"""Queues of TBW102, and so the most an automatically created topic gets (``BrokerConfig.defaultTopicQueueNums``)."""
FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

_READ: Final = int(Perm.READ)
_INHERIT: Final = int(Perm.INHERIT)
_ATTRIBUTES: Final = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
}


def describe(config: TopicConfig) -> str:
    """As brokers put a topic's settings into the remark of a refused queue id."""
    perm = "".join(letter if config.perm & bit else "-" for bit, letter in ((4, "R"), (2, "W"), (1, "X")))
    attributes = ", ".join(f"{name}={value}" for name, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )


class Topic:
    """A topic's settings and the queues in use."""

    __slots__ = ("_broker_name", "_queues", "config")

    def __init__(self, config: TopicConfig, broker_name: str) -> None:
        self.config = config
        self._broker_name = broker_name
        self._queues: dict[int, Queue] = {}

    def queue(self, queue_id: int) -> Queue:
        """The queue, made now if it was not there; ask only for ids within the settings."""
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = Queue(self.config.topic_name, self._broker_name, queue_id)
        return queue

    def find(self, queue_id: int) -> Queue | None:
        return self._queues.get(queue_id)


class TopicTable:
    def __init__(self, broker_name: str, cluster: str, *, auto_create: bool) -> None:
        self._broker_name = broker_name
        self._own_names = {broker_name, cluster}
        self._topics: dict[str, Topic] = {}
        self._auto_create = auto_create
        self.get = self._topics.get
        if auto_create:
            perm = int(Perm.INHERIT | Perm.READ | Perm.WRITE)
            self._put(TopicConfig(AUTO_CREATE_TOPIC_KEY, DEFAULT_QUEUES, DEFAULT_QUEUES, perm))

    def create(self, header: CreateTopicRequestHeader) -> None:
        """UPDATE_AND_CREATE_TOPIC: a new topic, or new settings for one that is there; its messages stay."""
        name = header.topic
        remark = broker_topic_remark(name)
        if remark is None and (is_system_topic(name) or name in self._own_names):
            remark = f"The topic[{name}] is conflict with system topic."
        for what, count in (("readQueueNums", header.readQueueNums), ("writeQueueNums", header.writeQueueNums)):
            if remark is None and not 0 <= count <= MAX_QUEUES:
                remark = f"{what} must be from 0 to {MAX_QUEUES}, not {count}"
        if remark is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        if header.topicFilterType not in ("SINGLE_TAG", "MULTI_TAG"):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{header.topicFilterType[:60]}] value invalid")
        old = self._topics.get(name)
        self._put(
            TopicConfig(
                name,
                header.readQueueNums,
                header.writeQueueNums,
                header.perm,
                header.topicFilterType,
                header.topicSysFlag or 0,
                header.order,
                _attributes(old.config.attributes if old else {}, header.attributes or ""),
            )
        )

    def for_send(self, name: str, default_topic: str, queues: int) -> Topic:
        """The topic to send to, created after ``default_topic`` where that is allowed. Raises Refused (29, 16, 17)."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        remark = broker_topic_remark(name)
        if remark is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        if is_not_allowed_send_topic(name):
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        model = self._topics.get(default_topic) if self._auto_create else None
        if model is None or not model.config.perm & _INHERIT:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!\n{FAQ}")
        count = max(0, min(queues, model.config.write_queue_nums))
        return self._put(TopicConfig(name, count, count, model.config.perm & ~_INHERIT))

    def for_read(self, name: str, queue_id: int, consumer: str) -> Topic:
        """The topic to pull from. Raises Refused (17, 16, 29)."""
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! \n{FAQ}", {})
        if not topic.config.perm & _READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden", {"forbiddenType": "3"})
        if not 0 <= queue_id < topic.config.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.config.read_queue_nums}] "
                f"consumer:[/{consumer}]",
                {},
            )
        return topic

    def ensure(self, name: str) -> None:
        """A topic of one queue that the broker itself needs (retry topics)."""
        if name not in self._topics:
            self._put(TopicConfig(name, 1, 1))

    def find_queue(self, name: str, queue_id: int) -> Queue | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.find(queue_id)

    def _put(self, config: TopicConfig) -> Topic:
        topic = self._topics.get(config.topic_name)
        if topic is not None:
            topic.config = config
            return topic
        if len(self._topics) >= MAX_TOPICS:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"this broker has {MAX_TOPICS} topics, it takes no more")
        topic = self._topics[config.topic_name] = Topic(config, self._broker_name)
        return topic


def _attributes(old: dict[str, str], text: str) -> dict[str, str]:
    """Attributes after a change written as ``+key=value,-key`` (``AttributeParser``)."""
    attributes = dict(old)
    for item in text.split(",") if text else ():
        key, equals, value = item[1:].partition("=")
        if not item.startswith("+" if equals else "-") or not key:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"attribute format is wrong: {item[:60]}")
        if key not in _ATTRIBUTES:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"unsupported key: {key[:60]}")
        if not equals:
            attributes.pop(key, None)
        elif value not in _ATTRIBUTES[key]:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"value {value[:60]} of {key} is not supported")
        else:
            attributes[key] = value
    return attributes
