"""Which offsets of one queue are settled.

Offsets enter in rising order and are settled in any. The watermark is the lowest offset that is not settled, which is what a
group's committed offset means: a member that starts there repeats no settled message below it and skips none. No I/O, no clock.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Progress"]


class Progress:
    """``start``: the first offset that has not been entered. ``next``: the offset after the last one that was entered or passed."""

    __slots__ = ("_line", "_open", "next")

    def __init__(self, start: int) -> None:
        self.next = start
        self._line: deque[int] = deque()
        """Entered offsets from the lowest open one on, settled ones in between."""
        self._open: set[int] = set()

    @property
    def watermark(self) -> int:
        """The lowest offset that is not settled."""
        return self._line[0] if self._line else self.next

    @property
    def span(self) -> int:
        """Offsets from the watermark to the last one that was entered or passed."""
        return self.next - self.watermark

    @property
    def open(self) -> int:
        """Number of offsets that were entered and are not settled."""
        return len(self._open)

    def enter(self, offset: int) -> None:
        """Adds the offset of a message. Raises ValueError for one below ``next``."""
        if offset < self.next:
            raise ValueError(f"offset {offset} is below {self.next}, the next one")
        self._line.append(offset)
        self._open.add(offset)
        self.next = offset + 1

    def pass_to(self, offset: int) -> None:
        """Marks all offsets below ``offset`` that were not entered as without a message for this member."""
        self.next = max(self.next, offset)

    def settle(self, offset: int) -> bool:
        """Returns whether the offset was open; it no longer is."""
        if offset not in self._open:
            return False
        self._open.discard(offset)
        line, still_open = self._line, self._open
        while line and line[0] not in still_open:
            line.popleft()
        return True

    def is_open(self, offset: int) -> bool:
        return offset in self._open

    def settled_above(self, offset: int) -> bool:
        """Returns whether a message above ``offset`` is settled that the watermark has not passed."""
        return any(each > offset and each not in self._open for each in self._line)

    @property
    def highest_settled(self) -> int:
        """The highest settled offset above the watermark; -1 without one."""
        return next((each for each in reversed(self._line) if each not in self._open), -1)

    def withdraw(self, offset: int) -> None:
        """Takes back all entered offsets from ``offset`` on, none of which is settled: they are pulled again, here or elsewhere.

        Raises ValueError where one of them is settled.
        """
        line, still_open = self._line, self._open
        if any(each >= offset and each not in still_open for each in line):
            raise ValueError(f"a message at or above offset {offset} is settled already")
        while line and line[-1] >= offset:
            still_open.discard(line.pop())
        self.next = min(self.next, offset)
