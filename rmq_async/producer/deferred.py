"""``send_async``: a future and callbacks instead of an awaited result, without a Task while nothing fails."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import Context, copy_context
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties

from ..results import SendResult
from ..transport import Connection
from .accepted import Accepted
from .call import ReadReply
from .first_attempt import FirstAttempt
from .lanes import Lane, Target
from .outgoing import Outgoing
from .replies import stored_message

if TYPE_CHECKING:
    from .sender import Sender

__all__ = ["DeferredSend", "begun_plainly", "check_callback", "deferred"]

Result = TypeVar("Result")


def check_callback(name: str, callback: object) -> None:
    """Raises TypeError unless ``callback`` is None or a plain function: a coroutine function's result would never be awaited."""
    if callback is None:
        return
    if not callable(callback):
        raise TypeError(f"{name} must be a function, not {type(callback).__name__}")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(getattr(callback, "__call__", None)):  # noqa: B004
        raise TypeError(f"{name} must be a plain function, not a coroutine function")


async def deferred(
    sender: Sender,
    outgoing: Outgoing,
    message: Message | None,
    read: ReadReply[Result],
    *,
    started: float,
    deadline: float,
    number: int,
    size: int,
    on_success: Callable[[Result], object] | None,
    on_error: Callable[[BaseException], object] | None,
    turn: Target | None = None,
) -> asyncio.Future[Result]:
    """Waits for what a call needs before its first attempt, begins that, and returns the future of the result.

    ``message``: None for a batch. ``number`` and ``size``: of credits. ``turn``: the next queue, where that is taken already.
    """
    credit, retries = sender.credits, sender.config.async_retries
    epoch = credit.try_take(number, size) or await credit.take(number, size, deadline)
    try:
        outgoing, lane, target = await sender.aim(outgoing, message, None, deadline, turn)
        failed = await sender.connect_first(lane, target, deadline, retries)
    except BaseException:
        credit.give_back(epoch, number, size)
        raise
    accepted = Accepted(credit, epoch, number, size, on_success, on_error)
    accepted.context = accepted.context or copy_context()
    send = DeferredSend(sender, outgoing, lane, target, read, accepted, retries=retries, started=started, deadline=deadline)
    try:
        send.start(failed)
    except BaseException:
        send.drop()
        raise
    return accepted.future


def begun_plainly(
    sender: Sender,
    message: Message,
    size: int,
    on_success: Callable[[SendResult], object] | None,
    on_error: Callable[[BaseException], object] | None,
) -> tuple[asyncio.Future[SendResult] | None, Target | None]:
    """``deferred`` for a message that says nothing but topic and body; no future where something has to be waited for.

    With that comes the queue whose turn it was, if it came to that. ``size``: of the body. It takes half as many calls as the
    general way.
    """
    credit, lane = sender.credits, sender.lanes.get(message.topic)
    if lane is None or credit.contended or credit.free <= 0 or credit.free_bytes < size:
        return None, None
    started = monotonic()
    deadline = started + sender.timeout
    accepted: Accepted[SendResult]
    if (gathering := lane.gathering) is not None:
        credit.free -= 1
        credit.free_bytes -= size
        accepted = Accepted(credit, credit.epoch, 1, size, on_success, on_error)
        accepted.work = gathering
        gathering.add_plain(accepted, message, size + sender.plain_size, deadline)
        return accepted.future, None
    target = lane.next()
    connection = sender.connections.get(target.address)
    if connection is None:
        return None, target
    credit.free -= 1
    credit.free_bytes -= size
    accepted = Accepted(credit, credit.epoch, 1, size, on_success, on_error)
    unique_id, body = sender.ids.next_at(started), message.body
    outgoing = Outgoing(message.topic, unique_id, message_properties(message, unique_id), body)
    send = DeferredSend(
        sender, outgoing, lane, target, stored_message, accepted, retries=sender.config.async_retries,
        started=started, deadline=deadline,
    )  # fmt: skip
    send.start_plain(connection, sender.ids.born_ms, unique_id, body)
    return accepted.future, None


class DeferredSend(FirstAttempt[Result]):
    """The attempts of one accepted ``send_async``; ``accepted`` receives their end."""

    __slots__ = ("_accepted",)

    def __init__(
        self,
        sender: Sender,
        outgoing: Outgoing,
        lane: Lane,
        target: Target,
        read: ReadReply[Result],
        accepted: Accepted[Result],
        *,
        retries: int,
        started: float,
        deadline: float,
    ) -> None:
        super().__init__(sender, outgoing, lane, target, read, fixed=False, retries=retries, started=started, deadline=deadline)
        self._accepted = accepted
        accepted.work = self

    def start_plain(self, connection: Connection, born_ms: bytes, unique_id: str, body: bytes) -> None:
        """``start`` for a message without properties, on a connection that is open."""
        sender, deadline = self._sender, self._deadline
        self._connection = connection
        if self._lane.several and self._retries:
            deadline = sender.first_deadline(self._started, deadline, self._retries)
        try:
            self._pending = connection.start_plain(
                self._target.single, born_ms, unique_id, body, self, deadline, self._deadline, sender, sender.window
            )
        except RocketMQError as error:
            self.set_exception(error)

    def _context(self) -> Context | None:
        return self._accepted.context

    def drop(self) -> None:
        """``start`` raised."""
        self._settled = True
        self._accepted.drop()

    def left(self) -> None:
        """The future is cancelled."""
        self._settled = True
        if self._connection is not None and self._pending is not None:
            self._connection.forget(self._pending.opaque)
            self._pending = None
            if self._outgoing.watch is not None:
                self._outgoing.watch.give_up(asyncio.CancelledError())
        if self._task is not None:
            self._task.cancel()
        else:
            self._tell(asyncio.CancelledError())

    def _succeed(self, result: Result) -> None:
        self._accepted.set_result(result)

    def _fail(self, error: BaseException) -> None:
        self._accepted.set_exception(error)

    def _dropped(self) -> None:
        self._accepted.future.cancel()
