"""Texts of popped messages (``ExtraInfoUtil``), and the topics of their retries (``KeyBuilder``).

A popped message is identified by the offset at which its pop began and its own offset; POP_CK contains both, and acks return
it. The infos of a pop's response are lists of ``retry item value`` joined by ``;``, where ``retry`` is the kind of their
topic: 0 the topic itself, 1 and 2 the group's retry topic in its old and new form. They are read into maps keyed
``retry@item``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from .constants import RETRY_TOPIC_PREFIX
from .errors import LocalProtocolError, RemoteProtocolError

__all__ = [
    "ExtraInfo",
    "build_extra_info",
    "build_info",
    "info_key",
    "order_info_key",
    "parse_extra_info",
    "parse_msg_offset_info",
    "parse_order_count_info",
    "parse_start_offset_info",
    "pop_retry_topic",
    "pop_retry_topic_v1",
    "real_topic",
    "retry_flag",
]

V = TypeVar("V")

_number = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_LONG: Final = range(-0x8000000000000000, 0x8000000000000000)


class ExtraInfo(NamedTuple):
    """The parts of the property POP_CK.

    ``ck_queue_offset``: queue offset at which the pop began. Points in time are in epoch ms, durations in ms. ``retry``: "0",
    "1" or "2".
    """

    ck_queue_offset: int
    pop_time: int
    invisible_time: int
    revive_qid: int
    retry: str
    broker_name: str
    queue_id: int
    msg_queue_offset: int | None = None


def build_extra_info(info: ExtraInfo) -> str:
    """Returns the text of a POP_CK. Raises LocalProtocolError for a broker name that is empty or has a space in it."""
    if not info.broker_name or " " in info.broker_name:
        raise LocalProtocolError(f"extra info: broker name {info.broker_name[:80]!r} must not be empty or have a space")
    return " ".join(str(part) for part in info if part is not None)


def parse_extra_info(text: str) -> ExtraInfo:
    """Returns the parts of a POP_CK. Raises RemoteProtocolError for too few parts, and for a part that must be a number and
    is none."""
    parts = text.split(" ")
    if len(parts) not in (7, 8):
        raise RemoteProtocolError(f"extra info {text[:80]!r} has {len(parts)} parts, not 7 or 8")
    offset, pop_time, invisible_time, revive_qid = (_long(part, text) for part in parts[:4])
    last = _long(parts[7], text) if len(parts) == 8 else None
    return ExtraInfo(offset, pop_time, invisible_time, revive_qid, parts[4], parts[5], _long(parts[6], text), last)


def retry_flag(topic: str) -> str:
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def pop_retry_topic(topic: str, group: str) -> str:
    return f"{RETRY_TOPIC_PREFIX}{group}+{topic}"


def pop_retry_topic_v1(topic: str, group: str) -> str:
    return f"{RETRY_TOPIC_PREFIX}{group}_{topic}"


def real_topic(retry: str, topic: str, group: str) -> str:
    """Returns the topic that a message with this retry flag is stored in. Raises RemoteProtocolError for an unknown flag."""
    match retry:
        case "0":
            return topic
        case "1":
            return pop_retry_topic_v1(topic, group)
        case "2":
            return pop_retry_topic(topic, group)
    raise RemoteProtocolError(f"retry flag {retry[:20]!r} is none of 0, 1, 2")


def info_key(topic: str, queue_id: int) -> str:
    """Returns the key of a queue in the parsed infos."""
    return f"{retry_flag(topic)}@{queue_id}"


def order_info_key(topic: str, queue_id: int, queue_offset: int) -> str:
    """Returns the key of one message in the parsed order count info."""
    return f"{retry_flag(topic)}@qo{queue_id}%{queue_offset}"


def parse_start_offset_info(text: str | None) -> dict[str, int]:
    """Returns the offset at which the pop began, by queue. Raises RemoteProtocolError for a malformed text, and for one
    with two entries of one key."""
    return _parse("startOffsetInfo", text, _long)


def parse_msg_offset_info(text: str | None) -> dict[str, tuple[int, ...]]:
    """Returns the queue offsets of the messages, by queue. Raises as ``parse_start_offset_info`` does."""
    return _parse("msgOffsetInfo", text, lambda value, text: tuple(_long(part, text) for part in value.split(",")))


def parse_order_count_info(text: str | None) -> dict[str, int]:
    """Returns the numbers of earlier attempts, by queue or message. Raises as ``parse_start_offset_info`` does."""
    return _parse("orderCountInfo", text, _long)


def build_info(values: Mapping[str, int | Sequence[int]]) -> str:
    """Returns the text of an info; all three infos have this form."""
    return ";".join(
        f"{key.replace('@', ' ', 1)} {value if isinstance(value, int) else ','.join(map(str, value))}"
        for key, value in values.items()
    )


def _parse(what: str, text: str | None, read: Callable[[str, str], V]) -> dict[str, V]:
    found: dict[str, V] = {}
    for item in text.rstrip(";").split(";") if text else ():
        parts = item.split(" ")
        if len(parts) != 3:
            raise RemoteProtocolError(f"{what}: {item[:80]!r} has {len(parts)} parts, not 3")
        key = f"{parts[0]}@{parts[1]}"
        if key in found:
            raise RemoteProtocolError(f"{what}: {key[:80]} is there twice")
        found[key] = read(parts[2], item)
    return found


def _long(text: str, whole: str) -> int:
    value = int(text) if _number(text) else None
    if value is None or value not in _LONG:
        raise RemoteProtocolError(f"{text[:40]!r} in {whole[:80]!r} is not a 64-bit integer")
    return value
