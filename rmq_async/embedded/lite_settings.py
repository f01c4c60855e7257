"""The settings of lite topics."""

from __future__ import annotations

from typing import Final, NamedTuple

from .arguments import check_delay, check_flags, check_within
from .faults import NO_POPS

MAX_LITE_TOPICS: Final = 20_000
MAX_LITE_SUBSCRIPTIONS: Final = 100_000
_MOST: Final = 200_000
"""Maximum of both limits, for all of which the broker must have memory."""


class LiteSettings(NamedTuple):
    """The settings of lite topics.

    Attributes:
        enabled: Whether the broker serves lite topics (``enableLmq``, ``enableMultiDispatch``).
        max_topics: Maximum number of lite topics of a broker (``maxLmqConsumeQueueNum``).
        max_subscriptions: Number of subscriptions of a broker from which on it refuses more (``maxLiteSubscriptionCount``).
        min_ttl: Seconds after the last message, and after the broker's start, before which no lite topic expires (``minLiteTTl``).
    """

    enabled: bool = True
    max_topics: int = MAX_LITE_TOPICS
    max_subscriptions: int = MAX_LITE_SUBSCRIPTIONS
    min_ttl: float = 900.0

    def served_by(self, version: str) -> bool:
        """Return whether a broker of this version serves lite topics."""
        return self.enabled and version != NO_POPS


def checked_lite_settings(*, enabled: bool, max_topics: int, max_subscriptions: int, min_ttl: float) -> LiteSettings:
    """Check the settings and return them.

    Raises:
        TypeError: For a value of the wrong type.
        ValueError: For a value out of range.
    """
    check_flags(lite_topics=enabled)
    check_within("max_lite_topics", max_topics, 1, _MOST)
    check_within("max_lite_subscriptions", max_subscriptions, 1, _MOST)
    check_delay("min_lite_ttl", min_ttl)
    return LiteSettings(enabled, max_topics, max_subscriptions, min_ttl)
