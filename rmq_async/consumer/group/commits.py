"""Commits. The watermark of each held queue, its lowest offset that is not settled, is sent to the broker, which keeps it as the
group's offset.
"""

# Every ``commit_interval``, a commit round sends the watermarks that have moved. Brokers respond to each commit, and each queue has
# at most one commit in flight. Each broker has its own rounds, because a round takes long if the broker does not respond. Once per
# ``rebalance_interval``, a round sends the watermarks of all held queues: brokers accept offsets from any client, and otherwise a
# stale offset of a former owner would stay. A commit without a response may still be in a blocked connection and reach its broker
# after a later commit, so each round sends the watermark of that queue again for a minute.
#
# The confirmation of a broker holds only as long as the broker's process. The replicas of 5.5.0 do not copy offsets in time, so a
# new master has no offsets, and a broker that has crashed lacks the offsets of its last seconds. Both are reached over a new
# connection. So if an offset was confirmed over another connection than the current one, the next round commits it again. The last
# commit of a queue that was read is always sent.
#
# Behind a new connection, there may also be a store that has lost messages which this member has handled, and has other messages
# at their offsets. The watermark is committed only after a check has found the handled messages, or this member has moved back
# (``make_sure``). Otherwise the next member would begin above the messages that were stored since the loss. A member that holds a
# queue only for a moment, while a broker lists the members one by one, knows nothing of a loss. For a queue that it has not read,
# it therefore sends a last commit only to a master that has no offset of the group.

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from math import inf
from typing import Any, Final

from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.message import MessageQueue

from ... import machine
from ..._asyncio import for_each
from ..._backoff import Backoff
from ..._text import printable
from ...client import ClientInstance, commit_offset, committed_offset
from ...errors import ConnectionLostError, RequestTimeoutError, RocketMQError, TopicNotExistError
from ...tracebacks import own_copy
from ...transport import Connection
from ..held_queue import HeldQueue, QueueState

logger = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""Maximum number of commits in flight to one broker."""
GAP: Final = 5.0
"""Seconds for which the event loop may be blocked. After a longer block, the locks are confirmed before the next commit."""


DOUBT: Final = 60.0
"""Seconds for which a commit without a response may still reach its broker."""
LOOK_TIME: Final = 3.0
"""Maximum seconds for which a round waits for the check of a queue before its commit. The next round waits again."""
ROUTE_TIME: Final = 1.0
"""Maximum seconds to find out whether a queue's broker has a new master, before the last commit of the queue."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0


class Doubts:
    """The queues with a commit that had no response in the last DOUBT seconds.

    An entry is kept when the queue leaves this member, and after the consumer stops: this member may read the queue again while the
    commit is still in flight.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[MessageQueue, float] = {}

    def __contains__(self, queue: MessageQueue) -> bool:
        since = self._since.get(queue)
        return since is not None and machine.monotonic() - since < DOUBT

    def add(self, queue: MessageQueue) -> None:
        now = machine.monotonic()
        self._since = {each: since for each, since in self._since.items() if now - since < DOUBT}
        self._since[queue] = now


class Commits:
    """Commits the offsets of this member's queues.

    Args:
        group: Name of the group on the wire.
        held: Returns the queues to commit.
        owns: Returns whether this member may still write the offset of a queue.
        doubts: The queues with commits that had no response.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        held: Callable[[], Iterable[HeldQueue]],
        owns: Callable[[MessageQueue], bool],
        doubts: Doubts,
    ) -> None:
        self._instance = instance
        self._group = group
        self._held = held
        self._owns = owns
        self.count = 0
        """Number of offsets that brokers have confirmed."""
        self._errors: dict[str, str] = {}
        """By broker name: an error of the last or current round. Brokers without an error have no entry."""
        self._doubts = doubts
        self.spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]]
        self._looks: dict[HeldQueue, asyncio.Future[bool | RocketMQError]] = {}
        """Running checks of queues before their commits. The result of a future is whether the check has ended, or an error."""
        self.is_sure: Callable[[HeldQueue], bool] = _sure
        """Returns whether a check over the current connection to the broker has found the messages that this member has read."""
        self.make_sure: Callable[[HeldQueue, float], Awaitable[None]] = _made_sure
        """Checks a queue until ``is_sure`` is true for it, and moves the queue if messages are lost. The second argument is the
        maximum number of seconds for the checks of an end below the queue's offset. Raises the errors of the requests."""

    @property
    def error(self) -> str | None:
        """The error of one of the brokers in its last or current round; None if no broker has one. May be read from any thread."""
        return next(iter([*self._errors.values()]), None)

    async def run(self, interval: float, full_interval: float, after_gap: Callable[[], Awaitable[None]]) -> None:
        """Run commit rounds until this call is cancelled.

        Args:
            interval: Seconds between two rounds.
            full_interval: Seconds between two rounds that commit the offsets of all queues.
            after_gap: Awaited after the loop was blocked for longer than GAP.
        """
        first_full, full_at = machine.monotonic() + full_interval, dict[str, float]()
        under_way: set[str] = set()
        failed: list[Exception] = []

        async def commit(broker: str, queues: Iterable[HeldQueue], *, full: bool) -> None:
            try:
                await self._commit_at(broker, queues, full=full)
            except Exception as error:  # noqa: BLE001 - raised below, where the supervisor sees it
                failed.append(error)
            finally:
                under_way.discard(broker)

        while True:
            before = machine.monotonic()
            await asyncio.sleep(interval)
            if failed:
                raise failed.pop()
            now = machine.monotonic()
            late = now - before - interval
            if late > GAP:
                logger.warning(
                    "the event loop did not run for %.1f s, because a function blocked it or the process was suspended: the locks "
                    "of the queues are confirmed before the next commit; run blocking code in a thread",
                    late,
                )
                await after_gap()
            for broker, queues in self._by_broker().items():
                if broker in under_way:
                    continue
                full = now >= full_at.get(broker, first_full)
                if full:
                    full_at[broker] = now + full_interval
                under_way.add(broker)
                self.spawn(f"commits to {broker}", commit(broker, queues, full=full))

    async def round(
        self, brokers: Iterable[str] | None = None, *, wait: bool = False, failures: list[RocketMQError] | None = None
    ) -> None:
        """Commit the watermarks of owned queues that are not confirmed: the watermark has moved, an older commit may still arrive,
        or another process may have taken the place of the broker since the confirmation.

        Args:
            brokers: The brokers of the queues; None for all brokers.
            wait: The argument ``wait`` of ``commit``.
            failures: A list that receives the errors.
        """
        by_broker = self._by_broker()
        asked = [broker for broker in (by_broker if brokers is None else brokers) if broker in by_broker]

        async def commit(broker: str) -> None:
            await self._commit_at(broker, by_broker[broker], wait=wait, failures=failures)

        await for_each(asked, commit, at_once=len(asked))

    async def _commit_at(
        self,
        broker: str,
        queues: Iterable[HeldQueue],
        *,
        full: bool = False,
        wait: bool = False,
        failures: list[RocketMQError] | None = None,
    ) -> None:
        """Run a commit round for one broker.

        Args:
            full: Whether to commit the offsets of all owned queues in ``queues``, including confirmed offsets.
        """
        due = [each for each in queues if self._may(each) and (full or not self._is_confirmed(each))]
        was_failing, failed = broker in self._errors, 0

        async def commit(held: HeldQueue) -> None:
            nonlocal failed
            if not self._may(held):  # given up since the round began
                return
            try:
                await self.commit(held, wait=wait)
            except RocketMQError as error:
                failed += 1
                self._errors[broker] = printable(error, 500)
                if failures is not None:
                    failures.append(error)

        await for_each(due, commit, at_once=AT_ONCE)
        if not failed:
            self._errors.pop(broker, None)
        elif not was_failing:
            logger.warning(
                "offsets of %d queues were not committed; the next round commits them again: %s",
                failed,
                self._errors.get(broker),
            )

    def _by_broker(self) -> Mapping[str, list[HeldQueue]]:
        """Return the held queues by broker, and remove the errors of brokers that have no held queue."""
        found = defaultdict[str, list[HeldQueue]](list)
        for held in self._held():
            found[self._instance.routes.broker_of(held.queue)].append(held)
        for broker in [each for each in self._errors if each not in found]:
            del self._errors[broker]
        return found

    async def now(self) -> None:
        """Commit the watermarks that are not confirmed. Raise the first error after all requests have ended."""
        failures: list[RocketMQError] = []
        await self.round(wait=True, failures=failures)
        if failures:
            raise failures[0]

    async def commit(self, held: HeldQueue, *, wait: bool = False) -> None:
        """Commit the watermark of one queue; return when the broker has responded. The error of the request propagates.

        Args:
            wait: Whether to wait for a commit in flight, and then to commit the watermark if that is still necessary. If False,
                return at once while a commit is in flight.
        """
        if held.committing.locked() and not wait:
            return
        if not self.is_sure(held) and not await self._look(held, None if wait else LOOK_TIME):
            return
        async with held.committing:
            if not (wait and self._is_confirmed(held)):
                await self._send(held)

    async def _look(self, held: HeldQueue, limit: float | None) -> bool:
        """Check a queue as ``make_sure`` does; return whether the check has ended.

        Return False after ``limit`` seconds (None for no limit). The check then continues, and the next call waits for it.
        """
        look = self._looks.get(held)
        if look is None:
            look = self._looks[held] = asyncio.get_running_loop().create_future()
            task = self.spawn(f"look at {held.shown}", self._make_sure(held, look))
            task.add_done_callback(lambda _: self._end_look(held))
        await asyncio.wait([look], timeout=limit)
        found = look.result() if look.done() else False
        if isinstance(found, RocketMQError):
            raise own_copy(found)
        return found

    async def _make_sure(self, held: HeldQueue, look: asyncio.Future[bool | RocketMQError]) -> None:
        try:
            await self.make_sure(held, inf)
        except RocketMQError as error:
            look.set_result(error)
        else:
            look.set_result(True)

    def _end_look(self, held: HeldQueue) -> None:
        look = self._looks.pop(held)
        if not look.done():  # its task was cancelled
            look.set_result(False)

    async def _send(self, held: HeldQueue) -> bool:
        """Commit the watermark. Return False, without a commit, if the queue has left this member meanwhile."""
        if not self._may(held):
            return False
        offset, connection = held.progress.watermark, self.connection(held)
        try:
            await commit_offset(self._instance, self._group, held.queue, offset)
        except asyncio.CancelledError:
            self._doubts.add(held.queue)
            raise
        except (ConnectionLostError, RequestTimeoutError) as error:
            if error.maybe_stored:
                self._doubts.add(held.queue)
            raise
        held.confirm(offset, connection if connection is self.connection(held) else None)
        self.count += 1
        return True

    def _may(self, held: HeldQueue) -> bool:
        return held.is_owned and self._owns(held.queue)

    def _is_confirmed(self, held: HeldQueue) -> bool:
        """Return whether the watermark is committed at the current master, as far as this member can know."""
        if held.committed != held.progress.watermark or held.queue in self._doubts:
            return False
        return not self._instance.is_replaced(self._instance.routes.broker_of(held.queue), held.confirmed_by)

    async def _is_left_alone(self, held: HeldQueue) -> bool:
        """Return whether to send no last commit: nothing was read from the queue, the current master has an offset of the group,
        and no late commit of this member can replace that offset.
        """
        if held.queue in self._doubts or not held.progress.next == held.begun == held.committed:
            return False
        connection = self.connection(held)
        if connection is not None and held.confirmed_by is connection:
            return True
        return await committed_offset(self._instance, self._group, held.queue, any_replica=False) is not None

    def connection(self, held: HeldQueue) -> Connection | None:
        """Return the open connection to the master of a queue's broker."""
        return self._instance.open_connection(self._instance.routes.broker_of(held.queue), any_replica=False)

    async def commit_last(self, held: HeldQueue, deadline: Callable[[], float]) -> bool:
        """Commit the watermark of a queue that is being given up or moved, even if it is already confirmed. If nothing was read
        from the queue, commit only to a master that has no offset of the group.

        The commit is repeated after errors, because the broker may have no master for a while.

        Args:
            deadline: Returns the monotonic time at which to give up. The time may change while this method waits.

        Returns:
            Whether a broker has confirmed the watermark by ``deadline()``, or no commit was necessary.
        """
        routes = self._instance.routes
        await routes.renew(held.queue.topic, min(deadline(), machine.monotonic() + ROUTE_TIME))
        pauses, failed, sent = Backoff(FIRST_PAUSE, LONGEST_PAUSE), False, False
        while not sent or held.committed != held.progress.watermark:
            left = deadline() - machine.monotonic()
            if left <= 0 or not self._may(held):
                return False
            try:
                async with asyncio.timeout(left):
                    if await self._is_left_alone(held):
                        return True
                    if not self.is_sure(held):
                        await self.make_sure(held, left / 2)
                    async with held.committing:
                        sent = await self._send(held)
            except RocketMQError as error:  # before TimeoutError, because a RequestTimeoutError is both
                if isinstance(error, TopicNotExistError) and _is_unread_retry(held):
                    return True  # the master is new and has not copied the topic yet
                if not failed:
                    text = printable(error, 500)
                    logger.warning("the last offset of %s was not committed; trying again: %s", held.shown, text)
                failed = True
                await asyncio.sleep(min(pauses.next(), max(deadline() - machine.monotonic(), 0.0)))
            except TimeoutError:
                continue  # a stop that has begun meanwhile may have moved the deadline
        return True

    def report_last(self, held: HeldQueue) -> None:
        """Log that ``commit_last`` failed. The level is ERROR, or WARNING if another member may have the queue."""
        offset, shown = held.progress.watermark, held.shown
        if held.state is QueueState.LOST:
            logger.warning(
                "the last offset %d of %s was not committed, because the lock was lost before; messages below it may be "
                "repeated, so handlers must be idempotent", offset, shown,
            )  # fmt: skip
            return
        logger.error(
            "the last offset %d of %s was not committed in time; the next member begins at an older offset or, if a new master "
            "has no offset of the group, at start_from. When the broker has a master, compare the output of rmq group lag, and "
            "move the group with rmq group reset; raise stop_timeout if an election takes longer", offset, shown,
        )  # fmt: skip


def _is_unread_retry(held: HeldQueue) -> bool:
    """Return whether a queue belongs to a retry topic and nothing was read from it. If the group has no offset for such a queue, a
    member also begins with its first message.
    """
    return not held.progress.watermark and held.queue.topic.startswith(RETRY_TOPIC_PREFIX)


def _sure(held: HeldQueue) -> bool:
    return True


async def _made_sure(held: HeldQueue, patience: float) -> None:
    """Check nothing. It is the default of ``make_sure``."""
