"""``send_async``: a future and callbacks instead of an awaited result, without a Task while nothing fails.

A DeferredSend is itself the receiver of its first attempt, so the answer goes straight from the connection to the callbacks. When
the attempt fails and policy allows another, one Task runs the rest of the call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import Message
from rmq_protocol.send_codec import SendReply

from ..errors import GoAwayError
from ..transport import Connection, Pending
from .call import ReadReply, SendCall
from .credits import Epoch
from .lanes import Lane, Target
from .outgoing import Outgoing
from .policy import is_retriable
from .replies import reply_error
from .selectors import Wish
from .watching import tell_failed

if TYPE_CHECKING:
    from .sender import Sender

__all__ = ["DeferredSend", "check_callback", "deferred"]

Result = TypeVar("Result")


def check_callback(name: str, callback: object) -> None:
    """Raises TypeError unless ``callback`` is None or a plain function: nobody would await a coroutine function's result."""
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
    wish: Wish | None,
    read: ReadReply[Result],
    *,
    started: float,
    deadline: float,
    number: int,
    size: int,
    on_success: Callable[[Result], object] | None,
    on_error: Callable[[BaseException], object] | None,
) -> asyncio.Future[Result]:
    """Waits for what a call needs before its first attempt, begins that, and returns the future of the result.

    ``message``: None for a batch. ``number`` and ``size``: of credits.
    """
    place = sender.line(outgoing.topic).join() if wish is not None else None
    try:
        if place is not None:
            await place.turn(deadline)
        credit = sender.credits
        epoch = credit.try_take(number, size) or await credit.take(number, size, deadline)
        try:
            outgoing, lane, target = await sender.aim(outgoing, message, wish, deadline)
            if place is None:
                retries = sender.config.async_retries
                failed = await sender.connect_first(lane, target, deadline, retries)
            else:
                retries = sender.retries_on(target)
                place = sender.onward(place, target)
                failed = await sender.connect_in_order(place, target, deadline)
        except BaseException:
            credit.give_back(epoch, number, size)
            raise
        send = DeferredSend(
            sender, outgoing, lane, target, read, fixed=place is not None, retries=retries, started=started,
            deadline=deadline, epoch=epoch, number=number, size=size, on_success=on_success, on_error=on_error,
        )  # fmt: skip
        try:
            send.start(failed)
        except BaseException:
            send.drop()
            raise
    finally:
        if place is not None:
            place.leave()
    return send.future


class _SendFuture(asyncio.Future[Result]):
    """Tells its send when somebody cancels it, at once rather than an iteration later."""

    __slots__ = ("_owner",)  # without a dict, 150 bytes less for each send in flight

    def __init__(self, owner: DeferredSend[Result]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._owner = owner

    def cancel(self, msg: Any = None) -> bool:
        if self._owner.ended or not super().cancel(msg):  # ended: by a callback of its own, which is told already
            return False
        self._owner.cancelled()
        return True


class DeferredSend(Generic[Result]):
    """One accepted ``send_async``. Its credits are given back, and one of its callbacks called, exactly once."""

    __slots__ = (
        "_begun",
        "_connection",
        "_context",
        "_deadline",
        "_epoch",
        "_fixed",
        "_lane",
        "_number",
        "_on_error",
        "_on_success",
        "_opaque",
        "_outgoing",
        "_pending",
        "_read",
        "_retries",
        "_sender",
        "_settled",
        "_size",
        "_started",
        "_target",
        "_task",
        "ended",
        "future",
    )  # fmt: skip

    def __init__(
        self,
        sender: Sender,
        outgoing: Outgoing,
        lane: Lane,
        target: Target,
        read: ReadReply[Result],
        *,
        fixed: bool,
        retries: int,
        started: float,
        deadline: float,
        epoch: Epoch,
        number: int,
        size: int,
        on_success: Callable[[Result], object] | None,
        on_error: Callable[[BaseException], object] | None,
    ) -> None:
        self._sender = sender
        self._outgoing = outgoing
        self._lane = lane
        self._target = target
        self._read = read
        self._fixed = target if fixed else None
        self._retries = retries
        self._started = started
        self._deadline = deadline
        self._epoch = epoch
        self._number = number
        self._size = size
        self._on_success = on_success
        self._on_error = on_error
        self._context = copy_context() if on_success is not None or on_error is not None else None
        """Of the caller, which callbacks run in."""
        self._begun = started
        """When the first attempt began; later than ``_started`` only where faults are looked at."""
        self._settled = False
        self.ended = False
        """Its credits are back and its callback is being called, or was."""
        self._connection: Connection | None = None
        self._pending: Pending | None = None
        self._task: asyncio.Task[None] | None = None
        self.future: asyncio.Future[Result] = _SendFuture(self)

    def start(self, failed: RocketMQError | None = None) -> None:
        """Puts the first attempt on its way; without a connection the whole call becomes a Task.

        ``failed``: why there was no connection to begin on.
        """
        if failed is not None:
            try:
                tell_failed(self._outgoing, self._target, failed)
            except RocketMQError as refused:
                failed = refused
            self.set_exception(failed)
            return
        connection = self._sender.connections.get(self._target.address)
        if connection is None:
            call = self._call()
            call.begin_with(self._target)
            self._continue(call)
            return
        self._connection = connection
        if self._sender.faults is not None:
            self._begun = monotonic()
        deadline = self._deadline
        if self._lane.several and self._retries and self._fixed is None:
            deadline = self._sender.first_deadline(deadline, self._retries)
        try:
            self._pending = self._sender.submit(connection, self._target, self._outgoing, self, deadline, self._deadline)
        except RocketMQError as error:
            self.set_exception(error)

    def drop(self) -> None:
        """``start`` raised: nobody gets the future, and nobody is told."""
        self._settled = True
        if not self.ended:
            self.ended = True
            self._give_back()

    # -- the receiver of the first attempt

    def done(self) -> bool:
        return self._settled

    def set_result(self, reply: SendReply) -> None:
        self._settled = True
        result = self._read(reply, self._outgoing, self._target, 1)
        if result is not None and self._sender.faults is not None:
            self._sender.faults.succeeded(self._target.broker, monotonic() - self._begun, monotonic())
        if result is None:
            self._failed(reply_error(reply, self._target), reply)
        elif self._retries and self._sender.retry_not_ok and self._sender.unconfirmed(result):
            self._go_on(None, reply)
        else:
            self._succeed(result)

    def set_exception(self, error: BaseException) -> None:
        self._settled = True
        if isinstance(error, RocketMQError):
            error.broker = error.broker or self._target.broker
            error.address = error.address or self._target.address
        self._failed(error, None)

    def _failed(self, error: BaseException, reply: SendReply | None) -> None:
        """The first attempt failed, or was answered with a ``reply`` that is an error."""
        further = self._retries or (self._fixed is not None and isinstance(error, GoAwayError))
        if not further or not is_retriable(error, self._sender.config.retry_codes):
            self._sender.topics.doubt(self._outgoing.topic, error)
            self._tell(error)
            self._fail(error)
            return
        self._go_on(error, reply)

    def _tell(self, error: BaseException) -> None:
        """What the first attempt says about its broker, where no further one does."""
        if self._sender.faults is not None:
            self._sender.faults.failed(self._target.broker, error, monotonic() - self._begun, monotonic())

    def _go_on(self, error: BaseException | None, reply: SendReply | None) -> None:
        call = self._call()
        if self._connection is not None and self._pending is not None:
            call.adopt(self._target, self._connection, self._pending, self._begun, error, reply)
        elif isinstance(error, RocketMQError):
            call.adopt_failed(self._target, error, self._started)
        self._continue(call)

    # -- further attempts

    def _call(self) -> SendCall[Result]:
        return SendCall(
            self._sender,
            self._outgoing,
            self._lane,
            self._read,
            deadline=self._deadline,
            started=self._started,
            retries=self._retries,
            fixed=self._fixed,
        )

    def _continue(self, call: SendCall[Result]) -> None:
        self._settled = True
        self._task = asyncio.get_running_loop().create_task(self._run(call), name="rmq_async send retry")
        self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Also of a Task that was cancelled by others before it had begun, of which ``_run`` knows nothing."""
        if task.cancelled() and not self.future.done():
            self.future.cancel()

    async def _run(self, call: SendCall[Result]) -> None:
        try:
            result = await call.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
            self._fail(error)
        else:
            self._succeed(result)

    # -- the end

    def cancelled(self) -> None:
        """Somebody cancelled the future."""
        self._settled = self.ended = True
        if self._connection is not None and self._pending is not None:
            self._connection.forget(self._pending.opaque)
            if self._outgoing.watch is not None:
                self._outgoing.watch.give_up(asyncio.CancelledError())
        if self._task is not None:
            self._task.cancel()
        else:
            self._tell(asyncio.CancelledError())
        self._give_back()
        self._call_back(self._on_error, asyncio.CancelledError())

    def _succeed(self, result: Result) -> None:
        if self.ended:
            return
        self.ended = True
        self._give_back()
        try:
            self._call_back(self._on_success, result)
        finally:
            self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if self.ended:
            return
        self.ended = True
        self._give_back()
        try:
            self._call_back(self._on_error, error)
        finally:
            self.future.set_exception(error)
            if self._on_error is not None:
                self.future.exception()  # the callback has it: a future that nobody awaits has nothing to report

    def _give_back(self) -> None:
        self._sender.credits.give_back(self._epoch, self._number, self._size)

    def _call_back(self, callback: Callable[[Any], object] | None, argument: object) -> None:
        if callback is None or self._context is None:
            return
        try:
            self._context.run(callback, argument)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a user's bug, of which no message is the worse
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"callback {callback!r} of a send raised", "exception": error}
            )
