"""The record of settled offsets of one queue."""

# Offsets are entered in rising order, and settled in any order. Withdrawn offsets are entered again. The watermark is the
# lowest offset that is not settled, which is what a group's committed offset means: a member that starts there repeats no
# settled message below it and skips none. No I/O, no clock.

from __future__ import annotations

from collections import deque
from collections.abc import Collection

__all__ = ["Progress"]


class Progress:
    """The progress in one queue.

    ``start``: the first offset that is to be entered. ``next``: the offset after the last one that is entered or passed.
    """

    __slots__ = ("_away", "_line", "_open", "next")

    def __init__(self, start: int) -> None:
        self.next = start
        self._line: deque[int] = deque()
        """Entered offsets from the lowest open one on, settled ones in between."""
        self._open: set[int] = set()
        self._away: set[int] = set()
        """Open offsets that were withdrawn below others that were not: they are to be entered again."""

    @property
    def watermark(self) -> int:
        """The lowest offset that is not settled."""
        return self._line[0] if self._line else self.next

    @property
    def open(self) -> int:
        """Number of offsets that were entered and are not settled, including withdrawn ones below others that are still entered."""
        return len(self._open)

    def enter(self, offset: int) -> bool:
        """Adds the offset of a message; returns False for one below ``next`` that was not withdrawn, which adds nothing."""
        return self.enter_all([offset])[0]

    def enter_all(self, offsets: list[int]) -> list[bool]:
        """Adds the offsets of messages; returns for each what ``enter`` returns."""
        line, still_open, following = self._line, self._open, self.next
        if offsets and offsets[0] >= following and offsets == [*range(offsets[0], offsets[0] + len(offsets))]:
            line.extend(offsets)
            still_open.update(offsets)
            self.next = offsets[-1] + 1
            return [True] * len(offsets)
        entered = []
        for offset in offsets:
            if offset >= following:
                line.append(offset)
                still_open.add(offset)
                following = offset + 1
                entered.append(True)
            elif offset in self._away:
                self._away.discard(offset)
                entered.append(True)
            else:
                entered.append(False)
        self.next = following
        return entered

    def pass_to(self, offset: int) -> None:
        """Marks all offsets below ``offset`` that are not entered, or were withdrawn, as without a message for this member."""
        self.next = max(self.next, offset)
        if self._away:
            for gone in [each for each in self._away if each < offset]:
                self._away.discard(gone)
                self.settle(gone)

    def go_back(self, offset: int) -> None:
        """Forgets the offsets from ``offset`` on, settled or not: they may be other messages' now, and are entered anew."""
        line = self._line
        while line and line[-1] >= offset:
            gone = line.pop()
            self._open.discard(gone)
            self._away.discard(gone)
        self.next = min(self.next, offset)

    def settle(self, offset: int) -> bool:
        """Settles an offset; returns whether it was open."""
        if offset not in self._open:
            return False
        line, still_open = self._line, self._open
        still_open.discard(offset)
        while line and line[0] not in still_open:
            line.popleft()
        return True

    def settle_all(self, offsets: list[int]) -> None:
        """Settles offsets; those that are not open change nothing."""
        line, still_open = self._line, self._open
        still_open.difference_update(offsets)
        while line and line[0] not in still_open:
            line.popleft()

    def is_open(self, offset: int) -> bool:
        return offset in self._open

    def settled_above(self, offset: int) -> bool:
        """Returns whether a message above ``offset`` is settled that the watermark has not passed."""
        return any(each > offset and each not in self._open for each in self._line)

    @property
    def highest_settled(self) -> int:
        """The highest settled offset above the watermark; -1 without one."""
        return next((each for each in reversed(self._line) if each not in self._open), -1)

    def withdraw(self, offsets: Collection[int]) -> int:
        """Withdraws entered offsets, one or more, none of them settled; returns the lowest, from which on they are entered
        again.

        Offsets above it that are not withdrawn stay as they are: entering them again changes nothing. Raises ValueError for an
        offset that is not open.
        """
        if not self._open.issuperset(offsets):
            raise ValueError(
                f"offsets {sorted(set(offsets) - self._open)} are not open: not entered, or settled; give open ones"
            )
        line, gone = self._line, set(offsets)
        lowest = min(gone)
        while line and line[-1] in gone:
            self.next = line.pop()
            gone.discard(self.next)
            self._open.discard(self.next)
            self._away.discard(self.next)
        self._away |= gone
        return lowest
