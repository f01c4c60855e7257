"""Finds the handles of popped messages in the response, renews them when the invisible time changes, and gathers them into acks.

A handle is the ``ExtraInfo`` of one popped message, with its queue offset. A client sends it to the message's broker to acknowledge
the message or to change its invisible time. Such a change returns a new handle.

Most handles are built from two fields of the response, startOffsetInfo and msgOffsetInfo. A broker may return a message of a retry
topic under its original topic. It then puts the handle into property POP_CK, because the topic of such a message does not lead to
its entry in the two fields. All numbers from the broker are checked: a message whose handle is invalid is treated as a message
without a handle, and the broker delivers it again after its invisible time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from .bodies import MAX_ACK_SPAN, BatchAck, pack_bits
from .constants import RETRY_TOPIC_PREFIX, PropertyName
from .errors import LocalProtocolError, RemoteProtocolError
from .headers import ChangeInvisibleTimeResponseHeader, PopMessageResponseHeader
from .message import MessageExt
from .pop import (
    ExtraInfo,
    info_key,
    parse_extra_info,
    parse_msg_offset_info,
    parse_start_offset_info,
    retry_flag,
)

MAX_POP_SIZE: Final = 32
"""Maximum number of messages that one pop may request. A broker refuses a request for more."""
_MAX_INT: Final = 0x7FFFFFFF
_queue_id = re.compile(r"[0-9]{1,10}").fullmatch
_RETRY_FLAGS: Final = frozenset({"0", "1", "2"})

_Pop = tuple[int, int, int, int, str, str, int]
"""A handle without the message's own offset. All messages of one pop and queue have this part in common."""
_NO_POP: Final[_Pop] = (0, 0, 0, 0, "", "", 0)


def find_handles(answer: PopMessageResponseHeader, messages: Sequence[MessageExt], broker_name: str) -> list[ExtraInfo | None]:
    """Return the handle of each message of a pop, from its property POP_CK or else from startOffsetInfo and msgOffsetInfo.

    A handle is None if neither the property nor the two fields have a handle of this pop, if a part of the handle is invalid, or if
    an earlier message of the response has the same handle.

    Args:
        answer: Header of the pop's response.
        messages: Decoded messages, whose topics have the form on the wire.
        broker_name: Name of the broker that sent the response.

    Raises:
        RemoteProtocolError: If startOffsetInfo or msgOffsetInfo is malformed.
    """
    starts, offsets = parse_start_offset_info(answer.startOffsetInfo), parse_msg_offset_info(answer.msgOffsetInfo)
    named = {key: frozenset(found) for key, found in offsets.items() if key in starts}
    seen: defaultdict[str, set[int]] = defaultdict(set)
    handles: list[ExtraInfo | None] = []
    new, topic, queue = tuple.__new__, "", None
    pop, start, here, used = _NO_POP, 0, frozenset[int](), set[int]()  # shared by consecutive messages of one queue
    for message in messages:
        if PropertyName.POP_CK in message.properties and (own := _own_handle(answer, message, broker_name)) is not None:
            offset, others = own.msg_queue_offset or 0, seen[f"{own.retry}@{own.queue_id}"]
            is_new = offset not in others and _is_valid(own)
            if is_new:
                others.add(offset)
            handles.append(own if is_new else None)
            continue
        if message.queue is not queue or message.topic is not topic:
            topic, queue = message.topic, message.queue
            key = info_key(topic, queue.queue_id)
            start, used = starts.get(key, 0), seen[key]
            first = ExtraInfo(
                start,
                answer.popTime,
                answer.invisibleTime,
                answer.reviveQid,
                retry_flag(topic),
                broker_name,
                queue.queue_id,
                start,
            )
            pop, here = first[:7], named.get(key, frozenset()) if _is_valid(first) else frozenset()
        offset = message.queue_offset
        if offset in here and offset >= start and offset not in used:
            used.add(offset)
            handles.append(new(ExtraInfo, (*pop, offset, None)))
        else:
            handles.append(None)
    return handles


def left_handles(answer: PopMessageResponseHeader, found: Iterable[ExtraInfo | None], broker_name: str) -> list[ExtraInfo]:
    """Return the valid handles in startOffsetInfo and msgOffsetInfo that are not in ``found``, such as the handles of records that
    cannot be read.

    Args:
        answer: Header of the pop's response.
        found: The handles of the messages in the response.
        broker_name: Name of the broker that sent the response.

    Raises:
        RemoteProtocolError: If startOffsetInfo or msgOffsetInfo is malformed.
    """
    seen = {(handle.retry, handle.queue_id, handle.msg_queue_offset) for handle in found if handle is not None}
    starts = parse_start_offset_info(answer.startOffsetInfo)
    left: list[ExtraInfo] = []
    for key, offsets in parse_msg_offset_info(answer.msgOffsetInfo).items():
        retry, _, queue_id = key.partition("@")
        if key not in starts or not _queue_id(queue_id):
            continue
        for offset in dict.fromkeys(offsets):
            handle = ExtraInfo(
                starts[key],
                answer.popTime,
                answer.invisibleTime,
                answer.reviveQid,
                retry,
                broker_name,
                int(queue_id),
                offset,
            )
            if _is_valid(handle) and (retry, handle.queue_id, offset) not in seen:
                left.append(handle)
    return left


def _own_handle(answer: PopMessageResponseHeader, message: MessageExt, broker_name: str) -> ExtraInfo | None:
    """Return the handle in the message's property POP_CK.

    Return None if the property is missing, cannot be read or has no message offset. Return None also if the handle belongs to
    another pop, which happens if a sender has copied the properties of a received message.
    """
    text = message.properties.get(PropertyName.POP_CK)
    if text is None:
        return None
    try:
        handle = parse_extra_info(text)
    except RemoteProtocolError:
        return None
    is_of_pop = (handle.pop_time, handle.revive_qid, handle.broker_name) == (answer.popTime, answer.reviveQid, broker_name)
    return handle if is_of_pop and handle.msg_queue_offset is not None else None


def changed_handle(handle: ExtraInfo, answer: ChangeInvisibleTimeResponseHeader) -> ExtraInfo:
    """Return the handle that is valid after a change of the invisible time.

    The ``ck_queue_offset`` of the new handle is the message's own offset.

    Raises:
        RemoteProtocolError: If the new handle is invalid, for example because ``handle`` has no message offset.
    """
    offset = handle.msg_queue_offset
    new = handle._replace(
        ck_queue_offset=-1 if offset is None else offset,
        pop_time=answer.popTime,
        invisible_time=answer.invisibleTime,
        revive_qid=answer.reviveQid,
    )
    if not _is_valid(new):
        raise RemoteProtocolError(f"the handle after a change of the invisible time is invalid: {new}")
    return new


def gather_acks(group: str, handles: Iterable[tuple[str, ExtraInfo]]) -> tuple[BatchAck, ...]:
    """Return the acks of one BATCH_ACK_MESSAGE, one for each queue and pop, in the order of their first messages.

    Args:
        group: The consumer group.
        handles: Pairs of the topic of the pop, as on the wire, and the handle. All handles must belong to one broker.

    Raises:
        LocalProtocolError: If a handle has no message offset, or if a message is before the start of its pop or more than
            MAX_ACK_SPAN offsets after it. Such a message must be acknowledged alone (``can_be_gathered``).
    """
    bits: dict[tuple[str, _Pop], list[int]] = {}
    found, topic_before, pop_before = list[int](), "", None
    for topic, handle in handles:
        offset = handle.msg_queue_offset
        if offset is None:
            raise LocalProtocolError(f"handle of topic {topic[:80]!r} needs a msg_queue_offset, and has none: {handle}")
        pop = handle[:7]
        if pop != pop_before or topic != topic_before:
            topic_before, pop_before = topic, pop
            found = bits.setdefault((topic, pop), [])
        found.append(offset - handle.ck_queue_offset)
    return tuple(
        BatchAck(
            consumer_group=group,
            topic=topic,
            retry=retry,
            start_offset=start,
            queue_id=queue_id,
            revive_queue_id=revive_qid,
            pop_time=pop_time,
            invisible_time=invisible_time,
            bit_set=pack_bits(found),
        )
        for (topic, (start, pop_time, invisible_time, revive_qid, retry, _, queue_id)), found in bits.items()
    )


def can_be_gathered(handle: ExtraInfo) -> bool:
    """Return whether ``gather_acks`` accepts a handle that ``find_handles``, ``left_handles`` or ``changed_handle`` returned."""
    if handle.lite_topic is not None:  # brokers refuse batches with lite topics
        return False
    return handle.msg_queue_offset is not None and handle.msg_queue_offset - handle.ck_queue_offset <= MAX_ACK_SPAN


def plain_topic(topic: str, group: str) -> str:
    """Return the original topic if ``topic`` is a retry topic for pops by ``group``. Otherwise, return ``topic`` unchanged."""
    for separator in "_+":
        prefix = f"{RETRY_TOPIC_PREFIX}{group}{separator}"
        if topic.startswith(prefix) and len(topic) > len(prefix):
            return topic[len(prefix) :]
    return topic


def _is_valid(handle: ExtraInfo) -> bool:
    offset = handle.msg_queue_offset
    return (
        offset is not None
        and 0 <= handle.ck_queue_offset <= offset
        and handle.pop_time >= 0
        and 0 <= handle.queue_id <= _MAX_INT
        and 0 <= handle.revive_qid <= _MAX_INT
        and handle.retry in _RETRY_FLAGS
        and bool(handle.broker_name)
        and " " not in handle.broker_name
    )
