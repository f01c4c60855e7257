"""Subscriptions: the filter of a consumer for a topic, as heartbeats and pulls contain it (``FilterAPI``)."""

from __future__ import annotations

from typing import Final

from .errors import LocalProtocolError
from .heartbeat import SubscriptionData, java_hash
from .message import BLANKS

TAG: Final = "TAG"
SQL92: Final = "SQL92"
SUB_ALL: Final = "*"


def split_tags(expression: str) -> tuple[str, ...]:
    """Return the tags of ``A || B``, each once, without blanks around them; blank parts are left out.

    Raises:
        LocalProtocolError: For a text that is empty or has separators only.
    """
    if not expression.replace("||", ""):
        raise LocalProtocolError(f"subscription {expression[:80]!r} names no tag; name one, or give * for all")
    return tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip(BLANKS))))


def parse_tags(expression: str | None) -> frozenset[str] | None:
    """Return the tags of a subscription expression "a || b"; None if it selects all messages: "*", None, or no tag
    (``FilterAPI.buildSubscriptionData``).

    Raises:
        LocalProtocolError: For an expression of separators only.
    """
    if not expression or expression == "*":
        return None
    return frozenset(split_tags(expression)) or None


def build_subscription(
    topic: str, expression: str | None = SUB_ALL, expression_type: str = TAG, *, sub_version: int = 0
) -> SubscriptionData:
    """Return the subscription of a topic.

    Args:
        expression: For TAG ``A || B``, or ``*``, "" or None for all messages; for SQL92 a condition over properties, sent as it
            is.
        sub_version: Epoch ms; brokers refuse a pull without its own subscription and with a higher version than that of the
            group's heartbeat (``PullMessageProcessor``).

    Raises:
        LocalProtocolError: For a TAG expression of separators only, and for an empty one of another type.
    """
    if expression_type != TAG:
        if not expression:
            raise LocalProtocolError(f"subscription of {topic!r}: the {expression_type} expression is empty; give a condition")
        return SubscriptionData(topic, expression, sub_version=sub_version, expression_type=expression_type)
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, SUB_ALL, sub_version=sub_version)
    tags = split_tags(expression)
    codes = tuple(dict.fromkeys(java_hash(tag) for tag in tags))
    return SubscriptionData(topic, expression, tags_set=tags, code_set=codes, sub_version=sub_version)
