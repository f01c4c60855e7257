"""Brokers asking what became of a transaction (CHECK_TRANSACTION_STATE), and answering them.

A broker asks about a half message that has no end: it stores it anew, so its offsets are others each time, and sends one
of the group's connections a one-way request with the message. The answer, an END_TRANSACTION, goes back on that connection.
Losing a question does no harm, the broker asks again; so questions beyond the limits are dropped.

An answer with offsets that a newer question has replaced would end a copy that is not used any more, and the newest copy
would be asked about and delivered a second time. Therefore each question about the same message replaces the one before, also
while ``check`` runs, and also while the local transaction itself still runs in this process: that one then ends with the newest.
A real broker chooses the producer up to a second before it asks, so it asks about messages that have ended meanwhile, too. What
it holds then is a copy more, and where this process knows that from its own connection, it says ROLLBACK.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from inspect import isawaitable
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import PropertyName, RequestCode, ResponseCode
from rmq_protocol.errors import RocketMQError, shown
from rmq_protocol.headers import CheckTransactionStateRequestHeader, from_ext
from rmq_protocol.message import MessageExt
from rmq_protocol.stored import decode_messages

from ..client.instance import ClientInstance
from ..client.text import printable
from ..errors import ConfigError, RemoteProtocolError
from ..results import TransactionStatus
from ..transport import Connection, tell
from .ending import End, end_command, trace_end
from .sender import LAST_STEPS
from .trace import Tracer

__all__ = ["Check", "Checks", "decided", "report"]

logger = logging.getLogger("rmq_async.producer")

Check = Callable[[MessageExt], TransactionStatus | Awaitable[TransactionStatus]]

MOST_WAITING: Final = 2000
"""Questions that wait for others to be answered (``checkRequestHoldMax``)."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of the bodies of all questions that are held; one that is larger is taken alone."""
MOST_ENDED: Final = 10_000
"""Ids of ended transactions that are known, of each connection."""

T = TypeVar("T")


class Dispatch:
    """Of one client instance: which group a question is for."""

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
            if self._unreadable & (self._unreadable - 1) == 0:
                logger.warning(
                    "%s: %d questions about transactions could not be read, the last: %s",
                    connection.address, self._unreadable, printable(error),
                )  # fmt: skip
            return
        group = message.properties.get(PropertyName.PGROUP, "")
        checks = self.groups.get(group)
        if checks is None:
            logger.debug("%s asks about a transaction of group %s, which is not here", connection.address, printable(group))
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
            reason = decoded.corrupt[0] if decoded.corrupt else "not one message"
            raise RemoteProtocolError(f"{len(body)} bytes hold {len(decoded.messages)} messages: {reason}")
        return decoded.messages[0]


class _Which(NamedTuple):
    """Distinguishes messages also where callers chose the same id for several; a message's copies all have the same."""

    msg_id: str
    born_time_ms: int
    body_crc: int


class _Running(NamedTuple):
    """A transaction of this process. ``chosen``: where its caller chose the id, the body and when it was born at the earliest."""

    end: End
    chosen: tuple[bytes, int] | None

    def has(self, message: MessageExt) -> bool:
        if self.chosen is None:
            return True
        body, born_from = self.chosen
        return message.born_time_ms >= born_from and message.body == body


class _Question:
    """One message that the broker asks about, by its newest question."""

    __slots__ = ("connection", "end", "key", "message")

    def __init__(self, connection: Connection, end: End, message: MessageExt, key: tuple[str, _Which]) -> None:
        self.connection = connection
        self.end = end
        self.message = message
        self.key = key


class Checks:
    """Of one producer, from its start to its stop. ``group``: as servers know it. ``limit``: checks that run at a time."""

    def __init__(self, instance: ClientInstance, group: str, check: Check, limit: int) -> None:
        self.tracer: Tracer | None = None
        self._instance = instance
        self._timeout = instance.config.request_timeout
        self._group = group
        self._check = check
        self._limit = limit
        self._under_way: dict[tuple[str, str], list[_Running]] = {}
        """By broker address and unique id: transactions of this process."""
        self._ended: WeakKeyDictionary[Connection, dict[str | _Which, None]] = WeakKeyDictionary()
        self._asked: dict[tuple[str, _Which], _Question] = {}
        self._waiting: deque[_Question] = deque()
        self._bytes = 0
        self._dropped = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._context: Context = copy_context()

    # -- at the instance

    def listen(self) -> None:
        """Raises ConfigError when the group is listened for already."""
        handlers = self._instance.handlers
        dispatch = handlers.get(RequestCode.CHECK_TRANSACTION_STATE)
        if not isinstance(dispatch, Dispatch):
            dispatch = Dispatch(self._instance.config.max_decompressed_size)
            handlers[RequestCode.CHECK_TRANSACTION_STATE] = dispatch
        if self._group in dispatch.groups:
            raise ConfigError(
                f"producer group {self._group} is already in use by this client; share that producer, or give another instance_name"
            )
        dispatch.groups[self._group] = self

    async def close(self) -> None:
        """Takes no more questions, and ends the checks that run."""
        dispatch = self._instance.handlers.get(RequestCode.CHECK_TRANSACTION_STATE)
        if isinstance(dispatch, Dispatch) and dispatch.groups.get(self._group) is self:
            del dispatch.groups[self._group]
            if not dispatch.groups:
                del self._instance.handlers[RequestCode.CHECK_TRANSACTION_STATE]
        self._limit = 0
        self._waiting.clear()
        self._asked.clear()
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=LAST_STEPS)
            if left:
                logger.warning(
                    "producer %s: %d of its checks (%s) have not ended %s s after they were cancelled",
                    self._group, len(left), shown(self._check), LAST_STEPS,
                )  # fmt: skip

    # -- transactions of this process

    @contextmanager
    def ending(self, address: str, end: End, chosen: tuple[bytes, int] | None) -> Iterator[None]:
        """Until this process has ended the transaction ``check`` is not asked about it, and ``end`` follows it when it moves.

        ``address``: which the broker's questions come from. ``chosen``: see ``_Running``.
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
        """The broker has confirmed the end of the copy at ``log_offset``.

        ``connection``: on which it asks, from before it confirmed this. ``known``: the message's id was made here.
        """
        if connection is None:
            return
        if known:
            self._remember(connection, end.msg_id)
        if end.log_offset != log_offset:
            self._take_back(connection, end)

    def _running(self, address: str, message: MessageExt) -> End | None:
        """The end of the one transaction of this process that the question can be about."""
        found = [each.end for each in self._under_way.get((address, message.msg_id), ()) if each.has(message)]
        return found[0] if len(found) == 1 else None

    def _remember(self, connection: Connection, which: str | _Which) -> None:
        """Further copies that the broker asks about on this connection are too many.

        On a new connection it may be one that lost the end in a crash, and ``check`` has to say.
        """
        known = self._ended.setdefault(connection, {})
        known[which] = None
        if len(known) > MOST_ENDED:
            del known[next(iter(known))]

    def _take_back(self, connection: Connection, end: End) -> None:
        tell(connection, end_command(end, TransactionStatus.ROLLBACK, "a copy of a message whose transaction has ended"))

    # -- questions

    def take(self, connection: Connection, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """Called where the question was read; ``message`` as it was decoded."""
        running = self._running(connection.address, message)
        if running is not None:
            running.queue_offset, running.log_offset = header.tranStateTableOffset, header.commitLogOffset
            running.from_check = True
            tell(connection, end_command(running, TransactionStatus.UNKNOWN, "its transaction is still under way"))
            return
        end = End(
            topic=message.topic,  # the one that the user needs a right to; Java sends the topic of all half messages
            group=self._group,
            broker=header.bname,
            msg_id=message.msg_id,
            transaction_id=header.transactionId,
            queue_offset=header.tranStateTableOffset,
            log_offset=header.commitLogOffset,
            from_check=True,
        )
        which = _Which(message.msg_id, message.born_time_ms, message.body_crc)
        known_ends = self._ended.get(connection, ())
        if which in known_ends or which.msg_id in known_ends:
            self._take_back(connection, end)
            return
        key = (connection.address, which)
        known = self._asked.get(key)
        if known is not None:
            known.connection, known.end = connection, end
            return
        size = _size(message)
        if len(self._waiting) >= MOST_WAITING or (self._bytes and self._bytes + size > MOST_BYTES):
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
        if self._dropped & (self._dropped - 1) == 0:
            logger.warning(
                "producer %s: %d questions about transactions were left to be asked again, %d are held",
                self._group, self._dropped, len(self._asked),
            )  # fmt: skip

    def _go_on(self) -> None:
        while self._waiting and len(self._tasks) < self._limit:
            question = self._waiting.popleft()
            task = asyncio.get_running_loop().create_task(
                self._answer(question), name="rmq_async transaction check", context=self._context.copy()
            )
            self._tasks.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._go_on()

    async def _answer(self, question: _Question) -> None:
        try:
            status, error = await decided(self._check, question.message)
            if error is not None:
                report(self._check, error)
            connection, end = question.connection, question.end
            trace_end(self.tracer, question.message, end, status, connection.address)
            command = end_command(end, status, f"check: {type(error).__name__}" if error is not None else None)
            if status is TransactionStatus.UNKNOWN:
                tell(connection, command)
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
                "%s refused %s of transaction %s: %d %s",
                connection.address, status.value, printable(end.msg_id), response.code, printable(response.remark),
            )  # fmt: skip
            return False
        return True


def _size(message: MessageExt) -> int:
    """Bytes, about: the body may have been compressed, and there are the properties."""
    return message.store_size + len(message.body)


async def decided(
    function: Callable[..., Any], *arguments: Any, waiting: Callable[[Awaitable[T]], Awaitable[T]] | None = None
) -> tuple[TransactionStatus, Exception | None]:
    """What a user's function says of a transaction; UNKNOWN and the error where it says nothing usable.

    ``waiting``: waits for what the function returned if that is awaitable.
    """
    task = asyncio.current_task()
    cancelled = 0 if task is None else task.cancelling()
    try:
        status = function(*arguments)
        if isawaitable(status):
            status = await (status if waiting is None else waiting(status))
        if isinstance(status, TransactionStatus):
            return status, None
        raise TypeError(f"{shown(function)} returned {shown(status)}, which is no TransactionStatus")
    except asyncio.CancelledError as own:
        if task is None or task.cancelling() > cancelled:
            raise
        error = RuntimeError(f"{shown(function)} ended with a CancelledError, and nobody had cancelled it")
        error.__cause__ = own
        return TransactionStatus.UNKNOWN, error
    except Exception as error:  # noqa: BLE001 - a user's bug or a failed transaction: the caller reports it, the broker asks
        return TransactionStatus.UNKNOWN, error


def report(function: Callable[..., Any], error: Exception) -> None:
    """Where everything goes that users' functions raise at the library."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"{shown(function)} of a transaction failed; its status is UNKNOWN", "exception": error}
    )
