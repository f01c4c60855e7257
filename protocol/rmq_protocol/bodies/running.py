"""Running info of a consumer, which a broker requests for an administrator. ``droped`` is the wire's spelling."""

from __future__ import annotations

import msgspec

from ..heartbeat import SubscriptionData
from ..java_types import Double, Int, Long
from ..message import MessageQueue

__all__ = [
    "ConsumeMessageDirectlyResult",
    "ConsumeStatus",
    "ConsumerRunningInfo",
    "PopProcessQueueInfo",
    "ProcessQueueInfo",
]


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
    """The state of one queue that a consumer pops from. ``last_pop_timestamp``: epoch ms."""

    wait_ack_count: Int = 0
    droped: bool = False
    last_pop_timestamp: Long = 0


class ConsumeStatus(msgspec.Struct, frozen=True):
    """The statistics of one topic. ``pull_rt``, ``consume_rt``: average milliseconds per pull and per call of the
    handler; names with ``tps``: messages per second; ``consume_failed_msgs``: messages whose consumption failed in the last
    hour."""

    pull_rt: Double = msgspec.field(name="pullRT", default=0.0)
    pull_tps: Double = msgspec.field(name="pullTPS", default=0.0)
    consume_rt: Double = msgspec.field(name="consumeRT", default=0.0)
    consume_ok_tps: Double = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: Double = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: Long = msgspec.field(name="consumeFailedMsgs", default=0)


class ConsumerRunningInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_CONSUMER_RUNNING_INFO. ``properties``: PROP_CONSUME_TYPE, PROP_CONSUMER_START_TIMESTAMP (epoch ms),
    PROP_CLIENT_VERSION, PROP_NAMESERVER_ADDR, PROP_CONSUMEORDERLY and others that the client adds. ``status_table``: topic ->
    statistics. ``jstack``: stacks of the client's threads, if they were requested."""

    properties: dict[str, str] = {}
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = {}
    status_table: dict[str, ConsumeStatus] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None


class ConsumeMessageDirectlyResult(msgspec.Struct, frozen=True, rename="camel"):
    """Response of CONSUME_MESSAGE_DIRECTLY. ``consume_result``: CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT,
    CR_THROW_EXCEPTION or CR_RETURN_NULL (``CMResult``). ``spent_time_mills``: duration of the handler's call in ms.
    """

    consume_result: str | None = None
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Long = 0
