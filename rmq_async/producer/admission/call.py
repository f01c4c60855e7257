"""The record of one call of a producer: message, deadline, retries, the function that reads its result, and what it holds."""

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
"""Function that makes the result from a response, called as ``read(reply, outgoing, target, attempts)``; it returns None unless
the response says that the message is stored."""


class Call(msgspec.Struct, Generic[Result]):
    """One call, made once and passed to everything that handles the call; a ``send`` on the fast path needs none.

    Set by admission: ``epoch``: of the credits that the call holds; None if it holds none.

    Attributes:
        started: Monotonic time at which the call began.
        deadline: Monotonic time at which the call ends.
        retries: Maximum number of attempts after the first that count (``uses_retry``).
        message: The argument of selectors; admission compresses a large body only if it is set. It is None for a batch, and for
            a message that is sent as it is encoded.
        choice: The caller's choice of a queue.
        size: Bytes of the bodies, for admission.
        batchable: True if the message may leave in a batch with others.
        ordered: True if the call waits for its queue also without a ``choice``.
        place: Its place in a line, left as soon as batching keeps the order of the message; None without a place.
        target: The queue of the first attempt, one of ``topic_queues`` or chosen by the caller; None until the call is
            admitted.
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

    @property
    def number(self) -> int:
        """The number of messages, each of which takes a credit."""
        ids = self.outgoing.batch_ids
        return 1 if ids is None else len(ids)

    def transfer(self) -> Epoch:
        """Hand the credits over to the caller, which must give them back."""
        epoch, self.epoch = self.epoch, None
        assert epoch is not None
        return epoch
