"""One batch request in flight, and the delivery of its outcome to the caller of each message."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import Context
from math import inf
from typing import Any, Final

import msgspec

from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ... import machine
from ..._ordered import OrderedSet
from ...errors import ClientStateError, ForbiddenError, QueueNotExistError, RequestTimeoutError
from ...results import BatchSendResult, SendResult
from ...tracebacks import own_copy
from ...transport import Receiver
from ..calls import MIN_CAP, Call, Dispatch, FirstAttempt, RetryLoop
from ..encoding import SEND_OK, Outgoing, stored_message
from ..routing import Target, TopicQueues

ILLEGAL: Final = frozenset({int(ResponseCode.MESSAGE_ILLEGAL), int(ResponseCode.INVALID_PARAMETER)})
"""Response codes that may be caused by a single message of a batch, or by the size of the batch. The broker then stores no message
of it."""
SAME_END: Final = 0.02
"""A caller whose deadline is at most this many seconds before the deadline of the batch request gets the outcome of that
request."""


Member = tuple[Receiver, Any, float]
"""A message in a batch: the receiver of its result, the message (a ``BatchItem``), and its caller's deadline (monotonic)."""


class Entry(msgspec.Struct, frozen=True):
    """Messages that are sent together in one request, or one message that is sent alone."""

    members: list[Member]
    plain: bool = False
    """Whether all messages have only a topic and a body, and the timeout of the producer."""
    ids: tuple[str, ...] | None = None
    """The unique ids of the messages, if they have been encoded before."""
    read: Any = None
    """The function that makes the result if the request is not a batch."""
    turn: bool = False
    """Whether the entry contains no request, but only reserves the queue for a caller that sends by itself when its turn comes."""

    def alive(self) -> Entry | None:
        """Return the entry without the members whose callers have stopped waiting. Return None if no member is left."""
        left = [index for index, member in enumerate(self.members) if not member[0].done()]
        if not left or len(left) == len(self.members):
            return self if left else None
        ids = None if self.ids is None else tuple([self.ids[index] for index in left])
        return msgspec.structs.replace(self, members=[self.members[index] for index in left], ids=ids)


class BatchOwner(ABC):
    """The interface of a ``Gathering`` (messages that wait to be sent as a batch) for its batch requests.

    Attributes:
        in_order: Whether messages keep their order. A request then counts as in flight until it has ended.
        fixed: Whether no message may go to another queue.
    """

    __slots__ = ()

    in_order = False
    fixed = False

    @abstractmethod
    def ended(self, broker: str) -> None:
        """Record that a request to ``broker`` has ended, so that waiting messages may be sent."""

    @abstractmethod
    def requeue(self, entries: Sequence[Entry]) -> None:
        """Send these entries, or keep them until a route is known. Ordered entries are sent before the other messages of their
        queue.
        """

    @abstractmethod
    def can_shrink(self, outgoing: Outgoing) -> bool:
        """Return whether messages may still be removed from a request before its first attempt."""

    @abstractmethod
    def shrink(self, outgoing: Outgoing, entry: Entry) -> None:
        """Rebuild the batch ``outgoing`` in place from the messages that remain in ``entry``."""

    def split(self, entry: Entry, ids: tuple[str, ...] | None) -> None:
        """Send a batch that was refused, or cannot be encoded, as two halves.

        After repeated splits, an invalid message is alone in its request.
        """
        left = msgspec.structs.replace(entry, ids=ids).alive()
        if left is None:
            return
        half = (len(left.members) + 1) // 2
        parts = (slice(half), slice(half, None))
        halves = [Entry(left.members[part], ids=None if left.ids is None else left.ids[part]) for part in parts]
        self.requeue([each for each in halves if each.members])


class BatchRequest(FirstAttempt["BatchSendResult | SendResult"]):
    """A batch request and its further attempts. The deadline of the call is the latest deadline of the callers of its messages.

    Attributes:
        makes_room_at: Time (monotonic) from which the request no longer counts as in flight. Infinity for ordered messages, and if
            the deadline of the request comes first.
    """

    __slots__ = (
        "_broker",
        "_fixed",
        "_further",
        "_holds_room",
        "_requests",
        "_resolved",
        "deadline",
        "entry",
        "gathering",
        "makes_room_at",
    )

    def __init__(
        self,
        gathering: BatchOwner,
        requests: OrderedSet[BatchRequest],
        dispatch: Dispatch,
        entry: Entry,
        call: Call[BatchSendResult | SendResult],
        topic_queues: TopicQueues,
        target: Target,
    ) -> None:
        self._dispatch = dispatch  # the same initialization as in ``FirstAttempt``
        self._call = call
        self._topic_queues = topic_queues
        self._target = target
        self._begun = call.started
        self._settled = False
        self._connection = self._pending = self._task = None
        self._fixed = target if gathering.fixed else None
        self.deadline = call.deadline
        self._requests = requests
        self._further: RetryLoop[BatchSendResult | SendResult] | None = None
        self._broker = target.broker
        self._resolved = False
        self._holds_room = True
        room_at = call.started + dispatch.config.timeout
        self.makes_room_at = inf if gathering.in_order or room_at >= self.deadline else room_at
        self.gathering = gathering
        self.entry = entry

    def _context(self) -> Context | None:
        """Return the context of the first caller, in which the ``queue_selector`` runs. Return None with ``select_best`` or without
        a context.
        """
        context: Context | None = getattr(self.entry.members[0][0], "context", None)
        return context if self._dispatch.router.asks else None

    @property
    def unwanted(self) -> bool:
        """Whether all callers have stopped waiting for the request."""
        return all(member[0].done() for member in self.entry.members)

    def give_up(self) -> None:
        """Abandon the request, unless it has ended, so that another request may be sent. The broker may store messages that were
        written.
        """
        if self._resolved:
            return
        self._settled = True
        if self._task is not None:
            self._task.cancel()
        elif self._connection is not None and self._pending is not None:
            self._connection.requests.forget(self._pending.opaque)
            self._pending = None
            if self._call.outgoing.watch is not None:
                self._call.outgoing.watch.give_up(asyncio.CancelledError())
            self._notify(asyncio.CancelledError())
        self._end()
        self._make_room()

    def patience(self) -> float:
        """Return the time until which attempts with a time limit share the remaining time: the earliest deadline of the waiting
        callers.

        It is at least ``MIN_CAP`` and at most the producer's ``timeout`` from now, and at most the deadline of the request.
        """
        # The long timeout of one caller must not extend the attempts of another caller.
        now = machine.monotonic()
        earliest = min([deadline for receiver, _, deadline in self.entry.members if not receiver.done()], default=self.deadline)
        return min(max(earliest, now + MIN_CAP), now + self._dispatch.config.timeout, self.deadline)

    def expire(self, now: float) -> float:
        """Fail the messages whose deadline has passed, except those whose deadline is at most ``SAME_END`` before the request's.

        From ``makes_room_at`` on, the request no longer counts as in flight, and other requests may be sent.

        Returns:
            The time of the next check, or infinity if none is needed.
        """
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
        if self._holds_room and now >= self.makes_room_at:
            self._make_room()
        return min(earliest, self.makes_room_at) if self._holds_room else earliest

    def _end_late(self, late: list[Receiver], *, alone: bool) -> None:
        """Fail messages whose deadline has passed. If possible, remove them from a request that has not been sent yet.

        Args:
            late: The receivers of the results of these messages.
            alone: Whether no other caller waits for the request.
        """
        sent = self._may_be_sent
        can_leave = not sent and (alone or self.gathering.can_shrink(self._call.outgoing))
        withdrawn = can_leave or (alone and self._withdrawn())
        for receiver in late:
            if not receiver.done():  # the callback of another receiver may have cancelled it
                receiver.set_exception(self._late(sent=sent, maybe_stored=not withdrawn))
        if can_leave:
            self._shrink()

    def _late(self, *, sent: bool, maybe_stored: bool) -> RequestTimeoutError:
        target, number = self._target, len(self.entry.members)
        if sent:
            what = "a message" if number == 1 else f"a batch of {number} messages"
            text = f"no response from {target.address} to {what} for topic {target.queue.topic} in time; use a longer timeout"
        else:
            why = None if self._further is None else self._further.newest_error
            text = f"no connection to {target.address} in time; use a longer timeout" if why is None else str(why)
            text = f"the message for topic {target.queue.topic} was not sent: {text}"
        return RequestTimeoutError(text, maybe_stored=maybe_stored, broker=target.broker, address=target.address)

    @property
    def _may_be_sent(self) -> bool:
        """Whether a request may have reached a broker that has not refused it.

        The first attempt counts as sent as soon as it is in the request table.
        """
        return self._pending is not None if self._further is None else self._further.maybe_sent

    def _withdrawn(self) -> bool:
        """Remove the only attempt from the connection's table if its frame is held back there. Return whether it was removed."""
        if self._further is not None or self._connection is None or self._pending is None or self._pending.sequence:
            return False
        self._connection.requests.forget(self._pending.opaque)
        return True

    def _shrink(self) -> None:
        """Remove the messages whose callers have stopped waiting, before an attempt is made."""
        outgoing = self._call.outgoing
        entry = msgspec.structs.replace(self.entry, ids=outgoing.batch_ids).alive()
        if entry is not None:
            self.entry = entry
            self.gathering.shrink(outgoing, entry)

    def _continue(self, loop: RetryLoop[BatchSendResult | SendResult]) -> None:
        self._further = loop
        super()._continue(loop)

    def set_result(self, reply: SendReply) -> None:
        dispatch, members, fields = self._dispatch, self.entry.members, reply.extFields
        if (
            len(members) != 1
            or reply.code
            or self._resolved
            or self._call.read is not stored_message
            or fields is None
            or fields.queueId != self._target.queue_id
            or (offset_id := fields.msgId) is None
            or (offset := fields.queueOffset) is None
            or ((faults := dispatch.faults) is not None and (faults.measures or faults.items))
            or dispatch.retry_not_ok
        ):
            super().set_result(reply)
            return
        self._settled = self._resolved = True  # the nearly only case of ``super().set_result`` for one message
        self._pending = None
        self._requests.pop(self, None)
        receiver = members[0][0]
        if not receiver.done():
            receiver.set_result(
                SendResult(
                    SEND_OK, self._call.outgoing.unique_id, offset_id, self._target.queue, offset, fields.transactionId,
                    fields.MSG_REGION, fields.TRACE_ON is not False, fields.recallHandle,
                )
            )  # fmt: skip
        if self._holds_room:
            self._holds_room = False
            self.gathering.ended(self._broker)

    def _succeed(self, result: BatchSendResult | SendResult) -> None:
        if self._resolved:
            return
        self._resolved = True
        self._requests.pop(self, None)
        members = self.entry.members
        if len(members) == 1:
            receiver = members[0][0]
            if not receiver.done():
                single = type(result) is SendResult or self.entry.read is not None  # a message sent alone has a single result
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
        if self._holds_room:
            self._holds_room = False
            self.gathering.ended(self._broker)

    def _fail(self, error: BaseException) -> None:
        if self._resolved:
            return
        self._end()
        if len(self.entry.members) > 1 and _one_is_to_blame(error):
            self.gathering.split(self.entry, self._call.outgoing.batch_ids)
        else:
            for receiver, _, _ in self.entry.members:
                if not receiver.done():
                    receiver.set_exception(own_copy(error))
        self._make_room()

    def _make_room(self) -> None:
        if self._holds_room:
            self._holds_room = False
            self.gathering.ended(self._broker)

    def _end(self) -> None:
        self._resolved = True
        self._requests.pop(self, None)

    def _dropped(self) -> None:
        error = ClientStateError(
            f"the task that sent messages to topic {self._target.queue.topic} was cancelled; they may have been stored; "
            "cancel only your own tasks"
        )
        error.maybe_stored = True
        self._fail(error)


def _one_is_to_blame(error: BaseException) -> bool:
    """Return whether no message of the batch was stored, and sending parts of the batch can show which message is at fault."""
    if isinstance(error, ForbiddenError) or isinstance(error.__cause__, ForbiddenError):  # at any attempt
        return not getattr(error, "maybe_stored", False)
    if isinstance(error, QueueNotExistError) or isinstance(error.__cause__, QueueNotExistError):
        return False
    return isinstance(error, RocketMQError) and error.code in ILLEGAL and not error.maybe_stored
