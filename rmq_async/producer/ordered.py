"""Sends that keep the order of their calls: those with a queue, a selector, a key or a sharding key.

Two waits carry the order. In the *line* of its topic a call waits for what comes before it: a credit, the compression of its
body, the route, a selector that is a coroutine; nothing is sent there. Then it gathers for its queue (``batching.in_order``), of
which one request is under way at a time: a broker works on what is in flight in several threads, so frames that leave in order are
not always stored in order. Nearly all calls have nothing to wait for in the line, and gather at once.

With batching, sends for which the producer's ``queue_selector`` is asked gather for their queue, too; they have no line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import Message

from ..results import SendResult
from ..transport import Receiver
from .accepted import Accepted
from .batching.shown import ShownMember
from .call import ReadReply
from .lanes import Lane, Target
from .order import Line, Place
from .outgoing import Outgoing
from .replies import stored_message
from .selectors import Wish, select_by_hash

if TYPE_CHECKING:
    from .batching.in_order import InOrder
    from .sender import Sender

__all__ = ["Ordered", "OrderedCall", "Turn"]

LINES_KEPT: Final = 1024
"""Lines in which no call waits stay until there are more than these."""

Result = TypeVar("Result")


class AskingFuture(asyncio.Future[Result]):
    """``context``: of the caller, for a selector that is asked for further attempts."""

    __slots__ = ("context",)

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.context = copy_context()


class OrderedCall(msgspec.Struct, Generic[Result]):
    """What one call sends. ``message``: None for a batch. ``number``, ``size``: of credits. ``together``: bytes
    that it takes in a batch with others, 0 for one that goes alone.
    """

    outgoing: Outgoing
    message: Message | None
    wish: Wish | None
    number: int
    size: int
    read: ReadReply[Result]
    deadline: float
    together: int = 0


class Ordered:
    """The lines of one sender, and the ways through them."""

    __slots__ = ("_lines", "_most_lines", "_sender")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._lines: dict[str, Line] = {}
        self._most_lines = LINES_KEPT

    def line(self, topic: str) -> Line:
        """Where calls for the topic line up."""
        line = self._lines.get(topic)
        if line is None:
            if len(self._lines) >= self._most_lines:
                self._lines = {each: line for each, line in self._lines.items() if line.places}
                self._most_lines = max(LINES_KEPT, 2 * len(self._lines))
            line = self._lines[topic] = Line()
        return line

    def fail(self, error: Callable[[], RocketMQError]) -> None:
        """Ends the wait of all calls in lines, with an error for each."""
        for line in self._lines.values():
            line.fail(error)

    def call(self, outgoing: Outgoing, message: Message, wish: Wish | None, deadline: float) -> OrderedCall[SendResult]:
        """The call that sends one message, encoded as ``outgoing``."""
        size, together = len(message.body), 0
        if (
            size < self._sender.encoder.compress_over
            and not message.delay_level
            and message.delay is None
            and message.deliver_at is None
            and outgoing.body.__class__ is bytes
            and not outgoing.topic.startswith(RETRY_TOPIC_PREFIX)
        ):
            properties = outgoing.properties
            together = BATCH_OVERHEAD + size + (len(properties) if properties.isascii() else len(properties.encode()))
            if together > self._sender.batcher.max_bytes:
                together = 0
        return OrderedCall(outgoing, message, wish, 1, size, stored_message, deadline, together)

    # -- ways through

    async def send(self, call: OrderedCall[Result], *, held: bool = False, place: Place | None = None) -> Result:
        """A whole awaited call. ``held``: the caller has the credits. ``place``: the caller's, in the topic's line."""
        sender, outgoing = self._sender, call.outgoing
        future: asyncio.Future[Result] = sender.create_future() if call.wish is not None else AskingFuture()
        receiver: Receiver = future if outgoing.watch is None else ShownMember(future, outgoing.watch)
        credit, epoch = sender.credits, None
        try:
            if (
                place is None
                and not held
                and (lane := sender.lanes.get(outgoing.topic)) is not None
                and (target := self._target_now(lane, call)) is not None
                and (epoch := credit.try_take(call.number, call.size)) is not None
            ):
                gathering = self._add(call, receiver, lane, target)
            else:
                place = place or self._join(call)
                try:
                    if place is not None:
                        await place.turn(call.deadline)
                    if not held:
                        epoch = credit.try_take(call.number, call.size) or await credit.take(
                            call.number, call.size, call.deadline
                        )
                    gathering = self._add(call, receiver, *await self._aim(call))
                finally:
                    if place is not None:
                        place.leave()
            try:
                return await future
            except BaseException as error:
                _left(gathering, outgoing, error)
                raise
        finally:
            del future, receiver  # an error that they hold has this frame in its traceback
            if epoch is not None:
                credit.give_back(epoch, call.number, call.size)

    async def accept(
        self,
        call: OrderedCall[Result],
        on_success: Callable[[Result], object] | None,
        on_error: Callable[[BaseException], object] | None,
    ) -> asyncio.Future[Result]:
        """``send_async``, also of a batch."""
        credit, outgoing = self._sender.credits, call.outgoing
        place = self._join(call)
        try:
            if place is not None:
                await place.turn(call.deadline)
            epoch = credit.try_take(call.number, call.size) or await credit.take(call.number, call.size, call.deadline)
            try:
                lane, target = await self._aim(call)
            except BaseException:
                credit.give_back(epoch, call.number, call.size)
                raise
            accepted = Accepted(credit, epoch, call.number, call.size, on_success, on_error)
            if call.wish is None:
                accepted.context = accepted.context or copy_context()
            receiver: Receiver = accepted if outgoing.watch is None else ShownMember(accepted, outgoing.watch)
            gathering = self._add(call, receiver, lane, target)
            accepted.work = gathering if outgoing.watch is None else _ShownCall(gathering, outgoing)
        finally:
            if place is not None:
                place.leave()
        return accepted.future

    def turn(self, lane: Lane, target: Target, outgoing: Outgoing, deadline: float) -> Turn:
        """Takes a place for a one-way send, now, among what gathers for the queue."""
        gathering = self._sender.batcher.in_order(lane, target, fixed=True)
        if gathering.begin_at_once():
            return Turn(gathering, target.broker, None)
        future: asyncio.Future[None] = self._sender.create_future()
        gathering.add_turn(future, outgoing, deadline)
        return Turn(gathering, target.broker, future)

    # -- inside

    def _target_now(self, lane: Lane, call: OrderedCall[Result]) -> Target | None:
        """The queue of a call that has nothing to wait for; None where it has, or may have. Raises SelectorError."""
        wish, message = call.wish, call.message
        if wish is None or (message is not None and call.size >= self._sender.encoder.compress_over):
            return None
        line = self._lines.get(call.outgoing.topic)
        if line is not None and line.places:
            return None
        if wish.queue is not None or message is None:
            return None if wish.queue is None else lane.by_queue.get(wish.queue)
        if wish.selector is not None or self._sender.asks:
            return None
        queue = select_by_hash(lane.queues, message, wish.key)
        return lane.by_queue.get(queue) or lane.target(queue)

    def _join(self, call: OrderedCall[Result]) -> Place | None:
        return None if call.wish is None else self.line(call.outgoing.topic).join()

    async def _aim(self, call: OrderedCall[Result]) -> tuple[Lane, Target]:
        call.outgoing, lane, target = await self._sender.aim(call.outgoing, call.message, call.wish, call.deadline)
        return lane, target

    def _add(self, call: OrderedCall[Result], receiver: Receiver, lane: Lane, target: Target) -> InOrder:
        gathering = self._sender.batcher.in_order(lane, target, fixed=call.wish is not None)
        if call.together and call.message is not None:
            call.outgoing.message = call.message if call.wish is None else None
            gathering.add(receiver, call.outgoing, call.together, call.deadline, wait_store=call.message.wait_store)
        else:
            gathering.add_alone(receiver, call.outgoing, call.read, call.deadline)
        return gathering


class Turn:
    """The place of a one-way send: ``async with`` waits until what was there before is answered, and ends when it is written.

    Raises RequestTimeoutError when the call's time is over before that.
    """

    __slots__ = ("_broker", "_comes", "_gathering")

    def __init__(self, gathering: InOrder, broker: str, comes: asyncio.Future[None] | None) -> None:
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
            if comes.done() and not comes.cancelled() and comes.exception() is None:  # it has come, to a call that is cancelled
                self._gathering.ended(self._broker)
            else:
                self._gathering.left()
            raise
        finally:
            self._comes = None
            del comes  # an error that it holds has this frame in its traceback

    async def __aexit__(self, *_: object) -> None:
        self._gathering.ended(self._broker)


class _ShownCall:
    """An accepted send whose attempts hooks are shown."""

    __slots__ = ("_gathering", "_outgoing")

    def __init__(self, gathering: InOrder, outgoing: Outgoing) -> None:
        self._gathering = gathering
        self._outgoing = outgoing

    def left(self) -> None:
        _left(self._gathering, self._outgoing, asyncio.CancelledError())


def _left(gathering: InOrder, outgoing: Outgoing, error: BaseException) -> None:
    """The call has ended, and so has its attempt that is under way, if hooks were shown one."""
    gathering.left()
    if outgoing.watch is not None:
        outgoing.watch.give_up(error)
