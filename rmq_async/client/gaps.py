"""Recognizes gaps in a queue's offsets that are not caused by lost messages.

If the response to a pull without a filter leaves offsets out, their messages were deleted. The exceptions are two kinds of topics,
which the broker's topic settings identify: a compacted topic (attribute ``cleanup.policy``) keeps only the newest message of each
key, and a queue of a static topic skips offsets when it moves from one broker to the next. Settings are requested only when offsets
are missing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq_protocol.topics import TopicConfigAndQueueMapping

from .. import machine

FRESH: Final = 10.0
"""Seconds for which cached settings are used. The settings of a static topic are requested again for each gap."""
MAX_TOPICS: Final = 1024
_POLICY: Final = "cleanup.policy"


class _Settings(NamedTuple):
    config: TopicConfigAndQueueMapping
    until: float


class GapTable:
    """The settings of topics that brokers have returned because offsets were missing, by broker name and topic."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Settings] = {}

    def is_compacted(self, broker_name: str, topic: str) -> bool:
        """Return whether the topic is known to be compacted, without I/O."""
        config = self.get(broker_name, topic)
        return config is not None and is_compacted(config)

    def get(self, broker_name: str, topic: str) -> TopicConfigAndQueueMapping | None:
        known = self._known.get((broker_name, topic))
        return known.config if known is not None and known.until > machine.monotonic() else None

    def put(self, broker_name: str, topic: str, config: TopicConfigAndQueueMapping) -> None:
        self._known.pop((broker_name, topic), None)
        self._known[broker_name, topic] = _Settings(config, machine.monotonic() + FRESH)
        if len(self._known) > MAX_TOPICS:
            del self._known[next(iter(self._known))]


def is_compacted(config: TopicConfigAndQueueMapping) -> bool:
    return any(name.removeprefix("+") == _POLICY and value == "COMPACTION" for name, value in config.attributes.items())
