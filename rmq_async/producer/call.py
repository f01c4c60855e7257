"""A send call after its first attempt did not simply succeed: further attempts, late answers, one error at the end.

The happy path never makes one of these. A call owns its attempts: each has an entry in some connection's table, and entries
whose attempt is over stay there until the call ends, because a late "stored" still resolves the call. Deciding is
``policy.next_step``; this module does what it says. Each event of an attempt (answer, error, connect) ends in
``notify``; ``run`` sleeps until then and needs no timer of its own, since the connections watch the deadlines, but to pause and
to wait for a broker that cannot be reached.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ..errors import ClientStateError, ConnectError, QueueNotExistError, SelectorError, without_frames
from ..transport import Connection, Pending
from .attempt_record import AttemptRecord
from .attempts import Attempts
from .failure import failure, no_time, not_reached, reached_late
from .faults import GivenUpError
from .lanes import Lane, Target
from .outgoing import Outgoing
from .policy import FAIL, SHORTEST_REPEATED, WAIT, Brokers, Rules, Step, Verdict, next_step, pause_before
from .recovery import Waiting
from .replies import reply_error
from .watching import tell_failed

if TYPE_CHECKING:
    from .sender import Sender

__all__ = ["ReadReply", "SendCall", "stopped"]

logger = logging.getLogger("rmq_async.producer")

Result = TypeVar("Result")
T = TypeVar("T")
ReadReply = Callable[[SendReply, Outgoing, Target, int], Result | None]


class SendCall(Generic[Result]):
    """``fixed``: the target of a call that may not change queues. ``read``: makes the result of a reply.

    ``patience``: see ``FirstAttempt``; by default it is the call's deadline.
    """

    def __init__(
        self,
        sender: Sender,
        outgoing: Outgoing,
        lane: Lane,
        read: ReadReply[Result],
        *,
        deadline: float,
        started: float,
        retries: int,
        fixed: Target | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        self._sender = sender
        self.faults = sender.faults
        self._outgoing = outgoing
        self._lane = lane
        self._read = read
        self._deadline = deadline
        self._started = started
        self._rules = Rules(retries, sender.config.retry_codes, sender.config.attempt_timeout)
        self._fixed = fixed
        self._patience = patience
        self._first: Target | None = None
        self._attempts: Attempts[AttemptRecord] = Attempts()
        self._changed: asyncio.Future[None] | None = None
        self._result: Result | None = None
        self._unconfirmed: Result | None = None
        """Stored, but not as it was asked for: the result if no other broker does better."""
        self._over = False
        self._aborted = False
        self._stopped: RocketMQError | None = None
        self._no_queue: RocketMQError | None = None
        """Why there is no queue for a further attempt."""
        self._unreached: ConnectError | None = None
        """Why there was no connection when the time was over."""

    @property
    def maybe_sent(self) -> bool:
        """Whether an attempt has begun that no broker has refused, or the call is over."""
        return (
            self._over
            or self._result is not None
            or self._unconfirmed is not None
            or self._attempts.maybe_stored
            or any(record.open and record.opaque for record in self._attempts)
        )

    @property
    def newest_error(self) -> BaseException | None:
        newest = self._attempts.newest
        return None if newest is None else newest.error

    # -- how attempts report

    def adopt(
        self,
        target: Target,
        connection: Connection,
        pending: Pending,
        began: float,
        error: BaseException | None,
        reply: SendReply | None = None,
    ) -> None:
        """Takes over a first attempt made elsewhere: it failed with ``error``, or was answered with a ``reply`` that is one."""
        record = AttemptRecord(self, target, began)
        self._attempts.add(record)
        if reply is not None:
            record.open = False
            self.answered(record, reply)
        elif error is not None:
            record.connection, record.opaque = connection, pending.opaque
            record.failed(error)
            if record.open:
                pending.receiver = record

    def begin_with(self, target: Target) -> None:
        """The queue for the first attempt was chosen already: its turn in the round robin would be lost otherwise."""
        self._first = target

    def adopt_failed(self, target: Target, error: RocketMQError, began: float) -> None:
        """Takes over a first attempt that found no connection."""
        record = AttemptRecord(self, target, began)
        record.failed(error)
        self._attempts.add(record)

    def answered(self, record: AttemptRecord, reply: SendReply) -> None:
        result = self._read(reply, self._outgoing, record.target, self._attempts.made)
        if result is None:
            record.answered_with(reply_error(reply, record.target))
        elif self._sender.retry_not_ok and self._sender.unconfirmed(result):
            self._unconfirmed = result
            record.answered_with(_UnconfirmedError("stored, and not confirmed", broker=record.broker))
        elif self._result is None:
            self._result = result
            if self.faults is not None and record.error is None:
                self.faults.succeeded(record.broker, monotonic() - record.started, monotonic())
        self.notify()

    def notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def abort(self) -> None:
        """The producer is stopped: ends the call now, unless it already has a result."""
        self._aborted = True
        self.notify()

    # -- the loop

    async def run(self) -> Result:
        """Makes attempts until one is stored. Raises the only attempt's own error, or SendError for two and more."""
        self._sender.calls.add(self)
        try:
            while self._result is None:
                if self._aborted or self._sender.closed:
                    if self._unconfirmed is not None:
                        return self._unconfirmed
                    self._stopped = stopped(maybe_stored=self.maybe_sent)
                    raise self._stopped
                self._look_again()
                step = self._next_step()
                if self._unconfirmed is not None and not self._elsewhere(step):
                    return self._unconfirmed
                if step.verdict is Verdict.FAIL:
                    raise self._failure()
                if step.verdict is Verdict.WAIT:
                    await self._wait()
                    continue
                if step.verdict is Verdict.REACH:
                    await self._reach(step.brokers)
                    continue
                await self._pause(step)
                target = await self._choose(step.brokers)
                # After a pause or a selector the time may be over: what is written then is sent for no caller.
                if target is not None and self._result is None and not self._aborted and monotonic() < self._deadline:
                    await self._attempt(target, step.cap)
            return self._result
        except asyncio.CancelledError as error:
            if self._outgoing.watch is not None:
                self._outgoing.watch.give_up(error)
            raise
        finally:
            self._over = True
            self._sender.calls.discard(self)
            if self._outgoing.watch is not None:
                self._outgoing.watch.give_up(self._stopped or GivenUpError("given up, the call is over", maybe_stored=True))
            for record in self._attempts:
                record.given_up()
            self._attempts, self._stopped, self._patience = Attempts(), None, None  # they lead back here

    def _elsewhere(self, step: Step) -> bool:
        """Whether the next attempt goes to a broker that has none of this call yet."""
        return step.verdict is Verdict.TRY and step.brokers.isdisjoint(self._attempts.tried)

    def _look_again(self) -> None:
        """After a failure the route may be out of date: it is asked for anew, and one that is newer is used from here on."""
        newest = self._attempts.newest
        if newest is not None and newest.error is not None:
            self._sender.topics.doubt(self._outgoing.topic, newest.error)
            if isinstance(newest.error, QueueNotExistError) and not self._elsewhere_than(newest.target):
                self._no_queue = newest.error
            lane = self._sender.topics.now(self._outgoing.topic)
            if lane is not None and lane is not self._lane:
                self._lane = lane
                if self._fixed is not None and lane.knows(self._fixed.queue):
                    self._fixed = lane.target(self._fixed.queue)  # the same queue, at its broker's address by now

    def _elsewhere_than(self, gone: Target) -> bool:
        """Whether the call may go to a queue other than the one that its broker does not have."""
        return self._fixed is None and self._sender.topics.without(self._outgoing.topic, gone.queue)

    def _next_step(self) -> Step:
        now = monotonic()
        if now >= self._deadline:  # as ``next_step`` says, which needs no brokers for it
            return FAIL
        patience = None if self._patience is None else self._patience() - now
        step = next_step(self._attempts, self._brokers(), self._rules, self._deadline - now, patience)
        if self._no_queue is not None and step.verdict in (Verdict.TRY, Verdict.REACH):
            return WAIT if any(record.open for record in self._attempts) else FAIL
        return step

    def _brokers(self) -> Brokers:
        names = self._lane.brokers if self._fixed is None else frozenset((self._fixed.broker,))
        selection, pool = self._sender.selection, self._sender.pool
        avoided = selection.uninviting(names) if selection is not None and self._fixed is None else ()
        if not self._attempts.made:
            return Brokers(names, avoided)
        down = {broker for broker in names if pool.is_down(self._address(broker))}
        return Brokers(names, avoided, down, {broker for broker in down if pool.backing_off(self._address(broker))})

    def _address(self, broker: str) -> str:
        return self._lane.addresses[broker] if self._fixed is None else self._fixed.address

    async def _choose(self, brokers: frozenset[str]) -> Target | None:
        """The queue of the next attempt; None where there is none, or none is needed any more."""
        if self._fixed is not None:
            return self._fixed
        if self._first is not None and not self._attempts.made:
            return self._first
        selection = self._sender.selection
        if selection is None:
            return self._lane.next_of(brokers)
        if not self._sender.asks or self._outgoing.message is None:  # a reply's: no selector has a say in its queue
            return selection.next(self._lane, brokers)
        task = asyncio.get_running_loop().create_task(
            self._sender.choose(self._outgoing, None, self._lane, brokers, self._deadline), name="rmq_async selector"
        )
        try:
            return await self._unless_over(task)
        except (RocketMQError, asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
            if not isinstance(error, RocketMQError):
                ended_itself = task.done() and (task.cancelled() or task.exception() is error)
                if not ended_itself or cast(asyncio.Task[Any], asyncio.current_task()).cancelling():
                    raise
                error = SelectorError(f"the queue selector ended its own task by {type(error).__name__}")
            self._no_queue = without_frames(error)
            logger.info("no further attempt of %s: %s", self._outgoing.unique_id, error)
            return None

    async def _unless_over(self, task: asyncio.Task[T]) -> T | None:
        """What the task returns or raises; None, and the task is cancelled, when the call is over before that."""
        task.add_done_callback(lambda _: self.notify())
        try:
            while not task.done():
                if self._result is not None or self._aborted:
                    return None
                await self._wait()
            return task.result()
        finally:
            if not task.cancel() and not task.cancelled():
                task.exception()  # seen, also by a call that was cancelled meanwhile

    async def _wait(self) -> None:
        """Until something happened to an attempt."""
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    async def _pause(self, step: Step) -> None:
        now, newest = monotonic(), self._attempts.newest
        since = 0.0 if newest is None else now - newest.started - newest.elapsed
        pause = pause_before(self._attempts, step, self._deadline - now, random.random(), since)
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
        """Until one of the brokers may be tried again, or the route has changed; at the end of its time the call has failed."""
        recovery, topic = self._sender.recovery, self._sender.topics.wire_topic(self._outgoing.topic)
        began = monotonic()
        waiting = recovery.join(topic, [self._address(broker) for broker in sorted(brokers)], self.notify)
        timer = asyncio.get_running_loop().call_later(self._deadline - began, waiting.end)
        try:
            while not waiting.over and self._result is None and not self._aborted:
                await self._wait()
            now = monotonic()
            if self._result is None and not self._aborted and self._deadline - now < SHORTEST_REPEATED:
                self._unreached = self._too_late(waiting, now - began)
                if self._attempts.made == 1:
                    self._add_unreached(brokers, self._unreached, began)
        finally:
            timer.cancel()
            recovery.leave(waiting)

    def _too_late(self, waiting: Waiting, seconds: float) -> ConnectError:
        """Why a call is over that waited for brokers: there is still no connection, or its turn did not come."""
        for address in waiting.addresses:
            if self._sender.pool.get(address) is not None:
                return reached_late(address, seconds)
        return not_reached(*self._sender.recovery.most_failed(waiting), seconds)

    def _add_unreached(self, brokers: frozenset[str], error: RocketMQError, began: float) -> None:
        """To have waited for the brokers is the second attempt of a call, though it was no more than connecting."""
        target = self._fixed or self._lane.next_of(brokers)
        try:
            tell_failed(self._outgoing, target, error)
        except RocketMQError as refused:
            error = refused
        self.adopt_failed(target, error, began)

    async def _attempt(self, target: Target, cap: float | None) -> None:
        """One attempt from connecting to its answer, its failure or its deadline; a late answer of an earlier one ends it too.

        ``cap`` is None where no other broker is left that was not tried.
        """
        now = monotonic()
        deadline = self._deadline if cap is None else min(self._deadline, now + cap)
        newest, record = self._attempts.newest, AttemptRecord(self, target, now)
        if newest is not None:
            self._log_retry(newest, target)
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
            if cap is not None:  # connecting may have taken it all, and what cannot be answered in time is only sent twice
                deadline = min(self._deadline, max(deadline, monotonic() + cap / 2))
            pending = self._sender.submit(connection, target, self._outgoing, record, deadline, self._deadline, watched)
            record.opaque = pending.opaque
        except RocketMQError as error:
            record.failed(error)
            return
        while record.error is None and record.open and self._result is None and not self._aborted:
            await self._wait()

    async def _connection(self, record: AttemptRecord, deadline: float, *, alone: bool) -> Connection | None:
        pool, address = self._sender.pool, record.target.address
        connection = pool.get(address)
        if connection is not None:
            return connection
        refusal = None if alone else pool.refusal(address)
        if refusal is not None:
            record.failed(refusal)
            return None
        try:
            return await self._connected(address, deadline)
        except RocketMQError as error:
            record.failed(error)
            return None

    async def _connected(self, address: str, deadline: float) -> Connection | None:
        """``ConnectionPool.connect`` until ``deadline``, or until the call is over: then None. It takes no Task."""
        pool, started = self._sender.pool, monotonic()
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

    # -- the end

    def _failure(self) -> RocketMQError:
        elapsed = monotonic() - self._started
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
    """Why a message that was stored is sent once more (``retry_another_broker_when_not_store_ok``)."""

    retriable = True


def stopped(*, maybe_stored: bool) -> ClientStateError:
    """The error of a call under way when its producer stops."""
    if maybe_stored:
        error = ClientStateError("the producer was stopped before the answer came; the message may have been stored")
    else:
        error = ClientStateError("the producer was stopped before the message was stored")
    error.maybe_stored = maybe_stored
    return error
