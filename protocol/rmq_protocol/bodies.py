"""JSON bodies of requests and responses. The classes have the names of the Java classes.

``ClusterInfo``, ``HeartbeatData``, ``TopicRouteData`` and ``TopicConfig`` have modules of their own.

All bodies can be decoded and encoded. ``decode_body(TopicStatsTable, body)`` raises RemoteProtocolError if ``body`` is not a
TopicStatsTable. ``encode_body(table, standard=False)`` writes the form of the official servers, and ``encode_body(request)`` writes
standard JSON. If a member is missing in the JSON, its field has the default value.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .errors import LocalProtocolError, RemoteProtocolError
from .heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from .java_types import Double, Int, Long
from .json_body import decode_body as decode_body
from .json_body import encode_body as encode_body
from .message import MessageQueue
from .topics import TopicConfig

# Bodies that are plain lists and tables: names of topics and groups, keys and values, and the version of a table.


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The version of one of a broker's tables, such as the table of its topics.

    Attributes:
        timestamp: Time of the last change, epoch ms.
        counter: A number that grows with each change.
    """

    state_version: Long = 0
    timestamp: Long = 0
    counter: Long = 0


class TopicList(msgspec.Struct, frozen=True, rename="camel"):
    """Response to requests for lists of topics, such as GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_TOPICS_BY_CLUSTER and
    QUERY_TOPICS_BY_CONSUMER.
    """

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


class GroupList(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_TOPIC_CONSUME_BY_WHO: names of groups."""

    group_list: tuple[str, ...] = ()


class KVTable(msgspec.Struct, frozen=True):
    """Response of GET_KVLIST_BY_NAMESPACE and GET_BROKER_RUNTIME_INFO: key -> value."""

    table: dict[str, str] = {}


# Bodies with the settings of many topics on one broker; the settings of one topic are a ``TopicConfig``.


class TopicConfigSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_TOPIC_CONFIG: topic -> settings."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion | None = None


class CreateTopicListRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: tuple[TopicConfig, ...] = ()


# Bodies about subscription groups: their settings on one broker, and checks of their subscriptions.


class ExponentialRetryPolicy(msgspec.Struct, frozen=True):
    """A retry policy with growing delays.

    Attributes:
        initial: Milliseconds before the first retry.
        max: Maximum in milliseconds.
        multiplier: Factor of growth.
    """

    initial: Long = 5_000
    max: Long = 7_200_000
    multiplier: Long = 2


class CustomizedRetryPolicy(msgspec.Struct, frozen=True):
    """A retry policy with a delay for each retry.

    Attributes:
        next: Milliseconds before each retry. The first two values are not used, and the last value applies to all further retries
            (``CustomizedRetryPolicy.nextDelayDuration``).
    """

    next: tuple[Long, ...] = ()


class GroupRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """The retry policy of a group.

    Attributes:
        type: CUSTOMIZED or EXPONENTIAL. Brokers only store the policy; proxies use it. If there is no policy of that type, proxies
            use the default of Java's ``CustomizedRetryPolicy`` (``GroupRetryPolicy.getRetryPolicy``).
    """

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    expression_type: str | None = None
    expression: str | None = None
    version: Long = 0


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Request of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, response of GET_SUBSCRIPTIONGROUP_CONFIG.

    Attributes:
        retry_max_times: Retries after the first delivery, before a message goes to the dead-letter topic.
        broker_id: Id of the replica that serves the group.
        which_broker_when_consume_slowly: Id of the replica that serves the group when it reads from disk.
        consume_timeout_minute: Timeout in minutes. Brokers only store the number.
        attributes: ``+key`` -> value in a request, ``key`` -> value in a response.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
    group_retry_policy: GroupRetryPolicy = GroupRetryPolicy()
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minute: Int = 15
    subscription_data_set: tuple[SimpleSubscriptionData, ...] | None = None
    attributes: dict[str, str] = {}


class SubscriptionGroupList(msgspec.Struct, frozen=True, rename="camel"):
    """Request of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


class SubscriptionGroupWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_SUBSCRIPTIONGROUP_CONFIG.

    Attributes:
        forbidden_table: Group -> topic -> bits of the forbidden operations.
    """

    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, Int]] = {}
    data_version: DataVersion | None = None


class CheckClientRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request CHECK_CLIENT_CONFIG, which asks whether the broker accepts the filter of the subscription.

    Brokers accept every request that has no subscription, and every filter by tag (``ClientManageProcessor.checkClientConfig``).
    """

    client_id: str
    group: str
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


class QuerySubscriptionResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_SUBSCRIPTION_BY_CONSUMER.

    Attributes:
        subscription_data: None if no connected member subscribes to the topic.
    """

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None


class GroupForbidden(msgspec.Struct, frozen=True):
    """Response of UPDATE_AND_GET_GROUP_FORBIDDEN.

    Attributes:
        readable: False if the group may not read the topic.
    """

    topic: str = ""
    group: str = ""
    readable: bool | None = None


# Bodies about the clients of a group that are connected to a broker.


class Connection(msgspec.Struct, frozen=True, rename="camel"):
    """A client's connection to a broker.

    Attributes:
        client_addr: ``ip:port`` as the broker sees it.
        language: Name of a LanguageCode.
        version: Ordinal of the client's ``MQVersion``.
    """

    client_id: str = ""
    client_addr: str = ""
    language: str | None = None
    version: Int = 0


class ProducerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_PRODUCER_CONNECTION_LIST."""

    connection_set: tuple[Connection, ...] = ()


class ConsumerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_CONSUMER_CONNECTION_LIST.

    Attributes:
        subscription_table: Topic -> subscription.
        consume_type: Name of a member of ``heartbeat.ConsumeType``.
        message_model: Name of a member of ``heartbeat.MessageModel``.
        consume_from_where: Name of a member of ``heartbeat.ConsumeFromWhere``.
    """

    connection_set: tuple[Connection, ...] = ()
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = ConsumeType.CONSUME_PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


class GetConsumerListByGroupResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_CONSUMER_LIST_BY_GROUP: the client ids of the group's members."""

    consumer_id_list: tuple[str, ...] = ()


class ProducerInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A producer that is connected.

    Attributes:
        last_update_timestamp: Time of the producer's last heartbeat, epoch ms.
        version: Ordinal of the producer's ``MQVersion``.
    """

    client_id: str = ""
    remote_ip: str | None = msgspec.field(name="remoteIP", default=None)
    language: str | None = None
    version: Int = 0
    last_update_timestamp: Long = 0


class ProducerTableInfo(msgspec.Struct, frozen=True):
    """Response of GET_ALL_PRODUCER_INFO: group -> producers."""

    data: dict[str, tuple[ProducerInfo, ...]] = {}


# Offsets by queue: offsets of a topic, committed offsets of groups, and the offsets that a reset sets.
#
# Most of these bodies are maps keyed by queues, which servers and the Java client write in a non-standard form (``json_body``).


class TopicOffset(msgspec.Struct, frozen=True, rename="camel"):
    """The offsets of a queue.

    Attributes:
        max_offset: Offset that the next message will get.
        last_update_timestamp: Store time of the last message, epoch ms. 0 if there is none, -1 if it is no longer stored.
    """

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0


class TopicStatsTable(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_TOPIC_STATS_INFO.

    Attributes:
        topic_put_tps: Messages stored per second in the last minute.
    """

    offset_table: dict[MessageQueue, TopicOffset] = {}
    topic_put_tps: Double = 0.0


class OffsetWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """The offsets of a group in a queue.

    Attributes:
        broker_offset: Offset that the next stored message will get.
        consumer_offset: The committed offset. 0 if there is none (-1 for static topics).
        pull_offset: Offset of the group's next pull, at least ``consumer_offset``. It is 0 in GET_BROKER_CONSUME_STATS.
        last_timestamp: Store time of the message before ``consumer_offset``, epoch ms. 0 if there is none.
    """

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long = 0
    last_timestamp: Long = 0


class ConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_CONSUME_STATS.

    Attributes:
        consume_tps: Messages per second that the broker delivered to the group in the last minute (``tpsGroupGetNums``).
    """

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: Double = 0.0


class ConsumeStatsList(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_BROKER_CONSUME_STATS.

    It has one dict for each group. The only key is the name of the group, and the value has a ConsumeStats for each of the group's
    topics.

    Attributes:
        total_diff: Number of messages that are not consumed yet.
        total_inflight_diff: Sum of ``pull_offset`` - ``consumer_offset``. It is at most 0, because brokers leave ``pull_offset`` at
            0 (``AdminBrokerProcessor.fetchAllConsumeStatsInBroker``).
    """

    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: Long = 0
    total_inflight_diff: Long = 0


class ResetOffsetBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of RESET_CONSUMER_CLIENT_OFFSET from a broker, and response of INVOKE_BROKER_TO_RESET_OFFSET."""

    offset_table: dict[MessageQueue, Long] = {}


class MessageQueueForC(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    broker_name: str
    queue_id: Int
    offset: Long


class ResetOffsetBodyForC(msgspec.Struct, frozen=True, rename="camel"):
    """Body of RESET_CONSUMER_CLIENT_OFFSET if the administrator's request has the language CPP, as
    ``mqadmin resetOffsetByTime -c cluster`` sends it.
    """

    offset_table: tuple[MessageQueueForC, ...] = ()


def decode_reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets in the body of a RESET_CONSUMER_CLIENT_OFFSET, a ``ResetOffsetBody`` or a ``ResetOffsetBodyForC``.

    Return an empty dict for an empty body.

    Raises:
        RemoteProtocolError: If the body is neither of them.
    """
    if not body:
        return {}
    try:
        return decode_body(ResetOffsetBody, body).offset_table
    except RemoteProtocolError:
        table = decode_body(ResetOffsetBodyForC, body).offset_table
        return {MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset for each in table}


class GetConsumerStatusBody(msgspec.Struct, frozen=True, rename="camel"):
    """The offsets that clients have in memory.

    The response of GET_CONSUMER_STATUS_FROM_CLIENT has the offsets of one client. The response of
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS has, by client id, the offsets of all clients of a group that the broker has asked.
    """

    message_queue_table: dict[MessageQueue, Long] = {}
    consumer_table: dict[str, dict[MessageQueue, Long]] = {}


class QueryCorrectionOffsetBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_CORRECTION_OFFSET: queue id -> the smallest offset of all groups.

    Offsets below the queue's oldest message do not count. The value is 2^63 - 1 if the offset of ``compareGroup`` is below the
    smallest offset (``AdminBrokerProcessor.queryCorrectionOffset``).
    """

    correction_offsets: dict[Int, Long] = {}


class ConsumerOffsetSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_CONSUMER_OFFSET: ``topic@group`` -> queue id -> offset."""

    offset_table: dict[str, dict[Int, Long]] = {}
    data_version: DataVersion | None = None


class QueueTimeSpan(msgspec.Struct, frozen=True, rename="camel"):
    """The store times (epoch ms) of three messages of a queue.

    These are the oldest message, the newest message, and the last message that a group consumed (the oldest one if it has consumed
    none). The time is -1 for a message that is not stored.

    Attributes:
        delay_time: Age in ms of the message that the group consumes next. It is 0 if the group has consumed all messages, and has
            no meaning for a group without an offset (``AdminBrokerProcessor.queryConsumeTimeSpan``).
    """

    message_queue: MessageQueue
    min_time_stamp: Long = 0
    max_time_stamp: Long = 0
    consume_time_stamp: Long = 0
    delay_time: Long = 0


class QueryConsumeTimeSpanBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


# Bodies about queues that the broker assigns to a consumer, and about the mode in which they are read: pull or pop.


class QueryAssignmentRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request QUERY_ASSIGNMENT.

    Attributes:
        strategy_name: AVG, AVG_BY_CIRCLE or another strategy that the broker knows.
    """

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str = MessageModel.CLUSTERING


class MessageQueueAssignment(msgspec.Struct, frozen=True, rename="camel"):
    """A queue that a broker has assigned.

    Attributes:
        mode: PULL or POP. In mode POP, the id of the queue is -1 if the member pops from all queues of the broker.
    """

    message_queue: MessageQueue
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    message_queue_assignments: tuple[MessageQueueAssignment, ...] = ()


class SetMessageRequestModeRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request SET_MESSAGE_REQUEST_MODE.

    Attributes:
        mode: The mode, PULL or POP.
        pop_share_queue_num: Number of other members, those after it in the list of members, from whose queues a member also pops.
            With 0 or less, or with at least the number of members - 1, it pops from all queues. If there are more members than
            queues, other numbers have no effect (``QueryAssignmentProcessor.allocate4Pop``).
    """

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int = 0


class MessageRequestModeSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_MESSAGE_REQUEST_MODE: topic -> group -> the mode that was set."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}


# Bodies of requests that lock queues for ordered consumption.


class LockBatchRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the request LOCK_BATCH_MQ.

    Attributes:
        only_this_broker: True in a request from a broker to the other replicas with its name, which must not forward the request.
    """

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False


class UnlockBatchRequestBody(LockBatchRequestBody, frozen=True, rename="camel"):
    """Body of the request UNLOCK_BATCH_MQ."""


class LockBatchResponseBody(msgspec.Struct, frozen=True):
    """Response of LOCK_BATCH_MQ: the requested queues whose locks the client now holds."""

    lock_ok_mq_set: tuple[MessageQueue, ...] = msgspec.field(name="lockOKMQSet", default=())


# Running info of a consumer, which a broker requests for an administrator. ``droped`` is the wire's spelling.


class ProcessQueueInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The state of one queue that a consumer pulls from. Timestamps are in epoch ms."""

    commit_offset: Long = 0
    cached_msg_min_offset: Long = 0
    cached_msg_max_offset: Long = 0
    cached_msg_count: Int = 0
    cached_msg_size_in_mib: Int = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: Long = 0
    transaction_msg_max_offset: Long = 0
    transaction_msg_count: Int = 0
    locked: bool = False
    try_unlock_times: Long = 0
    last_lock_timestamp: Long = 0
    droped: bool = False
    last_pull_timestamp: Long = 0
    last_consume_timestamp: Long = 0


class PopProcessQueueInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The state of one queue that a consumer pops from.

    Attributes:
        last_pop_timestamp: Time of the last pop, epoch ms.
    """

    wait_ack_count: Int = 0
    droped: bool = False
    last_pop_timestamp: Long = 0


class ConsumeStatus(msgspec.Struct, frozen=True):
    """The statistics of one topic. Fields with ``tps`` in their names are in messages per second.

    Attributes:
        pull_rt: Average milliseconds per pull.
        consume_rt: Average milliseconds per call of the handler.
        consume_failed_msgs: Number of messages whose consumption failed in the last hour.
    """

    pull_rt: Double = msgspec.field(name="pullRT", default=0.0)
    pull_tps: Double = msgspec.field(name="pullTPS", default=0.0)
    consume_rt: Double = msgspec.field(name="consumeRT", default=0.0)
    consume_ok_tps: Double = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: Double = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: Long = msgspec.field(name="consumeFailedMsgs", default=0)


class ConsumerRunningInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_CONSUMER_RUNNING_INFO.

    Attributes:
        properties: PROP_CONSUME_TYPE, PROP_CONSUMER_START_TIMESTAMP (epoch ms), PROP_CLIENT_VERSION, PROP_NAMESERVER_ADDR,
            PROP_CONSUMEORDERLY and others that the client adds.
        status_table: Topic -> statistics.
        jstack: Stacks of the client's threads, if they were requested.
    """

    properties: dict[str, str] = {}
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None


class ConsumeMessageDirectlyResult(msgspec.Struct, frozen=True, rename="camel"):
    """Response of CONSUME_MESSAGE_DIRECTLY.

    Attributes:
        consume_result: CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or CR_RETURN_NULL (``CMResult``).
        spent_time_mills: Duration of the handler's call in ms.
    """

    consume_result: str | None = None
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Long = 0


# The body that acknowledges many popped messages at once (BATCH_ACK_MESSAGE). On the wire, the members of an ack have names of one
# or two letters, and the offsets are a bit set.

MAX_ACK_SPAN = 65_536
"""The highest offset that one ack may contain, counted from its ``start_offset``. A pop returns at most 32 messages."""


class BatchAck(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledgement of messages of one queue from one pop.

    Attributes:
        start_offset: Queue offset at which the pop began.
        retry: 0, 1 or 2, as in ``ExtraInfo``.
        pop_time: Time of the pop, epoch ms.
        invisible_time: Invisible time of the pop in ms.
        bit_set: The offsets of the messages, counted from ``start_offset``, as ``pack_bits`` encodes them.
    """

    consumer_group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    retry: str = msgspec.field(name="r", default="0")
    start_offset: Long = msgspec.field(name="so")
    queue_id: Int = msgspec.field(name="q")
    revive_queue_id: Int = msgspec.field(name="rq")
    pop_time: Long = msgspec.field(name="pt")
    invisible_time: Long = msgspec.field(name="it")
    bit_set: bytes = msgspec.field(name="b", default=b"")


class BatchAckMessageRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str = ""
    acks: tuple[BatchAck, ...] = ()


def pack_bits(bits: Iterable[int]) -> bytes:
    """Return bytes in which the bits with the given numbers are set.

    Bit i means that the message at ``start_offset + i`` is acknowledged. Bit 0 is the lowest bit of the first byte.

    Raises:
        LocalProtocolError: If a number is not from 0 to MAX_ACK_SPAN.
    """
    value = 0
    for bit in bits:
        if not 0 <= bit <= MAX_ACK_SPAN:
            raise LocalProtocolError(
                f"offset {bit}, counted from start_offset, must be from 0 to {MAX_ACK_SPAN}; acknowledge this message alone"
            )
        value |= 1 << bit
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def unpack_bits(data: bytes) -> tuple[int, ...]:
    """Return the numbers of the set bits (see ``pack_bits``) in ascending order. Numbers above MAX_ACK_SPAN are left out."""
    octets = enumerate(data[: MAX_ACK_SPAN // 8 + 1])
    bits = (8 * at + place for at, octet in octets if octet for place in range(8) if octet >> place & 1)
    return tuple(bit for bit in bits if bit <= MAX_ACK_SPAN)


# Bodies with the state and the counters that a broker reports.


class BrokerMemberGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The replicas of one broker name.

    Attributes:
        broker_addrs: Broker id -> ``host:port``; id 0 is the master.
    """

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[Long, str] = {}


class GetBrokerMemberGroupResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    broker_member_group: BrokerMemberGroup | None = None


class BrokerStatsItem(msgspec.Struct, frozen=True):
    """A counter over one span of time.

    Attributes:
        tps: ``sum`` per second.
        avgpt: ``sum`` per call, e.g. bytes per put.
    """

    sum: Long = 0
    tps: Double = 0.0
    avgpt: Double = 0.0


class BrokerStatsData(msgspec.Struct, frozen=True, rename="camel"):
    """Response of VIEW_BROKER_STATS_DATA: one counter over the last minute, hour and day."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class ConsumeQueueData(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of a consume queue.

    Attributes:
        physic_offset: Position of the entry's message in the commit log, in bytes.
        physic_size: Size of the entry's message in bytes.
        tags_code: ``string_hash`` of the tag, or 0 without a tag. In the topic of delayed messages, it is the due time, epoch ms.
        eval: True if the entry has an extension and the filter of the request's group matches. Brokers do not evaluate the filter
            for other entries (``AdminBrokerProcessor.queryConsumeQueue``).
    """

    physic_offset: Long = 0
    physic_size: Int = 0
    tags_code: Long = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_CONSUME_QUEUE.

    Attributes:
        max_queue_index: Offset that the next message will get.
        min_queue_index: Offset of the oldest message.
        filter_data: JSON of the group's filter, or a text that says that the group is not online. None if the request names no
            group.
    """

    queue_data: tuple[ConsumeQueueData, ...] = ()
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    max_queue_index: Long = 0
    min_queue_index: Long = 0


# Users and permissions of brokers with authentication (since 5.3).


class UserInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A user of a broker.

    Brokers return the password as well (``UserConverter``).

    Attributes:
        user_type: Super or Normal.
        user_status: Enable or disable.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A permission in a policy.

    Attributes:
        resource: e.g. ``Topic:T``.
        actions: Some of Pub, Sub, Create, Update, Delete, Get, List, Any and All (``Action``).
        decision: Allow or Deny.
    """

    resource: str | None = None
    actions: tuple[str, ...] = ()
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A policy, which contains permissions of one type.

    Attributes:
        policy_type: Custom or Default.
    """

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] = ()


class AclInfo(msgspec.Struct, frozen=True):
    """The permissions of a user.

    Attributes:
        subject: ``User:name``.
    """

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] = ()
