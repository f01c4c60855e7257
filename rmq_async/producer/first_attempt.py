"""The first attempt of a call that no coroutine runs: without a Task while nothing fails.

It is itself the receiver of its answer, so that goes straight from the connection to the caller. When the attempt fails and
policy allows another, one Task runs the rest of the call.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ..errors import ClientStateError, QueueNotExistError, without_frames
from ..transport import Connection, Pending
from .call import ReadReply, SendCall
from .failure import explained
from .lanes import Lane, Target
from .outgoing import Outgoing
from .policy import Rules, goes_on_after
from .replies import reply_error
from .watching import tell_failed

if TYPE_CHECKING:
    from .sender import Sender

__all__ = ["FirstAttempt", "broken_off"]

Result = TypeVar("Result")


class FirstAttempt(ABC, Generic[Result]):
    """``_succeed`` and ``_fail`` are told the call's end, once, but for one that ended otherwise: they see to that themselves.

    ``fixed``: the call may not change queues. ``retries``: attempts after this one.
    """

    __slots__ = (
        "_begun", "_connection", "_deadline", "_fixed", "_lane", "_outgoing", "_pending", "_read", "_retries",
        "_sender", "_settled", "_started", "_target", "_task",
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
        self._begun = started
        """When the first attempt began; later than ``_started`` only where something needed the time."""
        self._settled = False
        self._connection: Connection | None = None
        self._pending: Pending | None = None
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def _succeed(self, result: Result) -> None: ...

    @abstractmethod
    def _fail(self, error: BaseException) -> None: ...

    @abstractmethod
    def _context(self) -> Context | None:
        """The caller's, where functions of users may run in further attempts."""

    def patience(self) -> float:
        """The end (monotonic) of the time of which an attempt may take its share while another broker is left to try."""
        return self._deadline

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
        deadline, faults = self._deadline, self._sender.faults
        if self._lane.several and self._fixed is None:
            self._begun = monotonic()
            if self._retries:
                deadline = min(deadline, self._sender.first_deadline(self._begun, self.patience(), self._retries))
        elif faults is not None and (faults.measures or faults.items):
            self._begun = monotonic()
        try:
            self._pending = self._sender.submit(connection, self._target, self._outgoing, self, deadline, self._deadline)
        except RocketMQError as error:
            self.set_exception(error)

    # -- the receiver of the first attempt

    def done(self) -> bool:
        return self._settled

    def set_result(self, reply: SendReply) -> None:
        self._settled = True
        result = self._read(reply, self._outgoing, self._target, 1)
        faults = self._sender.faults
        if result is not None and faults is not None and (faults.measures or self._target.broker in faults.items):
            faults.succeeded(self._target.broker, monotonic() - self._begun, monotonic())
        if result is None:
            self._failed(reply_error(reply, self._target), reply)
        elif self._retries and self._sender.retry_not_ok and self._sender.unconfirmed(result):
            self._go_on(None, reply)
        else:
            self._pending = None  # it leads back here, and without a cycle all of this is freed at once
            self._succeed(result)

    def set_exception(self, error: BaseException) -> None:
        self._settled = True
        if isinstance(error, RocketMQError):
            error.broker = error.broker or self._target.broker
            error.address = error.address or self._target.address
        self._failed(error, None)

    def _failed(self, error: BaseException, reply: SendReply | None) -> None:
        """The first attempt failed, or was answered with a ``reply`` that is an error."""
        rules = Rules(self._retries, self._sender.config.retry_codes)
        gone = self._fixed is not None and isinstance(error, QueueNotExistError)
        if gone or not goes_on_after(error, rules):
            self._pending = None
            self._sender.topics.doubt(self._outgoing.topic, error)
            self._tell(error)
            self._fail(explained(error, self._outgoing.topic, self._target.broker, monotonic() - self._started))
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
            self._pending = None
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
            patience=self.patience,
        )

    def _continue(self, call: SendCall[Result]) -> None:
        self._settled = True
        context = self._context()
        context = Context() if context is None else context.copy()  # callbacks enter it themselves
        self._task = asyncio.get_running_loop().create_task(self._run(call), name="rmq_async send retry", context=context)
        self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Also of a Task that was cancelled by others before it had begun, of which ``_run`` knows nothing."""
        self._task = None  # it keeps the error that cancelled it, whose frames lead back here
        if task.cancelled():
            self._dropped()

    def _dropped(self) -> None:
        """Somebody ended the Task of the call before it had begun."""
        self._fail(asyncio.CancelledError())

    async def _run(self, call: SendCall[Result]) -> None:
        try:
            result = await call.run()
        except asyncio.CancelledError:
            raise  # ``_over`` hears of it
        except Exception as error:  # noqa: BLE001 - of any kind: the caller gets it
            self._fail(without_frames(error))
        except BaseException as error:
            self._fail(broken_off(error, maybe_stored=True))
            raise
        else:
            self._succeed(result)


def broken_off(error: BaseException, *, maybe_stored: bool) -> ClientStateError:
    """The error of a call amid which a function of the user raised something that ends the program."""
    may = "the message may have been stored" if maybe_stored else "the message was not sent"
    ended = ClientStateError(f"the send was broken off by {type(error).__name__}; {may}")
    ended.maybe_stored = maybe_stored
    ended.__cause__ = error
    return ended
