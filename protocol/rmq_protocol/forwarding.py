"""The parts of a received message that a copy of it keeps.

Brokers and clients add properties with system names to a message, and move messages between topics: a delayed message is in a
topic of the broker, a retry or a dead letter in a topic of its group. These properties name the original topic (5.5.0 and
4.9.7): REAL_TOPIC on a delayed message, RETRY_TOPIC on a retry and on a dead letter. On a dead letter of a popped message,
RETRY_TOPIC names a retry topic whose own name contains the group, which is in ORIGIN_GROUP, and the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .constants import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, PropertyName

__all__ = ["holdable", "holdable_properties", "original_topic", "user_properties"]

SYSTEM_NAMES: Final = frozenset(name.value for name in PropertyName)
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""Prefix of properties that brokers add for consumers and never store."""
_WAITING_TOPICS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_OF_GROUPS: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
_SEPARATORS: Final = frozenset("\x00\x01\x02")
_BLANKS: Final = "".join(map(chr, range(33)))
_MOST_MOVES: Final = 4
"""Maximum number of moves that are traced back; from the dead letter of a popped message to its topic there are two."""


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with names of the sender's own: without names that the protocol uses (``PropertyName``), also where
    the sender has set them, and without names that brokers add for consumers.
    """
    return {
        name: value for name, value in properties.items() if name not in SYSTEM_NAMES and not name.startswith(TRANSIENT_PREFIX)
    }


def holdable(text: str | None) -> str | None:
    """Return the text if a copy of a message may have it as key, as tag, or as name or value of a property: if it is not blank,
    has none of the control characters 0 to 2, and has a UTF-8 form. Return None for any other text.
    """
    if text is None or not text.strip(_BLANKS) or not _SEPARATORS.isdisjoint(text):
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def holdable_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of ``user_properties`` whose names and values ``holdable`` accepts."""
    given = user_properties(properties)
    return {name: value for name, value in given.items() if holdable(name) and holdable(value)}


def original_topic(topic: str, properties: Mapping[str, str]) -> str:
    """Return the topic that a message of ``topic`` was first sent to.

    ``topic`` itself if neither its name nor the properties name another.
    """
    for _ in range(_MOST_MOVES):
        earlier = _earlier(topic, properties)
        if not earlier or earlier == topic:
            break
        topic = earlier
    return topic


def _earlier(topic: str, properties: Mapping[str, str]) -> str | None:
    if topic in _WAITING_TOPICS:
        return properties.get(PropertyName.REAL_TOPIC)
    if not topic.startswith(_OF_GROUPS):
        return None
    popped = _popped_topic(topic, properties)
    named = properties.get(PropertyName.RETRY_TOPIC) or properties.get(PropertyName.DLQ_ORIGIN_TOPIC)
    return popped if named is None or named == topic else named


def _popped_topic(topic: str, properties: Mapping[str, str]) -> str | None:
    """Return the topic in the name of a retry topic for pops, ``%RETRY%group+topic`` or, if property ORIGIN_GROUP names the
    group, ``%RETRY%group_topic``; None for any other name.
    """
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return None
    name = topic.removeprefix(RETRY_TOPIC_PREFIX)
    group = properties.get(PropertyName.ORIGIN_GROUP)
    if group and name.startswith((f"{group}_", f"{group}+")):
        return name[len(group) + 1 :]
    return name.partition("+")[2] or None  # no other name may hold it
