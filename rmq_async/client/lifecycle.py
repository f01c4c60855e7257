"""The life cycle of a producer, consumer or admin on a shared ClientInstance: new, starting, running, stopping, stopped.

It starts on one event loop, stops, and can start again on any loop. A stop ends a start that waits. A forked child and other loops
are refused.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from typing import ClassVar, Final

from rmq_protocol.command import RemotingCommand

from .. import machine
from .._asyncio import Startable, StopScope
from .._ordered import OrderedSet
from .._text import printable
from ..config import ClientConfig
from ..errors import ClientStateError, WrongLoopError
from ..health import Problem, ProblemCode
from ..timeouts import stop_budget
from ..tracebacks import own_copy
from ..transport import check_not_forked, generation
from .instance import ClientInstance

_TEXT_LIMIT: Final = 500
"""Maximum characters of an error in a problem's text."""


class LifeState(Enum):
    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


_NOT_RUNNING: Final[dict[LifeState, ProblemCode]] = {
    LifeState.NEW: ProblemCode.NOT_STARTED,
    LifeState.STARTING: ProblemCode.STARTING,
    LifeState.STOPPING: ProblemCode.STOPPING,
    LifeState.STOPPED: ProblemCode.STOPPED,
}


class LifeCycle(Startable):
    """Acquires the instance for ``client_config`` at the start and releases it at the stop.

    Subclasses register in ``_open`` and unregister in ``_close``.

    Args:
        label: The subject of errors.
        stop_timeout: Seconds, the default of ``stop``.
    """

    _waits_for_requests: ClassVar = False
    """Whether the last user's stop waits, within its timeout, for requests that are still pending."""

    def __init__(self, client_config: ClientConfig, *, label: str, stop_timeout: float) -> None:
        self.client_config = client_config
        self._label = label
        self._stop_timeout = stop_timeout
        self._state = LifeState.NEW
        self._instance: ClientInstance | None = None
        self._failure = ""
        """The error of the newest start, if it failed."""
        self._changing: asyncio.Future[BaseException | None] | None = None
        """Done when the present start or stop has ended; its result is the error of a start, or None."""
        self._starting = StopScope(partial(_stopped_early, self._label))
        """The scope of a start's waits, which ``stop`` ends."""
        self._generation = generation()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.value}>"

    def __del__(self) -> None:
        if getattr(self, "_state", None) is LifeState.RUNNING and self._generation == generation():
            warnings.warn(f"{self!r} was dropped without stop()", ResourceWarning, stacklevel=2, source=self)

    async def start(self) -> None:
        """Connect to a name server; with ``start_without_cluster`` in the background, if none answers.

        Do nothing when already running; may be called again after a failure and after ``stop``.

        After a failure or a cancellation no connection or task remains, unless others share it. A call during another
        ``start`` waits for its end and raises its error; if the other call is cancelled, this one starts.

        Raises:
            NameServerError: When none is configured, none answers within ``request_timeout`` and ``start_without_cluster`` is
                False, or all addresses are those of brokers.
            ConfigError: For a group that this client has already, and for an invalid address in ``NAMESRV_ADDR``.
            RequestTimeoutError: When the system's certificate authorities are not read in that time.
            ClientStateError: During ``stop``, and when ``stop`` ends this start.
            WrongLoopError, ForkedError: When it runs on another loop or in the parent process.
        """
        while self._state is LifeState.STARTING:
            await self._join_start()
        if self._state is LifeState.RUNNING:
            self._running_instance()
            return
        if self._state is LifeState.STOPPING:
            raise ClientStateError(f"{self._label} is {self._state.value}; await that stop() before the next start()")
        self._state = LifeState.STARTING
        self._generation = generation()
        self._changing = changing = asyncio.get_running_loop().create_future()
        self._starting = StopScope(partial(_stopped_early, self._label))
        try:
            instance = await self._starting.run(ClientInstance.acquire(self.client_config))
            try:
                self._check_starting()
                await self._open(instance)
            except BaseException:
                await instance.release()
                raise
            self._instance = instance
            self._state = LifeState.RUNNING
            self._failure = ""
            changing.set_result(None)
        except BaseException as error:
            shared = own_copy(error) if isinstance(error, Exception) else None
            if self._state is LifeState.STOPPING:
                shared = _stopped_early(self._label)
            elif isinstance(error, Exception):
                self._failure = printable(error, _TEXT_LIMIT)
            self._state = LifeState.NEW
            changing.set_result(shared)  # None of a start that is cancelled: the first of the calls that joined it starts
            raise

    async def stop(self, timeout: float | None = None) -> None:
        """Unregister, and close the connections unless others share them.

        Do nothing when not started or already stopped.

        Pending calls fail with ClientStateError immediately.

        Args:
            timeout: Seconds for the brokers' answers, at least 0; default: 3 for PullConsumer and Admin.

        Raises:
            TypeError, ValueError: For another ``timeout``.
            WrongLoopError: On another loop.
            ForkedError: In a forked child.
        """
        budget = stop_budget(timeout, self._stop_timeout)
        while self._is_in(LifeState.STARTING, LifeState.STOPPING):
            joined = self._present_change()
            await self._join_change()
            if self._is_in(LifeState.RUNNING) and self._changing is joined:
                break  # the start had made its last wait, and did not hear of the stop
            if not self._is_in(LifeState.STOPPING):
                return
        if self._state is not LifeState.RUNNING:
            return
        instance = self._running_instance()
        deadline = machine.monotonic() + budget
        self._state = LifeState.STOPPING
        self._changing = changing = asyncio.get_running_loop().create_future()
        try:
            await self._close(instance, deadline)
        except BaseException:
            deadline = machine.monotonic()
            raise
        finally:
            self._instance = None
            try:
                await instance.release(max(0.0, deadline - machine.monotonic()) if self._waits_for_requests else 0.0)
            finally:
                self._state = LifeState.STOPPED
                changing.set_result(None)

    async def aclose(self, timeout: float | None = None) -> None:
        """Stop, as ``stop`` does."""
        await self.stop(timeout)

    def _is_in(self, *states: LifeState) -> bool:
        return self._state in states

    async def _join_change(self) -> None:
        """End a start that waits, and wait for the end of the start or stop."""
        changing = self._present_change()
        self._state = LifeState.STOPPING
        self._starting.stop()  # nothing has been accepted yet that a stop would have to wait for
        await asyncio.wait([changing])

    async def _join_start(self) -> None:
        """Wait for the end of another call of ``start`` and raise a copy of its error; return also if that call is cancelled.

        Raises:
            ClientStateError: If the object has been stopped since.
        """
        changing = self._present_change()
        await asyncio.wait([changing])
        error = changing.result()
        if error is not None:
            raise own_copy(error)
        if self._state in (LifeState.STOPPING, LifeState.STOPPED):  # since that start
            raise _stopped_early(self._label)

    def _present_change(self) -> asyncio.Future[BaseException | None]:
        """Return the future of the present start or stop.

        Raises:
            ForkedError: In a child.
            WrongLoopError: On another loop.
        """
        check_not_forked(self._generation)
        assert self._changing is not None
        if self._changing.get_loop() is not asyncio.get_running_loop():
            raise self._wrong_loop()
        return self._changing

    # -- for subclasses

    async def _open(self, instance: ClientInstance) -> None:
        """Register with ``instance``; undoes that when it fails. Its waits go through ``_starting``."""

    async def _close(self, instance: ClientInstance, deadline: float) -> None:
        """End calls and unregisters, by ``deadline`` (monotonic)."""

    def _running_instance(self) -> ClientInstance:
        """Return the instance.

        Raises:
            ClientStateError: Unless running.
            ForkedError: In a child.
            WrongLoopError: On another loop.
        """
        instance = self._instance
        if instance is None or self._state is not LifeState.RUNNING:
            raise self._not_running()
        instance.check_usable()
        return instance

    def _idle_problem(self, state: LifeState) -> Problem | None:
        """Return the problem that the object does not run, with the reason if its newest start failed; None while it runs. May
        be called from any thread.

        Args:
            state: The state to report.
        """
        code, text = _NOT_RUNNING.get(state), f"{self._label} is {state.value}"
        if code is None:
            return None
        if self._failure and state in (LifeState.NEW, LifeState.STARTING):
            text += f", its newest start failed: {self._failure}"
        return Problem(code, text)

    def _check_starting(self) -> None:
        """Raise ClientStateError if the start was stopped."""
        if self._state is not LifeState.STARTING:
            raise _stopped_early(self._label)

    def _not_running(self) -> ClientStateError:
        return ClientStateError(f"{self._label} is {self._state.value}{self._advice()}")

    def _advice(self) -> str:
        """Return what a user can do about the state, as the end of an error's text."""
        if self._state is LifeState.STARTING:
            return "; await that start() first"
        if self._state is LifeState.STOPPING:
            return "; await that stop(), then start it again"
        return f": use it inside `async with {type(self).__name__}(...)`, or await its start() first"

    def _wrong_loop(self) -> WrongLoopError:
        return WrongLoopError(f"{self._label} was started on another event loop; make one per loop")


def _stopped_early(label: str) -> ClientStateError:
    return ClientStateError(f"{label} was stopped while it started; start it again to use it")


# The base class of PullConsumer and Admin: a life cycle, and calls that a stop ends.

STOP_TIMEOUT: Final = 3.0
"""Seconds; the default of ``stop``."""


class ClientUser(LifeCycle):
    """A user of the shared instance whose ``stop`` ends its calls.

    Subclasses register with the instance in ``_join`` and unregister in ``_leave``.
    """

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config, label=f"this {type(self).__name__}", stop_timeout=STOP_TIMEOUT)
        self._calls: OrderedSet[asyncio.Future[RemotingCommand]] = OrderedSet()
        self._scopes: OrderedSet[asyncio.Timeout] = OrderedSet()

    @property
    def config(self) -> ClientConfig:
        return self.client_config

    # -- for subclasses

    _client = LifeCycle._running_instance  # noqa: SLF001 - its base class

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[ClientInstance]:
        """Yield the running instance for a call of several steps. Raises as ``_client`` does, and ClientStateError when
        ``stop`` ends the call.
        """
        instance = self._client()
        scope = asyncio.timeout(None)  # a cancellation scope: other cancellations pass through
        try:
            async with scope:
                self._scopes.add(scope)
                yield instance
        except TimeoutError:
            if scope.expired():
                raise self._stopped() from None
            raise
        finally:
            self._scopes.discard(scope)

    def _join(self, instance: ClientInstance) -> None:
        """Join the instance; called once, when it runs."""

    async def _leave(self, instance: ClientInstance, timeout: float) -> None:
        """Leave the instance within ``timeout`` seconds; called once, before its release."""

    async def _open(self, instance: ClientInstance) -> None:
        self._join(instance)

    async def _close(self, instance: ClientInstance, deadline: float) -> None:
        for call in self._calls:
            if not call.done():
                call.set_exception(self._stopped())
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now)
        self._scopes.clear()
        await self._leave(instance, max(deadline - machine.monotonic(), 0.0))

    def _stopped(self) -> ClientStateError:
        return ClientStateError(f"{self._label} was stopped during the call; start it again to repeat that")
