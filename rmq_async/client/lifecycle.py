"""The life cycle of a producer, consumer or admin on a shared ClientInstance: new, starting, running, stopping, stopped.

The object starts on one event loop, stops, and can start again on any loop. ``stop`` ends a ``start`` that is still waiting. Calls
from a forked child or on another loop raise an error.
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
"""Maximum number of characters of an error in the text of a problem."""


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
    """Base class of objects that acquire the instance for ``client_config`` at their start and release it at their stop.

    Subclasses register with the instance in ``_open`` and unregister in ``_close``.

    Args:
        label: The subject of error messages.
        stop_timeout: The default timeout of ``stop`` in seconds.
    """

    _waits_for_requests: ClassVar = False
    """Whether ``stop`` waits, within its timeout, for pending requests if this is the last user of the instance."""

    def __init__(self, client_config: ClientConfig, *, label: str, stop_timeout: float) -> None:
        self.client_config = client_config
        self._label = label
        self._stop_timeout = stop_timeout
        self._state = LifeState.NEW
        self._instance: ClientInstance | None = None
        self._failure = ""
        """The error of the last start, if it failed."""
        self._changing: asyncio.Future[BaseException | None] | None = None
        """Done when the current start or stop has ended. The result is the error of the start, or None."""
        self._starting = StopScope(partial(_stopped_early, self._label))
        """The waits of a running ``start``, which ``stop`` ends."""
        self._generation = generation()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.value}>"

    def __del__(self) -> None:
        if getattr(self, "_state", None) is LifeState.RUNNING and self._generation == generation():
            warnings.warn(f"{self!r} was dropped without stop()", ResourceWarning, stacklevel=2, source=self)

    async def start(self) -> None:
        """Connect to a name server. With ``start_without_cluster``, connect in the background if no name server responds.

        Do nothing if already running. ``start`` may be called again after a failure and after ``stop``.

        After a failure or a cancellation, no connection or task remains unless other clients share it. A call during another
        ``start`` waits until that call ends and raises its error; if that call is cancelled, this call starts the client.

        Raises:
            NameServerError: If no name server is configured, if none responds within ``request_timeout`` and
                ``start_without_cluster`` is False, or if all addresses belong to brokers.
            ConfigError: If this client already uses the group, or if ``NAMESRV_ADDR`` contains an invalid address.
            RequestTimeoutError: If the system's certificate authorities are not read within ``request_timeout``.
            ClientStateError: If ``stop`` is running, or ends this start.
            WrongLoopError, ForkedError: If the object is running on another loop or in the parent process.
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
            changing.set_result(shared)  # None if this start was cancelled: the first waiting call starts anew
            raise

    async def stop(self, timeout: float | None = None) -> None:
        """Unregister, and close the connections unless other clients share them.

        Do nothing if not started or already stopped. Pending calls fail with ClientStateError immediately.

        Args:
            timeout: Maximum seconds to wait for the brokers' responses, at least 0. The default is 3 for PullConsumer and Admin.

        Raises:
            TypeError, ValueError: If ``timeout`` is not a number of at least 0.
            WrongLoopError: If the object was started on another loop.
            ForkedError: If the process is a fork of the process that started the object.
        """
        budget = stop_budget(timeout, self._stop_timeout)
        while self._is_in(LifeState.STARTING, LifeState.STOPPING):
            joined = self._present_change()
            await self._join_change(machine.monotonic() + budget)
            if self._is_in(LifeState.RUNNING) and self._changing is joined:
                break  # the start was past its last wait, so the stop did not end it
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
        """Call ``stop``."""
        await self.stop(timeout)

    def _is_in(self, *states: LifeState) -> bool:
        return self._state in states

    async def _join_change(self, deadline: float) -> None:
        """End a ``start`` that is waiting, and wait until the current start or stop has ended.

        Args:
            deadline: Monotonic time by which handlers that already run, and the commits of their messages, must have ended.
        """
        changing = self._present_change()
        self._state = LifeState.STOPPING
        self._starting.stop(deadline)
        await asyncio.wait([changing])

    async def _join_start(self) -> None:
        """Wait until another call of ``start`` has ended, and raise a copy of its error. Return if it succeeds or is cancelled.

        Raises:
            ClientStateError: If ``stop`` was called after that start.
        """
        changing = self._present_change()
        await asyncio.wait([changing])
        error = changing.result()
        if error is not None:
            raise own_copy(error)
        if self._state in (LifeState.STOPPING, LifeState.STOPPED):  # stopped since that start
            raise _stopped_early(self._label)

    def _present_change(self) -> asyncio.Future[BaseException | None]:
        """Return the future of the current start or stop.

        Raises:
            ForkedError: If the process is a fork of the one in which the start or stop runs.
            WrongLoopError: If the start or stop runs on another loop.
        """
        check_not_forked(self._generation)
        assert self._changing is not None
        if self._changing.get_loop() is not asyncio.get_running_loop():
            raise self._wrong_loop()
        return self._changing

    # -- for subclasses

    async def _open(self, instance: ClientInstance) -> None:
        """Register with ``instance``. An implementation undoes this if it fails, and uses only ``_starting`` to wait."""

    async def _close(self, instance: ClientInstance, deadline: float) -> None:
        """End all calls and unregister by ``deadline`` (monotonic)."""

    def _running_instance(self) -> ClientInstance:
        """Return the acquired instance.

        Raises:
            ClientStateError: If the object is not running.
            ForkedError: If the process is a fork of the process that started the object.
            WrongLoopError: If the object was started on another loop.
        """
        instance = self._instance
        if instance is None or self._state is not LifeState.RUNNING:
            raise self._not_running()
        instance.check_usable()
        return instance

    def _idle_problem(self, state: LifeState) -> Problem | None:
        """Return a problem if the object is not running, with the reason if its last start failed. Return None if it runs.

        May be called from any thread.

        Args:
            state: The state to report.
        """
        code, text = _NOT_RUNNING.get(state), f"{self._label} is {state.value}"
        if code is None:
            return None
        if self._failure and state in (LifeState.NEW, LifeState.STARTING):
            text += f"; its last start failed: {self._failure}"
        return Problem(code, text)

    def _check_starting(self) -> None:
        """Raise ClientStateError if ``stop`` was called during the start."""
        if self._state is not LifeState.STARTING:
            raise _stopped_early(self._label)

    def _not_running(self) -> ClientStateError:
        return ClientStateError(f"{self._label} is {self._state.value}{self._advice()}")

    def _advice(self) -> str:
        """Return advice for the user that fits the current state, as the end of an error message."""
        if self._state is LifeState.STARTING:
            return "; await that start() first"
        if self._state is LifeState.STOPPING:
            return "; await that stop(), then start it again"
        return f": use it inside `async with {type(self).__name__}(...)`, or await its start() first"

    def _wrong_loop(self) -> WrongLoopError:
        return WrongLoopError(f"{self._label} was started on another event loop; make one for each loop")


def _stopped_early(label: str) -> ClientStateError:
    return ClientStateError(f"{label} was stopped while it started; start it again to use it")


# The base class of PullConsumer and Admin: a life cycle whose stop ends pending calls.

STOP_TIMEOUT: Final = 3.0
"""The default timeout of ``stop`` in seconds."""


class ClientUser(LifeCycle):
    """A user of the shared instance whose ``stop`` ends its pending calls.

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
        """Yield the running instance for a call with several steps.

        Raises:
            ClientStateError: If the object is not running, or if ``stop`` ends the call.
            RocketMQError: Other errors of ``_client``.
        """
        instance = self._client()
        scope = asyncio.timeout(None)  # a scope that ``_close`` can end; other cancellations pass through it
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
        """Register with the instance. It is called once, when the instance runs."""

    async def _leave(self, instance: ClientInstance, timeout: float) -> None:
        """Unregister from the instance within ``timeout`` seconds. It is called once, before the instance is released."""

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
        return ClientStateError(f"{self._label} was stopped during the call; start it again to repeat the call")
