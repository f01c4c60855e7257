"""Transaction checks: requests of brokers for the status of a transaction (CHECK_TRANSACTION_STATE), and the responses to them.

A broker checks a half message whose transaction has not ended. It stores the message again, which changes its offsets, and sends a
one-way request with the message on a connection of the group. The answer, an END_TRANSACTION request, goes back on that connection.
Brokers repeat lost checks up to ``transactionCheckMax`` times, so checks beyond the limits may be dropped.

An answer with the offsets of an older check would end a copy that the broker no longer uses, and the newest copy would be checked
and delivered a second time. Therefore each check of a message replaces the previous one, even while ``check`` runs, and even while
the local transaction still runs in this process, which then ends the newest copy. A broker chooses the producer for a check up to
one second before it sends the check. It therefore also checks messages whose transaction has just ended, and then holds an extra
copy. If this process has seen that end on the same connection in the last ten seconds, it answers such a check with ROLLBACK. For a
later check, ``check`` decides, because the broker may have become a replica, and then the master again, without the committed
message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from inspect import isawaitable
from math import inf
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import PropertyName, RequestCode, ResponseCode
from rmq_protocol.errors import RocketMQError, shown
from rmq_protocol.headers import CheckTransactionStateRequestHeader, from_ext
from rmq_protocol.message import MessageExt
from rmq_protocol.stored import decode_messages

from ... import machine
from ..._ordered import OrderedSet
from ..._text import is_power_of_two, printable
from ...client import ClientInstance
from ...errors import ConfigError, RemoteProtocolError
from ...results import TransactionStatus
from ...transport import Connection, send_control
from ..core import LAST_STEPS
from ..watching import Tracer
from .end_transaction import End, end_command, trace_end

logger = logging.getLogger("rmq_async.producer")

Check = Callable[[MessageExt], TransactionStatus | Awaitable[TransactionStatus]]

MOST_WAITING: Final = 2000
"""Maximum number of waiting checks (``checkRequestHoldMax``): those for which ``check`` was not called yet, and those whose answer
the broker has not confirmed yet."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Maximum total bytes of the messages of all held checks. A larger message is accepted only while no other message is held."""
MOST_ENDED: Final = 10_000
"""Maximum number of ended transactions that are remembered for each connection."""
REMEMBERED_FOR: Final = 10.0
"""Seconds for which an ended transaction is remembered. A broker sees that a transaction has ended up to about 3 s late
(``transactionOpBatchInterval``), and a new master is chosen 10 s after the last heartbeat of the old master
(``brokerHeartbeatTimeoutMillis``)."""

T = TypeVar("T")


class Dispatch:
    """Passes the checks that a client instance receives to the producers of their groups."""

    def __init__(self, max_decompressed_size: int) -> None:
        self.groups: dict[str, Checks] = {}
        self._max_decompressed_size = max_decompressed_size
        self._unreadable = 0

    def __call__(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            header = from_ext(CheckTransactionStateRequestHeader, command.ext_fields)
            message = self._message(command.body, header)
        except RemoteProtocolError as error:
            self._unreadable += 1
            if is_power_of_two(self._unreadable):
                logger.warning(
                    "%s: %d transaction checks could not be read (brokers repeat them); check the broker, or raise "
                    "max_decompressed_size if a body is larger; last error: %s",
                    connection.address, self._unreadable, printable(error),
                )  # fmt: skip
            return
        group = message.properties.get(PropertyName.PGROUP, "")
        checks = self.groups.get(group)
        if checks is None:
            logger.debug("%s: ignored a transaction check for unknown group %s", connection.address, printable(group))
            return
        checks.take(connection, header, message)

    def _message(self, body: bytes, header: CheckTransactionStateRequestHeader) -> MessageExt:
        decoded = decode_messages(
            body,
            topic_queue_broker=header.bname or "",
            max_decompressed_size=self._max_decompressed_size,
            unwrap_batches=False,
        )
        if len(decoded.messages) != 1 or decoded.corrupt:
            reason = f": {decoded.corrupt[0]}" if decoded.corrupt else ""
            found = len(decoded.messages)
            raise RemoteProtocolError(
                f"the body of a check must contain one message; its {len(body)} bytes contain {found} readable and "
                f"{len(decoded.corrupt)} unreadable messages{reason}"
            )
        return decoded.messages[0]


class _Which(NamedTuple):
    """The identity of a message. It is equal for copies, and nearly always different for messages with the same unique id."""

    msg_id: str
    born_time_ms: int
    body_crc: int


class _Running(NamedTuple):
    """A transaction whose local part runs in this process.

    Attributes:
        chosen: The body and the earliest born time (ms) if the caller chose the message's id, else None.
    """

    end: End
    chosen: tuple[bytes, int] | None

    def has(self, message: MessageExt) -> bool:
        if self.chosen is None:
            return True
        body, born_from = self.chosen
        return message.born_time_ms >= born_from and message.body == body


class _Question:
    """The newest check of one message, which is to be answered."""

    __slots__ = ("connection", "end", "key", "message")

    def __init__(self, connection: Connection, end: End, message: MessageExt, key: tuple[str, _Which]) -> None:
        self.connection = connection
        self.end = end
        self.message = message
        self.key = key


class Checks:
    """The checks of one producer, from start to stop.

    Args:
        group: Name of the group, with its namespace.
        limit: Maximum number of concurrent calls of ``check``. While a broker has not confirmed an answer yet, other checks go on.
    """

    def __init__(self, instance: ClientInstance, group: str, check: Check, limit: int) -> None:
        self.tracer: Tracer | None = None
        self._instance = instance
        self._timeout = instance.config.request_timeout
        self._group = group
        self._check = check
        self._limit = limit
        # Broker address and unique id -> running transactions of this process.
        self._under_way: dict[tuple[str, str], list[_Running]] = {}
        # Connection -> ended transactions with the time (monotonic) until which each is remembered, in the order of these times.
        self._ended: WeakKeyDictionary[Connection, dict[str | _Which, float]] = WeakKeyDictionary()
        self._asked: dict[tuple[str, _Which], _Question] = {}
        self._waiting: deque[_Question] = deque()
        self._calls: OrderedSet[asyncio.Task[None]] = OrderedSet()
        """The tasks whose call of ``check`` has not ended yet."""
        self._bytes = 0
        self._dropped = 0
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._context: Context = copy_context()

    # -- registration at the client instance

    def listen(self) -> None:
        """Register for the checks of the group.

        Raises:
            ConfigError: If another producer of this client has registered for these checks.
        """
        handlers = self._instance.handlers
        dispatch = handlers.get(RequestCode.CHECK_TRANSACTION_STATE)
        if not isinstance(dispatch, Dispatch):
            dispatch = Dispatch(self._instance.config.max_decompressed_size)
            handlers[RequestCode.CHECK_TRANSACTION_STATE] = dispatch
        if self._group in dispatch.groups:
            raise ConfigError(
                f"producer group {self._group} is already in use by this client; share that producer, or set another instance_name"
            )
        dispatch.groups[self._group] = self

    async def close(self) -> None:
        """Accept no more checks, cancel the running ones, and wait at most ``LAST_STEPS`` seconds until they have ended."""
        dispatch = self._instance.handlers.get(RequestCode.CHECK_TRANSACTION_STATE)
        if isinstance(dispatch, Dispatch) and dispatch.groups.get(self._group) is self:
            del dispatch.groups[self._group]
            if not dispatch.groups:
                del self._instance.handlers[RequestCode.CHECK_TRANSACTION_STATE]
        self._limit = 0
        self._waiting.clear()
        self._asked.clear()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=LAST_STEPS)
            if left:
                logger.warning(
                    "producer %s: %d transaction checks (%s) are still running %s s after they were cancelled; make check() end "
                    "when it is cancelled",
                    self._group, len(left), shown(self._check), LAST_STEPS,
                )  # fmt: skip

    # -- transactions of this process

    @contextmanager
    def ending(self, address: str, end: End, chosen: tuple[bytes, int] | None) -> Iterator[None]:
        """Return a context manager during which a transaction is recorded as running.

        A check that matches this transaction and no other one updates ``end`` and does not call ``check``.

        Args:
            address: The broker address from which checks of the transaction come.
            chosen: The body and the earliest born time (ms) if the caller chose the message's id, else None.
        """
        key, running = (address, end.msg_id), _Running(end, chosen)
        self._under_way.setdefault(key, []).append(running)
        try:
            yield
        finally:
            others = [each for each in self._under_way[key] if each is not running]
            if others:
                self._under_way[key] = others
            else:
                del self._under_way[key]

    def ended(self, connection: Connection | None, end: End, log_offset: int, *, known: bool) -> None:
        """Record that the broker has confirmed the end of a transaction with the half message at ``log_offset``. Roll back a newer
        copy, if any.

        Args:
            connection: The connection on which checks of the transaction come, if it was opened before the confirmation. If it is
                None, nothing is recorded.
            known: Whether this client made the message's id.
        """
        if connection is None:
            return
        if known:
            self._remember(connection, end.msg_id)
        if end.log_offset != log_offset:
            self._take_back(connection, end)

    def _running(self, address: str, message: MessageExt) -> End | None:
        """Return the ``End`` of the running transaction to which the check belongs. Return None unless exactly one matches."""
        found = [each.end for each in self._under_way.get((address, message.msg_id), ()) if each.has(message)]
        return found[0] if len(found) == 1 else None

    def _remember(self, connection: Connection, which: str | _Which) -> None:
        """Remember for ``REMEMBERED_FOR`` seconds that a transaction has ended, for checks on this connection."""
        # On a new connection, the broker may have lost the ended state in a crash, so ``check`` decides.
        now, known = machine.monotonic(), self._ended.setdefault(connection, {})
        known.pop(which, None)
        known[which] = now + REMEMBERED_FOR
        while len(known) > MOST_ENDED or known[next(iter(known))] < now:
            del known[next(iter(known))]

    def _has_just_ended(self, connection: Connection, which: _Which) -> bool:
        known, now = self._ended.get(connection), machine.monotonic()
        return known is not None and (known.get(which, -inf) >= now or known.get(which.msg_id, -inf) >= now)

    def _take_back(self, connection: Connection, end: End) -> None:
        send_control(
            connection, end_command(end, TransactionStatus.ROLLBACK, "a copy of a message whose transaction has ended")
        )

    # -- checks

    def take(self, connection: Connection, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """Answer a check, or queue it for a call of ``check``.

        Args:
            message: The decoded message. Its topic has the namespace.
        """
        running = self._running(connection.address, message)
        if running is not None:
            running.queue_offset, running.log_offset = header.tranStateTableOffset, header.commitLogOffset
            running.from_check = True
            send_control(connection, end_command(running, TransactionStatus.UNKNOWN, "its transaction is still running"))
            return
        end = End(
            topic=message.topic,  # brokers check the user's permissions for it; Java sends the half topic
            group=self._group,
            broker=header.bname,
            msg_id=message.msg_id,
            transaction_id=header.transactionId,
            queue_offset=header.tranStateTableOffset,
            log_offset=header.commitLogOffset,
            from_check=True,
        )
        which = _Which(message.msg_id, message.born_time_ms, message.body_crc)
        if self._has_just_ended(connection, which):
            self._take_back(connection, end)
            return
        key = (connection.address, which)
        known = self._asked.get(key)
        if known is not None:
            known.connection, known.end = connection, end
            return
        size = _size(message)
        if len(self._asked) - len(self._calls) >= MOST_WAITING or (self._bytes and self._bytes + size > MOST_BYTES):
            self._drop()
            return
        topic = self._instance.names.shown(message.topic)
        message = msgspec.structs.replace(
            message,
            topic=topic,
            queue=message.queue._replace(topic=topic),
            transaction_id=header.transactionId or message.unique_id,
        )
        question = self._asked[key] = _Question(connection, end, message, key)
        self._bytes += size
        self._waiting.append(question)
        self._go_on()

    def _drop(self) -> None:
        self._dropped += 1
        if is_power_of_two(self._dropped):
            logger.warning(
                "producer %s: %d transaction checks were dropped and %d are held (brokers repeat them); make check() faster, "
                "or raise max_concurrent_checks",
                self._group, self._dropped, len(self._asked),
            )  # fmt: skip

    def _go_on(self) -> None:
        while self._waiting and len(self._calls) < self._limit:
            question = self._waiting.popleft()
            task = asyncio.get_running_loop().create_task(
                self._answer(question), name="rmq_async transaction check", context=self._context.copy()
            )
            self._tasks.add(task)
            self._calls.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._called(task)

    def _called(self, task: asyncio.Task[None]) -> None:
        """Start the next check after the call of ``check`` in ``task`` has ended."""
        self._calls.discard(task)
        self._go_on()

    async def _answer(self, question: _Question) -> None:
        try:
            status, error = await decided(self._check, question.message)
            self._called(asyncio.current_task())  # type: ignore[arg-type]
            if error is not None:
                report(self._check, error)
            connection, end = question.connection, question.end
            trace_end(self.tracer, question.message, end, status, connection.address)
            command = end_command(end, status, f"check: {type(error).__name__}" if error is not None else None)
            if status is TransactionStatus.UNKNOWN:
                send_control(connection, command)
            elif await self._confirmed(connection, command, end, status):
                self._remember(connection, question.key[1])
                if question.end is not end:
                    self._take_back(question.connection, question.end)
        finally:
            self._asked.pop(question.key, None)
            self._bytes -= _size(question.message)

    async def _confirmed(self, connection: Connection, command: RemotingCommand, end: End, status: TransactionStatus) -> bool:
        try:
            response = await connection.request(command, self._timeout)
        except RocketMQError as failed:
            logger.info("%s of transaction %s was not confirmed: %s", status.value, end.msg_id, printable(failed, 1000))
            return False
        if response.code != ResponseCode.SUCCESS:
            logger.warning(
                "%s refused %s of transaction %s: %d %s; the broker will check the transaction again unless it has ended",
                connection.address, status.value, printable(end.msg_id), response.code, printable(response.remark),
            )  # fmt: skip
            return False
        return True


def _size(message: MessageExt) -> int:
    """Return the approximate memory of a check in bytes: the stored size, including properties, plus the decompressed body."""
    return message.store_size + len(message.body)


async def decided(
    function: Callable[..., Any], *arguments: Any, waiting: Callable[[Awaitable[T]], Awaitable[T]] | None = None
) -> tuple[TransactionStatus, Exception | None]:
    """Call a user's function and return the status that it returns, and None.

    If the function raises an error or returns something else, return UNKNOWN and the error.

    Args:
        waiting: Awaits the awaitable that the function returned. None awaits it directly.
    """
    task = asyncio.current_task()
    cancelled = 0 if task is None else task.cancelling()
    try:
        status = function(*arguments)
        if isawaitable(status):
            status = await (status if waiting is None else waiting(status))
        if isinstance(status, TransactionStatus):
            return status, None
        raise TypeError(f"{shown(function)} must return a TransactionStatus, not {shown(status)}")
    except asyncio.CancelledError as own:
        if task is None or task.cancelling() > cancelled:
            raise
        error = RuntimeError(f"{shown(function)} raised CancelledError without being cancelled; raise another error")
        error.__cause__ = own
        return TransactionStatus.UNKNOWN, error
    except Exception as error:  # noqa: BLE001 - a user's bug or a failed transaction: the caller reports it
        return TransactionStatus.UNKNOWN, error


def report(function: Callable[..., Any], error: Exception) -> None:
    """Report an error of a user's function to the loop's exception handler."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"{shown(function)} of a transaction failed; its status is UNKNOWN", "exception": error}
    )
