"""The checks of clients before sending (``Validators``) and of brokers on arrival (``TopicValidator``).

``check_message`` runs for every send. It remembers topics that passed, so that a check costs a type test, a length test and a
look-up. Java counts names in UTF-16 units. Valid names are ASCII, so their numbers of characters, units and bytes are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .constants import (
    AUTO_CREATE_TOPIC_KEY,
    DLQ_TOPIC_PREFIX,
    MAX_BODY_SIZE,
    MAX_GROUP_LENGTH,
    MAX_RETRY_TOPIC_LENGTH,
    MAX_TOPIC_LENGTH,
    RETRY_TOPIC_PREFIX,
)
from .errors import InvalidMessageError
from .message import is_blank

_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED: Final = "only a-z, A-Z, 0-9 and % | _ - are allowed"
_PATH_SEPARATOR: Final = "/"

NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""Topics of the broker to which no client may send."""

SYSTEM_TOPICS: Final = NOT_ALLOWED_SEND_TOPICS | {
    AUTO_CREATE_TOPIC_KEY,
    "BenchmarkTest",
    "RMQ_SYS_TRACE_TOPIC",
    "CHECKPOINT_TOPIC",
}
_SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"


def plain(text: str) -> str:
    """Return a string of a subclass of str as a plain str. The hash of an Enum member differs from that of its value, and
    formatting the member may give its name.
    """
    return text if text.__class__ is str else str.__str__(text)


def is_system_topic(topic: str) -> bool:
    """Return whether the topic belongs to the system. Users cannot create such a topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(_SYSTEM_TOPIC_PREFIX)


SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Groups that every broker creates when it first starts (``SubscriptionGroupManager.init``)."""
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def is_system_group(group: str) -> bool:
    """Return whether the group belongs to the system."""
    return group in SYSTEM_GROUPS or group.startswith(_SYSTEM_GROUP_PREFIX)


def is_not_allowed_send_topic(topic: str) -> bool:
    return topic in NOT_ALLOWED_SEND_TOPICS


def check_topic(topic: str) -> None:
    """Check that the topic is a str of 1 to 127 ASCII letters, digits and ``% | _ -``.

    Raises:
        InvalidMessageError: If the topic has another form (code -1).
    """
    _check_name("topic", topic, MAX_TOPIC_LENGTH)


def check_group(group: str) -> None:
    """Check that the group is a str of 1 to 120 ASCII letters, digits and ``% | _ -``.

    Raises:
        InvalidMessageError: If the group has another form (code -1).
    """
    _check_name("group", group, MAX_GROUP_LENGTH)


def _check_name(what: str, name: object, limit: int) -> None:
    if not isinstance(name, str):
        raise InvalidMessageError(f"{what} must be a str, not {type(name).__name__}", code=-1)
    if is_blank(name):
        raise InvalidMessageError(f"{what} is blank; give a name", code=-1)
    if len(name) > limit:
        raise InvalidMessageError(
            f"{what} {_shown(name)} has {len(name)} characters, the limit is {limit}; shorten it", code=-1
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        raise InvalidMessageError(f"{what} {_shown(name)} holds a character that is not allowed: {_ALLOWED}", code=-1)


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 160 else f"{name[:160]!r}..."


_good_topics: set[str] = set()
_MAX_GOOD_TOPICS: Final = 4096


def check_message(topic: str, body: bytes, max_size: int = MAX_BODY_SIZE, properties: Mapping[str, str] | None = None) -> None:
    """Check a message before it is sent, as ``Validators.checkMessage`` does.

    Raises:
        InvalidMessageError: If the topic is invalid (see ``check_topic``) or belongs to the broker (code -1), if the body is not
            ``bytes``, is empty or has more than ``max_size`` bytes, or if property INNER_MULTI_DISPATCH has a path separator in it
            (code 13).
    """
    if type(topic) is not str or topic not in _good_topics:
        _check_send_topic(topic)
    if type(body) is not bytes or not 0 < len(body) <= max_size:
        _refuse_body(body, max_size)
    if properties and _PATH_SEPARATOR in properties.get("INNER_MULTI_DISPATCH", ""):
        raise InvalidMessageError(
            f"INNER_MULTI_DISPATCH {properties['INNER_MULTI_DISPATCH']!r} must not hold a {_PATH_SEPARATOR}; remove it"
        )


def _check_send_topic(topic: str) -> None:
    check_topic(topic)
    if topic in NOT_ALLOWED_SEND_TOPICS:
        raise InvalidMessageError(f"topic {topic!r} belongs to the broker; send to another topic", code=-1)
    if len(_good_topics) >= _MAX_GOOD_TOPICS:
        _good_topics.clear()
    _good_topics.add(topic)


def _refuse_body(body: object, max_size: int) -> None:
    if not isinstance(body, bytes):
        raise InvalidMessageError(f"the body must be bytes, not {type(body).__name__}")
    if not body:
        raise InvalidMessageError("the body is empty; give at least one byte")
    if len(body) > max_size:
        raise InvalidMessageError(
            f"the body has {len(body)} bytes, the limit is {max_size}; shorten it or raise max_message_size"
        )


def broker_topic_remark(topic: str | None) -> str | None:
    """Return a remark that says why a broker refuses the topic (code 29, INVALID_PARAMETER), or None if it accepts the topic.

    The rules are those of ``TopicValidator.validateTopic``. Unlike clients, brokers accept retry and dead-letter topics of up to
    255 characters.
    """
    if topic is None or is_blank(topic):
        return "the topic is blank"
    if _LEGAL_NAME.fullmatch(topic) is None:
        return f"topic {_shown(topic)} holds a character that is not allowed: {_ALLOWED}"
    inherited = topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    limit = MAX_RETRY_TOPIC_LENGTH if inherited else MAX_TOPIC_LENGTH
    if len(topic) > limit:
        return f"topic {_shown(topic)} has {len(topic)} characters, the limit is {limit}"
    return None


def broker_group_remark(group: str | None) -> str | None:
    """Return a remark that says why a broker refuses the group, or None if it accepts the group."""
    if group is None or is_blank(group):
        return "the group is blank"
    if _LEGAL_NAME.fullmatch(group) is None:
        return f"group {_shown(group)} holds a character that is not allowed: {_ALLOWED}"
    if len(group) > MAX_GROUP_LENGTH:
        return f"group {_shown(group)} has {len(group)} characters, the limit is {MAX_GROUP_LENGTH}"
    return None
