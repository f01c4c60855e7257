"""The results of pulls: messages go into the buffer of their subscription, and queues move if a broker does not hold their
offset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from itertools import compress
from typing import Any, Final

import msgspec

from rmq_protocol.continuity import ranges_text
from rmq_protocol.forwarding import original_topic
from rmq_protocol.message import MessageExt, MessageQueue

from .. import machine
from .._text import printable
from ..client import ClientInstance
from ..results import PullResult, PullStatus
from .commits import Commits
from .config import ConsumerConfig
from .dispatch import Dispatcher
from .fetch import Budget, Cause, ReadMarks, find_move
from .held_queue import HeldQueue
from .subscription import Subscription

__all__ = ["Intake"]

logger = logging.getLogger(__name__)

CONFIRM_WITHIN: Final = 10.0
"""Maximum seconds for the commit of a queue that was moved."""
KEEP: Final = "let brokers keep messages for longer (fileReservedTime), or handle them faster"


class Intake:
    """Puts pulled messages into the buffers of their subscriptions. ``subscriptions``: by topic on the wire. ``orphan``: takes
    a redelivered message whose topic has no subscription here.

    ``lost``: number of offsets that were passed over because their messages were deleted before they were pulled. ``corrupt``:
    number of records that could not be read.
    """

    def __init__(
        self,
        instance: ClientInstance,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        budget: Budget,
        commits: Commits,
        orphan: Callable[[HeldQueue, MessageExt, str], None],
    ) -> None:
        self._instance = instance
        self._subscriptions = subscriptions
        self._config = config
        self._budget = budget
        self._commits = commits
        self._orphan = orphan
        self.dispatcher: Dispatcher
        self.spawn: Callable[[str, Coroutine[Any, Any, None]], object]
        self.pull_again: Callable[[HeldQueue], Coroutine[Any, Any, None]]
        self.held: Callable[[], Mapping[MessageQueue, HeldQueue]]
        self.lost = 0
        self.corrupt = 0
        self.marks = ReadMarks()
        self.stopped: dict[HeldQueue, str] = {}
        """Queues that ``out_of_range="stop"`` has stopped, and why."""

    def accept(self, held: HeldQueue, result: PullResult) -> bool:
        """Buffers the messages of an answer and moves the cursor behind it, or stops the queue where messages are deleted and
        ``out_of_range`` is "stop". Returns False, and does nothing, if the queue may have been created again."""
        if held.queue in self.marks.doubted:
            return False
        if result.lost and self._config.out_of_range == "stop":
            self._stop(held, f"messages of {held.shown} are deleted, from offset {result.lost[0].start} on")
            return True
        progress = held.progress
        for corrupt in result.corrupt:
            self.corrupt += 1
            logger.error("a record of %s cannot be read and is left out: %s", held.shown, printable(corrupt, 300))
        for missing in result.lost:
            self.lost += len(missing)
            text = "%d messages of %s were deleted before they were pulled (offsets %s); %s"
            logger.error(text, len(missing), held.shown, ranges_text([missing]), KEEP)
        if result.messages:
            self.marks.read(held.queue, result.messages)
        entered = progress.enter_all([message.queue_offset for message in result.messages])
        fresh = [*compress(result.messages, entered)]  # without those that are pulled again with others that were dropped
        if held.subscription is None:
            self._buffer_again(held, fresh)
        elif fresh:
            self._buffer(held, held.subscription, fresh)
        progress.pass_to(result.next_offset)
        held.cursor = result.next_offset
        held.end = max(result.max_offset, result.next_offset)
        self.dispatcher.pump()
        return True

    def _buffer(self, held: HeldQueue, subscription: Subscription, messages: list[MessageExt]) -> None:
        sizes = [len(message.body) for message in messages]
        held.count_sizes(sizes)
        self._budget.take(len(sizes), sum(sizes))
        self.dispatcher.add(held, subscription, messages)

    def _buffer_again(self, held: HeldQueue, messages: list[MessageExt]) -> None:
        """Buffers messages that are to be delivered again, each for the subscription of the topic that it was sent to; passes
        those without one to ``orphan``."""
        for message in messages:
            topic = original_topic(message.topic, message.properties)
            subscription = self._subscriptions.get(self._instance.names.wire(topic))
            if subscription is None:
                self._orphan(held, message, topic)
            else:
                self._buffer(held, subscription, [msgspec.structs.replace(message, topic=subscription.topic)])

    async def move(self, held: HeldQueue, result: PullResult) -> None:
        """Determines why the broker does not hold the offset of the pull, or whether the queue holds other messages now; then
        moves, stops or leaves the queue, or accepts the answer. Raises the errors of the requests."""
        instance, marks, queue, offset = self._instance, self.marks, held.queue, held.cursor

        async def made_anew() -> bool:
            return await marks.made_anew(instance, queue)

        proposed = result.next_offset
        if result.status is not PullStatus.OFFSET_ILLEGAL:
            if not await made_anew():
                marks.doubted.discard(queue)
                if held.cursor == offset and held.is_owned:
                    self.accept(held, result)
                return
            proposed = offset
        move = await find_move(instance, queue, offset, proposed, self._config.handover_timeout, made_anew)
        if held.cursor != offset or not held.is_owned:
            return
        marks.doubted.discard(queue)
        if move.cause is Cause.OVER:
            return
        shown = held.shown
        if move.cause is Cause.DELETED:
            after = self._after_deletion(held, offset, move.offset, result.max_offset)
            if after is not None:
                held.progress.pass_to(after)
                held.cursor = after
            return
        target = move.offset
        log = logger.warning if move.cause is Cause.RESET else logger.error
        log("%s goes on at offset %d instead of %d: %s", shown, target, offset, move.cause.value)
        if move.cause in (Cause.MADE_ANEW, Cause.BEYOND_END):
            marks.forget(queue)
        self.withdraw_waiting(held)
        held.restart(target)
        end = machine.monotonic() + CONFIRM_WITHIN
        await self._commits.commit_last(held, lambda: end)

    def _after_deletion(self, held: HeldQueue, offset: int, low: int, high: int) -> int | None:
        """Returns the next offset of the queue according to ``out_of_range``; None if it stops."""
        policy = self._config.out_of_range
        text = f"offset {offset} of {held.shown} is below its first message at {low}"
        if policy == "stop":
            self._stop(held, text)
            return None
        target = low if policy == "earliest" else max(high, low)
        self.lost += low - offset
        lost = low - offset
        logger.error("%s: %d messages were deleted before they were pulled; it goes on at %d; %s", text, lost, target, KEEP)
        return target

    def _stop(self, held: HeldQueue, text: str) -> None:
        held.stop()
        self.stopped[held] = text
        logger.error("%s; the queue stops, since out_of_range is stop: seek() to an offset that it has", text)

    # -- room

    def drop_unbegun(self, held: HeldQueue) -> None:
        """Drops the messages without a call that lie above all those that are in calls, settled or being given back, except
        failed ones that wait for another attempt."""
        running = [item.message.queue_offset for item in held.running]
        self._drop(held, max([*running, *held.returning, held.progress.highest_settled], default=-1))

    def drop_waiting(self, held: HeldQueue) -> None:
        """Drops the messages without a call, except failed ones that wait for another attempt; they are pulled again. Messages
        between them that are settled or in calls are not handled again."""
        self._drop(held, -1)

    def _drop(self, held: HeldQueue, above: int) -> bool:
        dropped = self.dispatcher.drop(held, above)
        if dropped:
            held.cursor = min(held.cursor, held.progress.withdraw([message.queue_offset for message in dropped]))
            held.squeezed = held.squeezed and self.dispatcher.waits(held)
            self._give(dropped)
            held.changed.set()  # its pulls may wait until fewer messages wait
        return bool(dropped)

    def withdraw_waiting(self, held: HeldQueue) -> list[MessageExt]:
        """Removes all messages of a queue that wait; they stay unsettled."""
        dropped = self.dispatcher.drop(held, failed=True)
        self._give(dropped)
        held.changed.set()
        return dropped

    def withdraw_resting(self, held: HeldQueue, until: float) -> None:
        """Removes the messages whose lines wait beyond ``until`` (monotonic); they stay unsettled."""
        self._give(self.dispatcher.drop_resting(held, until))

    def make_room(self) -> None:
        """Drops buffered messages of the queue that exceeds its share most, if one does: another queue waits for room."""
        table = [each for each in self.held().values() if each.is_owned and not each.squeezed]
        if len(table) < 2:
            return
        share = max(self._config.buffered_limit // len(table), 1)
        share_size = self._config.buffered_bytes_limit // len(table)
        waiting = {each: self.dispatcher.buffered_of(each) for each in table}
        sizes = {each: sum(len(message.body) for message in waiting[each]) for each in table}
        victim = max(table, key=lambda each: (sizes[each] / share_size, len(waiting[each]) / share))
        messages = waiting[victim]
        if victim.subscription is None or (len(messages) <= share and sizes[victim] <= share_size):
            return
        kept = size = 0
        for message in messages[:share]:
            size += len(message.body)
            if size > share_size:
                break
            kept += 1
        is_held = victim.is_caught_up
        if self._drop(victim, messages[kept].queue_offset - 1):
            victim.squeezed = self.dispatcher.waits(victim)
            if is_held:  # by the broker, until a message comes: its answer would be of no use
                self.spawn(f"pull of {victim.shown}", self.pull_again(victim))
            victim.changed.set()  # its pulls may wait for room in the span

    def _give(self, dropped: list[MessageExt]) -> None:
        if dropped:
            self._budget.give(len(dropped), sum(len(message.body) for message in dropped))
