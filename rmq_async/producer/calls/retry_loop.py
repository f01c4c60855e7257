"""The retry loop of a send call whose first attempt failed or had no connection.

It makes further attempts, accepts late responses, and raises one error at the end. A call that succeeds at once makes no RetryLoop.
After an attempt has timed out, its request stays in the connection's table until the call ends, because a late "stored" still ends
the call with success. ``retry_policy.next_step`` makes the decisions, and this module executes them. Each event of an attempt
(response, error, connection) calls ``notify``, which wakes ``run``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ... import machine
from ...errors import ConnectError, QueueNotExistError, SelectorError
from ...tracebacks import without_frames
from ...transport import Connection, Pending
from ..admission import Call, Result
from ..encoding import is_unclear, notify_failed, reply_error
from ..routing import GivenUpError, Target, TopicQueues
from .attempts import AttemptRecord, Attempts
from .call_errors import failure, no_time
from .dispatch import Dispatch, stopped
from .recovery import Waiting
from .retry_policy import FAIL, SHORTEST_REPEATED, WAIT, Brokers, Step, Verdict, connect_cap, next_step, pause_before

logger = logging.getLogger("rmq_async.producer")

T = TypeVar("T")


class RetryLoop(Generic[Result]):
    """Runs one call to its end, either after its first failure (``adopt``, ``adopt_failed``) or before its first attempt.

    Args:
        fixed: The only target that the call may use. None if it may use any.
        patience: See ``FirstAttempt.patience``. None stands for the deadline of the call.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        call: Call[Result],
        topic_queues: TopicQueues,
        *,
        fixed: Target | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._router = dispatch.router
        self.faults = dispatch.faults
        self._outgoing = call.outgoing
        self._lite_topic = call.lite_topic
        self._topic_queues = topic_queues
        self._read = call.read
        self._deadline = call.deadline
        self._started = call.started
        self._rules = dispatch.rules(call)
        self._fixed = fixed
        self._patience = patience
        self._first: Target | None = None
        self._attempts = Attempts()
        self._changed: asyncio.Future[None] | None = None
        self._result: Result | None = None
        self._unconfirmed: Result | None = None
        """The result of an attempt whose status is not SEND_OK. The call returns it unless another broker confirms the message."""
        self._unclear: tuple[AttemptRecord, SendReply] | None = None
        """The last response for which only the broker's configuration shows whether the message may be stored."""
        self._over = False
        self._aborted = False
        self._stopped: RocketMQError | None = None
        self._no_queue: RocketMQError | None = None  # the error that leaves no queue for a further attempt
        self._unreached: ConnectError | None = None  # the error of a wait for a connection until the deadline

    @property
    def maybe_sent(self) -> bool:
        """Whether the message may have reached a broker that has not rejected it. Also True when the call has ended."""
        return (
            self._over
            or self._result is not None
            or self._unconfirmed is not None
            or self._attempts.maybe_stored
            or any(record.open and record.opaque for record in self._attempts)
        )

    @property
    def newest_error(self) -> BaseException | None:
        """The error of the newest attempt. None if there is no attempt or it has no error."""
        newest = self._attempts.newest
        return None if newest is None else newest.error

    # -- reports of attempts

    def adopt(
        self,
        target: Target,
        connection: Connection,
        pending: Pending,
        began: float,
        error: BaseException | None,
        reply: SendReply | None = None,
    ) -> None:
        """Take over a first attempt that other code has sent, with its ``error`` or its ``reply``.

        If the attempt timed out and its request is still in the table, this loop gets a late response.
        """
        record = self._record(target, began)
        self._attempts.add(record)
        record.connection = connection
        if reply is not None:
            record.open = False
            self.answered(record, reply)
        elif error is not None:
            record.opaque = pending.opaque
            record.failed(error)
            if record.open:
                pending.receiver = record

    def begin_with(self, target: Target) -> None:
        """Use ``target``, which was already chosen, for the first attempt, so that its turn in the round robin is not wasted."""
        self._first = target

    def adopt_failed(self, target: Target, error: RocketMQError, began: float) -> None:
        """Record an attempt that began at ``began`` (monotonic) and ended with ``error`` before it had a connection."""
        record = self._record(target, began)
        record.failed(error)
        self._attempts.add(record)

    def _record(self, target: Target, began: float) -> AttemptRecord:
        return AttemptRecord(target, began, self.faults, self.answered, self.notify)

    def answered(self, record: AttemptRecord, reply: SendReply) -> None:
        """Turn a response, even a late one, into the result or the error of the attempt, and wake ``run``."""
        result = self._read(reply, self._outgoing, record.target, self._attempts.made)
        if result is None:
            record.answered_with(reply_error(reply, record.target, record.connection))
            if is_unclear(reply, record.connection):
                self._unclear = record, reply
        elif self._dispatch.is_unconfirmed(result):
            self._unconfirmed = result
            text = "the message is stored, but its flush or replication was not confirmed"
            record.answered_with(_UnconfirmedError(text, broker=record.broker))
        elif self._result is None:
            self._result = result
            if self.faults is not None and record.error is None:
                self.faults.succeeded(record.broker, machine.monotonic() - record.started, machine.monotonic())
        self.notify()

    def notify(self) -> None:
        """Wake ``run`` if it is waiting."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def abort(self) -> None:
        """End the call because the producer stops. A call that has a result returns it."""
        self._aborted = True
        self.notify()

    # -- the loop

    async def run(self) -> Result:
        """Make attempts until the message is stored, and return the result.

        Raises:
            RequestTimeoutError: If no attempt could begin in time.
            SendError: If several attempts failed.
            ClientStateError: If the producer stops.
            RocketMQError: If only one attempt was made, its error.
        """
        self._dispatch.calls.add(self.abort)
        try:
            while self._result is None:
                if self._unclear is not None:
                    await self._clear_up(*self._unclear)
                step = self._next_step()
                if self._unconfirmed is not None and not self._elsewhere(step):
                    return self._unconfirmed
                await self._follow(step)
            return self._result
        except asyncio.CancelledError as error:
            if self._outgoing.watch is not None:
                self._outgoing.watch.give_up(error)
            raise
        finally:
            self._over = True
            self._dispatch.calls.discard(self.abort)
            if self._outgoing.watch is not None:
                self._outgoing.watch.give_up(self._stopped or GivenUpError("abandoned, the call is over", maybe_stored=True))
            for record in self._attempts:
                record.given_up()
            self._attempts, self._stopped, self._patience = Attempts(), None, None  # breaks cycles: all refer to this loop

    async def _follow(self, step: Step) -> None:
        """Execute one decision of the policy. If the decision is FAIL, raise the error of the call."""
        if step.verdict is Verdict.FAIL:
            raise self._failure()
        if step.verdict is Verdict.WAIT:
            await self._wait()
        elif step.verdict is Verdict.REACH:
            await self._reach(step.brokers)
        else:
            await self._pause(step)
            target = await self._choose(step.brokers)
            # A pause or a selector may outlast the deadline. A message that is written later would be stored after the call failed.
            if target is not None and self._result is None and not self._aborted and machine.monotonic() < self._deadline:
                await self._attempt(target, step.cap)

    async def _clear_up(self, record: AttemptRecord, reply: SendReply) -> None:
        """Ask the broker that sent a response how it replicates. Then record the error of the response again, with the right
        ``maybe_stored``.
        """
        self._unclear = None
        now, connection = machine.monotonic(), record.connection
        assert connection is not None
        learning = self._dispatch.replication.learn(connection, now + connect_cap(self._deadline - now))
        await self._unless_over(asyncio.get_running_loop().create_task(learning, name="rmq_async replication"))
        record.answered_with(reply_error(reply, record.target, connection))

    def _elsewhere(self, step: Step) -> bool:
        """Return whether the next attempt goes to a broker that this call has not tried."""
        return step.verdict is Verdict.TRY and step.brokers.isdisjoint(self._attempts.tried)

    def _look_again(self) -> None:
        """After an error, request a new route if queues may have moved, and use the newest known queues of the topic."""
        newest = self._attempts.newest
        if newest is not None and newest.error is not None:
            self._router.topics.doubt(self._outgoing.topic, newest.error)
            if isinstance(newest.error, QueueNotExistError) and not self._elsewhere_than(newest.target):
                self._no_queue = newest.error
            topic_queues = self._router.topics.now(self._outgoing.topic)
            if topic_queues is not None and self._lite_topic is not None:
                topic_queues = topic_queues.shard(self._lite_topic)
            if topic_queues is not None and topic_queues is not self._topic_queues:
                self._topic_queues = topic_queues
                if self._fixed is not None and topic_queues.knows(self._fixed.queue):
                    self._fixed = topic_queues.target(self._fixed.queue)  # the same queue at its broker's current address

    def _elsewhere_than(self, gone: Target) -> bool:
        """Drop a queue that its broker does not have, unless it is fixed. Return whether the call may use another queue."""
        return (
            self._fixed is None and self._lite_topic is None and self._router.topics.without(self._outgoing.topic, gone.queue)
        )

    def _next_step(self) -> Step:
        if self._aborted or self._dispatch.closed:
            if self._unconfirmed is None:
                self._stopped = stopped(maybe_stored=self.maybe_sent)
            return FAIL
        self._look_again()
        now = machine.monotonic()
        if now >= self._deadline:  # the same decision as by ``next_step``, without the cost of listing the brokers
            return FAIL
        patience = None if self._patience is None else self._patience() - now
        step = next_step(self._attempts, self._brokers(), self._rules, self._deadline - now, patience)
        if self._no_queue is not None and step.verdict in (Verdict.TRY, Verdict.REACH):
            return WAIT if any(record.open for record in self._attempts) else FAIL
        return step

    def _brokers(self) -> Brokers:
        names = self._topic_queues.brokers if self._fixed is None else frozenset((self._fixed.broker,))
        selection, pool = self._router.selection, self._dispatch.pool
        avoided = selection.uninviting(names) if selection is not None and self._fixed is None else ()
        if not self._attempts.made:
            return Brokers(names, avoided)
        down = {broker for broker in names if pool.is_down(self._address(broker))}
        return Brokers(names, avoided, down, {broker for broker in down if pool.backing_off(self._address(broker))})

    def _address(self, broker: str) -> str:
        return self._topic_queues.addresses[broker] if self._fixed is None else self._fixed.address

    async def _choose(self, brokers: frozenset[str]) -> Target | None:
        """Return the next target. Return None if the call has ended, or if the user's selector failed; no further attempt is made
        then.
        """
        if self._fixed is not None:
            return self._fixed
        if self._first is not None and not self._attempts.made:
            return self._first
        selection = self._router.selection
        if selection is None:
            return self._topic_queues.next_of(brokers)
        if not self._router.asks or self._outgoing.message is None:  # replies and traces use no selector
            return selection.next(self._topic_queues, brokers)
        task = asyncio.get_running_loop().create_task(
            self._router.choose(self._topic_queues, brokers, self._outgoing.message, self._deadline), name="rmq_async selector"
        )
        try:
            return await self._unless_over(task)
        except (RocketMQError, asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
            if not isinstance(error, RocketMQError):
                # The selector may have cancelled or ended its own task; a cancellation of this call must pass through.
                ended_itself = task.done() and (task.cancelled() or task.exception() is error)
                if not ended_itself or cast(asyncio.Task[Any], asyncio.current_task()).cancelling():
                    raise
                error = SelectorError(
                    f"the queue selector ended its own task with {type(error).__name__}; return a queue, or raise another error"
                )
            self._no_queue = without_frames(error)
            logger.info("message %s gets no further attempt: %s", self._outgoing.unique_id, error)
            return None

    async def _unless_over(self, task: asyncio.Task[T]) -> T | None:
        """Return the result of the task or raise its error. If the call ends first, cancel the task and return None."""
        task.add_done_callback(lambda _: self.notify())
        try:
            while not task.done():
                if self._result is not None or self._aborted:
                    return None
                await self._wait()
            return task.result()
        finally:
            if not task.cancel() and not task.cancelled():
                task.exception()  # marks it as retrieved, so that asyncio logs no error if this call was cancelled

    async def _wait(self) -> None:
        """Wait for the next ``notify``."""
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    async def _pause(self, step: Step) -> None:
        """Pause before the next attempt. End the pause early if the call gets a result or is aborted."""
        now, newest = machine.monotonic(), self._attempts.newest
        since = 0.0 if newest is None else now - newest.started - newest.elapsed
        pause = pause_before(self._attempts, step, self._deadline - now, machine.random.random(), since)
        if pause <= 0:
            return
        over = False

        def go_on() -> None:
            nonlocal over
            over = True
            self.notify()

        timer = asyncio.get_running_loop().call_later(pause, go_on)
        try:
            while not over and self._result is None and not self._aborted:
                await self._wait()
        finally:
            timer.cancel()

    async def _reach(self, brokers: frozenset[str]) -> None:
        """Wait until one of the unreachable brokers may be tried again, the route has changed or the call ends.

        If the wait lasts nearly until the deadline, the error of the call contains the error of this wait.
        """
        recovery, topic = self._dispatch.recovery, self._router.topics.wire_topic(self._outgoing.topic)
        began = machine.monotonic()
        waiting = recovery.join(topic, [self._address(broker) for broker in sorted(brokers)], self.notify)
        timer = asyncio.get_running_loop().call_later(self._deadline - began, waiting.end)
        try:
            while not waiting.over and self._result is None and not self._aborted:
                await self._wait()
            now = machine.monotonic()
            if self._result is None and not self._aborted and self._deadline - now < SHORTEST_REPEATED:
                self._unreached = recovery.too_late(waiting, now - began)
                if self._attempts.made == 1 and not self._still_connecting(waiting, now):
                    self._add_unreached(brokers, self._unreached, began)
        finally:
            timer.cancel()
            recovery.leave(waiting)

    def _still_connecting(self, waiting: Waiting, now: float) -> bool:
        """Return whether the connection attempt of the call's only attempt is still in progress. If so, give that attempt an error
        that covers the whole wait.
        """
        record = self._attempts.newest
        if record is None or self._dispatch.recovery.most_failed(waiting)[1]:
            return False
        return record.never_connected(self._dispatch.pool.too_late(record.target.address, now - self._started))

    def _add_unreached(self, brokers: frozenset[str], error: RocketMQError, began: float) -> None:
        """Record the wait for the brokers as the second attempt of the call, so that the call raises a SendError with both
        reasons.
        """
        target = self._fixed or self._topic_queues.next_of(brokers)
        try:
            notify_failed(self._outgoing, target, error)
        except RocketMQError as refused:
            error = refused
        self.adopt_failed(target, error, began)

    async def _attempt(self, target: Target, cap: float | None) -> None:
        """Make one attempt: connect, send, and wait for the response, a failure or the deadline of the attempt.

        The wait also ends when the call ends.

        Args:
            cap: Maximum seconds for the attempt, plus half as many if connecting used them up. None stands for all remaining time.
        """
        now = machine.monotonic()
        deadline = self._deadline if cap is None else min(self._deadline, now + cap)
        record = self._record(target, now)
        if self._attempts.newest is not None:
            self._log_retry(self._attempts.newest, target)
        self._attempts.add(record)
        watch, watched = self._outgoing.watch, None
        try:
            if watch is not None:
                watched = watch.begin(self._outgoing, target)
            connection = await self._connection(record, deadline, alone=cap is None)
            if connection is None:
                record.open = False
                if watched is not None and record.error is not None:
                    watched.failed(record.error)
                return
            record.connection = connection
            if cap is not None:  # the connect may have used it up, and a send without time for a response causes duplicates
                deadline = min(self._deadline, max(deadline, machine.monotonic() + cap / 2))
            pending = self._dispatch.submit(connection, target, self._outgoing, record, deadline, self._deadline, watched)
            record.opaque = pending.opaque
        except RocketMQError as error:
            record.failed(error)
            return
        while record.error is None and record.open and self._result is None and not self._aborted:
            await self._wait()

    async def _connection(self, record: AttemptRecord, deadline: float, *, alone: bool) -> Connection | None:
        """Return a connection to the broker of ``record``. Return None if the attempt or the call has ended meanwhile.

        Args:
            alone: Whether to wait until a new connection attempt is allowed, if an earlier one failed.
        """
        pool, address = self._dispatch.pool, record.target.address
        connection = pool.get(address)
        if connection is not None:
            return await self._serving(connection, record, deadline)
        refusal = None if alone else pool.refusal(address)
        if refusal is not None:
            record.failed(refusal)
            return None
        if alone:
            deadline = self._dispatch.connect_deadline(record.target, deadline)
        try:
            connection = await self._connected(address, deadline)
        except RocketMQError as error:
            record.failed(error)
            return None
        return None if connection is None else await self._serving(connection, record, deadline)

    async def _serving(self, connection: Connection, record: AttemptRecord, deadline: float) -> Connection | None:
        """Ask the broker whether it serves the lite topic, if the call has one. Return None if the attempt or the call ends."""
        if self._lite_topic is None:
            return connection
        topic = self._router.topics.wire_topic(self._outgoing.topic)
        checking = self._dispatch.lite.check(connection, topic, deadline)
        try:
            await self._unless_over(asyncio.get_running_loop().create_task(checking, name="rmq_async lite topics"))
        except RocketMQError as error:
            record.failed(error)
            return None
        return connection if self._result is None and not self._aborted else None

    async def _connected(self, address: str, deadline: float) -> Connection | None:
        """Connect like ``ConnectionPool.connect``, and wait at most until ``deadline``. Return None if the call ends first."""
        pool, started = self._dispatch.pool, machine.monotonic()
        while (connection := pool.get(address)) is None:
            flight = pool.start_connecting(address)
            over = flight.waiting.join(deadline)
            over.add_done_callback(lambda _: self.notify())
            try:
                while not over.done():
                    if self._result is not None or self._aborted:
                        return None
                    await self._wait()
            finally:
                flight.waiting.leave(over)
            if not over.result():
                raise pool.too_late(address, max(deadline - started, 0.0))
            flight.outcome()
        return connection

    # -- end of the call

    def _failure(self) -> RocketMQError:
        if self._stopped is not None:
            return self._stopped
        elapsed = machine.monotonic() - self._started
        if self._attempts.made:
            error = failure(self._outgoing.topic, self._attempts, elapsed, self._unreached)
        else:
            error = no_time(self._outgoing.topic, elapsed, None if self._first is None else self._first.address)
        newest = self._attempts.newest
        if self._no_queue is not None and (newest is None or self._no_queue is not newest.error):
            error.add_note(f"no further attempt: {self._no_queue}")
        return error

    def _log_retry(self, last: AttemptRecord, target: Target) -> None:
        logger.info(
            "retrying %s on %s after %.3f s on %s: %s",
            self._outgoing.unique_id, target.broker, last.elapsed, last.target.broker, last.error,
        )  # fmt: skip


class _UnconfirmedError(RocketMQError):
    """The error of an attempt with a status other than SEND_OK, if ``retry_another_broker_when_not_store_ok`` is set."""

    retriable = True
