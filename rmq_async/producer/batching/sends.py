"""Sends whose messages wait in a ``Gathering``, from the call to the result.

Ordered sends have a queue, a selector, a key or a sharding key. After admission, they wait for their queue (``QueueGathering``),
which has one request in flight at a time: a broker handles requests in several threads, so frames that are written in order are not
always stored in order. With batching, sends whose queue the producer's ``queue_selector`` chooses also wait for their queue;
admission does not keep the order of these calls.

With batching, unordered sends that do not take the fast path are gathered by topic (``TopicGathering``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties

from ...results import SendResult
from ...transport import Receiver
from ..admission import Admission, Credits
from ..calls import Call, Result
from ..encoding import Outgoing
from ..routing import MessageGatherer, Router, Target, TopicQueues
from ..send_async import AsyncSend
from .batch_watch import WatchedMember
from .batcher import Batcher, QueueGathering


class AskingFuture(asyncio.Future[Result]):
    """A future with its caller's ``context``, in which a selector chooses the queue of further attempts."""

    __slots__ = ("context",)

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.context = copy_context()


class OrderedSends:
    """Adds the ordered calls of one producer to the gatherings of their queues."""

    __slots__ = ("_admission", "_batcher", "_create_future")

    def __init__(self, admission: Admission, batcher: Batcher) -> None:
        self._admission = admission
        self._batcher = batcher
        self._create_future: Callable[[], asyncio.Future[Any]] = asyncio.get_running_loop().create_future

    def add(self, call: Call[Any], receiver: Receiver) -> QueueGathering:
        """Add an admitted call to the gathering of its queue, which keeps the order of the message from then on."""
        choice, outgoing, message, batcher = call.choice, call.outgoing, call.message, self._batcher
        if outgoing.watch is not None:
            receiver = WatchedMember(receiver, outgoing.watch)
        gathering = None if choice is None else batcher.fixed.get(call.target.queue)
        if gathering is None or gathering.topic_queues is not call.topic_queues:
            gathering = batcher.in_order(call.topic_queues, call.target, fixed=choice is not None)
        if (
            call.batchable
            and message is not None
            and (room := BATCH_OVERHEAD + call.size + len(outgoing.properties.encode())) <= batcher.max_bytes
        ):
            if choice is None:
                outgoing.message = message
            gathering.add(receiver, outgoing, room, call.deadline, wait_store=message.wait_store)
        else:
            gathering.add_alone(receiver, outgoing, call.read, call.deadline)
        if call.place is not None:
            call.place.leave()
        return gathering

    async def accept(
        self,
        call: Call[Result],
        on_success: Callable[[Result], object] | None,
        on_error: Callable[[BaseException], object] | None,
    ) -> asyncio.Future[Result]:
        """Accept a ``send_async`` or ``send_batch_async``, and return its future."""
        credit = self._admission.credits
        try:
            if not call.target and not self._admission.enter_now(call):
                await self._admission.enter(call)
            accepted = AsyncSend(credit, call.transfer(), call.number, call.size, on_success, on_error)
            if call.choice is None:
                accepted.context = accepted.context or copy_context()
            gathering = self.add(call, accepted)
            accepted.work = gathering if call.outgoing.watch is None else _WatchedCall(gathering, call.outgoing)
        finally:
            self._admission.leave(call)
        return accepted.future

    def turn(self, topic_queues: TopicQueues, target: Target, outgoing: Outgoing, deadline: float) -> Turn:
        """Reserve the next position in the order of a queue for a one-way send, without waiting. Return the turn, which the send
        must enter.
        """
        gathering = self._batcher.in_order(topic_queues, target, fixed=True)
        if gathering.begin_at_once():
            return Turn(gathering, target.broker, None)
        future: asyncio.Future[None] = self._create_future()
        gathering.add_turn(future, outgoing, deadline)
        return Turn(gathering, target.broker, future)


class Turn:
    """The turn of a one-way send in the order of its queue, as an async context manager.

    Entering it waits until earlier sends to the queue have ended; leaving it starts the next send.

    Raises:
        RequestTimeoutError: If the call's deadline passes before its turn.
        ClientStateError: If the producer stops.
    """

    __slots__ = ("_broker", "_comes", "_gathering")

    def __init__(self, gathering: QueueGathering, broker: str, comes: asyncio.Future[None] | None) -> None:
        self._gathering = gathering
        self._broker = broker
        self._comes = comes

    async def __aenter__(self) -> None:
        comes = self._comes
        if comes is None:
            return
        try:
            await comes
        except BaseException:
            if comes.done() and not comes.cancelled() and comes.exception() is None:  # the turn came, but the call is cancelled
                self._gathering.ended(self._broker)
            else:
                self._gathering.left()
            raise
        finally:
            self._comes = None
            del comes  # breaks the cycle frame -> future -> error -> traceback -> frame

    async def __aexit__(self, *_: object) -> None:
        self._gathering.ended(self._broker)


class _WatchedCall:
    """An accepted send whose attempts are watched by hooks."""

    __slots__ = ("_gathering", "_outgoing")

    def __init__(self, gathering: QueueGathering, outgoing: Outgoing) -> None:
        self._gathering = gathering
        self._outgoing = outgoing

    def left(self) -> None:
        abandon(self._gathering, self._outgoing, asyncio.CancelledError())


def abandon(gathering: QueueGathering, outgoing: Outgoing, error: BaseException) -> None:
    """Abandon the call. If hooks were called for an attempt that is in flight, report its end to them."""
    gathering.left()
    if outgoing.watch is not None:
        outgoing.watch.give_up(error)


class UnorderedSends:
    """Adds the unordered calls of one producer to the gatherings of their topics."""

    __slots__ = ("_batcher", "_credits", "_encoder", "_router")

    def __init__(self, credits: Credits, router: Router, batcher: Batcher) -> None:
        self._credits = credits
        self._router = router
        self._batcher = batcher
        self._encoder = batcher.encoder

    def size(self, message: Message) -> int:
        """Return the message's bytes in a batch. Return 0 if the message must be sent alone.

        Raises:
            InvalidMessageError: If the properties are invalid.
        """
        if not may_share(message, self._encoder.compress_over):
            return 0
        properties = message_properties(message, message.unique_id or self._batcher.stand_in)
        size = BATCH_OVERHEAD + len(message.body) + len(properties.encode())
        return size if size <= self._batcher.max_bytes else 0

    async def send(self, message: Message, size: int, deadline: float) -> SendResult:
        """Send a message and return its result.

        Args:
            size: The message's bytes in a batch.
        """
        epoch = await self._credits.take(1, len(message.body), deadline)
        try:
            gathering = await self._gathering(message, deadline)
            future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
            gathering.add(future, message, size, deadline)
            try:
                return await future
            except BaseException:
                gathering.left()
                raise
            finally:
                del future  # breaks the cycle frame -> future -> error -> traceback -> frame
        finally:
            self._credits.give_back(epoch, 1, len(message.body))

    async def accept(
        self,
        message: Message,
        size: int,
        deadline: float,
        on_success: Callable[[SendResult], object] | None,
        on_error: Callable[[BaseException], object] | None,
    ) -> asyncio.Future[SendResult]:
        """Accept a ``send_async`` and return its future."""
        body_size = len(message.body)
        epoch = await self._credits.take(1, body_size, deadline)
        try:
            gathering = await self._gathering(message, deadline)
        except BaseException:
            self._credits.give_back(epoch, 1, body_size)
            raise
        accepted = AsyncSend(self._credits, epoch, 1, body_size, on_success, on_error)
        gathering.add(accepted, message, size, deadline)
        accepted.work = gathering
        return accepted.future

    async def _gathering(self, message: Message, deadline: float) -> MessageGatherer:
        topic_queues = self._router.queues_by_topic.get(message.topic) or await self._router.topics.find(
            message.topic, deadline
        )
        if message.wait_store and topic_queues.gathering is not None:
            return topic_queues.gathering
        return self._batcher.in_turn(message.topic, wait_store=message.wait_store)


def may_share(message: Message, compress_over: int) -> bool:
    """Return whether the message may share a request with others.

    It must be neither delayed nor compressed, and have neither a lite topic nor a priority, which brokers ignore in batches.
    """
    return (
        message.body.__class__ is bytes
        and len(message.body) < compress_over
        and not message.delay_level
        and message.delay is None
        and message.deliver_at is None
        and message.lite_topic is None
        and message.priority is None
        and not message.topic.startswith(RETRY_TOPIC_PREFIX)
    )
