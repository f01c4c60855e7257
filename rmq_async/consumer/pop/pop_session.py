"""The session of a member that pops, from its start to its stop. It pops from sources, each of which is one topic at one broker."""

# A popped message becomes a lease. It waits for a slot as a pulled message does, and is acknowledged or given back when its call
# has ended. The member keeps no offsets and shares no queues. A stop first gives back the messages that wait for a call, and ends
# the pops that brokers hold.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import Context
from datetime import datetime
from math import inf
from typing import Final, Literal, cast

from rmq_protocol.command import RemotingCommand
from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import StopScope, for_each
from ...client import ClientInstance, TopicRoute, check_queue, committed_offset, max_offset
from ...errors import BrokerError, ConfigError, RocketMQError
from ...health import Problem, ProblemCode
from ...reading import Looks, Seen, place_of
from ..config import ConsumerConfig
from ..handling import Dispatcher, GiveBack, GiveBacks, HandlerCalls
from ..held_queue import HeldQueue, Waiting
from ..outcome import Outcome
from ..reports import ConsumerStats, Lag
from ..session import Attached, MemberRequests, MemberSession
from ..subscription import Subscription, on_change
from .acks import Lease
from .arrivals import Arrivals
from .core import PopCore
from .pop_member import PopMember
from .pop_redelivery import PopOutcomes, PopSettling
from .pop_requests import Requests
from .sources import Credits, Popping, Source

logger = logging.getLogger(__name__)

FIRST_ANSWERS: Final = 3.0
"""Maximum seconds for which ``start()`` waits for the first response to the pops of each topic at each broker."""
LAST_STEPS: Final = 1.0
"""Seconds at the end of a stop that are reserved for the steps after the drain: cancelling handlers, and waiting for the
responses to acknowledgements."""
LEAVE_TIME: Final = 1.0
ANSWER_TIME: Final = 0.3
"""Maximum seconds for which a stop waits for responses to pops that brokers do not hold. It does not wait for held pops."""
LOOK_EVERY: Final = 0.05
IDLE_LOOK: Final = 0.02
HELD_AFTER: Final = 0.1
"""Seconds after which a pop without a response counts as held."""


class PopSession(MemberSession):
    """The session of a member that pops.

    Args:
        context: The context that is copied for each handler call.
    """

    calls: HandlerCalls

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        label: str,
        context: Context,
    ) -> None:
        super().__init__(instance, group, subscriptions, config, label)
        self.member = self._new_member()
        self.conflicts = self.member.conflicts
        self.requests = self._new_requests()
        self.core = PopCore(self.requests, self.supervisor, config.invisible_time, config.max_lease, self._give_back_outlasted)
        self.outcomes = PopOutcomes(instance, group, self.core)
        self.give_backs = self.outcomes.give_backs = GiveBacks(self.outcomes, self.supervisor.once)
        self.give_backs.freed, self.give_backs.ended = self._freed, self._given_back
        self.give_backs.has_room = self._has_room
        self.outcomes.stored, self._looks = self._is_stored, Looks(instance, group)
        settling = PopSettling(
            config.retry,
            self.outcomes,
            self.settled,
            self._message_ended,
            self._again,
            self._all_done,
            lambda: self.member.limit,
        )
        self.calls = HandlerCalls(config.concurrency, settling, context)
        self.dispatcher = Dispatcher(subscriptions.values(), config.concurrency, self._begin)
        self.arrivals = Arrivals(
            self.core, self.outcomes, self.dispatcher, instance.names, settling.limit_of, self.free, self._may_pop
        )
        self.popping = Popping(instance, self.core, self.arrivals.accept, self._may_ask)
        self.tools = MemberRequests(instance, lambda: self.member.data, subscriptions, self.calls)
        self.sources: dict[tuple[str, str], Source] = {}
        """The sources, by topic on the wire and broker name."""
        share, size = max(config.buffered_limit // len(subscriptions), 1), config.buffered_bytes_limit // len(subscriptions)
        self.credits = {subscription: Credits(share, size) for subscription in subscriptions.values()}
        self.paused: set[str] = set()
        """The paused topics, with names on the wire."""
        self._joined = False
        self.closing = False
        self._first: tuple[Source, ...] | None = None
        """The sources that existed at the start; None before that."""
        self.settled_at = machine.monotonic()
        """Monotonic time of the last outcome, or of the start."""
        self._margin = config.invisible_time / 10
        self._changed = asyncio.Event()
        """An event that is set when a message has its outcome while the consumer is stopping, and by ``abort``."""
        self._drain_until = inf
        self.attached = Attached(instance, group, config, self.member.topics, self.blocking, self._route_changed)
        self.calls.hooks = self.attached.call_hooks
        self.calls.ending = self.supervisor.is_ending
        self.calls.dispatcher = self.dispatcher
        self.dispatcher.has_thread = self.calls.threads.has_next
        for subscription in subscriptions.values():
            on_change(subscription, self._settings_changed)

    def _new_member(self) -> PopMember:
        return PopMember(self.instance, self.group, self.subscriptions, self.config)

    def _new_requests(self) -> Requests:
        return Requests(self.instance, self.group)

    def _again(self, subscription: Subscription, item: Waiting, due: float) -> None:
        """Raise AssertionError, because a popped message without an order is never handled again without a new delivery."""
        raise AssertionError(
            f"message {item.message.msg_id} was to be handled again, but a popped message needs a new delivery; report this defect"
        )

    # -- life

    async def open(self, starting: StopScope) -> None:
        """Join the group and begin to pop. After an error, no task and no connection of this session is left.

        The errors of ``Attached.begin``, ``Requests.open`` and ``PopMember.join`` propagate.
        """
        self.attached.begin(self)
        try:
            await starting.run(self._join())
            self.supervisor.run("renewal of leases", self.core.renew)
            self.supervisor.run("look at the group", self.member.watch)
            self.supervisor.run("look for routes", self._watch_routes)
            self.supervisor.run("look at closed queues", self.attached.closed.run)
            await starting.run(self._first_answers())
        except BaseException:  # messages may already be handled
            await self.close(starting.deadline)
            raise

    async def _join(self) -> None:
        await self.requests.open(self.attached.request_hooks)
        await self.member.join()
        self._joined = True
        self._find_sources()

    async def _first_answers(self) -> None:
        """Wait until each source has its first response or error, for at most FIRST_ANSWERS seconds."""
        self._first = tuple(self.sources.values())
        first = [self.supervisor.once("first answer", _wait(source.tried)) for source in self._first]
        if first:
            await asyncio.wait(first, timeout=FIRST_ANSWERS)

    def quiesce(self) -> None:
        """Begin to stop: make no further pops, and give back the messages that wait for a call."""
        if self.closing:
            return
        self.closing = True
        for source in self.sources.values():
            source.ends = True
            source.wake.set()
        self._give_back_waiting(self.sources.values())
        self.dispatcher.hasten()

    async def close(self, deadline: float) -> None:
        """Leave the group, let running calls end, send acknowledgements, and give other messages back.

        Return by ``deadline`` (monotonic), or within LAST_STEPS seconds if ``deadline`` is earlier.
        """
        self.quiesce()
        self.attached.hurry()
        now = machine.monotonic()
        end = max(deadline, now + LAST_STEPS)
        self._drain_until = min(self._drain_until, now + self.config.handover_timeout, end - LAST_STEPS)
        leaving = self.supervisor.once(f"leave of {self.group}", self.member.leave(min(LEAVE_TIME, end - now)))
        try:
            await self._let_go_of_pops(min(now + ANSWER_TIME, end))
            while (self.calls.running or self.dispatcher.running) and (left := self._drain_until - machine.monotonic()) > 0:
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_EVERY)):
                        await self._changed.wait()
            await self.calls.cut_off(max(min(0.5 * (end - machine.monotonic()), LAST_STEPS / 2), 0.0))
            await self._last_answers(end)
            await asyncio.wait([leaving], timeout=max(end - machine.monotonic(), 0.0))
        finally:
            await self._abandon(end)

    async def _let_go_of_pops(self, until: float) -> None:
        """Wait for responses to pops that brokers do not hold, at most until the monotonic time ``until``. Then close the
        connections of all pops.
        """
        while machine.monotonic() < until:
            now = machine.monotonic()
            busy = [each for each in self.sources.values() if each.under_way and now - each.popped_at < HELD_AFTER]
            busy += [each for each in self.sources.values() if each.beside]
            if not busy:
                break
            await asyncio.sleep(0.01)
        await self.requests.end_pops()

    async def _last_answers(self, end: float) -> None:
        """Wait for the responses to acknowledgements and to requests that give messages back."""
        with suppress(TimeoutError, RocketMQError):  # acknowledgements that were given up are logged
            async with asyncio.timeout(max(end - machine.monotonic(), 0.0)):
                await self.arrivals.all_given_back()
                await self.core.acks.flush()
        if self.core.acks.pending:
            logger.warning(
                "%d acknowledgements were not confirmed before the stop ended, so the messages may be delivered again",
                self.core.acks.pending,
            )

    async def _abandon(self, end: float) -> None:
        """End all remaining calls and tasks by ``end`` (monotonic).

        If the stop is cancelled here, only the current step ends early, and all other steps still run.
        """
        self.attached.hear_no_more()
        for source in self.sources.values():
            source.held.release()  # which ends the repeated requests for its messages
        async with AsyncExitStack() as steps:  # which runs the steps in reverse order
            steps.callback(self._log_counts)
            steps.callback(self.attached.end, self.subscriptions.values())
            steps.callback(self.dispatcher.close)
            steps.callback(self.calls.close)
            steps.push_async_callback(self.member.leave, 0.0)
            steps.push_async_callback(self.attached.end_traces, end)
            steps.push_async_callback(self.requests.close)
            steps.push_async_callback(self._cut_off, end)
            steps.callback(self.core.acks.close)
            steps.push_async_callback(self.supervisor.close)
            steps.callback(self.give_backs.close)

    async def _cut_off(self, end: float) -> None:
        await self.calls.cut_off(max(end - machine.monotonic(), 0.0))

    def _log_counts(self) -> None:
        """Log the numbers of leases by outcome from the start to the stop."""
        core, arrivals = self.core, self.arrivals
        counts = {
            "leases extended": core.extended,
            "messages given back": core.given_back,
            "changes without a response": core.unsure,
            "leases that ended too early": core.expired,
            "acknowledgements given up": core.acks.lost,
            "records that could not be read": arrivals.corrupt,
            "messages without a handle": arrivals.without_handle,
        }
        if any(counts.values()):
            logger.info("group %s: %s", self.group, ", ".join(f"{count} {what}" for what, count in counts.items() if count))

    def abort(self) -> None:
        """End the wait of ``close`` for running handlers; a later ``close`` does not wait for them."""
        self._drain_until = 0.0
        self._changed.set()

    @property
    def was_assigned(self) -> bool:
        """Whether each source that existed at the start has had a response, or has ended. May be read from any thread."""
        return self._first is not None and all(source.has_answered or source.ends for source in self._first)

    def members_changed(self) -> None:
        """Ignore NOTIFY_CONSUMER_IDS_CHANGED (40), because members that pop share no queues."""

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Return the response to a request of a tool for this member."""
        self.member.conflicts.namesakes.heard(command)
        return self.tools.serve(command)

    # -- control

    def pause(self, given: Sequence[str | MessageQueue]) -> None:
        """Pause topics: begin no more calls for them, make no further pops, and give back the messages that wait for a call."""
        self.paused.update(self._topics(given))
        self._apply_pauses()
        self._give_back_waiting([source for source in self.sources.values() if source.topic in self.paused])

    def resume(self, given: Sequence[str | MessageQueue]) -> None:
        self.paused.difference_update(self._topics(given))
        self._apply_pauses()
        for source in self.sources.values():
            source.wake.set()
        self.dispatcher.look_again()

    def _topics(self, given: Sequence[str | MessageQueue]) -> list[str]:
        """Return the topics with their names on the wire. Return all topics if none are given."""
        for each in given:
            if not isinstance(each, str):
                raise ConfigError(f"with mode='pop', only topics can be paused and resumed, not {shown(each)}; name topics")
        return self.wire_topics(given) or [*self.subscriptions]

    async def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | datetime) -> None:
        raise _holds_no_queue("seek()")

    def position(self, queue: MessageQueue) -> int:
        check_queue(queue)
        raise _holds_no_queue("position()")

    async def committed(self, queue: MessageQueue) -> int | None:
        return await committed_offset(self.instance, self.group, queue)

    async def commit(self) -> None:
        """Send the pending acknowledgements, and wait until they have ended; see ``Acks.flush``."""
        await self.core.acks.flush()

    async def until_idle(self) -> None:
        """Wait until all messages that the topics have now were popped by any member, and this member has no message and no pending
        acknowledgement. The errors of the requests propagate.
        """
        instance = self.instance
        queues = [
            queue
            for topic in self.member.known
            if (route := instance.routes.cached(topic)) is not None
            for queue in route.subscribe_queues
        ]
        ends = await for_each(queues, lambda queue: max_offset(instance, queue))
        while True:
            offsets = await for_each(ends, lambda queue: committed_offset(instance, self.group, queue))
            held = len(self.give_backs) or any(credits.taken for credits in self.credits.values())
            if not held and not self.core.acks.pending and all((offsets[queue] or 0) >= end for queue, end in ends.items()):
                return
            await asyncio.sleep(IDLE_LOOK)

    # -- reports

    @property
    def assignment_shown(self) -> frozenset[MessageQueue]:
        return frozenset()

    @property
    def is_ready(self) -> bool:
        return self.was_assigned and not self.closing and self.calls.is_ready

    @property
    def progress_at(self) -> float | None:
        return self.settled_at

    def lag(self) -> Lag:
        """Return the lag: the messages that this member holds, plus the remaining messages that brokers reported in their last
        responses, an estimate that may be seconds old.
        """
        sources = list(self.sources.values())
        held = sum(each.taken for each in self.credits.values()) + len(self.give_backs)
        by_queue = {each.held.shown: each.rest if each.has_answered else None for each in sources}
        return Lag(held + sum(each.rest for each in sources), 0, self.oldest_age(self.core.clocks), by_queue)

    def stats(self) -> ConsumerStats:
        credits = list(self.credits.values())
        return ConsumerStats(
            handled=self.settled.handled,
            failed=self.settled.failed,
            retried=self.outcomes.retried,
            dead_lettered=self.outcomes.dead_lettered,
            buffered=sum(each.taken for each in credits) + len(self.give_backs),
            buffered_bytes=sum(each.size for each in credits) + self.give_backs.size,
            running=self.dispatcher.running,
            commits=self.core.acks.count,
            unsure=self.outcomes.unsure + self.core.unsure,
        )

    def problems(self) -> list[Problem]:
        found, now = list[Problem](), machine.monotonic()
        for source in list(self.sources.values()):
            found += source.problems(now)
        for broker, text in list(self.core.acks.errors.items()):
            found.append(
                Problem(ProblemCode.NOT_COMMITTED, f"messages were not acknowledged at broker {broker}: {text}", broker=broker)
            )
        found += self.give_backs.problems()
        if self.calls.problem is not None:
            found.append(self.calls.problem)
        for topic in self.member.unknown:
            found.append(Problem(ProblemCode.GROUP_UNKNOWN, f"the name servers know no route of topic {topic}"))
        return found + self.attached.closed.problems()

    # -- sources

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic in self.subscriptions:
            self._find_sources()

    async def _watch_routes(self) -> None:
        while True:
            await asyncio.sleep(self.member.look_for_routes())
            self._find_sources()

    def _find_sources(self) -> None:
        """Start pops of brokers that the routes name now, and end pops of brokers that have left a topic's route."""
        if self.closing or not self._joined:
            return
        wanted = self.member.brokers()
        for key, source in [*self.sources.items()]:
            if key not in wanted and key[0] in self.member.known:
                source.ends = True
                source.wake.set()
                del self.sources[key]
                source.credits.sources -= 1
                logger.info(
                    "topic %s is no longer on broker %s, which is no longer popped", source.held.shown.topic, source.broker
                )
        for topic, broker in wanted:
            if (topic, broker) not in self.sources:
                self._add_source(topic, broker)

    def _add_source(self, topic: str, broker: str) -> None:
        subscription = self.subscriptions[topic]
        queue = MessageQueue(topic, broker, -1)
        held = HeldQueue(queue, self.instance.names.shown_queue(queue), subscription, 0)

        def slots() -> int:
            calls = self.config.concurrency
            return min(subscription.concurrency or calls, calls) * (subscription.batch_size or 1)

        source = Source(held, topic, subscription, self.credits[subscription], slots, self.config.pull_size)
        self.sources[topic, broker] = source
        source.credits.sources += 1

        async def pop() -> None:
            await self.member.until_checked(source)
            await self.popping.run(source)

        self.supervisor.run(f"pops of {topic} at {broker}", pop)

    def _may_pop(self, source: Source) -> bool:
        return not self.closing and source.topic not in self.paused

    def _may_ask(self, source: Source) -> bool:
        """Return whether a source may be popped: it is not paused, its handler can be called, and not too many messages wait to be
        given back to its broker.
        """
        can_call = source.subscription.is_async or self.calls.is_ready
        return can_call and self._may_pop(source) and source.broker not in self.give_backs.full

    def _apply_pauses(self) -> None:
        self.dispatcher.paused = frozenset(self.subscriptions[topic] for topic in self.paused)

    def _give_back_waiting(self, sources: Iterable[Source]) -> None:
        leases: list[Lease] = []
        for source in sources:
            for item in self.dispatcher.drop_items(source.held):
                assert isinstance(item, Lease)
                self.free(item)
                leases.append(item)
        self.arrivals.give_back(leases)

    def _give_back_outlasted(self, leases: list[Lease]) -> list[Lease]:
        """Give back leases that have waited for a call for the maximum time. Return the others.

        The end of a lease counts as an attempt, so a message that is not given back could become a dead letter without any call.
        """
        sources: dict[HeldQueue, set[Waiting]] = {}
        for lease in leases:
            sources.setdefault(lease.held, set()).add(lease)
        waited: list[Lease] = []
        for held, items in sources.items():
            for item in self.dispatcher.remove(held, items):
                assert isinstance(item, Lease)
                self.free(item)
                waited.append(item)
        if waited:
            logger.warning(
                "%d messages have waited for a call for max_lease=%g s and are given back, for example %s; handle messages "
                "faster, or look in health() for the reason why handlers are not called",
                len(waited), self.config.max_lease, waited[0].message.msg_id,
            )  # fmt: skip
        self.arrivals.give_back(waited)
        return [lease for lease in leases if lease not in waited]

    def _settings_changed(self) -> None:
        self.dispatcher.settings_changed()
        for source in self.sources.values():
            source.wake.set()

    # -- the steps of a message

    def _begin(self, subscription: Subscription, taken: tuple[Waiting, ...]) -> None:
        """Begin a call. Leave out messages whose leases have expired or expire soon, because another member may have them."""
        latest = machine.monotonic() + self._margin
        for item in taken:
            if item.expires <= latest:  # type: ignore[attr-defined]
                break
        else:
            self.calls.begin(subscription, taken)
            return
        fresh: list[Waiting] = []
        for item in taken:
            assert isinstance(item, Lease)
            if item.expires > latest:
                fresh.append(item)
                continue
            logger.debug("the lease of message %s ended before its call began", item.message.msg_id)
            self.core.expired += 1
            self.core.let_go(item)
            self.free(item)
        if fresh:
            self.calls.begin(subscription, tuple(fresh))
        else:
            asyncio.get_running_loop().call_soon(self.dispatcher.ended, subscription, ())

    def _message_ended(self, item: Waiting, outcome: Outcome) -> None:
        assert isinstance(item, Lease)
        self.settled_at = machine.monotonic()
        if self.closing:
            self._changed.set()
        if outcome is Outcome.DONE:
            self.core.ack(item)
        elif outcome is Outcome.ABANDONED:  # the stop has cancelled its call
            self.arrivals.give_back([item], 0.0, suspend=False)
        self.free(item)

    def _all_done(self, _: Iterable[HeldQueue], items: Sequence[Waiting]) -> None:
        """Do the work of ``_message_ended`` for messages of one subscription that are done."""
        self.settled_at = machine.monotonic()
        if self.closing:
            self._changed.set()
        leases = cast("Sequence[Lease]", items)
        self.core.ack(*leases)
        self.free(*leases)

    def _freed(self, back: GiveBack) -> None:
        assert isinstance(back.item, Lease)
        self.free(back.item)

    def _given_back(self, back: GiveBack, _: Outcome) -> None:
        self.settled_at = machine.monotonic()
        if self.closing:
            self._changed.set()

    async def _is_stored(self, back: GiveBack) -> bool:
        """Return whether a broker still has a popped message at its offset. The store of the broker may have been replaced."""
        lease = back.item
        assert isinstance(lease, Lease)
        queue = MessageQueue(back.topic, lease.handle.broker_name, lease.handle.queue_id)
        try:
            return await self._looks.at(queue, place_of(back.message)) is Seen.SAME
        except BrokerError:  # the broker does not permit reads of the queue
            return True

    def _has_room(self, broker: str) -> None:
        """Let the sources of a broker be popped again."""
        for source in self.sources.values():
            if source.broker == broker:
                source.wake.set()

    def free(self, *leases: Lease) -> None:
        """Give back the credits of one or more messages of one subscription."""
        subscription = leases[0].held.subscription
        assert subscription is not None
        credits = self.credits[subscription]
        credits.give([len(lease.message.body) for lease in leases])
        self.popping.freed(credits)


def _holds_no_queue(what: str) -> ConfigError:
    return ConfigError(
        f"{what} requires mode='pull', because members that pop hold no queues; leave out mode='pop', or this call"
    )


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
