"""The remarks with which a broker refuses a name. They have the wording of real brokers, because clients show them to users,
who search for them.
"""

from __future__ import annotations

import re
from typing import Final

from rmq_protocol.constants import (
    DLQ_TOPIC_PREFIX,
    MAX_GROUP_LENGTH,
    MAX_RETRY_TOPIC_LENGTH,
    MAX_TOPIC_LENGTH,
    RETRY_TOPIC_PREFIX,
)
from rmq_protocol.message import is_blank
from rmq_protocol.validation import broker_group_remark, broker_topic_remark

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SHOWN: Final = 300
"""Maximum number of characters of a name that a remark shows."""


def topic_refusal(name: str) -> str | None:
    """Return the remark that refuses the name of a topic. Return None for a valid name."""
    if broker_topic_remark(name) is None:
        return None
    inherited = name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    return _refusal("topic", name, MAX_RETRY_TOPIC_LENGTH if inherited else MAX_TOPIC_LENGTH)


def group_refusal(name: str) -> str | None:
    """Return the remark that refuses the name of a group. Return None for a valid name."""
    return None if broker_group_remark(name) is None else _refusal("group", name, MAX_GROUP_LENGTH)


def _refusal(kind: str, name: str, limit: int) -> str:
    if is_blank(name):
        return f"The specified {kind} is blank."
    if _LEGAL.fullmatch(name) is None:
        return f"The specified {kind}: {name[:_SHOWN]}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return f"The specified {kind}: {name[:_SHOWN]}, is longer than {kind} max length: {limit}"
