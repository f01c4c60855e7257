"""The record of one producer call: message, deadline, retries, the function that reads its result, and its credits and queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

from rmq_protocol.message import Message
from rmq_protocol.send_codec import SendReply

from ..encoding import Outgoing
from ..routing import QueueChoice, Target, TopicQueues
from .credits import Epoch
from .ordering import Place

Result = TypeVar("Result")
ReadReply = Callable[[SendReply, Outgoing, Target, int], Result | None]
"""A function that makes the result from a response. It is called as ``read(reply, outgoing, target, attempts)``. It returns None if
the response does not say that the message is stored."""


class Call(msgspec.Struct, Generic[Result]):
    """One call of a send method. The record is made once and passed to all code that handles the call; a ``send`` on the fast path
    has no record.

    Attributes:
        started: Monotonic time at which the call began.
        deadline: Monotonic time by which the call must end.
        retries: Maximum number of attempts after the first one that count as retries (``uses_retry``).
        message: The argument of selectors. A large body is compressed during admission only if ``message`` is set. It is None for a
            batch, and for a message that is sent exactly as it was encoded.
        choice: The caller's choice of a queue.
        size: Total bytes of the bodies, for admission.
        batchable: True if the message may be sent in a batch with others.
        ordered: True if the call waits for its queue even without a ``choice``.
        epoch: The epoch of the credits that the call holds; None if it holds none. Admission sets it.
        place: The call's place in a line (FIFO queue) of calls, or None. The call leaves it as soon as batching keeps the order of
            the message.
        target: The queue of the first attempt, one of ``topic_queues`` or chosen by the caller. None until the call is admitted.
        lite_topic: The lite topic of the message, or None. Then ``topic_queues`` has only the queue of the lite topic.
    """

    outgoing: Outgoing
    read: ReadReply[Result]
    started: float
    deadline: float
    retries: int
    message: Message | None = None
    choice: QueueChoice | None = None
    size: int = 0
    batchable: bool = False
    ordered: bool = False
    epoch: Epoch | None = None
    place: Place | None = None
    topic_queues: TopicQueues = cast(TopicQueues, None)
    target: Target = cast(Target, None)
    lite_topic: str | None = None

    @property
    def number(self) -> int:
        """The number of messages in the call. Each message takes one credit."""
        ids = self.outgoing.batch_ids
        return 1 if ids is None else len(ids)

    def transfer(self) -> Epoch:
        """Transfer the call's credits to the caller of this method, which must give them back. Return their epoch."""
        epoch, self.epoch = self.epoch, None
        assert epoch is not None
        return epoch
