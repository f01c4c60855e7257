"""Commits: the watermark of each held queue goes to its broker, which keeps it as the group's offset."""

# Each ``commit_interval`` the queues whose watermark has moved are committed; brokers answer each commit, and each queue has
# one in flight at most. Each broker has rounds of its own, as those of a silent one take long. All held queues are committed once
# per ``rebalance_interval``: brokers accept offsets from any client, and otherwise a stale offset of a former owner would stay. A
# commit without a response may reach its broker after a later one, over a connection that was blocked: for a minute its queue is
# committed in each round.
#
# A broker's confirmation is worth no more than its process. The replicas of 5.5.0 do not copy offsets in time, so a new master
# knows none, and a broker that has crashed lacks those of its last seconds. Both are reached over another connection than the
# one that has confirmed an offset: after that, the next round commits the queue again, and the last commit of a queue that was
# read is always sent.
#
# Behind another connection may also be a store that has lost messages which this member has handled, and has others at their
# offsets. Its watermark is committed only when a look has shown that it has these, or this member has gone back (``make_sure``):
# else the next member would begin above what is stored since. A member that is given a queue for a moment, while a broker lists the
# members one by one, knows nothing of a loss: of a queue that it has not read it sends a last commit only to a master that has no
# offset of the group.

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
"""Seconds without a turn of the loop after which the locks are confirmed before the next commit."""


DOUBT: Final = 60.0
"""Seconds for which a commit without an answer may still reach its broker."""
LOOK_TIME: Final = 3.0
"""Maximum seconds for which a round waits for the look at a queue before its commit; the next round waits again."""
ROUTE_TIME: Final = 1.0
"""Maximum seconds for the look whether a queue's broker has another master, before the queue's last commit."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0


class Doubts:
    """The queues with a commit that had no answer, for DOUBT seconds.

    They outlast the queue's stay with this member and the stop of the consumer: this member may read the queue again, while the
    commit is still under way.
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
        """Broker name -> an error of its last round, or of the one under way; only of brokers with one."""
        self._doubts = doubts
        self.spawn: Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]]
        self._looks: dict[HeldQueue, asyncio.Future[bool | RocketMQError]] = {}
        """Looks that are under way before commits, with what they will have found: whether they have ended, or an error."""
        self.is_sure: Callable[[HeldQueue], bool] = _sure
        """Returns whether a queue has what this member has read, by the present connection to its broker, as far as it is known."""
        self.make_sure: Callable[[HeldQueue, float], Awaitable[None]] = _made_sure
        """Looks at a queue until it is sure, and moves it if messages are lost; the second argument: seconds in which an end below
        its offset is looked up, at most. Raises the errors of the requests."""

    @property
    def error(self) -> str | None:
        """An error of the last round at some broker; None where no broker's last round had one. From any thread."""
        return next(iter([*self._errors.values()]), None)

    async def run(self, interval: float, full_interval: float, after_gap: Callable[[], Awaitable[None]]) -> None:
        """Commit until it is cancelled.

        Args:
            interval: Seconds between two rounds.
            full_interval: Seconds between two rounds that commit all queues.
            after_gap: Awaited where the loop was blocked for longer than GAP.
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
                    "of the queues are confirmed before the next commit; run what blocks in a thread",
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
        """Commit the owned queues of ``brokers``, None for all, whose watermark is not confirmed: it has moved, an older commit
        may still arrive, or the broker may be another process than at the confirmation.

        Args:
            wait: As for ``commit``.
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
        """Make a round at one broker.

        Args:
            full: True commits all owned queues.
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
        """Return the held queues by broker, and forget errors of other brokers."""
        found = defaultdict[str, list[HeldQueue]](list)
        for held in self._held():
            found[self._instance.routes.broker_of(held.queue)].append(held)
        for broker in [each for each in self._errors if each not in found]:
            del self._errors[broker]
        return found

    async def now(self) -> None:
        """Commit the queues whose watermark is not confirmed. Raise the first error, after all requests."""
        failures: list[RocketMQError] = []
        await self.round(wait=True, failures=failures)
        if failures:
            raise failures[0]

    async def commit(self, held: HeldQueue, *, wait: bool = False) -> None:
        """Commit one queue; return when its broker has answered.

        Raise the error of the request.

        Args:
            wait: True waits for a commit in flight, and commits the watermark unless that is done; False makes no commit while
                one is in flight.
        """
        if held.committing.locked() and not wait:
            return
        if not self.is_sure(held) and not await self._look(held, None if wait else LOOK_TIME):
            return
        async with held.committing:
            if not (wait and self._is_confirmed(held)):
                await self._send(held)

    async def _look(self, held: HeldQueue, limit: float | None) -> bool:
        """Look at a queue; return whether the look has ended.

        After ``limit`` seconds (None: no limit) return False: the look continues, and the next call waits for it.
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
        """Commit the watermark; return False without a commit if the queue has left this member during the wait."""
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
        """Return whether the watermark is committed at the present master, as far as this member can know."""
        if held.committed != held.progress.watermark or held.queue in self._doubts:
            return False
        return not self._instance.is_replaced(self._instance.routes.broker_of(held.queue), held.confirmed_by)

    async def _is_left_alone(self, held: HeldQueue) -> bool:
        """Return whether nothing was read of a queue whose present master has an offset of the group, that no late commit of this
        member replaces.
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
        """Commit a queue that is given up or moved, also if its watermark is confirmed. If nothing was read of it, only a master
        without an offset of the group gets one.

        Repeat the commit after an error: the broker may have no master at the moment.

        Returns:
            Whether a broker has confirmed the watermark by ``deadline()``, a monotonic time, which may come nearer meanwhile.
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
            except RocketMQError as error:  # a RequestTimeoutError, which is a TimeoutError too, among them
                if isinstance(error, TopicNotExistError) and _is_unread_retry(held):
                    return True  # a new master that has not copied the topic yet
                if not failed:
                    text = printable(error, 500)
                    logger.warning("the last offset of %s was not committed; trying again: %s", held.shown, text)
                failed = True
                await asyncio.sleep(min(pauses.next(), max(deadline() - machine.monotonic(), 0.0)))
            except TimeoutError:
                continue  # a stop may have begun meanwhile, which leaves more time
        return True

    def report_last(self, held: HeldQueue) -> None:
        """Log that ``commit_last`` failed: as an error, unless another member may have the queue."""
        offset, shown = held.progress.watermark, held.shown
        if held.state is QueueState.LOST:
            logger.warning(
                "the last offset %d of %s was not committed, because the lock was lost before: messages below it may be "
                "repeated, which handlers must allow for", offset, shown,
            )  # fmt: skip
            return
        logger.error(
            "the last offset %d of %s was not committed in time: the next member begins at an older one, or, if a new master knows "
            "none of the group, where start_from says. When the broker has a master, compare rmq group lag, and move the group by "
            "rmq group reset; raise stop_timeout if an election takes longer", offset, shown,
        )  # fmt: skip


def _is_unread_retry(held: HeldQueue) -> bool:
    """Return whether nothing was read of a retry queue, where each member begins with the first message without an offset, too."""
    return not held.progress.watermark and held.queue.topic.startswith(RETRY_TOPIC_PREFIX)


def _sure(held: HeldQueue) -> bool:
    return True


async def _made_sure(held: HeldQueue, patience: float) -> None:
    """Look at nothing."""
