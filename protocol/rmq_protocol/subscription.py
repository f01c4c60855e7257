"""Subscriptions: the filters of a consumer for its topics, in the form that heartbeats and pulls contain (``FilterAPI``)."""

from __future__ import annotations

from typing import Final

from .errors import LocalProtocolError
from .heartbeat import SubscriptionData
from .java_types import string_hash
from .message import BLANKS

TAG: Final = "TAG"
SQL92: Final = "SQL92"
SUB_ALL: Final = "*"


def split_tags(expression: str) -> tuple[str, ...]:
    """Return the tags of ``A || B``, each once and without blanks around it. Blank parts are left out.

    Raises:
        LocalProtocolError: If ``expression`` is empty or consists of separators only.
    """
    if not expression.replace("||", ""):
        raise LocalProtocolError(f"subscription {expression[:80]!r} names no tag; name one, or give * for all")
    return tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip(BLANKS))))


def parse_tags(expression: str | None) -> frozenset[str] | None:
    """Return the tags of a subscription expression "a || b" (``FilterAPI.buildSubscriptionData``).

    Return None if the expression selects all messages, which "*", "" and None do.

    Raises:
        LocalProtocolError: If the expression consists of separators only.
    """
    if not expression or expression == "*":
        return None
    return frozenset(split_tags(expression)) or None


def build_subscription(
    topic: str, expression: str | None = SUB_ALL, expression_type: str = TAG, *, sub_version: int = 0
) -> SubscriptionData:
    """Return the subscription of a topic.

    Args:
        topic: The topic.
        expression: If the type is TAG, ``A || B``, or ``*``, "" or None for all messages. If the type is SQL92, a condition on
            properties, which is sent unchanged.
        expression_type: TAG or SQL92.
        sub_version: Version of the subscription, epoch ms. A broker refuses a pull that contains no subscription and has a higher
            version than the subscription in the group's heartbeat (``PullMessageProcessor``).

    Raises:
        LocalProtocolError: If a TAG expression consists of separators only, or if an expression of another type is empty.
    """
    if expression_type != TAG:
        if not expression:
            raise LocalProtocolError(f"subscription of {topic!r}: the {expression_type} expression is empty; give a condition")
        return SubscriptionData(topic, expression, sub_version=sub_version, expression_type=expression_type)
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, SUB_ALL, sub_version=sub_version)
    tags = split_tags(expression)
    codes = tuple(dict.fromkeys(string_hash(tag) for tag in tags))
    return SubscriptionData(topic, expression, tags_set=tags, code_set=codes, sub_version=sub_version)
