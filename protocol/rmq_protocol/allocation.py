"""Strategies that share the queues of a topic among the members of a group.

Every member computes its own share from the same lists. A member that is not in the list of members gets no queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from hashlib import md5
from typing import Final

from .message import MessageQueue

__all__ = [
    "allocate_averagely",
    "allocate_by_circle",
    "allocate_by_consistent_hash",
    "allocate_machine_room",
    "allocate_nearby_rooms",
]

VIRTUAL_NODES: Final = 10
"""Number of points that each member has on the hash ring (``AllocateMessageQueueConsistentHash``)."""


def allocate_averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> tuple[MessageQueue, ...]:
    """Return a contiguous share of ``queues`` (``AVG``).

    If the queues cannot be divided evenly, each of the first members gets one more queue. A client that is not in ``client_ids``
    gets ``()``.
    """
    if client_id not in client_ids:
        return ()
    share, rest = divmod(len(queues), len(client_ids))
    index = client_ids.index(client_id)
    start = index * share + min(index, rest)
    return tuple(queues[start : start + share + (index < rest)])


def allocate_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> tuple[MessageQueue, ...]:
    """Return every n-th of ``queues`` for n members, from the member's own position on (``AVG_BY_CIRCLE``).

    A client that is not in ``client_ids`` gets ``()``.
    """
    return tuple(queues[client_ids.index(client_id) :: len(client_ids)]) if client_id in client_ids else ()


def allocate_by_consistent_hash(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> tuple[MessageQueue, ...]:
    """Return the queues that a hash ring assigns to ``client_id`` (``CONSISTENT_HASH``).

    Each queue goes to the member with the first point on the ring at or after the point of the queue. Few queues move when a
    member joins or leaves. A client that is not in ``client_ids`` gets ``()``.
    """
    if client_id not in client_ids:
        return ()
    ring = {_place(f"{member}-{number}"): member for member in client_ids for number in range(VIRTUAL_NODES)}
    places = sorted(ring)
    return tuple(
        queue for queue in queues if ring[places[bisect_left(places, _place(_text(queue))) % len(places)]] == client_id
    )


def _place(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])


def _text(queue: MessageQueue) -> str:
    """Return the result of Java's ``MessageQueue.toString()``, which is hashed."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def allocate_machine_room(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], machine_rooms: Collection[str]
) -> tuple[MessageQueue, ...]:
    """Return the share of ``client_id`` in the queues of ``machine_rooms`` (``AllocateMessageQueueByMachineRoom``).

    The share is contiguous, but if the queues cannot be divided evenly, each of the first members also gets one of the last queues.
    A queue's machine room is the part of its broker's name before the ``@``. If the name does not have exactly one ``@``, or ends
    with it, the queue has no room. Queues of other rooms, and queues without a room, are not allocated. A client that is not in
    ``client_ids`` gets ``()``.
    """
    if client_id not in client_ids:
        return ()
    here = [queue for queue in queues if _room(queue.broker_name) in machine_rooms]
    share, rest = divmod(len(here), len(client_ids))
    index = client_ids.index(client_id)
    extra = share * len(client_ids) + index
    return (*here[share * index : share * (index + 1)], *(here[extra : extra + 1] if index < rest else ()))


def allocate_nearby_rooms(
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
    allocate: Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]],
) -> tuple[MessageQueue, ...]:
    """Return the share of ``client_id``, with members and queues grouped by machine room (``AllocateMachineRoomNearby``).

    The members in each room share the queues of the brokers in that room. All members share the queues of rooms without a
    member, room by room. A client that is not in ``client_ids`` gets ``()``.

    Args:
        room_of_queue: Returns the room of a queue's broker.
        room_of_client: Returns the room of a member.
        allocate: The strategy for the queues of one room, such as ``allocate_averagely``.

    Raises:
        ValueError: If the room of a queue or of a member is empty or None.
    """
    if client_id not in client_ids:
        return ()
    by_room: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_room.setdefault(_known(room_of_queue(queue), queue), []).append(queue)
    members: dict[str, list[str]] = {}
    for member in client_ids:
        members.setdefault(_known(room_of_client(member), member), []).append(member)
    here = room_of_client(client_id)
    share = [*allocate(client_id, by_room[here], members[here])] if here in by_room else []
    for room in sorted(by_room.keys() - members.keys()):
        share += allocate(client_id, by_room[room], client_ids)
    return tuple(share)


def _known(room: str, owner: object) -> str:
    if not room:
        raise ValueError(f"the room of {owner!r} is {room!r}; room_of_queue and room_of_client must return a name")
    return room


def _room(broker_name: str) -> str | None:
    room, *rest = broker_name.split("@")
    return room if len(rest) == 1 and rest[0] else None
