"""Switches by which a test affects the pops of embedded brokers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from rmq_protocol.message import MessageExt

from .arguments import check_number, check_whole
from .broker import Broker

__all__ = ["PopSwitches"]

MAX_COPIES: Final = 16


class PopSwitches(ABC):
    """A server whose brokers are popped from."""

    @abstractmethod
    def _chosen(self, name: str | None) -> list[Broker]:
        """Returns the broker of a name, or all of them. Raises ValueError for another name."""

    def in_flight(self, group: str) -> list[MessageExt]:
        """Returns the messages that the group has popped and not acknowledged, and that were not delivered again; one for
        each handle."""
        return [message for broker in self._chosen(None) for message in broker.popping.in_flight(group)]

    def empty_pops(self, n: int = 1, *, broker: str | None = None) -> None:
        """Answers the next ``n`` pops of the broker (None: of each of them) at once with POLLING_TIMEOUT (210), even if there
        are messages, as a real broker does while other pops hold all queues. ``n`` = 0 ends it. Raises ValueError for a
        negative number.
        """
        for each in self._numbered(n, broker):
            each.popping.faults.empty = n

    def lose_acks(self, n: int = 1, *, broker: str | None = None) -> None:
        """Loses the next ``n`` requests that acknowledge, single or many: they have no effect on the broker (None: on each of
        them), and are still answered with success. ``n`` = 0 ends it. Raises ValueError for a negative number.
        """
        for each in self._numbered(n, broker):
            each.popping.faults.lost_acks = n

    def delay_revival(self, seconds: float, *, broker: str | None = None) -> None:
        """Delays the return of the broker's (None: each broker's) popped messages by ``seconds``; 0 ends it.

        Raises ValueError for a number below 0.
        """
        check_number("seconds", seconds)
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds must be a number from 0 on, not {seconds}")
        for each in self._chosen(broker):
            each.popping.delay_revival(seconds)

    def repeat_revival(self, copies: int, *, broker: str | None = None) -> None:
        """Repeats the return of each popped message of the broker (None: of each broker): each is delivered again ``copies``
        times, 1 to 16.

        1 ends it.
        """
        check_whole("copies", copies)
        if not 1 <= copies <= MAX_COPIES:
            raise ValueError(f"copies must be from 1 to {MAX_COPIES}, not {copies}")
        for each in self._chosen(broker):
            each.popping.faults.copies = copies

    def lose_offsets(self, *, broker: str | None = None) -> None:
        """Sets the committed offsets of the broker (None: of each broker) to what it had saved last, as after a kill: it saves
        them every 5 s, first 10 s after its start. Pops begin there, and messages popped since are delivered again,
        acknowledged or not.
        """
        for each in self._chosen(broker):
            each.lose_offsets()

    def _numbered(self, n: int, broker: str | None) -> Sequence[Broker]:
        check_whole("n", n)
        if n < 0:
            raise ValueError(f"n must not be negative, it is {n}")
        return self._chosen(broker)
