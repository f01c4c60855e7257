"""Which topics of a client are in use, and which of them its route table may forget.

Sends leave no note of their topic, since a note would cost each message. Instead each producer reports once per poll of the routes
which topics it sent to since the poll before. Other users mark a topic at each request, or hold it for as long as they need it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

__all__ = ["UNKNOWN_POLLS", "UNUSED_POLLS", "TopicUse"]

UNUSED_POLLS: Final = 10
"""Polls without a use after which a topic is forgotten."""

UNKNOWN_POLLS: Final = 3
"""Polls without a use, and each answered with "no such topic", after which a topic is forgotten. With the default interval they
take 90 s; a broker registers its topics at a restarted name server within 60 s."""


class TopicUse:
    """The age of each topic in polls since its last use. Times are not looked at: without polls nothing is forgotten."""

    def __init__(self) -> None:
        self.reports: list[Callable[[], Iterable[str]]] = []
        """Plain functions; each returns the topics it has used since it was called last."""
        self._held: dict[str, int] = {}
        self._marked: set[str] = set()
        self._unused: dict[str, int] = {}
        self._unknown: dict[str, int] = {}
        self.mark: Callable[[str], None] = self._marked.add
        """Notes one use of a topic."""

    def __len__(self) -> int:
        return len(self._unused)

    def hold(self, topic: str) -> None:
        """Keeps the topic until ``release`` is called as often."""
        self._held[topic] = self._held.get(topic, 0) + 1

    def release(self, topic: str) -> None:
        """Ends one ``hold``; the topic counts as used at this moment."""
        self._marked.add(topic)
        if self._held[topic] > 1:
            self._held[topic] -= 1
        else:
            del self._held[topic]

    def polled(self, answers: Mapping[str, bool]) -> list[str]:
        """Counts one poll; returns the topics that are due to be forgotten, the longest unused first.

        ``answers``: topic -> whether the name servers know it, for each topic that they answered about.
        """
        used = self._held.keys() | self._marked
        self._marked.clear()
        for report in list(self.reports):
            used.update(report())
        for topic in used:
            self._unused.pop(topic, None)
            self._unknown.pop(topic, None)
        due = []
        for topic in answers.keys() - used:
            unused = self._unused[topic] = self._unused.get(topic, 0) + 1
            unknown = self._unknown[topic] = 0 if answers[topic] else self._unknown.get(topic, 0) + 1
            if unused >= UNUSED_POLLS or unknown >= UNKNOWN_POLLS:
                due.append(topic)
        return sorted(due, key=lambda topic: -self._unused[topic])

    def is_unknown(self, topic: str) -> bool:
        """Whether the name servers did not know the topic, unused since, at the last poll."""
        return self._unknown.get(topic, 0) > 0

    def forget(self, topic: str) -> None:
        self._unused.pop(topic, None)
        self._unknown.pop(topic, None)


def spared(
    due: Iterable[str], kept: Iterable[str], brokers: Collection[str], brokers_of: Callable[[str], Collection[str]]
) -> set[str]:
    """The topics of ``due`` that stay, so that each of ``brokers`` is named by one topic at least.

    ``kept``: the topics that stay anyway. Brokers that no topic names get no heartbeats; one of them may still have a half
    message of this client's to ask about.
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
