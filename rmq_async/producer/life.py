"""The life of a producer: started on one loop, stopped, started again; refused in a forked child and on any other loop."""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import NoReturn, Self, TypeVar, Unpack, cast

from rmq_protocol.constants import DEFAULT_PRODUCER_GROUP

from ..client.instance import ClientInstance
from ..client.waits import Waits
from ..config import ClientConfig, check_group
from ..errors import ClientStateError, ConfigError, WrongLoopError
from ..timeouts import stop_budget
from ..transport import check_not_forked, generation
from .config import ProducerConfig, ProducerOptions, split_options
from .health import ProducerHealth, ProducerState, health_of
from .sender import Sender

__all__ = ["ProducerLife", "ProducerState"]

T = TypeVar("T")


class ProducerLife:
    """Everything of a producer but the sending."""

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        client: ClientConfig | None = None,
        config: ProducerConfig | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_group(group)
        if group == DEFAULT_PRODUCER_GROUP:
            raise ConfigError(f"producer group {group} is reserved, choose a name of your own")
        self.group = str.__str__(group)  # a subclass's text: the encoders take nothing else
        self.client_config, self.config = split_options(type(self).__name__, namesrv, client, config, options)
        self._state = ProducerState.NEW
        self._instance: ClientInstance | None = None
        self._sender: Sender = cast(Sender, None)
        self._loop_runs: Callable[[], bool] = _never
        self._thread = 0
        """Together they show, at half the price of asking for the running loop, that it is the one this was started on."""
        self._changing: asyncio.Future[None] | None = None
        """Resolved when a start or a stop that is under way is over."""
        self._starting = Waits(partial(_stopped_early, self.group))
        """What a start waits for, so that ``stop`` can end it."""
        self._generation = generation()

    @property
    def state(self) -> ProducerState:
        """Where in its life the producer is."""
        return self._state

    def health(self) -> ProducerHealth:
        """How the producer is at this moment, from any thread: asks no server, waits for nothing and never raises."""
        state, instance, sender = self._state, self._instance, self._sender
        idle = state in (ProducerState.NEW, ProducerState.STOPPED)
        forked = not idle and self._generation != generation()
        return health_of(self.group, state, instance, sender if instance is not None else None, forked=forked)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self._state.value}>"

    def __del__(self) -> None:
        if getattr(self, "_state", None) is ProducerState.RUNNING and self._generation == generation():
            warnings.warn(f"{self!r} was dropped without stop()", ResourceWarning, stacklevel=2, source=self)

    # -- life cycle

    async def start(self) -> None:
        """Joins the shared client instance, registers the group, fetches the routes of ``topics`` and sends a heartbeat.

        A topic of ``topics`` that has no route, or a broker that does not answer, is a warning. Starting twice is harmless.

        Raises NameServerError when none is configured, or none answers within ``request_timeout`` and ``start_without_cluster`` is
        False; ConfigError when the group is already registered with the same client settings; nothing is left behind then.
        """
        if self._state is ProducerState.RUNNING:
            self._usable()
            return
        if self._state in (ProducerState.STARTING, ProducerState.STOPPING):
            raise ClientStateError(f"the producer is {self._state.value}")
        self._state = ProducerState.STARTING
        self._generation = generation()
        self._changing = changing = get_running_loop().create_future()
        self._starting = Waits(partial(_stopped_early, self.group))
        try:
            instance = await self._starting.unless_stopped(ClientInstance.acquire(self.client_config))
            try:
                if self._state is not ProducerState.STARTING:
                    raise _stopped_early(self.group)
                self._sender = await self._join(instance)
            except BaseException:
                await instance.release(0)
                raise
        except BaseException:
            self._state = ProducerState.NEW
            raise
        finally:
            changing.set_result(None)
        self._instance = instance
        self._loop_runs, self._thread = get_running_loop().is_running, get_ident()
        self._state = ProducerState.RUNNING
        _started.add(self)

    async def stop(self, timeout: float | None = None) -> None:
        """Takes no more messages, waits up to ``timeout`` seconds (default ``stop_timeout``) for those accepted, then closes.

        What is unanswered then fails with ClientStateError. Allowed before ``start()``, during it and more than once; a
        call while it stops waits for that. The producer can be started anew.
        """
        budget = stop_budget(timeout, self.config.stop_timeout)
        if self._state in (ProducerState.STARTING, ProducerState.STOPPING):
            check_not_forked(self._generation)
            changing = cast(asyncio.Future[None], self._changing)
            if changing.get_loop() is not get_running_loop():
                self._wrong_loop()
            self._state = ProducerState.STOPPING
            self._starting.stop()  # there is nothing yet that a stop would have to wait for
            await asyncio.wait([changing])
            return
        if self._state is not ProducerState.RUNNING:
            return
        self._usable()
        instance = self._instance
        assert instance is not None
        deadline = monotonic() + budget
        self._state = ProducerState.STOPPING
        self._changing = changing = get_running_loop().create_future()
        self._loop_runs = _never
        try:
            await self._drain(budget)
        except BaseException:
            deadline = monotonic()
            raise
        finally:
            try:
                await instance.unregister_producer(self._sender.producer_group, max(0.0, deadline - monotonic()))
            finally:
                self._instance = None
                try:
                    await instance.release(max(0.0, deadline - monotonic()))
                finally:
                    self._state = ProducerState.STOPPED
                    changing.set_result(None)

    aclose = stop

    async def _drain(self, budget: float) -> None:
        """Lets what was accepted end within ``budget`` seconds, and ends the rest."""
        await self._sender.close(budget)

    async def _join(self, instance: ClientInstance) -> Sender:
        """Registers the group and makes everything ready that the settings ask for."""
        sender = Sender(self.group, self.config, instance)
        try:
            check_group(sender.producer_group)
            instance.register_producer(sender.producer_group)
            try:
                await self._starting.unless_stopped(sender.topics.warm_up())
                if self._state is not ProducerState.STARTING:
                    raise _stopped_early(self.group)
            except BaseException:
                await instance.unregister_producer(sender.producer_group, 0.0)
                raise
        except BaseException:
            await sender.close(0.0)
            raise
        return sender

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- inside

    def _usable(self) -> Sender:
        """The sender of a running producer on its own loop in its own process."""
        if not self._loop_runs() or get_ident() != self._thread:
            self._refuse()
        return self._sender

    def _refuse(self) -> NoReturn:
        check_not_forked(self._generation)
        if self._state is not ProducerState.RUNNING:
            raise ClientStateError(f"producer {self.group} is {self._state.value}{self._advice()}")
        self._wrong_loop()

    def _advice(self) -> str:
        """What to do about the state, for an error."""
        if self._state not in (ProducerState.NEW, ProducerState.STOPPED):
            return ""
        return f": send inside `async with {type(self).__name__}(...)`, or await its start() first"

    def _wrong_loop(self) -> NoReturn:
        raise WrongLoopError(f"producer {self.group} was started on another event loop; make one per loop")


def _never() -> bool:
    return False


_started: weakref.WeakSet[ProducerLife] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A child shares the parent's sockets and must not use them: from here on each call of its producers is refused."""
    for producer in list(_started):
        producer._loop_runs = _never


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _stopped_early(group: str) -> ClientStateError:
    return ClientStateError(f"producer {group} was stopped while it started")
