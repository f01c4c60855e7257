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
    """The switches of ``EmbeddedRocketMQ`` for pops."""

    @abstractmethod
    def _chosen(self, name: str | None) -> list[Broker]:
        """Return the broker called ``name``, or for None all brokers.

        Raises:
            ValueError: For an unknown name.
        """

    def in_flight(self, group: str) -> list[MessageExt]:
        """Return the stored messages that the group has popped and not acknowledged, and that were not copied for redelivery
        yet. Messages of ordered pops are not among them.
        """
        return [message for broker in self._chosen(None) for message in broker.popping.in_flight(group)]

    def empty_pops(self, n: int = 1, *, broker: str | None = None) -> None:
        """Make the broker (None: each broker) answer the next ``n`` pops at once with POLLING_TIMEOUT (210), even if there are
        messages. ``n`` = 0 ends it.
        """
        for each in self._numbered(n, broker):
            each.popping.faults.empty = n

    def lose_acks(self, n: int = 1, *, broker: str | None = None) -> None:
        """Make the broker (None: each broker) answer the next ``n`` acks, single ones (200051) or batches (200151), with
        success although they have no effect. ``n`` = 0 ends it.
        """
        for each in self._numbered(n, broker):
            each.popping.faults.lost_acks = n

    def delay_revival(self, seconds: float, *, broker: str | None = None) -> None:
        """Delay the redelivery of popped messages without an ack by ``seconds`` on the broker (None: each broker); 0 ends it.

        Messages of ordered pops are not delayed.
        """
        check_number("seconds", seconds)
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds must be a finite number from 0 on, not {seconds}")
        for each in self._chosen(broker):
            each.popping.delay_revival(seconds)

    def repeat_revival(self, copies: int, *, broker: str | None = None) -> None:
        """Make the broker (None: each broker) deliver each popped message without an ack again ``copies`` times, 1 to 16.

        1 ends it. Messages of ordered pops are delivered again once.
        """
        check_whole("copies", copies)
        if not 1 <= copies <= MAX_COPIES:
            raise ValueError(f"copies must be from 1 to {MAX_COPIES}, not {copies}")
        for each in self._chosen(broker):
            each.popping.faults.copies = copies

    def lose_offsets(self, *, broker: str | None = None) -> None:
        """Set the committed offsets of the broker (None: each broker) back to its last save, as after a kill: it saves them
        every 5 s, for the first time 10 s after its start, and when it stops. Pops continue from there: messages that were
        popped since are delivered again, acknowledged or not.
        """
        for each in self._chosen(broker):
            each.lose_offsets()

    def _numbered(self, n: int, broker: str | None) -> Sequence[Broker]:
        check_whole("n", n)
        if n < 0:
            raise ValueError(f"n must not be negative, it is {n}")
        return self._chosen(broker)
