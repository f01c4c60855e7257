"""The session of a member that pulls, from its start to its stop. It creates and connects the parts, runs the tasks, and orders the
steps of start and stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import Context
from datetime import datetime
from typing import Any, Final, Literal

from rmq_protocol.command import RemotingCommand
from rmq_protocol.heartbeat import ConsumerData, ConsumeType
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.subscription import TAG, build_subscription

from ... import machine
from ..._asyncio import StopScope, for_each
from ..._text import printable
from ...client import ClientInstance, TopicRoute, check_queue, max_offset
from ...errors import ClientStateError, QueueLostError, RocketMQError
from ...health import Problem, ProblemCode
from ...reading import Looks, Seen, place_of
from ..broadcast import Broadcasting
from ..by_hand import ByHand, HandDispatcher
from ..config import ConsumerConfig
from ..group import LOOK_PATIENCE, Conflicts, Doubts, check_filter, find_holders, offset_at
from ..handling import Dispatcher, GiveBack, GiveBacks, HandlerCalls, Settling
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..reports import ConsumerStats, Lag
from ..session import Attached, MemberSession
from ..subscription import Subscription, on_change, subscription_data
from .assignment import UNLOCK_RESERVE, Assignment
from .callbacks import AssignmentCallbacks
from .intake import Intake
from .pulls import Budget, Pulling, PullLimits
from .queue_member import Clustering
from .queue_problems import line_problems, lock_problems, missing_problem, orphan_problems, queue_problem, takeover_problems
from .queue_requests import QueueRequests

logger = logging.getLogger(__name__)

RENEW_EVERY: Final = 20.0
"""Seconds between two renewals of locks, which live for 60 s (``RebalanceLockManager``)."""
RENEW_MASTERLESS_EVERY: Final = 1.0
"""Seconds between two renewals while a broker has no master, because a new master grants the locks to any member."""
RENEW_AGAIN_EVERY: Final = 5.0
"""Seconds between two renewals while the renewal of a lock is late, because a broker that is back must get a request before the
lock expires."""
COMMIT_FIRST: Final = 3.0
"""Maximum seconds for which a renewal waits for commits at brokers whose process may have been replaced."""
CLAIM_EVERY: Final = 0.5
"""Seconds between two requests for the locks of queues that are read without them. Only the lock keeps other members away from
such a queue."""
LOOK_AT_ASSUMED_EVERY: Final = 0.05
FIRST_ASSIGNMENT: Final = 3.0
"""Maximum seconds for which ``start()`` waits until the queues of the first share are read."""
LAST_STEPS: Final = 1.0
"""Seconds at the end of a stop that are reserved for the steps after the drain: cancelling handlers, commits and unlocks."""
LEFT_LATELY: Final = 60.0
"""Seconds after which a member that has left the group certainly makes no more commits."""
LEAVE_TIME: Final = 1.0
"""Maximum seconds for the responses of brokers when the member leaves the group."""
MOST_ORPHANS: Final = 64
"""Maximum number of topics without a subscription whose messages are counted. It is bounded because the names come from
properties of messages."""
AT_ONCE: Final = 16
IDLE_LOOK: Final = 0.01


class PullSession(MemberSession):
    """The session of a member that pulls.

    Args:
        label: The subject of error messages.
        context: Handlers and callbacks run in copies of this context.
        doubts: The queues with commits of this or an earlier session that had no response.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        label: str,
        context: Context,
        doubts: Doubts,
    ) -> None:
        super().__init__(instance, group, subscriptions, config, label)
        self.member: Clustering | Broadcasting = (
            Clustering(instance, group, subscriptions, config, self._owned, doubts)
            if config.broadcast is False
            else Broadcasting(instance, group, subscriptions, config, self._owned, context)
        )
        self.topics = self.member.topics
        self.budget = Budget(config.buffered_limit, config.buffered_bytes_limit)
        self.outcomes, self.locks, self.commits = self.member.outcomes, self.member.locks, self.member.commits
        self.give_backs = self.outcomes.give_backs = GiveBacks(self.outcomes, self.supervisor.once)
        self.looks = Looks(instance, group)
        self.intake = Intake(instance, self.looks, subscriptions, config, self.budget, self.commits, self._orphan)
        settling = Settling(config.retry, self.outcomes, self.settled, self._message_ended, self._again, self._all_done)
        if any(subscription.is_by_hand for subscription in subscriptions.values()):
            self.dispatcher = dispatcher = HandDispatcher(subscriptions.values())
            self.calls = self.by_hand = dispatcher.room = ByHand(settling, dispatcher, self.locks.owns)
        else:
            self.calls = calls = HandlerCalls(config.concurrency, settling, context)
            self.dispatcher = Dispatcher(subscriptions.values(), config.concurrency, calls.begin)
        limits = PullLimits(
            config.pull_size,
            config.max_span,
            lambda: len(self.assignment.held),
            config.max_span if self.by_hand is not None else most_ahead(config, subscriptions.values()),
            self.dispatcher.ready_of,
            self._may_pull,
        )
        self.rebalance = self.member.rebalance(self._apply)
        pulling = Pulling(instance, group, limits, self.budget, self.intake, self._lost_route)
        self.assignment = Assignment(
            instance, subscriptions, self.supervisor, pulling, self.commits, self.outcomes, self.intake
        )
        self.takeover = self.member.takeover(self.rebalance, self.assignment.open)
        self.requests = QueueRequests(instance, lambda: self.data, subscriptions, self.assignment, self.calls, self.supervisor)
        self.data = self._heartbeat_data(round(machine.time() * 1000))
        self.conflicts = Conflicts(instance, self.data)
        self.attached = Attached(instance, group, config, self.topics, self.blocking, self._route_changed)
        if not self.member.retries_here:
            self.attached.closed.limits = self.outcomes.limits
        self._connect_rooms(context)
        self._registered = False
        self._assigned = asyncio.Event()
        """An event that is set after the first rebalance round."""
        self.was_assigned = False
        """Whether the member has begun to read all queues of its first share. Once True, it stays True while a later rebalance
        waits for queues."""
        self.orphans: dict[str, int] = {}
        """Topics without a subscription in this consumer, with the number of their redelivered messages."""

    def _connect_rooms(self, context: Context) -> None:
        """Connect the parts with other parts that were created after them."""
        instance, config, assignment = self.instance, self.config, self.assignment
        assignment.callbacks = AssignmentCallbacks(
            {
                "on_assigned": config.on_assigned,
                "on_revoked": config.on_revoked,
                "on_released": config.on_released,
                "on_lost": config.on_lost,
            },
            config.handover_timeout,
            context,
            self.supervisor.once,
            assignment.callback_limit,
        )
        if isinstance(self.calls, HandlerCalls):
            self.calls.ending = self.supervisor.is_ending
            self.calls.dispatcher = self.dispatcher
            self.dispatcher.has_thread = self.calls.threads.has_next
        self.calls.hooks = self.attached.call_hooks
        self.intake.dispatcher = self.assignment.dispatcher = self.dispatcher
        self.give_backs.freed, self.give_backs.ended = self._freed, self._given_back
        self.give_backs.again, self.give_backs.has_room = self._here_again, self._has_room
        self.outcomes.stored = self._is_stored
        self.commits.is_sure, self.commits.make_sure = self.intake.is_sure, self.intake.make_sure
        self.commits.spawn = self.intake.spawn = self.supervisor.once
        self.intake.pull_again = self.assignment.pull_again
        self.intake.held = lambda: self.assignment.held
        self.assignment.takeover = self.takeover
        self.assignment.locks = self.locks
        self.assignment.released = self.rebalance.trigger
        self.assignment.handover_timeout = self.config.handover_timeout
        self.rebalance.left = lambda client_id, queues: self.supervisor.once(
            f"locks of {client_id}", self.takeover.free(client_id, queues)
        )
        self.rebalance.missing.left = self.intake.marks.doubt
        self.takeover.look = self.looks.first
        self.rebalance.listed_twice = self.conflicts.wake
        self.takeover.holders = lambda queues, within: find_holders(instance, self.group, queues, self.rebalance.others, within)
        self.takeover.is_shared = lambda: self.rebalance.was_shared(LEFT_LATELY)
        self.budget.full = self._make_room
        self.dispatcher.may_begin = self.assignment.may_begin
        for subscription in self.subscriptions.values():
            on_change(subscription, self.dispatcher.settings_changed)

    @property
    def is_assigned(self) -> bool:
        """Whether the first rebalance round has ended, each queue of the share is held, and ``on_assigned`` has ended."""
        return self._assigned.is_set() and not self.takeover.queues and self.assignment.begun.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether the member does its work: it has begun to read its first share, is not stopping, and can call its handlers."""
        return self.was_assigned and not self.assignment.closing and self.calls.is_ready

    def is_own_task(self, task: asyncio.Task[Any] | None) -> bool:
        return super().is_own_task(task) or self.assignment.callbacks.is_own_task(task)

    def blocking(self, task: asyncio.Task[Any]) -> str | None:
        return super().blocking(task) or self.assignment.callbacks.name_of(task)

    async def open(self, starting: StopScope) -> None:
        """Join the group, and wait for the first share. After an error, no task and no registration is left.

        Raises:
            ConfigError: If the client already has a consumer of the group. The errors of the requests, of ``check_filter`` and of
                ``Conflicts.look_first`` also propagate.
        """
        self.attached.begin(self)
        try:
            await starting.run(self._join())
        except BaseException:
            await self._abandon(machine.monotonic() + LAST_STEPS)
            raise
        config, run = self.config, self.supervisor.run
        run("takeover", self.takeover.run)
        run("rebalance", lambda: self.rebalance.run(config.rebalance_interval))
        run("commits", lambda: self.commits.run(config.commit_interval, config.rebalance_interval, self._confirm))
        if not self.member.retries_here:
            run("lock renewal", self._renew)
        run("look at the group", self.conflicts.run)
        run("look at missing queues", self.rebalance.missing.run)
        run("look at closed queues", self.attached.closed.run)
        try:
            await starting.run(self._first_assignment())
        except BaseException:  # some queues may already be read, and messages handled
            await self.close(starting.deadline)
            raise

    def quiesce(self) -> None:
        """Begin to stop: end the pulls, and drop the messages after the last message with a call or an outcome."""
        if self.by_hand is not None:
            self.by_hand.quiesce()
        self.assignment.quiesce()

    async def close(self, deadline: float) -> None:
        """Leave the group; drain all queues, commit their watermarks, and release their locks.

        Args:
            deadline: Monotonic time. The last steps have LAST_STEPS seconds even if the deadline is earlier.
        """
        self.quiesce()
        self.attached.hurry()
        now = machine.monotonic()
        end = max(deadline, now + LAST_STEPS)
        leaving = self.supervisor.once(f"leave of {self.group}", self._leave_in_turn(end))
        try:
            await self.assignment.give_up_all(min(now + self.config.handover_timeout, end - LAST_STEPS), end)
            await asyncio.wait([leaving], timeout=max(end - machine.monotonic(), 0.0))
        finally:
            await self._abandon(end)

    def members_changed(self) -> None:
        """Handle NOTIFY_CONSUMER_IDS_CHANGED (40)."""
        self.rebalance.trigger()

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Return the response to a request of a tool for this member."""
        self.conflicts.namesakes.heard(command)
        return self.requests.serve(command)

    def abort(self) -> None:
        """End all waits for running handlers, now and later."""
        self.assignment.abort()

    # -- control

    def pause(self, given: Sequence[str | MessageQueue]) -> None:
        topics, queues = self._sorted(given)
        self.assignment.pause(topics, queues, all_queues=not given)

    def resume(self, given: Sequence[str | MessageQueue]) -> None:
        topics, queues = self._sorted(given)
        assignment = self.assignment
        if not given:
            assignment.resume_all()
            return
        if assignment.pauses.all:
            raise ClientStateError(f"{self.label} is paused as a whole; call resume() without arguments")
        for held in queues:
            if held.queue.topic in assignment.pauses.topics:
                raise ClientStateError(f"topic {held.shown.topic} is paused as a whole; resume the topic instead of its queues")
        assignment.resume(topics, queues)

    def _sorted(self, given: Sequence[str | MessageQueue]) -> tuple[list[str], list[HeldQueue]]:
        """Return the topics of ``given`` with their names on the wire, and the held queues of ``given``."""
        return self.wire_topics(given), [self._held(each) for each in given if not isinstance(each, str)]

    async def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | datetime) -> None:
        held, task = self._held(queue), asyncio.current_task()
        if self.by_hand is not None:
            self.by_hand.let_go(task, held)
        elif self.calls.is_own_task(task):
            raise ClientStateError("seek() waits for running handlers, and this is one of them; call it from another task")
        offset = await offset_at(self.instance, held.queue, to)
        await self.assignment.reset(held, offset, "seek() was called", logging.INFO)
        if not held.is_owned:
            raise QueueLostError(
                f"{held.shown} was given up or lost during seek(); call seek() for a queue in assignment",
                broker=held.shown.broker_name,
            )

    def position(self, queue: MessageQueue) -> int:
        wire = self.instance.names.wire_queue(check_queue(queue))
        leaving = (each for each in self.assignment.leaving if each.queue == wire and each.is_owned)
        return (next(leaving, None) or self._held(queue)).progress.watermark

    def _held(self, queue: MessageQueue) -> HeldQueue:
        asked = check_queue(queue)  # a tuple is allowed, too
        held = self.assignment.held.get(self.instance.names.wire_queue(asked))
        if held is None:
            raise QueueLostError(
                f"{self.label} does not read {asked} now; assignment has the queues that it reads", broker=asked.broker_name
            )
        return held

    async def committed(self, queue: MessageQueue) -> int | None:
        return await self.member.committed(queue)

    async def commit(self) -> None:
        await self.commits.now()

    async def until_idle(self) -> None:
        """Wait until the messages that the held queues have now are settled, and no handler call runs."""
        assignment = self.assignment
        ends = {each.queue: await max_offset(self.instance, each.queue) for each in [*assignment.held.values()]}
        for each in [*assignment.held.values()]:
            if each.cursor < ends.get(each.queue, 0):
                await assignment.pull_again(each)
        while True:
            held = assignment.held
            left = [end for queue, end in ends.items() if queue in held and held[queue].progress.watermark < end]
            if not left and not self.dispatcher.running and self.is_assigned:
                return
            await asyncio.sleep(IDLE_LOOK)

    # -- reports

    @property
    def assignment_shown(self) -> frozenset[MessageQueue]:
        return frozenset(each.shown for each in [*self.assignment.held.values()])

    @property
    def progress_at(self) -> float | None:
        return max((each.settled_at for each in [*self.assignment.held.values()]), default=None)

    def lag(self) -> Lag:
        held = list(self.assignment.held.values())
        by_queue = {each.shown: each.lag for each in held}
        retries = sum(each.lag or 0 for each in held if each.subscription is None)
        messages = sum(each.lag or 0 for each in held if each.subscription is not None)
        return Lag(messages, retries, self.oldest_age(self.instance.clocks), by_queue)

    def stats(self) -> ConsumerStats:
        return ConsumerStats(
            handled=self.settled.handled,
            failed=self.settled.failed,
            retried=self.outcomes.retried,
            dead_lettered=self.outcomes.dead_lettered,
            lost=self.intake.lost,
            buffered=self.budget.messages + len(self.give_backs),
            buffered_bytes=self.budget.size + self.give_backs.size,
            running=self.dispatcher.running,
            commits=self.commits.count,
            rebalances=self.assignment.rounds,
            unsure=self.outcomes.unsure,
        )

    def problems(self) -> list[Problem]:
        """Return the problems with queues, order, threads, missing queues, locks and commits, and with messages that could not be
        given back or have no handler.
        """
        config, names, closed = self.config, self.instance.names, self.attached.closed
        held, stopped = [*self.assignment.held.values()], self.intake.stopped
        found = [problem for each in held if (problem := queue_problem(each, stopped.get(each))) is not None]
        found += line_problems(self.dispatcher, config.stuck_after)
        found += lock_problems(self.takeover, self.assignment.losses, names, config.handover_timeout)
        if self.calls.problem is not None:
            found.append(self.calls.problem)
        if self.rebalance.problem is not None:
            found.append(Problem(ProblemCode.GROUP_UNKNOWN, self.rebalance.problem))
        found += [missing_problem(each, names) for each in self.rebalance.missing.found() if not closed.has(each.queues[0])]
        found += closed.problems()
        found += takeover_problems(self.takeover, self.locks, [each.queue for each in self.assignment.owned()], names)
        if self.commits.error is not None:
            found.append(Problem(ProblemCode.NOT_COMMITTED, f"offsets were not committed: {self.commits.error}"))
        found += self.give_backs.problems()
        for shown, text in self.intake.skips.recent().items():
            found.append(Problem(ProblemCode.MESSAGES_SKIPPED, text, broker=shown.broker_name, queue=shown))
        return found + orphan_problems(self.orphans)

    # -- inside

    def _heartbeat_data(self, version: int) -> ConsumerData:
        """Return this member's part of the heartbeats.

        Args:
            version: The version of the subscriptions, in milliseconds since the epoch.
        """
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self.member.model,
            subscription_data_set=tuple(
                subscription_data(self.subscriptions[topic], topic, version)
                if topic in self.subscriptions
                else build_subscription(topic, sub_version=version)
                for topic in self.topics
            ),
            unit_mode=self.instance.config.unit_mode,
        )

    async def _join(self) -> None:
        instance = self.instance
        filtered = [each for each in self.data.subscription_data_set if each.expression_type != TAG]
        await for_each(filtered, lambda each: check_filter(instance, self.group, each), at_once=AT_ONCE)
        await for_each(self.subscriptions, self.member.prepare, at_once=AT_ONCE)
        await self.conflicts.look_first(self.config.on_conflict)
        instance.register_consumer(self.data)
        self._registered = True
        await instance.heartbeats.send_first(instance.config.request_timeout)
        await self.conflicts.look_joined(self.config.on_conflict)
        await self.member.joined()

    def _lost_route(self, held: HeldQueue) -> None:
        """Handle the response of a broker that does not have the queue."""
        self.intake.marks.doubt([held.queue])
        self.rebalance.trigger()

    async def _first_assignment(self) -> None:
        """Wait until the first share is known and read.

        The wait takes up to FIRST_ASSIGNMENT seconds. If no other member can be draining a queue of the share, it takes up to
        LOOK_PATIENCE more, because messages that are sent before the check of a queue may be skipped if the queue ends below the
        group's offset.
        """
        first = self.supervisor.once("first share", self._wait_assigned())
        await asyncio.wait([first], timeout=FIRST_ASSIGNMENT)
        if not self._assigned.is_set() or (self.takeover.queues and not self.takeover.is_refused):
            await asyncio.wait([first], timeout=LOOK_PATIENCE)
        if not self.was_assigned:
            logger.info(
                "group %s: %d queues are not read yet, because other members have them or their brokers do not respond",
                self.group,
                len(self.takeover.queues),
            )

    async def _wait_assigned(self) -> None:
        await self._assigned.wait()
        await self.takeover.idle.wait()
        await self.assignment.begun.wait()
        self.was_assigned = True

    async def _leave_in_turn(self, end: float) -> None:
        """Leave the member lists of the brokers, so that other members request the locks while this member drains its queues.

        If this member reads queues without their locks, it leaves the lists only after it has given up these queues. Only the lists
        keep other members away from such a queue, because the lock of a crashed member may expire during the drain.
        """
        while self.locks.assumed:  # noqa: ASYNC110 - rare and short, so it is not worth an event that all locks must set
            await asyncio.sleep(LOOK_AT_ASSUMED_EVERY)
        await self._leave(min(LEAVE_TIME, end - machine.monotonic()))

    async def _leave(self, timeout: float) -> None:
        if self._registered:
            self._registered = False
            await self.instance.unregister_consumer(self.group, max(timeout, 0.0))

    async def _abandon(self, end: float) -> None:
        """End everything that is left, by ``end`` (monotonic). All steps run even if the stop is cancelled meanwhile."""
        self.attached.hear_no_more()
        async with AsyncExitStack() as steps:  # which runs the steps in reverse order
            steps.callback(self.attached.end, self.subscriptions.values())
            steps.callback(self.dispatcher.close)
            steps.callback(self.calls.close)
            steps.push_async_callback(self._leave, 0.0)
            steps.push_async_callback(self.attached.end_traces, end)
            steps.push_async_callback(self._unlock_all, end)
            steps.push_async_callback(self._cut_off, end - UNLOCK_RESERVE)
            steps.push_async_callback(self._unlock_all, end)
            steps.push_async_callback(self.supervisor.close)
            steps.callback(self.give_backs.close)
            steps.callback(self.assignment.close)

    async def _unlock_all(self, end: float) -> None:
        """Release the locks, except locks of ordered queues whose calls have not ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(end - machine.monotonic(), 0.0)):
                await self.locks.unlock_all(self.assignment.running_in_order())

    async def _cut_off(self, end: float) -> None:
        await self.calls.cut_off(max(end - machine.monotonic(), 0.0))

    def _owned(self) -> list[HeldQueue]:
        return self.assignment.owned()

    def _apply(self, shares: dict[str, frozenset[MessageQueue]]) -> None:
        self.assignment.apply(shares)
        self._assigned.set()

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic in self.topics:
            self.locks.doubt_replaced()  # here, so that no call of an ordered queue begins before
            self.rebalance.trigger()

    def _message_ended(self, item: Waiting, outcome: Outcome) -> None:
        self.budget.give(1, len(item.message.body))
        if outcome is Outcome.ABANDONED:
            self.assignment.note_abandoned(item)
        item.held.note_outcome(is_ready=not item.held.squeezed or self.dispatcher.has_ready(item.held))

    def _all_done(self, queues: Iterable[HeldQueue], items: Sequence[Waiting]) -> None:
        self.budget.give(len(items), sum([len(item.message.body) for item in items]))
        for held in queues:
            held.note_outcome(is_ready=not held.squeezed or self.dispatcher.has_ready(held))

    def _make_room(self) -> None:
        """Start incomplete batches, and drop messages of a queue that exceeds its share, because a queue waits for space in the
        buffer.
        """
        self.dispatcher.hasten()
        self.intake.make_room()

    def _again(self, subscription: Subscription, item: Waiting, due: float) -> None:
        if item.held.is_owned and not item.held.ends:
            self.dispatcher.again(subscription, item, due)
        else:
            self._message_ended(item, Outcome.ABANDONED)

    def _orphan(self, held: HeldQueue, message: MessageExt, topic: str) -> None:
        """Give back a redelivered message whose topic has no subscription in this consumer. Another member may subscribe to it."""
        if topic not in self.orphans:
            logger.error(
                "message %s of topic %s was delivered again, but no handler here subscribes to the topic, so it is given back; "
                "subscribe to the topic in each member of the group",
                message.msg_id,
                printable(topic),
            )
        if topic in self.orphans or len(self.orphans) < MOST_ORPHANS:
            self.orphans[topic] = self.orphans.get(topic, 0) + 1
        self.outcomes.give_back(held, topic, message, "no handler here subscribes to its topic")

    def _freed(self, back: GiveBack) -> None:
        if back.item is not None:
            self.budget.give(1, len(back.message.body))

    def _given_back(self, back: GiveBack, outcome: Outcome) -> None:
        if back.item is not None and outcome is Outcome.ABANDONED:
            self.assignment.note_abandoned(back.item)
        back.held.note_outcome(is_ready=not back.held.squeezed or self.dispatcher.has_ready(back.held))

    async def _is_stored(self, back: GiveBack) -> bool:
        """Return whether a queue still has a message that was read. If its store may have been replaced, check the queue first."""
        held = back.held
        await self.intake.make_sure(held, self.config.handover_timeout)
        return back.has_offset or await self.looks.at(held.queue, place_of(back.message)) is Seen.SAME

    def _here_again(self, back: GiveBack) -> None:
        """Handle a message again that no broker has accepted."""
        item, subscription = back.item, back.subscription
        assert item is not None
        assert subscription is not None
        if item.held.is_owned and not item.held.ends:
            self.budget.take(1, len(item.message.body))
            self.dispatcher.again(subscription, item, 0.0)
            self.dispatcher.pump()
        else:
            self._given_back(back, Outcome.ABANDONED)

    def _has_room(self, broker: str) -> None:
        """Let the queues of a broker be pulled again."""
        for held in self.assignment.held.values():
            if self.instance.routes.broker_of(held.queue) == broker:
                held.changed.set()

    def _may_pull(self, held: HeldQueue) -> bool:
        """Return whether the queue may be pulled: not too many messages wait to be given back to its broker."""
        full = self.give_backs.full
        return not full or self.instance.routes.broker_of(held.queue) not in full

    async def _renew(self) -> None:
        locks, renewed = self.locks, machine.monotonic()
        committing: asyncio.Task[None] | None = None
        while True:
            await asyncio.sleep(CLAIM_EVERY)
            replaced, masterless = locks.doubt_replaced(), locks.is_masterless
            every = RENEW_MASTERLESS_EVERY if masterless else RENEW_AGAIN_EVERY if locks.are_late else RENEW_EVERY
            if replaced or machine.monotonic() - renewed >= every:
                renewed = machine.monotonic()
                await self._reach_masters(renewed + RENEW_MASTERLESS_EVERY, masterless=masterless)
                if doubted := locks.doubt_replaced():
                    # Commit before the locks are requested, because a broker may have granted the locks to other members, which
                    # need the offsets. The wait is limited, so a broker that does not respond does not delay the locks at others.
                    if committing is None or committing.done():
                        committing = self.supervisor.once("commits before locks", self.commits.round(sorted(doubted)))
                    await asyncio.wait([committing], timeout=COMMIT_FIRST)
                await self._confirm()
                continue
            if locks.owes:
                await locks.unlock_owed()
            if locks.assumed:
                await locks.lock(sorted(locks.assumed))

    async def _reach_masters(self, deadline: float, *, masterless: bool) -> None:
        """Look for new masters if ``masterless``, and connect to brokers without an open connection, until ``deadline``."""
        instance = self.instance
        if masterless:
            await for_each(self.topics, lambda topic: instance.routes.renew(topic, deadline), at_once=AT_ONCE)

        async def connect(address: str) -> None:
            with suppress(RocketMQError):
                await instance.pool.connect(address, max(deadline - machine.monotonic(), 0.0))

        await for_each(self.locks.unreached(), connect, at_once=AT_ONCE)

    async def _confirm(self) -> None:
        """Renew the locks, and stop reading the queues whose locks were lost."""
        self.assignment.lose(await self.locks.renew())
        self.dispatcher.look_again()


def most_ahead(config: ConsumerConfig, subscriptions: Iterable[Subscription]) -> int:
    """Return the number of waiting messages at which a queue is not pulled: the largest of two pulls, all slots, and two batches of
    any subscription.
    """
    return max(2 * config.pull_size, config.concurrency, *[2 * (each.batch_size or 1) for each in subscriptions])
