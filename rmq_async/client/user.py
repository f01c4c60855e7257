"""The life of a client user: not started, started, stopped - for whatever sits on a shared ``ClientInstance``."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Final, Self

from rmq_protocol.command import RemotingCommand

from ..config import ClientConfig
from ..errors import ClientStateError, WrongLoopError
from ..timeouts import stop_budget
from ..transport import check_not_forked, generation
from .instance import ClientInstance
from .waits import Waits

__all__ = ["ClientUser"]

STOP_TIMEOUT: Final = 3.0


class _State(Enum):
    NEW = "not started"
    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ClientUser:
    """Starts and stops; subclasses say what joining and leaving mean for them."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._state = _State.NEW
        self._instance: ClientInstance | None = None
        self._done: asyncio.Future[None] | None = None
        self._starting = Waits(partial(_stopped_early, type(self).__name__))
        self._calls: set[asyncio.Future[RemotingCommand]] = set()
        self._scopes: set[asyncio.Timeout] = set()
        self._generation = generation()

    def __del__(self) -> None:
        if getattr(self, "_state", None) is _State.STARTED and self._generation == generation():
            warnings.warn(f"{self!r} was dropped without stop()", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.value}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def config(self) -> ClientConfig:
        return self._config

    async def start(self) -> None:
        """Connects to a name server. Does nothing when started already; may be called again when it failed, and after ``stop``.

        Raises NameServerError when none is configured, or none answers within ``request_timeout`` and ``start_without_cluster`` is
        False. Nothing is left behind when it fails or is cancelled.
        """
        if self._state is _State.STARTED and self._instance is not None:
            self._instance.check_usable()
            return
        if self._state in (_State.STARTING, _State.STOPPING):
            raise ClientStateError(f"this {type(self).__name__} is {self._state.value}")
        self._state = _State.STARTING
        self._generation = generation()
        self._done = done = asyncio.get_running_loop().create_future()
        self._starting = starting = Waits(partial(_stopped_early, type(self).__name__))
        try:
            instance = await starting.unless_stopped(ClientInstance.acquire(self._config))
            try:
                if self._state is not _State.STARTING:
                    raise _stopped_early(type(self).__name__)
                self._join(instance)
            except BaseException:
                await instance.release()
                raise
            self._instance = instance
            self._state = _State.STARTED
        finally:
            if self._state is not _State.STARTED:
                self._state = _State.NEW if self._state is _State.STARTING else _State.STOPPED
            done.set_result(None)

    async def stop(self, timeout: float | None = None) -> None:
        """Leaves, and closes the connections if nobody shares them. Harmless when not started or stopped already.

        Calls under way fail with ClientStateError at once. ``timeout``: seconds to spend on telling the brokers; default 3.
        """
        budget = stop_budget(timeout, STOP_TIMEOUT)
        if self._state in (_State.STARTING, _State.STOPPING):
            check_not_forked(self._generation)
            assert self._done is not None
            if self._done.get_loop() is not asyncio.get_running_loop():
                raise WrongLoopError(f"this {type(self).__name__} was started on another event loop")
            self._state = _State.STOPPING
            self._starting.stop()  # there is nothing yet that a stop would have to wait for
            await asyncio.wait([self._done])
            return
        instance = self._instance
        if instance is None or self._state is not _State.STARTED:
            self._state = _State.STOPPED
            return
        instance.check_usable()
        deadline = monotonic() + budget
        self._state = _State.STOPPING
        self._done = done = asyncio.get_running_loop().create_future()
        try:
            self._end_calls()
            await self._leave(instance, max(deadline - monotonic(), 0.0))
        finally:
            try:
                await instance.release()
            finally:
                self._state = _State.STOPPED
                self._instance = None
                done.set_result(None)

    async def aclose(self) -> None:
        """The same as ``stop()``."""
        await self.stop()

    # -- for subclasses

    def _client(self) -> ClientInstance:
        """The running instance. Raises ClientStateError unless started, ForkedError and WrongLoopError as they are due."""
        instance = self._instance
        if instance is None or self._state is not _State.STARTED:
            raise ClientStateError(f"this {type(self).__name__} is {self._state.value}{self._advice()}")
        instance.check_usable()
        return instance

    def _advice(self) -> str:
        """What to do about the state, for an error."""
        if self._state not in (_State.NEW, _State.STOPPED):
            return ""
        kind = type(self).__name__
        return f": use it in `async with {kind}(...)`, or await its start() first"

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[ClientInstance]:
        """Gives the running instance for a call of several steps, all of which ``stop`` ends. Raises as ``_client`` does.

        The means is a time-out without a time: it cancels the task, and knows its own cancellation from anybody else's.
        """
        instance = self._client()
        scope = asyncio.timeout(None)
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
        """Called once, when the instance runs."""

    async def _leave(self, instance: ClientInstance, timeout: float) -> None:
        """Called once, before the instance is given back; takes at most ``timeout`` seconds."""

    def _end_calls(self) -> None:
        for call in self._calls:
            if not call.done():
                call.set_exception(self._stopped())
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now)
        self._scopes.clear()

    def _stopped(self) -> ClientStateError:
        return ClientStateError(f"this {type(self).__name__} was stopped")


def _stopped_early(kind: str) -> ClientStateError:
    return ClientStateError(f"this {kind} was stopped while it started")
