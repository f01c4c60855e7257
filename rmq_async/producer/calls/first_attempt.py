"""The first attempt of a call that has no coroutine of its own, such as ``send_async``.

The object itself receives the response to its request. A task is needed only if there is no open connection (the task then runs the
whole call) or if another attempt follows (the task then runs the rest of the call).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextvars import Context
from typing import Generic

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ... import machine
from ...errors import ClientStateError, QueueNotExistError
from ...tracebacks import without_frames
from ...transport import Connection, Pending
from ..admission import Call, Result
from ..encoding import Outgoing, is_unclear, notify_failed, reply_error
from ..routing import Target, TopicQueues
from .call_errors import explained
from .dispatch import Dispatch
from .retry_loop import RetryLoop
from .retry_policy import goes_on_after


class FirstAttempt(ABC, Generic[Result]):
    """Base class of calls that report their result with a method call, without a coroutine that waits for it.

    Exactly one of ``_succeed`` and ``_fail`` is called, once. A subclass that has already ended the call ignores this.
    """

    __slots__ = (
        "_begun",
        "_call",
        "_connection",
        "_dispatch",
        "_pending",
        "_settled",
        "_target",
        "_task",
        "_topic_queues",
    )  # fmt: skip

    _fixed: Target | None = None
    """The only target that the call may use; None if retries may choose another queue."""

    def __init__(self, dispatch: Dispatch, call: Call[Result], topic_queues: TopicQueues, target: Target) -> None:
        self._dispatch = dispatch
        self._call = call
        self._topic_queues = topic_queues
        self._target = target
        # The start of the attempt. The clock is read again only if a cap or a fault table needs the exact time.
        self._begun = call.started
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
        """Return the caller's context if it is known and further attempts may run functions of the user. Return None otherwise."""

    def patience(self) -> float:
        """Return the time (monotonic) until which attempts with a time limit share the remaining time: the deadline, or earlier in
        a subclass.
        """
        return self._call.deadline

    def start(self, failed: RocketMQError | None = None) -> None:
        """Send the first attempt. If there is no open connection, a task runs the whole call.

        Args:
            failed: The error of an earlier connection attempt, which then counts as the first attempt.
        """
        if failed is not None:
            self._end_unconnected(failed)
            return
        connection = self._dispatch.connections.get(self._target.address)
        if connection is None or (self._call.lite_topic is not None and not self._dispatch.serves(connection, self._call)):
            loop = self._retry_loop()
            loop.begin_with(self._target)
            self._continue(loop)
            return
        self._connection = connection
        deadline, faults = self._call.deadline, self._dispatch.faults
        if self._topic_queues.several and self._fixed is None:
            self._begun = machine.monotonic()
            if self._call.retries:
                deadline = min(deadline, self._dispatch.first_deadline(self._begun, self.patience(), self._call.retries))
        elif faults is not None and (faults.measures or faults.items):
            self._begun = machine.monotonic()
        try:
            call, dispatch = self._call, self._dispatch
            outgoing = call.outgoing
            if (
                outgoing.__class__ is Outgoing  # only Watched has a ``watch``
                and outgoing.batch_ids is None
                and not outgoing.code | outgoing.sys_flag | self._target.general
            ):  # nearly always, ``submit`` would do only this for one message
                requests = connection.requests
                if not requests.is_open:
                    requests.require_open()
                self._pending = requests.enter_single(
                    opaque := next(requests.opaques, 0) or requests.next_opaque(),
                    self._target.single.parts(
                        opaque, dispatch.wire.born_ms(), outgoing.properties, outgoing.body, 0, outgoing.flag
                    ),
                    self, deadline, call.deadline, dispatch.owner, dispatch.window,
                )  # fmt: skip
            else:
                self._pending = dispatch.submit(connection, self._target, outgoing, self, deadline, call.deadline)
        except RocketMQError as error:
            self.set_exception(error)

    def _end_unconnected(self, failed: RocketMQError) -> None:
        try:
            notify_failed(self._call.outgoing, self._target, failed)
        except RocketMQError as refused:
            failed = refused
        self.set_exception(failed)

    # -- receiver of the first attempt

    def done(self) -> bool:
        return self._settled

    def set_result(self, reply: SendReply) -> None:
        self._settled = True
        result = self._call.read(reply, self._call.outgoing, self._target, 1)
        faults = self._dispatch.faults
        if result is not None and faults is not None and (faults.measures or self._target.broker in faults.items):
            faults.succeeded(self._target.broker, machine.monotonic() - self._begun, machine.monotonic())
        if result is None:
            self._failed(reply_error(reply, self._target, self._connection), reply)
        elif self._dispatch.retry_not_ok and self._call.retries and self._dispatch.is_unconfirmed(result):
            self._go_on(None, reply)
        else:
            self._pending = None  # it refers to this object: without this cycle, reference counting frees both
            self._succeed(result)

    def set_exception(self, error: BaseException) -> None:
        self._settled = True
        if isinstance(error, RocketMQError):
            error.broker = error.broker or self._target.broker
            error.address = error.address or self._target.address
        self._failed(error, None)

    def _failed(self, error: BaseException, reply: SendReply | None) -> None:
        """End the call or continue it, after ``error`` or an error response ``reply``."""
        rules = self._dispatch.rules(self._call)
        gone = self._fixed is not None and isinstance(error, QueueNotExistError)
        if gone or not (goes_on_after(error, rules) or (reply is not None and is_unclear(reply, self._connection))):
            self._pending = None
            self._dispatch.router.topics.doubt(self._call.outgoing.topic, error)
            self._notify(error)
            self._fail(
                explained(error, self._call.outgoing.topic, self._target.broker, machine.monotonic() - self._call.started)
            )
            return
        self._go_on(error, reply)

    def _notify(self, error: BaseException) -> None:
        """Report the failure to the fault table. A call that continues reports it through its RetryLoop instead."""
        if self._dispatch.faults is not None:
            self._dispatch.faults.failed(self._target.broker, error, machine.monotonic() - self._begun, machine.monotonic())

    def _go_on(self, error: BaseException | None, reply: SendReply | None) -> None:
        loop = self._retry_loop()
        if self._connection is not None and self._pending is not None:
            loop.adopt(self._target, self._connection, self._pending, self._begun, error, reply)
            self._pending = None
        elif isinstance(error, RocketMQError):
            loop.adopt_failed(self._target, error, self._call.started)
        self._continue(loop)

    # -- further attempts

    def _retry_loop(self) -> RetryLoop[Result]:
        return RetryLoop(self._dispatch, self._call, self._topic_queues, fixed=self._fixed, patience=self.patience)

    def _continue(self, loop: RetryLoop[Result]) -> None:
        self._settled = True
        context = self._context()
        context = Context() if context is None else context.copy()  # copied, because callbacks enter the caller's context
        self._task = asyncio.get_running_loop().create_task(self._run(loop), name="rmq_async send retry", context=context)
        self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Fail the call if its task was cancelled, even before ``_run`` began."""
        self._task = None  # breaks a cycle: the task keeps its CancelledError, whose frames refer to this object
        if task.cancelled():
            self._dropped()

    def _dropped(self) -> None:
        """Fail the call after its task was cancelled."""
        self._fail(asyncio.CancelledError())

    async def _run(self, loop: RetryLoop[Result]) -> None:
        try:
            result = await loop.run()
        except asyncio.CancelledError:
            raise  # ``_over`` handles it
        except Exception as error:  # noqa: BLE001 - the caller gets any error
            self._fail(without_frames(error))
        except BaseException as error:
            self._fail(broken_off(error, maybe_stored=True))
            raise
        else:
            self._succeed(result)


def broken_off(error: BaseException, *, maybe_stored: bool) -> ClientStateError:
    """Return the error of a call in which user code raised KeyboardInterrupt or another error that ends the program."""
    may = "the message may have been stored, so look for it before you send it again"
    if not maybe_stored:
        may = "the message was not sent, so send it again"
    ended = ClientStateError(f"the send was interrupted by {type(error).__name__}; {may}")
    ended.maybe_stored = maybe_stored
    ended.__cause__ = error
    return ended
