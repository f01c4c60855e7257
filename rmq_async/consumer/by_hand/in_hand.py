"""Reading by hand: iterators and ``receive()`` hand out messages, which are then "in hand", and no handler is called."""

# A step, which is one ``anext()`` or ``receive()``, hands out messages when the user asks for them. They are "in hand" until they
# are settled, given back, abandoned, or put back into the buffer. The messages of one step share one Call, so deadlines, health and
# drains treat them as a call. A step takes its messages in the same turn of the loop in which it returns them, so a step that is
# cancelled while it waits has taken none.

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from math import inf
from typing import Any, Final

from rmq_protocol.message import MessageExt, MessageQueue

from ... import machine
from ..._asyncio import WaitTable
from ...errors import HandlerTimeoutError
from ...transport import check_not_forked, generation
from ..delivery import Call, call_of
from ..handling import CallDeadlines, CallHooks, Dispatcher, Settling
from ..held_queue import HeldQueue, Waiting
from ..outcome import Batch, DeadLetter, Marks, Outcome, RetryLater
from ..subscription import Subscription

REFUSED: Final = "messages of receive() cannot be marked; settle them with done(), retry() or dead_letter() of the consumer"
MARKED_LATE: Final = (
    "this batch is no longer in hand; mark its messages before you ask for the next batch, and before the iteration or the timeout "
    "ends"
)

ANSWER_WITHIN: Final = 3.0
"""Maximum seconds for which ``give_back`` waits for a broker. After that, the message continues to wait for one."""

Place = tuple[MessageQueue, int]
"""Queue and offset of a message."""


class HandDispatcher(Dispatcher):
    """A dispatcher that starts no calls: messages wait until the user asks for them."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        super().__init__(subscriptions, 0, _begin_nothing)
        self.room: ByHand

    def pump(self) -> None:
        self.room.arrived()

    def again(self, subscription: Subscription, item: Waiting, due: float) -> None:
        super().again(subscription, item, due)
        self.put_first(subscription, item.held)

    def hasten(self, held: HeldQueue | None = None) -> None:
        self.room.hasten()

    def is_stalled(self, held: HeldQueue) -> bool:
        return self.waits(held) and not self.room.is_read()


def _nothing(_: bool) -> None:
    """Do nothing. It is the callback for messages that are given back without a wait."""


class InHand:
    """The messages that one step (an ``anext()`` of an iterator, or a ``receive()``) has handed out.

    Args:
        iterated: Whether an iterator made the step.

    Attributes:
        left: Messages that are still in hand.
        returning: Number of give-backs in progress, whose messages have no outcomes yet.
        task: The task that made the step.
        watched: The context in which hooks were called at the start of the step. None after they were called at its end, and
            without hooks.
        error: The last error with which messages were given back, for hooks.
    """

    __slots__ = ("delivery", "error", "iterated", "left", "returning", "task", "watched")

    def __init__(self, delivery: Call, taken: tuple[Waiting, ...], *, iterated: bool) -> None:
        self.delivery = delivery
        self.left = dict.fromkeys(taken)
        self.returning = 0
        self.iterated = iterated
        self.task = asyncio.current_task()
        self.watched: Context | None = None
        self.error: BaseException | None = None

    @property
    def batch(self) -> Batch:
        return Batch(self.delivery.messages, self.delivery.marks or Marks(MARKED_LATE))


class ByHand:
    """Hands out messages to the user, and settles them. A step is one ``anext()`` of an iterator, or one ``receive()``.

    Args:
        owns: Returns whether this member may write the offset of a queue.

    Attributes:
        running: The steps that have messages in hand, by their Call.
    """

    concurrency: Final = 1
    problem: Final = None
    is_ready: Final = True
    """Always True, because reading by hand calls no function of the user and needs no thread for it."""

    def __init__(self, settling: Settling, dispatcher: HandDispatcher, owns: Callable[[MessageQueue], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._generation = generation()
        self._settling = settling
        self._dispatcher = dispatcher
        self._owns = owns
        self._waits: WaitTable[bool] = WaitTable()
        self._asking: dict[asyncio.Future[bool | None], None] = {}
        self._hurries = 0
        """Number of calls of ``hasten``. A step compares it with an earlier value to see whether its wait has ended."""
        self._places: dict[Place, tuple[InHand, Waiting]] = {}
        self.running: dict[Call, InHand] = {}
        self._deadlines = CallDeadlines(self.running, self._expire)
        self.hooks: CallHooks | None = None
        """The hooks, which are called for each step as for a handler call; None if no hook defines a method for calls."""
        self.closing = False
        """Whether the consumer stops. Steps then hand out the rest of the buffer (messages below settled messages), and return None
        after that."""

    # -- steps

    async def ask(self, limit: int, wait: float = 0.0, until: float = inf, *, iterated: bool) -> InHand | None:
        """Hand out up to ``limit`` messages of one topic.

        Args:
            limit: Maximum number of messages.
            wait: Maximum seconds for which the first message waits for more.
            until: Monotonic time at which the wait for a first message ends.
            iterated: Whether the caller is an iterator, and not ``receive()``.

        Returns:
            The messages. None if no message arrives before ``until``, or if the consumer is stopping and its buffer is empty.
        """
        full_until, hurries = inf if wait else 0.0, self._hurries
        while True:
            now = machine.monotonic() if wait or until < inf else 0.0
            filling = now < full_until and hurries == self._hurries and not self.closing
            found = self._dispatcher.take(limit, limit if filling else 1)
            if found is not None:
                return self._hand_out(*found, iterated=iterated)
            if self.closing or now >= until:
                return None
            if wait and not self._dispatcher.has_turn:
                full_until = inf  # no message waits: another step has taken them, or their queue is paused or gone
            elif full_until == inf:
                full_until = now + wait
            await self._wait(min(until, full_until or inf))

    async def _wait(self, until: float) -> None:
        future = self._waits.join(until)
        self._asking[future] = None
        try:
            await future
        finally:
            self._asking.pop(future, None)
            self._waits.leave(future)

    def arrived(self) -> None:
        """Wake all waiting steps."""
        asking, self._asking = self._asking, {}
        for future in asking:
            if not future.done():
                future.set_result(True)

    def hasten(self) -> None:
        """End the waits for full batches. Steps that wait now take the buffered messages."""
        self._hurries += 1
        self.arrived()

    def is_read(self) -> bool:
        """Return whether a step waits, or an iterator has messages in hand and may ask for more."""
        return bool(self._asking) or any(hand.iterated and hand.left for hand in self.running.values())

    def check(self) -> None:
        """Raise ForkedError in a forked child."""
        check_not_forked(self._generation)

    def _hand_out(self, subscription: Subscription, taken: tuple[Waiting, ...], *, iterated: bool) -> InHand:
        messages, attempt = tuple([item.message for item in taken]), max([item.attempt for item in taken])
        marks = Marks(None if iterated else REFUSED)
        delivery = call_of(subscription, messages, attempt, marks, self._taken_away, self._deadlines.moved)
        hand = self.running[delivery] = InHand(delivery, taken, iterated=iterated)
        if self.hooks is not None:
            hand.watched = copy_context()
            hand.watched.run(self.hooks.begin, delivery)
        for item in taken:
            item.held.running[item] = delivery
            self._places[item.message.queue, item.message.queue_offset] = hand, item
        if delivery.deadline is not None:
            self._deadlines.look_at(delivery.deadline)
        self._dispatcher.running += 1
        return hand

    # -- outcomes

    def done(self, messages: Iterable[MessageExt]) -> bool:
        """Settle messages. Return whether all of them were in hand and their queues still belong to this member."""
        all_owned = True
        for message in messages:
            found = self._places.get((message.queue, message.queue_offset))
            all_owned &= found is not None and self._settle(found[0], [found[1]])
        return all_owned

    async def give_back(self, message: MessageExt, cause: RetryLater | DeadLetter) -> bool:
        """Give a message back to be delivered again (RetryLater), or dead-letter it (DeadLetter).

        Return whether a broker has accepted the message within ANSWER_WITHIN seconds, or this member will hand it out again. Return
        False if the message is not in hand, or its queue no longer belongs to this member.
        """
        found = self._places.get((message.queue, message.queue_offset))
        if found is None:
            return False
        hand, item = found
        if not self._is_owned(item):
            self._abandon(hand, [item])
            return False
        taken: asyncio.Future[bool] = self._loop.create_future()

        def over(all_taken: bool) -> None:
            if not taken.done():
                taken.set_result(all_taken)

        self._return(hand, {item: cause}, cause, over)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN):
                return await taken
        return False

    def finish(self, hand: InHand) -> None:
        """Settle the messages that an iterator still has in hand from its last step, and begin to give back the messages with
        marks.
        """
        marks = hand.delivery.marks
        if marks is None or not marks.by_place:
            self._settle(hand, list(hand.left))
            return
        marks.refused = MARKED_LATE
        places = {
            (message.queue, message.queue_offset): marks.by_place[place]
            for place, message in enumerate(hand.delivery.messages)
            if place in marks.by_place
        }
        causes: dict[Waiting, BaseException] = {}
        for item in hand.left:
            cause = places.get((item.message.queue, item.message.queue_offset))
            if cause is not None and self._is_owned(item):
                causes[item] = cause
        self._settle(hand, [item for item in hand.left if item not in causes])
        if causes:
            self._return(hand, causes, None)

    def put_back(self, hand: InHand, held: HeldQueue | None = None) -> None:
        """Put the messages of a step back into the buffer.

        Messages of queues that are being given up are abandoned; while the consumer stops, all messages are abandoned.

        Args:
            held: The only queue whose messages are put back; None for all.
        """
        items = [item for item in hand.left if held is None or item.held is held]
        self._leave(hand, items[::-1], closing=self.closing)  # each goes before messages that were put back earlier
        self._dispatcher.pump()

    def let_go(self, task: asyncio.Task[Any] | None, held: HeldQueue | None = None, *, received: bool = False) -> None:
        """Put back the messages that a task has in hand, because the task will not settle them.

        Args:
            held: The only queue whose messages are put back; None for all.
            received: Whether only messages of ``receive()`` are put back, not messages of iterators.
        """
        for hand in [*self.running.values()]:
            if hand.task is task and hand.left and not (received and hand.iterated):
                self.put_back(hand, held)

    # -- methods that HandlerCalls also has

    def is_own_task(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` has messages of an iterator in hand."""
        return any(hand.task is task and hand.iterated and hand.left for hand in self.running.values())

    def name_of(self, task: asyncio.Task[Any]) -> str | None:
        """Return a name for the iteration whose messages ``task`` has in hand, or None. May be called from any thread."""
        for hand in list(self.running.values()):
            if hand.task is task and hand.iterated and hand.left:
                return f"the iteration over topic {hand.delivery.topic} in task {task.get_name()}"
        return None

    async def call_once(self, subscription: Subscription, message: MessageExt) -> BaseException | None:
        """Return an error, because a message that a tool sends requires a handler."""
        return RuntimeError("this member reads by hand and has no handler; send the request to a member that has one")

    def quiesce(self) -> None:
        """Note that the consumer begins to stop, and wake the steps."""
        self.closing = True
        self.arrived()

    async def cut_off(self, timeout: float) -> None:
        """Wake the steps, and abandon the messages in hand."""
        self.quiesce()
        for hand in [*self.running.values()]:
            self._leave(hand, list(hand.left), closing=True)

    def close(self) -> None:
        self._deadlines.close()

    # -- inside

    def _is_owned(self, item: Waiting) -> bool:
        held = item.held
        return held.is_owned and item in held.running and self._owns(held.queue)

    def _settle(self, hand: InHand, items: Collection[Waiting]) -> bool:
        """Settle messages in hand. Return whether all their queues still belong to this member."""
        owned = [item for item in items if self._is_owned(item)]
        if owned:
            self._forget(hand, owned)
            hand.delivery.measure()
            hand.delivery.note_outcome(Outcome.DONE)  # other messages of the step may have a worse outcome
            self._settling.done(hand.delivery, owned)
            self._ended(hand)
        if len(owned) < len(items):
            self._abandon(hand, [item for item in items if item in hand.left])
        return len(owned) == len(items)

    def _abandon(self, hand: InHand, items: Collection[Waiting]) -> None:
        self._leave(hand, items, closing=True)

    def _leave(self, hand: InHand, items: Collection[Waiting], *, closing: bool) -> None:
        self._forget(hand, items)
        self._settling.leave(hand.delivery, items, closing=closing)
        self._ended(hand)

    def _forget(self, hand: InHand, items: Iterable[Waiting]) -> None:
        for item in items:
            del hand.left[item]
            place = item.message.queue, item.message.queue_offset
            if self._places.get(place, (None,))[0] is hand:  # else the queue was moved and the message was handed out again
                del self._places[place]

    def _ended(self, hand: InHand) -> None:
        """End a delivery that has no messages in hand. Hooks are called when all its messages have their outcomes."""
        delivery = hand.delivery
        if hand.left:
            return
        if delivery.state != "finished":
            delivery.finish()
            delivery.measure()
            delivery.marks.refused = MARKED_LATE  # type: ignore[union-attr]
            del self.running[delivery]
            self._dispatcher.running -= 1
        if hand.watched is not None and not hand.returning:
            watched, hand.watched = hand.watched, None
            watched.run(self.hooks.end, delivery, hand.error, None)  # type: ignore[union-attr]

    def _return(
        self,
        hand: InHand,
        causes: dict[Waiting, BaseException],
        shared: BaseException | None,
        over: Callable[[bool], None] = _nothing,
    ) -> None:
        """Begin to give messages back. They are no longer in hand.

        Args:
            causes: The error or mark of each message.
            shared: The error that the messages share, if any.
            over: Called at the end with whether all messages were accepted.
        """
        self._forget(hand, causes)
        hand.returning += 1
        hand.error = shared if shared is not None else next(reversed(causes.values()))

        def taken(all_taken: bool) -> None:
            hand.returning -= 1
            self._dispatcher.pump()
            over(all_taken)
            self._ended(hand)

        self._settling.carry_out(hand.delivery, self._settling.judge(hand.delivery, causes, shared), taken)
        self._ended(hand)

    def _expire(self, delivery: Call) -> None:
        """Give back the messages of a step whose deadline has passed. Abandon messages whose queue no longer belongs to this
        member.
        """
        delivery.expire()
        hand = self.running[delivery]
        error = HandlerTimeoutError(
            f"a message of topic {delivery.topic} was in hand for {delivery.age:.6g} s and was neither settled nor given back; "
            "settle it in time, or set a longer timeout for its subscription (Consumer.subscriptions)"
        )
        owned = [item for item in hand.left if self._is_owned(item)]
        self._abandon(hand, [item for item in hand.left if item not in owned])
        if owned:
            self._return(hand, dict.fromkeys(owned, error), error)

    def _taken_away(self, delivery: Call) -> None:
        """Abandon the messages in hand whose queues leave this member; while the consumer stops, abandon all messages in hand."""
        hand = self.running.get(delivery)
        if hand is not None:
            self._abandon(hand, [item for item in hand.left if self.closing or not item.held.stays])


def _begin_nothing(_: Subscription, taken: tuple[Waiting, ...]) -> None:
    raise AssertionError(
        f"{len(taken)} messages were passed to a handler call, but reading by hand has no handlers; report this defect"
    )
