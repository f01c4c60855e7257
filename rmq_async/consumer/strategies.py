"""Strategies by which the members of a group share the queues of a topic.

All members of a group must use the same strategy. Each strategy computes the same shares as a class of the Java client, so
Python and Java members may share a group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from rmq_protocol.allocation import (
    allocate_averagely,
    allocate_by_consistent_hash,
    allocate_machine_room,
    allocate_nearby_rooms,
)
from rmq_protocol.allocation import allocate_by_circle as deal_out
from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from .._functions import check_plain
from ..errors import ConfigError

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
"""Takes this member's client id, the sorted queues of a topic and the sorted client ids of the group; returns the queues of this
member."""
ANOTHER: Final = " (another connection, "
"""The suffix of repeated client ids. If a client id occurs more than once in a member list, all but one of its entries get this
suffix, followed by the index of the entry and ")"."""


def allocate_evenly(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> Sequence[MessageQueue]:
    """Return a contiguous share of ``queues``, as Java's ``AllocateMessageQueueAveragely`` does.

    If the queues cannot be divided evenly, the first members get one more queue. A client id that is not in ``client_ids`` gets
    no queue, in this strategy and in the others.
    """
    return allocate_averagely(client_id, queues, client_ids)


def allocate_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> Sequence[MessageQueue]:
    """Return every n-th of ``queues`` for n members, beginning at the member's own position in ``client_ids``, as Java's
    ``AllocateMessageQueueAveragelyByCircle`` does.
    """
    return deal_out(client_id, queues, client_ids)


def allocate_by_hash(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> Sequence[MessageQueue]:
    """Return the queues that precede this member on a hash ring, as Java's ``AllocateMessageQueueConsistentHash`` does with its
    default settings. Few queues move when a member joins or leaves, but the shares differ in size.
    """
    return allocate_by_consistent_hash(client_id, queues, client_ids)


def allocate_by_room(rooms: Collection[str]) -> Allocate:
    """Return a strategy for brokers named "room@name", in which members share the queues of brokers in ``rooms``.

    It computes the same shares as Java's ``AllocateMessageQueueByMachineRoom``. No member reads the queues of brokers in other
    rooms, not even queues of the retry topic.

    Raises:
        ConfigError: Unless ``rooms`` is a collection, not a str, of one or more strings.
    """
    if isinstance(rooms, str) or not isinstance(rooms, Collection) or not rooms or not all(isinstance(x, str) for x in rooms):
        raise ConfigError(f"rooms must be a list, tuple or set of one or more names, not {shown(rooms)}")
    names = frozenset(rooms)

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> Sequence[MessageQueue]:
        return allocate_machine_room(client_id, queues, client_ids, names)

    return allocate


def allocate_near_rooms(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
    inner: Allocate = allocate_evenly,
) -> Allocate:
    """Return a strategy that shares the queues of a room among the members in that room.

    All members share the queues of rooms without members. The strategy computes the same shares as Java's
    ``AllocateMachineRoomNearby``. It raises ValueError if a room name is empty; the member then logs the error and keeps its
    queues.

    Args:
        room_of_queue: Returns the room name of a queue's broker.
        room_of_client: Returns the room name of a client id ("address@instance").
        inner: The strategy that shares the queues of one room.

    Raises:
        ConfigError: For an argument that is not a plain function.
        TypeError: For a function that does not take its arguments.
    """
    check_plain("room_of_queue", room_of_queue, "queue")
    check_plain("room_of_client", room_of_client, "client_id")
    check_plain("inner", inner, "client_id", "queues", "client_ids")

    def room_of_member(member: str) -> str:
        return room_of_client(member.partition(ANOTHER)[0])

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> Sequence[MessageQueue]:
        return allocate_nearby_rooms(client_id, queues, client_ids, room_of_queue, room_of_member, inner)

    return allocate
