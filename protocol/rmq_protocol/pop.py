"""Reads and writes the strings about popped messages (``ExtraInfoUtil``), and the names of their retry topics (``KeyBuilder``).

The property POP_CK identifies one delivery of a message: it has the offset at which the pop began, the pop's time, the broker, the
queue and the message's own offset. An ack returns it to the broker. Three extFields of a pop's response (startOffsetInfo,
msgOffsetInfo and orderCountInfo) are lists of ``retry item value``, joined by ``;``. ``item`` is a queue id or, in a delivery count
of a single message, ``qo``, the queue id and the offset (``order_info_key``). ``retry`` says in which topic the message is stored:
0 is the topic itself, 1 the group's retry topic with its old name, 2 the one with its new name. The parsers return dicts with keys
``retry@item``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from .constants import RETRY_TOPIC_PREFIX
from .errors import LocalProtocolError, RemoteProtocolError, shown

_V = TypeVar("_V")

_number = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
_short_numbers = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*").fullmatch
_LONG: Final = range(-0x8000000000000000, 0x8000000000000000)


class ExtraInfo(NamedTuple):
    """The parts of the property POP_CK.

    Attributes:
        ck_queue_offset: Queue offset at which the pop began.
        pop_time: Time of the pop, epoch ms.
        invisible_time: Ms for which other members do not get the message.
        retry: The topic in which the message is stored: "0" for the topic itself, "1" or "2" for the group's retry topic with its
            old or new name.
        msg_queue_offset: Queue offset of the message itself. None if the POP_CK has seven parts.
        lite_topic: The lite topic from which the message was popped, which is not part of the property. None for other messages.
    """

    ck_queue_offset: int
    pop_time: int
    invisible_time: int
    revive_qid: int
    retry: str
    broker_name: str
    queue_id: int
    msg_queue_offset: int | None = None
    lite_topic: str | None = None


def build_extra_info(info: ExtraInfo) -> str:
    """Return the value of a property POP_CK.

    Raises:
        LocalProtocolError: If the broker name is empty or has a space in it.
    """
    if not info.broker_name or " " in info.broker_name:
        raise LocalProtocolError(f"extra info: broker name {shown(info.broker_name)} must not be empty and must have no space")
    return " ".join(str(part) for part in info[:8] if part is not None)


def parse_extra_info(text: str) -> ExtraInfo:
    """Return the parts of a POP_CK.

    Raises:
        RemoteProtocolError: If ``text`` does not have 7 or 8 parts, or if one of its numbers is not a 64-bit integer.
    """
    parts = text.split(" ")
    if len(parts) not in (7, 8):
        raise RemoteProtocolError(f"extra info {text[:80]!r} has {len(parts)} parts, not 7 or 8")
    offset, pop_time, invisible_time, revive_qid = (_long(part, text, "extra info") for part in parts[:4])
    queue_id = _long(parts[6], text, "extra info")
    last = _long(parts[7], text, "extra info") if len(parts) == 8 else None
    return ExtraInfo(offset, pop_time, invisible_time, revive_qid, parts[4], parts[5], queue_id, last)


def retry_flag(topic: str) -> str:
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def pop_retry_topic(topic: str, group: str) -> str:
    return f"{RETRY_TOPIC_PREFIX}{group}+{topic}"


def pop_retry_topic_v1(topic: str, group: str) -> str:
    return f"{RETRY_TOPIC_PREFIX}{group}_{topic}"


def real_topic(retry: str, topic: str, group: str) -> str:
    """Return the topic in which a message with this retry flag is stored.

    Args:
        topic: The topic of the pop.

    Raises:
        RemoteProtocolError: If ``retry`` is none of "0", "1" and "2".
    """
    match retry:
        case "0":
            return topic
        case "1":
            return pop_retry_topic_v1(topic, group)
        case "2":
            return pop_retry_topic(topic, group)
    raise RemoteProtocolError(f"retry flag {retry[:20]!r} is none of 0, 1, 2")


def info_key(topic: str, queue_id: int) -> str:
    """Return the key of a queue in the dicts that ``parse_start_offset_info`` and the other parsers return.

    Args:
        topic: The topic in which the messages are stored.
    """
    return f"{retry_flag(topic)}@{queue_id}"


def order_info_key(topic: str, queue_id: int, queue_offset: int) -> str:
    """Return the key of one message in the dict of ``parse_order_count_info``."""
    return f"{retry_flag(topic)}@qo{queue_id}%{queue_offset}"


def parse_start_offset_info(text: str | None) -> dict[str, int]:
    """Return the offset at which the pop began, by queue (``info_key``). Return ``{}`` for None and "".

    Raises:
        RemoteProtocolError: If ``text`` is malformed or has two entries with the same key.
    """
    return _parse("startOffsetInfo", text, _long)


def parse_msg_offset_info(text: str | None) -> dict[str, tuple[int, ...]]:
    """Return the queue offsets of the messages, by queue (``info_key``). Return ``{}`` for None and "".

    Raises:
        RemoteProtocolError: If ``text`` is malformed or has two entries with the same key.
    """
    return _parse("msgOffsetInfo", text, _longs)


def parse_order_count_info(text: str | None) -> dict[str, int]:
    """Return the number of earlier deliveries, by queue (``info_key``) or by message (``order_info_key``).

    Return ``{}`` for None and "".

    Raises:
        RemoteProtocolError: If ``text`` is malformed or has two entries with the same key.
    """
    return _parse("orderCountInfo", text, _long)


def build_info(values: Mapping[str, int | Sequence[int]]) -> str:
    """Return the value of startOffsetInfo, msgOffsetInfo or orderCountInfo for a dict such as their parsers return."""
    return ";".join(
        f"{key.replace('@', ' ', 1)} {value if isinstance(value, int) else ','.join(map(str, value))}"
        for key, value in values.items()
    )


def _parse(what: str, text: str | None, read: Callable[[str, str, str], _V]) -> dict[str, _V]:
    found: dict[str, _V] = {}
    for item in text.rstrip(";").split(";") if text else ():
        parts = item.split(" ")
        if len(parts) != 3:
            raise RemoteProtocolError(f"{what}: {item[:80]!r} has {len(parts)} parts, not 3")
        key = f"{parts[0]}@{parts[1]}"
        if key in found:
            raise RemoteProtocolError(f"{what}: there are two entries for {key[:80]!r}")
        found[key] = read(parts[2], item, what)
    return found


def _longs(text: str, whole: str, what: str) -> tuple[int, ...]:
    if _short_numbers(text):  # each is a 64-bit integer
        return tuple(map(int, text.split(",")))
    return tuple([_long(part, whole, what) for part in text.split(",")])


def _long(text: str, whole: str, what: str) -> int:
    value = int(text) if _number(text) else None
    if value is None or value not in _LONG:
        raise RemoteProtocolError(f"{what}: {text[:40]!r} in {whole[:80]!r} is not a 64-bit integer")
    return value
