"""The parts of a received message that a copy of it keeps.

Brokers and clients add properties with system names to a message, and they move messages between topics: a delayed message is in a
topic of the broker, and a retry or a dead letter is in a topic of its group. These properties name the original topic (5.5.0 and
4.9.7): REAL_TOPIC of a delayed message, and RETRY_TOPIC of a retry and of a dead letter. In a dead letter of a popped message,
RETRY_TOPIC names a retry topic. The name of that topic contains the group, which is also in ORIGIN_GROUP, and the original topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .constants import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, PropertyName

__all__ = ["holdable", "holdable_properties", "original_topic", "user_properties"]

SYSTEM_NAMES: Final = frozenset(name.value for name in PropertyName)
DEAD_LITE_TOPIC: Final = "DLQ_ORIGIN_LITE_TOPIC"
"""The property of a dead letter with the lite topic of its message. With the property of lite topics, a broker would add the dead
letter to a lite topic."""
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""The prefix of properties that brokers add for consumers and never store."""
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
"""Maximum number of moves that are traced back. From the dead letter of a popped message to its topic, there are two moves."""


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with the sender's own names.

    Leave out the names that the protocol uses (``PropertyName``), even if the sender has set them, and the names that brokers add
    for consumers.
    """
    return {
        name: value
        for name, value in properties.items()
        if name not in SYSTEM_NAMES and name != DEAD_LITE_TOPIC and not name.startswith(TRANSIENT_PREFIX)
    }


def holdable(text: str | None) -> str | None:
    """Return ``text`` if a copy of a message may have it as a key, a tag, or the name or value of a property, else None.

    The text must not be blank, must have none of the control characters 0 to 2, and must have a UTF-8 form.
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
    """Return the topic to which a message in ``topic`` was first sent.

    Return ``topic`` itself if neither its name nor the properties name another topic.
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
    """Return the original topic of a retry topic for pops. Return None for any other topic.

    The name of the retry topic is ``%RETRY%group+topic``, or ``%RETRY%group_topic`` if the property ORIGIN_GROUP names the
    group.
    """
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return None
    name = topic.removeprefix(RETRY_TOPIC_PREFIX)
    group = properties.get(PropertyName.ORIGIN_GROUP)
    if group and name.startswith((f"{group}_", f"{group}+")):
        return name[len(group) + 1 :]
    return name.partition("+")[2] or None  # no other name may contain "+"
