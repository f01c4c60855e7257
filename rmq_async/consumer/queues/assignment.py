"""The queues that this member holds, from the takeover to the release or the loss.

An assigned queue is pulled after ``on_assigned`` has ended. A queue that leaves this member is drained in these steps: its pulls
end; the messages after the last message with a call or an outcome are dropped; ``on_revoked`` is called; running handlers and
``on_revoked`` have ``handover_timeout`` to end; the watermark is committed; the lock is released; ``on_released`` is called. If a
call of an ordered queue does not end, its message stays uncommitted and the lock is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from math import inf
from typing import Any, Final

from rmq_protocol.message import MessageExt, MessageQueue

from ... import machine
from ..._ordered import OrderedSet
from ...client import ClientInstance
from ...reading import FirstLook
from ..group import Commits, MemberLocks, Takeover
from ..handling import Dispatcher, Outcomes
from ..held_queue import HeldQueue, QueueState, Waiting
from ..subscription import Subscription
from ..supervisor import Supervisor
from .callbacks import AssignmentCallbacks, Event, EventKind
from .intake import Intake
from .losses import LostQueues
from .pulls import Pulling

logger = logging.getLogger(__name__)

COMMIT_TIME: Final = 3.0
"""Minimum seconds for the last commit of a queue after its drain, because the broker may have no master. The commit has more time
if ``handover_timeout`` or a stop allows it."""
UNLOCK_RESERVE: Final = 0.4
"""Seconds at the end of a stop that are reserved for unlocks after the last commits."""
RESET_TIME: Final = 10.0
"""Seconds for which a reset waits for running handlers. Java's ``MQClientInstance.resetOffset`` sleeps for the same time."""
SETTLE_TIME: Final = 2.0
"""Maximum seconds for cancelled calls to end, and for giving back messages, after the wait for handlers."""
UNLOCK_TIME: Final = 3.0
LOOK_EVERY: Final = 5.0
GATHER_TIME: Final = 0.05
"""Maximum seconds for which queues that are taken over are gathered for one call of ``on_assigned``."""


class Pauses:
    """The pauses of topics and queues.

    Attributes:
        all: Whether everything is paused.
        topics: Names on the wire of topics that are paused with all their queues, including queues that the member takes later.
    """

    def __init__(self) -> None:
        self.all = False
        self.topics: set[str] = set()

    def covers(self, held: HeldQueue) -> bool:
        """Return whether a queue is paused."""
        return self.all or held.paused or held.queue.topic in self.topics

    def among(self, subscriptions: Mapping[str, Subscription]) -> frozenset[Subscription]:
        """Return the subscriptions whose topics are paused with all their queues.

        Args:
            subscriptions: Subscriptions by topic on the wire.
        """
        return frozenset([each for topic, each in subscriptions.items() if self.all or topic in self.topics])

    def pause(self, topics: Iterable[str], queues: Iterable[HeldQueue]) -> None:
        self.topics.update(topics)
        for held in queues:
            held.pause()

    def resume(self, topics: Iterable[str], queues: Iterable[HeldQueue]) -> None:
        self.topics.difference_update(topics)
        for held in queues:
            held.resume()


def request_cancel(held: HeldQueue) -> list[asyncio.Task[None]]:
    """Cancel the coroutine calls of a queue, except calls whose handlers have ended. Return the tasks of all its coroutine calls.

    Calls in threads continue.
    """
    running = [each for each in dict.fromkeys(held.running.values()) if each.subscription.is_async]
    for delivery in running:
        if delivery.state == "running":
            delivery.cut_off()
    return [each.task for each in running if each.task is not None]


async def cancel_calls(held: HeldQueue, timeout: float) -> None:
    """Cancel the coroutine calls of a queue, and wait up to ``timeout`` seconds until they have ended."""
    tasks = request_cancel(held)
    await asyncio.sleep(0)  # after this, calls that had not made their first step have ended
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


async def give_back_passed(outcomes: Outcomes, held: HeldQueue, left: Collection[MessageExt], timeout: float) -> None:
    """Give back unsettled messages that are followed by a settled message, within ``timeout`` seconds. Other messages stay
    uncommitted.
    """
    passed = [message for message in left if held.progress.settled_above(message.queue_offset)]
    for message in passed:
        outcomes.give_back(held, message.topic, message, "its queue left this member before a call of its handler ended")
    try:
        async with asyncio.timeout(timeout):
            while held.returning:
                held.changed.clear()
                await held.changed.wait()
    except TimeoutError:
        logger.warning(
            "%d messages of %s were not given back within %.1f s, so settled messages after them are delivered again; look "
            "for errors of the broker, and during a stop, raise stop_timeout",
            len(held.returning),
            held.shown,
            timeout,
        )
        outcomes.give_backs.abandon(held)


def warn_running(held: HeldQueue) -> None:
    """Log that calls of a queue continue after its drain."""
    logger.warning(
        "calls of %d messages of %s continue after the handover, and the messages may be delivered again; raise "
        "handover_timeout, or during a stop, stop_timeout",
        len(held.running),
        held.shown,
    )


class Assignment:
    """The queues that this member holds, and its share, which are the queues that it should hold.

    Args:
        subscriptions: Subscriptions by topic on the wire, without the retry topic.

    Attributes:
        held: The held queues, by queue with names on the wire.
    """

    def __init__(
        self,
        instance: ClientInstance,
        subscriptions: Mapping[str, Subscription],
        supervisor: Supervisor,
        pulling: Pulling,
        commits: Commits,
        outcomes: Outcomes,
        intake: Intake,
    ) -> None:
        self._instance = instance
        self._subscriptions = subscriptions
        self._supervisor = supervisor
        self._pulling = pulling
        self._commits = commits
        self._outcomes = outcomes
        self._intake = intake
        self.dispatcher: Dispatcher
        self.takeover: Takeover
        self.locks: MemberLocks
        self.released: Callable[[], None]
        """A function that is called when a queue has left this member."""
        self.callbacks = AssignmentCallbacks({}, 0.0, Context(), supervisor.once, self.callback_limit)
        self._arriving: list[HeldQueue] = []
        """Queues that were taken over and have not been passed to ``on_assigned`` yet."""
        self.begun = asyncio.Event()
        """An event that is set while no queue waits for ``on_assigned``."""
        self.begun.set()
        self._announcing = 0
        self.held: dict[MessageQueue, HeldQueue] = {}
        self.leaving: dict[HeldQueue, None] = {}
        """Queues that are being drained, and lost queues with running calls."""
        self._unfinished: list[HeldQueue] = []
        """Ordered queues that were forgotten, for example by a stop, before their calls had ended."""
        self._pulls: dict[HeldQueue, asyncio.Task[None]] = {}
        self._drains: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._shares: dict[str, frozenset[MessageQueue]] = {}
        self._abandoned: dict[HeldQueue, list[MessageExt]] = {}
        self.handover_timeout = 0.0
        self.pauses = Pauses()
        self.closing = False
        self._aborted = False
        self._drain_until = self._end = inf
        """Monotonic times of a stop: the end of the drains, and the end of the stop."""
        self.losses = LostQueues()
        self.rounds = 0
        """Number of changes of the share, counted by topic."""

    def owned(self) -> list[HeldQueue]:
        """Return the queues that this member holds, and the queues that are leaving it."""
        return [*self.held.values(), *self.leaving]

    def apply(self, shares: dict[str, frozenset[MessageQueue]]) -> None:
        """Begin to take over and give up queues so that this member holds ``shares``, which has the queues by topic."""
        if self.closing:
            return
        given_up: list[HeldQueue] = []
        for topic, share in shares.items():
            if self._shares.get(topic) != share:
                self.rounds += 1
            self._shares[topic] = share
            given_up += [held for queue, held in self.held.items() if queue.topic == topic and queue not in share]
        self._give_up(given_up)
        for topic, share in shares.items():
            unwanted = [queue for queue in sorted(self.takeover.queues) if queue.topic == topic and queue not in share]
            if locked := self.takeover.unwant(unwanted):
                self._supervisor.once("unlock", self.locks.unlock(locked))
            leaving = {each.queue for each in self.leaving}
            self.takeover.want(sorted(share - self.held.keys() - leaving))

    def open(self, queue: MessageQueue, offset: int, committed: int | None, look: FirstLook | None = None) -> None:
        """Add a queue that was taken over. Start its pulls unless it is paused; if ``on_assigned`` is set, start them after its
        call.

        Args:
            queue: The queue, with names on the wire.
            offset: The start offset.
            committed: The committed offset, or None.
            look: The result of the check at the start offset; None if there was no check.
        """
        shown = self._instance.names.shown_queue(queue)
        offset = self._intake.marks.taken_over(queue, offset, committed)
        held = HeldQueue(queue, shown, self._subscriptions.get(queue.topic), offset)
        if committed is not None:
            held.confirm(committed, self._commits.connection(held))
        if look is not None:
            self._intake.looked(held, look)
        self.held[queue] = held
        logger.info(
            "%s is read from offset %d on%s", shown, offset, "" if committed is not None else "; the group has no offset there"
        )
        if "on_assigned" not in self.callbacks:
            self._begin_pulls(held)
            return
        held.take()
        if not self._arriving:
            self._announcing += 1
            self.begun.clear()
            self._supervisor.once("first pulls", self._announce())
        self._arriving.append(held)

    async def _announce(self) -> None:
        """Call ``on_assigned`` for queues that were taken over at about the same time, and then begin their pulls."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_TIME):
                    await self.takeover.idle.wait()
            arrived = [held for held in self._arriving if held.state is QueueState.TAKEN]
            self._arriving.clear()
            for held in arrived:
                held.announce()
            event = self.callbacks.add("on_assigned", [held.shown for held in arrived])
            if event is not None:
                await event.over.wait()
            for held in arrived:
                if held.state is QueueState.TAKEN:
                    held.read()
                    self._begin_pulls(held)
        finally:
            self._announcing -= 1
            if not self._announcing:
                self.begun.set()

    def _give_up(self, queues: Iterable[HeldQueue]) -> None:
        """Stop pulling the queues, and start to drain them. Draining takes at most ``handover_timeout`` seconds."""
        given_up = [held for held in queues if self.held.pop(held.queue, None) is not None]
        deadline = machine.monotonic() + self.handover_timeout
        for held in given_up:
            self.leaving[held] = None
            held.drain()
            self._quiesce(held)
        for held in given_up:
            self.dispatcher.hasten(held)
        revoked = self.callbacks.add("on_revoked", [held.shown for held in given_up if held.announced], deadline)
        for held in given_up:
            self._add_drain(f"drain of {held.shown}", self._hand_over(held, deadline, revoked if held.announced else None))

    def callback_limit(self, kind: EventKind) -> float:
        """Return the monotonic time at which a stop ends callbacks of this kind. Return ``inf`` before a stop."""
        if self._aborted:
            return 0.0
        return self._drain_until if kind in ("on_assigned", "on_revoked") else self._end

    def _add_drain(self, name: str, drain: Coroutine[Any, Any, None]) -> None:
        task = self._supervisor.once(name, drain)
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def pull_again(self, held: HeldQueue) -> None:
        """End a pull that a broker holds, and pull again. A broker does not respond to a held pull when it gets messages that a
        filter excludes.
        """
        if held.state is QueueState.RUNNING and held in self._pulls:  # in a task, because the caller may be cancelled
            await asyncio.shield(self._supervisor.once(f"new pulls of {held.shown}", self._pull_anew(held)))

    async def _pull_anew(self, held: HeldQueue) -> None:
        await self._end_pulls(held)
        self._begin_pulls(held)

    def _begin_pulls(self, held: HeldQueue) -> None:
        if self.closing or self.pauses.covers(held):
            return
        if held.state is QueueState.RUNNING and held not in self._pulls:  # two resets may end at the same time
            self._pulls[held] = self._supervisor.run(f"pulls of {held.shown}", lambda: self._pulling.run(held))

    def pause(self, topics: Iterable[str], queues: Iterable[HeldQueue], *, all_queues: bool) -> None:
        """Pause topics (with names on the wire) and queues. If ``all_queues``, pause everything."""
        self.pauses.pause(topics, queues)
        self.pauses.all |= all_queues
        self._apply_pauses()

    def resume(self, topics: Collection[str], queues: Iterable[HeldQueue]) -> None:
        """End the pauses of queues, and of topics with all their queues."""
        self.pauses.resume(topics, [*queues, *(held for held in self.held.values() if held.queue.topic in topics)])
        self._apply_pauses()

    def resume_all(self) -> None:
        self.pauses.all = False
        self.pauses.resume([*self.pauses.topics], self.held.values())
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        """End the pulls of paused queues, and drop their messages whose call has not begun, except failed messages that wait for
        another attempt. Start the pulls of all other queues.
        """
        for held in self.held.values():
            if not self.pauses.covers(held):
                self._begin_pulls(held)
            elif (pulls := self._pulls.pop(held, None)) is not None:
                pulls.cancel()
                self._intake.drop_waiting(held)
        self.dispatcher.paused = self.pauses.among(self._subscriptions)
        self.dispatcher.look_again()

    def may_begin(self, held: HeldQueue) -> bool:
        """Return whether calls of an ordered queue may begin: this member certainly has its lock, the queue is not paused, and its
        drain, if any, has not ended.
        """
        return held.is_owned and not held.ends and self.locks.is_sure(held.queue) and not self.pauses.covers(held)

    def note_abandoned(self, item: Waiting) -> None:
        """Keep an abandoned message of an unordered queue that is leaving this member, so that it can be given back."""
        held = item.held
        if held in self.leaving and not held.is_ordered:
            self._abandoned.setdefault(held, []).append(item.message)

    async def _hand_over(self, held: HeldQueue, deadline: float, revoked: Event | None) -> None:
        """Drain a queue after ``on_revoked``. Then call ``on_released``, unless the queue was lost, or not ``announced``."""
        if revoked is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(deadline, self._drain_until) - machine.monotonic()):
                    await revoked.over.wait()
        if await self._drain(held, deadline) and held.announced:
            released = self.callbacks.add("on_released", [held.shown])
            if released is not None:
                await released.over.wait()

    async def _drain(self, held: HeldQueue, deadline: float) -> bool:
        """Drain a queue until ``deadline``, commit its watermark, and release its lock.

        The lock of an ordered queue is kept if a call still runs at the end of a stop.

        Returns:
            False if the queue was lost.
        """
        try:
            await self._end_pulls(held)
            self._intake.drop_unbegun(held)
            self.dispatcher.hasten(held)
            if not await self._drained(held, deadline):
                await self._cut_off(held)
            elif held in self._abandoned:  # a call with messages of several queues was cancelled because of another queue
                await self._give_back_left(held)
            await self._commit_last(held)
            locked = held.is_ordered and not await self._calls_over(held)
        finally:
            lost = not held.release()
            self._forget(held)
        if locked and not lost:
            self.locks.leave([held.queue])
            logger.warning("a call of %s has not ended, so its lock is kept for up to 60 s; raise stop_timeout", held.shown)
        elif not lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds(UNLOCK_TIME, 1.0)):
                    await self.locks.unlock([held.queue])
        logger.info("%s is given up at offset %d", held.shown, held.progress.watermark)
        if not self.closing and held.queue in self._shares.get(held.queue.topic, ()):
            self.takeover.want([held.queue])
        self.released()
        return not lost

    async def _calls_over(self, held: HeldQueue) -> bool:
        """Wait until no call of an ordered queue runs, and then commit. Return False if a call still runs at the end of a stop."""
        while held.running or self.dispatcher.is_busy(held):
            left = self._end - machine.monotonic()
            if left <= 0:
                return False
            held.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_EVERY)):
                    await held.changed.wait()
        if held.committed != held.progress.watermark:
            await self._commit_last(held)
        return True

    async def _commit_last(self, held: HeldQueue) -> None:
        """Commit the watermark of a queue after its drain. Log an error if it was not committed in time."""
        began = machine.monotonic()

        def deadline() -> float:
            if self._end < inf and not self._aborted:
                return self._end - UNLOCK_RESERVE
            longest = COMMIT_TIME if self._aborted else max(COMMIT_TIME, self.handover_timeout)
            return min(began + longest, self._end - UNLOCK_RESERVE)

        if not await self._commits.commit_last(held, deadline):
            self._commits.report_last(held)

    def _forget(self, held: HeldQueue) -> None:
        """Remove the state of a queue that has left this member."""
        self._outcomes.give_backs.abandon(held)
        self.leaving.pop(held, None)
        self._abandoned.pop(held, None)
        self._intake.stopped.pop(held, None)
        self._intake.marks.given_up(held.queue, held.highest, held.unread)
        self._intake.withdraw_waiting(held)
        self.dispatcher.forget(held)
        if held.is_ordered and held.running:
            self._unfinished.append(held)

    def quiesce(self) -> None:
        """End the pulls at once, and drop the messages after the last message with a call or an outcome. Running calls continue."""
        self.closing = True
        for held in self.held.values():
            self._quiesce(held)
        self.dispatcher.hasten()

    def _quiesce(self, held: HeldQueue) -> None:
        if (pulls := self._pulls.get(held)) is not None:
            pulls.cancel()
        self._intake.drop_unbegun(held)

    async def give_up_all(self, drain_until: float, end: float) -> None:
        """Give up all queues at the same time.

        Args:
            drain_until: Monotonic time at which the drains end.
            end: Monotonic time at which commits, unlocks and callbacks end.
        """
        self.closing = True
        self._drain_until, self._end = drain_until, end
        self._look_at_drains()
        if locked := self.takeover.unwant(sorted(self.takeover.queues)):
            self._supervisor.once("unlock", self.locks.unlock(locked))
        self._give_up([*self.held.values()])
        if self._drains:  # including drains that a rebalance began
            await asyncio.wait([*self._drains])
        await self.callbacks.idle.wait()

    def close(self) -> None:
        """Forget the queues whose drains have not ended, as after a cancelled stop. No call begins with their messages, and no
        message is given back.
        """
        for held in self.owned():
            if held.is_owned:
                held.release()
            self._forget(held)
        self.held.clear()

    def running_in_order(self) -> list[MessageQueue]:
        """Return the ordered queues that this member has forgotten although their calls have not ended."""
        return [held.queue for held in self._unfinished if held.running]

    def abort(self) -> None:
        """End all waits for handlers of queues that are given up, now and later."""
        self._aborted = True
        self._look_at_drains()

    def _look_at_drains(self) -> None:
        for held in self.leaving:
            held.changed.set()
        self.callbacks.look_at_limit()

    def _seconds(self, longest: float, part: float) -> float:
        """Return the seconds for a last step of a drain: ``longest``, but during a stop at most the fraction ``part`` of the
        remaining time.
        """
        return max(min(longest, part * (self._end - machine.monotonic())), 0.0)

    async def reset(self, held: HeldQueue, offset: int, why: str = "reset by a tool", level: int = logging.WARNING) -> None:
        """Move a queue to ``offset``, and commit that offset.

        Wait up to RESET_TIME seconds for running calls; after that, cancel the calls if the queue is ordered. Drop the messages
        whose call has not begun. A queue that is lost or released meanwhile is not moved.

        Args:
            why: The reason, which is logged.
            level: The level of the log message.
        """
        await self._end_pulls(held)
        if held.is_ordered:
            self._intake.withdraw_waiting(held)
        else:
            self._intake.drop_unbegun(held)
            self.dispatcher.hasten(held)
        if not await self._drained(held, machine.monotonic() + RESET_TIME, retry=False) and held.is_ordered:
            await cancel_calls(held, self._seconds(SETTLE_TIME, 0.25))  # else two calls of a key could run at the same time
        if not held.is_owned:
            return
        self._intake.withdraw_waiting(held)
        logger.log(level, "%s continues at offset %d instead of %d: %s", held.shown, offset, held.progress.watermark, why)
        held.restart(offset)
        if held.state is QueueState.STOPPED:
            held.read()
            self._intake.stopped.pop(held, None)
        end = machine.monotonic() + COMMIT_TIME
        await self._commits.commit_last(held, lambda: end)
        self._begin_pulls(held)

    def lose(self, queues: Iterable[MessageQueue]) -> None:
        """End the pulls and commits of queues whose locks another member has, or may have.

        Messages whose call has not begun are dropped, unless the queue is already being drained. If this member gets the lock
        again, it reads the queue again after the running calls have ended or were cancelled (``_outlast``).
        """
        lost: list[HeldQueue] = []
        for queue in sorted(queues):
            self.takeover.lose(queue)
            held = self.held.pop(queue, None)
            if held is None:
                for each in self.leaving:
                    if each.queue == queue and each.is_owned:
                        self._lose(each)
                        lost.append(each)
                continue
            lost.append(held)
            self._lose(held)
            if (pulls := self._pulls.pop(held, None)) is not None:
                pulls.cancel()
            self._intake.withdraw_waiting(held)
            if held.running or self.dispatcher.is_busy(held):
                self.leaving[held] = None
                self._add_drain(f"calls of {held.shown}", self._outlast(held))
            else:
                self._forget(held)
                self.released()
        self.callbacks.add("on_lost", [held.shown for held in lost if held.announced])

    def _lose(self, held: HeldQueue) -> None:
        held.lose()
        self.losses.add(held)
        self._outcomes.give_backs.abandon(held)
        if held.is_ordered:
            request_cancel(held)

    async def _outlast(self, held: HeldQueue) -> None:
        """Wait up to ``handover_timeout`` seconds for the calls of a lost queue, and then cancel them.

        The calls of an ordered queue were cancelled at the loss. Wait until they have ended or the consumer stops.
        """
        try:
            if held.is_ordered:
                while not await self._drained(held, machine.monotonic() + LOOK_EVERY) and not self.closing:
                    pass
            elif not await self._drained(held, machine.monotonic() + self.handover_timeout):
                await cancel_calls(held, self._seconds(SETTLE_TIME, 0.25))
        finally:
            self._forget(held)
        self.released()

    async def _end_pulls(self, held: HeldQueue) -> None:
        pulls = self._pulls.pop(held, None)
        if pulls is not None:
            pulls.cancel()
            await asyncio.wait([pulls])

    async def _drained(self, held: HeldQueue, deadline: float, *, retry: bool = True) -> bool:
        """Wait until no call of the queue runs, no message waits for a call, and no message is being given back.

        Return True then. Return False at ``deadline``, at the end of a stop's time for drains, and if the user reads by hand and
        does not ask for the waiting messages.

        Args:
            retry: Whether failed messages of an ordered queue are handled again during the wait, if they are due in time.
        """
        while True:
            until = min(deadline, self._drain_until) if retry else -inf
            self._outcomes.give_backs.withdraw_delayed(held, until)
            if held.is_ordered:
                self._intake.withdraw_resting(held, until)
            if self.pauses.covers(held):  # no calls of a paused queue begin, so its waiting messages are withdrawn
                waiting = self._intake.withdraw_waiting(held)
                if held in self.leaving and not held.is_ordered:
                    self._abandoned.setdefault(held, []).extend(waiting)
            if not (held.running or held.returning or self.dispatcher.is_busy(held)):
                return True
            left = min(deadline, self._drain_until) - machine.monotonic()
            if left <= 0 or self._aborted or (not held.running and self.dispatcher.is_stalled(held)):
                return False
            held.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await held.changed.wait()

    async def _cut_off(self, held: HeldQueue) -> None:
        """Cancel the coroutine calls that have not ended, and give back the messages that the next owner would not pull.

        An unsettled message that no settled message follows stays uncommitted, and the next owner pulls it. An unsettled message
        before settled messages is given back, and the watermark passes it. Messages of an ordered queue are not given back here.
        """
        held.end_calls()
        waiting = self._intake.withdraw_waiting(held)  # else they would begin in the slots of cancelled calls
        await cancel_calls(held, self._seconds(SETTLE_TIME, 0.25))
        self._outcomes.give_backs.abandon(held)
        if held.is_ordered:
            return
        self._abandoned.setdefault(held, []).extend(waiting)
        await self._give_back_left(held)
        if held.running:
            warn_running(held)

    async def _give_back_left(self, held: HeldQueue) -> None:
        left = sorted(self._abandoned.get(held, ()), key=lambda message: message.queue_offset)
        await give_back_passed(self._outcomes, held, left, self._seconds(SETTLE_TIME, 0.4))
