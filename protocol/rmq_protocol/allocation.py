"""Sharing the queues of a topic out among the members of a group: every member computes it alone, from the same lists."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .message import MessageQueue

__all__ = ["allocate_machine_room"]


def allocate_machine_room(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], machine_rooms: Collection[str]
) -> tuple[MessageQueue, ...]:
    """The queues of ``client_id`` of those in ``machine_rooms`` (``AllocateMessageQueueByMachineRoom``), in contiguous shares.

    A queue's room is what stands before the one ``@`` of its broker's name; queues without a room go to nobody.
    """
    if client_id not in client_ids:
        return ()
    here = [queue for queue in queues if _room(queue.broker_name) in machine_rooms]
    share, rest = divmod(len(here), len(client_ids))
    index = client_ids.index(client_id)
    extra = share * len(client_ids) + index
    return (*here[share * index : share * (index + 1)], *(here[extra : extra + 1] if index < rest else ()))


def _room(broker_name: str) -> str | None:
    room, *rest = broker_name.split("@")
    return room if len(rest) == 1 and rest[0] else None
