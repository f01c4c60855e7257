"""The topics of one broker: their settings, their queues, and the rules for new ones.

Queues are created at their first use, so a topic with many queues costs nothing. The numbers of topics and of queues are
limited, because names come from the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, RETRY_TOPIC_PREFIX, Perm, ResponseCode
from rmq_protocol.headers import CreateTopicRequestHeader
from rmq_protocol.message import is_blank
from rmq_protocol.topics import TopicConfig
from rmq_protocol.validation import SYSTEM_TOPICS, is_not_allowed_send_topic, is_system_topic

from .attributes import OF_TOPICS, changed_attributes, parse_changes
from .light_queues import LightQueues
from .names import topic_refusal
from .service import Refused
from .store import Queue

CLUSTER: Final = "DefaultCluster"
UNIT_MODE: Final = 1
"""topicSysFlag of a topic that a sender in unit mode created."""
UNIT_SUBSCRIBED: Final = 2
"""topicSysFlag of a retry topic whose group is in unit mode."""
MAX_TOPICS: Final = 10_000
"""Maximum number of topics, not counting the broker's system topics."""
MAX_QUEUES: Final = 16_384
"""Maximum number of read queues, and of write queues, of one topic on one broker."""
MAX_QUEUES_IN_USE: Final = 200_000
"""Maximum number of queues, of all topics, to which messages were sent or from which consumers have read."""
DEFAULT_QUEUES: Final = 8
"""Number of queues of TBW102 (``BrokerConfig.defaultTopicQueueNums``)."""
FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

_OWN: Final = (
    ("SELF_TEST_TOPIC", 1, Perm.READ | Perm.WRITE),
    (AUTO_CREATE_TOPIC_KEY, DEFAULT_QUEUES, Perm.INHERIT | Perm.READ | Perm.WRITE),
    ("BenchmarkTest", 1024, Perm.READ | Perm.WRITE),
    ("{cluster}", 16, Perm.INHERIT | Perm.READ | Perm.WRITE),
    ("{broker}", 1, Perm.INHERIT | Perm.READ | Perm.WRITE),
    ("OFFSET_MOVED_EVENT", 1, Perm.READ | Perm.WRITE),
    ("SCHEDULE_TOPIC_XXXX", 18, Perm.READ | Perm.WRITE),
    ("{cluster}_REPLY_TOPIC", 1, Perm.READ | Perm.WRITE),
    ("rmq_sys_REVIVE_LOG_{cluster}", 8, Perm.READ | Perm.WRITE),
    ("rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, Perm.INHERIT),
    ("RMQ_SYS_TRANS_HALF_TOPIC", 1, Perm.READ | Perm.WRITE),
    ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, Perm.READ | Perm.WRITE),
    ("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", 1, Perm.READ | Perm.WRITE),
    ("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", 1, Perm.READ | Perm.WRITE),
    ("rmq_sys_wheel_timer", 1, Perm.READ | Perm.WRITE),
)
"""System topics that a broker has from the start, each with its name, number of queues and permissions."""
_READ: Final = int(Perm.READ)
_INHERIT: Final = int(Perm.INHERIT)


def describe(config: TopicConfig) -> str:
    """Return a topic's settings in the form that a broker uses in its remark on a refused queue id."""
    perm = "".join(letter if config.perm & bit else "-" for bit, letter in ((4, "R"), (2, "W"), (1, "X")))
    attributes = ", ".join(f"{name}={value}" for name, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )


class Topic:
    """A topic's settings and the queues in use."""

    __slots__ = ("_queues", "_table", "config")

    def __init__(self, config: TopicConfig, table: TopicTable) -> None:
        self.config = config
        self._table = table
        self._queues: dict[int, Queue] = {}

    def queue(self, queue_id: int) -> Queue:
        """Return the queue. Create the queue at its first use. The caller has checked that the topic has a queue with this id.

        Raises:
            Refused: With code 1 if the broker has the maximum number of queues.
        """
        queue = self._queues.get(queue_id)
        if queue is None:
            table = self._table
            if table.queues_in_use >= MAX_QUEUES_IN_USE:
                remark = f"this broker has {MAX_QUEUES_IN_USE} queues in use, the maximum; delete topics"
                raise Refused(ResponseCode.SYSTEM_ERROR, remark)
            table.queues_in_use += 1
            queue = self._queues[queue_id] = Queue(self.config.topic_name, table.broker_name, queue_id)
        return queue

    @property
    def is_by_priority(self) -> bool:
        """Whether unordered pops begin with the queue that has the highest id."""
        return self.config.attributes.get("message.type") == "PRIORITY"

    @property
    def is_lite(self) -> bool:
        """Whether the topic has the type LITE."""
        return self.config.attributes.get("message.type") == "LITE"

    @property
    def lite_expiration(self) -> int:
        """Minutes after the last message after which a lite topic of the topic is deleted. -1 if it is never deleted."""
        return int(self.config.attributes.get("lite.topic.expiration", "-1")) if self.is_lite else -1

    def find(self, queue_id: int) -> Queue | None:
        return self._queues.get(queue_id)

    def queues(self) -> list[Queue]:
        """Return the queues in use."""
        return list(self._queues.values())


class TopicTable:
    def __init__(self, broker_name: str, cluster: str, *, auto_create: bool) -> None:
        self.broker_name = broker_name
        self.queues_in_use = 0
        self.light = LightQueues(broker_name)
        self._topics: dict[str, Topic] = {}
        self._auto_create = auto_create
        self.changes = 0
        """Number of times that a topic was created or changed, or that its deletion was requested."""
        self.changed: Callable[[], object] = lambda: None
        """Function that is called after each increment of ``changes``."""
        self.get = self._topics.get
        self._sendable: dict[str, Topic] = {}
        self.sendable = self._sendable.get
        """A function that returns the topic with a name. It returns None if the topic does not exist, or if clients may not
        send to topics with that name."""
        for name, queues, perm in _OWN:
            if auto_create or name != AUTO_CREATE_TOPIC_KEY:
                name = name.format(cluster=cluster, broker=broker_name)
                self._add(TopicConfig(name, queues, queues, int(perm)))
        self._own = frozenset(self._topics)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def is_own(self, name: str) -> bool:
        """Return whether the topic is a system topic, which users cannot create, change or delete."""
        return name in self._own or is_system_topic(name)

    def system_topics(self) -> list[str]:
        """Return the names of the broker's system topics and of the topics that RocketMQ reserves."""
        return sorted(self._own | SYSTEM_TOPICS)

    def create(self, header: CreateTopicRequestHeader) -> None:
        """Create a topic, or change the settings of an existing topic and keep its messages (UPDATE_AND_CREATE_TOPIC)."""
        self.put(
            TopicConfig(
                header.topic,
                header.readQueueNums,
                header.writeQueueNums,
                header.perm,
                header.topicFilterType,
                header.topicSysFlag or 0,
                header.order,
            ),
            header.attributes or "",
        )

    def check(self, config: TopicConfig) -> None:
        """Check the settings of a user topic.

        Raises:
            Refused: With code 29 for an invalid name, the name of a system topic, and a number of queues out of range; with
                code 1 for an unknown filter type.
        """
        name = config.topic_name
        remark = topic_refusal(name)
        if remark is None and self.is_own(name):
            remark = f"The topic[{name}] is conflict with system topic."
        for what, count in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
            if remark is None and not 0 <= count <= MAX_QUEUES:
                remark = f"{what} must be from 0 to {MAX_QUEUES}, not {count}"
        if remark is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{config.topic_filter_type[:60]}] value invalid")

    def put(self, config: TopicConfig, attributes: str) -> None:
        """Create or change a user topic.

        Args:
            attributes: Changes of the topic's attributes, such as ``+key=value,-key``.

        Raises:
            Refused: As ``check`` raises it; with code 1 for a change of attributes that is not possible, and if the broker has
                the maximum number of topics.
        """
        self.check(config)
        old = self._topics.get(config.topic_name)
        before = old.config.attributes if old else {}
        merged = changed_attributes(OF_TOPICS, before, parse_changes(attributes), is_new=old is None)
        self._put(msgspec.structs.replace(config, attributes=merged))

    def delete(self, name: str) -> Topic | None:
        """Remove and return a user topic. Return None if it does not exist.

        Raises:
            Refused: With code 29 for a blank name and for a system topic.
        """
        if is_blank(name):
            raise Refused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if self.is_own(name):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        self._sendable.pop(name, None)
        topic = self._topics.pop(name, None)
        if topic is not None:
            self.queues_in_use -= len(topic.queues())
        self._count_change()
        return topic

    def for_send(self, name: str, default_topic: str, queues: int, *, unit_mode: bool | None = False) -> Topic:
        """Return the topic to send to.

        A topic that does not exist is created with the permissions of ``default_topic``, if the broker creates topics and
        ``default_topic`` allows it. A group's retry topic is always created.

        Args:
            queues: Number of queues of the new topic. ``default_topic``'s number of queues is the maximum.
            unit_mode: The sender's ``unit_mode``, which determines the topicSysFlag of the new topic.

        Raises:
            Refused: With code 29 for an invalid name; with code 16 for a topic to which clients may not send; with code 17 for
                a topic that does not exist and is not created; with code 1 if the broker has the maximum number of topics.
        """
        topic = self._sendable.get(name)
        if topic is not None:
            return topic
        remark = topic_refusal(name)
        if remark is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        if is_not_allowed_send_topic(name):
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        retry = name.startswith(RETRY_TOPIC_PREFIX)
        sys_flag = 0 if not unit_mode else UNIT_SUBSCRIBED if retry else UNIT_MODE
        model = self._topics.get(default_topic) if self._auto_create else None
        if model is None or not model.config.perm & _INHERIT:
            if retry:
                return self.ensure(name, sys_flag=sys_flag)
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!\n{FAQ}")
        count = max(0, min(queues, model.config.write_queue_nums))
        return self._put(TopicConfig(name, count, count, model.config.perm & ~_INHERIT, topic_sys_flag=sys_flag))

    def for_read(self, name: str, queue_id: int, consumer: str) -> Topic:
        """Return the topic to pull from.

        Raises:
            Refused: With code 17 for an unknown topic; with code 16 for a topic without permission to read; with code 29 for a
                queue id that the topic does not have.
        """
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

    def ensure(self, name: str, queues: int = 1, sys_flag: int = 0) -> Topic:
        """Return a topic that the broker itself needs, such as a retry topic. Create the topic if necessary.

        Raises:
            Refused: With code 1 if the broker has the maximum number of topics.
        """
        topic = self._topics.get(name)
        if topic is None:
            queues = max(1, min(queues, MAX_QUEUES))
            topic = self._put(TopicConfig(name, queues, queues, topic_sys_flag=sys_flag))
        return topic

    def find_queue(self, name: str, queue_id: int) -> Queue | None:
        """Return a queue in use, also by the name of a light queue, which is a topic with one queue."""
        topic = self._topics.get(name)
        if topic is None:
            return self.light.find(name) if queue_id == 0 else None
        return topic.find(queue_id)

    def _put(self, config: TopicConfig) -> Topic:
        topic = self._topics.get(config.topic_name)
        if topic is not None:
            topic.config = config
            self._count_change()
            return topic
        if len(self._topics) - len(self._own) >= MAX_TOPICS:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"this broker has {MAX_TOPICS} topics, the maximum; delete some")
        topic = self._add(config)
        self._count_change()
        return topic

    def _count_change(self) -> None:
        self.changes += 1
        self.changed()

    def _add(self, config: TopicConfig) -> Topic:
        name = config.topic_name
        topic = self._topics[name] = Topic(config, self)
        if not is_not_allowed_send_topic(name):
            self._sendable[name] = topic
        return topic
