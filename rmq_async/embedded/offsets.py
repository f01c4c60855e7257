"""The progress of groups by topic and queue (``OffsetTable``): committed offsets, pulled offsets and resets.

A reset changes the committed offset. It is pending until the response to a pull of that queue contains the new offset, or until
a pop reads from the new offset. While a reset is pending, the group's commits for that queue are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmq_protocol.constants import ResponseCode
from rmq_protocol.lite import LITE_PREFIX

from .service import Refused

MAX_OFFSETS: Final = 200_000
"""Maximum number of committed offsets, offsets of pulls and pending resets of one table together."""

_Offsets = dict[int, int]
SavedOffsets = dict[tuple[str, str], dict[int, int]]
"""Committed offsets, by (group, topic) and then by queue id."""


class OffsetTable:
    """The committed offsets of groups.

    Args:
        saved: The initial offsets.
    """

    def __init__(self, saved: SavedOffsets | None = None) -> None:
        self._committed: dict[tuple[str, str], _Offsets] = {key: dict(offsets) for key, offsets in (saved or {}).items()}
        self._pulled: dict[tuple[str, str], _Offsets] = {}
        self._reset: dict[tuple[str, str], _Offsets] = {}
        self._unsaved: dict[tuple[str, str], None] = {}
        self._count = sum(map(len, self._committed.values()))

    def save(self, saved: SavedOffsets) -> None:
        """Write the changes since the last save into ``saved``."""
        for key in self._unsaved:
            if key in self._committed:
                saved[key] = dict(self._committed[key])
            else:
                saved.pop(key, None)
        self._unsaved.clear()

    def restore(self, saved: SavedOffsets) -> None:
        """Restore the saved offsets. Pending resets stay."""
        self._count -= sum(map(len, self._committed.values()))
        self._committed = {key: dict(offsets) for key, offsets in saved.items()}
        self._count += sum(map(len, self._committed.values()))
        self._unsaved.clear()

    def find(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of a pending reset, or else the group's committed offset. Return -1 if the group has no committed
        offset.
        """
        key = (group, topic)
        if self._reset and queue_id in self._reset.get(key, ()):
            return self._reset[key][queue_id]
        return self._committed.get(key, {}).get(queue_id, -1)

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of the group's last recorded pull, or else the offset that ``find`` returns."""
        offset = self._pulled.get((group, topic), {}).get(queue_id)
        return self.find(group, topic, queue_id) if offset is None else offset

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit an offset. While a reset is pending, commit nothing and return False.

        Raises:
            Refused: With code 1 if the table is full.
        """
        if self.is_reset(group, topic, queue_id):
            return False
        if not self._set(self._committed, group, topic, queue_id, offset):
            raise _full()
        self._unsaved[group, topic] = None
        return True

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record the offset that a pull requested. Ignore it if the table is full, because the offset appears only in
        statistics.
        """
        self._set(self._pulled, group, topic, queue_id, offset)

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        return bool(self._reset) and queue_id in self._reset.get((group, topic), ())

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the offset and start a pending reset to it.

        Raises:
            Refused: With code 1 if the table is full.
        """
        self._unsaved[group, topic] = None
        for table in (self._committed, self._reset):
            if not self._set(table, group, topic, queue_id, offset):
                raise _full()

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove and return the offset of a pending reset. Return None if no reset is pending."""
        if not self.is_reset(group, topic, queue_id):
            return None
        offsets = self._reset[group, topic]
        offset = offsets.pop(queue_id)
        self._count -= 1
        if not offsets:
            del self._reset[group, topic]
        return offset

    def clear_resets(self) -> None:
        self._count -= sum(map(len, self._reset.values()))
        self._reset.clear()

    def of_group(self, group: str) -> dict[tuple[str, int], int]:
        """Return the group's committed offsets by topic and queue id."""
        topics = sorted(topic for name, topic in self._committed if name == group)
        tables = {topic: self._committed[group, topic] for topic in topics}
        return {(topic, queue_id): offsets[queue_id] for topic, offsets in tables.items() for queue_id in sorted(offsets)}

    def groups_of(self, topic: str) -> dict[str, None]:
        """Return the groups with a committed offset in the topic."""
        return dict.fromkeys(group for group, name in self._committed if name == topic)

    def topics_of(self, group: str) -> dict[str, None]:
        """Return the topics in which the group has a committed offset."""
        return dict.fromkeys(topic for name, topic in self._committed if name == group)

    def __len__(self) -> int:
        """Return the number of pairs of a group and a topic with committed offsets."""
        return len(self._committed)

    def light_of(self, group: str) -> dict[str, int]:
        """Return the group's committed offsets in the queues of lite topics, by queue."""
        return {
            topic: offsets[0]
            for (name, topic), offsets in self._committed.items()
            if name == group and topic.startswith(LITE_PREFIX) and 0 in offsets
        }

    def all(self) -> dict[str, _Offsets]:
        """Return the committed offsets as a mapping ``topic@group`` -> queue id -> offset."""
        return {f"{topic}@{group}": dict(offsets) for (group, topic), offsets in self._committed.items()}

    def forget_group(self, group: str) -> None:
        self._forget(lambda key: key[0] == group)

    def forget(self, group: str, topic: str) -> None:
        """Forget the group's offsets in one topic."""
        for table in (self._committed, self._pulled, self._reset):
            self._count -= len(table.pop((group, topic), ()))
        self._unsaved[group, topic] = None

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda key: key[1] == topic)

    def forget_all(self) -> None:
        self._forget(lambda _: True)

    def _forget(self, matches: Callable[[tuple[str, str]], bool]) -> None:
        for table in (self._committed, self._pulled, self._reset):
            for key in [key for key in table if matches(key)]:
                self._count -= len(table.pop(key))
                self._unsaved[key] = None

    def _set(self, table: dict[tuple[str, str], _Offsets], group: str, topic: str, queue_id: int, offset: int) -> bool:
        offsets = table.get((group, topic))
        if offsets is None or queue_id not in offsets:
            if self._count >= MAX_OFFSETS:
                return False
            self._count += 1
            if offsets is None:
                offsets = table[group, topic] = {}
        offsets[queue_id] = offset
        return True


def _full() -> Refused:
    remark = f"this broker has {MAX_OFFSETS} offsets, the maximum; delete topics, or groups with their offsets"
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
