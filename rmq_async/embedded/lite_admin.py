"""Serves admin requests about lite topics (200074 to 200079) (``LiteManagerProcessor``)."""

from __future__ import annotations

import heapq
from typing import Final

from rmq_protocol import headers, lite
from rmq_protocol.bodies import SubscriptionGroupConfig, encode_body
from rmq_protocol.command import RemotingCommand, make_response
from rmq_protocol.constants import RequestCode, ResponseCode

from .lite_events import LiteEvents
from .lite_subscriptions import LiteSubscriptions
from .lite_topics import LiteTopics, lite_bind_topic
from .ordered_pops import OrderedQueues
from .server import Connection
from .service import NO_REMARK, Processor, Refused, handles, header_of
from .state import BrokerState
from .topics import Topic

MAX_NAMES: Final = 10_000
"""Maximum number of lite topics of a client in one response."""


class LiteAdminProcessor(Processor):
    def __init__(
        self,
        state: BrokerState,
        topics: LiteTopics,
        subscriptions: LiteSubscriptions,
        events: LiteEvents,
        ordered: OrderedQueues,
    ) -> None:
        self._state = state
        self._topics = topics
        self._subscriptions = subscriptions
        self._events = events
        self._ordered = ordered

    @handles(RequestCode.GET_BROKER_LITE_INFO)
    def broker_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topics, queues = self._state.topics, self._topics.queues
        info = lite.BrokerLiteInfo(
            store_type="default",
            max_lmq_num=queues.limit,
            current_lmq_num=len(queues),
            lite_subscription_count=self._subscriptions.count,
            order_info_count=len(self._ordered),
            cq_table_size=len(queues) + sum(1 for topic in topics if topic.queues()),
            offset_table_size=len(self._state.offsets),
            event_map_size=len(self._events),
            topic_meta={topic.config.topic_name: topic.lite_expiration for topic in topics if topic.is_lite},
            group_meta=self._topics.groups_by_topic(),
        )
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(info))

    @handles(RequestCode.GET_PARENT_TOPIC_INFO)
    def topic_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topic = self._topic(header_of(headers.GetParentTopicInfoRequestHeader, command).topic)
        name = topic.config.topic_name
        info = lite.ParentTopicInfo(
            topic=name,
            ttl=topic.lite_expiration,
            groups=self._topics.groups_by_topic().get(name),
            lmq_num=len(self._topics.queues),
            lite_topic_count=len(self._topics.of_topic(name)),
        )
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(info))

    @handles(RequestCode.GET_LITE_TOPIC_INFO)
    def lite_topic_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.GetLiteTopicInfoRequestHeader, command)
        topic = self._topic(header.parentTopic).config.topic_name
        name = lite.lmq_name(topic, header.liteTopic or "")
        queue = self._topics.queues.find(name)
        offsets = lite.LiteOffsets()
        if queue is not None and queue.max_offset:
            newest = queue.stored_ms(queue.max_offset - 1)
            offsets = lite.LiteOffsets(queue.min_offset, queue.max_offset, -1 if newest is None else newest)
        info = lite.LiteTopicDetails(
            parent_topic=topic,
            lite_topic=header.liteTopic,
            subscriber=tuple(lite.LiteClient(*each) for each in self._subscriptions.subscribers(name)),
            topic_offset=offsets,
            sharding_to_broker=self._topics.is_own(topic, name),
        )
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(info))

    @handles(RequestCode.GET_LITE_CLIENT_INFO)
    def client_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.GetLiteClientInfoRequestHeader, command)
        topic = self._topic(header.parentTopic).config.topic_name
        config = self._state.groups.find(header.group or "")
        if config is None:
            raise _no_group(header.group)
        if lite_bind_topic(config) != topic:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Subscription [{header.group}]-[{topic}] not match.")
        client_id = header.clientId or ""
        own = self._subscriptions.find(client_id)
        most = max(0, min(header.maxCount, MAX_NAMES))
        info = lite.LiteClientDetails(
            parent_topic=topic,
            group=header.group,
            client_id=client_id,
            last_access_time=self._events.accessed_ms(client_id),
            lite_topic_count=-1 if own is None else len(own.names),
            lite_topic_set=None if own is None else tuple(own.names)[:most],
        )
        return make_response(command, ResponseCode.SUCCESS, body=encode_body(info))

    @handles(RequestCode.GET_LITE_GROUP_INFO)
    def group_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.GetLiteGroupInfoRequestHeader, command)
        topic = _bound(self._group(header.group))
        info = self._lag(header.group, topic, header.liteTopic) if header.liteTopic else self._lags(header, topic)
        return make_response(command, ResponseCode.SUCCESS, NO_REMARK, body=encode_body(info))

    @handles(RequestCode.TRIGGER_LITE_DISPATCH)
    def trigger(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = header_of(headers.TriggerLiteDispatchRequestHeader, command)
        _bound(self._group(header.group))
        if header.clientId:
            self._events.dispatch_client(header.clientId, header.group)
        else:
            self._events.dispatch_group(header.group)
        return make_response(command, ResponseCode.SUCCESS, NO_REMARK)

    def _lag(self, group: str, topic: str, lite_topic: str) -> lite.LiteGroupDetails:
        """Return the lag of a group in one lite topic."""
        name = lite.lmq_name(topic, lite_topic)
        queue, committed = self._topics.queues.find(name), self._state.offsets.find(group, name, 0)
        if queue is None or not queue.max_offset:
            return lite.LiteGroupDetails(group, topic, lite_topic, total_lag_count=-1)
        if committed < 0:
            return lite.LiteGroupDetails(group, topic, lite_topic)
        last = _stored_ms(queue.stored_ms(committed - 1)) if committed else 0
        return lite.LiteGroupDetails(
            group,
            topic,
            lite_topic,
            earliest_unconsumed_timestamp=_stored_ms(queue.stored_ms(committed)),
            total_lag_count=queue.max_offset - committed,
            lite_topic_offset_wrapper=lite.LiteOffsetWrapper(queue.max_offset, committed, last_timestamp=last),
        )

    def _lags(self, header: headers.GetLiteGroupInfoRequestHeader, topic: str) -> lite.LiteGroupDetails:
        """Return the total lag of a group, and its largest lags.

        Lags by time are not measured, which is the default of a real broker.
        """
        if header.topK < 1:
            raise Refused(ResponseCode.SYSTEM_ERROR, "java.lang.IllegalArgumentException")
        lags: list[lite.LiteLag] = []
        for name, committed in self._state.offsets.light_of(header.group).items():
            queue, parts = self._topics.queues.find(name), lite.split_lmq_name(name)
            if queue is not None and parts is not None and queue.max_offset > committed >= 0:
                lags.append(lite.LiteLag(parts[1], queue.max_offset - committed, _stored_ms(queue.stored_ms(committed))))
        return lite.LiteGroupDetails(
            header.group,
            topic,
            header.liteTopic,
            total_lag_count=sum(each.lag_count for each in lags),
            lag_count_top_k=tuple(heapq.nlargest(header.topK, lags, key=lambda each: each.lag_count)),
            lag_timestamp_top_k=(),
        )

    def _topic(self, name: str | None) -> Topic:
        """Return a topic of the type LITE.

        Raises:
            Refused: With code 17 for an unknown topic; with code 29 for a topic of another type.
        """
        topic = self._state.topics.get(name or "")
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{_shown(name)}] not exist.")
        if not topic.is_lite:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Topic [{name}] type not match.")
        return topic

    def _group(self, name: str) -> SubscriptionGroupConfig:
        config = self._state.groups.find(name)
        if config is None:
            raise _no_group(name)
        return config


def _bound(config: SubscriptionGroupConfig) -> str:
    """Return the topic to which a group is bound.

    Raises:
        Refused: With code 29 for other groups.
    """
    topic = lite_bind_topic(config)
    if not topic:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"Group [{config.group_name}] is not a LITE group.")
    return topic


def _no_group(name: str | None) -> Refused:
    return Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{_shown(name)}] not exist.")


def _shown(name: str | None) -> str:
    return "null" if name is None else name[:160]


def _stored_ms(time: int | None) -> int:
    return -1 if time is None else time
