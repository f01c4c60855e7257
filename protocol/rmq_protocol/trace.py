r"""Message traces (``TraceDataEncoder``): reports of clients about sends, recalls, ends of transactions and consumption.

The body of a trace message is a sequence of records. The fields of a record are joined by \x01, and \x02 ends the record. The
first field is the kind of the record. A field that is null is written as ``null``. Nothing is escaped, so strings with one of
these characters in them are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum, StrEnum
from typing import Any, Final

import msgspec

from .errors import LocalProtocolError, RemoteProtocolError
from .java_types import Int, Long

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_NULL: Final = "null"


class TraceType(StrEnum):
    PUB = "Pub"
    RECALL = "Recall"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"


class MessageType(IntEnum):
    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class TraceBean(msgspec.Struct, frozen=True, kw_only=True):
    """The message of a trace record.

    Attributes:
        store_host: Address of the broker.
        body_length: Size of the body in bytes.
        transaction_state: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW (Java's spelling).
    """

    topic: str | None = None
    msg_id: str | None = None
    offset_msg_id: str | None = None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    client_host: str | None = None
    body_length: Int = 0
    msg_type: MessageType = MessageType.NORMAL
    retry_times: Int = 0
    transaction_id: str | None = None
    transaction_state: str | None = None
    from_transaction_check: bool = False


class TraceContext(msgspec.Struct, frozen=True, kw_only=True):
    """One event and its messages. Events of consumption may have several messages, other events have one.

    Attributes:
        time_stamp: Time of the event, epoch ms.
        cost_time: Duration in ms.
        request_id: An id that is the same in the events before and after a consumption.
        context_code: The result of consumption: 0 success, 1 time-out, 2 exception, 3 null, 4 failed (``ConsumeReturnType``).
    """

    trace_type: TraceType
    beans: tuple[TraceBean, ...]
    time_stamp: Long = 0
    region_id: str | None = None
    group_name: str | None = None
    cost_time: Int = 0
    success: bool = True
    request_id: str | None = None
    context_code: Int = 0


# The names of the fields of each kind, in the order on the wire. A name is an attribute of the context or of the bean.
_CONTEXT: Final = frozenset(TraceContext.__struct_fields__)
_LAYOUTS: Final[dict[TraceType, tuple[str, ...]]] = {
    TraceType.PUB: (
        "time_stamp",
        "region_id",
        "group_name",
        "topic",
        "msg_id",
        "tags",
        "keys",
        "store_host",
        "body_length",
        "cost_time",
        "msg_type",
        "offset_msg_id",
        "success",
    ),
    TraceType.RECALL: (
        "time_stamp",
        "region_id",
        "group_name",
        "topic",
        "msg_id",
        "success",
    ),
    TraceType.SUB_BEFORE: (
        "time_stamp",
        "region_id",
        "group_name",
        "request_id",
        "msg_id",
        "retry_times",
        "keys",
    ),
    TraceType.SUB_AFTER: (
        "request_id",
        "msg_id",
        "cost_time",
        "success",
        "keys",
        "context_code",
        "time_stamp",
        "group_name",
    ),
    TraceType.END_TRANSACTION: (
        "time_stamp",
        "region_id",
        "group_name",
        "topic",
        "msg_id",
        "tags",
        "keys",
        "store_host",
        "msg_type",
        "transaction_id",
        "transaction_state",
        "from_transaction_check",
    ),
}
_SENT_FIELDS: Final = len(_LAYOUTS[TraceType.PUB])
_OPTIONAL: Final = {TraceType.SUB_AFTER: 2}
"""Number of fields at the end that may be missing. Old clients and those of Alibaba's cloud leave them out."""


def encode_trace(context: TraceContext, *, cloud: bool = False) -> str:
    """Return the records of ``context`` as a string.

    An event of consumption has one record for each message. Other events have only the record of the first message.

    Args:
        context: The event to encode.
        cloud: True leaves out time and group in events after consumption, as clients of Alibaba's cloud do.

    Raises:
        LocalProtocolError: If a string has one of the separators in it.
    """
    if (
        context.trace_type is TraceType.PUB
        and context.beans
        and (record := _sent_record(context, context.beans[0])) is not None
    ):
        return record
    layout = _LAYOUTS[context.trace_type]
    records = []
    for bean in context.beans[:1] if context.trace_type not in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER) else context.beans:
        fields = [_text(name, getattr(context if name in _CONTEXT else bean, name)) for name in layout]
        if cloud and context.trace_type is TraceType.SUB_AFTER:
            fields[-2:] = [""]
        records.append(_FIELD.join([context.trace_type, *fields]) + _RECORD)
    return "".join(records)


def _sent_record(context: TraceContext, bean: TraceBean) -> str | None:
    """Return the record of a send. Return None if a string has a separator in it.

    The record is formatted by one f-string, because producers write one for each message.
    """
    region, group, topic, msg_id = context.region_id, context.group_name, bean.topic, bean.msg_id
    tags, keys, host, offset_id = bean.tags, bean.keys, bean.store_host, bean.offset_msg_id
    record = (
        f"Pub\x01{context.time_stamp}\x01{_NULL if region is None else region}\x01{_NULL if group is None else group}\x01"
        f"{_NULL if topic is None else topic}\x01{_NULL if msg_id is None else msg_id}\x01{_NULL if tags is None else tags}\x01"
        f"{_NULL if keys is None else keys}\x01{_NULL if host is None else host}\x01{bean.body_length}\x01"
        f"{context.cost_time}\x01{bean.msg_type:d}\x01{_NULL if offset_id is None else offset_id}\x01"
        f"{'true' if context.success else 'false'}\x02"
    )
    return record if record.count(_FIELD) == _SENT_FIELDS and record.count(_RECORD) == 1 else None


def trace_keys(contexts: Iterable[TraceContext]) -> frozenset[str]:
    """Return the ids and keys of the messages. They become the keys of the trace message, so that a query for one of them finds the
    trace.
    """
    beans = [bean for context in contexts for bean in context.beans]
    keys = {key for bean in beans for key in (bean.keys or "").split(" ")}
    return frozenset(keys | {bean.msg_id or "" for bean in beans}) - {""}


def decode_trace(data: str) -> list[TraceContext]:
    """Return the records in a trace message's body, each as a context with one message. Records of unknown kinds are left out.

    A number whose field is empty gets its default.

    Raises:
        RemoteProtocolError: If a record is too short, or if a field is not a number in the range of the field. The error has the
            kind of the record.
    """
    return [_context(record.split(_FIELD)) for record in data.split(_RECORD) if record.partition(_FIELD)[0] in _KINDS]


def _context(record: list[str]) -> TraceContext:
    kind = _KINDS[record[0]]
    layout, texts = _LAYOUTS[kind], record[1:]
    if kind is TraceType.PUB:
        if len(texts) == len(layout) - 1:
            layout = (*layout[:-2], layout[-1])  # clients of 4.x from before the offset id was added
        elif len(texts) > len(layout):
            layout = (*layout, "client_host")
    needed = len(layout) - _OPTIONAL.get(kind, 0)
    if len(texts) < needed:
        raise RemoteProtocolError(f"trace: a record of kind {kind} has {len(texts)} fields; it must have at least {needed}")
    context: dict[str, Any] = {}
    bean: dict[str, Any] = {}
    for name, text in zip(layout, texts, strict=False):
        if text or name not in _READERS:  # an empty number was left out
            (context if name in _CONTEXT else bean)[name] = _value(kind, name, text)
    return TraceContext(trace_type=kind, beans=(TraceBean(**bean),), **context)


def _text(name: str, value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(int(value)) if isinstance(value, int) else str(value)
    if _FIELD in text or _RECORD in text:
        raise LocalProtocolError(f"trace: {name} {text[:80]!r} must not have the separators \\x01 and \\x02 in it")
    return text


def _value(kind: TraceType, name: str, text: str) -> Any:
    read = _READERS.get(name)
    if read is None:
        return None if text == _NULL else text
    try:
        return read(text)
    except (ValueError, msgspec.ValidationError):
        raise RemoteProtocolError(f"trace: {kind} {name} {text[:40]!r} is not a number in the range of the field") from None


def _reader(kind: Any) -> Callable[[str], Any]:
    return lambda text: msgspec.convert(text, kind, strict=False)


def _bool(text: str) -> bool:
    return text.lower() == "true"


_KINDS: Final = {str(kind): kind for kind in TraceType}
_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "time_stamp": _reader(Long),
    "cost_time": _reader(Int),
    "context_code": _reader(Int),
    "body_length": _reader(Int),
    "retry_times": _reader(Int),
    "msg_type": _reader(MessageType),
    "success": _bool,
    "from_transaction_check": _bool,
}
