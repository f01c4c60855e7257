"""Sends that keep the order of their calls: those with a queue, a selector, a key or a sharding key.

After admission they wait for their queue (``queue_gathering``), which has one request in flight at a time: a broker handles
requests in several threads, so frames that leave in order are not always stored in order.

With batching, sends whose queue the producer's ``queue_selector`` chooses wait for their queue, too; admission does not keep
the order of their calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.constants import RETRY_TOPIC_PREFIX

from ...transport import Receiver
from ..admission import Admission, Admitted
from ..calls import Call, Result
from ..encoding import Outgoing
from ..routing import Target, TopicQueues
from ..send_async import AsyncSend
from .batch_watch import WatchedMember
from .batcher import Batcher
from .queue_gathering import QueueGathering

__all__ = ["OrderedSends", "Turn"]


class AskingFuture(asyncio.Future[Result]):
    """Future with the caller's ``context``, in which a selector chooses the queue of further attempts."""

    __slots__ = ("context",)

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.context = copy_context()


class OrderedSends:
    """Puts the calls of one producer into the gatherings of their queues."""

    __slots__ = ("_admission", "_batcher", "_create_future")

    def __init__(self, admission: Admission, batcher: Batcher) -> None:
        self._admission = admission
        self._batcher = batcher
        self._create_future: Callable[[], asyncio.Future[Any]] = asyncio.get_running_loop().create_future

    async def send(self, call: Call[Result], admitted: Admitted) -> Result:
        """Sends an admitted call and returns its result."""
        future: asyncio.Future[Result] = self._create_future() if call.choice is not None else AskingFuture()
        watch = call.outgoing.watch
        receiver: Receiver = future if watch is None else WatchedMember(future, watch)
        try:
            gathering = self._add(call, receiver, admitted)
            if (place := admitted.place) is not None:
                place.leave()  # from here on, the gathering keeps the order of the call's message
            try:
                return await future
            except BaseException as error:
                _left(gathering, call.outgoing, error)
                raise
        finally:
            del future, receiver  # breaks the cycle frame -> future -> error -> traceback -> frame

    async def accept(
        self,
        call: Call[Result],
        on_success: Callable[[Result], object] | None,
        on_error: Callable[[BaseException], object] | None,
    ) -> asyncio.Future[Result]:
        """Accepts a ``send_async`` or ``send_batch_async``, and returns its future."""
        credit, watch = self._admission.credits, call.outgoing.watch
        async with self._admission.enter(call) as admitted:
            accepted = AsyncSend(credit, admitted.transfer(), admitted.number, call.size, on_success, on_error)
            if call.choice is None:
                accepted.context = accepted.context or copy_context()
            receiver: Receiver = accepted if watch is None else WatchedMember(accepted, watch)
            gathering = self._add(call, receiver, admitted)
            accepted.work = gathering if call.outgoing.watch is None else _WatchedCall(gathering, call.outgoing)
        return accepted.future

    def turn(self, topic_queues: TopicQueues, target: Target, outgoing: Outgoing, deadline: float) -> Turn:
        """Enters a one-way send into the queue's order, without waiting."""
        gathering = self._batcher.in_order(topic_queues, target, fixed=True)
        if gathering.begin_at_once():
            return Turn(gathering, target.broker, None)
        future: asyncio.Future[None] = self._create_future()
        gathering.add_turn(future, outgoing, deadline)
        return Turn(gathering, target.broker, future)

    # -- inside

    def _add(self, call: Call[Any], receiver: Receiver, admitted: Admitted) -> QueueGathering:
        gathering = self._batcher.in_order(admitted.topic_queues, admitted.target, fixed=call.choice is not None)
        outgoing, message = call.outgoing, call.message
        if (
            call.batchable
            and message is not None
            and call.size < self._batcher.encoder.compress_over
            and not message.delay_level
            and message.delay is None
            and message.deliver_at is None
            and outgoing.body.__class__ is bytes
            and not outgoing.topic.startswith(RETRY_TOPIC_PREFIX)
        ):
            properties = outgoing.properties
            room = BATCH_OVERHEAD + call.size + (len(properties) if properties.isascii() else len(properties.encode()))
            if room <= self._batcher.max_bytes:
                outgoing.message = message if call.choice is None else None
                gathering.add(receiver, outgoing, room, call.deadline, wait_store=message.wait_store)
                return gathering
        gathering.add_alone(receiver, outgoing, call.read, call.deadline)
        return gathering


class Turn:
    """The turn of a one-way send in its queue's order, an async context manager.

    Entering waits until earlier sends to the queue have ended; leaving starts the next one. Raises RequestTimeoutError when the
    call's deadline is over before its turn, ClientStateError when the producer stops.
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
    """An accepted send whose attempts hooks see."""

    __slots__ = ("_gathering", "_outgoing")

    def __init__(self, gathering: QueueGathering, outgoing: Outgoing) -> None:
        self._gathering = gathering
        self._outgoing = outgoing

    def left(self) -> None:
        _left(self._gathering, self._outgoing, asyncio.CancelledError())


def _left(gathering: QueueGathering, outgoing: Outgoing, error: BaseException) -> None:
    """Abandons the call, and reports to hooks the end of the attempt in flight, if they saw it begin."""
    gathering.left()
    if outgoing.watch is not None:
        outgoing.watch.give_up(error)
