"""A popped message from its pop to its end: the owner of its handle, and the time for which this member holds it.

A handle has one owner. An acknowledgement after a change of the same handle is ignored by the broker, a second change makes a
second delivery, and a change after an acknowledgement brings the message back. So a lease records its last request, and has
one request at a time.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from msgspec import field

from rmq_protocol.pop import ExtraInfo

from ..held_queue import Waiting

__all__ = ["Lease", "LeaseState"]


NO_HANDLE: Final = ExtraInfo(0, 0, 0, 0, "0", "", 0)


class LeaseState(Enum):
    """The state of a lease.

    ``HELD``: the handle is valid as far as the client knows. ``CHANGING``: a change of its invisible time is under way.
    ``ADRIFT``: a change was not answered, so the handle may be void: it is never changed again. ``OVER``: acknowledged, given
    back or let go.
    """

    HELD = "held"
    CHANGING = "changing"
    ADRIFT = "adrift"
    OVER = "over"


class Lease(Waiting, eq=False):
    """The time for which a popped message is this member's.

    ``held``: the messages of its topic from its broker. ``topic``: on the wire, without the name of a retry topic. ``expires``:
    monotonic time at which the broker delivers the message again. ``since``: monotonic time of its arrival. ``changed``:
    resolved when the change that is under way has ended. ``is_done``: whether it is to be acknowledged then. ``group``: the
    leases that are renewed together with it, itself included. ``ack_number``: its place among the acknowledgements to its
    broker.
    """

    topic: str = ""
    handle: ExtraInfo = NO_HANDLE
    expires: float = 0.0
    state: LeaseState = LeaseState.HELD
    changed: asyncio.Future[None] | None = None
    is_done: bool = False
    group: dict[Lease, None] = field(default_factory=dict)
    ack_number: int = 0

    def __repr__(self) -> str:
        return f"<Lease of {self.message.msg_id} from {self.handle.broker_name}, {self.state.value}>"
