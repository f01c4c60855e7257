"""Admission of calls on the general path: the turn in the topic's line, the credits, and the choice of a queue.

Calls that choose their queue keep their order by two waits. In the *line* of its topic a call waits for the calls before it
while those wait for credits, the compression of a body, the route or a selector that is a coroutine. A call whose broker is not
in the route waits for that broker aside, in a line of its queue. Then the call's message waits for its queue (``batching``).
A call that finds an empty line and nothing to wait for skips the line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, cast

import msgspec

from ..calls import Call
from ..encoding import Compressor
from ..routing import QueueChoice, Router, Target, TopicQueues
from .credits import Credits, Epoch
from .ordering import Lines, Place

__all__ = ["Admission", "Admitted"]


class Admission:
    """The collaborators of admission. ``enter(call)`` makes an ``Admitted``.

    ``lines``: the lines of calls that choose their queue, by topic; all admissions of a producer share them. ``compress_from``:
    bytes from which on a body is compressed.
    """

    __slots__ = ("asks", "compress_from", "compressor", "credits", "enter", "lines", "queues_by_topic", "router")

    def __init__(self, credits: Credits, lines: Lines, router: Router, compressor: Compressor) -> None:
        self.credits = credits
        self.lines = lines
        self.router = router
        self.queues_by_topic = router.queues_by_topic
        self.asks = router.asks
        self.compressor = compressor
        self.compress_from = compressor.above
        self.enter = partial(Admitted, self)


class Admitted(msgspec.Struct):
    """An async context manager: enters when the call may be sent, and gives back its credits at the end, unless ``transfer``
    was called.

    ``turn``: the next queue of the round robin, if it has been taken already. ``prepare``: awaited before a queue is chosen.
    Valid inside: ``target``: the call's queue, one of ``topic_queues`` or chosen by the caller. ``number``: how many messages
    it has. ``place``: its place in a line, left as soon as batching keeps the order of its message; None if it has none.
    Entering raises BackpressureError if credits or the turn in line do not come by the call's deadline, and the errors of
    compression, selectors, route look-up and ``prepare``.
    """

    # A Struct with few methods: each call of a Python function costs 50 to 100 ns per message.
    admission: Admission
    call: Call[Any]
    turn: Target | None = None
    prepare: Callable[[TopicQueues], Awaitable[None]] | None = None
    topic_queues: TopicQueues = cast(TopicQueues, None)
    target: Target = cast(Target, None)
    number: int = 0
    epoch: Epoch | None = None
    place: Place | None = None

    async def __aenter__(self) -> Admitted:
        admission, call = self.admission, self.call
        ids = call.outgoing.batch_ids
        self.number = number = 1 if ids is None else len(ids)
        credits, size = admission.credits, call.size
        topic, message, choice = call.outgoing.topic, call.message, call.choice
        if choice is not None:
            if self.prepare is None and self._enter_now(choice):
                return self
            self.place = admission.lines.line(topic).join()
        try:
            if self.place is not None:
                await self.place.turn(call.deadline)
            self.epoch = credits.try_take(number, size) or await credits.take(number, size, call.deadline)
            if message is not None and size >= admission.compress_from:
                call.outgoing = await admission.compressor.compress(call.outgoing, call.deadline)
            topic_queues = admission.queues_by_topic.get(topic) or await admission.router.topics.find(topic, call.deadline)
            if self.prepare is not None:
                await self.prepare(topic_queues)
            if choice is None and not admission.asks:
                self.topic_queues, self.target = topic_queues, self.turn or topic_queues.next()
            else:
                await self._choose()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.place is not None:
            self.place.leave()
        if self.epoch is not None:
            credits = self.admission.credits  # ``give_back``, inlined
            credits.free += self.number
            credits.free_bytes += self.call.size
            if credits.watched:
                credits.came_back(self.epoch, self.number)

    def transfer(self) -> Epoch:
        """Hands the credits over to the caller, which must give them back."""
        epoch, self.epoch = self.epoch, None
        assert epoch is not None
        return epoch

    # -- internals

    def _enter_now(self, choice: QueueChoice) -> bool:
        """Takes credits and a queue if neither needs a wait and the line is empty; returns whether it did."""
        admission, call = self.admission, self.call
        topic, message = call.outgoing.topic, call.message
        topic_queues, line = admission.queues_by_topic.get(topic), admission.lines.by_topic.get(topic)
        if topic_queues is None or (line is not None and line.busy):
            return False
        if message is not None and call.size >= admission.compress_from:
            return False
        if choice.queue is not None:
            target = topic_queues.by_queue.get(choice.queue)
        else:
            target = admission.router.target_now(topic_queues, message, choice)
        credits = admission.credits
        free, free_bytes = credits.free - self.number, credits.free_bytes - call.size
        if target is None or credits.contended or free < 0 or free_bytes < 0:
            return False
        credits.free, credits.free_bytes = free, free_bytes  # ``try_take`` for free credits, inlined
        self.topic_queues, self.target, self.epoch = topic_queues, target, credits.epoch
        return True

    async def _choose(self) -> None:
        call, router = self.call, self.admission.router
        outgoing, message = call.outgoing, call.message
        if message is not None and call.choice is None:
            outgoing.message = message  # the selector of further attempts needs it as well
        topic, choice, deadline, place = outgoing.topic, call.choice, call.deadline, self.place
        if choice is None or place is None:
            self.topic_queues, self.target = await router.aim(topic, message, outgoing.message, choice, deadline)
            return
        queue = await router.chosen(topic, message, choice, deadline)
        if router.is_away(topic, queue):
            self.place = place = place.step_aside(queue)
        self.topic_queues, self.target = await router.at(topic, queue, deadline)
        if place.must_step_aside(self.target.queue):
            self.place = place = place.step_aside(self.target.queue)
        if not place.is_first():
            await place.turn(deadline)
            self.topic_queues, self.target = await router.at(topic, queue, deadline)  # the route may have changed
