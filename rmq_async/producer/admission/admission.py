"""Admits calls that do not take the fast path: each call gets its turn in the topic's line, its credits, and a queue.

Two waits keep calls that choose their queue in order. In the *line* of its topic (a FIFO queue of calls), a call waits for earlier
calls while these wait for credits, the compression of a body, the route or a selector that is a coroutine. A call for a queue whose
broker is not in the route waits for that broker in a separate line of the queue. After that, the call's message waits for its queue
(``batching``). If the line is empty and the call has nothing to wait for, it skips the line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..encoding import Compressor
from ..routing import Router, TopicQueues
from .call import Call
from .credits import Credits
from .ordering import Lines


class Admission:
    """Gives calls the credits and the queue that they need before their first attempt, and takes the credits back afterwards.

    Call ``enter`` or ``enter_now``, then ``leave``.

    Args:
        lines: The lines of calls that choose their queue, by topic; all admissions of a producer share them.

    Attributes:
        compress_from: A body of at least this many bytes is compressed.
    """

    __slots__ = ("asks", "compress_from", "compressor", "credits", "lines", "queues_by_topic", "router")

    def __init__(self, credits: Credits, lines: Lines, router: Router, compressor: Compressor) -> None:
        self.credits = credits
        self.lines = lines
        self.router = router
        self.queues_by_topic = router.queues_by_topic
        self.asks = router.asks
        self.compressor = compressor
        self.compress_from = compressor.above

    def enter_now(self, call: Call[Any]) -> bool:
        """Give the call credits and a queue if it need not wait for them or for an earlier call. Return whether it got them."""
        topic, choice = call.outgoing.topic, call.choice
        topic_queues = self.queues_by_topic.get(topic)
        if topic_queues is None or (call.message is not None and call.size >= self.compress_from):
            return False
        target = None
        if call.lite_topic is not None:
            topic_queues = topic_queues.shard(call.lite_topic)
        if choice is not None:
            line = self.lines.by_topic.get(topic)
            if line is not None and line.busy:
                return False
            if choice.queue is not None:
                target = topic_queues.by_queue.get(choice.queue)
            else:
                target = self.router.target_now(topic_queues, call.message, choice)
            if target is None:
                return False
        elif self.asks and call.lite_topic is None:
            return False
        epoch = self.credits.try_take(call.number, call.size)
        if epoch is None:
            return False
        call.epoch, call.topic_queues = epoch, topic_queues
        call.target = target or call.target or topic_queues.next()
        return True

    async def enter(self, call: Call[Any], prepare: Callable[[TopicQueues], Awaitable[None]] | None = None) -> None:
        """Wait until a call that ``enter_now`` refused may be sent. The caller must call ``leave``, even after an error.

        Args:
            call: A call that holds neither credits nor a place in a line.
            prepare: Awaited before a queue is chosen.

        Raises:
            BackpressureError: If the call did not get credits, or its turn in the line, by its deadline.
            RocketMQError: The errors of compression, selectors, the route lookup and ``prepare``.
        """
        topic, deadline = call.outgoing.topic, call.deadline
        if call.choice is not None:
            call.place = self.lines.line(topic).join()
            await call.place.turn(deadline)
        call.epoch = await self.credits.take(call.number, call.size, deadline)
        if call.message is not None and call.size >= self.compress_from:
            call.outgoing = await self.compressor.compress(call.outgoing, deadline)
        topic_queues = self.queues_by_topic.get(topic) or await self.router.topics.find(topic, deadline)
        if prepare is not None:
            await prepare(topic_queues)
        if call.lite_topic is not None:
            call.topic_queues = topic_queues.shard(call.lite_topic)
            call.target = call.topic_queues.next()
        elif call.choice is None and not self.asks:
            call.topic_queues, call.target = topic_queues, call.target or topic_queues.next()
        else:
            await self._choose(call)

    def leave(self, call: Call[Any]) -> None:
        """Take back the credits, and the place in a line, that the call still holds."""
        if call.place is not None:
            call.place.leave()
        if (epoch := call.epoch) is not None:
            call.epoch = None
            self.credits.give_back(epoch, call.number, call.size)

    # -- internals

    async def _choose(self, call: Call[Any]) -> None:
        router, outgoing, message = self.router, call.outgoing, call.message
        if message is not None and call.choice is None:
            outgoing.message = message  # the selector of further attempts needs it as well
        topic, choice, deadline, place = outgoing.topic, call.choice, call.deadline, call.place
        if choice is None or place is None:
            call.topic_queues, call.target = await router.aim(topic, message, outgoing.message, choice, deadline)
            return
        queue = await router.chosen(topic, message, choice, deadline)
        if router.is_away(topic, queue):
            call.place = place = place.step_aside(queue)
        call.topic_queues, call.target = await router.at(topic, queue, deadline)
        if place.must_step_aside(call.target.queue):
            call.place = place = place.step_aside(call.target.queue)
        if not place.is_first():
            await place.turn(deadline)
            call.topic_queues, call.target = await router.at(topic, queue, deadline)  # the route may have changed
