"""Headers about pops: the broker hands messages to a member of a group; each message is acknowledged, or delivered again after
its invisible time."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int, Long
from .base import Header, TopicRequestHeader

__all__ = [
    "AckMessageRequestHeader",
    "ChangeInvisibleTimeRequestHeader",
    "ChangeInvisibleTimeResponseHeader",
    "NotificationRequestHeader",
    "NotificationResponseHeader",
    "PeekMessageRequestHeader",
    "PollingInfoRequestHeader",
    "PollingInfoResponseHeader",
    "PopMessageRequestHeader",
    "PopMessageResponseHeader",
]


class PopMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of POP_MESSAGE.

    ``queueId``: -1 for any queue. ``invisibleTime``: ms for which other members do not get the messages. ``pollTime``: ms for
    which the broker may hold the request. ``bornTime``: epoch ms of the request. ``initMode``: where a new group begins: 0 at the
    oldest message, 1 at the newest, or at offset 0 while the message there is in memory (``initPopOffsetByCheckMsgInMem``).
    ``expType``, ``exp``: kind and text of the filter. ``attemptId``: an id that stays the same when an ordered pop is repeated.
    """

    request_code: ClassVar[int | None] = RequestCode.POP_MESSAGE

    consumerGroup: str
    topic: str
    queueId: Int = 0
    maxMsgNums: Int = 0
    invisibleTime: Long = 0
    pollTime: Long = 0
    bornTime: Long = 0
    initMode: Int = 0
    expType: str | None = None
    exp: str | None = None
    order: bool | None = False
    attemptId: str | None = None


class PopMessageResponseHeader(Header, kw_only=True):
    """Header of the response to POP_MESSAGE. ``popTime``: epoch ms. ``invisibleTime``: ms. ``restNum``: messages that are left to
    pop. The module ``pop`` reads the three infos."""

    popTime: Long = 0
    invisibleTime: Long = 0
    reviveQid: Int = 0
    restNum: Long = 0
    startOffsetInfo: str | None = None
    msgOffsetInfo: str | None = None
    orderCountInfo: str | None = None


class AckMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of ACK_MESSAGE. ``extraInfo``: property POP_CK of the message. ``offset``: its queue offset."""

    request_code: ClassVar[int | None] = RequestCode.ACK_MESSAGE

    consumerGroup: str
    topic: str
    queueId: Int
    extraInfo: str
    offset: Long
    liteTopic: str | None = None


class ChangeInvisibleTimeRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of CHANGE_MESSAGE_INVISIBLETIME, with two more fields than an ack.

    ``invisibleTime``: ms from now. ``suspend``: True delivers the message again without counting an attempt. It has no effect
    for ordered messages, nor on brokers that do not know it (5.3.3).
    """

    request_code: ClassVar[int | None] = RequestCode.CHANGE_MESSAGE_INVISIBLETIME

    consumerGroup: str
    topic: str
    queueId: Int
    extraInfo: str
    offset: Long
    invisibleTime: Long
    liteTopic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponseHeader(Header, kw_only=True):
    popTime: Long = 0
    invisibleTime: Long = 0
    reviveQid: Int = 0


class NotificationRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of NOTIFICATION, with which a client waits for messages to pop: the broker responds when there are some,
    or after ``pollTime``. ``pollTime``: ms, ``bornTime``: epoch ms, as in a pop."""

    request_code: ClassVar[int | None] = RequestCode.NOTIFICATION

    consumerGroup: str
    topic: str
    queueId: Int = 0
    pollTime: Long = 0
    bornTime: Long = 0
    order: bool | None = False
    attemptId: str | None = None
    expType: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header, kw_only=True):
    """Header of the response to NOTIFICATION. ``hasMsg``: True if there are messages to pop. ``pollingFull``: True if the
    broker holds too many requests to hold this one."""

    hasMsg: bool = False
    pollingFull: bool = False


class PeekMessageRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.PEEK_MESSAGE

    topic: str
    queueId: Int = 0
    maxMsgNums: Int = 0
    consumerGroup: str


class PollingInfoRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.POLLING_INFO

    consumerGroup: str
    topic: str
    queueId: Int = 0


class PollingInfoResponseHeader(Header, kw_only=True):
    """Header of the response to POLLING_INFO. ``pollingNum``: number of requests that the broker holds for the group and
    the queue."""

    pollingNum: Int = 0
