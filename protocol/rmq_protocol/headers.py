"""Custom headers: one Struct for each kind of request and response, converted from and to the strings of extFields.

A header is declared once, with the class and field names of Java and in the order of the Java class. Everything else is derived
from the declaration: the tables by request code and, on first use, how each field is written and read and whether it is required.
The rules are those of ``RemotingCommand.makeCustomHeaderToNet`` and ``decodeCommandCustomHeader``: a field that is null is left
out, integers are decimal, booleans are ``true`` and ``false``, and fields that the class does not declare are ignored.

This is the general path, which takes 1 us to write a header and 2 us to read one. Sends and their replies have a faster path in
``send_codec``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from .command import RemotingCommand
from .constants import RequestCode
from .errors import LocalProtocolError, RemoteProtocolError, shown
from .java_types import Int, Long


class BoundaryType(StrEnum):
    """The message that a search by time selects.

    LOWER selects the first message stored at that time or later, UPPER the last message stored at that time or earlier.
    ``from_ext`` ignores case and reads any other string as LOWER (``BoundaryType.getType``).
    """

    LOWER = "LOWER"
    UPPER = "UPPER"


class Header(msgspec.Struct, kw_only=True, gc=False):
    """A custom header.

    Attributes:
        request_code: The code of the request, or the first one if several requests have this header. None if no request of 5.5.0
            has it.
        choices: Integer field -> the only values that ``from_ext`` accepts.
    """

    request_code: ClassVar[int | None] = None
    choices: ClassVar[Mapping[str, frozenset[int]]] = {}


class RpcRequestHeader(Header, kw_only=True):
    """The fields of requests that a broker may forward to another broker.

    Attributes:
        ns: The client's namespace.
        nsd: True if the names in the request belong to the namespace.
        bname: Name of the broker.
        oway: True for a one-way request.
    """

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None


class TopicRequestHeader(RpcRequestHeader, kw_only=True):
    """The fields of requests about a topic.

    Attributes:
        lo: True if topic and queue are logical, as those of a static topic are.
    """

    lo: bool | None = None


H = TypeVar("H", bound=Header)

REQUEST_HEADERS: Final[dict[int, type[Header]]] = {}
"""Headers of requests, by request code. Brokers send 39, 40, 220, 221, 307, 309, 326 and 200073 to clients.

Requests whose codes are missing have no header, with two exceptions that clients do not need: the requests with which brokers
register and talk to each other (103, 104, 322, 902 to 906, 908, 1008), and 513."""

RESPONSE_HEADERS: Final[dict[int, type[Header]]] = {}
"""Headers of responses, by request code. Codes whose response has no header are missing."""


def _request(*codes: RequestCode) -> Callable[[type[H]], type[H]]:
    """Register the decorated class as the header of the requests with these codes."""
    return _registered(REQUEST_HEADERS, codes)


def _response(*codes: RequestCode) -> Callable[[type[H]], type[H]]:
    """Register the decorated class as the header of the responses to these requests."""
    return _registered(RESPONSE_HEADERS, codes)


def _registered(table: dict[int, type[Header]], codes: tuple[RequestCode, ...]) -> Callable[[type[H]], type[H]]:
    def register(cls: type[H]) -> type[H]:
        cls.request_code = codes[0]
        table.update(dict.fromkeys(codes, cls))
        return cls

    return register


_DIGITS = re.compile(r"[+-]?\d{1,40}").fullmatch


class _Field(NamedTuple):
    name: str
    kind: type
    low: int
    high: int
    required: bool


@cache
def _fields(cls: type[Header]) -> tuple[_Field, ...]:
    """Return the fields in Java's order: first the fields of the class itself, then those of its base classes, the nearest base
    class first.
    """
    infos = {info.name: info for info in msgspec.structs.fields(cls)}
    bases = [base for base in cls.__mro__ if issubclass(base, Header)]
    names = [name for base in bases for name in base.__annotations__ if name in infos]
    return tuple(_field(infos[name]) for name in dict.fromkeys(names))


def _field(info: msgspec.structs.FieldInfo) -> _Field:
    kind: Any = info.type
    low = high = 0
    for option in (kind, *get_args(kind)):
        if get_origin(option) is Annotated:
            kind, meta = get_args(option)
            low, high = meta.ge, meta.le
            break
        if isinstance(option, type) and option is not type(None):
            kind = option
    return _Field(info.name, kind, low, high, info.required)


def to_ext(header: Header) -> dict[str, str]:
    """Return the extFields of ``header``. Fields that are None are left out.

    Raises:
        LocalProtocolError: If an integer is outside the range of the field's Java type (Integer, 32 bits, or Long, 64 bits). The
            error names header and field.
    """
    ext: dict[str, str] = {}
    for name, kind, low, high, _ in _fields(header.__class__):
        value = getattr(header, name)
        if value is None:
            continue
        if kind is str:
            ext[name] = value
        elif kind is bool:
            ext[name] = "true" if value else "false"
        elif kind is int:
            if not low <= value <= high:
                raise LocalProtocolError(f"{header.__class__.__name__}.{name}: {shown(value)} must be in {low}..{high}")
            ext[name] = str(int(value))
        else:
            ext[name] = str(value)
    return ext


def request_of(header: Header, body: bytes = b"", remark: str | None = None) -> RemotingCommand:
    """Return a request with this header and the first of its request codes.

    Raises:
        LocalProtocolError: If ``to_ext`` refuses the header.
    """
    assert header.request_code is not None
    return RemotingCommand(code=header.request_code, remark=remark, ext_fields={**to_ext(header)}, body=body)


def from_ext(cls: type[H], ext: Mapping[str, str | None] | None, *, lenient: bool = False) -> H:
    """Return the header in extFields. Unknown fields are ignored, and a field that is missing or None gets its default.

    A boolean is True if its string is ``true`` in any case, else False.

    Args:
        ext: The extFields. None if the peer sent none.
        lenient: True sets a missing required field to None, against its declared type, instead of raising an error.

    Raises:
        RemoteProtocolError: If an integer is not decimal, does not fit its Java type or is none of the field's choices, or if a
            required field is missing. The error names header and field.
    """
    values: dict[str, Any] = {}
    given = ext or {}
    for field in _fields(cls):
        text = given.get(field.name)
        if text is not None:
            values[field.name] = _value(cls, field, text)
        elif field.required:
            if not lenient:
                raise RemoteProtocolError(f"{cls.__name__}.{field.name} is missing")
            values[field.name] = None
    return cls(**values)


def _value(cls: type[Header], field: _Field, text: str) -> Any:
    if field.kind is str:
        return text
    if field.kind is bool:
        return text.lower() == "true"
    if field.kind is int:
        value = int(text) if _DIGITS(text) else None
        if value is None or not field.low <= value <= field.high:
            raise RemoteProtocolError(
                f"{cls.__name__}.{field.name}: {text[:60]!r} is not an integer in {field.low}..{field.high}"
            )
        if field.name in cls.choices and value not in cls.choices[field.name]:
            raise RemoteProtocolError(f"{cls.__name__}.{field.name}: {value} is none of {sorted(cls.choices[field.name])}")
        return value
    return BoundaryType.UPPER if text.upper() == "UPPER" else BoundaryType.LOWER


# Headers of sends, recalls and replies between clients. Sends and replies with the codes 10 and 324 have long field names; those
# with the codes 310, 320 and 325 have one letter per field.


@_request(RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
class SendMessageRequestHeader(TopicRequestHeader, kw_only=True):
    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: Int
    queueId: Int
    sysFlag: Int
    bornTimestamp: Long
    flag: Int
    properties: str | None = None
    reconsumeTimes: Int | None = None
    unitMode: bool | None = None
    batch: bool | None = None
    maxReconsumeTimes: Int | None = None


@_request(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
class SendMessageRequestHeaderV2(TopicRequestHeader, kw_only=True):
    """Header of a send with one-letter names.

    ``a`` to ``n`` are, in this order: producerGroup, topic, defaultTopic, defaultTopicQueueNums, queueId, sysFlag,
    bornTimestamp, flag, properties, reconsumeTimes, unitMode, maxReconsumeTimes, batch, bname (name of the broker).
    """

    a: str
    b: str
    c: str
    d: Int
    e: Int
    f: Int
    g: Long
    h: Int
    i: str | None = None
    j: Int | None = None
    k: bool | None = None
    l: Int | None = None  # noqa: E741 - the field's name on the wire
    m: bool | None = None
    n: str | None = None


@_response(
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
class SendMessageResponseHeader(Header, kw_only=True):
    """Header of the response to a send.

    Attributes:
        msgId: The offset message id. The response to a batch has the ids of all its messages, joined by commas.
        queueOffset: Queue offset of the message, or of the first message of a batch.
    """

    msgId: str
    queueId: Int
    queueOffset: Long
    transactionId: str | None = None
    batchUniqId: str | None = None
    recallHandle: str | None = None


@_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
class ReplyMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of PUSH_REPLY_MESSAGE_TO_CLIENT, with which the broker forwards a reply to the client that waits for it.

    The body of the request is the body of the reply.

    Attributes:
        bornHost: ``ip:port`` of the client that replied.
        storeHost: ``ip:port`` of the broker.
        bornTimestamp: Time of the reply, epoch ms.
        storeTimestamp: Time at which the broker received it, epoch ms.
    """

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: Int
    queueId: Int
    sysFlag: Int
    bornTimestamp: Long
    flag: Int
    properties: str | None = None
    reconsumeTimes: Int | None = None
    unitMode: bool = False
    bornHost: str
    storeHost: str
    storeTimestamp: Long = 0


@_request(RequestCode.RECALL_MESSAGE)
class RecallMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of RECALL_MESSAGE.

    Attributes:
        recallHandle: The handle in the response to the send of the delayed message. The module ``recall`` reads it.
    """

    producerGroup: str | None = None
    topic: str
    recallHandle: str


@_response(RequestCode.RECALL_MESSAGE)
class RecallMessageResponseHeader(Header, kw_only=True):
    """Header of the response to RECALL_MESSAGE.

    Attributes:
        msgId: Unique id of the message that was recalled.
    """

    msgId: str


def send_header_v2(header: SendMessageRequestHeader) -> SendMessageRequestHeaderV2:
    """Return the one-letter form of a header (``createSendMessageRequestHeaderV2``).

    ``ns``, ``nsd``, ``oway`` and ``lo`` are not copied. None becomes 0 for ``reconsumeTimes``, and False for ``unitMode`` and
    ``batch``.
    """
    return SendMessageRequestHeaderV2(
        a=header.producerGroup,
        b=header.topic,
        c=header.defaultTopic,
        d=header.defaultTopicQueueNums,
        e=header.queueId,
        f=header.sysFlag,
        g=header.bornTimestamp,
        h=header.flag,
        i=header.properties,
        j=header.reconsumeTimes or 0,
        k=bool(header.unitMode),
        l=header.maxReconsumeTimes,
        m=bool(header.batch),
        n=header.bname,
    )


def send_header_v1(header: SendMessageRequestHeaderV2) -> SendMessageRequestHeader:
    """Return the long form of a one-letter header (``createSendMessageRequestHeaderV1``).

    ``ns``, ``nsd``, ``oway`` and ``lo`` are not copied.
    """
    return SendMessageRequestHeader(
        producerGroup=header.a,
        topic=header.b,
        defaultTopic=header.c,
        defaultTopicQueueNums=header.d,
        queueId=header.e,
        sysFlag=header.f,
        bornTimestamp=header.g,
        flag=header.h,
        properties=header.i,
        reconsumeTimes=header.j,
        unitMode=header.k,
        maxReconsumeTimes=header.l,
        batch=header.m,
        bname=header.n,
    )


# Headers of pulls, and of the other requests between a consumer of a group and its broker.


@_request(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
class PullMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of PULL_MESSAGE.

    Attributes:
        suspendTimeoutMillis: Ms for which the broker may hold the request while it has no message. Only used with
            PullSysFlag.SUSPEND.
        commitOffset: Offset to commit. Only used with PullSysFlag.COMMIT_OFFSET.
        subVersion: Version of the subscription, epoch ms.
        expressionType: Kind of the filter, TAG or SQL92.
    """

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


@_response(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
class PullMessageResponseHeader(Header, kw_only=True):
    suggestWhichBrokerId: Long
    nextBeginOffset: Long
    minOffset: Long
    maxOffset: Long
    offsetDelta: Long | None = None
    topicSysFlag: Int | None = None
    groupSysFlag: Int | None = None
    forbiddenType: Int | None = None


@_request(RequestCode.CONSUMER_SEND_MSG_BACK)
class ConsumerSendMsgBackRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of CONSUMER_SEND_MSG_BACK, for a message that could not be consumed.

    Attributes:
        offset: The commit log offset of the message.
        delayLevel: Level of the delay before the next delivery. 0 stands for the level 3 + reconsume times, and a negative number
            moves the message to the dead-letter topic immediately.
        originMsgId: The unique id of the message (``MQClientAPIImpl.consumerSendMessageBack``).
        maxReconsumeTimes: The number of reconsume times at which the message goes to the dead-letter topic. None for the group's
            ``retry_max_times``.
    """

    offset: Long
    group: str
    delayLevel: Int
    originMsgId: str | None = None
    originTopic: str | None = None
    unitMode: bool = False
    maxReconsumeTimes: Int | None = None


@_request(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroupRequestHeader(RpcRequestHeader, kw_only=True):
    consumerGroup: str


@_response(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroupResponseHeader(Header, kw_only=True):
    """Header of the response to GET_CONSUMER_LIST_BY_GROUP. It is empty because the list is in the body."""


@_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
class NotifyConsumerIdsChangedRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of NOTIFY_CONSUMER_IDS_CHANGED, a one-way request with which a broker reports that the members of
    ``consumerGroup`` have changed.
    """

    consumerGroup: str


@_request(RequestCode.LOCK_BATCH_MQ)
class LockBatchMqRequestHeader(RpcRequestHeader, kw_only=True):
    pass


@_request(RequestCode.UNLOCK_BATCH_MQ)
class UnlockBatchMqRequestHeader(RpcRequestHeader, kw_only=True):
    pass


@_request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
class GetConsumerStatusRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of a request for the offsets that clients have in memory: code 221 from broker to client, 223 from an
    administrator to a broker.

    Attributes:
        clientAddr: Id of the only client whose offsets are requested. None or "" for all clients of the group.
    """

    topic: str
    group: str
    clientAddr: str | None = None


@_request(RequestCode.GET_CONSUMER_RUNNING_INFO)
class GetConsumerRunningInfoRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of GET_CONSUMER_RUNNING_INFO, which an administrator sends and the broker forwards to the client ``clientId``.

    Attributes:
        jstackEnable: True additionally requests the stacks of the client's threads.
    """

    consumerGroup: str
    clientId: str
    jstackEnable: bool = False


@_request(RequestCode.CONSUME_MESSAGE_DIRECTLY)
class ConsumeMessageDirectlyResultRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of CONSUME_MESSAGE_DIRECTLY, which an administrator sends and the broker forwards with the stored message as the
    body. The client consumes the message immediately and returns the result.

    Attributes:
        msgId: Offset id of the message.
    """

    consumerGroup: str
    clientId: str | None = None
    msgId: str | None = None
    brokerName: str | None = None
    topic: str | None = None
    topicSysFlag: Int | None = None
    groupSysFlag: Int | None = None


# Headers about the offsets of queues and the progress of groups.


@_request(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of QUERY_CONSUMER_OFFSET.

    ``setZeroIfNotFound`` decides the response for a group that has no offset. If it is True or None, the broker returns 0 if the
    queue still begins at 0 and its first message is in memory, and QUERY_NOT_FOUND otherwise. If it is False, the broker returns
    QUERY_NOT_FOUND (``ConsumerManageProcessor``).
    """

    consumerGroup: str
    topic: str
    queueId: Int
    setZeroIfNotFound: bool | None = None


@_response(RequestCode.QUERY_CONSUMER_OFFSET)
class QueryConsumerOffsetResponseHeader(Header, kw_only=True):
    offset: Long


@_request(RequestCode.UPDATE_CONSUMER_OFFSET)
class UpdateConsumerOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    consumerGroup: str
    topic: str
    queueId: Int
    commitOffset: Long


@_response(RequestCode.UPDATE_CONSUMER_OFFSET)
class UpdateConsumerOffsetResponseHeader(Header, kw_only=True):
    pass


@_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of SEARCH_OFFSET_BY_TIMESTAMP.

    Attributes:
        timestamp: Store time, epoch ms.
        boundaryType: Name of a ``BoundaryType``. None counts as LOWER.
    """

    topic: str
    liteTopic: str | None = None
    queueId: Int
    timestamp: Long
    boundaryType: BoundaryType | None = None


@_response(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffsetResponseHeader(Header, kw_only=True):
    offset: Long


@_request(RequestCode.GET_MAX_OFFSET)
class GetMaxOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of GET_MAX_OFFSET.

    Attributes:
        committed: Brokers of 5.5.0 ignore it.
    """

    topic: str
    queueId: Int
    committed: bool = True


@_response(RequestCode.GET_MAX_OFFSET)
class GetMaxOffsetResponseHeader(Header, kw_only=True):
    offset: Long


@_request(RequestCode.GET_MIN_OFFSET)
class GetMinOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    queueId: Int


@_response(RequestCode.GET_MIN_OFFSET)
class GetMinOffsetResponseHeader(Header, kw_only=True):
    offset: Long


@_request(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestMsgStoretimeRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    queueId: Int


@_response(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestMsgStoretimeResponseHeader(Header, kw_only=True):
    """Header of the response to GET_EARLIEST_MSG_STORETIME.

    Attributes:
        timestamp: Store time of the queue's oldest message, epoch ms. -1 if the queue is empty.
    """

    timestamp: Long


@_request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
class ResetOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of a reset of offsets: 220 from broker to client, 222 from an administrator to a broker.

    Brokers that reset offsets themselves (``useServerSideResetOffset``, the default) ignore ``isForce``. Other brokers ignore
    ``queueId`` and ``offset``.

    Attributes:
        timestamp: Store time to reset to, epoch ms. -1 resets to the end of the queue.
        queueId: Id of the queue to reset. -1 resets all queues.
        offset: Offset to which the queue ``queueId`` is reset, instead of to a time. None or -1 resets to the time.
        isForce: True also allows a reset forward.
    """

    group: str
    topic: str
    queueId: Int = -1
    offset: Long | None = None
    timestamp: Long = 0
    isForce: bool = False


@_request(RequestCode.CLONE_GROUP_OFFSET)
class CloneGroupOffsetRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of CLONE_GROUP_OFFSET, which copies the offsets of ``topic`` from ``srcGroup`` to ``destGroup``.

    If ``topic`` is missing, brokers of 5.5.0 copy nothing and still respond with SUCCESS
    (``AdminBrokerProcessor.cloneGroupOffset``).

    Attributes:
        offline: False skips the topic if ``srcGroup`` has running consumers and none of them subscribes to it.
    """

    srcGroup: str
    destGroup: str
    topic: str | None = None
    offline: bool = False


@_request(RequestCode.QUERY_CORRECTION_OFFSET)
class QueryCorrectionOffsetHeader(TopicRequestHeader, kw_only=True):
    """Header of QUERY_CORRECTION_OFFSET.

    Attributes:
        filterGroups: Groups to leave out, joined by commas. The broker DELETES the offsets of these groups in all topics
            (``ConsumerOffsetManager.queryMinOffsetInAllGroup``).
    """

    filterGroups: str | None = None
    compareGroup: str
    topic: str


class InitConsumerOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of a request that sets the first offsets of a group. The request has no code in 5.5.0.

    Attributes:
        initMode: 0 for the oldest message, 1 for the end of the queue.
    """

    topic: str | None = None
    initMode: Int = 0


# Headers about pops. In a pop, the broker hands messages to a member of a group. A message that is not acknowledged within its
# invisible time is delivered again.


@_request(RequestCode.POP_MESSAGE)
class PopMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of POP_MESSAGE.

    Attributes:
        queueId: Id of the queue. -1 for any queue.
        invisibleTime: Ms for which other members do not get the messages.
        pollTime: Ms for which the broker may hold the request.
        bornTime: Time of the request, epoch ms.
        initMode: The position at which a new group begins. 0 stands for the oldest message. 1 stands for the newest message, or
            for offset 0 while the message there is in memory (``initPopOffsetByCheckMsgInMem``).
        expType: Kind of the filter.
        exp: The filter expression.
        attemptId: An id that stays the same when an ordered pop is repeated.
    """

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


@_response(RequestCode.POP_MESSAGE)
class PopMessageResponseHeader(Header, kw_only=True):
    """Header of the response to POP_MESSAGE. The module ``pop`` reads the three fields whose names end with ``Info``.

    Attributes:
        popTime: Time of the pop, epoch ms.
        invisibleTime: Ms for which other members do not get the messages.
        restNum: Number of messages that are left to pop.
    """

    popTime: Long = 0
    invisibleTime: Long = 0
    reviveQid: Int = 0
    restNum: Long = 0
    startOffsetInfo: str | None = None
    msgOffsetInfo: str | None = None
    orderCountInfo: str | None = None


@_request(RequestCode.ACK_MESSAGE, RequestCode.ACK_LITE_MESSAGE)
class AckMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of ACK_MESSAGE.

    Attributes:
        extraInfo: Property POP_CK of the message.
        offset: Queue offset of the message.
    """

    consumerGroup: str
    topic: str
    queueId: Int
    extraInfo: str
    offset: Long
    liteTopic: str | None = None


@_request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleTimeRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of CHANGE_MESSAGE_INVISIBLETIME, with two more fields than an ack.

    Attributes:
        invisibleTime: New invisible time, ms from now.
        suspend: True delivers the message again without counting an attempt. It has no effect on ordered messages, and older
            brokers such as 5.3.3 ignore it.
    """

    consumerGroup: str
    topic: str
    queueId: Int
    extraInfo: str
    offset: Long
    invisibleTime: Long
    liteTopic: str | None = None
    suspend: bool = False


@_response(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleTimeResponseHeader(Header, kw_only=True):
    popTime: Long = 0
    invisibleTime: Long = 0
    reviveQid: Int = 0


@_request(RequestCode.NOTIFICATION)
class NotificationRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of NOTIFICATION, with which a client waits for messages to pop. The broker responds when there are some, or after
    ``pollTime``.

    Attributes:
        pollTime: Ms for which the broker may hold the request.
        bornTime: Time of the request, epoch ms.
    """

    consumerGroup: str
    topic: str
    queueId: Int = 0
    pollTime: Long = 0
    bornTime: Long = 0
    order: bool | None = False
    attemptId: str | None = None
    expType: str | None = None
    exp: str | None = None


@_response(RequestCode.NOTIFICATION)
class NotificationResponseHeader(Header, kw_only=True):
    """Header of the response to NOTIFICATION.

    Attributes:
        hasMsg: True if there are messages to pop.
        pollingFull: True if the broker did not hold this request because it already holds too many.
    """

    hasMsg: bool = False
    pollingFull: bool = False


@_request(RequestCode.PEEK_MESSAGE)
class PeekMessageRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    queueId: Int = 0
    maxMsgNums: Int = 0
    consumerGroup: str


@_request(RequestCode.POLLING_INFO)
class PollingInfoRequestHeader(TopicRequestHeader, kw_only=True):
    consumerGroup: str
    topic: str
    queueId: Int = 0


@_response(RequestCode.POLLING_INFO)
class PollingInfoResponseHeader(Header, kw_only=True):
    """Header of the response to POLLING_INFO.

    Attributes:
        pollingNum: Number of requests that the broker holds for the group and the queue.
    """

    pollingNum: Int = 0


# Headers about lite topics, which are many small topics under one parent topic (5.5 and later).


@_request(RequestCode.POP_LITE_MESSAGE)
class PopLiteMessageRequestHeader(RpcRequestHeader, kw_only=True):
    clientId: str
    consumerGroup: str
    topic: str
    maxMsgNum: Int = 0
    invisibleTime: Long = 0
    pollTime: Long = 0
    bornTime: Long = 0
    attemptId: str | None = None


@_response(RequestCode.POP_LITE_MESSAGE)
class PopLiteMessageResponseHeader(Header, kw_only=True):
    popTime: Long = 0
    invisibleTime: Long = 0
    reviveQid: Int = 0
    startOffsetInfo: str | None = None
    msgOffsetInfo: str | None = None
    orderCountInfo: str | None = None


@_request(RequestCode.LITE_SUBSCRIPTION_CTL)
class LiteSubscriptionCtlRequestHeader(RpcRequestHeader, kw_only=True):
    pass


@_request(RequestCode.NOTIFY_UNSUBSCRIBE_LITE)
class NotifyUnsubscribeLiteRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of NOTIFY_UNSUBSCRIBE_LITE, with which a broker reports that it has removed the client's subscription to
    ``liteTopic``.
    """

    liteTopic: str
    consumerGroup: str
    clientId: str


@_request(RequestCode.GET_PARENT_TOPIC_INFO)
class GetParentTopicInfoRequestHeader(Header, kw_only=True):
    topic: str


@_request(RequestCode.GET_LITE_TOPIC_INFO)
class GetLiteTopicInfoRequestHeader(Header, kw_only=True):
    parentTopic: str | None = None
    liteTopic: str | None = None


@_request(RequestCode.GET_LITE_CLIENT_INFO)
class GetLiteClientInfoRequestHeader(Header, kw_only=True):
    parentTopic: str | None = None
    group: str | None = None
    clientId: str | None = None
    maxCount: Int = 1000


@_request(RequestCode.GET_LITE_GROUP_INFO)
class GetLiteGroupInfoRequestHeader(Header, kw_only=True):
    group: str
    liteTopic: str | None = None
    topK: Int = 0


@_request(RequestCode.TRIGGER_LITE_DISPATCH)
class TriggerLiteDispatchRequestHeader(Header, kw_only=True):
    group: str
    clientId: str | None = None


# Headers about transactions: the end of a transaction, and the broker's check of a half message whose outcome it does not know.


_OUTCOMES: Final = {"commitOrRollback": frozenset({0, 8, 12})}


@_request(RequestCode.END_TRANSACTION)
class EndTransactionRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of END_TRANSACTION.

    Attributes:
        commitOrRollback: 8 for commit, 12 for rollback, 0 for not known. ``from_ext`` raises RemoteProtocolError for other values.
        tranStateTableOffset: Queue offset of the half message.
        commitLogOffset: The offset in the offset id of the half message.
        msgId: Unique id of the half message.
        fromTransactionCheck: True if the request is sent because of a CHECK_TRANSACTION_STATE.
    """

    choices: ClassVar[Mapping[str, frozenset[int]]] = _OUTCOMES

    topic: str | None = None
    producerGroup: str
    tranStateTableOffset: Long
    commitLogOffset: Long
    commitOrRollback: Int
    fromTransactionCheck: bool | None = False
    msgId: str
    transactionId: str | None = None


@_response(RequestCode.END_TRANSACTION)
class EndTransactionResponseHeader(Header, kw_only=True):
    pass


@_request(RequestCode.CHECK_TRANSACTION_STATE)
class CheckTransactionStateRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of CHECK_TRANSACTION_STATE, a one-way request of a broker.

    The body is the stored half message, with the topic to which it was sent.

    Attributes:
        topic: The broker's topic of half messages.
        msgId: Unique id of the half message.
        offsetMsgId: Offset id of the newest copy of the half message. Brokers store a new copy for each check.
    """

    topic: str | None = None
    tranStateTableOffset: Long
    commitLogOffset: Long
    msgId: str | None = None
    transactionId: str | None = None
    offsetMsgId: str | None = None


@_response(RequestCode.CHECK_TRANSACTION_STATE)
class CheckTransactionStateResponseHeader(Header, kw_only=True):
    """Header of a response to CHECK_TRANSACTION_STATE (Java class of the same name).

    It is not used by brokers of 5.5.0, which send the check one-way (``Broker2Client.checkProducerTransactionState``) and get an
    END_TRANSACTION instead of a response.

    Attributes:
        commitOrRollback: As in ``EndTransactionRequestHeader``; ``from_ext`` raises RemoteProtocolError for other values.
    """

    choices: ClassVar[Mapping[str, frozenset[int]]] = _OUTCOMES

    producerGroup: str
    tranStateTableOffset: Long
    commitLogOffset: Long
    commitOrRollback: Int


@_request(RequestCode.RESUME_CHECK_HALF_MESSAGE)
class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    """Header of RESUME_CHECK_HALF_MESSAGE, which makes the broker store a half message again and restart its checks, even if the
    broker has given up checking it (``AdminBrokerProcessor.resumeCheckHalfMessage``).

    Attributes:
        msgId: Offset id of the stored half message.
    """

    topic: str | None = None
    msgId: str | None = None


# Headers about clients: heartbeats, and the producers and consumers of a group that are connected to a broker.


@_request(RequestCode.HEART_BEAT)
class HeartbeatRequestHeader(RpcRequestHeader, kw_only=True):
    pass


@_request(RequestCode.UNREGISTER_CLIENT)
class UnregisterClientRequestHeader(RpcRequestHeader, kw_only=True):
    clientID: str
    producerGroup: str | None = None
    consumerGroup: str | None = None


@_response(RequestCode.UNREGISTER_CLIENT)
class UnregisterClientResponseHeader(Header, kw_only=True):
    pass


@_request(RequestCode.GET_CONSUMER_CONNECTION_LIST)
class GetConsumerConnectionListRequestHeader(RpcRequestHeader, kw_only=True):
    consumerGroup: str


@_request(RequestCode.GET_PRODUCER_CONNECTION_LIST)
class GetProducerConnectionListRequestHeader(RpcRequestHeader, kw_only=True):
    producerGroup: str


@_request(RequestCode.GET_ALL_PRODUCER_INFO)
class GetAllProducerInfoRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_ALL_PRODUCER_INFO


# Headers about subscription groups on a broker and their progress.


@_request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
class GetSubscriptionGroupConfigRequestHeader(RpcRequestHeader, kw_only=True):
    group: str


@_request(RequestCode.DELETE_SUBSCRIPTIONGROUP)
class DeleteSubscriptionGroupRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of DELETE_SUBSCRIPTIONGROUP.

    Attributes:
        cleanOffset: True also deletes the group's offsets.
    """

    groupName: str
    cleanOffset: bool = False


@_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
class GetAllSubscriptionGroupRequestHeader(Header, kw_only=True):
    """Header of GET_ALL_SUBSCRIPTIONGROUP_CONFIG.

    Its fields select a part of the table of groups, just as the fields of ``GetAllTopicConfigRequestHeader`` select topics.
    """

    groupSeq: Int
    dataVersion: str | None = None
    maxGroupNum: Int | None = None


@_response(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
class GetAllSubscriptionGroupResponseHeader(Header, kw_only=True):
    totalGroupNum: Int


@_request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
class UpdateGroupForbiddenRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of UPDATE_AND_GET_GROUP_FORBIDDEN.

    Attributes:
        readable: False forbids the group to read the topic, True allows it, and None changes nothing. The response has the
            resulting state.
    """

    group: str
    topic: str
    readable: bool | None = None


@_request(RequestCode.GET_CONSUME_STATS)
class GetConsumeStatsRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of GET_CONSUME_STATS.

    Attributes:
        topicList: Topics joined by ``;``, which are used instead of ``topic``. If both are missing, the request is for all topics
            in which the group has offsets. If ``topicList`` is missing, a broker leaves out the topics to which a connected group
            does not subscribe (``AdminBrokerProcessor.getConsumeStats``).
    """

    consumerGroup: str
    topic: str | None = None
    topicList: str | None = None


@_request(RequestCode.GET_BROKER_CONSUME_STATS)
class GetConsumeStatsInBrokerHeader(Header, kw_only=True):
    isOrder: bool = False


@_request(RequestCode.QUERY_CONSUME_TIME_SPAN)
class QueryConsumeTimeSpanRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str
    group: str


@_request(RequestCode.QUERY_TOPICS_BY_CONSUMER)
class QueryTopicsByConsumerRequestHeader(RpcRequestHeader, kw_only=True):
    group: str


@_request(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
class QuerySubscriptionByConsumerRequestHeader(TopicRequestHeader, kw_only=True):
    group: str
    topic: str | None = None


# Headers about topics on a broker.


@_request(RequestCode.UPDATE_AND_CREATE_TOPIC)
class CreateTopicRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of UPDATE_AND_CREATE_TOPIC.

    Attributes:
        attributes: Changes such as ``+key=value,-key``.
        topicFilterType: SINGLE_TAG or MULTI_TAG.
        perm: A combination of ``Perm``.
    """

    topic: str
    defaultTopic: str
    readQueueNums: Int
    writeQueueNums: Int
    perm: Int
    topicFilterType: str
    topicSysFlag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = False


@_request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
class CreateTopicListRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of UPDATE_AND_CREATE_TOPIC_LIST. It has no fields of its own because the list is in the body."""


@_request(RequestCode.DELETE_TOPIC_IN_BROKER)
class DeleteTopicRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@_request(RequestCode.GET_TOPIC_CONFIG)
class GetTopicConfigRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@_request(RequestCode.GET_ALL_TOPIC_CONFIG)
class GetAllTopicConfigRequestHeader(Header, kw_only=True):
    """Header of GET_ALL_TOPIC_CONFIG.

    A broker that splits its table (``enableSplitMetadata``, the default) sorts the topics by name and returns those from number
    ``topicSeq`` on. It begins at number 0 if ``dataVersion`` (JSON) is None or differs from the version of the table. It returns
    at most ``maxTopicNum`` topics, and at most as many as its ``splitMetadataSize`` (2000 by default). Brokers that do not split
    their table return all of it. So does every broker if the request has none of these fields
    (``AdminBrokerProcessor.getAllTopicConfig``).
    """

    topicSeq: Int
    dataVersion: str | None = None
    maxTopicNum: Int | None = None


@_response(RequestCode.GET_ALL_TOPIC_CONFIG)
class GetAllTopicConfigResponseHeader(Header, kw_only=True):
    totalTopicNum: Int | None = None


@_request(RequestCode.GET_TOPIC_STATS_INFO)
class GetTopicStatsInfoRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@_request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
class QueryTopicConsumeByWhoRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


# Headers of requests to name servers, about routes, the topics of a cluster, the permissions of a broker, and the name servers'
# table of keys and values.


@_request(RequestCode.GET_ROUTEINFO_BY_TOPIC)
class GetRouteInfoRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of GET_ROUTEINFO_BY_TOPIC.

    Attributes:
        acceptStandardJsonOnly: True requests broker ids with quotes. Clients of 4.9.4 and later always get them with quotes.
    """

    topic: str
    acceptStandardJsonOnly: bool | None = None


@_request(RequestCode.GET_TOPICS_BY_CLUSTER)
class GetTopicsByClusterRequestHeader(Header, kw_only=True):
    cluster: str


@_request(RequestCode.DELETE_TOPIC_IN_NAMESRV)
class DeleteTopicFromNamesrvRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of DELETE_TOPIC_IN_NAMESRV.

    Attributes:
        clusterName: The cluster whose brokers are removed from the topic's route. None or "" deletes the whole route.
    """

    topic: str
    clusterName: str | None = None


@_request(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
class RegisterTopicRequestHeader(TopicRequestHeader, kw_only=True):
    topic: str


@_request(RequestCode.PUT_KV_CONFIG)
class PutKVConfigRequestHeader(Header, kw_only=True):
    namespace: str
    key: str
    value: str


@_request(RequestCode.GET_KV_CONFIG)
class GetKVConfigRequestHeader(Header, kw_only=True):
    namespace: str
    key: str


@_response(RequestCode.GET_KV_CONFIG)
class GetKVConfigResponseHeader(Header, kw_only=True):
    """Header of the response to GET_KV_CONFIG.

    Attributes:
        value: The value. None if the key does not exist; the response then has the code QUERY_NOT_FOUND (22).
    """

    value: str | None = None


@_request(RequestCode.DELETE_KV_CONFIG)
class DeleteKVConfigRequestHeader(Header, kw_only=True):
    namespace: str
    key: str


@_request(RequestCode.GET_KVLIST_BY_NAMESPACE)
class GetKVListByNamespaceRequestHeader(Header, kw_only=True):
    namespace: str


class RegisterOrderTopicRequestHeader(Header, kw_only=True):
    """Header of a request that registers an ordered topic. The request has no code in 5.5.0.

    Attributes:
        orderTopicString: Number of queues by broker, such as ``broker-a:4;broker-b:4``.
    """

    topic: str
    orderTopicString: str


@_request(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermOfBrokerRequestHeader(Header, kw_only=True):
    brokerName: str


@_response(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """Header of the response to WIPE_WRITE_PERM_OF_BROKER.

    Attributes:
        wipeTopicCount: Number of topics whose route contains the broker, including topics that had no write permission before
            (``RouteInfoManager.operateWritePermOfBroker``).
    """

    wipeTopicCount: Int


@_request(RequestCode.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermOfBrokerRequestHeader(Header, kw_only=True):
    brokerName: str


@_response(RequestCode.ADD_WRITE_PERM_OF_BROKER)
class AddWritePermOfBrokerResponseHeader(Header, kw_only=True):
    addTopicCount: Int


# Headers about the settings, counters and store of a broker.


@_response(RequestCode.GET_BROKER_CONFIG)
class GetBrokerConfigResponseHeader(Header, kw_only=True):
    """Header of the response to GET_BROKER_CONFIG. The body has the settings as lines ``key=value``.

    Attributes:
        version: DataVersion of the settings, as JSON.
    """

    version: str


@_request(RequestCode.GET_BROKER_MEMBER_GROUP)
class GetBrokerMemberGroupRequestHeader(Header, kw_only=True):
    clusterName: str
    brokerName: str


@_request(RequestCode.VIEW_BROKER_STATS_DATA)
class ViewBrokerStatsDataRequestHeader(Header, kw_only=True):
    """Header of VIEW_BROKER_STATS_DATA.

    Attributes:
        statsName: Name of the counter, e.g. TOPIC_PUT_NUMS.
        statsKey: The object for which events are counted, e.g. a topic.
    """

    statsName: str
    statsKey: str


@_request(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)
class CheckRocksdbCqWriteProgressRequestHeader(Header, kw_only=True):
    topic: str
    checkStoreTime: Long = 0


@_request(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON)
class ExportRocksDBConfigToJsonRequestHeader(Header, kw_only=True):
    configType: str


# Headers about single messages and the entries of queues.


@_request(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageRequestHeader(Header, kw_only=True):
    """Header of VIEW_MESSAGE_BY_ID.

    Attributes:
        offset: The commit log offset in the offset message id.
    """

    topic: str | None = None
    offset: Long


@_response(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageResponseHeader(Header, kw_only=True):
    pass


@_request(RequestCode.QUERY_MESSAGE)
class QueryMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of QUERY_MESSAGE.

    Attributes:
        key: A key or, if the extField ``_UNIQUE_KEY_QUERY`` is "true", a unique id.
        beginTimestamp: Earliest store time, epoch ms.
        endTimestamp: Latest store time, epoch ms.
        indexType: Kind of the index. Only brokers with an index in RocksDB use it.
        lastKey: Key at which the query continues. Only brokers with an index in RocksDB use it.
    """

    topic: str
    key: str
    maxNum: Int
    beginTimestamp: Long
    endTimestamp: Long
    indexType: str | None = None
    lastKey: str | None = None


@_response(RequestCode.QUERY_MESSAGE)
class QueryMessageResponseHeader(Header, kw_only=True):
    """Header of the response to QUERY_MESSAGE.

    Attributes:
        indexLastUpdateTimestamp: Store time of the last indexed message, epoch ms.
        indexLastUpdatePhyoffset: Commit log offset of the last indexed message.
    """

    indexLastUpdateTimestamp: Long
    indexLastUpdatePhyoffset: Long


@_request(RequestCode.QUERY_CONSUME_QUEUE)
class QueryConsumeQueueRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of QUERY_CONSUME_QUEUE.

    Attributes:
        index: Queue offset of the first entry.
        count: Maximum number of entries.
        consumerGroup: The connected group whose filter the broker evaluates for entries with an extension. None for no filter
            (``AdminBrokerProcessor.queryConsumeQueue``).
    """

    topic: str | None = None
    queueId: Int = 0
    index: Long = 0
    count: Int = 0
    consumerGroup: str | None = None


class StatisticsMessagesRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of a request for the number of messages of a queue that were stored from ``fromTime`` to ``toTime`` (epoch ms).

    The request has no code in 5.5.0.
    """

    consumerGroup: str
    topic: str
    queueId: Int = 0
    fromTime: Long = 0
    toTime: Long = 0


# Headers about users and their permissions (5.3 and later). The settings of users and permissions are in the bodies.


@_request(RequestCode.AUTH_CREATE_USER)
class CreateUserRequestHeader(Header, kw_only=True):
    username: str | None = None


@_request(RequestCode.AUTH_UPDATE_USER)
class UpdateUserRequestHeader(Header, kw_only=True):
    username: str | None = None


@_request(RequestCode.AUTH_DELETE_USER)
class DeleteUserRequestHeader(Header, kw_only=True):
    username: str | None = None


@_request(RequestCode.AUTH_GET_USER)
class GetUserRequestHeader(Header, kw_only=True):
    username: str | None = None


@_request(RequestCode.AUTH_LIST_USER)
class ListUsersRequestHeader(Header, kw_only=True):
    filter: str | None = None


@_request(RequestCode.AUTH_CREATE_ACL)
class CreateAclRequestHeader(Header, kw_only=True):
    """Header of AUTH_CREATE_ACL. The body is an ``AclInfo``.

    Attributes:
        subject: The user, as ``User:name``.
    """

    subject: str | None = None


@_request(RequestCode.AUTH_UPDATE_ACL)
class UpdateAclRequestHeader(Header, kw_only=True):
    subject: str | None = None


@_request(RequestCode.AUTH_DELETE_ACL)
class DeleteAclRequestHeader(Header, kw_only=True):
    subject: str | None = None
    policyType: str | None = None
    resource: str | None = None


@_request(RequestCode.AUTH_GET_ACL)
class GetAclRequestHeader(Header, kw_only=True):
    subject: str | None = None


@_request(RequestCode.AUTH_LIST_ACL)
class ListAclsRequestHeader(Header, kw_only=True):
    subjectFilter: str | None = None
    resourceFilter: str | None = None
