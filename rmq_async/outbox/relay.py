"""The loops of a running outbox.

They send committed rows and due rows, write outcomes, and report stuck messages and the status.

Each loop continues after errors. While the database is unavailable, the loops wait. Together they hold about ``Sending.window``
rows in memory, however many rows the table has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy.ext.asyncio import AsyncSession

from .. import machine
from .._text import is_power_of_two, printable
from ..errors import RocketMQError, WrongLoopError
from ..producer import Producer, ProducerState
from ..transport import check_not_forked, generation
from .handover import Additions
from .rows import Held, StuckMessage
from .sending import Outcomes, Sending
from .settings import Settings
from .store import DATABASE_ERRORS, OutboxStatus, Store, reason_of

logger = logging.getLogger("rmq_async.outbox")

_PROBES: Final = 8
"""Maximum number of rows of a failed topic that one trial sends."""
LONGEST_PAUSE: Final = 10.0
_LONGEST_STATUS: Final = 60.0
_STUCK_AT_ONCE: Final = 100
_LAST_WRITE: Final = 1.0
"""Seconds to write the last outcomes if the sends have used up the time of a stop."""
_SHARE: Final = 10
"""The minimum pause after queries that found fewer than ``batch_size`` rows, as a multiple of their duration, unless a trial of a
failed topic is due.
"""

Step = Callable[[], Coroutine[Any, Any, bool]]

_owners: WeakKeyDictionary[Producer, int] = WeakKeyDictionary()
"""The number of running relays that have started each producer. The last of these relays to stop also stops the producer."""


def is_owned(producer: Producer) -> bool:
    """Return whether a running outbox has started the producer or is about to start it."""
    return _owners.get(producer, 0) > 0


class Relay:
    """One run of an outbox, from ``start`` to ``stop``, on one loop.

    Args:
        own_producer: Whether the relay starts the producer and stops it at the end.
    """

    def __init__(
        self,
        store: Store,
        producer: Producer,
        settings: Settings,
        *,
        own_producer: bool,
        on_stuck: Callable[[StuckMessage], None] | None,
        on_status: Callable[[OutboxStatus], None] | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.sending = new_sending(store, producer, settings)
        self._store = store
        self._producer = producer
        self._own_producer = own_producer
        self._settings = settings
        self._on_stuck = on_stuck
        self._on_status = on_status
        self._handed: deque[Held] = deque()
        self._something_handed = asyncio.Event()
        self._look = asyncio.Event()
        self._open = True
        self._closing = asyncio.Event()
        self._generation = generation()
        self._tasks: list[asyncio.Task[None]] = []
        self._starter: list[asyncio.Task[None]] = []
        self._recorder: list[asyncio.Task[None]] = []

    # -- start and stop

    def is_here(self) -> bool:
        """Return True on the loop on which the relay was started. Return False if that loop was closed.

        Raises:
            WrongLoopError: On another loop while the first one is open.
            ForkedError: In a forked child of the process.
        """
        check_not_forked(self._generation)
        if self.loop is not asyncio.get_running_loop() and not self.loop.is_closed():
            raise WrongLoopError("the outbox was started on another event loop; make one per loop")
        return not self.loop.is_closed()

    def start(self) -> None:
        self._recorder = [self._begin("write outcomes", self._record, after_stop=True)]
        self._tasks = [self._begin("send committed rows", self._hand_over), self._begin("claim due rows", self._poll)]
        self._tasks.append(self._begin("look for stuck messages", self._watch))
        if self._on_status is not None:
            self._tasks.append(self._begin("report its status", self._report_status))
        if self._own_producer:
            _owners[self._producer] = _owners.get(self._producer, 0) + 1
            self._starter = [self._begin("start its producer", self._start_producer)]

    async def stop(self, timeout: float) -> None:
        """Stop taking rows, wait up to ``timeout`` seconds for sends in flight, and release the other rows.

        The loops have the same time to end by themselves, because a loop that is cancelled during a claim leaves the claimed
        rows reserved until their lease expires.
        """
        self._open = False
        self.sending.close()
        deadline = machine.monotonic() + timeout
        for event in (self._closing, self._something_handed, self._look, self.sending.room):
            event.set()
        try:
            await _ended(self._starter, 0.0)
            await _ended(self._tasks, timeout)
            self.sending.release(self._handed)
            self._handed.clear()
            if not await self.sending.finished(max(0.0, deadline - machine.monotonic())):
                logger.warning(
                    "the outbox was stopped with sends in flight after %g s; their messages are sent again when the leases expire; "
                    "give stop() a longer timeout",
                    timeout,
                )
            await _within(max(0.0, deadline - machine.monotonic()) + _LAST_WRITE, self.sending.nothing_left)
            if self.sending.in_hand:
                logger.warning(
                    "the outbox was stopped before it could write the outcomes of %d messages; they may be sent again when "
                    "their leases expire",
                    self.sending.in_hand,
                )
        finally:
            try:
                await _ended([*self._tasks, *self._recorder], 0.0)
                await self.sending.finished(0.0)
            finally:  # this must also happen if the stop is cancelled while the loops wait for the database
                await self._leave_producer(deadline)

    async def _leave_producer(self, deadline: float) -> None:
        """Stop the producer if this was the last running relay of the relays that started it."""
        if self._own_producer:
            _owners[self._producer] -= 1
            if not _owners[self._producer]:
                await self._producer.stop(max(0.0, deadline - machine.monotonic()))

    # -- new rows

    def takes(self, topic: str, session: AsyncSession) -> bool:
        """Return whether this process sends a message of the session right after the commit.

        The limit for rows in memory includes the rows that the transaction has already added, because a transaction may add more
        rows than fit into memory.
        """
        sending, added = self.sending, Additions.waiting(session.sync_session)
        return (
            self._open
            and sending.in_hand + len(self._handed) + added < sending.window
            and topic not in sending.failed_topics
            and self._producer.state is ProducerState.RUNNING
            and asyncio.get_running_loop() is self.loop
        )

    def hand_over(self, rows: list[Held]) -> None:
        """Take the rows of a committed transaction. If a stop has begun, release them."""
        if self._open:
            self._handed.extend(rows)
            self._something_handed.set()
        else:
            self.sending.release(rows)

    def look(self) -> None:
        """Wake the claiming loop, because a row may be due."""
        self._look.set()

    # -- the loops

    def _begin(self, name: str, step: Step, *, after_stop: bool = False) -> asyncio.Task[None]:
        work = self._for_ever(name, step, after_stop=after_stop)
        return self.loop.create_task(work, name=f"rmq_async outbox {name}", context=Context())

    async def _for_ever(self, name: str, step: Step, *, after_stop: bool) -> None:
        """Repeat ``step`` until it returns False or the relay stops.

        With ``after_stop``, repeat it until it returns False or is cancelled.
        """
        failures = 0
        while self._open or after_stop:
            try:
                if not await step():
                    return
                if failures:
                    logger.info("the outbox can %s again", name)
                failures = 0
                continue
            except DATABASE_ERRORS as error:
                failures += 1
                if is_power_of_two(failures):
                    logger.warning(
                        "the outbox cannot %s and tries again (failed attempts: %d): %s", name, failures, reason_of(error)
                    )
            except Exception as error:  # noqa: BLE001 - a bug of ours or of a callback must not end the relay
                failures += 1
                self.loop.call_exception_handler(
                    {"message": f"the outbox's task {name!r} failed and continues", "exception": error}
                )
            await _within(min(LONGEST_PAUSE, 0.05 * 2 ** min(failures, 10)), self._closing)

    async def _hand_over(self) -> bool:
        await self._something_handed.wait()
        await self.sending.room.wait()
        if not self._open:
            return False
        rows = [self._handed.popleft() for _ in range(min(len(self._handed), self._settings.batch_size))]
        if not self._handed:
            self._something_handed.clear()
        if rows:
            await send_owned(self._store, self.sending, rows)
        return True

    async def _poll(self) -> bool:
        settings, sending = self._settings, self.sending
        await sending.room.wait()
        if not self._open:
            return False
        began = machine.monotonic()
        self._look.clear()
        full = False
        if self._producer.state is ProducerState.RUNNING:
            limit, troubled = settings.batch_size, sending.failed_topics.topics()
            full = await send_due(self._store, sending, limit, troubled, only=False) == limit
            for topic in sending.failed_topics.due(machine.monotonic()):
                await send_due(self._store, sending, _PROBES, [topic], only=True)
        if not full:
            pause = max(settings.poll_interval, _SHARE * (machine.monotonic() - began))
            probe = sending.failed_topics.next_due()
            if probe is not None:
                pause = min(pause, max(0.01, probe - machine.monotonic()))
            # ``look`` does not shorten this pause, because the same row may be found repeatedly
            rest = _SHARE * (machine.monotonic() - began)
            await _within(min(rest, pause), self._closing)
            await _within(max(0.0, pause - rest), self._look)
        return True

    async def _record(self) -> bool:
        await self.sending.outcome.wait()
        outcomes = self.sending.take()
        await self._write(outcomes)
        return True

    async def _write(self, outcomes: Outcomes) -> None:
        """Write outcomes. Repeat the write while the database is unavailable, because the outcomes are stored nowhere else."""
        failures = 0
        while True:
            try:
                await self._store.record(outcomes.sent, outcomes.failed, outcomes.given_back(machine.monotonic()))
            except DATABASE_ERRORS as error:
                failures += 1
                if is_power_of_two(failures):
                    logger.warning(
                        "the outbox cannot write the outcomes of %d messages and tries again (failed attempts: %d): %s",
                        len(outcomes.rows), failures, reason_of(error),
                    )  # fmt: skip
                await asyncio.sleep(min(LONGEST_PAUSE, 0.05 * 2 ** min(failures, 10)))
            except Exception:  # a bug; the rows stay reserved until their lease expires
                self.sending.recorded(outcomes)
                raise
            else:
                self.sending.recorded(outcomes)
                if outcomes.released or outcomes.failed:
                    self._look.set()
                return

    async def _watch(self) -> bool:
        settings = self._settings
        await _within(min(max(settings.stuck_after / 10, 0.05), LONGEST_PAUSE), self._closing)
        last = 0
        while self._open:
            found = await self._store.stuck(
                settings.stuck_after, settings.stuck_attempts, settings.stuck_period, _STUCK_AT_ONCE, last
            )
            for message in found:
                self._notify_stuck(message)
            if found and self._on_stuck is None:
                oldest = found[0]
                logger.warning(
                    "%d messages are stuck in the outbox, the first: row %d, topic %s, %d s old, %d attempts, last error %s; "
                    "FAILED messages need a retry",
                    len(found), oldest.id, oldest.topic, oldest.age, oldest.attempts, oldest.last_error,
                )  # fmt: skip
            if len(found) < _STUCK_AT_ONCE:
                break
            last = found[-1].id
        return True

    def _notify_stuck(self, message: StuckMessage) -> None:
        if self._on_stuck is not None:
            try:
                self._on_stuck(message)
            except Exception as error:  # noqa: BLE001 - the user's bug, reported as asyncio reports those of callbacks
                self.loop.call_exception_handler({"message": f"on_stuck failed for row {message.id}", "exception": error})

    async def _report_status(self) -> bool:
        assert self._on_status is not None
        async with asyncio.timeout(_LONGEST_STATUS):
            status = await self._store.status()
        self._on_status(status)
        await _within(self._settings.status_interval, self._closing)
        return True

    async def _start_producer(self) -> bool:
        """Start the producer in the background, because the name servers may be unavailable when a service starts."""
        failures = 0
        while True:
            try:
                await self._producer.start()
            except RocketMQError as error:
                failures += 1
                if is_power_of_two(failures):
                    text = printable(error, 1000)
                    logger.warning(
                        "the outbox's producer cannot start and tries again (failed attempts: %d): %s", failures, text
                    )
                await asyncio.sleep(min(LONGEST_PAUSE, 0.05 * 2 ** min(failures, 10)))
            else:
                self._look.set()
                return False


# -- functions that ``relay_once`` uses too


def new_sending(store: Store, producer: Producer, settings: Settings) -> Sending:
    timeout = min(producer.config.timeout, settings.lease / 2)
    return Sending(store, producer, batch_size=settings.batch_size, timeout=timeout, poll_interval=settings.poll_interval)


async def send_due(store: Store, sending: Sending, limit: int, topics: list[str], *, only: bool) -> int:
    """Claim due rows and begin to send them, except rows that must wait for another row with the same key. Return the number of
    rows without these exceptions.

    Args:
        limit: Maximum number of rows.
        topics: The topics to claim or to leave out.
        only: True claims rows of ``topics``. False claims rows of all other topics.
    """
    breaks = sending.orders.breaks
    rows, out_of_turn = await store.claim(limit, topics, only=only, in_hand=sending.orders.in_hand())
    await _send_in_turn(store, sending, rows, out_of_turn, breaks)
    return len(rows) - len(out_of_turn)


async def send_owned(store: Store, sending: Sending, rows: list[Held]) -> None:
    """Begin to send committed rows of this process's own transactions, in the order of their ids."""
    rows = sorted(rows, key=lambda row: row.id)
    breaks = sending.orders.breaks
    try:
        ours, out_of_turn = await store.owned(rows, sending.orders.in_hand(row.key for row in rows if row.key is not None))
    except BaseException:
        sending.release(rows)
        raise
    await _send_in_turn(store, sending, ours, out_of_turn, breaks)


async def _send_in_turn(store: Store, sending: Sending, rows: list[Held], out_of_turn: list[int], breaks: int) -> None:
    """Begin to send the rows that are not in ``out_of_turn``, and release the others.

    Args:
        out_of_turn: Ids of the rows that must wait for another row with the same key.
        breaks: The value of ``KeyOrders.breaks`` before the query for ``out_of_turn``. If it has changed since, query again.
    """
    while sending.orders.breaks != breaks and any(row.key is not None for row in rows):
        breaks = sending.orders.breaks
        keyed = {row.id: row.key for row in rows if row.key is not None}
        try:
            out_of_turn = await store.blocked(keyed, sending.orders.in_hand(keyed.values()))
        except BaseException:
            sending.release(rows)
            raise
    back = set(out_of_turn)
    sending.release(row for row in rows if row.id in back)
    sending.send(row for row in rows if row.id not in back)


async def relay_once(store: Store, producer: Producer, settings: Settings) -> int:
    """Claim rows once, send them, write the outcomes, and return the number of stored messages."""
    sending = new_sending(store, producer, settings)
    try:
        await send_due(store, sending, settings.batch_size, [], only=False)
        await sending.finished(None)
    finally:
        await sending.finished(0.0)
        outcomes = sending.take()
        await store.record(outcomes.sent, outcomes.failed, outcomes.given_back(machine.monotonic()))
    return len(outcomes.sent)


async def _within(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def _ended(tasks: list[asyncio.Task[None]], timeout: float) -> None:
    """Wait up to ``timeout`` seconds for the tasks, then cancel the remaining tasks and wait until they have ended."""
    if tasks and timeout:
        await asyncio.wait(tasks, timeout=timeout)
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
