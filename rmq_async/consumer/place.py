"""The place of a message in its queue: offset, store time and id, by which it is recognized when the offset is read again."""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq_protocol.message import MessageExt

__all__ = ["CLOCKS_DIFFER", "Place", "is_at", "place_of"]

CLOCKS_DIFFER: Final = 10.0
"""Seconds by which the clocks of brokers and clients may differ."""


class Place(NamedTuple):
    """The place of a message. ``stored``: its store time, epoch ms. ``unique_id``: None without one. ``position``: its commit
    log offset. The message itself may have megabytes, and each queue would keep several."""

    offset: int
    stored: int
    unique_id: str | None
    position: int


def place_of(message: MessageExt) -> Place:
    unique_id = message.properties.get("UNIQ_KEY")
    place = (message.queue_offset, message.store_time_ms, unique_id, message.commit_log_offset)
    return tuple.__new__(Place, place)  # once for each pull; Place() would be a call of a Python function more


def is_at(message: MessageExt, place: Place) -> bool:
    """Returns whether a message is the one of ``place``. The id alone does not show it: copies that a retry has stored share it,
    and messages of old clients have none."""
    return (
        (message.queue_offset, message.store_time_ms) == place[:2]
        and message.unique_id == place.unique_id
        and (place.unique_id is not None or message.commit_log_offset == place.position)
    )
