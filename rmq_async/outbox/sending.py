"""Sends rows with one task for each batch and each sharding key, and collects their outcomes, which are written together.

A send begins only if the lease lasts longer than the send may take, so that no other process sends the row meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from rmq_protocol.message import Message

from .. import machine
from .._text import printable
from ..errors import RocketMQError
from ..producer import Producer
from ..results import SendResult, SendStatus
from .policy import FailedTopics, error_text, given_up, pause_before
from .rows import Held
from .store import DATABASE_ERRORS, Failure, Sent, Store, reason_of

# Decides which rows may be sent now: rows with the same sharding key are sent one after the other, and small rows without a key
# are sent in batches.
#
# A row is in hand from the moment when this process takes it until its outcome is written. A key order has the rows of one key
# that are in hand. It breaks when a row is not sent: the rows behind that row are given back to the table. Rows that are added
# before the outcomes are written are given back too, because after a failure only the table knows which row comes first.
# ``KeyOrders.breaks`` is the number of breaks. The result of a query is stale if the number has changed since the query began.

Key = tuple[str, str]

_OVERHEAD: Final = 512
"""Number of bytes that a message takes in a batch in addition to its body and strings."""


class KeyOrder:
    """The order of the rows with one topic and sharding key.

    Attributes:
        waiting: Rows behind the row in flight.
        in_hand: Ids of all rows whose outcome is not written yet.
        busy: Whether a task is sending the rows.
        broken: Whether a row was not sent, so that the order takes no more rows.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.waiting: deque[Held] = deque()
        self.in_hand: set[int] = set()
        self.busy = self.broken = False


class KeyOrders:
    def __init__(self) -> None:
        self.breaks = 0
        self._orders: dict[Key, KeyOrder] = {}

    def in_hand(self, keys: Iterable[Key] | None = None) -> list[int]:
        """Return the ids of the rows with these keys (None: with any key) whose outcome is not written yet. Leave out rows of
        broken orders, because they are given back to the table.
        """
        orders = [self._orders[key] for key in dict.fromkeys(self._orders if keys is None else keys) if key in self._orders]
        return [row for order in orders if not order.broken for row in order.in_hand]

    def add(self, key: Key, row: Held) -> KeyOrder | None:
        """Add a row to the order of its key and return the order. Return None if the order is broken, because it takes
        no rows.
        """
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = KeyOrder(key)
        if order.broken:
            return None
        order.waiting.append(row)
        order.in_hand.add(row.id)
        return order

    def break_off(self, order: KeyOrder) -> list[Held]:
        """Mark the order as broken, because a row was not sent, and return the rows behind that row."""
        order.broken = True
        self.breaks += 1
        back = list(order.waiting)
        order.waiting.clear()
        return back

    def recorded(self, key: Key, row: int) -> None:
        """Remove a row whose outcome was written."""
        order = self._orders.get(key)
        if order is not None:
            order.in_hand.discard(row)
            if not order.in_hand and not order.busy:
                del self._orders[key]


def batches(rows: Sequence[Held], small: int, max_bytes: int, max_rows: int) -> Iterator[list[Held]]:
    """Group rows without a key into batches.

    Small rows with the same topic and ``wait_store`` form batches of up to ``max_rows`` rows. A batch of more than one row has
    at most ``max_bytes`` bytes. The following rows are sent alone: rows whose body is not held or has ``small`` bytes or more,
    rows with a delay, rows for retry topics, and rows that have failed before.
    """
    open_ones: dict[tuple[str, bool], tuple[list[Held], int]] = {}
    for row in rows:
        message = row.message
        if (
            not row.whole
            or row.size >= small
            or row.attempts  # the broker may have refused their batch
            or message.delay_level
            or message.deliver_at is not None
            or message.priority is not None
            or message.topic.startswith("%RETRY%")
        ):
            yield [row]
            continue
        kind = message.topic, message.wait_store
        size = row.size + _OVERHEAD + _texts(row)
        batch, used = open_ones.get(kind, ([], 0))
        if batch and (used + size > max_bytes or len(batch) >= max_rows):
            yield batch
            batch, used = [], 0
        batch.append(row)
        open_ones[kind] = batch, used + size
    yield from (batch for batch, _ in open_ones.values())


def _texts(row: Held) -> int:
    """Return an upper bound of the bytes of tags, keys and properties."""
    message = row.message
    size = len(message.tags or "") + sum(map(len, message.keys))
    if message.properties:
        size += sum(len(name) + len(value) + 2 for name, value in message.properties.items())
    return 4 * size


logger = logging.getLogger("rmq_async.outbox")

_BATCH_ROWS: Final = 256
_LARGE_AT_ONCE: Final = 4
"""Maximum number of rows with large bodies that are sent concurrently, because each body is read on a separate database
connection.
"""
_WINDOW: Final = 4
"""Number of batches of ``batch_size`` rows that are held at a time: one is being read, one or two are in flight, and the outcomes
of one are being written.
"""

T = TypeVar("T")


class Outcomes(msgspec.Struct):
    """The outcomes of sends that are not written to the table yet."""

    sent: list[Sent] = []
    failed: list[Failure] = []
    released: list[Held] = []
    rows: list[Held] = []
    """All rows with an outcome, and all rows that stay reserved until their lease expires."""

    def given_back(self, now: float) -> list[int]:
        """Return the ids of the ``released`` rows whose lease has not expired. A row with an expired lease is due anyway, and
        may belong to another process.
        """
        return [row.id for row in self.released if row.until > now]


class Sending:
    """Sends claimed rows.

    Args:
        batch_size: Maximum number of rows in one claim.
        timeout: Seconds that one send may take.

    Attributes:
        in_hand: Number of rows whose outcome is not written yet.
        window: Maximum of ``in_hand``.
        room: Set while another claim fits into the window.
        outcome: Set while outcomes are to be written.
        nothing_left: Set while ``in_hand`` is 0.
    """

    def __init__(self, store: Store, producer: Producer, *, batch_size: int, timeout: float, poll_interval: float) -> None:
        self.orders = KeyOrders()
        self.failed_topics = FailedTopics(poll_interval)
        self.window = _WINDOW * batch_size
        self._ids: set[int] = set()
        """Rows that were passed to ``send`` or ``release`` and whose outcome is not written yet."""
        self.sent = self.failures = 0
        """Number of stored messages and number of failed sends since the start."""
        self.outcome = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self.nothing_left = asyncio.Event()
        self.nothing_left.set()
        self._comfortable = self.window - batch_size
        self._store = store
        self._producer = producer
        self._timeout = timeout
        self._poll_interval = poll_interval
        self._outcomes = Outcomes()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    @property
    def in_hand(self) -> int:
        return len(self._ids)

    # -- rows to send

    def send(self, rows: Iterable[Held]) -> None:
        """Begin to send the rows. Rows with the same key are sent in their order."""
        loose: list[Held] = []
        for row in self._new(rows):
            if (key := row.key) is None:
                loose.append(row)
            elif (order := self.orders.add(key, row)) is None:
                self._release(row)
            elif not order.busy:
                order.busy = True
                self._begin(self._send_in_order(order))
        config = self._producer.config
        for batch in batches(loose, config.compress_over, config.max_message_size, _BATCH_ROWS):
            self._begin(self._send_batch(batch))
        self._took()

    def release(self, rows: Iterable[Held]) -> None:
        """Give rows that this process must not send back to the table."""
        for row in self._new(rows):
            self._release(row)
        self._took()

    def _new(self, rows: Iterable[Held]) -> Iterator[Held]:
        """Yield the rows that are not in hand yet, and count them as in hand.

        After the database was unavailable for longer than a lease, a claim also returns rows that this process is still sending.
        """
        for row in rows:
            if row.id not in self._ids:
                self._ids.add(row.id)
                yield row

    def _took(self) -> None:
        if self.in_hand > self._comfortable:
            self.room.clear()
        if self.in_hand:
            self.nothing_left.clear()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="rmq_async outbox send")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Prevent further sends. Rows whose send has not begun are released."""
        self._closed = True

    # -- outcomes

    def take(self) -> Outcomes:
        """Return the outcomes since the last call."""
        taken, self._outcomes = self._outcomes, Outcomes()
        self.outcome.clear()
        return taken

    def recorded(self, outcomes: Outcomes) -> None:
        """Count the rows of ``outcomes``, which were written to the table, as no longer in hand."""
        for row in outcomes.rows:
            if (key := row.key) is not None:
                self.orders.recorded(key, row.id)
        self._ids.difference_update(row.id for row in outcomes.rows)
        if self.in_hand <= self._comfortable:
            self.room.set()
        if not self.in_hand:
            self.nothing_left.set()

    async def finished(self, timeout: float | None) -> bool:
        """Wait for the sends in flight. After ``timeout`` seconds (None: no limit), abandon them and release the other rows.

        No send begins afterwards.

        Returns:
            Whether all sends ended in time, so that none was abandoned.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        self.close()
        await asyncio.sleep(0)  # a task that is cancelled before its first step would not release its rows
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        return not left

    def _ended(self, row: Held) -> None:
        self._outcomes.rows.append(row)
        self.outcome.set()

    def _release(self, row: Held) -> None:
        self._outcomes.released.append(row)
        self._ended(row)

    def _succeeded(self, row: Held, result: SendResult) -> None:
        queue = result.queue
        place = Sent.at(row.id, result.offset_msg_id, f"{queue.broker_name}:{queue.queue_id}", result.queue_offset)
        self.sent += 1
        self._outcomes.sent.append(place)
        self._ended(row)

    def _failed(self, row: Held, error: BaseException, began: float) -> None:
        hopeless = given_up(error)
        if not hopeless:
            self.failed_topics.failed(row.message.topic, began, machine.monotonic())
        pause = pause_before(row.attempts + 2, self._poll_interval, machine.random.random())
        self.failures += 1
        self._outcomes.failed.append(Failure(row.id, pause, error_text(error), hopeless))
        self._ended(row)
        logger.log(
            logging.WARNING if hopeless else logging.DEBUG, "row %d for topic %s was not sent%s: %s", row.id,
            row.message.topic, " and is FAILED until it is retried or purged" if hopeless else "", printable(error, 1000),
        )  # fmt: skip

    # -- sends

    async def _send_in_order(self, order: KeyOrder) -> None:
        stored = True
        try:
            while stored and order.waiting and not self._closed:
                stored = False
                stored = await self._send_one(order.waiting.popleft())
        finally:
            order.busy = False
            if not stored or order.waiting:
                for row in self.orders.break_off(order):
                    self._release(row)

    async def _send_batch(self, rows: Sequence[Held]) -> None:
        if len(rows) == 1:
            await self._send_one(rows[0])
            return
        began = machine.monotonic()
        if self._closed or rows[0].until - began < self._timeout:  # all rows have the lease of one claim
            for row in rows:
                self._release(row)
            return
        result = await self._attempt(self._producer.send_batch([row.message for row in rows], timeout=self._timeout), rows)
        if isinstance(result, Exception):
            if given_up(result):  # one message was refused, and the error does not say which one
                await self._send_each(rows)
                return
            for row in rows:
                self._failed(row, result, began)
        elif result.status is not SendStatus.SEND_OK:
            for row in rows:
                self._failed(row, _not_confirmed(result.status), began)
        else:
            self.failed_topics.succeeded(rows[0].message.topic, machine.monotonic())
            for row, stored in zip(rows, result.results, strict=True):
                self._succeeded(row, stored)

    async def _send_each(self, rows: Sequence[Held]) -> None:
        left = deque(rows)
        try:
            while left:
                await self._send_one(left.popleft())
        finally:
            for row in left:
                self._release(row)

    async def _send_one(self, row: Held) -> bool:
        """Send one row. Return whether a broker has stored its message and has confirmed the requested flush and
        replication.
        """
        if row.whole:
            return await self._send_message(row, row.message)
        try:
            await self._large.acquire()
        except BaseException:
            self._release(row)
            raise
        try:
            return await self._send_message(row, await self._with_body(row))
        finally:
            self._large.release()

    async def _send_message(self, row: Held, message: Message | None) -> bool:
        """Send one message, as ``_send_one`` does.

        Args:
            message: None if the body could not be read. The row is then released.
        """
        began = machine.monotonic()
        if message is None or self._closed or row.until - machine.monotonic() < self._timeout:
            self._release(row)
            return False
        result = await self._attempt(self._producer.send(message, timeout=self._timeout), (row,))
        if isinstance(result, Exception):
            self._failed(row, result, began)
            return False
        if result.status is not SendStatus.SEND_OK:
            self._failed(row, _not_confirmed(result.status), began)
            return False
        self.failed_topics.succeeded(message.topic, machine.monotonic())
        self._succeeded(row, result)
        return True

    async def _with_body(self, row: Held) -> Message | None:
        if self._closed or row.until - machine.monotonic() < self._timeout:
            return None
        try:
            body = await self._store.body(row.id)
        except DATABASE_ERRORS as error:
            logger.debug("the body of row %d could not be read: %s", row.id, reason_of(error))
            return None
        except BaseException:
            self._release(row)
            raise
        return None if body is None else msgspec.structs.replace(row.message, body=body)

    async def _attempt(self, sending: Awaitable[T], rows: Sequence[Held]) -> T | Exception:
        try:
            return await sending
        except RocketMQError as error:
            return error
        except asyncio.CancelledError:
            for row in rows:  # their messages may be stored, so the rows stay reserved until their lease expires
                self._ended(row)
            raise
        except Exception as error:  # noqa: BLE001 - a bug of a hook or ours: logged, and the row is tried again
            context = {"message": f"sending row {rows[0].id} of the outbox failed in an unforeseen way", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return error


def _not_confirmed(status: SendStatus) -> RocketMQError:
    return RocketMQError(
        f"the message was stored, but the broker did not confirm flush or replication ({status.value}); it is sent again"
    )
