"""One batch under way: its outcome goes to the caller of each message that it carries."""

from __future__ import annotations

import asyncio
from contextvars import Context
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import RocketMQError

from ...errors import ClientStateError, QueueNotExistError, RequestTimeoutError, own_copy
from ...results import BatchSendResult, SendResult
from ...transport import Receiver
from ..call import SendCall
from ..first_attempt import FirstAttempt
from ..lanes import Lane, Target
from ..policy import MIN_CAP
from .gathering import Entry, Gathering, Request
from .shown import refused_by_hook

if TYPE_CHECKING:
    from ..sender import Sender
    from .batcher import Batcher

__all__ = ["UnderWay"]

ILLEGAL: Final = frozenset({int(ResponseCode.MESSAGE_ILLEGAL), int(ResponseCode.INVALID_PARAMETER)})
"""What a broker says of a batch of which one message is wrong (or the whole too large for it): it has stored none of them."""
SAME_END: Final = 0.02
"""Seconds. A caller whose time ends so shortly before the request's gets the request's own outcome, this much late at most."""


class UnderWay(FirstAttempt["BatchSendResult | SendResult"]):
    """A request and its further attempts. ``deadline``: the last of its members'.

    ``makes_room_at``: when others need no longer wait for its answer; infinity where it carries order.
    """

    __slots__ = ("_batcher", "_broker", "_further", "_in_lane", "_told", "deadline", "entry", "gathering", "makes_room_at")

    def __init__(
        self,
        sender: Sender,
        batcher: Batcher,
        gathering: Gathering,
        entry: Entry,
        request: Request,
        lane: Lane,
        target: Target,
        *,
        fixed: bool,
        retries: int,
        started: float,
    ) -> None:
        members = entry.members
        if len(members) == 1:
            self.deadline = members[0][2]
        else:  # 30 us for 1024; who waited for a credit is not in order
            self.deadline = max([member[2] for member in members])
        super().__init__(
            sender, request.outgoing, lane, target, request.read, fixed=fixed, retries=retries, started=started,
            deadline=self.deadline,
        )  # fmt: skip
        self._batcher = batcher
        self._further: SendCall[BatchSendResult | SendResult] | None = None
        self._broker = target.broker
        self._told = False
        self._in_lane = True
        room_at = started + sender.timeout
        self.makes_room_at = inf if gathering.in_order or room_at >= self.deadline else room_at
        self.gathering = gathering
        self.entry = entry

    def _context(self) -> Context | None:
        """Of the first message, which a selector that is asked again is shown; with others there is none."""
        context: Context | None = getattr(self.entry.members[0][0], "context", None)
        return context if self._sender.asks else None

    @property
    def unwanted(self) -> bool:
        """Whether no caller waits for it any more."""
        return all(member[0].done() for member in self.entry.members)

    def give_up(self) -> None:
        """Makes room for others; what has been written may be stored all the same."""
        if self._told:
            return
        self._settled = True
        if self._task is not None:
            self._task.cancel()
        elif self._connection is not None and self._pending is not None:
            self._connection.forget(self._pending.opaque)
            self._pending = None
            if self._outgoing.watch is not None:
                self._outgoing.watch.give_up(asyncio.CancelledError())
            self._tell(asyncio.CancelledError())
        self._end()
        self._leave_lane()

    def patience(self) -> float:
        """The time of the earliest member, unless there is hardly any left, and never above the producer's own time-out.

        So the share of one caller does not come from the long time-out of another.
        """
        now = monotonic()
        earliest = min([deadline for receiver, _, deadline in self.entry.members if not receiver.done()], default=self.deadline)
        return min(max(earliest, now + MIN_CAP), now + self._sender.timeout, self.deadline)

    def expire(self, now: float) -> float:
        """Ends the wait of members whose time is over before the request's; returns the earliest such time of the others."""
        last = self.deadline - SAME_END
        late: list[Receiver] = []
        waiting, earliest = 0, inf
        for receiver, _, deadline in self.entry.members:
            if receiver.done():
                continue
            if deadline >= last or deadline > now:
                waiting += 1
                earliest = min(earliest, deadline if deadline < last else inf)
            else:
                late.append(receiver)
        if late:
            self._end_late(late, alone=not waiting)
        if self._in_lane and now >= self.makes_room_at:
            self._leave_lane()
        return min(earliest, self.makes_room_at) if self._in_lane else earliest

    def _end_late(self, late: list[Receiver], *, alone: bool) -> None:
        """Ends the wait of some members. ``alone``: no other member waits for the request."""
        sent = self._may_be_sent
        can_leave = not sent and (alone or self.gathering.can_shrink(self._outgoing))
        withdrawn = can_leave or (alone and self._withdrawn())
        for receiver in late:
            if not receiver.done():  # the callback of another one may have cancelled it
                receiver.set_exception(self._late(sent=sent, maybe_stored=not withdrawn))
        if can_leave and not self.unwanted:
            self._shrink()

    def _late(self, *, sent: bool, maybe_stored: bool) -> RequestTimeoutError:
        target, number = self._target, len(self.entry.members)
        if sent:
            what = "a message" if number == 1 else f"a batch of {number} messages"
            text = f"no answer from {target.address} to {what} for topic {target.queue.topic} in time"
        else:
            why = None if self._further is None else self._further.newest_error
            text = f"no connection to {target.address} in time" if why is None else str(why)
            text = f"the message for topic {target.queue.topic} was not sent: {text}"
        return RequestTimeoutError(text, maybe_stored=maybe_stored, broker=target.broker, address=target.address)

    @property
    def _may_be_sent(self) -> bool:
        """Whether an attempt has begun that no broker has refused."""
        return self._pending is not None if self._further is None else self._further.maybe_sent

    def _withdrawn(self) -> bool:
        """Takes the only attempt back if its frame is still held in the client, and returns whether it has."""
        if self._further is not None or self._connection is None or self._pending is None or self._pending.sequence:
            return False
        self._connection.forget(self._pending.opaque)
        return True

    def _shrink(self) -> None:
        """Leaves out members that wait no longer, before an attempt is made."""
        entry, outgoing = self.entry, self._outgoing
        left = [index for index, member in enumerate(entry.members) if not member[0].done()]
        ids = None if outgoing.batch_ids is None else tuple([outgoing.batch_ids[index] for index in left])
        self.entry = entry._replace(members=[entry.members[index] for index in left], ids=ids)
        self.gathering.shrink(outgoing, self.entry)

    def _continue(self, call: SendCall[BatchSendResult | SendResult]) -> None:
        self._further = call
        super()._continue(call)

    def _succeed(self, result: BatchSendResult | SendResult) -> None:
        if self._told:
            return
        self._told = True
        self._batcher.requests.discard(self)
        members = self.entry.members
        if len(members) == 1:
            receiver = members[0][0]
            if not receiver.done():
                single = type(result) is SendResult or self.entry.read is not None  # what went alone gets it as it is
                receiver.set_result(result if single else result.results[0])  # type: ignore[union-attr]
        elif isinstance(result, BatchSendResult):
            status, queue, attempts = result.status, result.queue, result.attempts
            region, trace_on, offset = result.region_id, result.trace_on, result.queue_offset
            for member, msg_id, offset_id in zip(members, result.msg_ids, result.offset_msg_ids, strict=True):
                receiver = member[0]
                if not receiver.done():
                    receiver.set_result(
                        SendResult(status, msg_id, offset_id, queue, offset, None, region, trace_on, None, attempts)
                    )
                offset += 1
        if self._in_lane:
            self._in_lane = False
            self.gathering.ended(self._broker)

    def _fail(self, error: BaseException) -> None:
        if self._told:
            return
        self._end()
        if len(self.entry.members) > 1 and _one_is_to_blame(error):
            self._batcher.split(self.gathering, self.entry, self._outgoing.batch_ids)
        else:
            for receiver, _, _ in self.entry.members:
                if not receiver.done():
                    receiver.set_exception(own_copy(error))
        self._leave_lane()

    def _leave_lane(self) -> None:
        if self._in_lane:
            self._in_lane = False
            self.gathering.ended(self._broker)

    def _end(self) -> None:
        self._told = True
        self._batcher.requests.discard(self)

    def _dropped(self) -> None:
        error = ClientStateError("the task that sent the batch was cancelled; the message may have been stored")
        error.maybe_stored = True
        self._fail(error)


def _one_is_to_blame(error: BaseException) -> bool:
    """Whether none of the batch was stored, and sending its parts can show which message is at fault."""
    if refused_by_hook(error):
        return not getattr(error, "maybe_stored", False)
    if isinstance(error, QueueNotExistError) or isinstance(error.__cause__, QueueNotExistError):
        return False
    return isinstance(error, RocketMQError) and error.code in ILLEGAL and not error.maybe_stored
