"""Serves statistics of topics and groups (202, 208, 300, 343, 345), and of the broker itself (26, 28)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rmq_protocol import bodies, headers
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.message import MessageQueue
from rmq_protocol.pop import pop_retry_topic, pop_retry_topic_v1

from .server import Connection
from .service import Processor, Refused, handles, header_of
from .state import BrokerState
from .topics import Topic

MAX_QUEUES_SHOWN: Final = 65_536
"""Maximum number of queues in one response."""


class StatisticsProcessor(Processor):
    """Serves statistics.

    Rates are not measured. They are always 0.

    Args:
        config: The settings of a real broker that the embedded broker supports.
        now_ms: A function that returns the broker's time.
    """

    def __init__(self, state: BrokerState, config: Mapping[str, bool], version: str, now_ms: Callable[[], int]) -> None:
        self._state = state
        self._config = config
        self._version = version
        self._now_ms = now_ms
        self._started_ms = now_ms()

    @handles(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = header_of(headers.GetTopicStatsInfoRequestHeader, command).topic
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:160]}] not exist")
        count = max(topic.config.read_queue_nums, topic.config.write_queue_nums)
        table = {MessageQueue(name, self._state.name, queue_id): _topic_offset(topic, queue_id) for queue_id in range(count)}
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(bodies.TopicStatsTable(table)))

    @handles(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.GetConsumeStatsRequestHeader, command)
        names = self._topics_to_show(header)
        topics = [topic for name in names if (topic := self._state.topics.get(name)) is not None]
        light = [name for name in names if self._state.topics.light.knows(name)]
        count = sum(topic.config.read_queue_nums for topic in topics) + len(light)
        if count > MAX_QUEUES_SHOWN:
            remark = f"the group's topics have {count} queues, {MAX_QUEUES_SHOWN} can be shown at once; ask for one topic"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        table = {
            MessageQueue(topic.config.topic_name, self._state.name, queue_id): self._progress(
                header.consumerGroup, topic.config.topic_name, queue_id
            )
            for topic in topics
            for queue_id in range(topic.config.read_queue_nums)
        }
        for name in light:
            table[MessageQueue(name, self._state.name, 0)] = self._progress(header.consumerGroup, name, 0)
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(bodies.ConsumeStats(table)))

    def _topics_to_show(self, header: headers.GetConsumeStatsRequestHeader) -> list[str]:
        """Return the topics in ``topicList``.

        If there is no ``topicList``, return the requested topic, or all topics in which the group has committed offsets. If the
        group has subscriptions, leave out topics that it does not subscribe to, except the retry topics of its pops.
        """
        listed = list(dict.fromkeys(name for name in (header.topicList or "").split(";") if name))
        if listed:
            return listed
        topics = [header.topic] if header.topic else list(self._state.offsets.topics_of(header.consumerGroup))
        group = self._state.clients.consumers.get(header.consumerGroup)
        if group is not None and group.subscriptions:
            read = {*group.subscriptions}
            for each in group.subscriptions:  # a real broker adds these subscriptions at a pop (compensateSubscribeData)
                read |= {pop_retry_topic_v1(each, header.consumerGroup), pop_retry_topic(each, header.consumerGroup)}
            topics = [name for name in topics if name in read]
        return topics

    def _progress(self, group: str, name: str, queue_id: int) -> bodies.OffsetWrapper:
        queue, offsets = self._state.topics.find_queue(name, queue_id), self._state.offsets
        committed = max(0, offsets.find(group, name, queue_id))
        return bodies.OffsetWrapper(
            broker_offset=queue.max_offset if queue else 0,
            consumer_offset=committed,
            pull_offset=max(committed, offsets.pulled(group, name, queue_id)),
            last_timestamp=(queue.stored_ms(committed - 1) or 0) if queue else 0,
        )

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = header_of(headers.QueryTopicConsumeByWhoRequestHeader, command).topic
        groups = {*self._state.offsets.groups_of(name), *self._state.clients.groups_of_topic(name)}
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(bodies.GroupList(tuple(sorted(groups)))))

    @handles(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topics = self._state.offsets.topics_of(header_of(headers.QueryTopicsByConsumerRequestHeader, command).group)
        body = bodies.TopicList(tuple(sorted(topics)), self._state.address)
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(body))

    @handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.QuerySubscriptionByConsumerRequestHeader, command)
        group, topic = self._state.clients.consumers.get(header.group), header.topic or ""
        subscription = None if group is None else group.subscriptions.get(topic)
        body = bodies.QuerySubscriptionResponseBody(header.group, topic, subscription)
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(body))

    @handles(RequestCode.GET_BROKER_CONFIG)
    def broker_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the broker's name and ``config`` in the form of a properties file."""
        lines = [f"brokerName={self._state.name}", *(f"{name}={str(value).lower()}" for name, value in self._config.items())]
        return make_response(command, ResponseCode.SUCCESS, None, {"version": "{}"}, ("\n".join(lines) + "\n").encode())

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Return the figures that admin tools read. Figures that are not measured here, such as rates, are 0."""
        log = self._state.log
        running = (self._now_ms() - self._started_ms) // 1000
        hours, seconds = divmod(running, 3600)
        info = {
            "brokerVersionDesc": f"V{self._version.replace('.', '_')}",
            "brokerActive": "true",
            "bootTimestamp": str(self._started_ms),
            "runtime": f"[ {hours // 24} days, {hours % 24} hours, {seconds // 60} minutes, {seconds % 60} seconds ]",
            "msgPutTotalTodayNow": str(log.appended),
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalYesterdayMorning": "0",
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(log.end),
            "earliestMessageTimeStamp": str(log.earliest_ms()),
            **dict.fromkeys(("putTps", "getTotalTps", "getFoundTps", "getMissTps", "getTransferredTps"), "0.0 0.0 0.0"),
            **dict.fromkeys(_NOT_HERE, "0"),
        }
        return make_response(command, ResponseCode.SUCCESS, body=bodies.encode_body(bodies.KVTable(info)))


_NOT_HERE: Final = (
    "msgGetTotalTodayNow",
    "msgGetTotalTodayMorning",
    "msgGetTotalYesterdayMorning",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "queryThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
    "dispatchBehindBytes",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "startAcceptSendRequestTimeStamp",
)


def _topic_offset(topic: Topic, queue_id: int) -> bodies.TopicOffset:
    queue = topic.find(queue_id)
    if queue is None:
        return bodies.TopicOffset()
    return bodies.TopicOffset(queue.min_offset, queue.max_offset, queue.stored_ms(queue.max_offset - 1) or 0)
