"""Custom headers: one Struct per request and response, between typed fields and the texts of extFields.

A header is declared once, with the field names of the wire in the order of the Java class; everything else is derived from
the declaration on first use: how each field is written, how it is read, whether it must be there. The rule for all of them
(``RemotingCommand.makeCustomHeaderToNet`` and ``decodeCommandCustomHeader``): a field that is null is left out, integers are
decimal, booleans are ``true`` and ``false``, members that the class does not know are ignored.

This is the general path: 1 us to write a header, 2 us to read one. Sends and their replies have templates of their own in
``send_codec``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from .constants import RequestCode
from .errors import LocalProtocolError, RemoteProtocolError
from .java_types import Int, Long

__all__ = [
    "REQUEST_HEADERS",
    "RESPONSE_HEADERS",
    "BoundaryType",
    "CreateTopicRequestHeader",
    "GetMaxOffsetRequestHeader",
    "GetMaxOffsetResponseHeader",
    "GetMinOffsetRequestHeader",
    "GetMinOffsetResponseHeader",
    "GetRouteInfoRequestHeader",
    "Header",
    "HeartbeatRequestHeader",
    "PullMessageRequestHeader",
    "PullMessageResponseHeader",
    "QueryConsumerOffsetRequestHeader",
    "QueryConsumerOffsetResponseHeader",
    "RpcRequestHeader",
    "SearchOffsetRequestHeader",
    "SearchOffsetResponseHeader",
    "SendMessageRequestHeader",
    "SendMessageRequestHeaderV2",
    "SendMessageResponseHeader",
    "TopicRequestHeader",
    "UnregisterClientRequestHeader",
    "UnregisterClientResponseHeader",
    "UpdateConsumerOffsetRequestHeader",
    "UpdateConsumerOffsetResponseHeader",
    "ViewMessageRequestHeader",
    "ViewMessageResponseHeader",
    "from_ext",
    "send_header_v1",
    "send_header_v2",
    "to_ext",
]


class BoundaryType(StrEnum):
    """Which message an offset search by time means where several, or none, have that time; read without regard to case."""

    LOWER = "LOWER"
    UPPER = "UPPER"


class Header(msgspec.Struct, kw_only=True, gc=False):
    """A custom header. ``request_code``: the code the Java class is annotated with; None for responses."""

    request_code: ClassVar[int | None] = None


class RpcRequestHeader(Header, kw_only=True):
    """``ns`` namespace, ``nsd`` already in its namespace, ``bname`` broker name, ``oway`` one-way."""

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None


class TopicRequestHeader(RpcRequestHeader, kw_only=True):
    """``lo``: the topic or queue is a logical one (static topics)."""

    lo: bool | None = None


# Sends (10, 324 long names; 310, 320, 325 one letter per field).


class SendMessageRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.SEND_MESSAGE

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


class SendMessageRequestHeaderV2(TopicRequestHeader, kw_only=True):
    """The letters in order: producerGroup, topic, defaultTopic, defaultTopicQueueNums, queueId, sysFlag, bornTimestamp, flag,
    properties, reconsumeTimes, unitMode, maxReconsumeTimes, batch, and the broker's name (``bname`` of the long form)."""

    request_code: ClassVar[int | None] = RequestCode.SEND_MESSAGE_V2

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


class SendMessageResponseHeader(Header, kw_only=True):
    """``msgId``: offset message id, comma-joined for a batch. ``queueOffset``: of the first message of a batch."""

    msgId: str
    queueId: Int
    queueOffset: Long
    transactionId: str | None = None
    batchUniqId: str | None = None
    recallHandle: str | None = None


# Pulls and offsets.


class PullMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """``suspendTimeoutMillis``: how long the broker may hold the request when it has nothing (with PullSysFlag.SUSPEND)."""

    request_code: ClassVar[int | None] = RequestCode.PULL_MESSAGE

    consumerGroup: str
    topic: str
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
    liteTopic: str | None = None


class PullMessageResponseHeader(Header, kw_only=True):
    suggestWhichBrokerId: Long
    nextBeginOffset: Long
    minOffset: Long
    maxOffset: Long
    offsetDelta: Long | None = None
    topicSysFlag: Int | None = None
    groupSysFlag: Int | None = None
    forbiddenType: Int | None = None


class QueryConsumerOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.QUERY_CONSUMER_OFFSET

    consumerGroup: str
    topic: str
    queueId: Int
    setZeroIfNotFound: bool | None = None


class QueryConsumerOffsetResponseHeader(Header, kw_only=True):
    offset: Long


class UpdateConsumerOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.UPDATE_CONSUMER_OFFSET

    consumerGroup: str
    topic: str
    queueId: Int
    commitOffset: Long


class UpdateConsumerOffsetResponseHeader(Header, kw_only=True):
    pass


class SearchOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """``timestamp``: milliseconds since the epoch."""

    request_code: ClassVar[int | None] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    queueId: Int
    timestamp: Long
    boundaryType: BoundaryType | None = None
    liteTopic: str | None = None


class SearchOffsetResponseHeader(Header, kw_only=True):
    offset: Long


class GetMaxOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_MAX_OFFSET

    topic: str
    queueId: Int
    committed: bool = True


class GetMaxOffsetResponseHeader(Header, kw_only=True):
    offset: Long


class GetMinOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_MIN_OFFSET

    topic: str
    queueId: Int


class GetMinOffsetResponseHeader(Header, kw_only=True):
    offset: Long


class ViewMessageRequestHeader(Header, kw_only=True):
    """``offset``: physical offset in the commit log, as an offset message id names it."""

    request_code: ClassVar[int | None] = RequestCode.VIEW_MESSAGE_BY_ID

    topic: str | None = None
    offset: Long


class ViewMessageResponseHeader(Header, kw_only=True):
    pass


# Clients, routes and topics.


class HeartbeatRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.HEART_BEAT


class UnregisterClientRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.UNREGISTER_CLIENT

    clientID: str
    producerGroup: str | None = None
    consumerGroup: str | None = None


class UnregisterClientResponseHeader(Header, kw_only=True):
    pass


class GetRouteInfoRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    acceptStandardJsonOnly: bool | None = None


class CreateTopicRequestHeader(TopicRequestHeader, kw_only=True):
    """``attributes``: ``+key=value,-key`` or nothing. ``topicFilterType``: SINGLE_TAG or MULTI_TAG. ``perm``: see ``Perm``."""

    request_code: ClassVar[int | None] = RequestCode.UPDATE_AND_CREATE_TOPIC

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


REQUEST_HEADERS: Final[dict[int, type[Header]]] = {
    RequestCode.SEND_MESSAGE: SendMessageRequestHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageRequestHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageRequestHeaderV2,
    RequestCode.PULL_MESSAGE: PullMessageRequestHeader,
    RequestCode.LITE_PULL_MESSAGE: PullMessageRequestHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetRequestHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffsetRequestHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopicRequestHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetRequestHeader,
    RequestCode.GET_MAX_OFFSET: GetMaxOffsetRequestHeader,
    RequestCode.GET_MIN_OFFSET: GetMinOffsetRequestHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageRequestHeader,
    RequestCode.HEART_BEAT: HeartbeatRequestHeader,
    RequestCode.UNREGISTER_CLIENT: UnregisterClientRequestHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRouteInfoRequestHeader,
}
"""Request code -> header of the request. GET_BROKER_CLUSTER_INFO (106) has none."""

RESPONSE_HEADERS: Final[dict[int, type[Header]]] = {
    RequestCode.SEND_MESSAGE: SendMessageResponseHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageResponseHeader,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageResponseHeader,
    RequestCode.PULL_MESSAGE: PullMessageResponseHeader,
    RequestCode.LITE_PULL_MESSAGE: PullMessageResponseHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetResponseHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffsetResponseHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetResponseHeader,
    RequestCode.GET_MAX_OFFSET: GetMaxOffsetResponseHeader,
    RequestCode.GET_MIN_OFFSET: GetMinOffsetResponseHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageResponseHeader,
    RequestCode.UNREGISTER_CLIENT: UnregisterClientResponseHeader,
}
"""Request code -> header of its response, where it has one; those of 17, 34, 105 and 106 carry no header."""

H = TypeVar("H", bound=Header)

_DIGITS = re.compile(r"[+-]?\d{1,40}").fullmatch


class _Field(NamedTuple):
    name: str
    kind: type
    low: int
    high: int
    required: bool


@cache
def _fields(cls: type[Header]) -> tuple[_Field, ...]:
    """The fields as Java goes over them: those of the class itself first, then those of its parents, nearest first."""
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
    """The extFields of ``header``; fields that are None are left out.

    Raises LocalProtocolError, naming header and field, for an integer outside Java's Integer or Long.
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
                raise LocalProtocolError(f"{header.__class__.__name__}.{name}: {value} is outside {low}..{high}")
            ext[name] = str(int(value))
        else:
            ext[name] = str(value)
    return ext


def from_ext(cls: type[H], ext: Mapping[str, str | None] | None, *, lenient: bool = False) -> H:
    """The header that ``ext`` (extFields, None when the peer sent none) holds; unknown fields are ignored.

    Raises RemoteProtocolError, naming header and field, for an integer that cannot be read or does not fit, and for a missing
    required field. With ``lenient`` a missing required field is None instead, against its declared type: what the Java
    decoders do, which find out later.
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
        return value
    return BoundaryType.UPPER if text.upper() == "UPPER" else BoundaryType.LOWER


def send_header_v2(header: SendMessageRequestHeader) -> SendMessageRequestHeaderV2:
    """The one-letter form (``createSendMessageRequestHeaderV2``): ``ns``, ``nsd``, ``oway`` and ``lo`` do not go along."""
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
    """The long form of a one-letter header (``createSendMessageRequestHeaderV1``)."""
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
