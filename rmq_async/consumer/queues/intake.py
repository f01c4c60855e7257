"""Handles the results of pulls. Messages go into the buffer of their subscription, and a queue moves if its broker does not have
its offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import compress
from typing import Any, Final

import msgspec

from rmq_protocol.continuity import ranges_text
from rmq_protocol.forwarding import original_topic
from rmq_protocol.message import MessageExt, MessageQueue

from ... import machine
from ..._text import printable
from ...client import ClientInstance, look_at_clock
from ...errors import BrokerError
from ...reading import REACH, REPLACED, Asked, Cause, FirstLook, Looks, Move, ReadMarks, find_move, is_refused
from ...results import PullResult, PullStatus
from ...transport import Connection
from ..config import ConsumerConfig
from ..group import Commits
from ..handling import Dispatcher
from ..held_queue import HeldQueue, QueueState
from ..subscription import Subscription
from .losses import Skips
from .pulls import Budget

logger = logging.getLogger(__name__)

CONFIRM_WITHIN: Final = 10.0
"""Maximum seconds for the commit of a queue after a move."""
GO_BACK: Final = "to go back further, seek() to a datetime, or reset the group's offsets to a time (rmq group reset --to)"
KEEP: Final = "let brokers keep messages for longer (fileReservedTime), or handle them faster"


class Intake:
    """Puts pulled messages into the buffers of their subscriptions.

    Args:
        subscriptions: Subscriptions by topic on the wire.
        orphan: Called with a redelivered message whose topic has no subscription in this consumer.

    Attributes:
        lost: Number of offsets that were skipped because their messages were deleted before they were pulled, plus the number of
            messages that queues are known to have lost.
        corrupt: Number of records that could not be read.
    """

    def __init__(
        self,
        instance: ClientInstance,
        looks: Looks,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        budget: Budget,
        commits: Commits,
        orphan: Callable[[HeldQueue, MessageExt, str], None],
    ) -> None:
        self._instance = instance
        self._looks = looks
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
        self.skips = Skips()
        self.stopped: dict[HeldQueue, str] = {}
        """Queues that ``out_of_range="stop"`` or ``above_end="stop"`` has stopped, with the reasons."""

    def looked(self, held: HeldQueue, look: FirstLook) -> None:
        """Note the result of a check at the queue's cursor."""
        held.connect(look.connection)
        held.note_answer()
        if look.mark is not None:
            self.marks.add(held.queue, look.mark)
            if held.queue in self.marks.doubted:
                held.doubt()
            else:
                held.trust()
        else:
            held.note_end(look.end)

    def doubt(self, held: HeldQueue) -> None:
        """Note that the queue may have lost messages that were read."""
        self.marks.doubt([held.queue])
        held.doubt()

    async def look(self, held: HeldQueue) -> None:
        """Check a queue before a pull: whether it still has the messages that were read or, after a start, where it ends.

        The errors of the requests propagate.
        """
        marks, queue, offset = self.marks, held.queue, held.cursor
        self._by_connection(held)
        if queue in marks.doubted or held.low_end is not None:
            await self.move(held)
        if held.cursor != offset or not held.is_read:
            return
        newest = marks.newest(queue)
        if newest < held.begun - 1 or self._is_far(held, newest):
            look = await self._looks.first(queue, offset)
            if held.cursor == offset and held.is_owned:
                self.looked(held, look)
        else:
            held.trust()

    def connection(self, held: HeldQueue) -> Connection | None:
        """Return the open connection to a queue's broker."""
        return self._instance.open_connection(self._instance.routes.broker_of(held.queue))

    def _by_connection(self, held: HeldQueue) -> None:
        """Note the connection for a check. Behind a new connection, there may be another store."""
        connection = self.connection(held)
        if connection is not held.connection:
            self.doubt(held)
            held.connect(connection)

    def is_sure(self, held: HeldQueue) -> bool:
        """Return whether a check over the current connection has found the messages that were read.

        For a queue that was not read, return whether no end below its offset is known. Return True for a stopped queue, which is
        not moved.
        """
        if held.state is QueueState.STOPPED:
            return True
        if held.queue not in self.marks:
            return held.low_end is None
        connection = self.connection(held)
        return connection is not None and connection is held.connection and held.queue not in self.marks.doubted

    async def make_sure(self, held: HeldQueue, longest: float) -> None:
        """Check a queue as before a pull until ``is_sure`` is true for it, and move the queue if it has lost messages.

        The errors of the requests propagate.

        Args:
            longest: Maximum seconds for the three checks of an end below the queue's offset; ``handover_timeout`` is another limit.
        """
        while held.is_owned and not self.is_sure(held):
            async with held.looking:
                if self.is_sure(held):  # another check has ended meanwhile
                    return
                self.doubt(held)
                held.connect(self.connection(held))
                try:
                    await self._move(held, None, min(self._config.handover_timeout, longest))
                except BrokerError as error:
                    if is_refused(error):
                        return
                    raise

    def _is_far(self, held: HeldQueue, newest: int) -> bool:
        return held.is_filtered and held.cursor - newest > REACH

    def accept(self, held: HeldQueue, result: PullResult) -> bool:
        """Buffer the messages of a response and move the cursor past it. If messages were deleted and ``out_of_range`` is "stop",
        stop the queue instead.

        Return False, and buffer nothing, if the queue may have other messages than the messages that were read. An end below an
        earlier end is one sign of that.
        """
        if held.end is not None and result.max_offset < held.end:
            self.doubt(held)
        if held.queue in self.marks.doubted:
            return False
        if result.lost and self._config.out_of_range == "stop":
            self._stop(held, f"messages of {held.shown} are deleted, from offset {result.lost[0].start} on", "out_of_range")
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
            self._note_read(held, result.messages)
        entered = progress.enter_all([message.queue_offset for message in result.messages])
        fresh = [
            *compress(result.messages, entered)
        ]  # without messages that were pulled again only because others were dropped
        if held.cursor < held.repeated_to:
            fresh = held.without_known(fresh)
        if held.subscription is None:
            self._buffer_again(held, fresh)
        elif fresh:
            self._buffer(held, held.subscription, fresh)
        held.pass_to(result.next_offset, max(result.max_offset, result.next_offset))
        if not result.messages and self._is_far(held, self.marks.newest(held.queue)):
            held.doubt()
        self.dispatcher.pump()
        return True

    def _note_read(self, held: HeldQueue, messages: Sequence[MessageExt]) -> None:
        self.marks.read(held.queue, messages)
        if self._instance.clocks.wants_look(held.queue.broker_name, messages[0].store_time_ms):
            self.spawn(f"time of the broker of {held.shown}", look_at_clock(self._instance, held.queue))

    def _buffer(self, held: HeldQueue, subscription: Subscription, messages: list[MessageExt]) -> None:
        sizes = [len(message.body) for message in messages]
        held.count_sizes(sizes)
        self._budget.take(len(sizes), sum(sizes))
        self.dispatcher.add(held, subscription, messages)

    def _buffer_again(self, held: HeldQueue, messages: list[MessageExt]) -> None:
        """Buffer redelivered messages, each for the subscription of the topic that it was sent to. Pass messages without a
        subscription to ``orphan``.
        """
        for message in messages:
            topic = original_topic(message.topic, message.properties)
            subscription = self._subscriptions.get(self._instance.names.wire(topic))
            if subscription is None:
                self._orphan(held, message, topic)
            else:
                self._buffer(held, subscription, [msgspec.structs.replace(message, topic=subscription.topic)])

    async def move(self, held: HeldQueue, result: PullResult | None = None) -> None:
        """Determine why the broker does not have the offset of the pull, or whether the queue now has other messages.

        Then move the queue, stop it, accept the response, or change nothing. The errors of the requests propagate.

        Args:
            result: The response to the pull; None before the pull.
        """
        offset, moved = held.cursor, False
        async with held.looking:
            if held.cursor == offset:  # else a check before a commit has moved the queue meanwhile
                moved = await self._move(held, result, self._config.handover_timeout)
        if moved:
            end = machine.monotonic() + CONFIRM_WITHIN
            await self._commits.commit_last(held, lambda: end)

    async def _move(self, held: HeldQueue, result: PullResult | None, patience: float) -> bool:
        """Do the work of ``move``. Return whether the queue was moved and must be committed.

        Args:
            patience: The argument of ``find_move``.
        """
        marks, queue, offset = self.marks, held.queue, held.cursor
        illegal, proposed = False, offset
        if result is not None:
            illegal = result.status is PullStatus.OFFSET_ILLEGAL
            proposed = result.next_offset if illegal else offset
            held.note_end(result.max_offset)
        asked = Asked(queue, offset, proposed, held.low_end)
        move = await find_move(self._looks, marks, asked, patience)
        if held.cursor != offset or not held.is_owned:
            return False
        marks.doubted.discard(queue)
        held.forget_low_end()
        if move.cause is Cause.OVER:
            if not self._repeat_filtered(held) and result is not None:
                held.see_end(None)
                if not illegal:
                    self.accept(held, result)
        elif move.cause is Cause.DELETED:
            after = self._after_deletion(held, offset, move.offset, move.offset if result is None else result.max_offset)
            if after is not None:
                held.pass_to(after, held.end)
        else:
            return self._go_on(held, move)
        return False

    def _go_on(self, held: HeldQueue, move: Move) -> bool:
        """Move a queue whose offset was reset, or that has other messages now. Return whether the queue was moved."""
        if move.cause in (Cause.BEYOND_END, Cause.LOST_READ):
            return self._after_loss(held, move)
        log = logger.warning if move.cause is Cause.RESET else logger.error
        log("%s continues at offset %d instead of %d: %s", held.shown, move.offset, held.cursor, move.cause.value)
        if move.cause is Cause.MADE_ANEW:
            self.marks.forget(held.queue)
        self.withdraw_waiting(held)
        held.restart(move.offset)
        return True

    def _repeat_filtered(self, held: HeldQueue) -> bool:
        """Move a queue back to the offset after its last mark (``ReadMarks``) if a filter has excluded messages since. The mark
        does not cover these messages, and other messages may be in their place.

        Returns:
            Whether the queue was moved.
        """
        offset = max(self.marks.newest(held.queue) + 1, held.begun)
        if not held.is_filtered or offset >= held.cursor:
            return False
        held.go_back(offset)
        held.changed.set()
        return True

    def _after_loss(self, held: HeldQueue, move: Move) -> bool:
        """Move or stop a queue that has lost messages, according to ``above_end``. Return whether the queue was moved."""
        reached = max(held.cursor, held.progress.next)
        self.marks.cut(held.queue, move.offset)
        if move.offset >= reached:  # an operator has moved the group back below the lost messages
            return False
        what = f"it ends at {move.end}, below the group's offset"
        left_out = "messages stored between the loss and this member's check are skipped"
        if move.cause is Cause.LOST_READ:
            what = "it has lost messages that were read"
            left_out = "messages stored since the loss are handled, and older messages may be repeated"
        policy = self._config.above_end
        if policy == "stop":
            self._stop(held, f"{held.shown} does not continue at offset {reached}: {what}", "above_end")
            return False
        target = min(move.offset, reached) if policy == "end" else move.first
        if target == move.first:
            left_out = "all its messages are handled, including messages that were handled before"
        lost = max(reached - (reached if move.end is None else move.end), 0)
        self.lost += lost
        text = "%s continues at offset %d instead of %d: %s (about %d messages), because %s; %s; %s"
        logger.error(text, held.shown, target, reached, what, lost, REPLACED, left_out, GO_BACK)
        self.skips.add(held.shown, f"{held.shown} continued at offset {target} instead of {reached}: {what}; {left_out}")
        self._give(self.dispatcher.drop(held, target - 1, failed=True))
        held.go_back(target)
        held.changed.set()
        return True

    def _after_deletion(self, held: HeldQueue, offset: int, low: int, high: int) -> int | None:
        """Return the next offset of the queue according to ``out_of_range``. Return None if the queue stops."""
        policy = self._config.out_of_range
        text = f"offset {offset} of {held.shown} is below its first message at {low}"
        if policy == "stop":
            self._stop(held, text, "out_of_range")
            return None
        target = low if policy == "earliest" else max(high, low)
        self.lost += low - offset
        lost = low - offset
        logger.error("%s: %d messages were deleted before they were pulled; it continues at %d; %s", text, lost, target, KEEP)
        return target

    def _stop(self, held: HeldQueue, text: str, option: str) -> None:
        held.stop()
        self.stopped[held] = text
        logger.error(
            '%s; the queue is no longer read, because %s="stop"; seek() to an offset that it has, or to a datetime',
            text,
            option,
        )

    # -- space in the buffer

    def drop_unbegun(self, held: HeldQueue) -> None:
        """Drop waiting messages above all messages that are in calls, settled or being given back. Failed messages that wait for
        another attempt are kept.
        """
        unsettled = [each.message.queue_offset for each in (*held.running, *held.returning)]
        self._drop(held, max([*unsettled, held.progress.highest_settled]))

    def drop_waiting(self, held: HeldQueue) -> None:
        """Drop waiting messages, so that they are pulled again. Failed messages that wait for another attempt are kept.

        Messages between them that are settled or in calls are not handled again.
        """
        self._drop(held, -1)

    def _drop(self, held: HeldQueue, above: int) -> bool:
        dropped = self.dispatcher.drop(held, above)
        if dropped:
            held.withdraw([message.queue_offset for message in dropped], squeezed=self.dispatcher.waits(held))
            self._give(dropped)
            held.changed.set()  # a pull may wait until fewer messages wait
        return bool(dropped)

    def withdraw_waiting(self, held: HeldQueue) -> list[MessageExt]:
        """Remove and return all waiting messages of a queue. They stay unsettled."""
        dropped = self.dispatcher.drop(held, failed=True)
        self._give(dropped)
        held.changed.set()
        return dropped

    def withdraw_resting(self, held: HeldQueue, until: float) -> None:
        """Remove failed messages whose next attempt is due after ``until`` (monotonic), and the messages behind them. They stay
        unsettled.
        """
        self._give(self.dispatcher.drop_resting(held, until))

    def make_room(self) -> None:
        """Drop buffered messages of the queue that exceeds its share of the buffer by most, if there is one, because another queue
        waits for space.
        """
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
            victim.squeeze(self.dispatcher.waits(victim))
            if is_held:  # the broker holds the pull until a message arrives, and its response would be useless
                self.spawn(f"pull of {victim.shown}", self.pull_again(victim))
            victim.changed.set()  # a pull may wait because of ``max_span``

    def _give(self, dropped: list[MessageExt]) -> None:
        if dropped:
            self._budget.give(len(dropped), sum(len(message.body) for message in dropped))
