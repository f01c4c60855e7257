"""The lease of a popped message: its handle, and the time for which this member holds the message."""

# A handle has one owner, its lease. An acknowledgement after a change of the same handle is ignored by the broker, a second
# change makes a second delivery, and a change after an acknowledgement brings the message back. So a lease has a state, and
# makes one request at a time.

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

    ``HELD``: the handle is valid as far as the client knows. ``CHANGING``: a change of the invisible time is in flight.
    ``ADRIFT``: a change had no answer that can be read, so the handle may be void and is not changed again. ``OVER``: the
    message was acknowledged, given back or let go.
    """

    HELD = "held"
    CHANGING = "changing"
    ADRIFT = "adrift"
    OVER = "over"


class Lease(Waiting, eq=False):
    """A popped message, for the time for which it is this member's.

    ``held``: the buffer of the source that the message was popped from. ``topic``: name on the wire of the subscribed topic,
    also if the message came from a retry topic. ``expires``: monotonic time at which the broker delivers the message again.
    ``since``: monotonic time of the message's arrival. ``changed``: resolved when the change in flight has ended. ``is_done``:
    whether the message is acknowledged after that change. ``group``: the leases that are extended together. ``ack_number``:
    number of the acknowledgement, counted from 1 for each broker.
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
