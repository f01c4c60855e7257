"""Headers of pulls, and of the other requests between a consumer of a group and its broker."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int, Long
from .base import Header, RpcRequestHeader, TopicRequestHeader

__all__ = [
    "ConsumeMessageDirectlyResultRequestHeader",
    "ConsumerSendMsgBackRequestHeader",
    "GetConsumerListByGroupRequestHeader",
    "GetConsumerListByGroupResponseHeader",
    "GetConsumerRunningInfoRequestHeader",
    "GetConsumerStatusRequestHeader",
    "LockBatchMqRequestHeader",
    "NotifyConsumerIdsChangedRequestHeader",
    "PullMessageRequestHeader",
    "PullMessageResponseHeader",
    "UnlockBatchMqRequestHeader",
]


class PullMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of PULL_MESSAGE.

    ``suspendTimeoutMillis``: ms for which the broker may hold the request while it has no message (with PullSysFlag.SUSPEND).
    ``commitOffset``: offset to commit (with PullSysFlag.COMMIT_OFFSET). ``subVersion``: epoch ms. ``expressionType``: TAG or
    SQL92.
    """

    request_code: ClassVar[int | None] = RequestCode.PULL_MESSAGE

    consumerGroup: str
    topic: str
    liteTopic: str | None = None
    queueId: Int
    queueOffset: Long
    maxMsgNums: Int
    sysFlag: Int
    commitOffset: Long
    suspendTimeoutMillis: Long
    subscription: str | None = None
    subVersion: Long
    expressionType: str | None = None
    maxMsgBytes: Int | None = None
    requestSource: Int | None = None
    proxyFrowardClientId: str | None = None


class PullMessageResponseHeader(Header, kw_only=True):
    suggestWhichBrokerId: Long
    nextBeginOffset: Long
    minOffset: Long
    maxOffset: Long
    offsetDelta: Long | None = None
    topicSysFlag: Int | None = None
    groupSysFlag: Int | None = None
    forbiddenType: Int | None = None


class ConsumerSendMsgBackRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of CONSUMER_SEND_MSG_BACK, for a message that could not be consumed. ``offset``: its commit log offset.
    ``delayLevel``: level of the delay before the next delivery; 0 is level 3 + reconsume times, a number below 0 moves the message
    to the dead-letter topic immediately. ``originMsgId``: the message's unique id (``MQClientAPIImpl.consumerSendMessageBack``).
    ``maxReconsumeTimes``: None for the group's ``retry_max_times``; a message with as many reconsume times goes to the dead-letter
    topic."""

    request_code: ClassVar[int | None] = RequestCode.CONSUMER_SEND_MSG_BACK

    offset: Long
    group: str
    delayLevel: Int
    originMsgId: str | None = None
    originTopic: str | None = None
    unitMode: bool = False
    maxReconsumeTimes: Int | None = None


class GetConsumerListByGroupRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumerGroup: str


class GetConsumerListByGroupResponseHeader(Header, kw_only=True):
    """Header of the response to GET_CONSUMER_LIST_BY_GROUP. It is empty: the body has the list."""


class NotifyConsumerIdsChangedRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of NOTIFY_CONSUMER_IDS_CHANGED, a one-way request with which a broker says that the members of
    ``consumerGroup`` have changed."""

    request_code: ClassVar[int | None] = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumerGroup: str


class LockBatchMqRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.LOCK_BATCH_MQ


class UnlockBatchMqRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.UNLOCK_BATCH_MQ


class GetConsumerStatusRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of a request for the offsets that clients have in memory: code 221 from broker to client, 223 from an
    administrator to a broker.

    ``clientAddr``: id of the only client that the broker asks; None or "" for all clients of the group.
    """

    request_code: ClassVar[int | None] = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

    topic: str
    group: str
    clientAddr: str | None = None


class GetConsumerRunningInfoRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of GET_CONSUMER_RUNNING_INFO, which an administrator sends and the broker forwards to the client ``clientId``.

    ``jstackEnable``: True requests the stacks of the client's threads too.
    """

    request_code: ClassVar[int | None] = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumerGroup: str
    clientId: str
    jstackEnable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of CONSUME_MESSAGE_DIRECTLY, which an administrator sends and the broker forwards with the stored message as the
    body. The client consumes the message immediately and returns the result. ``msgId``: offset id."""

    request_code: ClassVar[int | None] = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumerGroup: str
    clientId: str | None = None
    msgId: str | None = None
    brokerName: str | None = None
    topic: str | None = None
    topicSysFlag: Int | None = None
    groupSysFlag: Int | None = None
