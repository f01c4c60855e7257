"""The use of topics, by which a route table drops unused ones.

Sends do not mark their topic, because that would take time for each message. Instead each producer reports, once per poll of
the routes, the topics that it sent to since the previous poll. Other users mark a topic at each request, or hold it while they
need it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

__all__ = ["UNKNOWN_POLLS", "UNUSED_POLLS", "TopicUse"]

UNUSED_POLLS: Final = 10
"""Polls without a use after which a topic is dropped."""

UNKNOWN_POLLS: Final = 3
"""Polls without a use, each answered with "no such topic", after which a topic is dropped. With the default interval they
take 90 s; a broker registers its topics at a restarted name server within 60 s."""


class TopicUse:
    """The age of each topic, in polls since its last use. There is no clock: without polls no topic is dropped."""

    def __init__(self) -> None:
        self.reports: list[Callable[[], Iterable[str]]] = []
        """Plain functions; each returns the topics used since its previous call."""
        self._held: dict[str, int] = {}
        self._marked: set[str] = set()
        self._unused: dict[str, int] = {}
        self._unknown: dict[str, int] = {}
        self.mark: Callable[[str], None] = self._marked.add
        """Records one use of a topic."""

    def __len__(self) -> int:
        return len(self._unused)

    def hold(self, topic: str) -> None:
        """Keep the topic until ``release`` has been called as often."""
        self._held[topic] = self._held.get(topic, 0) + 1

    def release(self, topic: str) -> None:
        """End one ``hold``; the topic counts as used at this moment."""
        self._marked.add(topic)
        if self._held[topic] > 1:
            self._held[topic] -= 1
        else:
            del self._held[topic]

    def count_poll(self, answers: Mapping[str, bool]) -> list[str]:
        """Count one poll; return the topics that are due to be dropped, the longest unused first.

        Args:
            answers: Topic -> whether the name servers know it, for each topic with an answer.
        """
        used = self._held.keys() | self._marked
        self._marked.clear()
        for report in list(self.reports):
            used.update(report())
        for topic in used:
            self._unused.pop(topic, None)
            self._unknown.pop(topic, None)
        due = []
        for topic in answers:  # in its order: that of a set depends on the process
            if topic in used:
                continue
            unused = self._unused[topic] = self._unused.get(topic, 0) + 1
            unknown = self._unknown[topic] = 0 if answers[topic] else self._unknown.get(topic, 0) + 1
            if unused >= UNUSED_POLLS or unknown >= UNKNOWN_POLLS:
                due.append(topic)
        return sorted(due, key=lambda topic: -self._unused[topic])

    def is_unknown(self, topic: str) -> bool:
        """Return whether the topic was unused at the last poll, and the name servers did not know it."""
        return self._unknown.get(topic, 0) > 0

    def forget(self, topic: str) -> None:
        self._unused.pop(topic, None)
        self._unknown.pop(topic, None)


def topics_to_keep(
    due: Iterable[str], kept: Iterable[str], brokers: Collection[str], brokers_of: Callable[[str], Collection[str]]
) -> set[str]:
    """Return the topics of ``due`` to keep, so that at least one topic names each of ``brokers``.

    Prefers the last ones of ``due``.

    Args:
        kept: Topics that stay in any case.
        brokers_of: Names of the brokers in its route. A broker that no topic names gets no heartbeats, although it may have a
            half message of this client and have to check its transaction.
    """
    unnamed = set(brokers)
    for topic in kept:
        if not unnamed:
            break
        unnamed.difference_update(brokers_of(topic))
    stay = set()
    for topic in reversed(list(due)):
        if not unnamed:
            break
        if not unnamed.isdisjoint(brokers_of(topic)):
            stay.add(topic)
            unnamed.difference_update(brokers_of(topic))
    return stay
